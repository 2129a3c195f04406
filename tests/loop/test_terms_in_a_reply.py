"""Terms of layers on every path of a reply: streamed, resumed elsewhere, interrupted, in a sub-agent."""

import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

import anyio
import pytest

from agentrt import Agent, AgentBase, AgentState, MiddlewareBase, Msg, UserMsg
from agentrt.errors import LayerTimeout
from agentrt.event import ReplyEndEvent
from agentrt.message import ToolResultState
from agentrt.middleware import Bundle, Limited, RetryMiddleware, When, arrange
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, ToolGroup
from tests.loop.helpers import add, agent_of, call, confirmation_of, items_of, saved_state

SECONDS = 0.02


@dataclass
class Deps:
    is_pro: bool


def is_pro(agent: Any) -> bool:
    return bool(agent.run.deps.is_pro)


async def extra() -> str:
    return "extra"


class Extra(MiddlewareBase):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def list_tools(self) -> list[Any]:
        return [extra]

    async def on_acting(self, agent, input_kwargs, next_handler):
        self.seen.append("on_acting")
        async for item in next_handler():
            yield item

    async def on_observe(self, agent, input_kwargs, next_handler):
        self.seen.append("on_observe")
        await next_handler()

    def on_event(self, agent, event):
        if not self.seen or self.seen[-1] != "on_event":
            self.seen.append("on_event")


class Hangs(MiddlewareBase):
    """Hangs in one hook, until it is told to stop doing so."""

    inherited = True

    def __init__(self, hook: str) -> None:
        self.hook = hook

    async def _hang_in(self, hook: str) -> None:
        if self.hook == hook:
            await anyio.sleep_forever()

    async def on_reply(self, agent, input_kwargs, next_handler):
        await self._hang_in("on_reply")
        async for item in next_handler():
            yield item

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        await self._hang_in("on_reasoning")
        async for item in next_handler():
            yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):
        await self._hang_in("on_model_call")
        return await next_handler()

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        await self._hang_in("on_check_permission")
        return await next_handler()

    async def on_acting(self, agent, input_kwargs, next_handler):
        await self._hang_in("on_acting")
        async for item in next_handler():
            yield item


def results_of(agent: Agent) -> list[tuple[str, ToolResultState]]:
    blocks = [block for message in agent.state.context for block in message.get_content_blocks("tool_result")]
    return [("".join(part.text for part in block.output), block.state) for block in blocks]


# Conditions


async def test_tools_of_a_layer_that_is_off_are_not_offered() -> None:
    layer = Extra()
    agent = agent_of([[call("1", "extra")], "done"] * 2, add, middlewares=[When(is_pro, layer)])
    await agent.reply("go", deps=Deps(False))
    assert [tool["function"]["name"] for tool in agent.model.calls[0].tools] == ["add"]
    assert "does not exist" in results_of(agent)[0][0]
    assert layer.seen == []
    await agent.reply("go", deps=Deps(True))
    assert [tool["function"]["name"] for tool in agent.model.calls[2].tools] == ["add", "extra"]
    assert results_of(agent)[1] == ("extra", ToolResultState.SUCCESS)
    assert "on_acting" in layer.seen


async def test_a_group_of_a_layer_that_is_off_gives_no_tools() -> None:
    class Grouped(MiddlewareBase):
        def list_tools(self) -> list[Any]:
            return [ToolGroup("more", "More tools.", active=True, tools=[extra])]

    agent = agent_of(["done"], add, middlewares=[When(lambda agent: False, Grouped())])
    await agent.reply("go")
    assert "extra" not in [tool["function"]["name"] for tool in agent.model.calls[0].tools]


async def test_a_condition_is_asked_once_per_reply() -> None:
    asked: list[str] = []

    def is_asked(agent: Any) -> bool:
        asked.append(agent.run.id)
        return True

    layers = [When(is_asked, Bundle("both", [Extra(), Hangs("")]))]
    agent = agent_of([[call("1", "add", a=1, b=2)], "done", "again"], add, middlewares=layers)
    await agent.reply("go")
    await agent.reply("go")
    assert len(asked) == len(set(asked)) == 2


async def test_a_resumed_reply_keeps_its_layers_in_another_process() -> None:
    def build(responses: list[Any], layer: Extra, state: AgentState) -> Agent:
        tools = [FunctionTool(add, ask=True)]
        return agent_of(responses, *tools, middlewares=[When(is_pro, layer)], state=state)

    agent = build([[call("1", "add", a=1, b=2)]], Extra(), AgentState())
    await agent.reply("go", deps=Deps(True))
    state = saved_state(agent)
    assert state.reply_context.conditions == {"Extra": True}
    layer = Extra()
    other = build(["done"], layer, state)
    await other.reply(confirmation_of(agent), deps=Deps(False))
    assert "on_acting" in layer.seen
    assert [tool["function"]["name"] for tool in other.model.calls[0].tools] == ["add", "extra"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_a_condition_ends_the_reply(stream: bool) -> None:
    class Watches(MiddlewareBase):
        def on_event(self, agent, event):
            pass

    agent = agent_of(["never"], middlewares=[When(is_pro, Watches())])
    with pytest.raises(AttributeError) as caught:
        await (items_of(agent) if stream else agent.reply("go"))
    assert "is_pro of Watches" in caught.value.__notes__[0]
    assert (await agent.reply("go", deps=Deps(False))).get_text_content() == "never"


async def test_a_condition_is_asked_each_time_outside_of_replies() -> None:
    answers, layer = [True, False, True], Extra()
    agent = agent_of([], middlewares=[When(lambda agent: answers.pop(0), layer)])
    for _ in range(3):
        await agent.observe(UserMsg("user", "hello"))
    assert layer.seen == ["on_observe", "on_observe"]


async def test_a_custom_agent_asks_a_condition_once_per_reply() -> None:
    class Custom(AgentBase):
        async def reply(self, msg: Msg) -> Msg:
            return msg

    asked: list[int] = []
    agent = Custom(middlewares=[When(lambda agent: not asked.append(1), Bundle("b", [Hangs(""), Hangs("")]))])
    for _ in range(2):
        await agent.reply(UserMsg("user", "go"))
    assert asked == [1, 1]


# Limits


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hook", ["on_reasoning", "on_model_call"])
async def test_a_reply_whose_guard_hangs_is_stopped_and_the_next_works(hook: str, stream: bool) -> None:
    layer = Hangs(hook)
    agent = agent_of(["secret"], middlewares=[Limited(layer, SECONDS, "deny", hooks=[hook])])
    if stream:
        ends = [item for item in await items_of(agent) if isinstance(item, ReplyEndEvent)]
        assert [end.finished_reason for end in ends] == ["guardrail"]
    else:
        message = await agent.reply("go")
        assert message.finished_reason == "guardrail"
        assert "Hangs, which guards this, took longer" in str(message.get_text_content())
    assert agent.model.calls == []
    layer.hook = ""
    assert (await agent.reply("go")).get_text_content() == "secret"


@pytest.mark.parametrize("hook", ["on_check_permission", "on_acting"])
async def test_a_tool_call_whose_guard_hangs_is_denied(hook: str) -> None:
    agent = agent_of(
        [[call("1", "add", a=1, b=2)], "done"], add, middlewares=[Limited(Hangs(hook), SECONDS, "deny", hooks=[hook])]
    )
    assert (await agent.reply("go")).get_text_content() == "done"
    ((text, state),) = results_of(agent)
    assert state is ToolResultState.DENIED
    assert "took longer than 0.02 s" in text


async def test_a_timeout_of_a_layer_is_repeated_by_no_retry() -> None:
    agent = agent_of(
        ["never"], middlewares=[RetryMiddleware(initial_delay=0), Limited(Hangs("on_model_call"), SECONDS)]
    )
    with (
        anyio.fail_after(30),
        pytest.raises(LayerTimeout, match=r"Hangs took longer than 0\.02 s of its own in on_model_call"),
    ):
        await agent.reply("go")


async def test_a_skipped_layer_of_on_reply_changes_no_event() -> None:
    plain = [type(item) for item in await items_of(agent_of(["hello there"]))]
    layers = [Limited(Hangs("on_reply"), SECONDS, "skip", hooks=["on_reply"])]
    assert [type(item) for item in await items_of(agent_of(["hello there"], middlewares=layers))] == plain


class Unfinished(MiddlewareBase):
    """Changes its lists, and never comes to an end."""

    async def on_tools(self, agent, current_tools):
        current_tools.clear()
        await anyio.sleep_forever()

    async def on_model_call(self, agent, input_kwargs, next_handler):
        input_kwargs["messages"].clear()
        await anyio.sleep_forever()


async def test_a_skipped_layer_leaves_no_change_in_a_list() -> None:
    agent = agent_of(["done"], add, middlewares=[Limited(Unfinished(), SECONDS, "skip")])
    await agent.reply("go")
    (request,) = agent.model.calls
    assert [tool["function"]["name"] for tool in request.tools or ()] == ["add"]
    assert request.messages[-1].get_text_content() == "go"


@pytest.mark.parametrize("hook", ["on_reply", "on_reasoning", "on_model_call", "on_acting"])
async def test_an_interrupt_passes_a_limit(hook: str) -> None:
    agent = agent_of(
        [[call("1", "add", a=1, b=2)], "again"], add, middlewares=[Limited(Hangs(hook), 60, "skip", hooks=[hook])]
    )
    async with anyio.create_task_group() as group:

        async def interrupt() -> None:
            await anyio.wait_all_tasks_blocked()
            if hook == "on_reply":
                group.cancel_scope.cancel()
            else:
                agent.interrupt()

        group.start_soon(interrupt)
        message = await agent.reply("go")
        assert message.finished_reason == "interrupted"


async def test_a_slow_tool_does_not_use_up_a_limit() -> None:
    async def slow() -> str:
        await anyio.sleep(3 * SECONDS)
        return "slept"

    agent = agent_of([[call("1", "slow")], "done"], slow, middlewares=[Limited(Hangs(""), SECONDS)])
    await agent.reply("go")
    assert results_of(agent) == [("slept", ToolResultState.SUCCESS)]


# Terms stay with their layers


def limits_in(agent: Agent) -> dict[str, Any]:
    return {layer.name: layer.limit and layer.limit.seconds for layer in agent.chains.layers["on_model_call"]}


async def test_a_sub_agent_inherits_a_layer_with_its_terms() -> None:
    seen: list[str] = []

    def is_inner(agent: Any) -> bool:
        seen.append(agent.name)
        return agent.name == "inner"

    layer = When(is_inner, Limited(Hangs("on_acting"), SECONDS, "deny", hooks=["on_acting"]))
    inner = agent_of([[call("1", "add", a=1, b=2)], "inner done"], add)
    inner.name = "inner"
    outer = Agent(
        "outer",
        model=ScriptedChatModel([[call("2", "ask", query="go")], "outer done"]),
        tools=[inner.as_tool("Does it.", name="ask")],
        middlewares=[layer],
    )
    await outer.reply("go")
    assert results_of(outer) == [("inner done", ToolResultState.SUCCESS)]
    assert set(seen) == {"outer", "inner"}
    assert "which guards this" in str(inner.model.calls[1].messages)


def test_an_agent_with_other_middlewares_keeps_the_terms() -> None:
    agent = agent_of([], middlewares=[Limited(Hangs(""), 1)])
    assert limits_in(agent.with_middlewares([*agent.middlewares, RetryMiddleware()])) == {
        "Hangs": 1,
        "RetryMiddleware": None,
    }
    assert limits_in(agent.with_middlewares([Limited(agent.middlewares[0], 2)])) == {"Hangs": 2}


def test_a_copied_agent_keeps_the_terms() -> None:
    agent = agent_of([], middlewares=[When(is_pro, Bundle("b", [Limited(Hangs(""), 1)]))])
    assert limits_in(pickle.loads(pickle.dumps(agent))) == {"Hangs": 1}


class Counted(MiddlewareBase):
    wrapped_by: ClassVar = {"RetryMiddleware": "it counts each attempt"}

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler()


def test_explain_shows_the_terms() -> None:
    layers = [
        Bundle("safety", [Counted(), RetryMiddleware()]),
        When(is_pro, Limited(Hangs(""), 2, "skip", ["on_acting"])),
    ]
    text = agent_of([], middlewares=arrange(layers)).explain()
    assert "1. safety / RetryMiddleware  " in text
    assert "2. safety / Counted  " in text
    assert "     where is_pro holds\n" in text
    assert text.count("     at most 2 s of its own, or skip; code that blocks is not stopped\n") == 1
