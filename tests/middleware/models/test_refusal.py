"""When a model declines to answer another one is asked, and what was refused is withdrawn."""

from itertools import repeat
from typing import Any

import pytest

from agentrt import Agent
from agentrt.errors import MiddlewareConfigError, Refused, Transient
from agentrt.message import TextBlock
from agentrt.middleware import GuardrailMiddleware, MiddlewareBase, RefusalMiddleware
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.testing import check_middleware
from tests.loop.helpers import items_of
from tests.middleware.fake_time import rebuilt, retries

FILTERED = ChatResponse([TextBlock("I may not")], finished_reason="content_filter")
REFUSALS: list[Any] = [Refused("no"), FILTERED, ["I ", "may ", FILTERED], ["I ", Refused("no")]]


def agent_of(first: Any, *others: Any, stream: bool | None = None) -> Agent:
    models = [ScriptedChatModel([other], model=f"other {place}") for place, other in enumerate(others)]
    layers = [RefusalMiddleware(models)]
    return Agent("a", model=ScriptedChatModel([first], stream=stream), middlewares=layers)


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_another_model_answers_in_place_of_a_refusal(refusal: Any) -> None:
    agent = agent_of(refusal, Refused("neither"), "Gladly.", stream=None)
    items = await items_of(agent)
    assert items[-1].get_text_content() == "Gladly."  # type: ignore[union-attr]
    assert rebuilt(items).content == agent.state.context[-1].content
    reasons = [reason for reason, _, _ in retries(items)]
    assert reasons == ["Refused, asking 'other 0'", "Refused, asking 'other 1'"]


class Pieces:
    """A stream that cannot be closed."""

    def __init__(self, *pieces: Any) -> None:
        self.pieces = iter(pieces)

    def __aiter__(self) -> "Pieces":
        return self

    async def __anext__(self) -> ChatResponse:
        for piece in self.pieces:
            return ChatResponse([TextBlock(piece)], is_last=False) if isinstance(piece, str) else piece
        raise StopAsyncIteration


class AnswersInPieces(MiddlewareBase):
    async def on_model_call(self, agent: Agent, input_kwargs: Any, next_handler: Any) -> Any:
        return Pieces("I ", FILTERED) if input_kwargs["current_model"] is agent.model else Pieces("Glad", "ly.")


async def test_a_stream_of_another_layer_may_lack_a_way_to_close_it() -> None:
    guards = GuardrailMiddleware(input=[lambda text, agent: None], output=[lambda text, agent: None])
    layers = [guards, RefusalMiddleware(ScriptedChatModel([], model="second")), AnswersInPieces()]
    agent = Agent("a", model=ScriptedChatModel([]), middlewares=layers)
    assert (await agent.reply("go")).get_text_content() == "Gladly."


async def test_the_last_refusal_stands() -> None:
    last = Refused("last")
    with pytest.raises(Refused) as raised:
        await agent_of(Refused("first"), last).reply("go")
    assert raised.value is last
    message = await agent_of(Refused("first"), FILTERED).reply("go")
    assert message.get_text_content() == "I may not"


async def test_other_failures_are_left_to_other_layers() -> None:
    with pytest.raises(Transient):
        await agent_of(Transient("503"), "unused").reply("go")


@pytest.mark.parametrize("models", [[], None, 7, [None], {}])
def test_what_is_not_a_model_is_refused(models: Any) -> None:
    with pytest.raises(MiddlewareConfigError, match=r"models=\.\.\.\) must be chat models, or names"):
        RefusalMiddleware(models)


@pytest.mark.slow
async def test_it_keeps_the_contract() -> None:
    def make() -> MiddlewareBase:
        return RefusalMiddleware(ScriptedChatModel(repeat("spare"), model="second"))

    await check_middleware(make, faults=["cancel"], every=3)
