"""`agent.waiting()`: the question of a parked reply, made again from the state alone."""

from typing import Any

import pytest

from agentrt import Agent, AgentState, MiddlewareBase
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt.agent import ReActConfig
from agentrt.errors import ResumeError
from agentrt.event import (
    AgentEvent,
    ConfirmResult,
    CustomEvent,
    ExternalExecutionResultEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    TextBlockDeltaEvent,
    UserConfirmResultEvent,
    UserInterruptEvent,
)
from agentrt.message import Msg, TextBlock, ToolResultBlock
from agentrt.state import FileStateStore, InMemoryStateStore
from tests.loop.helpers import Passing, agent_of, call, confirmation_of, elsewhere, items_of
from tests.loop.parked import Log, PathTool, results_of

Question = RequireUserConfirmEvent | RequireExternalExecutionEvent


class Talking(MiddlewareBase):
    """Says something before each question, holds text back until then, and so changes the numbers."""

    async def on_reply(self, agent, input_kwargs, next_handler):
        held = []
        async for item in next_handler():
            if isinstance(item, TextBlockDeltaEvent):
                held.append(item)
                continue
            if isinstance(item, Question):
                for event in held:
                    yield event
                held = []
                yield CustomEvent("question")
            yield item


def agent_that_asks(*calls: Any, **options: Any) -> Agent:
    log: Log = []
    tools = [PathTool("write", log, ask=True), PathTool("send", log, is_external_tool=True)]
    return agent_of([[TextBlock("Well. "), *calls], "done"], *tools, **options)


def questions_in(items: list[Any]) -> list[Any]:
    return [item for item in items if isinstance(item, Question)]


def results_for(question: RequireExternalExecutionEvent) -> ExternalExecutionResultEvent:
    results = [ToolResultBlock(asked.id, asked.name, "done outside") for asked in question.tool_calls]
    return ExternalExecutionResultEvent(question.reply_id, results)


WRITE, WRITE_TOO, SEND = call("1", "write", path="/a"), call("2", "write", path="/b"), call("3", "send", path="/c")


@pytest.mark.parametrize("layers", [[], [Passing()], [Talking()]])
@pytest.mark.parametrize("calls", [[WRITE], [SEND], [WRITE, WRITE_TOO]])
async def test_waiting_is_the_event_that_was_sent(calls: Any, layers: Any) -> None:
    agent = agent_that_asks(*calls, middlewares=layers)
    assert agent.waiting() is None
    (sent,) = questions_in(await items_of(agent))
    assert agent.waiting() == sent  # with its number and its time
    assert elsewhere(agent).waiting() == sent
    assert AgentEvent.from_json(agent.waiting().to_json()) == sent


@pytest.mark.parametrize("layers", [[], [Talking()]])
async def test_saved_state_knows_the_event_that_was_sent(layers: Any, tmp_path: Any) -> None:
    agent = agent_that_asks(WRITE, middlewares=layers, state_store=FileStateStore(tmp_path))
    (sent,) = questions_in(await items_of(agent))
    state = await FileStateStore(tmp_path).load(agent.state.session_id)
    assert state is not None
    assert agent.with_state(state).waiting() == sent


async def test_waiting_does_not_share_what_it_returns_with_the_state() -> None:
    agent = agent_that_asks(WRITE)
    await agent.reply("go")
    agent.waiting().tool_calls[0].input = "changed"
    agent.waiting().tool_calls.clear()
    assert agent.waiting().tool_calls[0].input == WRITE.input


async def test_answer_to_what_waits_resumes_in_another_process() -> None:
    agent = agent_that_asks(WRITE)
    await agent.reply("go")
    later = elsewhere(agent)
    assert (await later.reply(confirmation_of(later))).get_text_content() == "done"
    assert results_of(later)["1"].state == "success"
    assert later.waiting() is None


async def test_partial_answer_leaves_the_rest_of_the_question() -> None:
    agent = agent_that_asks(WRITE, WRITE_TOO)
    (sent,) = questions_in(await items_of(agent))
    assert questions_in(await items_of(agent, confirmation_of(agent, "1"))) == []
    rest = elsewhere(agent).waiting()
    assert [asked.id for asked in rest.tool_calls] == list(rest.questions) == ["2"]
    assert (rest.seq, rest.created_at) == (sent.seq, sent.created_at)
    assert (await agent.reply(confirmation_of(agent))).get_text_content() == "done"


async def test_of_two_questions_that_for_the_user_comes_first() -> None:
    agent = agent_that_asks(WRITE, SEND)
    for_program, for_user = questions_in(await items_of(agent))
    assert agent.waiting() == for_user
    await agent.reply(confirmation_of(agent))
    assert elsewhere(agent).waiting() == for_program
    assert (await agent.reply(results_for(for_program))).get_text_content() == "done"
    assert agent.waiting() is None


async def test_allowed_call_of_a_program_outside_is_asked_about_anew() -> None:
    agent = agent_of([[SEND], "done"], PathTool("send", [], ask=True, is_external_tool=True))
    (first,) = questions_in(await items_of(agent))
    assert agent.waiting() == first
    (second,) = questions_in(await items_of(agent, confirmation_of(agent)))
    assert isinstance(second, RequireExternalExecutionEvent)
    assert elsewhere(agent).waiting() == second


async def test_expired_question_waits_and_can_be_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_that_asks(WRITE, react_config=ReActConfig(answer_within=60.0))
    (sent,) = questions_in(await items_of(agent))
    monkeypatch.setattr(ReplyRun, "now", staticmethod(lambda: sent.created_at + 61_000_000_000))
    question = agent.waiting()
    assert question == sent
    with pytest.raises(ResumeError, match="too long to allow it"):
        await agent.reply(confirmation_of(agent))
    assert agent.waiting() == question
    denial = confirmation_of(agent, confirmed=False)
    assert (await agent.reply(denial)).get_text_content() == "done"


async def test_refused_answer_leaves_the_question() -> None:
    agent = agent_that_asks(WRITE)
    await agent.reply("go")
    question = agent.waiting()
    with pytest.raises(ResumeError):
        await agent.reply(UserConfirmResultEvent("another", [ConfirmResult(True, question.tool_calls[0])]))
    assert agent.waiting() == question


@pytest.mark.parametrize(
    ("calls", "answers"),
    [
        ([WRITE], "a UserConfirmResultEvent"),
        ([SEND], "an ExternalExecutionResultEvent"),
        ([WRITE, SEND], "a UserConfirmResultEvent and an ExternalExecutionResultEvent"),
    ],
)
async def test_message_while_it_waits_is_told_which_answer_is_due(calls: Any, answers: str) -> None:
    agent = agent_that_asks(*calls)
    await agent.reply("go")
    with pytest.raises(ResumeError) as caught:
        await agent.reply("hello?")
    assert f": send {answers} first (agent.waiting() is the question), or UserInterruptEvent(" in str(caught.value)


async def test_nothing_waits_while_a_reply_runs_or_after_its_end() -> None:
    agent = agent_that_asks(WRITE)
    async with agent.reply_stream("go") as stream:
        async for event in stream:
            assert agent.waiting() == (event if isinstance(event, Question) else None)
    async with agent.reply_stream(confirmation_of(agent)) as stream:
        async for _ in stream:
            assert agent.waiting() is None


@pytest.mark.parametrize("way", ["event", "interrupt"])
async def test_interrupt_leaves_nothing_that_waits(way: str) -> None:
    agent = agent_that_asks(WRITE)
    await agent.reply("go")
    if way == "event":
        await agent.reply(UserInterruptEvent(agent.waiting().reply_id))
    else:
        agent.interrupt()
    assert agent.waiting() is None


@pytest.mark.parametrize("layered", [False, True])
async def test_interrupt_while_the_questions_message_is_read_is_saved(layered: bool) -> None:
    store = InMemoryStateStore()
    tool = PathTool("write", [], ask=True)
    agent = agent_of([[WRITE]], tool, state_store=store, middlewares=[Passing()] * layered)
    async with agent.reply_stream("go", yield_final_msg=True) as stream:
        async for item in stream:
            if isinstance(item, Msg):
                assert agent.interrupt()
    assert agent.waiting() is None
    assert await store.load(agent.state.session_id) == agent.state


async def test_state_of_an_older_version_has_its_question_unnumbered() -> None:
    agent = agent_that_asks(WRITE)
    (sent,) = questions_in(await items_of(agent))
    text = agent.state.model_dump_json().replace(f',"asked_seq":{sent.seq}', "")
    assert "asked_seq" not in text
    question = agent.with_state(AgentState.model_validate_json(text)).waiting()
    assert (question.tool_calls, question.questions, question.seq) == (sent.tool_calls, sent.questions, 0)


async def test_question_is_the_askers_own_and_the_state_another() -> None:
    agent = agent_that_asks(WRITE)
    (sent,) = questions_in(await items_of(agent))
    saved = agent.state.model_dump_json()
    for question in (sent, agent.waiting()):
        question.tool_calls[0].input = "changed"
        for asked in question.questions.values():
            assert asked.suggested_rules
            asked.suggested_rules.clear()
        question.questions.clear()
    assert agent.state.model_dump_json() == saved
