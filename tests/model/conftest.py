"""Servers that the tests of models share."""

from collections.abc import Iterator

import pytest

from tests.servers.aimock import Aimock, aimock_server


@pytest.fixture(scope="session")
def aimock(request: pytest.FixtureRequest) -> Iterator[Aimock]:
    # In pytest's cache, which git and packages leave out.
    with aimock_server(request.config.cache.mkdir("aimock")) as server:
        yield server
