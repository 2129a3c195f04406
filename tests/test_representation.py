"""What objects look like in a shell: their class and what was set, short, without secrets, and never an error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrt import Agent, AgentBase, AgentState, MiddlewareBase, Msg, Toolkit, UserAgent, UserMsg
from agentrt.agent import ReActAgent
from agentrt.event import CustomEvent, DataBlockDeltaEvent, ReplyEndEvent, TextBlockDeltaEvent, ToolResultEndEvent
from agentrt.memory import InMemoryMemory
from agentrt.message import AssistantMsg, Base64Source, DataBlock, TextBlock, ToolCallBlock, ToolResultState
from agentrt.middleware import (
    CircuitBreakerMiddleware,
    DynamicContextMiddleware,
    LoggingMiddleware,
    ModelFallbackMiddleware,
    RateLimitMiddleware,
    RetryMiddleware,
    TimeoutMiddleware,
    TimingMiddleware,
    ToolRetryMiddleware,
    TracingMiddleware,
    UsageMiddleware,
)
from agentrt.model import OpenAIChatModel, ScriptedChatModel
from agentrt.pipeline import FanoutPipeline, MsgHub, SequentialPipeline
from agentrt.state import FileStateStore, InMemoryStateStore
from agentrt.tool import FunctionTool, ToolBase, ToolContext, ToolGroup
from tests.loop.helpers import add, agent_of, call

MODEL = ScriptedChatModel(["hello"], model="small")


async def multiply(a: int, b: int) -> int:
    return a * b


# Messages, blocks and events


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (UserMsg("user", "hi"), "Msg(name='user', content='hi', role='user')"),
        (TextBlock("hi"), "TextBlock(text='hi')"),
        (call("1", "add", a=1), "ToolCallBlock(id='1', name='add', input='{\"a\": 1}')"),
        (
            TextBlockDeltaEvent("r", "b", "hi", seq=4),
            "TextBlockDeltaEvent(reply_id='r', seq=4, block_id='b', delta='hi')",
        ),
        (
            ToolResultEndEvent("r", "1", ToolResultState.DENIED, metadata={"n": 1}),
            "ToolResultEndEvent(reply_id='r', metadata={'n': 1}, tool_call_id='1', state='denied')",
        ),
        (ReplyEndEvent("r", "s"), "ReplyEndEvent(reply_id='r', session_id='s')"),
        (
            AssistantMsg("a", [TextBlock("hi")], finished_reason="error"),
            "Msg(name='a', content=[TextBlock(text='hi')], role='assistant', finished_reason='error')",
        ),
    ],
)
def test_fields_that_have_their_defaults_are_left_out(value: object, text: str) -> None:
    assert repr(value) == text


def test_long_texts_and_lists_are_cut() -> None:
    assert repr(TextBlock("x" * 5_000)) == f"TextBlock(text='{'x' * 200}'... (5,000 characters))"
    text = repr(AssistantMsg("a", [TextBlock(str(number)) for number in range(1_000)]))
    assert text.endswith("TextBlock(text='9'), ... (1,000 in all)], role='assistant')")
    assert len(repr(UserMsg("u", "x", metadata={str(key): "x" * 1_000 for key in range(1_000)}))) < 5_000


def test_data_is_counted_and_never_shown() -> None:
    source = Base64Source("QUJD" * 1_000, "image/png")
    expected = "Base64Source(data=<4,000 characters>, media_type='image/png')"
    assert repr(DataBlock(source)) == f"DataBlock(source={expected})"
    assert "QUJD" not in repr(DataBlockDeltaEvent("r", "b", "image/png", "QUJD" * 10))


def test_message_that_holds_itself_has_a_repr() -> None:
    message = UserMsg("u", "x")
    message.metadata = {"self": message, "deep": [[[[[[[1]]]]]]]}
    assert repr(message) == "Msg(name='u', content='x', role='user', metadata={'self': ..., 'deep': [[[[...]]]]})"


def test_content_of_other_classes_keeps_its_own_words() -> None:
    assert repr(CustomEvent("x", Path("/tmp/x"))) == f"CustomEvent(name='x', value={Path('/tmp/x')!r})"


# Agents and their parts


def test_agent_says_name_model_tools_and_layers() -> None:
    agent = Agent("helper", "", MODEL, Toolkit([add, multiply]), [RetryMiddleware(5), LoggingMiddleware()])
    assert repr(agent) == (
        "Agent(name='helper', model=ScriptedChatModel('small'), toolkit=Toolkit(tools=['add', 'multiply']), "
        "middlewares=[RetryMiddleware(max_retries=5), LoggingMiddleware()])"
    )
    assert repr(agent.with_state(AgentState())) == repr(agent)
    assert repr(Agent("helper", model=MODEL)) == "Agent(name='helper', model=ScriptedChatModel('small'))"


def test_other_agents_say_what_they_have() -> None:
    class Echo(AgentBase):
        pass

    assert repr(Echo(middlewares=[LoggingMiddleware()])) == "Echo(name='Echo', middlewares=[LoggingMiddleware()])"
    assert repr(UserAgent("bob")) == "UserAgent(name='bob')"
    assert repr(ReActAgent("r", "", MODEL)) == "ReActAgent(name='r', model=ScriptedChatModel('small'))"


def test_ipython_shows_a_long_agent_with_a_line_for_each_part() -> None:
    lines: list[str] = []

    class Printer:
        def text(self, text: str) -> None:
            lines.extend(text.splitlines())

    layers = [RetryMiddleware(5), RateLimitMiddleware(requests_per_minute=60), LoggingMiddleware()]
    Agent("helper", "", MODEL, Toolkit([add]), layers)._repr_pretty_(Printer(), False)
    assert lines == [
        "Agent(",
        "    name='helper',",
        "    model=ScriptedChatModel('small'),",
        "    toolkit=Toolkit(tools=['add']),",
        "    middlewares=[",
        "        RetryMiddleware(max_retries=5),",
        "        RateLimitMiddleware(requests_per_minute=60),",
        "        LoggingMiddleware(),",
        "    ],",
        ")",
    ]


def test_toolkit_names_its_tools_and_groups() -> None:
    toolkit = Toolkit([add], [ToolGroup("more", "further tools", tools=[multiply])])
    text = "Toolkit(tools=['add', 'reset_equipped_tools'], groups={'more': ['multiply']}, active_groups=[])"
    assert repr(toolkit) == text
    extended = toolkit.with_tools([FunctionTool(add, name="plus")])
    assert repr(extended) == text.replace("'reset_equipped_tools'", "'reset_equipped_tools', 'plus'")
    assert extended.groups == toolkit.groups == {"more": ["multiply"]}
    assert repr(Toolkit()) == "Toolkit()"


@pytest.mark.parametrize(
    ("middleware", "text"),
    [
        (RetryMiddleware(2, initial_delay=1.0), "RetryMiddleware(max_retries=2, initial_delay=1.0)"),
        (RetryMiddleware(retry_on=(OSError,)), "RetryMiddleware(retry_on=(OSError,))"),
        (ToolRetryMiddleware(["add"], max_delay=3.0), "ToolRetryMiddleware(tools=['add'], max_delay=3.0)"),
        (TimeoutMiddleware(total=60), "TimeoutMiddleware(total=60)"),
        (RateLimitMiddleware(), "RateLimitMiddleware(min_interval=1.0)"),
        (RateLimitMiddleware(tokens_per_minute=9, max_wait=0), "RateLimitMiddleware(tokens_per_minute=9, max_wait=0)"),
        (CircuitBreakerMiddleware(3), "CircuitBreakerMiddleware(failure_threshold=3)"),
        (ModelFallbackMiddleware(MODEL), "ModelFallbackMiddleware(models=(ScriptedChatModel('small'),))"),
        (UsageMiddleware({"small": (1, 2)}), "UsageMiddleware(prices={'small': (1, 2, 1)})"),
        (TimingMiddleware(print), "TimingMiddleware(on_timing=print)"),
        (DynamicContextMiddleware("It rains."), "DynamicContextMiddleware(provider='It rains.')"),
        (LoggingMiddleware(content=True), "LoggingMiddleware(content=True)"),
        (TracingMiddleware(capture_content=True), "TracingMiddleware(capture_content=True)"),
        *[
            (kind(), f"{kind.__name__}()")
            for kind in (RetryMiddleware, LoggingMiddleware, TimingMiddleware, UsageMiddleware, TracingMiddleware)
        ],
    ],
)
def test_middleware_says_what_was_set(middleware: MiddlewareBase, text: str) -> None:
    assert repr(middleware) == text


class Client:
    """An object of another library, whose own words hold a password."""

    def __repr__(self) -> str:
        return "Client(password=hunter2)"


class Connected(MiddlewareBase):
    """A middleware of the user, which has all sorts of secrets."""

    def __init__(
        self, url: str, *, api_key: str = "", tokens: int = 0, client: Any = None, options: Any = None, text: str = ""
    ) -> None:
        self.url, self._api_key, self.tokens, self.client = url, api_key, tokens, client
        self.options, self.text = options, text


def test_settings_never_show_secrets() -> None:
    middleware = Connected(
        "redis://user:hunter2@host/0",
        api_key="hunter2",
        tokens=5,
        client=Client(),
        options={"extra_headers": {"x": "hunter2"}, "retries": 3, "nested": [{"access_token": "hunter2"}]},
        text="Bearer hunter2hunter2",
    )
    assert repr(middleware) == (
        "Connected(url='redis://***@host/0', api_key='***', tokens=5, client=<Client>, "
        "options={'extra_headers': '***', 'retries': 3, 'nested': [{'access_token': '***'}]}, text='Bearer ***')"
    )
    agent = Agent("helper", model=MODEL, middlewares=[middleware])
    assert "hunter2" not in repr(agent)


def test_models_show_no_key() -> None:
    pytest.importorskip("openai")
    model = OpenAIChatModel("gpt", api_key="hunter2-hunter2", extra_headers={"x": "hunter2"}, base_url="http://h/v1")
    assert repr(model) == "OpenAIChatModel('gpt', base_url='http://h/v1')"


def test_tools_and_stores_say_what_they_are(tmp_path: Path) -> None:
    class Search(ToolBase):
        name = "search"

    assert repr(Search()) == "Search(name='search')"
    assert repr(FileStateStore(tmp_path)) == f"FileStateStore({str(tmp_path)!r})"
    assert repr(InMemoryStateStore()) == "<InMemoryStateStore of 0 sessions>"


async def test_pipelines_and_hubs_name_their_agents() -> None:
    agents = [Agent("ann", model=MODEL), AgentBase(name="bob")]
    first, second = "Agent(name='ann', model=ScriptedChatModel('small'))", "AgentBase(name='bob')"
    assert repr(SequentialPipeline(agents)) == f"SequentialPipeline(agents=[{first}, {second}])"
    fanout = FanoutPipeline([agents[1], SequentialPipeline([])], enable_gather=False)
    assert repr(fanout) == f"FanoutPipeline(agents=[{second}, SequentialPipeline(agents=[])], enable_gather=False)"
    assert repr(MsgHub(agents, name="talk")) == "<MsgHub 'talk' of ['ann', 'bob']>"


async def test_memory_says_how_much_it_holds() -> None:
    memory = InMemoryMemory()
    await memory.add([UserMsg("Hi"), UserMsg("Bye")])
    assert repr(memory) == "<InMemoryMemory of 2 messages>"


# What is in progress


async def test_state_is_short_and_says_what_waits() -> None:
    agent = agent_of([[call("1", "add", a=1, b=2)], "three"], FunctionTool(add, ask=True))
    session = agent.state.session_id
    assert repr(agent.state) == f"AgentState(session_id='{session}', context=<0 messages>)"
    await agent.reply("go", reply_id="first")
    parked = f"AgentState(session_id='{session}', context=<1 messages>, reply_context=<the reply 'first', parked>)"
    assert repr(agent.state) == parked
    agent.interrupt()
    assert repr(agent.state).endswith("context=<2 messages>, last_reply='interrupted')")


async def test_stream_says_how_far_it_has_come() -> None:
    seen: list[str] = []

    async def look(context: ToolContext) -> str:
        seen.extend([repr(context.agent.run), repr(context)])
        return "seen"

    agent = agent_of([[call("1", "look")], "done"], look)
    stream = agent.reply_stream("go", reply_id="first")
    assert repr(stream) == "<ReplyStream of the reply 'first', not started>"
    assert repr(stream.text()) == f"<TextStream of {stream!r}>"
    async with stream:
        await anext(stream)
        assert repr(stream) == "<ReplyStream of the reply 'first', in progress>"
        async for _ in stream:
            pass
    assert repr(stream) == "<ReplyStream of the reply 'first', closed>"
    assert seen == ["<Run of the reply 'first'>", "<ToolContext of the call '1' of 'look'>"]


# Objects that are not whole


class Unready(MiddlewareBase):
    def __init__(self, limit: int) -> None:
        raise ValueError(f"the limit {limit} is too low: {self!r}")


class Strange(AgentBase):
    @property
    def name(self) -> str:  # type: ignore[override]
        raise KeyError("name")


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise ArithmeticError

    __hash__ = None  # type: ignore[assignment]


class WithOdd(MiddlewareBase):
    def __init__(self, odd: Any = 1) -> None:
        self.odd = odd


@pytest.mark.parametrize(
    "make",
    [
        *[
            (lambda kind=kind: kind.__new__(kind))
            for kind in (Msg, TextBlock, AgentState, Agent, UserAgent, Toolkit, ScriptedChatModel, OpenAIChatModel)
        ],
        *[
            (lambda kind=kind: kind.__new__(kind))
            for kind in (Unready, Strange, RetryMiddleware, FunctionTool, ToolBase, ToolContext, InMemoryStateStore)
        ],
        *[
            (lambda kind=kind: kind.__new__(kind))
            for kind in (SequentialPipeline, FanoutPipeline, MsgHub, InMemoryMemory)
        ],
        lambda: WithOdd(Incomparable()),
        lambda: WithOdd(10**5_000),
        lambda: WithOdd({Incomparable: [Incomparable()]}),
        lambda: UserMsg("u", "x", metadata={"odd": Incomparable(), "number": 10**5_000}),
    ],
)
def test_repr_of_a_half_built_or_odd_object_never_raises(make: Callable[[], object]) -> None:
    assert type(make()).__name__ in repr(make())


def test_repr_is_there_in_a_constructor_that_fails() -> None:
    with pytest.raises(ValueError, match=r"the limit 3 is too low: Unready\(.*\)"):
        Unready(3)


def test_class_may_have_a_repr_of_its_own() -> None:
    class Named(MiddlewareBase):
        def __repr__(self) -> str:
            return "Named!"

    assert repr(Named()) == "Named!"
    assert ToolCallBlock("1", "f") == ToolCallBlock("1", "f")
