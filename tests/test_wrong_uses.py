"""What a newcomer gets wrong: every message names the thing, the place, the value and what to write instead.

Each line of a table is one wrong use, made for real, and the words that its message must have. No message shows a
secret, an address in memory, or the name of something inside the runtime.
"""

import re
from collections.abc import Awaitable, Callable
from contextlib import closing
from inspect import getmembers, isawaitable, signature
from typing import Any
from unittest.mock import create_autospec

import pytest
from pydantic import BaseModel

from agentrt import Agent, AgentState, MiddlewareBase, Msg, Toolkit, UserAgent, UserMsg
from agentrt.agent import ReActAgent, ReActConfig
from agentrt.errors import ConfigError
from agentrt.event import (
    AgentEvent,
    ConfirmResult,
    CustomEvent,
    RequireUserConfirmEvent,
    ToolCallStartEvent,
    UserConfirmResultEvent,
)
from agentrt.memory import InMemoryMemory
from agentrt.message import Base64Source, DataBlock, TextBlock, ToolCallBlock, ToolResultBlock
from agentrt.middleware import (
    DynamicContextMiddleware,
    LoggingMiddleware,
    ModelFallbackMiddleware,
    RateLimitMiddleware,
    RedisLimitStore,
    RetryMiddleware,
    TimingMiddleware,
    UsageMiddleware,
)
from agentrt.model import AnthropicChatModel, OpenAIChatModel, RulesChatModel, ScriptedChatModel, chat_model
from agentrt.permission import PermissionContext, PermissionDecision, PermissionRule
from agentrt.pipeline import MsgHub, fanout_pipeline, sequential_pipeline
from agentrt.state import FileStateStore, InMemoryStateStore
from agentrt.testing import check_middleware
from agentrt.tool import FunctionTool, ToolBase, ToolChoice

SECRET = "sk-hunter2-hunter2-hunter2"
INSIDES = re.compile(r"0x[0-9a-f]{6}|<locals>|__init__|pydantic_core|errors\.pydantic|NoneType'|hunter2|Traceback")

WrongUse = tuple[str, Callable[[], Any], str]


def add(a: int) -> str:
    """Add one."""
    return str(a + 1)


def unannotated(a):  # type: ignore[no-untyped-def]
    """Have no hint."""
    return a


async def failing() -> None:
    """Stand for what was not awaited."""


class Answer(BaseModel):
    """What a model fills in."""

    number: int


class PlainStore:
    """Has plain functions where coroutine functions belong."""

    def load(self, session_id: str) -> None:
        """Find nothing."""

    def save(self, state: AgentState) -> None:
        """Keep nothing."""


def agent(*middlewares: MiddlewareBase, **options: Any) -> Agent:
    return Agent("tester", model=ScriptedChatModel(["Hello."]), middlewares=middlewares, **options)


def openai(**options: Any) -> OpenAIChatModel:
    return OpenAIChatModel("m", **{"api_key": SECRET, **options})


def table(*uses: WrongUse) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("cause", "words"), [use[1:] for use in uses], ids=[use[0] for use in uses])


async def message_of(cause: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which one it is, the words tell
        result = cause()
        if isawaitable(result):
            await result
    return str(caught.value)


async def check(cause: Callable[[], Any], words: str) -> None:
    message = await message_of(cause)
    for part in words.split(" | "):
        assert part in message, message
    assert not INSIDES.search(message), message
    assert len(message) < 700, message


# Keywords


@table(
    ("instructions", lambda: Agent("a", instructions="x"), "Agent() | 'instructions' | did you mean 'system_prompt'?"),
    ("system", lambda: Agent("a", system="x"), "'system' | did you mean 'system_prompt'?"),
    ("prompt", lambda: Agent("a", prompt="x"), "'prompt' | did you mean 'system_prompt'?"),
    ("sys_prompt", lambda: Agent("a", sys_prompt="x"), "'sys_prompt' | did you mean 'system_prompt'?"),
    ("backstory", lambda: Agent("a", backstory="x"), "'backstory' | did you mean 'system_prompt'?"),
    ("role", lambda: Agent("a", role="x"), "'role' | write it into system_prompt"),
    ("llm", lambda: Agent("a", llm="rules"), "'llm' | did you mean 'model'?"),
    ("functions", lambda: Agent("a", functions=[add]), "'functions' | write tools=[...]"),
    ("middleware", lambda: Agent("a", middleware=[]), "'middleware' | did you mean 'middlewares'?"),
    ("callbacks", lambda: Agent("a", callbacks=[]), "'callbacks' | did you mean 'middlewares'?"),
    ("max_iterations", lambda: Agent("a", max_iterations=3), "'max_iterations' | ReActConfig(max_iters=...)"),
    ("max_turns", lambda: Agent("a", max_turns=3), "'max_turns' | ReActConfig(max_iters=...)"),
    ("recursion_limit", lambda: Agent("a", recursion_limit=3), "'recursion_limit' | ReActConfig(max_iters=...)"),
    ("temperature", lambda: Agent("a", temperature=0), "'temperature' | chat_model( | temperature=..."),
    ("max_tokens", lambda: Agent("a", max_tokens=9), "'max_tokens' | chat_model( | max_tokens=..."),
    ("api_key", lambda: Agent("a", api_key=SECRET), "'api_key' | chat_model( | api_key=..."),
    ("timeout", lambda: Agent("a", timeout=9), "'timeout' | Timeouts(total=...) | ReActConfig(max_seconds=...)"),
    ("memory", lambda: Agent("a", memory=[]), "'memory' | state=AgentState() | state_store=FileStateStore(folder)"),
    ("checkpointer", lambda: Agent("a", checkpointer=1), "'checkpointer' | did you mean 'state_store'?"),
    ("session", lambda: Agent("a", session=1), "'session' | AgentState(session_id=...)"),
    ("thread_id", lambda: Agent("a", thread_id="1"), "'thread_id' | AgentState(session_id=...)"),
    ("output_type", lambda: Agent("a", output_type=int), "'output_type' | reply(message, structured_schema=...)"),
    ("response_format", lambda: Agent("a", response_format=int), "'response_format' | structured_schema=..."),
    ("deps_type", lambda: Agent("a", deps_type=int), "'deps_type' | reply(message, deps=...)"),
    ("rpm", lambda: Agent("a", max_rpm=1), "'max_rpm' | RateLimitMiddleware(requests_per_minute=..."),
    ("retries", lambda: Agent("a", retries=1), "'retries' | RetryMiddleware(max_retries=...)"),
    ("handoffs", lambda: Agent("a", handoffs=[]), "'handoffs' | agentrt.pipeline"),
    ("MCP", lambda: Agent("a", mcp_servers=[]), "'mcp_servers' | write tools=[MCPToolset("),
    ("capabilities", lambda: Agent("a", capabilities=[]), "'capabilities' | write middlewares=[...]"),
    ("history", lambda: Agent("a", history_processors=[]), "'history_processors' | next_handler(messages=...)"),
    ("instrument", lambda: Agent("a", instrument=True), "'instrument' | TracingMiddleware()"),
    ("state_schema", lambda: Agent("a", state_schema=dict), "'state_schema' | agent.state_of(self) | deps=..."),
    ("verbose", lambda: Agent("a", verbose=True), "'verbose' | LoggingMiddleware()"),
    ("interrupt_on", lambda: Agent("a", interrupt_on={}), "'interrupt_on' | FunctionTool(f, ask=True)"),
    ("two at once", lambda: Agent("a", llm=1, instrctions=""), "'llm' | 'model' | it has no parameter 'instrctions'"),
    ("1.x agent", lambda: ReActAgent("a", "b", tts_model=1), "ReActAgent( | tts_model | middleware with on_print"),
    ("1.x plan", lambda: ReActAgent("a", "b", plan_notebook=1), "ReActAgent(plan_notebook=...) | a PlanNotebook | 1"),
    ("knowledge", lambda: Agent("a", knowledge=1), "'knowledge' | middlewares=[RAGMiddleware(KnowledgeBase(...))]"),
    ("1.x instructions", lambda: ReActAgent("a", "", instructions=""), "ReActAgent(instructions=...) | sys_prompt"),
    ("model timeout", lambda: openai(timeout=3), "OpenAIChatModel() | 'timeout' | did you mean 'timeouts'?"),
    ("key", lambda: OpenAIChatModel("m", apikey=SECRET), "'apikey' | did you mean 'api_key'?"),
    ("spec", lambda: chat_model("openai:m", timeout=3), "OpenAIChatModel() | did you mean 'timeouts'?"),
    ("rules", lambda: chat_model("rules", temperature=1), "RulesChatModel() | 'temperature' | it takes"),
    ("toolkit", lambda: Toolkit(functions=[]), "Toolkit() | 'functions' | did you mean 'tools'?"),
    ("register", lambda: Toolkit().register_tool_function(add, name="x"), "register_tool_function() | 'func_name'?"),
    ("reply message", lambda: agent().reply(message="x"), "Agent.reply() | 'message' | did you mean 'inputs'?"),
    ("reply type", lambda: agent().reply("x", output_type=int), "'output_type' | did you mean 'structured_schema'?"),
    ("reply context", lambda: agent().reply("x", context=1), "'context' | did you mean 'deps'?"),
    ("reply stream", lambda: agent().reply("x", stream=True), "'stream' | write agent.reply_stream(...)"),
    ("reply thread", lambda: agent().reply("x", thread_id="1"), "'thread_id' | AgentState(session_id=...)"),
    ("reply tools", lambda: agent().reply("x", tools=[add]), "'tools' | write Agent(..., tools=[...])"),
    ("stream input", lambda: agent().reply_stream(input="x"), "Agent.reply_stream() | did you mean 'inputs'?"),
    ("call", lambda: agent()(message="x"), "Agent.reply() | 'message' | did you mean 'inputs'?"),
    ("pipeline", lambda: sequential_pipeline([agent()], message="x"), "Agent.reply() | 'message' | 'inputs'?"),
    ("modifier", lambda: Agent("a", state_modifier="x"), "'state_modifier' | did you mean 'system_prompt'?"),
    ("tracing", lambda: Agent("a", instrument=True), "'instrument' | TracingMiddleware()"),
    ("form retries", lambda: Agent("a", output_retries=3), "'output_retries' | ReActConfig(max_form_attempts=...)"),
    ("history", lambda: Agent("a", history_processors=[]), "'history_processors' | next_handler(messages=...)"),
    ("permission", lambda: Agent("a", permission=1), "'permission' | AgentState(permission_context="),
    ("reply settings", lambda: agent().reply("x", model_settings={}), "'model_settings' | chat_model("),
    ("reply limits", lambda: agent().reply("x", usage_limits=1), "'usage_limits' | ReActConfig(max_iters=..., max_s"),
    ("unlike", lambda: Agent("a", stale="x"), "'stale' | did you mean 'state'?"),
    ("run_sync", lambda: agent().run_sync(prompt="x"), "Agent.run_sync() | 'prompt' | did you mean 'inputs'?"),
)
async def test_a_wrong_keyword_is_answered(cause: Callable[[], Any], words: str) -> None:
    await check(cause, words)


# Attributes and methods


@table(
    ("invoke", lambda: agent().invoke("x"), "'Agent' | 'invoke' | await agent.reply(message)"),
    ("ainvoke", lambda: agent().ainvoke("x"), "'ainvoke' | await agent.reply(message)"),
    ("kickoff", lambda: agent().kickoff(), "'kickoff' | await agent.reply(message)"),
    ("stream", lambda: agent().stream("x"), "'stream' | async for event in agent.reply_stream(message)"),
    ("run_stream", lambda: agent().run_stream("x"), "'run_stream' | agent.reply_stream(message)"),
    ("run", lambda: agent().run("x"), "'tester' | no reply in progress | await agent.reply(message)"),
    ("messages", lambda: agent().messages, "'messages' | agent.state.context"),
    ("tools", lambda: agent().tools, "'tools' | agent.toolkit"),
    ("tool decorator", lambda: agent().tool(add), "'tool' | register_tool_function(f)"),
    ("handoffs", lambda: agent().handoffs, "'handoffs' | write Handoffs([agent, other]), of agentrt.pipeline"),
    ("clone", lambda: agent().clone(name="b"), "'clone' | agent.with_state(AgentState())"),
    ("batch", lambda: agent().batch(["x"]), "'batch' | agent.with_state(AgentState()) | asyncio.gather"),
    ("custom invoke", lambda: UserAgent("u").invoke("x"), "'UserAgent' | 'invoke' | agent.reply(message)"),
    ("text", lambda: UserMsg("x").text, "'Msg' | 'text' | msg.get_text_content()"),
    ("output", lambda: UserMsg("x").output, "'output' | msg.get_text_content()"),
    ("tool_calls", lambda: UserMsg("x").tool_calls, "'tool_calls' | msg.get_content_blocks("),
    ("model_dump", lambda: UserMsg("x").model_dump(), "'model_dump' | msg.to_json()"),
    ("block content", lambda: TextBlock("x").content, "'TextBlock' | 'content' | block.text"),
    ("arguments", lambda: ToolCallBlock("1", "f").arguments, "'ToolCallBlock' | block.input, which is JSON text"),
    ("result", lambda: ToolResultBlock("1", "f", "x").content, "'ToolResultBlock' | 'content' | block.output"),
    ("message item", lambda: UserMsg("x")["content"], "'Msg' | 'content' | not subscriptable | write .content"),
    ("message get", lambda: UserMsg("x").get("content"), "'Msg' | 'get' | msg.content"),
    ("block item", lambda: TextBlock("x")["text"], "'TextBlock' | 'text' | not subscriptable | write .text"),
    ("event item", lambda: CustomEvent("x")["kind"], "'CustomEvent' | 'kind' | its fields are attributes"),
    ("unpacking", lambda: [*UserMsg("x")], "'Msg' | not subscriptable | its fields are attributes"),
    ("final_output", lambda: agent().reply_stream("x").final_output, "'ReplyStream' | stream.message"),
    ("text_stream", lambda: agent().reply_stream("x").text_stream, "'text_stream' | stream.text()"),
    ("event name", lambda: ToolCallStartEvent("r", "1", "f").name, "'name' | event.tool_call_name"),
    ("event kind", lambda: CustomEvent("x").kind, "'CustomEvent' | 'kind' | event.type"),
    ("add", lambda: Toolkit().add(add), "'Toolkit' | 'add' | register_tool_function(f)"),
    ("history", lambda: AgentState().messages, "'AgentState' | 'messages' | state.context"),
    ("validate", lambda: AgentState.model_validate({}), "'AgentState' | AgentState.model_validate_json(text)"),
    ("all messages", lambda: UserMsg("x").all_messages(), "'Msg' | 'all_messages' | agent.state.context"),
    ("choices", lambda: UserMsg("x").choices, "'Msg' | 'choices' | msg.get_text_content()"),
    ("memory", lambda: agent().memory, "'Agent' | 'memory' | agent.state.context"),
    ("resume", lambda: agent().resume(True), "'Agent' | 'resume' | agent.reply(UserConfirmResultEvent("),
    ("clone", lambda: agent().clone(), "'Agent' | 'clone' | agent.with_state(AgentState())"),
    ("tool_plain", lambda: agent().tool_plain(add), "'Agent' | 'tool_plain' | register_tool_function(f)"),
    ("bind_tools", lambda: RulesChatModel().bind_tools([add]), "'bind_tools' | Agent(..., model=model, tools=["),
    ("with_retry", lambda: openai().with_retry(), "'OpenAIChatModel' | 'with_retry' | RetryMiddleware()"),
    ("structured", lambda: openai().with_structured_output(int), "'with_structured_output' | structured_schema=..."),
    ("model", lambda: RulesChatModel().invoke("x"), "'RulesChatModel' | 'invoke' | await model(messages)"),
)
async def test_a_wrong_attribute_is_answered(cause: Callable[[], Any], words: str) -> None:
    await check(cause, words)


# Values given to constructors


@table(
    ("no name", lambda: Agent(), "Agent() | 'name' | it takes (name, system_prompt=..."),
    ("name", lambda: Agent(5), "Agent(name=...) | must be a str | 5"),
    ("model as name", lambda: Agent("openai:m"), "Agent(model=...) | Agent('assistant', model='openai:m')"),
    ("model first", lambda: Agent(RulesChatModel(), [add]), "Agent(name=...) | the name comes first | model=..."),
    ("bare claude", lambda: Agent("a", model="claude-x"), "'claude-x' | did you mean 'anthropic:claude-x'?"),
    ("bare gpt", lambda: chat_model("gpt-5"), "'gpt-5' | did you mean 'openai:gpt-5'?"),
    ("model class", lambda: Agent("a", model=RulesChatModel), "Agent(model=...) | write RulesChatModel(...)"),
    ("model name", lambda: Agent("a", model="gpt-5"), "'gpt-5' | unknown provider | 'openai:gpt-5-mini'"),
    ("provider", lambda: Agent("a", model="opnai:gpt-5"), "'opnai:gpt-5' | did you mean 'openai'?"),
    ("model number", lambda: Agent("a", model=5), "Agent(model=...) | 'openai:gpt-5-mini' | 5"),
    ("prompt", lambda: agent(system_prompt=["x"]), "Agent(system_prompt=...) | a str | ['x'] | on_system_prompt"),
    ("one tool", lambda: agent(tools=add), "Agent(tools=...) must be a list"),
    ("no tool", lambda: agent(tools=[5]), "5 | cannot be a tool | a function with type hints"),
    ("one layer", lambda: Agent("a", model="rules", middlewares=5), "Agent(middlewares=...) | a list | 5 | [...]"),
    ("layer class", lambda: agent(TimingMiddleware), "the class TimingMiddleware | write TimingMiddleware()"),
    ("function as layer", lambda: agent(add), "the function add | not a MiddlewareBase instance | derive its class"),
    ("no layer", lambda: agent(5), "5 | not a MiddlewareBase instance | derive its class"),
    ("state", lambda: agent(state={}), "must be an AgentState | {} | AgentState()"),
    ("id", lambda: agent(state=AgentState(session_id=5)), "AgentState(session_id=...) | must be a str | 5"),
    ("no id", lambda: agent(state=AgentState(session_id="")), "AgentState(session_id=...) | not empty | ''"),
    (
        "permissions",
        lambda: agent(state=AgentState(permission_context="bypass")),
        "AgentState(permission_context=...) | 'bypass' | PermissionContext(mode=",
    ),
    ("context item", lambda: agent(state=AgentState(context=["hi"])), "AgentState(context=...) | 'hi' | UserMsg("),
    ("context", lambda: agent(state=AgentState(context="hi")), "AgentState(context=...) | 'hi' | [UserMsg(...)]"),
    ("store", lambda: agent(state_store="dir"), "Agent(state_store=...) | 'dir' | sqlite:agent.db"),
    ("store class", lambda: agent(state_store=InMemoryStateStore), "the class InMemoryStateStore | write InMemory"),
    (
        "react",
        lambda: agent(react_config={"max_iters": 3}),
        "Agent(react_config=...) | {'max_iters': 3} | ReActConfig(",
    ),
    ("compress", lambda: agent(context_config=5), "Agent(context_config=...) | 5 | ContextConfig("),
    ("busy", lambda: agent(when_busy="queue"), "Agent(when_busy=...) | 'raise' or 'wait' | 'queue'"),
    ("rounds", lambda: ReActConfig("3"), "ReActConfig(max_iters=...) | a whole number | '3'"),
    ("timeouts", lambda: openai(timeouts=30), "OpenAIChatModel(timeouts=...) | Timeouts(total=120) | 30"),
    ("temperature", lambda: openai(temperature="hot"), "OpenAIChatModel(temperature=...) | a number | 'hot'"),
    ("stop", lambda: openai(stop=5), "OpenAIChatModel(stop=...) | a str or a list | 5"),
    ("size", lambda: openai(context_size="big"), "OpenAIChatModel(context_size=...) | a whole number | 'big'"),
    ("client", lambda: openai(http_client=5), "OpenAIChatModel(http_client=...) | a function | 5 | lambda:"),
    ("formatter", lambda: openai(formatter=5), "OpenAIChatModel(formatter=...) | a function | 5"),
    ("claude top_p", lambda: AnthropicChatModel("m", api_key=SECRET, top_p="x"), "AnthropicChatModel(top_p=...) | 'x'"),
    (
        "url",
        lambda: openai(base_url="localhost:8000"),
        "'localhost:8000' | not a whole URL | 'http://localhost:8000/v1'",
    ),
    ("secret in URL", lambda: openai(base_url=f"http://u:{SECRET}@h/v1"), "'http://h/v1' | without user, password"),
    ("rules", lambda: RulesChatModel(["x"]), "RulesChatModel(rules=...) | 'x' | Rule(pattern, answer)"),
    ("script", lambda: ScriptedChatModel("x"), "'x' | write ScriptedChatModel([...])"),
    ("fallback", lambda: ModelFallbackMiddleware("gpt-5"), "'gpt-5' | unknown provider | 'openai:gpt-5-mini'"),
    ("fallback number", lambda: ModelFallbackMiddleware(5), "ModelFallbackMiddleware(models=...) | 5 | 'openai:"),
    ("retries", lambda: RetryMiddleware("3"), "RetryMiddleware(max_retries=...) | a whole number | '3'"),
    ("rate", lambda: RateLimitMiddleware(requests_per_minute=0), "(requests_per_minute=...) | above 0 | 0"),
    ("prices", lambda: UsageMiddleware(5), "UsageMiddleware(prices=...) | a dict | 5 | 'gpt-5-mini'"),
    ("level", lambda: LoggingMiddleware(level="INFO"), "LoggingMiddleware(level=...) | 'INFO' | logging.INFO"),
    ("logger", lambda: LoggingMiddleware("app"), "LoggingMiddleware(logger=...) | 'app' | logging.getLogger(name)"),
    ("provider", lambda: DynamicContextMiddleware(5), "DynamicContextMiddleware | a str or a function | 5"),
    (
        "redis",
        lambda: RedisLimitStore("localhost:6379"),
        "RedisLimitStore(url=...) | 'localhost:6379' | 'redis://localhost:6379'",
    ),
    ("redis secret", lambda: RedisLimitStore(f"u:{SECRET}@h:1"), "RedisLimitStore(url=...) | 'h:1'"),
    ("redis none", lambda: RedisLimitStore(None), "RedisLimitStore(url=...) | None | 'redis://localhost:6379'"),
    ("file as folder", lambda: FileStateStore(__file__), "FileStateStore | it is a file | the path of a folder"),
    ("no folder", lambda: FileStateStore(None), "FileStateStore | the path of the folder | None"),
    ("toolkit", lambda: Toolkit(add), "Toolkit(tools=...) must be a list | write tools=[...]"),
    ("no hint", lambda: Toolkit([unannotated]), "unannotated() | 'a' | no type hint | `a: str`"),
    ("tool class", lambda: Toolkit([ToolBase]), "the class ToolBase | an instance"),
    ("tool timeout", lambda: FunctionTool(add, timeout="5"), "the timeout of add | more than 0 seconds | '5'"),
    ("tool ask", lambda: FunctionTool(add, ask="no"), "the `ask` of add | True or False | 'no'"),
    ("tool schema", lambda: FunctionTool(add, json_schema=Answer), "the schema of add | model_json_schema()"),
    ("tool name", lambda: FunctionTool(add, name="a b"), "'a b' | the name of a tool | 1 to 64"),
    ("choice", lambda: ToolChoice(tools="f"), "ToolChoice(tools=...) | a list | 'f'"),
    ("role", lambda: Msg("a", "x", "bot"), "Msg role | 'user', 'assistant', 'system' | 'bot'"),
    ("content", lambda: UserMsg(None), "Msg content must be a str or a list of blocks | None"),
    ("two roles", lambda: UserMsg("x", role="system"), "UserMsg() | 'user' | 'system' | Msg(name, content, role)"),
    ("dict block", lambda: Msg("a", [{"type": "text"}], "user"), "{'type': 'text'} | not a block | TextBlock('hi')"),
    ("behavior", lambda: PermissionRule("f", None, "yes"), "PermissionRule(behavior=...) | 'allow', 'deny' | 'yes'"),
    ("rule", lambda: PermissionRule("Bash(git *)", None, "deny"), "'Bash(git *)' | PermissionRule('Bash', 'git *', "),
    ("decision", lambda: PermissionDecision("yes"), "PermissionDecision(behavior=...) | 'allow', 'deny' | 'yes'"),
    ("mode", lambda: PermissionContext("open"), "PermissionContext(mode=...) | 'bypass' | 'open'"),
    ("rules list", lambda: PermissionContext(rules=["f"]), "PermissionContext(rules=...) | ['f'] | PermissionRule("),
    ("hub", lambda: MsgHub(["a"]), "MsgHub(participants=...) | 'a' | instances of Agent or AgentBase"),
)
async def test_a_wrong_value_is_refused_at_once(cause: Callable[[], Any], words: str) -> None:
    await check(cause, words)


# Values given to methods


@table(
    ("number", lambda: agent().reply(5), 'an agent takes a str, a Msg | {"role": "user", "content": "Hi"} | 5'),
    ("nothing", lambda: agent().reply(), "'tester' | the conversation is empty | send a message"),
    ("empty", lambda: agent().reply(""), "the message from 'user' is empty | send text or data"),
    ("empty list", lambda: agent().reply([]), "'tester' | the conversation is empty | send a message"),
    ("dict", lambda: agent().reply({"content": "x"}), "{'content': 'x'} | no 'role' | write {"),
    ("messages", lambda: agent().reply({"messages": ["x"]}), "cannot have 'messages' | give the list by itself"),
    ("event dict", lambda: agent().reply({"type": "X", "reply_id": "r"}), "'reply_id' | AgentEvent.from_json(text)"),
    (
        "confirmation",
        lambda: agent().reply(ConfirmResult(True, ToolCallBlock("1", "f"))),
        "not ConfirmResult( | answer with agent.reply(question.approve()) | waiting()",
    ),
    (
        "question",
        lambda: agent().reply(RequireUserConfirmEvent("r", [])),
        "not an event, RequireUserConfirmEvent | answer with agent.reply(question.approve())",
    ),
    ("fields", lambda: agent().reply("x", {"a": "int"}), "{'a': 'int'} | not a JSON schema | neither 'type' nor"),
    ("types", lambda: agent().reply("x", {"a": int}), "has no JSON schema | it is not JSON | or give a class"),
    ("plain class", lambda: agent().reply("x", Layer), "has no JSON schema | a pydantic model, a dataclass or"),
    ("name", lambda: agent().reply("x", list["No"]), "list['No'] | a name that cannot be looked up"),  # noqa: F821
    ("tool call", lambda: Toolkit([add]).call_tool_function({"name": "add"}), "{'name': 'add'} | ToolCallBlock(id"),
    ("plain store", lambda: agent(state_store=PlainStore()).reply("x"), "PlainStore.save() | None | `async def save`"),
    ("schema", lambda: agent().reply("x", "int"), "structured_schema | a type | 'int'"),
    ("id", lambda: agent().reply("x", reply_id="a b"), "reply_id | 1 to 128 letters | 'a b'"),
    ("observe", lambda: agent().observe(5), "an agent takes a str, a Msg | 5"),
    ("with_state", lambda: agent().with_state({}), "must be an AgentState | {} | AgentState()"),
    ("bytes", lambda: agent().reply(Msg("a", [DataBlock(Base64Source(b"1", "a/b"))], "user")), "b'1' | b64encode"),
    ("file", lambda: agent().reply(Msg("a", [DataBlock("x.png")], "user")), "DataBlock | 'x.png' | URLSource(url"),
    ("answer", lambda: agent().reply(UserConfirmResultEvent("r", [])), "USER_CONFIRM_RESULT | asks none"),
    ("early", lambda: agent().reply_stream("x").message, "stream.message | before the end | stream.drain()"),
    ("for", lambda: list(agent().reply_stream("x")), "a reply stream is asynchronous | async for event in"),
    ("model call", lambda: RulesChatModel()("hi"), "a model takes a list of messages | 'hi' | [UserMsg('Hi')]"),
    ("call with dicts", lambda: RulesChatModel()([{"role": "user"}]), "a list of messages | role | [UserMsg('Hi')]"),
    ("call with functions", lambda: RulesChatModel()([], [print]), "JSON schemas | print | .get_json_schemas()"),
    ("call with toolkit", lambda: RulesChatModel()([], Toolkit()), "JSON schemas | Toolkit | .get_json_schemas()"),
    ("call with empty tool", lambda: RulesChatModel()([], [{}]), "JSON schemas with names | [{}]"),
    ("call with a dict choice", lambda: RulesChatModel()([], None, {"type": "auto"}), "ToolChoice(\"auto\") | 'type'"),
    ("save", lambda: InMemoryStateStore().save({}), "a store saves an AgentState | {} | agent.state"),
    ("load", lambda: InMemoryStateStore().load(5), "a session id must be a str | 5"),
    ("event", lambda: AgentEvent.from_json("{}"), "not an event | it has no type"),
    ("not JSON", lambda: AgentEvent.from_json("x"), "not an event | it is not JSON"),
    ("message", lambda: Msg.from_json('{"a": 1}'), "not a message | 'name'"),
    ("newer", lambda: AgentState.model_validate_json('{"version": 2}'), "another version of agentrt | 'version'"),
    ("state dict", lambda: AgentState.model_validate_json({}), "JSON text | a dict | model_dump_json()"),
    ("memory", lambda: InMemoryMemory().add("x"), "a memory takes a Msg | a str"),
    ("pipeline", lambda: sequential_pipeline([5], "x"), "sequential_pipeline() | 5"),
    ("fanout", lambda: fanout_pipeline([5], "x"), "fanout_pipeline() | 5"),
    ("explain", lambda: agent().explain("html"), "explain(format=...) | 'text', 'json' or 'mermaid' | 'html'"),
    ("hook", lambda: agent().register_instance_hook("before_reply", "x", print), "'before_reply' | pre_reply"),
    ("group", lambda: Toolkit().register_tool_function(add, group_name="x"), "no group 'x' | create_tool_group"),
    ("kit", lambda: check_middleware(TimingMiddleware()), "takes a factory | check_middleware(TimingMiddleware)"),
    ("loop", lambda: agent().run_sync("x"), "run_sync() | inside a running event loop | await agent.reply(...)"),
)
async def test_a_wrong_argument_is_refused(cause: Callable[[], Any], words: str) -> None:
    await check(cause, words)


def test_signatures_show_no_parameter_for_wrong_guesses() -> None:
    for function in (Agent.reply, Agent.reply_stream, agent().reply, agent().reply_stream):
        parameters = signature(function).parameters.values()
        assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters)


def test_agents_between_replies_are_mocked_and_listed() -> None:
    tester = agent()
    assert create_autospec(tester).reply is not None
    assert "reply" in dict(getmembers(tester))
    assert not hasattr(tester, "run")


# Layers


class Layer(MiddlewareBase):
    """Does with `next_handler` what a test wants."""

    def __init__(self, act: Callable[[Any, Any], Any]) -> None:
        self.act = act

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        result = self.act(next_handler, input_kwargs)
        return await result if isinstance(result, Awaitable) else result


class StreamLayer(Layer):
    """The same in a stream hook."""

    async def on_reasoning(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        async for item in self.act(next_handler, input_kwargs):
            yield item

    on_model_call = MiddlewareBase.on_model_call  # type: ignore[assignment]


class Contributing(MiddlewareBase):
    """Lists what its test wants, as an `async def list_tools` does."""

    def __init__(self, tools: Any) -> None:
        self.tools = tools

    def list_tools(self) -> Any:
        return self.tools


async def test_a_forgotten_await_is_named() -> None:
    coroutine = failing()
    with closing(coroutine):
        forgotten = "<coroutine object failing> (is an `await` missing?)"
        await check(lambda: agent().reply(coroutine), forgotten)  # type: ignore[arg-type]
        await check(lambda: agent(state=coroutine), f"must be an AgentState | {forgotten}")
        await check(lambda: agent(Contributing(coroutine)), f"Contributing.list_tools() | {forgotten} | `def`, without")


PEERS_HOOKS = {
    "after_model": "on_model_call",
    "awrap_tool_call": "on_acting",
    "before_agent": "on_reply",
    "before_model": "on_model_call",
    "on_llm_start": "on_model_call",
    "on_tool_call": "on_acting",
    "on_tool_start": "on_acting",
    "wrap_model_call": "on_model_call",
}


@pytest.mark.parametrize(("word", "hook"), PEERS_HOOKS.items())
def test_a_hook_of_another_framework_is_answered(word: str, hook: str) -> None:
    guessing = type("Guessing", (MiddlewareBase,), {word: lambda *_: None})
    with pytest.raises(ConfigError) as caught:
        agent(guessing())
    assert f"Guessing.{word} is not a hook: did you mean {hook}?" in str(caught.value)


@table(
    ("dict", lambda: Layer(lambda go, kwargs: go(kwargs)), "Layer.on_model_call | next_handler(**input_kwargs)"),
    ("str", lambda: Layer(lambda go, _: go(messages="hi")), "messages='hi' | must be list | *input_kwargs"),
    ("strs", lambda: Layer(lambda go, _: go(messages=["hi"])), "on_model_call | 'hi' | not a Msg | UserMsg | Layer"),
    ("dicts", lambda: Layer(lambda go, _: go(messages=[{"role": "user"}])), "{'role': 'user'} | not a Msg | Layer"),
    ("model", lambda: Layer(lambda go, _: go(current_model="openai:x")), "current_model='openai:x' | chat_model("),
    ("choice", lambda: Layer(lambda go, _: go(tool_choice=5)), "Layer.on_model_call | tool_choice=5 | leave it out"),
    ("key", lambda: Layer(lambda go, _: go(model=1)), "Layer.on_model_call | 'model' | did you mean 'current_model'?"),
    ("nothing", lambda: Layer(lambda go, _: None), "on_model_call must return ChatResponse | Layer | None"),
    ("itself", lambda: Layer(lambda go, _: go), "Layer.on_model_call | returned next_handler itself | await"),
    (
        "not called",
        lambda: StreamLayer(lambda go, _: go),
        "did not call next_handler | async for item in next_handler(",
    ),
    ("stream dict", lambda: StreamLayer(lambda go, kwargs: go(kwargs)), "StreamLayer.on_reasoning | **input_kwargs"),
    ("stream key", lambda: StreamLayer(lambda go, _: go(choice=1)), "'choice' | did you mean 'tool_choice'?"),
)
async def test_a_wrong_layer_is_named_with_its_hook(cause: Callable[[], MiddlewareBase], words: str) -> None:
    await check(lambda: agent(cause()).reply("hi"), words)


@table(
    ("int", lambda: Layer(lambda go, _: go(messages=5)), "messages=5 | of type int | must be list"),
    ("strs", lambda: Layer(lambda go, _: go(messages=["hi"])), "'hi' | not a Msg"),
)
async def test_the_second_reply_says_the_same(cause: Callable[[], MiddlewareBase], words: str) -> None:
    tester = agent(cause())
    first = await message_of(lambda: tester.reply("hi"))
    await check(lambda: tester.reply("hi"), words)
    assert await message_of(lambda: tester.reply("hi")) == first


def test_a_secret_in_a_wrong_place_is_shown_by_no_error() -> None:
    for cause in (
        lambda: Agent("a", api_key=SECRET, model="rules"),  # type: ignore[call-arg]
        lambda: OpenAIChatModel("m", key=SECRET),  # type: ignore[call-arg]
        lambda: OpenAIChatModel("m", api_key=SECRET, extra_headers=SECRET),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError) as caught:
            cause()
        assert SECRET not in str(caught.value)
