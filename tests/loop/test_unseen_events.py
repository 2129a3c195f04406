"""A reply that is awaited shows no event before its end, so what a layer emits needs no task of its own."""

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from agentrt import Agent, Toolkit, UserMsg
from agentrt.concurrency.background_task import enclosing_replies
from agentrt.event import AgentEvent, CustomEvent, HintBlockEvent, ModelCallRetryEvent
from agentrt.hooks import MiddlewareBase
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import ToolContext
from agentrt.types import PermissionDecision

MANY = 10_500  # more than a mailbox holds


class Emitting(MiddlewareBase):
    """Emits in each hook that may be entered in a background task, and notes in which task it runs."""

    emits = True

    def __init__(self) -> None:
        self.tasks: list[tuple[str, int]] = []

    def note(self, hook: str, agent: Any) -> None:
        self.tasks.append((hook, anyio.get_current_task().id))
        agent.run.emit(HintBlockEvent("", agent.run.new_id(), hook, "Emitting"))

    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        self.note("on_system_prompt", agent)
        return current_prompt

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        self.note("on_model_call", agent)
        return await next_handler(**input_kwargs)

    async def on_check_permission(self, agent: Any, input_kwargs: Any, next_handler: Any) -> PermissionDecision:
        self.note("on_check_permission", agent)
        decision: PermissionDecision = await next_handler(**input_kwargs)
        return decision

    async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        self.note("on_acting", agent)
        async for item in next_handler(**input_kwargs):
            yield item


HOOKS = ["on_system_prompt", "on_model_call", "on_check_permission", "on_acting", "on_system_prompt", "on_model_call"]


async def wait() -> str:
    """Wait."""
    await anyio.lowlevel.checkpoint()
    return "waited"


def agent_with(*layers: MiddlewareBase, tool: Any = wait) -> Agent:
    model = ScriptedChatModel([[ToolCallBlock("c", tool.__name__, "{}")], "Done."])
    return Agent(name="a", system_prompt="p", model=model, toolkit=Toolkit(tools=[tool]), middlewares=list(layers))


def content_of(agent: Agent) -> list[tuple[str, object]]:
    kinds = [(block.type, getattr(block, "hint", None)) for block in agent.state.context[-1].content]
    return [(kind, hint) for kind, hint in kinds]


async def test_awaited_reply_enters_emitting_hooks_in_its_own_task():
    layer = Emitting()
    await agent_with(layer).reply("Hi")
    assert layer.tasks == [(hook, anyio.get_current_task().id) for hook in HOOKS]


async def test_streamed_reply_enters_them_in_other_tasks():
    layer = Emitting()
    async for _ in agent_with(layer).reply_stream("Hi"):
        pass
    assert [hook for hook, _ in layer.tasks] == HOOKS
    assert anyio.get_current_task().id not in {task for _, task in layer.tasks}


async def test_awaited_reply_keeps_what_a_streamed_one_keeps():
    awaited, streamed = agent_with(Emitting()), agent_with(Emitting())
    await awaited.reply("Hi")
    async for _ in streamed.reply_stream("Hi"):
        pass
    assert content_of(awaited) == content_of(streamed)
    assert awaited.state.sequence == streamed.state.sequence


class OnReply(MiddlewareBase):
    def __init__(self) -> None:
        self.seen: list[AgentEvent] = []

    async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        async for item in next_handler(**input_kwargs):
            self.seen.append(item)
            yield item


class OnReasoning(OnReply):
    on_reasoning = OnReply.on_reply
    on_reply = MiddlewareBase.on_reply


class Notice(MiddlewareBase):
    """Emits, and waits until that was seen."""

    emits = True

    def __init__(self, witness: OnReply) -> None:
        self._witness = witness

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        agent.run.emit(CustomEvent("notice", None))
        with anyio.fail_after(30):
            while not any(isinstance(item, CustomEvent) for item in self._witness.seen):
                await anyio.lowlevel.checkpoint()
        return await next_handler(**input_kwargs)


@pytest.mark.parametrize("witness", [OnReply, OnReasoning])
async def test_layer_around_an_awaited_reply_sees_events_at_once(witness):
    layer = witness()
    agent = Agent(name="a", model=ScriptedChatModel(["Done."]), middlewares=[layer, Notice(layer)])
    assert (await agent.reply(UserMsg("user", "Hi"))).get_text_content() == "Done."


async def test_tool_of_an_awaited_reply_may_emit_any_number_of_events():
    async def chat(context: ToolContext) -> str:
        """Emit events."""
        for n in range(MANY):
            context.emit(CustomEvent("progress", n))
        return str(len(enclosing_replies.get()))

    agent = agent_with(tool=chat)
    await agent.reply("Hi")
    (result,) = (block for block in agent.state.context[-1].content if block.type == "tool_result")
    assert result.output[0].text == "1"  # it works for this reply
    assert agent.state.sequence > MANY


async def test_an_attempt_given_up_leaves_an_awaited_reply():
    class Again(MiddlewareBase):
        emits = True

        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            async def both() -> AsyncGenerator[Any, None]:
                async for piece in await next_handler(**input_kwargs):
                    yield piece
                    break
                agent.run.emit(ModelCallRetryEvent("again"))
                async for piece in await next_handler(**input_kwargs):
                    yield piece

            return both()

    agent = Agent(name="a", model=ScriptedChatModel(["One two.", "Three."], stream=True), middlewares=[Again()])
    assert (await agent.reply("Hi")).get_text_content() == "Three."
