"""The wire: every request that was sent is told once to every observer, with its end, whatever layers do."""

from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Agent, AgentState
from agentrt.errors import Transient
from agentrt.hooks import MiddlewareBase
from agentrt.message import TextBlock, UserMsg
from agentrt.model import ChatModelBase, ChatResponse, ModelResult


class Counted(ChatModelBase):
    """Says what it is told to, in turn, and counts what reaches it."""

    def __init__(self, plan: list[str], stream: bool) -> None:
        super().__init__(model="counted", stream=stream)
        self.plan = plan
        self.sent = 0

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
        outcome = self.plan[self.sent % len(self.plan)]
        self.sent += 1
        await anyio.lowlevel.checkpoint()
        if outcome == "fail":
            raise Transient("down")
        if not self.stream:
            return ChatResponse([TextBlock("yes")])
        return self._pieces(outcome)

    async def _pieces(self, outcome: str) -> Any:
        yield ChatResponse([TextBlock("y")], is_last=False)
        await anyio.lowlevel.checkpoint()
        if outcome == "cut":
            raise Transient("cut")
        yield ChatResponse([TextBlock("yes")])


class Does(MiddlewareBase):
    """Does one of the things that a layer may do with a request."""

    def __init__(self, action: str) -> None:
        self.action = action
        self.key = f"Does {id(self)}"  # may be in the list several times

    async def on_model_call(self, agent: Agent, input_kwargs: Any, next_handler: Any) -> ModelResult:
        match self.action:
            case "answers":
                return ChatResponse([TextBlock("mine")])
            case "fails":
                raise Transient("mine")
            case "asks twice":
                await next_handler()
            case "asks beside" if not agent.run.is_internal:
                await agent.run.ask_model([UserMsg("runtime", "well?")], purpose="judge")
            case "asks through" if not agent.run.is_internal:
                await agent.run.ask_model([UserMsg("runtime", "well?")], purpose="judge", through=next_handler)
            case "gives up":
                with anyio.move_on_after(0):
                    await next_handler()
            case "tries again":
                try:
                    return await next_handler()
                except Transient:
                    return await next_handler()
            case "leaves":
                result = await next_handler()
                if not isinstance(result, ChatResponse):
                    await anext(result)
                    await result.aclose()
                return ChatResponse([TextBlock("mine")])
        return await next_handler()


class Records(MiddlewareBase):
    def __init__(self, key: str) -> None:
        self.key = key
        self.kinds: dict[str, list[str]] = {}

    def on_wire(self, agent: Any, record: Any) -> None:
        self.kinds.setdefault(record.call_id, []).append(record.kind)


ACTIONS = st.sampled_from(
    ["passes", "answers", "fails", "asks twice", "asks beside", "asks through", "gives up", "tries again", "leaves"]
)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@given(
    st.lists(ACTIONS, max_size=4),
    st.lists(st.sampled_from(["answer", "fail", "cut"]), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 12),
    st.permutations(range(3)),
)
@settings(max_examples=25, deadline=None)
async def test_each_request_is_told_once_to_every_observer(
    actions: list[str], plan: list[str], stream: bool, leave_after: int, places: list[int]
) -> None:
    model, observers = Counted(plan, stream), [Records(str(number)) for number in range(3)]
    layers: list[MiddlewareBase] = [Does(action) for action in actions]
    for place, observer in zip(places, observers, strict=True):
        layers.insert(place, observer)
    agent = Agent("a", model=model, middlewares=layers, state=AgentState())
    left = leave_after
    try:
        async with agent.reply_stream("go") as events:
            async for _ in events:
                left -= 1
                if left == 0:
                    break
    except Transient:
        pass
    for observer in observers:
        assert list(observer.kinds.values()) == [["request", "end"]] * model.sent
