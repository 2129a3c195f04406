# ruff: noqa: T201
"""What an editor tells the user of agentrt. Each `type: ignore` is a mistake that must be underlined: one that mypy
or pyright would not report is itself an error.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NamedTuple, TypedDict, assert_type

from pydantic import BaseModel

from agentrt import Agent, AgentState, Msg, Toolkit, UserMsg
from agentrt.agent import ContextConfig, ReplyStream
from agentrt.console import show
from agentrt.event import AgentEvent, AnyEvent, RequireUserConfirmEvent, TextBlockDeltaEvent
from agentrt.message import (
    AssistantMsg,
    ContentBlock,
    DataBlock,
    MessageDict,
    SystemMsg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
)
from agentrt.middleware import (
    ActingValues,
    CheckPermissionValues,
    CompressContextValues,
    MiddlewareBase,
    ModelCallOverrides,
    ModelCallValues,
    NextActing,
    NextCheckPermission,
    NextCompressContext,
    NextModelCall,
    NextObserve,
    NextPrint,
    NextReasoning,
    NextReply,
    ObserveValues,
    PrintValues,
    ReasoningValues,
    ReplyInput,
    ReplyValues,
)
from agentrt.model import (
    AnthropicChatModel,
    ChatModelBase,
    ChatResponse,
    ModelResult,
    OpenAIChatModel,
    ScriptedChatModel,
    Timeouts,
)
from agentrt.permission import PermissionDecision
from agentrt.pipeline import stream_printing_messages
from agentrt.tool import FunctionTool, ToolBase, ToolChoice, ToolChunk, ToolContext, ToolResponse
from agentrt.types import ImagePart

MODEL = ScriptedChatModel(["Hello."])

# Overrides


class Typed(MiddlewareBase):
    """Every hook, with the types that the base class has."""

    async def on_reply(
        self, agent: Any, input_kwargs: Any, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        async for item in next_handler(inputs=UserMsg("user", "hi"), structured_schema=None):
            assert_type(item, AnyEvent | Msg)
            yield item

    async def on_reasoning(
        self, agent: Any, input_kwargs: Any, next_handler: NextReasoning
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        async for item in next_handler(tool_choice=ToolChoice("none")):
            yield item

    async def on_model_call(
        self, agent: Any, input_kwargs: Any, next_handler: NextModelCall
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        result = await next_handler(messages=[], tools=[], tool_choice="none", current_model=MODEL)
        assert_type(result, ChatResponse | AsyncGenerator[ChatResponse, None])
        return result

    async def on_acting(
        self, agent: Any, input_kwargs: Any, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        async for item in next_handler():
            assert_type(item, ToolChunk | ToolResponse)
            yield item

    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        return current_prompt.upper()


class Narrowed(MiddlewareBase):
    """The agent and the values may be narrowed to what the user knows of them."""

    async def on_reasoning(
        self, agent: Agent, input_kwargs: dict[str, ToolChoice | None], next_handler: NextReasoning
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        assert_type(agent.name, str)
        assert_type(input_kwargs["tool_choice"], ToolChoice | None)
        async for item in next_handler():
            yield item

    async def on_system_prompt(self, agent: Agent, current_prompt: str) -> str:
        return f"{current_prompt} You are {agent.name}."


class ThroughSuper(MiddlewareBase):
    """`super()` has the types of the hook."""

    async def on_acting(
        self, agent: Agent, input_kwargs: Any, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        async for item in super().on_acting(agent, input_kwargs, next_handler):
            assert_type(item, ToolChunk | ToolResponse)
            yield item

    async def on_model_call(
        self, agent: Agent, input_kwargs: Any, next_handler: NextModelCall
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        return await super().on_model_call(agent, input_kwargs, next_handler)


class EveryKey(MiddlewareBase):
    """What a hook receives has every key, with its type."""

    async def on_reply(
        self, agent: Agent, input_kwargs: ReplyValues, next_handler: NextReply
    ) -> AsyncGenerator[AnyEvent | Msg, None]:
        assert_type(input_kwargs["inputs"], ReplyInput)
        async for item in next_handler(**input_kwargs):
            if not isinstance(item, Msg) and item.type == "TEXT_BLOCK_DELTA":
                assert_type(item.delta, str)
            yield item

    async def on_reasoning(
        self, agent: Agent, input_kwargs: ReasoningValues, next_handler: NextReasoning
    ) -> AsyncGenerator[AnyEvent | Msg, None]:
        assert_type(input_kwargs["tool_choice"], ToolChoice | None)
        async for item in next_handler(**input_kwargs):
            assert_type(item, AnyEvent | Msg)
            if isinstance(item, TextBlockDeltaEvent):
                item.delta = item.delta.upper()
            yield item

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        assert_type(input_kwargs["messages"], list[Msg])
        assert_type(input_kwargs["current_model"], ChatModelBase)
        input_kwargs["message"]  # type: ignore[typeddict-item]
        input_kwargs["messages"] = "hello"  # type: ignore[typeddict-item]
        return await next_handler(**input_kwargs)

    async def on_check_permission(
        self, agent: Agent, input_kwargs: CheckPermissionValues, next_handler: NextCheckPermission
    ) -> PermissionDecision:
        assert_type(input_kwargs["tool"], ToolBase)
        return await next_handler(**input_kwargs)

    async def on_acting(
        self, agent: Agent, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        assert_type(input_kwargs["tool_call"], ToolCallBlock)
        async for item in next_handler(**input_kwargs):
            yield item

    async def on_compress_context(
        self, agent: Agent, input_kwargs: CompressContextValues, next_handler: NextCompressContext
    ) -> None:
        assert_type(input_kwargs["context_config"], ContextConfig)
        await next_handler(**input_kwargs)

    async def on_observe(self, agent: Agent, input_kwargs: ObserveValues, next_handler: NextObserve) -> None:
        assert_type(input_kwargs["msg"], str | Msg | list[Msg] | None)
        await next_handler(**input_kwargs)

    async def on_print(self, agent: Agent, input_kwargs: PrintValues, next_handler: NextPrint) -> None:
        assert_type(input_kwargs["last"], bool)
        await next_handler(**input_kwargs)


# What a hook receives has every key, what `next_handler` takes needs none.

ModelCallValues(messages=[])  # type: ignore[typeddict-item]
ModelCallOverrides(messages=[])
ModelCallOverrides(model=MODEL)  # type: ignore[typeddict-unknown-key]


# Mistakes in a hook


class WrongKeys(MiddlewareBase):
    async def on_reply(
        self, agent: Any, input_kwargs: Any, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        async for item in next_handler(input=None):  # type: ignore[call-arg]
            yield item

    async def on_reasoning(
        self, agent: Any, input_kwargs: Any, next_handler: NextReasoning
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        async for item in next_handler(tool_choise=None):  # type: ignore[call-arg]
            yield item

    async def on_model_call(
        self, agent: Any, input_kwargs: Any, next_handler: NextModelCall
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        return await next_handler(model=MODEL)  # type: ignore[call-arg]

    async def on_acting(
        self, agent: Any, input_kwargs: Any, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        async for item in next_handler(tool=None):  # type: ignore[call-arg]
            yield item


class WrongValues(MiddlewareBase):
    async def on_reply(
        self, agent: Any, input_kwargs: Any, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        async for item in next_handler(inputs=1):  # type: ignore[arg-type]
            yield item

    async def on_reasoning(
        self, agent: Any, input_kwargs: Any, next_handler: NextReasoning
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        async for item in next_handler(tool_choice=1):  # type: ignore[arg-type]
            yield item

    async def on_model_call(
        self, agent: Any, input_kwargs: Any, next_handler: NextModelCall
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        await next_handler(messages="hello")  # type: ignore[arg-type]
        return await next_handler(current_model="gpt-5")  # type: ignore[arg-type]

    async def on_acting(
        self, agent: Any, input_kwargs: Any, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        async for item in next_handler(tool_call="add"):  # type: ignore[arg-type]
            yield item


class PositionalValues(MiddlewareBase):
    async def on_model_call(
        self, agent: Any, input_kwargs: Any, next_handler: NextModelCall
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        return await next_handler(input_kwargs)  # type: ignore[call-arg]


class WrongResults(MiddlewareBase):
    async def on_reply(  # type: ignore[override]
        self, agent: Any, input_kwargs: Any, next_handler: NextReply
    ) -> AsyncGenerator[str, None]:
        yield "text"

    async def on_model_call(  # type: ignore[override]
        self, agent: Any, input_kwargs: Any, next_handler: NextModelCall
    ) -> str:
        return "text"

    async def on_system_prompt(self, agent: Any, current_prompt: str) -> None:  # type: ignore[override]
        return None


class WrongShapes(MiddlewareBase):
    async def on_reasoning(  # type: ignore[override]
        self, agent: Any, input_kwargs: Any, next_handler: NextReasoning
    ) -> Msg:
        return Msg("assistant", "a coroutine where an async generator is due", "assistant")

    def on_system_prompt(self, agent: Any, current_prompt: str) -> str:  # type: ignore[override]
        return current_prompt


class WrongParameters(MiddlewareBase):
    async def on_model_call(self, next_handler: NextModelCall) -> ChatResponse:  # type: ignore[override]
        return ChatResponse([])


# The agent


def get_weather(city: str) -> str:
    return f"Sunny in {city}."


AGENT = Agent(
    name="assistant",
    system_prompt="You are a helpful assistant.",
    model=MODEL,
    toolkit=Toolkit(tools=[get_weather]),
    middlewares=[Typed(), Narrowed(), ThroughSuper()],
)

Agent("assistant", "You are a helpful assistant.", MODEL, Toolkit(), [], state=AgentState())
Agent(name="assistant", model=MODEL, prompt="hello")  # type: ignore[call-arg]
Agent(name="assistant", model=MODEL, middleware=[])  # type: ignore[call-arg]
Agent(model=MODEL)  # type: ignore[call-arg]
Agent(name=1, model=MODEL)  # type: ignore[arg-type]
Agent(name="assistant", model="rules", toolkit=[get_weather], tools=[AGENT.toolkit.names])
Agent(name="assistant", model=5)  # type: ignore[arg-type]
Agent(name="assistant", model=MODEL, tools=get_weather)  # type: ignore[arg-type]
Agent(name="assistant", model=MODEL, middlewares=[Typed])  # type: ignore[list-item]


async def use() -> None:
    message = await AGENT.reply(UserMsg("user", "What is the weather in Beijing?"))
    assert_type(message, Msg)
    assert_type(await AGENT("And in Shanghai?"), Msg)
    assert_type(AGENT.run_sync("And in Shanghai?"), Msg)
    async for item in AGENT.reply_stream("And in Shanghai?"):
        assert_type(item, AnyEvent)
    async with AGENT.reply_stream("And in Shanghai?") as events:
        async for item in events:
            assert_type(item, AnyEvent)
    async for item_or_msg in AGENT.reply_stream("And in Shanghai?", yield_final_msg=True):
        assert_type(item_or_msg, AnyEvent | Msg)
    async for item in AGENT.reply_stream("And in Shanghai?", yield_final_msg=False):
        assert_type(item, AnyEvent)
    async for item_or_msg in AGENT.reply_stream("And in Shanghai?", yield_final_msg=bool(AGENT.name)):
        assert_type(item_or_msg, AnyEvent | Msg)
    assert_type(await AGENT.reply_stream().drain(), AnyEvent | None)
    assert_type(await AGENT.reply_stream(yield_final_msg=True).drain(), AnyEvent | Msg | None)
    assert_type(await show(AGENT.reply_stream("And in Shanghai?")), Msg)
    assert_type(AGENT.with_state(AgentState()), Agent)
    assert_type(AGENT.explain(), str)
    assert_type(AGENT.name, str)
    assert_type(AGENT.model, ChatModelBase)
    await AGENT.reply({"role": "user", "content": "And in Shanghai?"})
    await AGENT.reply(["And in Shanghai?", UserMsg("Hi"), {"role": "assistant", "content": "Yes?"}])
    await AGENT.reply([UserMsg("Hi")])
    image: ImagePart = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    await AGENT.observe({"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]})
    history: list[MessageDict] = [{"role": "user", "content": "Hi", "name": "bob"}]
    await AGENT.reply(history)
    await AGENT.reply(1)  # type: ignore[call-overload]
    await AGENT.reply({"role": "user", "text": "Hi"})  # type: ignore[call-overload]
    await AGENT.reply({"role": "tool", "content": "Hi"})  # type: ignore[call-overload]
    await AGENT.reply("hi", str, schema=str)  # type: ignore[call-overload]
    AGENT.explain("yaml")  # type: ignore[arg-type]


# Structured output


class Trip(BaseModel):
    days: int


class Movie(TypedDict):
    title: str


class Color(Enum):
    RED = "red"


@dataclass
class Point:
    x: int


async def use_structured_output() -> None:
    assert_type((await AGENT.reply("hi", Trip)).structured_output, Trip | None)
    assert_type(await AGENT.reply("hi", structured_schema=Trip, reply_id="r"), Msg[Trip])
    assert_type(await AGENT.reply(structured_schema=Trip), Msg[Trip])
    assert_type(AGENT.run_sync("hi", Trip), Msg[Trip])
    assert_type(AGENT.run_sync("hi", structured_schema=Trip), Msg[Trip])
    assert_type(await AGENT.reply("hi", Movie), Msg[Movie])
    assert_type(await AGENT.reply("hi", Color), Msg[Color])
    assert_type(await AGENT.reply("hi", Point), Msg[Point])
    assert_type(await AGENT.reply("hi", list[Point]), Msg[list[Point]])
    assert_type(await AGENT.reply("hi", int), Msg[int])
    assert_type(await AGENT.reply("hi", {"type": "object"}), Msg[Any])
    assert_type(await AGENT.reply("hi", Trip | Point), Msg[Any])  # mypy has no name for the type of a union
    assert_type(await AGENT.reply("hi", Literal["a", "b"]), Msg[Any])
    async for item in AGENT.reply_stream("hi", Trip):
        assert_type(item, AnyEvent)
    async for item_or_msg in AGENT.reply_stream("hi", Trip, yield_final_msg=True):
        if isinstance(item_or_msg, Msg):
            assert_type(item_or_msg.structured_output, Trip | None)
    assert_type(
        await AGENT.reply_stream(structured_schema=Trip, yield_final_msg=True).drain(), AnyEvent | Msg[Trip] | None
    )
    message = await AGENT.reply("hi", Trip)
    assert_type(message.copy(), Msg[Trip])
    plain: Msg = message
    assert_type(plain.structured_output, Any | None)
    if message.structured_output is not None:
        print(message.structured_output.day)  # type: ignore[attr-defined]
    async with AGENT.reply_stream("hi", Trip) as stream:
        async for text in stream.text():
            print(text)
    assert_type(stream.message, Msg[Trip])
    assert_type(AGENT.reply_stream(structured_schema=list[Trip]).message, Msg[list[Trip]])
    assert_type(AGENT.reply_stream("hi", int, yield_final_msg=True).message, Msg[int])
    assert_type(AGENT.reply_stream("hi", Trip | int).message, Msg)
    print(stream.message.structured_output.day)  # type: ignore[union-attr]


# Functions that run before and after

AGENT.register_instance_hook("post_reply", "log", lambda self, kwargs, output: print(kwargs, output))
Agent.register_class_hook("pre_acting", "log", lambda self, kwargs: kwargs)
AGENT.register_instance_hook("pre_reply", "log", print)
AGENT.register_instance_hook("pre_reply", "log", lambda self, kwargs, output: None)  # type: ignore[call-overload]
AGENT.register_instance_hook("before_reply", "log", print)  # type: ignore[call-overload]


# Events

EVENTS: ReplyStream = AGENT.reply_stream("And in Shanghai?")
ITEMS: ReplyStream[AnyEvent | Msg] = EVENTS
EVENTS_ALONE: ReplyStream[AnyEvent] = AGENT.reply_stream(yield_final_msg=True)  # type: ignore[assignment]
STRINGS: ReplyStream[str]  # type: ignore[type-var]


async def narrow() -> None:
    async for event in AGENT.reply_stream("And in Shanghai?"):
        print(event.delta)  # type: ignore[union-attr]
        if event.type == "TEXT_BLOCK_DELTA":
            assert_type(event, TextBlockDeltaEvent)
            print(event.name)  # type: ignore[attr-defined]
        elif event.type == "TOOL_RESULT_END":
            assert_type(event.state, ToolResultState)
        elif event.type == "TEXT_DELTA":  # type: ignore[comparison-overlap]
            print("no event has this type")
        match event:
            case RequireUserConfirmEvent(tool_calls=tool_calls):
                assert_type(tool_calls, list[ToolCallBlock])
            case _:
                print(event.type)
    assert_type(AgentEvent.from_json("{}"), AnyEvent)


async def misread() -> None:
    await AGENT.reply_stream("And in Shanghai?")  # type: ignore[misc]
    await AGENT.reply_stream("And in Shanghai?").text()  # type: ignore[misc]
    for _ in AGENT.reply_stream("And in Shanghai?"):  # type: ignore[attr-defined]
        print("never")
    for _ in AGENT.reply_stream("And in Shanghai?").text():  # type: ignore[attr-defined]
        print("never")
    for _ in stream_printing_messages([AGENT], AGENT("And in Shanghai?")):  # type: ignore[attr-defined]
        print("never")


# Dependencies


class Deps(NamedTuple):
    user: str


CALL = ToolCallBlock("1", "greet", "{}")


async def greet(context: ToolContext[Deps], plain: ToolContext) -> str:
    assert_type(context.deps, Deps)
    assert_type(plain.deps, Any)
    print(context.deps.name)  # type: ignore[attr-defined]
    return context.deps.user


async def use_deps() -> None:
    assert_type(await AGENT.reply("hi", deps=Deps("ann")), Msg)
    assert_type(ToolContext(CALL, deps=Deps("ann")), ToolContext[Deps])
    without: ToolContext = ToolContext(CALL)
    assert_type(without.tool_call, ToolCallBlock)


# Models, whose connection options are written once for all of them

OpenAIChatModel("gpt-5-mini", api_key="sk-...", timeouts=Timeouts(total=60), seed=7)
OpenAIChatModel("gpt-5-mini", api_kye="sk-...")  # type: ignore[call-arg]
AnthropicChatModel("claude-sonnet-5", base_url="http://localhost:8000", max_bytes=1e6, effort="low")
AnthropicChatModel("claude-sonnet-5", timeouts=60)  # type: ignore[arg-type]


# Misspelt attributes

print(AGENT.modle)  # type: ignore[attr-defined]
print(AGENT.model.modle)  # type: ignore[attr-defined]
print(AGENT.toolkit.tool)  # type: ignore[attr-defined]
print(AGENT.state.contexts)  # type: ignore[attr-defined]
print(FunctionTool(get_weather).nam)  # type: ignore[attr-defined]


# Messages


def read(message: Msg) -> None:
    assert_type(message.get_text_content(), str | None)
    assert_type(message.get_content_blocks("text"), list[TextBlock])
    assert_type(message.get_content_blocks("thinking"), list[ThinkingBlock])
    assert_type(message.get_content_blocks("data"), list[DataBlock])
    assert_type(message.get_content_blocks("tool_call"), list[ToolCallBlock])
    assert_type(message.get_content_blocks("tool_result"), list[ToolResultBlock])
    assert_type(message.get_content_blocks(), list[ContentBlock])
    message.get_content_blocks("texts")  # type: ignore[call-overload]
    Msg("user", "hello", "robot")  # type: ignore[arg-type]


def make() -> list[Msg]:
    UserMsg()  # type: ignore[call-overload]
    UserMsg(name="bob")  # type: ignore[call-overload]
    UserMsg("bob", None)  # type: ignore[call-overload]
    return [
        UserMsg("Hi"),
        UserMsg("bob", "Hi"),
        UserMsg("bob", content="Hi"),
        UserMsg(name="bob", content="Hi"),
        UserMsg(content="Hi"),
        UserMsg("Hi", name="bob"),
        AssistantMsg([TextBlock("Hi")], id="7"),
        SystemMsg("Hi"),
    ]
