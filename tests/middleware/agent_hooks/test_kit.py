"""The vectors of the standard's own kit, in each way of running a reply; two ways run on trio."""

import json
from itertools import cycle
from typing import ClassVar

import pytest
from agent_hooks.ctk import Capability, load_vectors, run_vector

from tests.middleware.agent_hooks.harness import WAYS, Harness

VECTORS = load_vectors()
OF_STREAMS = [vector for vector in VECTORS if "incremental_output" in vector["capabilities"]]
OTHERS = [vector for vector in VECTORS if vector not in OF_STREAMS]


def test_the_kit_has_seventy_five_vectors():
    assert (len(OTHERS), len(OF_STREAMS)) == (71, 4)


@pytest.mark.parametrize(("way", "anyio_backend"), list(zip(WAYS, cycle(["asyncio", "trio"]), strict=False)))
async def test_every_vector_passes(anyio_backend, way):
    results = [await run_vector(Harness(way, vector), vector) for vector in OTHERS]
    assert {result.id: result.failures or result.detail for result in results if result.status != "pass"} == {}


class StreamingHarness(Harness):
    """Declares that it judges answers in pieces, which the kit's runner has no field for."""

    capabilities: ClassVar = {*Harness.capabilities, Capability.INCREMENTAL_OUTPUT}

    def host_surface(self):
        return super().host_surface().with_exposure_bound("watermark-gated")


@pytest.mark.parametrize(
    ("way", "anyio_backend"), [("streamed", "trio"), ("resumed", "asyncio"), ("sub-agent", "trio")]
)
@pytest.mark.parametrize("vector", OF_STREAMS, ids=lambda vector: vector["id"])
async def test_a_streamed_answer_leaves_as_verdicts_cover_it(anyio_backend, way, vector):
    harness = StreamingHarness(way, vector)
    result = await run_vector(harness, vector)
    assert result.status == "pass", result.failures or result.detail
    expected = vector["expect"]
    assert harness.released == expected["released_output"]
    for text in expected.get("persisted_must_not_contain", ()):
        assert json.dumps(text)[1:-1] not in harness.saved
