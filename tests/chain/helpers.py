"""What the tests of the chains share: small cores, layers that only watch, and ways to read a stream.

To a chain the agent is only an argument that it passes on, so here the agent is the log that cores and layers write to.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agentrt._runtime.chain.chains import Chains
from agentrt._runtime.chain.compile import compile_chains
from agentrt.event import AgentEvent, CustomEvent
from agentrt.hooks import HOOKS, MiddlewareBase
from agentrt.message import AssistantMsg, Msg, TextBlock, ToolCallBlock
from agentrt.types import ChatResponse, PermissionBehavior, PermissionDecision, ToolChunk, ToolResponse

MODEL = object()
CALL = ToolCallBlock("1", "add", "{}")
VALUES: dict[str, dict[str, Any]] = {
    "on_reply": {"inputs": None, "structured_schema": None},
    "on_reasoning": {"tool_choice": None},
    "on_acting": {"tool_call": CALL},
    "on_model_call": {"messages": [], "tools": [], "tool_choice": None, "current_model": MODEL},
    **{spec.name: {spec.keys[1]: "prompt"} for spec in HOOKS if spec.shape == "transformer"},
    "on_check_permission": {"tool_call": CALL, "tool": None, "tool_input": {}},
    "on_compress_context": {"context_config": None, "instructions": None},
    "on_observe": {"msg": None},
    "on_print": {"msg": None, "last": True, "speech": None},
}
STREAMS = ("on_reply", "on_reasoning", "on_acting")


class Log(list[str]):
    """The agent of these tests."""


@contextmanager
def log_scope(agent: Log, name: str) -> Iterator[None]:
    """Write down when what is inside opens and closes."""
    agent.append(f"{name} opens")
    try:
        yield
    finally:
        agent.append(f"{name} closes")


# Items, by one letter


def event(name: str) -> CustomEvent:
    return CustomEvent(name)


def message(text: str) -> Msg:
    return AssistantMsg("core", text)


def response(text: str, *, is_last: bool = True) -> ChatResponse:
    return ChatResponse([TextBlock(text)], is_last)


def text_of(item: Any) -> str:
    """Return the letter that the item was made with."""
    if isinstance(item, CustomEvent):
        return item.name
    if isinstance(item, Msg):
        return item.get_text_content() or ""
    return "".join(block.text for block in item.content)


# Cores


async def reply(agent: Log, inputs: Any, structured_schema: Any) -> AsyncIterator[AgentEvent | Msg]:
    with log_scope(agent, "core"):
        yield event("a")
        yield event("b")
        yield message("c")


async def reason(agent: Log, tool_choice: Any) -> AsyncIterator[AgentEvent]:
    with log_scope(agent, "core"):
        yield event("a")
        yield event("b")
        yield event("c")


async def act(agent: Log, tool_call: ToolCallBlock) -> AsyncIterator[ToolChunk | ToolResponse]:
    with log_scope(agent, "core"):
        yield ToolChunk([TextBlock("a")])
        yield ToolChunk([TextBlock("b")])
        yield ToolResponse([TextBlock("c")])


async def call_model(agent: Log, messages: Any, tools: Any, tool_choice: Any, current_model: Any) -> ChatResponse:
    agent.append("core")
    return response("answer")


async def stream_model(
    agent: Log, messages: Any, tools: Any, tool_choice: Any, current_model: Any
) -> AsyncIterator[ChatResponse]:
    async def pieces() -> AsyncIterator[ChatResponse]:
        with log_scope(agent, "core"):
            yield response("a", is_last=False)
            yield response("b", is_last=False)
            yield response("c")

    return pieces()


def transformer_core(key: str) -> Callable[..., Any]:
    async def core(agent: Log, **values: Any) -> Any:
        agent.append("core")
        return values[key]

    return core


async def check(agent: Log, tool_call: ToolCallBlock, tool: Any, tool_input: Any) -> PermissionDecision:
    agent.append("core")
    return PermissionDecision(PermissionBehavior.ALLOW)


async def compress(agent: Log, context_config: Any, instructions: Any) -> None:
    agent.append("core")


async def observe(agent: Log, msg: Any) -> None:
    agent.append("core")


async def show(agent: Log, msg: Any, last: bool, speech: Any) -> None:
    agent.append("core")


CORES: dict[str, Callable[..., Any]] = {
    "on_reply": reply,
    "on_reasoning": reason,
    "on_acting": act,
    "on_model_call": call_model,
    **{spec.name: transformer_core(spec.keys[1]) for spec in HOOKS if spec.shape == "transformer"},
    "on_check_permission": check,
    "on_compress_context": compress,
    "on_observe": observe,
    "on_print": show,
}


# Layers


class Guard(MiddlewareBase):
    """Passes everything on with a plain `async for`, and writes down when it is opened and closed."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def _guard(self, agent, input_kwargs, next_handler):
        with log_scope(agent, self.name):
            async for item in next_handler(**input_kwargs):
                yield item

    on_reply = on_reasoning = on_acting = _guard

    async def on_model_call(self, agent, input_kwargs, next_handler):
        result = await next_handler(**input_kwargs)
        return result if isinstance(result, ChatResponse) else self._relay(agent, result)

    async def _relay(self, agent, stream):
        with log_scope(agent, self.name):
            async for item in stream:
                yield item


# Running


def compile_with(*middlewares: Any, **cores: Callable[..., Any]) -> Chains:
    """Compile the real hook table around the cores above, or those given by hook."""
    return compile_chains(MiddlewareBase, HOOKS, {**CORES, **cores}, middlewares)


def entry_of(chains: Chains, hook: str) -> Callable[..., Any]:
    entry: Callable[..., Any] = getattr(chains, hook)
    return entry


def enter(chains: Chains, hook: str, agent: Log, **values: Any) -> Any:
    """Enter a hook's chain as the runtime does."""
    return entry_of(chains, hook)(agent, **{**VALUES[hook], **values})


async def read_texts(stream: Any) -> list[str]:
    """Read a stream to its end."""
    return [text_of(item) async for item in stream]
