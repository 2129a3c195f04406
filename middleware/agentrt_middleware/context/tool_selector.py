"""Tool selector: offers a model only those tools that fit the question, and a tool that finds others."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, ClassVar

from agentrt.agent import Agent
from agentrt.errors import MiddlewareConfigError, ToolError
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.keywords import suggest_keywords
from agentrt.message import Msg, SystemMsg, ToolCallBlock, UserMsg
from agentrt.model import ChatModelBase, ModelResult
from agentrt.tool import FunctionTool, ToolBase, ToolContext
from agentrt.types import STRUCTURED_OUTPUT, JSONSchema
from agentrt_middleware.context.bm25 import rank
from agentrt_middleware.context.requests import INSIDE_OF_CONTEXT
from agentrt_middleware.validation import check_number, check_patterns

__all__ = ["ChooseTools", "ToolSelectorMiddleware"]

ChooseTools = Callable[[str, list[JSONSchema]], Sequence[str] | Awaitable[Sequence[str]]]

_logger = logging.getLogger("agentrt")
_FIND = "find_tools"
_FOUND_AT_ONCE = 5
_META_TOOLS = (STRUCTURED_OUTPUT, _FIND, "reset_equipped_tools")
_SELECT = (
    "Choose the tools that an assistant may need for this question. Name at most {} of them, the most useful first."
)


@dataclass
class _Selection:
    tools: list[str]


@suggest_keywords(limit="max_tools", top_k="max_tools", always_include="always", model="by")
class ToolSelectorMiddleware(MiddlewareBase):
    """Offers a model the `max_tools` tools that fit the question best, where the agent has more than that.

    `by` ranks them: "bm25" by the words of their names and descriptions, a chat model, or a function of the question
    and the schemas that returns names. A model or a function that fails is replaced by "bm25", and the log says so.
    Tools in `always`, those that the conversation has called, and those that a tool choice names are offered in any
    case.

    The tool `find_tools`, which this brings to the agent, adds what the model looks for. Within a reply the offer only
    grows. A tool that is not offered can still be called by a model that knows its name.
    """

    wraps: ClassVar = INSIDE_OF_CONTEXT
    wrapped_by: ClassVar = ("TracingMiddleware", "LoggingMiddleware")

    def __init__(
        self,
        max_tools: int = 20,
        *,
        by: str | ChatModelBase | ChooseTools = "bm25",
        always: Sequence[str] = (),
    ) -> None:
        check_number("ToolSelectorMiddleware(max_tools=...)", max_tools, whole=True)
        if by != "bm25" and not isinstance(by, ChatModelBase) and not callable(by):
            raise MiddlewareConfigError(
                f'ToolSelectorMiddleware(by=...) must be "bm25", a chat model or a function of a question and schemas, '
                f"not {by!r:.200}"
            )
        self.max_tools, self.by = max_tools, by
        self.always = frozenset(check_patterns("ToolSelectorMiddleware(always=...)", always))
        self._tool = FunctionTool(self._find_tools, name=_FIND, is_read_only=True)

    def list_tools(self) -> Sequence[ToolBase]:
        return [self._tool]

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        tools, choice = input_kwargs["tools"], input_kwargs["tool_choice"]
        if agent.run.is_internal or len(tools) <= self.max_tools + 1:  # the one more is `find_tools`
            return await next_handler(**input_kwargs)
        scratch = agent.run.scratch(self)
        scratch["schemas"] = tools
        # Of this reply alone: the next question may need other tools, and what was called is in the history.
        offered: set[str] | None = scratch.get("offered")
        if offered is None:
            messages = input_kwargs["messages"]
            offered = scratch["offered"] = self._fixed(messages, tools)
            ranking = await self._rank(agent, _question_in(messages), tools)
            # What is fixed counts as well, but a place for what fits the question is always left.
            room = max(1, self.max_tools - len(offered))
            offered.update([name for name in ranking if name not in offered][:room])
        named = () if choice is None else (choice.mode, *(choice.tools or ()))
        names = {*offered, *named, *_META_TOOLS}
        return await next_handler(tools=[schema for schema in tools if _tool_name(schema) in names])

    def _fixed(self, messages: list[Msg], tools: list[JSONSchema]) -> set[str]:
        """Return the tools that are offered whatever the question is."""
        names = {_tool_name(schema) for schema in tools}
        blocks = (block for message in messages if not isinstance(message.content, str) for block in message.content)
        called = {block.name for block in blocks if isinstance(block, ToolCallBlock)}
        return ((called | self.always) & names) - {*_META_TOOLS}

    async def _rank(self, agent: Agent, question: str, tools: list[JSONSchema]) -> list[str]:
        names = {_tool_name(schema) for schema in tools}
        by: Any = self.by
        if by != "bm25":
            try:
                if isinstance(by, ChatModelBase):
                    chosen: Any = await self._ask(agent, by, question, tools)
                else:
                    chosen = by(question, list(tools))
                    chosen = await chosen if isawaitable(chosen) else chosen
                ranking = [name for name in chosen if name in names]
            except Exception as error:  # noqa: BLE001  # a model, or a function of the user's own; the words decide then
                _logger.warning("ToolSelectorMiddleware(by=...) failed: %s", type(error).__name__)
            else:
                return ranking
        return rank(question, {_tool_name(schema): _searchable_text(schema) for schema in tools})

    async def _ask(self, agent: Agent, model: ChatModelBase, question: str, tools: list[JSONSchema]) -> list[str]:
        listing = "\n".join(f"{_tool_name(schema)}: {_description(schema)}" for schema in tools)
        messages = [
            SystemMsg(_SELECT.format(self.max_tools)),
            UserMsg("runtime", f"Question:\n{question}\n\nTools:\n{listing}"),
        ]
        answer = await agent.run.ask_model(messages, purpose="select_tools", schema=_Selection, model=model)
        selection = answer.structured_output
        if selection is None:
            raise ToolError("no selection")
        return selection.tools

    async def _find_tools(self, query: str, context: ToolContext) -> str:
        """Find tools that are not offered yet, by what they do; what is found can be called from then on.

        Args:
            query: What the tool should do, in a few words.
        """
        agent = context.agent
        scratch = agent.run.scratch(self) if isinstance(agent, Agent) else {}
        schemas: list[JSONSchema] = scratch.get("schemas", [])
        offered: set[str] = scratch.get("offered", set())
        # What is offered already would take the places of what the model looks for.
        left = {_tool_name(schema): schema for schema in schemas if _tool_name(schema) not in {*offered, *_META_TOOLS}}
        found = rank(query, {name: _searchable_text(schema) for name, schema in left.items()}, matching=True)[
            :_FOUND_AT_ONCE
        ]
        if not found:
            return "No other tool fits."
        offered.update(found)
        return "\n".join(f"{name}: {_description(left[name])}" for name in found)


def _question_in(messages: list[Msg]) -> str:
    texts = (message.get_text_content() for message in reversed(messages) if message.role == "user")
    return next((text for text in texts if text), "")


def _tool_name(schema: JSONSchema) -> str:
    name: str = schema["function"]["name"]
    return name


def _description(schema: JSONSchema) -> str:
    return str(schema["function"].get("description") or "")


def _searchable_text(schema: JSONSchema) -> str:
    properties = schema["function"].get("parameters", {}).get("properties", {})
    return " ".join([_tool_name(schema), _description(schema), *properties])
