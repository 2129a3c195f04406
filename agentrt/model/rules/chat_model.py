"""The model that follows the rules."""

import json
from collections.abc import Sequence

import anyio.lowlevel

from agentrt.block import ContentBlock, TextBlock, ToolCallBlock, ToolResultBlock, new_id
from agentrt.errors import ConfigError, Rejected
from agentrt.keywords import suggest_keywords
from agentrt.message import Msg
from agentrt.model.rules.default_rules import AT_A_LOSS, DEFAULT_RULES
from agentrt.model.rules.rule import MAX_TEXT, Facts, OfferedTool, Rule, fill_template
from agentrt.model.rules.tools import arguments_for, example_questions
from agentrt.model.scripted import stream_response, whole_response
from agentrt.model_interface.base import ChatModelBase, ModelResult
from agentrt.model_interface.capabilities import ModelCapabilities
from agentrt.types import JSONSchema, ToolChoice

__all__ = ["RulesChatModel"]


@suggest_keywords()
class RulesChatModel(ChatModelBase):
    """A model that follows `rules`, `DEFAULT_RULES` when none are given; a plain set of rules, not a language model.

    The same messages and tools always give the same answer. What no rule matches is answered with what it can do.
    """

    _capabilities = ModelCapabilities(inputs=frozenset({"text"}), tools=True)
    _completes_streams = True

    def __init__(self, rules: Sequence[Rule] | None = None, *, model: str = "rules", stream: bool = True) -> None:
        super().__init__(model=model, stream=stream)
        self.rules = tuple(DEFAULT_RULES if rules is None else rules)
        candidates: tuple[object, ...] = self.rules
        for rule in candidates:
            if not isinstance(rule, Rule):
                raise ConfigError(
                    f"RulesChatModel(rules=...) takes rules, not {rule!r:.200}: write Rule(pattern, answer)"
                )

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        await anyio.lowlevel.checkpoint()
        response = whole_response([self._decide(messages, tools or [], tool_choice or ToolChoice())], messages)
        return stream_response(response) if self.stream else response

    def _decide(self, messages: list[Msg], schemas: list[JSONSchema], choice: ToolChoice) -> ContentBlock:
        tools = _allowed_tools(schemas, choice)
        facts, results = _read_conversation(messages, tools)
        pursued = (rule._pursue(facts, tools, results, choice.mode != "none") for rule in self.rules)
        decision = next((decision for decision in pursued if decision is not None), fill_template(AT_A_LOSS, facts))
        if isinstance(decision, str) and choice.mode not in ("auto", "none"):
            decision = tools[0].name, arguments_for(tools[0], facts["question"], insist=True)
        if isinstance(decision, str):
            return TextBlock(decision)
        return ToolCallBlock(new_id(), decision[0], json.dumps(decision[1], ensure_ascii=False))


def _allowed_tools(schemas: list[JSONSchema], choice: ToolChoice) -> list[OfferedTool]:
    """Return the tools that may be called, as a provider's API would narrow them by the tool choice."""
    tools = []
    for schema in schemas:
        body = schema.get("function", schema)
        if choice.tools is None or body["name"] in choice.tools:
            shape = body.get("parameters") or body.get("input_schema") or {}
            description, properties = body.get("description") or "", shape.get("properties", {})
            tools.append(OfferedTool(body["name"], description, properties, shape.get("required", ())))
    allowed = [tool for tool in tools if choice.mode in ("auto", "none", "required", tool.name)]
    if not allowed and choice.mode not in ("auto", "none"):
        names = [tool.name for tool in tools]
        raise Rejected(f"tool_choice is {choice.mode!r}, but the tools offered are {names}: offer one that it allows")
    return allowed


def _read_conversation(messages: list[Msg], tools: Sequence[OfferedTool]) -> tuple[Facts, list[ToolResultBlock]]:
    """Return what is known at the user's latest question, and the results since then."""
    # A note of the runtime is a message of the user's role without text, and not a question.
    asking = (n for n in reversed(range(len(messages))) if messages[n].role == "user")
    place = next((n for n in asking if messages[n].get_text_content()), 0)
    question = (messages[place].get_text_content() or "") if messages else ""
    facts = {
        "question": " ".join(question[:MAX_TEXT].split()),
        "system": "\n".join(msg.get_text_content() or "" for msg in messages if msg.role == "system"),
        "tools": "".join(f"\n- {tool.name}: {tool.description[:160]}" for tool in tools) or " none",
        "examples": example_questions(tools),
    }
    blocks = (block for msg in messages[place:] for block in msg.get_content_blocks())
    return facts, [block for block in blocks if isinstance(block, ToolResultBlock)]
