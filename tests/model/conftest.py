"""Servers that the tests of models share."""

from collections.abc import Iterator

import pytest

from tests.servers.aimock import Aimock, aimock_server
from tests.servers.node_packages import cache_folder


@pytest.fixture(scope="session")
def aimock(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    with aimock_server(cache_folder(request.config, tmp_path_factory)) as server:
        yield server
