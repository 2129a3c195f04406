"""Warnings of the MCP SDK, which are not ours."""

import pytest

# It may leave the generators of a stream to the garbage collector, where trio warns of them and closes them.
_OF_THE_SDK = (
    "ignore:Async generator 'httpx2:ResourceWarning",
    "ignore:Exception ignored in.*EventSource:pytest.PytestUnraisableExceptionWarning",
)


def pytest_itemcollected(item: pytest.Item) -> None:  # called for the items of this folder
    for warning in _OF_THE_SDK:
        item.add_marker(pytest.mark.filterwarnings(warning))
