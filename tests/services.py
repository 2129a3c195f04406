"""Services that some tests need and that a machine may not have."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

import pytest


class Service(NamedTuple):
    """A server that tests share; `is_ours` says that nobody else uses it."""

    url: str
    is_ours: bool

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the URL has the port."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 0

    def url_at(self, port: int) -> str:
        """Return the URL of a proxy to it at that port of this machine."""
        parts = urlsplit(self.url)
        user, separator, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{separator}127.0.0.1:{port}").geturl()


@contextmanager
def find_service(variable: str, start: Callable[[], Any]) -> Iterator[Service]:
    """Return the server that the variable of the environment has the URL of, or one that is started and closed."""
    if url := os.environ.get(variable):
        yield Service(url, is_ours=False)
        return
    server = start()
    try:
        yield Service(server.url, is_ours=True)
    finally:
        server.close()


def needs(service: str, *programs: str) -> None:
    """Skip the test unless the programs, by default the one called like the service, are installed.

    With AGENTRT_REQUIRE_SERVICES=1 the test fails instead.
    """
    missing = [name for name in programs or (service,) if shutil.which(name) is None]
    if missing:
        unavailable(service, f"{' and '.join(missing)} not found")


def unavailable(service: str, why: str) -> NoReturn:
    """Skip the test because a service cannot be had; fail it with AGENTRT_REQUIRE_SERVICES=1."""
    if os.environ.get("AGENTRT_REQUIRE_SERVICES") == "1":
        pytest.fail(f"{service} is required by AGENTRT_REQUIRE_SERVICES=1: {why}", pytrace=False)
    pytest.skip(f"{service} is not available: {why}")
