"""The page of all events: when each is sent, its fields, and its JSON."""

import asyncio
import json
from collections.abc import AsyncIterable, Iterable, Sequence
from dataclasses import MISSING, fields
from itertools import groupby
from typing import Any, get_args

from agentrt import Agent, MiddlewareBase, Toolkit
from agentrt.errors import Transient
from agentrt.event import AgentEvent, AnyEvent, ConfirmResult, UserConfirmResultEvent
from agentrt.message import TextBlock, ThinkingBlock, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.middleware import RetryMiddleware
from agentrt.model import ChatUsage, ScriptedChatModel
from agentrt.permission import PermissionBehavior, PermissionDecision, PermissionRule
from agentrt.tool import FunctionTool
from agentrt.types import FinishedReason
from scripts.reference.markdown import GENERATED, block, source_fields, table, whole_docstring

__all__ = ["event_classes", "pages"]

_GROUPS: dict[str, str] = {
    "The reply": "Reply ExceedMaxIters",
    "Calls of the model": "ModelCall BlocksWithdrawn",
    "Text": "TextBlock",
    "Thinking": "ThinkingBlock",
    "Images, sounds and files": "DataBlock",
    "Notes and work of the provider": "HintBlock ProviderBlock",
    "Tool calls": "ToolCall",
    "Tool results": "ToolResult",
    "Sub-agents": "Subagent",
    "Background calls": "Task",
    "Questions": "Require",
    "Answers": "User ExternalExecution",
    "Your own": "Custom",
}

_CALL = ToolCallBlock("Zq4-2", "get_weather", '{"city": "Paris"}')
_RULE = PermissionRule("get_weather", "Par*", PermissionBehavior.ALLOW)

# What the fields hold in the examples. A field that is not here has its default.
_SAMPLES: dict[str, Any] = {
    "attempt": 1,
    "begun_at": 1_767_225_600_000_000_001,
    "block_id": "Zq4-1",
    "block_ids": ["Zq4-1"],
    "blocks": [TextBlock("It is ", id="Zq4-1")],
    "confirm_results": [ConfirmResult(True, _CALL, [_RULE])],
    "child_reply_id": "Kw2",
    "child_session_id": "kJ7.searcher.Zq4-2",
    "content": '{"type": "web_search_call", "query": "weather Paris"}',
    "created_at": 1_767_225_600_123_456_789,
    "data": "aGVsbG8=",
    "delta": "It is ",
    "execution_results": [ToolResultBlock("Zq4-2", "get_weather", "It is sunny in Paris.")],
    "hint": "Two of three rounds are used.",
    "input_tokens": 42,
    "media_type": "image/png",
    "model_name": "gpt-5-mini",
    "name": "assistant",
    "output_tokens": 7,
    "provider": "openai",
    "questions": {"Zq4-2": PermissionDecision(PermissionBehavior.ASK, "The tool wants to be asked about.")},
    "reason": "Transient: the stream was cut short",
    "reply_id": "Zq4",
    "seq": 5,
    "session_id": "kJ7",
    "state": ToolResultState.SUCCESS,
    "task_id": "task:3fa9c1d2e4b50716",
    "tool_call_id": "Zq4-2",
    "tool_call_name": "get_weather",
    "tool_calls": [_CALL],
    "usage": ChatUsage(42, 7),
    "wait_seconds": 0.4,
}
_OF_ONE_EVENT: dict[str, dict[str, Any]] = {
    "CustomEvent": {"name": "progress", "value": {"done": 3, "of": 10}},
    "DataBlockStartEvent": {"name": "chart.png"},
    "ModelCallEndEvent": {"finished_reason": "stop"},
    "ReplyEndEvent": {"finished_reason": "completed"},
    "SubagentEndEvent": {"name": "searcher"},
    "SubagentStartEvent": {"name": "searcher"},
    "ToolCallDeltaEvent": {"delta": '{"city": "Par'},
    "ToolResultDataDeltaEvent": {"name": "chart.png"},
    "ToolResultTextDeltaEvent": {"delta": "It is sunny in Paris.", "block_id": "Zq4-3"},
}


def pages() -> dict[str, str]:
    """Return the text of the page by its file name."""
    return {"events.md": _page()}


def event_classes() -> tuple[type[AgentEvent], ...]:
    """Return the members of the union, in their order."""
    union, *_ = get_args(AnyEvent)
    return get_args(union)


def example_of(event_class: type[AgentEvent]) -> AgentEvent:
    """Make an event in which everything is set that a reader will meet."""
    samples = {**_SAMPLES, **_OF_ONE_EVENT.get(event_class.__name__, {})}
    return event_class(
        **{field.name: samples[field.name] for field in fields(event_class) if _is_shown(field, samples)}
    )


def _is_shown(field: Any, samples: dict[str, Any]) -> bool:
    required = field.default is MISSING and field.default_factory is MISSING
    return field.name != "type" and (required or field.name in samples)


def _page() -> str:
    groups = "\n".join(f"## {title}\n\n{_group(title)}" for title in _GROUPS)
    return f"""# Events

{GENERATED}
A reply is a stream of events. `agent.reply_stream(...)` yields them, `event.to_json()` writes one as a line of JSON,
and `AgentEvent.from_json(text)` reads it. `message.append_event(event)` rebuilds the reply's
message from its events. [Read a reply](../how-to/read-a-reply.md) has examples.

Every event has these fields:

{table(("field", "type", "meaning"), *_COMMON_FIELDS)}
`event.id` is `"{{reply_id}}:{{seq}}"`. The classes are in [agentrt.event](modules/event.md); `AnyEvent` is their union.
Readers should skip a `type` that they do not know.

## The order in a reply

A block, a tool call and a tool result each have a start, deltas and an end. Tools that run at the same time mix their
events; the ids say what belongs together.

{asyncio.run(_sequences())}
## How a reply ends

The `finished_reason` of `REPLY_END`, which the message of the reply has too:

{table(("finished_reason", "the reply"), *_meanings_of_reasons())}
A reply that waits for an answer has none, for it has not ended.

{groups}"""


_FINISHED_REASONS: dict[FinishedReason, str] = {
    "completed": "has its answer",
    "interrupted": "was stopped, by `agent.interrupt()` or by a `UserInterruptEvent`",
    "exceed_max_iters": "used up its rounds, `ReActConfig(max_iters=...)`",
    "exceed_max_tool_calls": "used up its tool calls, `ReActConfig(max_tool_calls=...)`",
    "exceed_max_seconds": "used up its time, `ReActConfig(max_seconds=...)`",
    "exceed_max_output": "wrote too much, `ReActConfig(max_output=...)`",
    "exceed_max_form_attempts": (
        "has no answer that fits its `structured_schema`, `ReActConfig(max_form_attempts=...)`; `error` says what did "
        "not fit"
    ),
    "exceed_budget": "was stopped by a layer, since a budget is used up",
    "guardrail": "was stopped by a layer, for what was asked or said",
    "error": "failed: the caller gets the exception, and `error` has the name of its class",
    "failed": "killed its process too often, so that a runner gave it up; or it was stored and could not begin",
}


def _meanings_of_reasons() -> Iterable[tuple[str, str]]:
    return ((f'`"{reason}"`', _FINISHED_REASONS[reason]) for reason in get_args(FinishedReason))


_COMMON_FIELDS = (
    ("`type`", "`str`", "the kind of event, as in the headings below"),
    ("`reply_id`", "`str`", "the reply that it belongs to"),
    ("`seq`", "`int`", "rises over the whole conversation; no number is used twice"),
    ("`created_at`", "`int`, in JSON a time", "when it was made, in nanoseconds since the epoch"),
    ("`metadata`", "`dict` or `None`", "yours: the runtime neither sets nor reads it"),
)


def _group(title: str) -> str:
    chosen = [event_class for event_class in event_classes() if _title_of(event_class) == title]
    return "\n".join(_section(event_class) for event_class in chosen)


def _title_of(event_class: type[AgentEvent]) -> str:
    def is_in(title: str) -> bool:
        return event_class.__name__.startswith(tuple(_GROUPS[title].split()))

    return next(title for title in _GROUPS if is_in(title))


def _section(event_class: type[AgentEvent]) -> str:
    rows = list(_own_fields(event_class))
    listed = table(("field", "type", "default"), *rows) + "\n" if rows else ""
    example = json.dumps(json.loads(example_of(event_class).to_json()), indent=2)
    link = f"[`{event_class.__name__}`](modules/event.md#agentrt.event.{event_class.__name__})"
    name = example_of(event_class).type
    return f"### {name}\n\n{whole_docstring(event_class)}\n\nClass: {link}.\n\n{listed}{block('json', example)}"


def _own_fields(event_class: type[AgentEvent]) -> Iterable[tuple[str, str, str]]:
    for name, annotation in source_fields(event_class):
        if name not in ("type", "reply_id"):
            yield f"`{name}`", f"`{annotation.replace('WireTimestamp', 'int')}`", _default(event_class, name)


def _default(event_class: type[AgentEvent], name: str) -> str:
    [field] = [field for field in fields(event_class) if field.name == name]
    if field.default is not MISSING:
        return f"`{json.dumps(field.default) if isinstance(field.default, str) else field.default}`"
    return f"`{field.default_factory()}`" if field.default_factory is not MISSING else "required"


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"It is sunny in {city}."


async def _sequences() -> str:
    call = [ThinkingBlock("The user wants the weather."), _CALL]
    broken = [["It ", Transient("cut")], "It is sunny."]
    asks = FunctionTool(get_weather, ask=True)
    waiting = _agent([[_CALL], "It is sunny."], tools=[asks])
    parts = {
        "A model that answers:": await _types(_agent(["Hello."]).reply_stream("Hi")),
        "A model that thinks, calls a tool and then answers:": await _types(
            _agent([call, "It is sunny."], tools=[get_weather]).reply_stream("Hi")
        ),
        "An attempt that broke off, and a retry by a middleware:": await _types(
            _agent(broken, middlewares=[RetryMiddleware(initial_delay=0)]).reply_stream("Hi")
        ),
        "A call that needs the user's approval. The reply waits, so it has no end yet:": await _types(
            waiting.reply_stream("Hi")
        ),
    }
    answer = UserConfirmResultEvent(_reply_in_progress(waiting), [ConfirmResult(True, _CALL)])
    parts["The same reply, after the answer:"] = await _types(waiting.reply_stream(answer))
    return "\n".join(f"{title}\n\n{block('text', types)}" for title, types in parts.items())


def _agent(responses: list[Any], *, tools: Sequence[Any] = (), middlewares: Sequence[MiddlewareBase] = ()) -> Agent:
    toolkit = Toolkit(tools=list(tools))
    return Agent("assistant", model=ScriptedChatModel(responses), toolkit=toolkit, middlewares=middlewares)


def _reply_in_progress(agent: Agent) -> str:
    assert agent.state.reply_context is not None
    return agent.state.reply_context.reply_id


async def _types(stream: AsyncIterable[Any]) -> str:
    types = [event.type async for event in stream]
    return "\n".join(f"{name} (one or more)" if name.endswith("_DELTA") else name for name, _ in groupby(types))
