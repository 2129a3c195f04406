"""What a tool may know about its call, with an agent and without."""

import math
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple, Optional  # in a hint that is text

import pytest

from agentrt.errors import UsageError
from agentrt.event import CustomEvent
from agentrt.message import ToolCallBlock
from agentrt.tool import FunctionTool, ToolBase, ToolContext, Toolkit
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


class Deps(NamedTuple):
    user: str


class MyContext(ToolContext[Deps]):
    pass


def subscripted(context: ToolContext[Deps]) -> str:
    return context.deps.user


def as_text(context: "ToolContext[Deps]") -> str:
    return context.deps.user


def partly_text(context: ToolContext["Deps"]) -> str:
    return context.deps.user


def with_unknown_type(context: "ToolContext[OnlyForTypeCheckers]") -> str:  # noqa: F821  # type: ignore[name-defined]
    return context.deps.user


def optional(context: ToolContext[Deps] | None = None) -> str:
    return context.deps.user


def optional_by_name(context: "Optional[ToolContext[Deps]]" = None) -> str:  # noqa: UP045
    return optional(context)


def annotated(context: Annotated[ToolContext[Deps], "the context"]) -> str:
    return context.deps.user


def annotated_optional(context: Annotated[ToolContext[Deps], "the context"] | None) -> str:
    return optional(context)


def of_several(context: ToolContext[Deps | dict[str, int]]) -> str:
    assert isinstance(context.deps, Deps)
    return context.deps.user


def of_subclass(context: MyContext) -> str:
    return context.deps.user


def bare(context: ToolContext) -> str:
    return str(context.deps.user)


def with_bound_argument(greeting: str, context: ToolContext[Deps]) -> str:
    assert greeting == "hi"
    return context.deps.user


class Object:
    def method(self, context: ToolContext[Deps]) -> str:
        return context.deps.user

    async def __call__(self, context: ToolContext[Deps]) -> str:
        return context.deps.user


class Tool(ToolBase):
    """A class of its own."""

    name = "f"

    async def call(self, context: ToolContext[Deps]) -> str:
        return context.deps.user


class ToolWithSchema(Tool):
    input_schema = {"type": "object", "properties": {}}  # noqa: RUF012


@pytest.mark.parametrize(
    "tool",
    [
        *(subscripted, as_text, partly_text, with_unknown_type, optional, optional_by_name, annotated),
        *(annotated_optional, of_several, of_subclass, bare, partial(with_bound_argument, "hi")),
        *(Object().method, Object(), Tool(), ToolWithSchema()),
    ],
)
async def test_context_of_any_spelling_takes_deps_detached(tool: Any) -> None:
    tool = tool if isinstance(tool, ToolBase) else FunctionTool(tool, name="f")
    toolkit = Toolkit([tool])
    (schema,) = toolkit.get_json_schemas()
    assert schema["function"]["parameters"].get("properties", {}) == {}
    items = [item async for item in toolkit.call_tool_function(CALL, ToolContext(CALL, deps=Deps("ann")))]
    assert [getattr(block, "text", None) for block in items[-1].content] == ["ann"]


def test_generic_type_that_is_no_context_is_shown_to_the_model() -> None:
    def f(values: list[int], other: "dict[str, int] | None" = None) -> None: ...

    assert list(FunctionTool(f).input_schema["properties"]) == ["values", "other"]
