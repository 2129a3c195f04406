"""The cache answers equal requests from what it knows, and asks once for those that come together."""

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Agent, AgentState, Msg, Toolkit, UserMsg
from agentrt.errors import MiddlewareConfigError, RedactionBlocked, Transient
from agentrt.event import (
    ModelCallEndEvent,
    TextBlockDeltaEvent,
    ToolResultEndEvent,
)
from agentrt.message import AssistantMsg, HintBlock, SystemMsg, TextBlock, ToolCallBlock
from agentrt.middleware import (
    EMAIL,
    CacheMiddleware,
    MemoryCacheStore,
    MiddlewareBase,
    ModelFallbackMiddleware,
    Pattern,
    Question,
    RedactionMiddleware,
    RetryMiddleware,
    SQLiteCacheStore,
    UsageMiddleware,
)
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.testing import approve, check_middleware
from agentrt.tool import FunctionTool, ToolContext
from agentrt.types import ToolChoice, ToolResponse
from tests.loop.helpers import agent_of, call, confirmation_of, items_of
from tests.middleware.fake_time import Clock, in_jumping_time, on_both_loops, play


def fresh(agent: Agent) -> Agent:
    """The same agent in a conversation of its own."""
    return agent.with_state(AgentState())


async def ask(agent: Agent, question: str = "go") -> str | None:
    return (await fresh(agent).reply(question)).get_text_content()


def calls_of(agent: Agent) -> int:
    assert isinstance(agent.model, ScriptedChatModel)
    return len(agent.model.calls)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_equal_request_is_answered_as_the_first_was(stream: bool) -> None:
    response = ChatResponse([TextBlock("one two three")], usage=ChatUsage(7, 3))
    agent = Agent("a", model=ScriptedChatModel([response, "other"], stream=stream), middlewares=[CacheMiddleware()])
    first, second = [await items_of(fresh(agent)) for _ in range(2)]
    assert calls_of(agent) == 1
    assert [item.type for item in first[:-1]] == [item.type for item in second[:-1]]  # type: ignore[union-attr]
    deltas = [[item.delta for item in items if isinstance(item, TextBlockDeltaEvent)] for items in (first, second)]
    assert deltas[0] == deltas[1]
    (end,) = [item for item in second if isinstance(item, ModelCallEndEvent)]
    assert (end.input_tokens, end.output_tokens, end.replayed) == (7, 3, True)
    assert await ask(agent, "another question") == "other"


async def test_a_stream_without_a_last_piece_is_kept() -> None:
    class Pieces(Echo):
        async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
            async def pieces() -> Any:
                for text in ("one ", str(next(numbers))):
                    yield ChatResponse([TextBlock(text)], is_last=False)

            return pieces()

    agent = Agent("a", model=Pieces(), middlewares=[CacheMiddleware()])
    assert await ask(agent) == await ask(agent)


async def test_a_stream_is_replayed_in_the_pieces_in_which_it_came() -> None:
    agent = agent_of([["one ", "two ", "three"]], middlewares=[CacheMiddleware()])
    texts = []
    for _ in range(2):
        items = await items_of(fresh(agent))
        texts.append([item.delta for item in items if isinstance(item, TextBlockDeltaEvent)])
    assert texts == [["one ", "two ", "three"]] * 2


async def test_a_model_that_does_not_stream_gets_a_whole_answer() -> None:
    agent = agent_of([["one ", "two"]], middlewares=[CacheMiddleware()])
    await ask(agent)
    agent.model.stream = False
    items = await items_of(fresh(agent))
    assert [item.delta for item in items if isinstance(item, TextBlockDeltaEvent)] == ["one two"]


async def test_a_hit_is_in_no_sum() -> None:
    usage = UsageMiddleware({"scripted": (1, 1)})
    response = ChatResponse([TextBlock("Hello.")], usage=ChatUsage(100, 10))
    agent = Agent("a", model=ScriptedChatModel([response]), middlewares=[usage, CacheMiddleware()])
    await ask(agent)
    message = await fresh(agent).reply("go")
    assert usage.total().tokens == ChatUsage(100, 10)
    assert message.usage == ChatUsage()


numbers = count()


class Echo(ChatModelBase):
    """Answers with a number that no other answer has."""

    def __init__(self, name: str = "echo", **settings: Any) -> None:
        super().__init__(model=name, stream=False)
        self.settings = settings

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> ChatResponse:
        return ChatResponse([TextBlock(str(next(numbers)))])


class Change(MiddlewareBase):
    def __init__(self, **values: Any) -> None:
        self.values = values

    async def on_model_call(self, agent: Agent, input_kwargs: Any, next_handler: Any) -> Any:
        return await next_handler(**self.values)


async def look() -> str:
    return "sunny"


async def look_well() -> str:
    """Look well."""
    return "sunny"


WORDS = "The same words."
DIFFERENCES: list[dict[str, Any]] = [
    {},
    {"messages": [UserMsg("user", WORDS)]},
    {"messages": [UserMsg("user", WORDS + " ")]},
    {"messages": [UserMsg("another", WORDS)]},
    {"messages": [AssistantMsg("user", WORDS)]},
    {"messages": [SystemMsg(WORDS)]},
    {"messages": [UserMsg("user", WORDS), UserMsg("user", WORDS)]},
    {"messages": [Msg("user", [HintBlock(WORDS)], "user")]},
    {"tools": [FunctionTool(look)]},
    {"tools": [FunctionTool(look_well)]},
    {"tools": [FunctionTool(look_well, name="look")]},
    {"tool_choice": ToolChoice("none")},
    {"current_model": Echo("other")},
    {"current_model": Echo(temperature=0)},
]


@given(st.lists(st.tuples(st.sampled_from(range(len(DIFFERENCES))), st.sampled_from(["a", "b"]), st.booleans())))
@settings(max_examples=40, deadline=None)
async def test_any_one_difference_is_a_miss_and_equal_requests_hit(requests: list[tuple[int, str, bool]]) -> None:
    cache, model = CacheMiddleware(scope=lambda agent: agent.name), Echo()
    answers: dict[Any, str | None] = {}
    for place, question, is_other_scope in requests:
        layers = [Change(**DIFFERENCES[place]), cache]
        agent = Agent("other" if is_other_scope else "one", model=model, middlewares=layers)
        answer = (await agent.reply(question)).get_text_content()
        # Messages of its own stand in the place of the question.
        request = (place, "messages" in DIFFERENCES[place] or question, is_other_scope)
        assert answers.setdefault(request, answer) == answer
    assert len(set(answers.values())) == len(answers)


class AsksBeside(MiddlewareBase):
    """Asks for itself what the round asks, with each of the purposes."""

    def __init__(self, *purposes: str) -> None:
        self.purposes = purposes
        self.answers: list[str | None] = []

    async def on_model_call(self, agent: Agent, input_kwargs: Any, next_handler: Any) -> Any:
        if not agent.run.is_internal:
            for purpose in self.purposes:
                answer = await agent.run.ask_model(input_kwargs["messages"], purpose=purpose)
                self.answers.append(answer.get_text_content())
        return await next_handler()


async def test_a_call_gets_no_answer_of_another_purpose() -> None:
    asks = AsksBeside("summary", "judge", "summary")
    agent = Agent("a", model=Echo(), middlewares=[asks, CacheMiddleware()])
    answer = await ask(agent)
    summary, judgement, again = asks.answers
    assert summary == again
    assert len({answer, summary, judgement}) == 3
    assert await ask(agent) == answer
    assert asks.answers[3:] == [summary, judgement, summary]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (ChatResponse([TextBlock("half")], finished_reason="length"), "cut off"),
        (ChatResponse([TextBlock("I may not")], finished_reason="content_filter"), "filtered"),
        (ChatResponse([TextBlock("warned")], metadata={"no_store": True}), "no_store"),
        (ChatResponse([TextBlock("spare")], metadata={"model": "spare"}), "of a fallback"),
        (ChatResponse([TextBlock("odd")], metadata={"odd": object()}), "without a JSON form"),
        (ChatResponse([TextBlock("x" * 3_000_000)]), "too long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("stream", [True, False])
async def test_such_an_answer_is_not_kept(response: ChatResponse, reason: str, stream: bool) -> None:
    script = [[response], "whole"] if stream else [response, "whole"]
    agent = Agent("a", model=ScriptedChatModel(script, stream=stream), middlewares=[CacheMiddleware()])
    await ask(agent)
    assert await ask(agent) == "whole"


class Kept(MemoryCacheStore):
    """Shows what is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[str] = []

    async def put(self, key: str, value: str, ttl: float) -> None:
        self.values.append(value)
        await super().put(key, value, ttl)


def not_five(digits: str) -> int | None:
    if "5" in digits:
        raise LookupError(digits)
    return None


@pytest.mark.parametrize(
    ("answer", "is_kept"),
    [
        (["call bob@exa", "mple.com"], False),  # in no piece as a whole
        (["it is 1234"], True),  # looks like one, and is not
        (["it is 5678"], False),  # nobody can say
        (["nothing"], True),
    ],
)
async def test_what_a_redaction_would_hide_is_not_kept(answer: list[str], is_kept: bool) -> None:
    detectors = [EMAIL, Pattern("number", r"\b\d{4}\b", validate=not_five)]
    for options in ({}, {"output": False}):
        store = Kept()
        layers = [RedactionMiddleware(detectors, **options), CacheMiddleware(store)]  # type: ignore[arg-type]
        agent = Agent("a", model=ScriptedChatModel([answer, answer]), middlewares=layers)
        with contextlib.suppress(RedactionBlocked):
            await ask(agent)
        assert bool(store.values) == (is_kept or bool(options))


@pytest.mark.parametrize("tools", [True, False])
async def test_a_result_that_a_redaction_would_hide_is_not_kept(tools: bool) -> None:
    store = Kept()

    async def find() -> str:
        return "bob@example.com"

    layers = [RedactionMiddleware([EMAIL], tools=tools), CacheMiddleware(store, tools={"find": 60})]
    model = ScriptedChatModel([[call("1", "find")], "found"])
    agent = Agent("a", model=model, tools=[FunctionTool(find, is_read_only=True)], middlewares=layers)
    await agent.reply("go")
    assert ("bob@" in "".join(store.values)) == (not tools)


async def test_a_failed_or_abandoned_answer_is_not_kept() -> None:
    agent = agent_of([["half ", Transient("cut")], ["one ", "two"], "whole"], middlewares=[CacheMiddleware()])
    with pytest.raises(Transient):
        await ask(agent)
    async with fresh(agent).reply_stream("go") as stream:
        async for event in stream:
            if event.type == "TEXT_BLOCK_DELTA":
                break
    assert await ask(agent) == "whole"
    assert await ask(agent) == "whole"


async def test_an_answer_is_kept_for_its_time_to_live() -> None:
    clock = Clock()
    agent = agent_of(["first", "second", "third"], middlewares=[CacheMiddleware(ttl=60, clock=clock)])
    assert await ask(agent) == "first"
    clock.now += 59
    assert await ask(agent) == "first"
    clock.now += 2
    assert await ask(agent) == "second"
    clock.now -= 3_600  # nothing says how old the answer really is
    assert await ask(agent) == "third"


async def test_the_least_recently_used_answer_makes_room() -> None:
    agent = agent_of(["a", "b", "c", "b again"], middlewares=[CacheMiddleware(max_entries=2)])
    for question, answer in [("1", "a"), ("2", "b"), ("1", "a"), ("3", "c"), ("1", "a"), ("2", "b again")]:
        assert await ask(agent, question) == answer


async def test_scopes_do_not_share_answers() -> None:
    agent = agent_of(["first", "second"], middlewares=[CacheMiddleware(scope="conversation")])
    assert await ask(agent) == "first"
    assert await ask(agent) == "second"

    whose = CacheMiddleware(scope=lambda agent: agent.run.deps)
    agent = agent_of(["Ann's", "Bob's"], middlewares=[whose])
    answers = [(await fresh(agent).reply("go", deps=deps)).get_text_content() for deps in ("Ann", "Bob", "Ann")]
    assert answers == ["Ann's", "Bob's", "Ann's"]


async def test_an_answer_of_another_user_changes_no_scope() -> None:
    whose = CacheMiddleware(scope=lambda agent: agent.run.deps)
    wait = FunctionTool(lambda: "Waited.", name="wait", description="Wait.", ask=True)
    agent = agent_of([[call("1", "wait")], "done"] * 2, wait, middlewares=[whose])
    for deps in ("Ann", "Bob"):
        conversation = fresh(agent)
        await conversation.reply("go", deps=deps)
        await conversation.reply(approve(conversation.state), deps="Bob")
    assert calls_of(agent) == 4


@pytest.mark.parametrize("scope", [lambda agent: None, lambda agent: 1 / 0, lambda agent: ["Ann"]])
async def test_a_scope_that_is_not_known_shares_nothing(scope: Any, caplog: pytest.LogCaptureFixture) -> None:
    agent = agent_of(["first", "second", "third"], middlewares=[CacheMiddleware(scope=scope)])
    assert [await ask(agent) for _ in range(3)] == ["first", "second", "third"]
    assert caplog.text.count("CacheMiddleware(scope=...) failed") == 1


async def test_when_says_which_calls_are_cached(caplog: pytest.LogCaptureFixture) -> None:
    cache = CacheMiddleware(when=lambda agent, values: "secret" not in values["messages"][-1].get_text_content())
    agent = agent_of(["first", "second", "third"], middlewares=[cache])
    assert [await ask(agent, question) for question in ("a secret", "a secret", "open", "open")] == [
        "first",
        "second",
        "third",
        "third",
    ]
    agent = agent_of(["first", "second"], middlewares=[CacheMiddleware(when=lambda agent, values: 1 / 0)])  # type: ignore[arg-type,return-value]
    assert [await ask(agent) for _ in range(2)] == ["first", "second"]
    assert caplog.text.count("CacheMiddleware(when=...) failed (ZeroDivisionError)") == 1


async def test_a_caller_may_bypass_or_refresh_the_cache() -> None:
    cache, other = CacheMiddleware(), CacheMiddleware()
    agent = agent_of(["first", "second", "third", "fourth"], middlewares=[cache])
    assert await ask(agent) == "first"
    with cache.bypass():
        assert await ask(agent) == "second"
    with cache.refresh():
        assert await ask(agent) == "third"
        with other.bypass():
            assert await ask(agent) == "fourth"
    with other.bypass():
        assert await ask(agent) == "fourth"
    assert await ask(agent) == "fourth"


# ---- single flight


class Slow(ChatModelBase):
    """Answers, fails or hangs as `plan` says of each call, after a second."""

    def __init__(self, plan: list[str], *, stream: bool) -> None:
        super().__init__(model="slow", stream=stream)
        self.plan = plan
        self.calls = 0

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
        number = self.calls
        self.calls += 1
        does = self.plan[number % len(self.plan)]
        if not self.stream:
            return await self.answer(does, number)
        return self.pieces(does, number)

    async def answer(self, does: str, number: int) -> ChatResponse:
        await anyio.sleep(1)
        if does == "hang":
            await anyio.sleep(1_000)
        if does == "fail":
            raise Transient(f"call {number}")
        return ChatResponse([TextBlock(f"answer {number}")], finished_reason="length" if does == "cut" else "stop")

    async def pieces(self, does: str, number: int) -> Any:
        yield ChatResponse([TextBlock("")], is_last=False)
        yield await self.answer(does, number)


@in_jumping_time
@pytest.mark.parametrize("stream", [True, False])
async def test_of_equal_calls_at_the_same_time_one_asks(stream: bool) -> None:
    model, answers = Slow(["answer"], stream=stream), []
    agent = Agent("a", model=model, middlewares=[CacheMiddleware()])

    async def caller() -> None:
        answers.append(await ask(agent))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(caller)
    assert (model.calls, answers) == (1, ["answer 0"] * 20)


@in_jumping_time
@pytest.mark.parametrize("does", ["fail", "hang", "cut"])
async def test_another_takes_the_place_of_one_that_brings_nothing(does: str) -> None:
    model, answers = Slow([does, "answer"], stream=False), []
    agent = Agent("a", model=model, middlewares=[CacheMiddleware()])

    async def leader() -> None:
        with anyio.move_on_after(5):
            try:
                await ask(agent)
            except Transient:
                assert does == "fail"

    async def caller() -> None:
        answers.append(await ask(agent))

    async with anyio.create_task_group() as group:
        group.start_soon(leader)
        await anyio.sleep(0.5)
        for _ in range(3):
            group.start_soon(caller)
    # A cut answer is not for others, so each asks for itself; else the next one asks for all.
    assert model.calls == (4 if does == "cut" else 2)
    assert len(answers) == 3


@in_jumping_time
async def test_a_call_does_not_wait_for_ever() -> None:
    model = Slow(["hang", "answer"], stream=False)
    agent = Agent("a", model=model, middlewares=[CacheMiddleware(flight_wait=10)])
    async with anyio.create_task_group() as group:
        group.start_soon(ask, agent)
        await anyio.sleep(0.5)
        started = anyio.current_time()
        assert await ask(agent) == "answer 1"
        assert anyio.current_time() - started == pytest.approx(11)
        group.cancel_scope.cancel()


plans = st.lists(st.sampled_from(["answer", "fail", "hang", "cut"]), min_size=1, max_size=4)
callers = st.lists(
    st.tuples(st.sampled_from([0, 0.5, 1.0, 2.5]), st.sampled_from([0.1, 0.7, 1.0, 1.5, 3.0, 1e6])),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(plans, callers, st.booleans(), st.sampled_from([0, 2, 60]))
@settings(max_examples=60, deadline=None)
def test_any_pattern_of_cancellations_leaves_no_flight(
    backend: str, plan: list[str], plans_of_callers: list[tuple[float, float]], stream: bool, patience: float
) -> None:
    """Everyone gets an answer, the error of a call, or its own cancellation, and nobody waits for nothing."""

    async def main() -> None:
        cache = CacheMiddleware(flight_wait=patience)
        agent = Agent("a", model=Slow(plan, stream=stream), middlewares=[cache])
        outcomes: list[str] = []

        async def caller(start: float, patience_of_caller: float) -> None:
            await anyio.sleep(start)
            with anyio.move_on_after(patience_of_caller) as scope:
                try:
                    text = await ask(agent)
                    assert text.startswith("answer")
                    outcomes.append("answer")
                except Transient:
                    outcomes.append("error")
            if scope.cancelled_caught:
                outcomes.append("cancelled")

        async with anyio.create_task_group() as group:
            for each in plans_of_callers:
                group.start_soon(caller, *each)
        assert len(outcomes) == len(plans_of_callers)
        assert not cache._flights._of_loop.get({})

    play(backend, main)


@on_both_loops
def test_event_loops_in_threads_share_answers_not_flights(backend: str) -> None:
    cache, model, answers = CacheMiddleware(), Slow(["answer"], stream=False), []
    agent = Agent("a", model=model, middlewares=[cache])

    def run() -> None:
        answers.append(play(backend, ask, agent))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert play(backend, ask, agent) in answers


async def test_retries_and_fallbacks_happen_inside_of_a_flight() -> None:
    first, second = ScriptedChatModel([Transient("503"), "first"]), ScriptedChatModel(["second"], model="second")
    layers = [CacheMiddleware(), ModelFallbackMiddleware(second), RetryMiddleware(1, initial_delay=0)]
    agent = Agent("a", model=first, middlewares=layers)
    assert [await ask(agent) for _ in range(2)] == ["first", "first"]
    with pytest.raises(MiddlewareConfigError, match="put CacheMiddleware before RetryMiddleware"):
        Agent("a", model=first, middlewares=[RetryMiddleware(), CacheMiddleware()])


# ---- results of tools


def searching(runs: list[str], *, is_read_only: bool = True) -> FunctionTool:
    async def search(query: str, limit: int = 3) -> str:
        runs.append(query)
        if query == "bad":
            raise ConnectionError("down")
        return f"{limit} results for {query}"

    return FunctionTool(search, is_read_only=is_read_only)


def searcher(inputs: list[str], tool: Any, cache: CacheMiddleware) -> Agent:
    script: list[Any] = []
    for text in inputs:
        script += [[ToolCallBlock("1", "search", text)], "done"]
    return Agent("a", model=ScriptedChatModel(script), toolkit=Toolkit(tools=[tool]), middlewares=[cache])


async def results_of(agent: Agent, replies: int) -> list[Any]:
    results: list[Any] = []
    for number in range(replies):
        conversation = fresh(agent)
        await conversation.reply(f"question {number}")
        (result,) = conversation.state.context[-1].get_content_blocks("tool_result")
        results.append((result.state, result.text))
    return results


async def test_a_result_of_a_named_tool_is_kept() -> None:
    runs: list[str] = []
    inputs = ['{"query": "a", "limit": 3}', '{"limit":3,"query":"a"}', '{"query": "b"}', '{"query": "a", "limit": 4}']
    agent = searcher(inputs, searching(runs), CacheMiddleware(tools={"search": 60}, when=lambda *_: False))
    results = await results_of(agent, 4)
    assert runs == ["a", "b", "a"]
    assert results[0] == results[1] == ("success", "3 results for a")


async def test_a_failed_result_is_not_kept() -> None:
    runs: list[str] = []
    cache = CacheMiddleware(tools={"search": 60}, when=lambda *_: False)
    await results_of(searcher(['{"query": "bad"}'] * 2, searching(runs), cache), 2)
    assert runs == ["bad", "bad"]


async def test_a_result_is_kept_for_the_time_of_its_tool() -> None:
    runs: list[str] = []
    clock = Clock()
    cache = CacheMiddleware(tools={"search": 10}, ttl=1_000, when=lambda *_: False, clock=clock)
    agent = searcher(['{"query": "a"}'] * 3, searching(runs), cache)
    await results_of(agent, 2)
    assert runs == ["a"]
    clock.now += 11
    await results_of(agent, 1)
    assert runs == ["a", "a"]


async def test_a_cached_tool_must_be_read_only() -> None:
    runs: list[str] = []
    cache = CacheMiddleware(tools={"search": 10})
    agent = searcher(['{"query": "a"}'], searching(runs, is_read_only=False), cache)
    with pytest.raises(MiddlewareConfigError, match=r"'search', which is not read-only.*leave it out"):
        await agent.reply("go")
    assert (runs, calls_of(agent)) == ([], 0)


async def test_a_cached_tool_makes_no_calls() -> None:
    runs: list[str] = []
    tool = searching(runs)
    tool.is_resumable = True
    agent = searcher(['{"query": "a"}'], tool, CacheMiddleware(tools={"search": 10}))
    with pytest.raises(MiddlewareConfigError, match=r"'search', which may ask and call other tools.*instead"):
        await agent.reply("go")
    assert (runs, calls_of(agent)) == ([], 0)


async def test_equal_tool_calls_at_the_same_time_run_once() -> None:
    runs: list[str] = []
    script = [[call("1", "search", query="a"), call("2", "search", query="a")], "done"]
    agent = agent_of(script, searching(runs), middlewares=[CacheMiddleware(tools={"search": 60})])
    items = await items_of(agent)
    assert [item.state for item in items if isinstance(item, ToolResultEndEvent)] == ["success", "success"]
    assert runs == ["a"]


@in_jumping_time
async def test_a_call_does_not_wait_for_the_call_that_it_is_part_of() -> None:
    cache = CacheMiddleware(tools={"dig": 60}, when=lambda *_: False)
    depths = count()

    async def dig(place: str) -> str | None:
        if next(depths) == 3:
            return "ground"
        script = [[call("1", "dig", place=place)], "dug"]
        return await ask(agent_of(script, tool, middlewares=[cache]))

    tool = FunctionTool(dig, is_read_only=True)
    started = anyio.current_time()
    assert await ask(agent_of([[call("1", "dig", place="here")], "done"], tool, middlewares=[cache])) == "done"
    assert anyio.current_time() == started
    assert next(depths) == 4


async def test_two_tools_of_one_name_do_not_share_results() -> None:
    cache = CacheMiddleware(tools={"search": 60}, when=lambda *_: False)

    async def search(query: str) -> str:
        return "elsewhere"

    first = await results_of(searcher(['{"query": "a"}'], searching([]), cache), 1)
    second = await results_of(searcher(['{"query": "a"}'], FunctionTool(search, is_read_only=True), cache), 1)
    assert [first[0][1], second[0][1]] == ["3 results for a", "elsewhere"]


class Shelf:
    def __init__(self, owner: str) -> None:
        self.owner = owner

    async def search(self, query: str, owner: str = "") -> str:
        return f"of {owner or self.owner}"


async def search_of(query: str, owner: str) -> str:
    return f"of {owner}"


def tool_of_a_function(owner: str) -> FunctionTool:
    async def search(query: str) -> str:
        return f"of {owner}"

    return FunctionTool(search, is_read_only=True)


SEARCHES_OF: dict[str, Callable[[str], FunctionTool]] = {
    "method": lambda owner: FunctionTool(Shelf(owner).search, is_read_only=True),
    "partial": lambda owner: FunctionTool(partial(search_of, owner=owner), name="search", is_read_only=True),
    "preset": lambda owner: FunctionTool(search_of, name="search", preset_kwargs={"owner": owner}, is_read_only=True),
    "closure": tool_of_a_function,
}


@pytest.mark.parametrize("make", SEARCHES_OF.values(), ids=SEARCHES_OF)
async def test_tools_bound_to_other_values_do_not_share_results(make: Callable[[str], FunctionTool]) -> None:
    cache = CacheMiddleware(tools={"search": 60}, when=lambda *_: False)
    results = []
    for tool in (make("Ann"), make("Bob")):
        results += await results_of(searcher(['{"query": "a"}'], tool, cache), 1)
    assert [text for _, text in results] == ["of Ann", "of Bob"]


async def test_a_function_with_equal_presets_shares_its_results() -> None:
    store = MemoryCacheStore()
    runs = []
    for _ in range(2):
        cache = CacheMiddleware(store, tools={"search": 60}, when=lambda *_: False)
        agent = searcher(['{"query": "a"}'], SEARCHES_OF["preset"]("Ann"), cache)
        await results_of(agent, 1)
        runs.append(len(store._entries))
    assert runs == [1, 1]


class AsksFirst(MiddlewareBase):
    """Asks the user before each call of the tool runs."""

    def __init__(self) -> None:
        self.question = Question("sure")

    def list_tools(self) -> list[Question]:
        return [self.question]

    async def on_acting(self, agent: Agent, input_kwargs: Any, next_handler: Any) -> Any:
        if self.question.answer(agent, input_kwargs["tool_call"]) is None:
            yield ToolResponse(waits=[self.question.open(agent, "Sure?")])
            return
        async for item in next_handler():
            yield item


async def test_a_call_that_waits_for_an_answer_is_no_result() -> None:
    runs: list[str] = []
    cache = CacheMiddleware(tools={"search": 60}, when=lambda *_: False)
    script = [[call("1", "search", query="a")], "done"]
    agent = agent_of(script * 2, searching(runs), middlewares=[cache, AsksFirst()])
    await agent.reply("go")
    assert (await agent.reply(confirmation_of(agent))).get_text_content() == "done"
    assert await ask(agent, "again") == "done"
    assert runs == ["a"]


async def test_a_tool_that_sees_the_conversation_shares_no_results() -> None:
    async def whose(context: ToolContext) -> str:
        return str(context.deps)

    cache = CacheMiddleware(tools={"whose": 60}, when=lambda *_: False)
    agent = agent_of([[call("1", "whose")], "done"] * 2, FunctionTool(whose, is_read_only=True), middlewares=[cache])
    texts = []
    for name in ("Ann", "Bob"):
        conversation = fresh(agent)
        await conversation.reply("go", deps=name)
        texts += [block.text for block in conversation.state.context[-1].get_content_blocks("tool_result")]
    assert texts == ["Ann", "Bob"]


@pytest.mark.parametrize("scope", ["conversation", lambda agent: agent.run.deps[0]])
async def test_a_tool_that_sees_its_caller_shares_no_results(scope: Any) -> None:
    async def whose(context: ToolContext) -> str:
        return str(context.deps)

    cache = CacheMiddleware(tools={"whose": 60}, when=lambda *_: False, scope=scope)
    tool, wait = FunctionTool(whose, is_read_only=True), FunctionTool(lambda: "", name="wait", ask=True)
    agent = agent_of([[call("1", "wait")], [call("2", "whose")], "done"] * 3, tool, wait, middlewares=[cache])
    for begun_by, name in (["Ann"], ["Ann"]), (["Ann"], ["Bob"]), (["Bob"], ["Bob"]):
        await agent.reply("go", deps=begun_by)
        await agent.reply(approve(agent.state), deps=name)
    results = [block.text for message in agent.state.context for block in message.get_content_blocks("tool_result")]
    assert results[1::2] == ["['Ann']", "['Bob']", "['Bob']"]


async def test_own_model_class_is_known_by_settings_if_it_says_so() -> None:
    class Warm(Echo):
        def __init__(self, temperature: float) -> None:
            super().__init__()
            self.temperature = temperature

    class Described(Warm):
        known_by_settings = True

    async def answers(*models: ChatModelBase) -> int:
        cache = CacheMiddleware()
        return len({await ask(Agent("a", model=model, middlewares=[cache])) for model in models})

    warm = Warm(0.1)
    assert await answers(warm, warm, Warm(0.9)) == 2
    assert await answers(Described(0.1), Described(0.1)) == 1


# ---- bad input

BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: CacheMiddleware(ttl=0), r"ttl=\.\.\.\) must be a number above 0, not 0"),
    (lambda: CacheMiddleware(ttl=float("inf")), r"ttl=\.\.\.\) must be finite"),
    (lambda: CacheMiddleware(ttl=10**400), r"ttl=\.\.\.\) must be finite, not 1000.*: give a smaller number"),
    (lambda: CacheMiddleware(MemoryCacheStore(), max_entries=5), r"max_entries=5\) .*: give it to the store, as in"),
    (lambda: CacheMiddleware(ttl=float("nan")), r"ttl=\.\.\.\) must be a number"),
    (lambda: CacheMiddleware(ttl="1h"), r"ttl=\.\.\.\) must be a number above 0, not '1h'"),  # type: ignore[arg-type]
    (lambda: CacheMiddleware(ttl=True), r"ttl=\.\.\.\) must be a number"),
    (lambda: CacheMiddleware(max_entries=0), r"max_entries=\.\.\.\) must be a whole number above 0"),
    (lambda: CacheMiddleware(max_entries=1.5), "must be a whole number"),  # type: ignore[arg-type]
    (lambda: CacheMiddleware(flight_wait=-1), r"flight_wait=\.\.\.\) must be a number of at least 0"),
    (
        lambda: CacheMiddleware(scope="globl"),
        'must be "global" or "conversation", not \'globl\': did you mean "global"',
    ),  # type: ignore[arg-type]
    (lambda: CacheMiddleware(scope=None), 'must be "global" or "conversation", not None'),  # type: ignore[arg-type]
    (lambda: CacheMiddleware(on_store_error="opne"), 'did you mean "open"'),  # type: ignore[arg-type]
    (lambda: CacheMiddleware("redis://h:secret@x"), "must be a SQLiteCacheStore or a RedisCacheStore"),  # type: ignore[arg-type]
    (lambda: CacheMiddleware(SQLiteCacheStore), "not the class SQLiteCacheStore: make an instance"),  # type: ignore[arg-type]
    (lambda: CacheMiddleware(when="always"), r"when=\.\.\.\) has 'always', which is not callable: write a function"),  # type: ignore[arg-type]
    (lambda: CacheMiddleware(when=ask), r"when=\.\.\.\) must be a plain function, .*: write `def`"),  # type: ignore[arg-type]
    (lambda: CacheMiddleware(when=lambda: True), r"must be a function \(agent, values\)"),  # type: ignore[arg-type,misc]
    (lambda: CacheMiddleware(scope=lambda: "ann"), r"scope=\.\.\.\) has .*must be a function \(agent\)"),  # type: ignore[arg-type,misc]
    (lambda: CacheMiddleware(clock=5), r"clock=\.\.\.\) has 5, which is not callable"),  # type: ignore[arg-type]
    (lambda: SQLiteCacheStore("."), "is '.', a folder: give the path of a file in it"),
    (lambda: CacheMiddleware(tools=["search"]), r"must be a dict of names and seconds.*write tools={'search': 600}"),  # type: ignore[arg-type]
    (lambda: CacheMiddleware(tools={"search": 0}), "for 'search' must be a number above 0, not 0"),
    (lambda: CacheMiddleware(tools={1: 2}), "has 1: give the name of a tool"),  # type: ignore[dict-item]
    (lambda: SQLiteCacheStore(":memory:"), "must be the path of a file.*without a store"),
    (lambda: SQLiteCacheStore(""), "must be the path of a file"),
    (lambda: SQLiteCacheStore(7), "must be the path of a file"),  # type: ignore[arg-type]
    (lambda: SQLiteCacheStore("no/such/folder/cache.db"), "folder 'no/such/folder' does not exist: make it first"),
    (lambda: SQLiteCacheStore("cache.db", max_entries=0), "must be a whole number above 0"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_a_wrong_option_is_refused_with_its_remedy(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as refused:
        make()
    assert type(refused.value).__name__ == "MiddlewareConfigError"
    assert "secret" not in str(refused.value)


OPTIONS: dict[str, Callable[[], MiddlewareBase]] = {
    "conversation": lambda: CacheMiddleware(scope="conversation", max_entries=4),
    "function, when": lambda: CacheMiddleware(
        scope=lambda agent: agent.name, when=lambda agent, values: len(values["messages"]) < 3, max_entries=4
    ),
    "impatient": lambda: CacheMiddleware(flight_wait=0, ttl=0.001, max_entries=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", OPTIONS.values(), ids=OPTIONS)
async def test_every_option_keeps_the_contract(make: Callable[[], MiddlewareBase]) -> None:
    await check_middleware(make, faults=["cancel"], every=3)
