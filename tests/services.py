"""Services that some tests need and that a machine may not have."""

import os
import shutil
from typing import NoReturn

import pytest


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
