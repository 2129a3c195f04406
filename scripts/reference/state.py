"""The page of the saved state: its fields, and an example of its JSON."""

import json

from agentrt.message import (
    AssistantMsg,
    ContentBlock,
    TextBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    ToolResultState,
    UserMsg,
)
from agentrt.permission import PermissionBehavior, PermissionContext, PermissionRule
from agentrt.state import AgentState, ReplyContext, ReplyOutcome
from agentrt.state.state import CallDecision, StructuredTask
from scripts.reference.markdown import GENERATED, block, source_fields, table, whole_docstring

__all__ = ["pages"]


def pages() -> dict[str, str]:
    """Return the text of the page by its file name."""
    parts = [_part(part) for part in (ReplyContext, CallDecision, StructuredTask, ReplyOutcome, PermissionContext)]
    text = f"""# State

{GENERATED}
The state of a conversation is an [`AgentState`](modules/state.md#agentrt.state.AgentState).
`state.model_dump_json()` writes it, and `AgentState.model_validate_json(text)` reads it. A
[state store](../how-to/save-and-resume.md) does both by itself.

`version` is the version of this format. A newer agentrt reads what an older one wrote. An older agentrt raises
`SessionVersion` for what a newer one wrote, if the version differs.

## An example

A conversation of one question, in which a tool ran:

{block("json", json.dumps(json.loads(_example().model_dump_json()), indent=2, ensure_ascii=False))}
{_part(AgentState)}
{chr(10).join(parts)}"""
    return {"state.md": text}


def _part(part: type) -> str:
    rows = [(f"`{name}`", f"`{annotation}`") for name, annotation in source_fields(part)]
    return f"## {part.__name__}\n\n{whole_docstring(part)}\n\n{table(('field', 'type'), *rows)}"


def _example() -> AgentState:
    answer: list[ContentBlock] = [
        ToolCallBlock("Zq4-2", "get_weather", '{"city": "Paris"}', ToolCallState.FINISHED),
        ToolResultBlock(
            "Zq4-2", "get_weather", [TextBlock("It is sunny in Paris.", id="Zq4-3")], ToolResultState.SUCCESS
        ),
        TextBlock("It is sunny.", id="Zq4-4"),
    ]
    context = [
        UserMsg("user", "What is the weather in Paris?", id="m1", created_at=1_767_225_600_000_000_000),
        AssistantMsg("assistant", answer, id="Zq4", created_at=1_767_225_601_000_000_000),
    ]
    rules = [PermissionRule("get_weather", "*", PermissionBehavior.ALLOW)]
    return AgentState(
        session_id="kJ7",
        context=context,
        last_reply=ReplyOutcome("Zq4", "completed", answer_start=2),
        sequence=17,
        permission_context=PermissionContext(rules=rules),
        middleware_data={"UsageMiddleware": {"calls": 2}},
        revision=3,
    )
