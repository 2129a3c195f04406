"""The agent of a test of one chain."""

import pytest

from tests.chain.helpers import Log


@pytest.fixture
def agent() -> Log:
    return Log()
