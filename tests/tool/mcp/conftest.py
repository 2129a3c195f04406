"""Warnings of the MCP SDK, which are not ours."""

from collections.abc import Sequence
from pathlib import Path

import pytest

# It may leave the generators of a stream to the garbage collector, where trio warns of them and closes them.
_OF_THE_SDK = (
    "ignore:Async generator 'httpx2:ResourceWarning",
    "ignore:Exception ignored in.*EventSource:pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in _OF_THE_SDK:
                item.add_marker(pytest.mark.filterwarnings(warning))
