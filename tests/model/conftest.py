"""Servers that the tests of models share."""

from collections.abc import Iterator

import pytest

from tests.servers.aimock import Aimock, aimock_server


@pytest.fixture(scope="session")
def aimock(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    # In pytest's cache, which git and packages leave out; there is none with `-p no:cacheprovider`.
    cache = getattr(request.config, "cache", None)
    folder = tmp_path_factory.mktemp("aimock") if cache is None else cache.mkdir("aimock")
    with aimock_server(folder) as server:
        yield server
