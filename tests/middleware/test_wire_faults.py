"""Faults of a provider on the wire, within a retry, a fallback and a rate limit."""

from typing import Any

import httpx2
import pytest

from agentrt import Agent
from agentrt.errors import Rejected
from agentrt.middleware import ModelFallbackMiddleware, RateLimitMiddleware, RetryMiddleware
from agentrt.model import ScriptedChatModel
from tests.loop.helpers import items_of
from tests.middleware.fake_time import Least, in_jumping_time, rebuilt, retries, text_of
from tests.model.wire_openai import HANG, Answer, delta, error, events, model_of, says

CUT = httpx2.RemoteProtocolError("peer closed connection")
HALF = events(delta(content="half an "))


@pytest.mark.parametrize(
    ("fault", "reason", "wait"),
    [
        (error(429, **{"retry-after": "0.01"}), "RateLimited", 0.01),
        (error(429), "RateLimited", 0),
        (error(500), "Transient", 0),
        (error(529), "Transient", 0),
        (httpx2.ConnectTimeout(""), "Timeout", 0),
        (Answer([HANG]), "Timeout", 0),
        (Answer([HALF, HANG]), "Timeout", 0),
        (Answer([CUT]), "Transient", 0),
        (Answer([HALF, CUT]), "Transient", 0),
    ],
    ids=["slow down", "slow", "500", "529", "connect", "no first piece", "idle", "cut at once", "cut midway"],
)
@in_jumping_time
async def test_a_transient_fault_is_repaired_by_another_request(fault: Any, reason: str, wait: float) -> None:
    model, server = model_of(fault, says("the answer"))
    layers = [RetryMiddleware(1, random=Least()), RateLimitMiddleware(max_concurrency=1)]
    async with Agent("tester", model=model, middlewares=layers) as agent:
        items = await items_of(agent)
    assert retries(items) == [(reason, 1, wait)]
    assert text_of(agent) == rebuilt(items).get_text_content() == "the answer"
    assert len(server.requests) == 2
    assert not server.open


async def test_an_exhausted_quota_is_not_retried_but_falls_back() -> None:
    quota = error(429, "You exceeded your current quota", "insufficient_quota")
    model, server = model_of(quota)
    async with Agent("tester", model=model, middlewares=[RetryMiddleware(random=Least())]) as agent:
        with pytest.raises(Rejected):
            await agent.reply("go")
    assert len(server.requests) == 1
    model, server = model_of(quota)
    layers = [ModelFallbackMiddleware(ScriptedChatModel(["the answer"])), RetryMiddleware(random=Least())]
    async with Agent("tester", model=model, middlewares=layers) as agent:
        assert (await agent.reply("go")).get_text_content() == "the answer"
    assert len(server.requests) == 1
