"""`check_middleware` and observers: one that looks passes, one that changes what it sees is named."""

import pytest

from agentrt.event import AgentEvent
from agentrt.hooks import MiddlewareBase
from agentrt.testing import MiddlewareProblems, check_middleware


class Looking(MiddlewareBase):
    inherited = False

    def __init__(self):
        self.seen = 0

    def on_event(self, agent, event):
        # Those of other replies pass through, and belong to them; `agent.run` is gone when the reply is closed.
        if isinstance(event, AgentEvent) and event.reply_id == agent.run.id:
            self.seen += 1

    def on_wire(self, agent, record):
        self.seen += 1


class ChangesEvents(MiddlewareBase):
    def on_event(self, agent, event):
        if event.type == "TEXT_BLOCK_DELTA":
            event.delta = event.delta.upper()


class ChangesRecords(MiddlewareBase):
    def on_wire(self, agent, record):
        if record.response is not None:
            record.response.content = []


class AddsToRequests(MiddlewareBase):
    def on_wire(self, agent, record):
        if record.kind == "request":
            record.messages.append(record.messages[-1])


class Failing(MiddlewareBase):
    inherited = False

    def on_event(self, agent, event):
        raise ValueError("a secret")


@pytest.mark.slow
async def test_an_observer_that_looks_on_passes_with_every_fault():
    await check_middleware(Looking)


@pytest.mark.slow
async def test_an_observer_that_fails_disturbs_nothing():
    await check_middleware(Failing, faults=())


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (ChangesEvents, "ChangesEvents changed the TextBlockDeltaEvent that it was shown"),
        (ChangesRecords, "ChangesRecords changed the WireRecord that it was shown"),
        (AddsToRequests, "AddsToRequests changed the WireRecord that it was shown"),
    ],
)
async def test_an_observer_that_changes_what_it_sees_is_named(layer, words):
    with pytest.raises(MiddlewareProblems, match=words):
        await check_middleware(layer, faults=())
