"""`GET /api/health`: whether the parts of the agents are well, with words only for those whom the server knows."""

from typing import Any

import pytest

from agentrt import Agent
from agentrt.middleware import MiddlewareBase
from agentrt.serving import BearerTokens
from tests.serving.conftest import serve

ANN = {"Authorization": "Bearer ann-token"}


class Says(MiddlewareBase):
    def __init__(self, answer: str | None) -> None:
        self.answer = answer
        self.asked = 0

    async def health(self) -> str | None:
        self.asked += 1
        return self.answer


@pytest.mark.parametrize(("answer", "status"), [(None, 200), ("no connection", 503)])
async def test_only_the_known_learn_what_is_wrong(answer: str | None, status: int) -> None:
    layer = Says(answer)
    agent = Agent("shop", model="rules", middlewares=[layer])
    async with serve(agent, auth=BearerTokens({"ann-token": "ann"})) as client:
        unknown = await client.get("/api/health")
        known = await client.get("/api/health", headers=ANN)
    word = "ok" if answer is None else "failed"
    assert (unknown.status_code, unknown.json()) == (status, {"status": word})
    assert known.status_code == status
    body: dict[str, Any] = known.json()
    (part,) = body["agents"]["shop"]
    assert (body["status"], part["name"], part["kind"], part["problem"]) == (word, "Says", "layer", answer)
    assert layer.asked == 1  # anybody may ask, so the parts are asked once a second at most


async def test_without_authentication_everybody_is_known() -> None:
    async with serve(Agent("shop", model="rules")) as client:
        answer = await client.get("/api/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "agents": {"shop": []}})
