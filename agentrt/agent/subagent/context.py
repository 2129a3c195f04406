"""Compressing a supervisor's conversation into what a sub-agent gets of it."""

import json
from itertools import chain, islice
from typing import Any

from agentrt.agent.subagent.spec import ContextBundle, DelegationContext
from agentrt.block import JSONObject, ToolResultState
from agentrt.errors import ConfigError
from agentrt.message import Msg
from agentrt.state import ReplyContext
from agentrt.text import one_line, repr_of

__all__ = ["complete_context", "compress_conversation", "describe_context", "recent_results"]

_MAX_TASK = 2_000  # characters
_MAX_EVENT = 200
_MAX_EVENTS = 4
_MAX_REFERENCES = 20


def recent_results(name: str, reply: ReplyContext | None) -> list[Msg]:
    """Return the newest results of a supervisor's reply in progress, as messages of its own."""
    results = [] if reply is None else reply.message.get_content_blocks("tool_result")
    # Not those of the calls that are running, this delegation among them.
    finished = [result for result in results if result.state is not ToolResultState.RUNNING]
    return [Msg(name, [result], "assistant") for result in finished[-_MAX_EVENTS:]]


def compress_conversation(parent_context: ContextBundle, task: str) -> DelegationContext:
    """Return the task and the newest events of a conversation, with nothing of what is older."""
    # Read from the end, so that a long conversation costs no more than a short one.
    newest = chain(reversed(parent_context.recent_tool_results), reversed(parent_context.conversation))
    events = list(islice(filter(None, map(_describe_event, newest)), _MAX_EVENTS))
    files = parent_context.workspace
    return DelegationContext(
        task_summary=task[:_MAX_TASK],
        recent_events=events[::-1],
        long_term_refs=parent_context.long_term_refs[:_MAX_REFERENCES],
        workspace_pointers=[] if files is None else [files.location],
        safety_flags={},
    )


def complete_context(context: object, task: str, safety_limits: JSONObject) -> DelegationContext:
    """Return what `_pre_context_compress` gave with all five fields, within their limits, and with the safety limits.

    Raises `ConfigError` for what is not a dict, or has no JSON form.
    """
    if not isinstance(context, dict):
        raise ConfigError(f"_pre_context_compress() must return a dict, not {repr_of(context)}")
    compressed: dict[str, Any] = {"task_summary": task[:_MAX_TASK], "long_term_refs": [], "workspace_pointers": []}
    compressed |= context  # a subclass may add fields, and leave some out
    events = compressed.get("recent_events") or []
    compressed["recent_events"] = [one_line(str(event), _MAX_EVENT - 3) for event in events[-_MAX_EVENTS:]]
    # Last, so that nothing loosens them.
    compressed["safety_flags"] = {**(compressed.get("safety_flags") or {}), **safety_limits}
    try:
        return json.loads(json.dumps(compressed, allow_nan=False))  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        raise ConfigError(
            "_pre_context_compress() must return what JSON can hold: str, numbers, lists, dicts"
        ) from None


def describe_context(context: JSONObject) -> str:
    """Return the text of the message that a sub-agent's memory begins with."""
    lines = [f"Task: {context.get('task_summary', '')}"]
    titles = {
        "recent_events": "Before that",
        "long_term_refs": "References",
        "workspace_pointers": "Files are in",
        "safety_flags": "Limits",
    }
    for key, title in titles.items():
        value = context.get(key)
        if value:
            lines.append(f"{title}: {json.dumps(value, ensure_ascii=False, default=str)}")
    return "\n".join(lines)


def _describe_event(msg: Msg) -> str:
    text = msg.get_text_content()
    if not text:
        results = msg.get_content_blocks("tool_result")
        text = f"{results[-1].name}: {results[-1].text}" if results else ""
    return one_line(f"{msg.name}: {text}", _MAX_EVENT - 3) if text else ""
