"""Agents and judges with scripted models."""

import json
from collections.abc import Callable
from itertools import repeat
from typing import Any

from agentrt import Agent, MiddlewareBase
from agentrt.evaluation import Case
from agentrt.message import Msg, ToolCallBlock
from agentrt.model import ScriptedChatModel


def form(**values: Any) -> list[ToolCallBlock]:
    """An answer of a judge or of a simulated user."""
    return [ToolCallBlock("form", "GenerateStructuredOutput", json.dumps(values))]


def judge_model(score: Any = 1.0, reason: str = "as it should be") -> ScriptedChatModel:
    return ScriptedChatModel(repeat(form(score=score, reason=reason)))


def call(tool: str, call_id: str = "c1", **arguments: Any) -> ToolCallBlock:
    return ToolCallBlock(call_id, tool, json.dumps(arguments))


def answering(*script: Any, layers: list[MiddlewareBase] | None = None, tools: Any = ()) -> Callable[[Case], Agent]:
    """Return a `build` whose agents answer as the script says."""

    def build(case: Case) -> Agent:
        return Agent("helper", "You help.", ScriptedChatModel(list(script)), list(tools), layers or [])

    return build


def text_in(messages: list[Msg]) -> str:
    return "\n".join(message.get_text_content() or "" for message in messages)
