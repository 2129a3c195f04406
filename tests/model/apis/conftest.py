"""The APIs, and one event loop, for all examples of a module."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.model.apis.all_apis import NAMES_OF_APIS, Api, new_api


@pytest.fixture(scope="module")
def apis() -> dict[str, Api]:
    return {name: new_api(name) for name in NAMES_OF_APIS}


@pytest.fixture(scope="module")
def runner(apis: dict[str, Api]) -> Iterator[asyncio.Runner]:
    """One event loop for all examples: opening one takes longer than an example."""
    with asyncio.Runner() as loop:
        yield loop
        for api in apis.values():
            loop.run(api.model.aclose())
