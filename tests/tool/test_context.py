"""What a tool may know about its call, with an agent and without."""

import math
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentrt.errors import UsageError
from agentrt.event import CustomEvent
from agentrt.message import ToolCallBlock
from agentrt.tool import FunctionTool, ToolContext, Toolkit
from agentrt.tool.call import PreparedCall, respond

CALL = ToolCallBlock("1", "f", "{}")


@dataclass
class Run:
    """The part of a reply that tools see; notes the thread that each call comes from."""

    id: str = "reply"
    deadline: float = 12.0
    seen: list[Any] = field(default_factory=list)

    def emit(self, event: Any) -> None:
        self.seen.append((event, threading.get_ident()))

    def now(self) -> int:
        return 7

    def new_id(self) -> str:
        return "reply-1"


def test_detached_context_has_ids_and_a_clock_of_its_own() -> None:
    context = ToolContext(CALL)
    assert (context.tool_call, context.agent, context.run, context.deadline) == (CALL, None, None, math.inf)
    assert context.reply_id == context.reply_id != ToolContext(CALL).reply_id
    assert (context.new_id(), context.new_id()) == (f"{context.reply_id}-1", f"{context.reply_id}-2")
    assert context.now() > 10**18
    event = CustomEvent("progress", 1)
    context.emit(event)
    assert context.emitted == [event]


def test_context_in_a_reply_delegates_to_the_reply() -> None:
    run, agent = Run(), object()
    context = ToolContext(CALL, agent, run)
    assert (context.agent, context.run, context.reply_id, context.deadline) == (agent, run, "reply", 12.0)
    assert (context.now(), context.new_id()) == (7, "reply-1")
    event = CustomEvent("progress", 1)
    context.emit(event)
    assert run.seen == [(event, threading.get_ident())]
    assert context.emitted == []


async def test_context_in_a_worker_thread_calls_the_reply_on_its_loop() -> None:
    def f(context: ToolContext) -> str:
        context.emit(CustomEvent("progress", threading.get_ident()))
        return context.new_id()

    run = Run()
    prepared = Toolkit([FunctionTool(f)]).prepare(CALL)
    assert isinstance(prepared, PreparedCall)
    await respond(prepared, ToolContext(CALL, object(), run))
    ((event, thread),) = run.seen
    assert event.value != threading.get_ident() == thread


def test_groups_are_set_for_the_conversation_or_not_at_all() -> None:
    chosen: list[list[str]] = []
    context = ToolContext(CALL, object(), Run(), active_groups=["a"], on_active_groups=chosen.append)
    assert context.active_groups == ["a"]
    context.set_active_groups(["b"])
    assert (context.active_groups, chosen) == (["b"], [["b"]])
    with pytest.raises(UsageError, match=r"belongs to no conversation: use Toolkit\.update_tool_groups"):
        ToolContext(CALL).set_active_groups(["b"])
