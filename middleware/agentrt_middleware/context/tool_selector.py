"""Tool selector: offers a model only those tools that fit the question, and a tool that finds others."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, ClassVar

import anyio

from agentrt.agent import Agent
from agentrt.errors import BudgetExceeded, MiddlewareConfigError, ToolError
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.keywords import suggest_keywords
from agentrt.message import Msg, SystemMsg, ToolCallBlock, UserMsg
from agentrt.model import ChatModelBase, ModelResult
from agentrt.permission.glob import matches
from agentrt.tool import FunctionTool, ToolBase, ToolContext
from agentrt.types import JSONSchema
from agentrt_middleware.context.bm25 import rank
from agentrt_middleware.context.requests import INSIDE_OF_CONTEXT
from agentrt_middleware.reply_info import is_users_tool
from agentrt_middleware.validation import check_function, check_number, check_patterns

__all__ = ["ChooseTools", "ToolSelectorMiddleware"]

ChooseTools = Callable[[str, list[JSONSchema]], Sequence[str] | Awaitable[Sequence[str]]]

_logger = logging.getLogger("agentrt")
_FIND = "find_tools"
_FOUND_AT_ONCE = 5
_SELECT = (
    "Choose the tools that an assistant may need for this question. Name at most {} of them, the most useful first."
)


@dataclass
class _Selection:
    tools: list[str]


@suggest_keywords(limit="max_tools", top_k="max_tools", always_include="always", model="by")
class ToolSelectorMiddleware(MiddlewareBase):
    """Offers a model the `max_tools` tools that fit the question best, where the agent has more than that.

    This counts the user's tools alone: those that other middlewares bring, such as a plan's, are always offered.

    `by` ranks them: "bm25" by the words of their names and descriptions, a chat model, or a function of the question
    and the schemas that returns names. A model or a function that fails, or takes longer than `timeout` seconds, is
    replaced by "bm25", and the log says so. Tools in `always`, those that the conversation has called, and those that a
    tool choice names are offered in any case.

    The tool `find_tools`, which this brings to the agent, adds what the model looks for. Within a reply the offer only
    grows. A tool that is not offered can still be called by a model that knows its name.
    """

    wraps: ClassVar = INSIDE_OF_CONTEXT

    def __init__(
        self,
        max_tools: int = 20,
        *,
        by: str | ChatModelBase | ChooseTools = "bm25",
        always: Sequence[str] = (),
        timeout: float = 10,
    ) -> None:
        check_number("ToolSelectorMiddleware(max_tools=...)", max_tools, whole=True)
        if by != "bm25" and not isinstance(by, ChatModelBase) and not callable(by):
            raise MiddlewareConfigError(
                f'ToolSelectorMiddleware(by=...) must be "bm25", a chat model or a function of a question and schemas, '
                f"not {by!r:.200}: make a model with chat_model(...)"
            )
        if callable(by) and not isinstance(by, ChatModelBase):
            check_function("ToolSelectorMiddleware(by=...)", by, "question", "schemas")
        check_number("ToolSelectorMiddleware(timeout=...)", timeout, finite=True)
        self.max_tools, self.by, self.timeout = max_tools, by, timeout
        self.always = check_patterns("ToolSelectorMiddleware(always=...)", always)
        self._tool = FunctionTool(self._find_tools, name=_FIND, is_read_only=True)

    def list_tools(self) -> Sequence[ToolBase]:
        return [self._tool]

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        tools, choice = input_kwargs["tools"], input_kwargs["tool_choice"]
        own = [schema for schema in tools if is_users_tool(agent, _tool_name(schema))]
        if agent.run.is_internal or len(own) <= self.max_tools:
            return await next_handler(**input_kwargs)
        agent.run.scratch(self)["schemas"] = own
        data = agent.run.state_of(self)
        # Of this reply alone, also after it was parked: the next question may need other tools, and what was called is
        # in the history.
        if "offered" not in data:
            messages = input_kwargs["messages"]
            fixed = self._fixed(messages, own)
            texts = (message.get_text_content() for message in reversed(messages) if message.role == "user")
            question = next((text for text in texts if text), "")
            ranking = await self._rank(agent, question, own)
            # What is fixed counts as well, but a place for what fits the question is always left.
            room = max(1, self.max_tools - len(fixed))
            fitting = [name for name in dict.fromkeys(ranking) if name not in fixed][:room]
            data["offered"] = [*fixed, *fitting]
        offered = _names_offered(data)
        named = () if choice is None else (choice.mode, *(choice.tools or ()))
        left_out = {_tool_name(schema) for schema in own} - {*offered, *named}
        return await next_handler(tools=[schema for schema in tools if _tool_name(schema) not in left_out])

    def _fixed(self, messages: list[Msg], tools: list[JSONSchema]) -> set[str]:
        """Return the tools that are offered whatever the question is."""
        names = {_tool_name(schema) for schema in tools}
        blocks = (block for message in messages if not isinstance(message.content, str) for block in message.content)
        called = {block.name for block in blocks if isinstance(block, ToolCallBlock)}
        always = {name for name in names if any(matches(pattern, name) for pattern in self.always)}
        return (called & names) | always

    async def _rank(self, agent: Agent, question: str, tools: list[JSONSchema]) -> list[str]:
        ranking = None if self.by == "bm25" else await self._choose(agent, question, tools)
        if ranking is not None:
            return ranking
        return rank(question, {_tool_name(schema): _searchable_text(schema) for schema in tools})

    async def _choose(self, agent: Agent, question: str, tools: list[JSONSchema]) -> list[str] | None:
        """Return the tools that the model or the function names, `None` if it fails."""
        names = {_tool_name(schema) for schema in tools}
        by: Any = self.by
        problem = f"took longer than {self.timeout:g} s"
        with anyio.move_on_after(self.timeout):
            try:
                if isinstance(by, ChatModelBase):
                    chosen: Any = await self._ask(agent, by, question, tools)
                else:
                    chosen = by(question, list(tools))
                    chosen = await chosen if isawaitable(chosen) else chosen
                if isinstance(chosen, str):  # whose letters would pass for names
                    raise TypeError
                return [name for name in chosen if name in names]
            except BudgetExceeded:  # not the model has failed: it may not be asked
                raise
            except Exception as error:  # noqa: BLE001  # a model, or a function of the user's own; the words decide then
                problem = type(error).__name__
        _logger.warning("ToolSelectorMiddleware(by=...) failed: %s", problem)
        return None

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
        if not isinstance(agent, Agent):
            raise ToolError(f"{_FIND} finds tools of a conversation, and here is none")
        schemas: list[JSONSchema] = agent.run.scratch(self).get("schemas", [])
        data = agent.run.state_of(self)
        offered = _names_offered(data)
        # What is offered already would take the places of what the model looks for.
        left = {_tool_name(schema): schema for schema in schemas if _tool_name(schema) not in offered}
        found = rank(query, {name: _searchable_text(schema) for name, schema in left.items()}, matching=True)[
            :_FOUND_AT_ONCE
        ]
        if not found:
            return "No other tool fits."
        data["offered"] = [*offered, *found]
        return "\n".join(f"{name}: {_description(left[name])}" for name in found)


def _names_offered(data: dict[str, Any]) -> list[str]:
    """Return the names that the reply is offered; the data comes from a store, and may be anything."""
    names: object = data.get("offered")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _tool_name(schema: JSONSchema) -> str:
    name: str = schema["function"]["name"]
    return name


def _description(schema: JSONSchema) -> str:
    return str(schema["function"].get("description") or "")


def _searchable_text(schema: JSONSchema) -> str:
    properties = schema["function"].get("parameters", {}).get("properties", {})
    return " ".join([_tool_name(schema), _description(schema), *properties])
