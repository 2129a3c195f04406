"""A sub-agent's view of its supervisor's conversation, in addition to its task."""

import json
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, TypedDict

from pydantic_core import to_json

from agentrt._runtime.block import JSONObject, ToolResultState
from agentrt._runtime.text import one_line
from agentrt.message import Msg
from agentrt.state import ReplyContext
from agentrt.tool import ToolContext
from agentrt.workspace import FileSystemBase

CONTEXT_KEY = "delegation_context"
"""Where a message's metadata have it, and the mark of the message that a sub-agent's memory begins with."""
MAX_TASK = 2_000  # characters
MAX_EVENT = 200
MAX_EVENTS = 4
_MAX_REFERENCES = 20


@dataclass(slots=True)
class ContextBundle:
    """The supervisor's side of a delegation: what `_pre_context_compress` makes a `DelegationContext` of.

    The sub-agent itself never gets it. `workspace` is what the sub-agent will see of the files.
    """

    conversation: list[Msg] = field(default_factory=list)
    recent_tool_results: list[Msg] = field(default_factory=list)
    long_term_refs: list[JSONObject] = field(default_factory=list)
    workspace: FileSystemBase | None = None

    def with_delegation(self, context: "DelegationContext") -> "ContextBundle":
        """Return the bundle with what the sub-agent learns in the metadata of the newest message of the user."""
        conversation = list(self.conversation)
        for index in range(len(conversation) - 1, -1, -1):
            msg = conversation[index]
            if msg.role == "user":
                # On a copy, since a delegation changes nothing about its supervisor.
                conversation[index] = replace(msg, metadata={**msg.metadata, CONTEXT_KEY: context})
                break
        return replace(self, conversation=conversation)


class DelegationContext(TypedDict):
    """The part of its supervisor's conversation that a sub-agent gets, as JSON.

    There are at most four `recent_events` of at most 200 characters each.
    """

    task_summary: str
    recent_events: list[str]
    long_term_refs: list[JSONObject]
    workspace_pointers: list[str]
    safety_flags: JSONObject


def summarize_conversation(context: ToolContext, arguments: JSONObject) -> Msg | None:
    """Return a message with the task and the newest events of the supervisor's conversation.

    Its metadata have a `DelegationContext`.
    """
    supervisor: Any = context.agent
    if supervisor is None:  # the tool was called outside of any agent
        return None
    state = supervisor.state
    files = context.workspace
    bundle = ContextBundle(
        state.context,
        recent_results(supervisor.name, state.reply_context),
        workspace=None if files is None else files.namespace(f"subagents/{context.tool_call.name}"),
    )
    task = arguments["query"] if arguments.keys() == {"query"} else to_json(arguments).decode()
    summary = compress_conversation(bundle, str(task))
    return Msg(supervisor.name, describe_context(dict(summary)), "user", metadata={CONTEXT_KEY: dict(summary)})


def recent_results(name: str, reply: ReplyContext | None) -> list[Msg]:
    """Return the newest results of a supervisor's reply in progress, as messages of its own."""
    results = [] if reply is None else reply.message.get_content_blocks("tool_result")
    # Not those of the calls that are running, this delegation among them.
    finished = [result for result in results if result.state is not ToolResultState.RUNNING]
    return [Msg(name, [result], "assistant") for result in finished[-MAX_EVENTS:]]


def compress_conversation(parent_context: ContextBundle, task: str) -> DelegationContext:
    """Return the task and the newest events of a conversation, with nothing of what is older."""
    # Read from the end, so that a long conversation costs no more than a short one.
    newest = chain(reversed(parent_context.recent_tool_results), reversed(parent_context.conversation))
    events = list(islice(filter(None, map(_describe_event, newest)), MAX_EVENTS))
    files = parent_context.workspace
    return DelegationContext(
        task_summary=task[:MAX_TASK],
        recent_events=events[::-1],
        long_term_refs=parent_context.long_term_refs[:_MAX_REFERENCES],
        workspace_pointers=[] if files is None else [files.location],
        safety_flags={},
    )


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
    return one_line(f"{msg.name}: {text}", MAX_EVENT - 3) if text else ""
