"""Layers that shorten requests: calls keep their results, the conversation stays, and the beginning moves in steps."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt import Agent, AgentState, Msg
from agentrt.errors import MiddlewareConfigError
from agentrt.message import AssistantMsg, HintBlock, SystemMsg, TextBlock, ToolCallBlock, ToolResultBlock, UserMsg
from agentrt.middleware import CompressionMiddleware, KeepLastMiddleware, MiddlewareBase, TrimToolResultsMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.testing import InMemoryStateStore, check_middleware
from agentrt_middleware.context.requests import REMOVED
from tests.loop.helpers import elsewhere


def exchange(number: int, size: int = 400) -> list[Msg]:
    call_id = f"call-{number}"
    answer = [
        ToolCallBlock(call_id, "look", "{}"),
        ToolResultBlock(call_id, "look", str(number % 10) * size),
        TextBlock(f"answer {number}"),
    ]
    return [UserMsg(f"question {number}"), AssistantMsg("a", answer)]


def agent_of(layer: MiddlewareBase, exchanges: int, answers: int = 1, **options: Any) -> Agent:
    context = [message for number in range(exchanges) for message in exchange(number)]
    model = ScriptedChatModel(["done"] * answers)
    return Agent("a", "prompt", model, middlewares=[layer], state=AgentState(context=context), **options)


def sent(agent: Agent) -> list[Msg]:
    assert isinstance(agent.model, ScriptedChatModel)
    return agent.model.calls[-1].messages


def check_pairs(messages: list[Msg]) -> None:
    blocks = [block for message in messages for block in message.get_content_blocks(["tool_call", "tool_result"])]
    calls = {block.id for block in blocks if isinstance(block, ToolCallBlock)}
    assert calls == {block.id for block in blocks if isinstance(block, ToolResultBlock)}


# ---- KeepLastMiddleware


async def test_only_the_last_messages_are_sent() -> None:
    agent = agent_of(KeepLastMiddleware(8), 20)
    await agent.reply("now")
    messages = sent(agent)
    assert messages[0].role == "system"
    assert messages[1].role == "user"
    assert messages[-1].get_text_content() == "now"
    assert 5 <= len(messages) - 1 <= 8
    check_pairs(messages)
    assert len(agent.state.context) == 42


async def test_the_beginning_of_requests_moves_in_steps() -> None:
    agent = agent_of(KeepLastMiddleware(16), 20, answers=12)
    firsts = []
    for number in range(12):
        await agent.reply(f"now {number}")
        firsts.append(sent(agent)[1].get_text_content())
    assert len(set(firsts)) <= 7


async def test_a_short_conversation_is_sent_as_it_is() -> None:
    agent = agent_of(KeepLastMiddleware(8), 3)
    await agent.reply("now")
    assert len(sent(agent)) == 8


async def test_what_layers_add_to_a_question_stays_with_it() -> None:
    class Recall(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            *before, question = input_kwargs["messages"]
            hints = [UserMsg("runtime", [HintBlock(text)]) for text in ("a memory", "a passage", "the plan")]
            return await next_handler(messages=[*before, *hints[:2], question, hints[2]])

    agent = agent_of(KeepLastMiddleware(1), 20).with_middlewares([Recall(), KeepLastMiddleware(1)])
    await agent.reply("now")
    assert [message.has_content_blocks("hint") for message in sent(agent)] == [False, True, True, False, True]
    assert sent(agent)[3].get_text_content() == "now"


async def test_a_summary_is_sent_in_any_case() -> None:
    agent = agent_of(KeepLastMiddleware(4), 9)
    agent.state.summary = "They met."
    await agent.reply("now")
    assert isinstance(sent(agent)[1].content[0], HintBlock)
    assert len(sent(agent)) <= 6


roles = st.lists(st.sampled_from(["question", "call", "result", "answer"]), max_size=30)


@given(roles, st.integers(1, 8))
def test_no_result_is_sent_without_its_call(kinds: list[str], limit: int) -> None:
    messages: list[Msg] = [SystemMsg("prompt")]
    open_calls: list[str] = []
    for number, kind in enumerate(kinds):
        if kind == "question":
            messages.append(UserMsg(f"q{number}"))
        elif kind == "call":
            open_calls.append(str(number))
            messages.append(AssistantMsg("a", [ToolCallBlock(str(number), "f")]))
        elif kind == "result" and open_calls:
            messages.append(UserMsg([ToolResultBlock(open_calls.pop(0), "f", "x")]))
        else:
            messages.append(AssistantMsg("a", "text"))
    layer = KeepLastMiddleware(limit)
    surplus = len(messages) - 1 - limit
    kept = layer._newest(messages, 1, surplus) if surplus > 0 else messages
    before = {block.id for message in messages for block in message.get_content_blocks("tool_call")}
    calls = {block.id for message in kept for block in message.get_content_blocks("tool_call")}
    for message in kept:
        for block in message.get_content_blocks("tool_result"):
            assert block.id in calls or block.id not in before
    assert kept[0] is messages[0]
    assert not messages[1:] or kept[-1] is messages[-1]


# ---- TrimToolResultsMiddleware


def removed_in(messages: list[Msg]) -> list[bool]:
    return [block.text == REMOVED for message in messages for block in message.get_content_blocks("tool_result")]


async def test_the_oldest_results_are_left_out_of_a_long_request() -> None:
    agent = agent_of(TrimToolResultsMiddleware(700, keep_last=2), 10)  # of about 1,000 tokens
    await agent.reply("now")
    removed = removed_in(sent(agent))
    assert removed == sorted(removed, reverse=True)
    assert 4 <= sum(removed) <= 8
    check_pairs(sent(agent))
    assert not any(removed_in(agent.state.context))


async def test_the_last_results_stay_however_long_they_are() -> None:
    agent = agent_of(TrimToolResultsMiddleware(10, keep_last=3), 5)
    await agent.reply("now")
    assert removed_in(sent(agent)) == [True, True, False, False, False]


async def test_what_is_left_out_stays_out_until_the_next_step() -> None:
    agent = agent_of(TrimToolResultsMiddleware(700, keep_last=1, step=0.5), 10, answers=6)
    counts = []
    for number in range(6):
        await agent.reply(f"now {number}")
        counts.append(sum(removed_in(sent(agent))))
        agent.state.context += exchange(100 + number)
        agent = elsewhere(agent)
    assert counts == sorted(counts)
    assert 2 <= len(set(counts)) < 6


async def test_results_stay_out_where_calls_of_all_replies_have_one_id() -> None:
    async def look(number: int) -> str:
        return str(number) * 400

    script: list[Any] = []
    for number in range(6):
        script += [[ToolCallBlock("call_0", "look", f'{{"number": {number}}}')], "done"]
    layers = [TrimToolResultsMiddleware(300, keep_last=1, step=0.5)]
    agent = Agent("a", model=ScriptedChatModel(script), tools=[look], middlewares=layers)
    counts = []
    for _ in range(6):
        await agent.reply("go")
        counts.append(sum(removed_in(sent(agent))))
    assert counts == [0, 0, 2, 2, 4, 5]


async def test_a_short_request_is_sent_as_it_is() -> None:
    agent = agent_of(TrimToolResultsMiddleware(), 10)
    await agent.reply("now")
    assert not any(removed_in(sent(agent)))


# ---- CompressionMiddleware


@pytest.mark.parametrize("how", ["trim", "window"])
async def test_a_conversation_is_shortened_without_a_model(how: Any) -> None:
    store = InMemoryStateStore()
    agent = agent_of(CompressionMiddleware(how), 10, answers=0, state_store=store)
    agent.model.context_size = 1_400
    await agent.compress_context()
    context = agent.state.context
    check_pairs(context)
    assert context[-1].get_text_content() == "answer 9"
    if how == "window":
        assert 2 <= len(context) <= 6
    else:
        assert len(context) == 20
        removed = removed_in(context)
        assert removed[0]
        assert not removed[-1]
    loaded = await store.load(agent.state.session_id)
    assert loaded is not None


async def test_another_model_writes_the_summary() -> None:
    writer = ScriptedChatModel(["They spoke of nines."], model="writer")
    agent = agent_of(CompressionMiddleware(model=writer), 10)
    agent.model.context_size = 1_400
    await agent.compress_context()
    assert agent.state.summary == "They spoke of nines."
    await agent.reply("now")
    assert len(writer.calls) == 1


class JudgesSummaries(MiddlewareBase):
    def __init__(self, model: ScriptedChatModel) -> None:
        self.model = model

    async def on_model_call(self, agent: Agent, input_kwargs: Any, next_handler: Any) -> Any:
        if agent.run.purpose == "summary":
            await agent.run.ask_model(input_kwargs["messages"], purpose="judge", model=self.model)
        return await next_handler()


async def test_a_judge_of_a_summary_keeps_its_own_model() -> None:
    judge, writer = ScriptedChatModel(["fine"], model="judge"), ScriptedChatModel(["short"], model="writer")
    context = [message for number in range(10) for message in exchange(number)]
    layers = [CompressionMiddleware(model=writer), JudgesSummaries(judge)]
    agent = Agent("a", model=ScriptedChatModel([]), middlewares=layers, state=AgentState(context=context))
    agent.model.context_size = 1_400
    await agent.compress_context()
    assert (len(judge.calls), len(writer.calls), agent.state.summary) == (1, 1, "short")


async def test_a_summary_follows_where_that_is_not_enough() -> None:
    long = [UserMsg("x" * 20_000), *exchange(1)]
    layer = CompressionMiddleware("trim", model=ScriptedChatModel(["short"]))
    agent = Agent("a", model=ScriptedChatModel([]), middlewares=[layer], state=AgentState(context=long))
    agent.model.context_size = 1_400
    await agent.compress_context()
    assert agent.state.summary == "short"


# ---- wrong options

BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: KeepLastMiddleware(0), r"KeepLastMiddleware\(messages=\.\.\.\) must be a whole number above 0, not 0"),
    (lambda: KeepLastMiddleware(True), "must be a whole number"),
    (lambda: TrimToolResultsMiddleware(0), r"above=\.\.\.\) must be a number above 0"),
    (lambda: TrimToolResultsMiddleware(float("inf")), "must be finite"),  # type: ignore[arg-type]
    (lambda: TrimToolResultsMiddleware(keep_last=-1), r"keep_last=\.\.\.\) must be a whole number of at least 0"),
    (lambda: TrimToolResultsMiddleware(step=1.5), "at most 1, not 1.5: write 0.25"),
    (lambda: CompressionMiddleware("sumary"), "not 'sumary': did you mean \"summary\""),  # type: ignore[arg-type]
    (lambda: CompressionMiddleware(model=7), r"model=\.\.\.\) must be a chat model, or a name"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_a_wrong_option_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(MiddlewareConfigError, match=message):
        make()


# `test_conformance.py` tries the others.
OPTIONS: dict[str, Callable[[], MiddlewareBase]] = {
    "compression trim": lambda: CompressionMiddleware("trim"),
    "compression model": lambda: CompressionMiddleware(model="rules"),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", OPTIONS.values(), ids=OPTIONS)
async def test_every_option_keeps_the_contract(make: Callable[[], MiddlewareBase]) -> None:
    await check_middleware(make, faults=["cancel"], every=3)
