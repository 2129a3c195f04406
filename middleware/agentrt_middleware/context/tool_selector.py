"""Tool selector: offers a model only those tools that fit the question, and tools that find and call the others."""

import json
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from operator import is_
from typing import Any, ClassVar

import anyio

from agentrt.agent import Agent
from agentrt.errors import BudgetExceeded, MiddlewareConfigError, ToolError
from agentrt.hooks import CompressContextValues, MiddlewareBase, ModelCallValues, NextCompressContext, NextModelCall
from agentrt.message import Msg, SystemMsg, ToolCallBlock, UserMsg
from agentrt.model import ChatModelBase, ModelResult
from agentrt.permission.glob import matches
from agentrt.tool import FunctionTool, ToolBase, ToolContext, ToolFlow
from agentrt.types import DeferredSchema, JSONSchema
from agentrt_middleware.context.bm25 import rank
from agentrt_middleware.context.call_tool import CALL_TOOL, call_by_name, call_through_tool
from agentrt_middleware.context.requests import INSIDE_OF_CONTEXT
from agentrt_middleware.reply_info import is_users_tool
from agentrt_middleware.validation import check_flag, check_function, check_number, check_patterns

ChooseTools = Callable[[str, list[JSONSchema]], Sequence[str] | Awaitable[Sequence[str]]]

_logger = logging.getLogger("agentrt")
_FIND = "find_tools"
_OWN_TOOLS = {_FIND, CALL_TOOL}
_FOUND_AT_ONCE = 5
_SELECT = (
    "Choose the tools that an assistant may need for this question. Name at most {} of them, the most useful first."
)


@dataclass
class _Selection:
    tools: list[str]


class ToolSelectorMiddleware(MiddlewareBase):
    """Offers a model the `max_tools` tools that fit its first question best, where the agent has more than that.

    This counts the user's tools alone: those that other middlewares bring, such as a plan's, are always offered.

    `by` ranks them: "bm25" by the words of their names and descriptions, a chat model, or a function of the question
    and the schemas that returns names. A model or a function that fails, or takes longer than `timeout` seconds, is
    replaced by "bm25", and the log says so. Tools in `always`, those that the conversation has called, and those that a
    tool choice names are offered in any case.

    The list stays as it is for the whole conversation, since providers cache a request from its tools on; it is
    chosen again when the conversation has been shortened. The other tools are reached through two tools that this adds:
    `find_tools` answers with their schemas, and `call_tool` calls one. Such a call becomes that of the tool
    itself as soon as the model has written it: permissions, other middlewares, events and the history see
    `refund`, and only the model `call_tool`. With `native`, a model with `supports_deferred_tools`, as those of
    Anthropic and OpenAI's Responses API have, gets all tools and looks for the others by its provider's own means.
    """

    inherited = False
    wraps: ClassVar = INSIDE_OF_CONTEXT

    def __init__(
        self,
        max_tools: int = 20,
        *,
        by: str | ChatModelBase | ChooseTools = "bm25",
        always: Sequence[str] = (),
        timeout: float = 10,
        native: bool = False,
    ) -> None:
        check_flag("ToolSelectorMiddleware(native=...)", native)
        check_number("ToolSelectorMiddleware(max_tools=...)", max_tools, whole=True)
        if by != "bm25" and not isinstance(by, ChatModelBase) and not callable(by):
            raise MiddlewareConfigError(
                f'ToolSelectorMiddleware(by=...) must be "bm25", a chat model or a function of a question and schemas, '
                f"not {by!r:.200}: make a model with chat_model(...)"
            )
        if callable(by) and not isinstance(by, ChatModelBase):
            check_function("ToolSelectorMiddleware(by=...)", by, "question", "schemas")
        check_number("ToolSelectorMiddleware(timeout=...)", timeout, finite=True)
        self.max_tools, self.by, self.timeout, self.native = max_tools, by, timeout, native
        self.always = check_patterns("ToolSelectorMiddleware(always=...)", always)
        self._tools = (
            FunctionTool(self._find_tools, name=_FIND, is_read_only=True, flow=ToolFlow(trusted_output=True)),
            FunctionTool(self._call_tool, name=CALL_TOOL, is_read_only=True, flow=ToolFlow(trusted_output=True)),
        )

    def list_tools(self) -> Sequence[ToolBase]:
        return self._tools

    async def on_compress_context(
        self, agent: Agent, input_kwargs: CompressContextValues, next_handler: NextCompressContext
    ) -> None:
        before, summary = [*agent.state.context], agent.state.summary
        await next_handler(**input_kwargs)
        after = agent.state.context
        is_same = len(before) == len(after) and all(map(is_, before, after))
        if not is_same or agent.state.summary != summary:
            agent.state_of(self).pop("offered", None)

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        tools, choice, messages = input_kwargs["tools"], input_kwargs["tool_choice"], input_kwargs["messages"]
        own = [schema for schema in tools if is_users_tool(agent, _tool_name(schema))]
        data = agent.state_of(self)
        if agent.run.is_internal:
            return await next_handler(**input_kwargs)
        if "offered" not in data and len(own) <= self.max_tools:  # so there is nothing to be found
            return await next_handler(tools=_schemas_without(tools, _OWN_TOOLS))
        if "offered" not in data:
            data["offered"] = await self._select(agent, messages, own)
        offered = {*_names_offered(data)}
        named = () if choice is None else (choice.mode, *(choice.tools or ()))
        left_out = {_tool_name(schema) for schema in own} - {*offered, *named}
        if self.native and input_kwargs["current_model"].supports_deferred_tools:
            return await next_handler(
                tools=[
                    DeferredSchema(schema) if _tool_name(schema) in left_out else schema
                    for schema in _schemas_without(tools, _OWN_TOOLS)
                ]
            )
        known = {_tool_name(schema) for schema in tools}
        result = await next_handler(
            tools=_schemas_without(tools, left_out),
            messages=[
                call_through_tool(message, lambda name: name in offered or not is_users_tool(agent, name))
                for message in messages
            ],
        )
        return call_by_name(result, known.__contains__)

    async def _select(self, agent: Agent, messages: list[Msg], own: list[JSONSchema]) -> list[str]:
        # These are offered whatever the question is.
        names = {_tool_name(schema) for schema in own}
        blocks = (block for message in messages if not isinstance(message.content, str) for block in message.content)
        called = {block.name for block in blocks if isinstance(block, ToolCallBlock)}
        always = {name for name in names if any(matches(pattern, name) for pattern in self.always)}
        fixed = (called & names) | always
        texts = (message.get_text_content() for message in reversed(messages) if message.role == "user")
        question = next((text for text in texts if text), "")
        ranking = None if self.by == "bm25" else await self._choose(agent, question, own)
        if ranking is None:
            ranking = rank(question, {_tool_name(schema): _searchable_text(schema) for schema in own})
        # What is fixed counts as well, but a place for what fits the question is always left.
        room = max(1, self.max_tools - len(fixed))
        return [*fixed, *[name for name in dict.fromkeys(ranking) if name not in fixed][:room]]

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
        """Find further tools by what they do. Call what is found with call_tool.

        Args:
            query: What the tool should do, in a few words.
        """
        agent = context.agent
        if not isinstance(agent, Agent):
            raise ToolError(f"{_FIND} finds tools of a conversation, and this agent has none")
        data = agent.state_of(self)
        offered, is_chosen = _names_offered(data), "offered" in data  # perhaps none of them
        schemas = agent.run.toolkit.get_json_schemas(agent.state.active_groups)
        # What is offered already would take the places of what the model looks for.
        left = {
            name: schema
            for name, schema in ((_tool_name(schema), schema) for schema in schemas)
            if is_users_tool(agent, name) and is_chosen and name not in offered
        }
        found = rank(query, {name: _searchable_text(schema) for name, schema in left.items()}, matching=True)
        if not found:
            return "No other tool fits."
        return "\n".join(json.dumps(left[name]["function"], ensure_ascii=False) for name in found[:_FOUND_AT_ONCE])

    async def _call_tool(self, name: str, arguments: dict[str, Any], context: ToolContext) -> str:
        """Call a tool that find_tools has found.

        Args:
            name: The name of the tool.
            arguments: Its arguments, as its parameters say.
        """
        # A call that names a tool has become the call of that tool before it gets here, unless this layer was skipped.
        agent = context.agent
        schemas = agent.run.toolkit.get_json_schemas(agent.state.active_groups) if isinstance(agent, Agent) else []
        if name != CALL_TOOL and name in map(_tool_name, schemas):
            raise ToolError(f"{CALL_TOOL} cannot call {name!r} in this answer: call it by its own name")
        raise ToolError(f"the tool {name!r} does not exist: {_FIND} finds tools by what they do")


def _names_offered(data: dict[str, Any]) -> list[str]:
    """Return the names that the reply is offered; the data comes from a store, and may be anything."""
    names: object = data.get("offered")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _schemas_without(schemas: Sequence[JSONSchema], names: Container[str]) -> list[JSONSchema]:
    return [schema for schema in schemas if _tool_name(schema) not in names]


def _tool_name(schema: JSONSchema) -> str:
    name: str = schema["function"]["name"]
    return name


def _description(schema: JSONSchema) -> str:
    return str(schema["function"].get("description") or "")


def _searchable_text(schema: JSONSchema) -> str:
    properties = schema["function"].get("parameters", {}).get("properties", {})
    return " ".join([_tool_name(schema), _description(schema), *properties])
