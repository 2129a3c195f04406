"""The conformance kit on asyncio's other event loop."""

import anyio
import pytest

from agentrt.middleware import RetryMiddleware
from agentrt.testing import check_middleware

pytest.importorskip("uvloop")


@pytest.mark.slow
def test_middleware_keeps_its_promises_on_uvloop():
    options = {"use_uvloop": True}
    report = anyio.run(check_middleware, RetryMiddleware, backend="asyncio", backend_options=options)
    assert not report.problems
