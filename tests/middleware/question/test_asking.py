"""`Question`: asked from each hook, answered here or in another process, in each permission mode."""

import pickle
from datetime import date
from typing import Any, Literal

import pytest

from agentrt import Agent, MiddlewareBase
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt.agent import ReActConfig
from agentrt.errors import MiddlewareConfigError, ResumeError, UsageError
from agentrt.event import UserInterruptEvent
from agentrt.middleware import Answer, Question
from agentrt.permission import PermissionContext, PermissionMode, PermissionRule
from agentrt.state import InMemoryStateStore
from agentrt.types import PermissionBehavior, PermissionDecision, ToolResponse
from tests.loop.helpers import call, elsewhere
from tests.middleware.question.layers import (
    ADD,
    HOOKS,
    TEXT,
    Asking,
    answer_to,
    asking_agent,
    assert_no_model_saw,
    hear,
    hidden_in,
    question_of,
)

ASKED_IN = [PermissionMode.DEFAULT, PermissionMode.ACCEPT_EDITS, PermissionMode.EXPLORE, PermissionMode.BYPASS]
from_each_hook = pytest.mark.parametrize("hook", HOOKS)
streamed_or_not = pytest.mark.parametrize("streamed", [False, True])


@from_each_hook
@streamed_or_not
async def test_question_is_answered_in_another_process(hook: str, streamed: bool) -> None:
    layer = Asking(hook)
    agent = asking_agent(layer)
    await hear(agent, "go", streamed)
    later = elsewhere(agent)
    question = question_of(later)
    (asked,) = question.tool_calls
    assert (asked.name, asked.input) == ("raise_budget", '{"tokens":120}')
    assert question.questions[asked.id].message == TEXT
    items = await hear(later, answer_to(later, True, feedback="be quick"), streamed)
    assert items[-1].get_text_content() == "done"
    assert layer.answers == [Answer(True, {"tokens": 120}, "be quick")]
    assert_no_model_saw(later, "be quick")


@pytest.mark.parametrize("hook", HOOKS[:2])
async def test_conversation_has_the_question_and_no_later_request_does(hook: str) -> None:
    agent = asking_agent(Asking(hook), responses=[[ADD], "done", "again", "and again"])
    for _ in range(2):
        await agent.reply("go")
        await agent.reply(answer_to(agent, True))
    assert len(hidden_in(agent.state.context)) == 4  # a call and a result of each reply
    assert_no_model_saw(agent)
    assert_no_model_saw(elsewhere(agent))


@from_each_hook
@streamed_or_not
async def test_no_reaches_the_layer_with_its_reason(hook: str, streamed: bool) -> None:
    layer = Asking(hook)
    agent = asking_agent(layer)
    await hear(agent, "go", streamed)
    agent = elsewhere(agent)
    items = await hear(agent, answer_to(agent, False, feedback="too dear"), streamed)
    assert items[-1].get_text_content() == "done"
    assert layer.answers == [Answer(False, {"tokens": 120}, "too dear")]
    assert_no_model_saw(agent)


@from_each_hook
async def test_user_may_change_the_values(hook: str) -> None:
    layer = Asking(hook)
    agent = asking_agent(layer)
    await agent.reply("go")
    agent = elsewhere(agent)
    await agent.reply(answer_to(agent, True, '{"tokens": 500}'))
    assert layer.answers == [Answer(True, {"tokens": 500})]


@from_each_hook
@pytest.mark.parametrize(
    "wrong", ['{"tokens": "many"}', '{"tokens": null}', "{}", '{"tokens": 1, "more": 2}', "[", "1"]
)
async def test_values_that_do_not_fit_are_refused(hook: str, wrong: str) -> None:
    layer = Asking(hook)
    agent = asking_agent(layer)
    await agent.reply("go")
    before = agent.state.model_dump_json()
    with pytest.raises(ResumeError, match="the edited input cannot be used") as caught:
        await agent.reply(answer_to(agent, True, wrong))
    assert caught.value.code == "invalid"
    assert agent.state.model_dump_json() == before
    await agent.reply(answer_to(agent, True))
    assert layer.answers == [Answer(True, {"tokens": 120})]


@from_each_hook
async def test_late_yes_is_refused_and_a_late_no_is_taken(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Asking(hook)
    agent = asking_agent(layer, react_config=ReActConfig(answer_within=60))
    await agent.reply("go")
    asked_at = question_of(agent).created_at
    monkeypatch.setattr(ReplyRun, "now", staticmethod(lambda: asked_at + 61 * 10**9))
    with pytest.raises(ResumeError) as caught:
        await agent.reply(answer_to(agent, True))
    assert caught.value.code == "expired"
    await agent.reply(answer_to(agent, False))
    assert [answer.confirmed for answer in layer.answers] == [False]


@from_each_hook
async def test_answer_given_twice_counts_once(hook: str) -> None:
    layer = Asking(hook)
    agent = asking_agent(layer)
    await agent.reply("go")
    yes, no, other = answer_to(agent, True), answer_to(agent, False), answer_to(agent, True, '{"tokens": 9}')
    first = await agent.reply(yes)
    assert await agent.reply(yes) == first
    for contradiction in (no, other):
        with pytest.raises(ResumeError) as caught:
            await agent.reply(contradiction)
        assert caught.value.code == "conflict"
    assert len(layer.answers) == 1


@from_each_hook
@pytest.mark.parametrize("mode", ASKED_IN)
async def test_question_is_asked_in_every_mode_but_one(hook: str, mode: PermissionMode) -> None:
    layer = Asking(hook)
    agent = asking_agent(layer)
    agent.state.permission_context = PermissionContext(mode, [PermissionRule("*", behavior=PermissionBehavior.ALLOW)])
    agent.toolkit.get("add").is_read_only = True  # so that EXPLORE lets it run
    await agent.reply("go")
    assert question_of(agent).questions
    await agent.reply(answer_to(agent, True))
    assert layer.answers == [Answer(True, {"tokens": 120})]


@from_each_hook
@streamed_or_not
async def test_question_is_a_no_where_nobody_can_be_asked(hook: str, streamed: bool) -> None:
    layer = Asking(hook)
    agent = asking_agent(layer)
    agent.state.permission_context.mode = PermissionMode.DONT_ASK
    items = await hear(agent, "go", streamed)
    assert items[-1].get_text_content() == "done"
    assert layer.answers == [Answer(False, {"tokens": 120}, f"nobody can be asked ({TEXT})")]
    assert_no_model_saw(agent)


@from_each_hook
async def test_deny_rule_for_the_name_is_a_no(hook: str) -> None:
    layer = Asking(hook)
    agent = asking_agent(layer)
    agent.state.permission_context.rules.append(PermissionRule("raise_*", behavior=PermissionBehavior.DENY))
    assert (await agent.reply("go")).get_text_content() == "done"
    assert [answer.confirmed for answer in layer.answers] == [False]


class AskingAlways(Asking):
    """Asks in each round, whatever the answers were."""

    def must_ask(self, agent):
        super().must_ask(agent)
        return True

    async def on_acting(self, agent, input_kwargs, next_handler):
        self.answers += [answer] if (answer := self.ask.answer(agent, input_kwargs["tool_call"])) else []
        yield _waits(self.ask, agent)


def _waits(ask: Question, agent: Any) -> ToolResponse:
    return ToolResponse(waits=[ask.open(agent, TEXT, tokens=120)])


@from_each_hook
@pytest.mark.parametrize("mode", [PermissionMode.DEFAULT, PermissionMode.DONT_ASK])
async def test_no_is_not_asked_again_in_that_reply(hook: str, mode: PermissionMode) -> None:
    layer = AskingAlways(hook)
    agent = asking_agent(layer, responses=[[ADD], *["done"] * 9], react_config=ReActConfig(max_iters=3))
    agent.state.permission_context.mode = mode
    await agent.reply("go")
    if mode is PermissionMode.DEFAULT:
        await agent.reply(answer_to(agent, False, feedback="stop it"))
    assert agent.waiting() is None
    assert layer.answers
    assert not any(answer.confirmed for answer in layer.answers)


@pytest.mark.parametrize("hook", HOOKS[:2])
async def test_answered_questions_use_up_no_rounds(hook: str) -> None:
    class AskingThreeTimes(Asking):
        def must_ask(self, agent):
            super().must_ask(agent)
            return len(self.answers) < 3

    agent = asking_agent(AskingThreeTimes(hook), responses=["done"], react_config=ReActConfig(max_iters=1))
    await agent.reply("go")
    for _ in range(3):
        last = await agent.reply(answer_to(agent, True))
    assert (last.get_text_content(), last.finished_reason) == ("done", "completed")


@from_each_hook
async def test_another_layer_may_answer_what_is_asked_in_a_round(hook: str) -> None:
    class Agreeing(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            decision = await next_handler()
            if input_kwargs["tool"].name != "raise_budget":
                return decision
            assert (decision.behavior, decision.message) == (PermissionBehavior.ASK, TEXT)
            return PermissionDecision(PermissionBehavior.ALLOW)

    layer = Asking(hook)
    agent = asking_agent(Agreeing(), layer)
    await agent.reply("go")
    if hook == "on_acting":  # which asks about a call that has begun, as a tool would
        await agent.reply(answer_to(agent, True))
    assert layer.answers == [Answer(True, {"tokens": 120})]


@pytest.mark.parametrize("hook", HOOKS[:2])
async def test_reply_that_was_left_before_it_asked_asks_later(hook: str) -> None:
    class Leaving(InMemoryStateStore):
        """Keeps what is saved before any call runs, and nothing after it."""

        async def save(self, state):
            if self.kept is None and hidden_in([state.reply_context.message] if state.reply_context else []):
                self.kept = state.model_dump_json()
            await super().save(state)

        kept: str | None = None

    layer, store = Asking(hook), Leaving()
    agent = asking_agent(layer, state_store=store)
    await agent.reply("go")
    assert store.kept is not None
    left = asking_agent(layer, state=type(agent.state).model_validate_json(store.kept))
    assert left.waiting() is None
    await left.reply(None)
    assert next(iter(question_of(left).questions.values())).message == TEXT
    await left.reply(answer_to(left, True))
    assert layer.answers == [Answer(True, {"tokens": 120})]


@from_each_hook
async def test_reply_is_ended_without_an_answer(hook: str) -> None:
    layer = Asking(hook)
    agent = asking_agent(layer, responses=[[ADD], [ADD]])
    await agent.reply("go")
    msg = await agent.reply(UserInterruptEvent(question_of(agent).reply_id))
    assert msg.finished_reason == "interrupted"
    assert layer.answers == []
    await agent.reply("go")
    assert question_of(agent)


async def asked_in_turn(first: Asking, second: Asking) -> Agent:
    """Let two layers ask, and answer both, each time in another process; returns the last one's agent."""
    agent = asking_agent(first, second)
    await agent.reply("go")
    for name in ("first", "second"):
        (asked,) = question_of(agent).tool_calls
        assert asked.name == name
        agent = elsewhere(agent)
        await agent.reply(answer_to(agent, True))
    return agent


async def test_two_layers_ask_one_after_the_other() -> None:
    first, second = Asking("on_reasoning", "first", "First?"), Asking("on_model_call", "second", "Second?")
    agent = await asked_in_turn(first, second)
    assert len(first.answers) == len(second.answers) == 1
    assert_no_model_saw(agent, "First?", "Second?")


async def test_two_layers_ask_about_one_call() -> None:
    first, second = Asking("on_acting", "first", "First?"), Asking("on_acting", "second", "Second?")
    agent = await asked_in_turn(first, second)
    assert agent.state.context[-1].get_text_content() == "done"
    assert second.answers == [Answer(True, {"tokens": 120})]


@streamed_or_not
async def test_calls_side_by_side_have_answers_of_their_own(streamed: bool) -> None:
    layer = Asking("on_acting")
    calls = [call("1", "add", a=1, b=1), call("2", "add", a=2, b=2)]
    agent = asking_agent(layer, responses=[calls, "done"])
    await hear(agent, "go", streamed)
    answer = answer_to(agent, True, '{"tokens": 1}')
    answer.confirm_results[1].tool_call.input = '{"tokens": 2}'
    await hear(agent, answer, streamed)
    assert sorted(said.input["tokens"] for said in layer.answers) == [1, 2]


async def test_answer_that_could_be_of_several_calls_needs_the_call() -> None:
    class Guessing(Asking):
        async def on_acting(self, agent, input_kwargs, next_handler):
            if self.ask.answer(agent) is None:
                yield _waits(self.ask, agent)
            else:
                async for item in next_handler():
                    yield item

    calls = [call("1", "add", a=1, b=1), call("2", "add", a=2, b=2)]
    agent = asking_agent(Guessing("on_acting"), responses=[calls[:1], calls, "done"])
    await agent.reply("go")
    await agent.reply(answer_to(agent, True))  # there is one call, so that is clear
    with pytest.raises(UsageError, match="say which one is meant"):
        await agent.reply(answer_to(agent, True))


@pytest.mark.parametrize("fields", [{"tokens": 120}, {"tokens": "int x"}, {"a b": int}])
def test_fields_must_be_types(fields: dict[str, Any]) -> None:
    with pytest.raises(MiddlewareConfigError, match=r"Question\('ask'\) cannot be asked"):
        Question("ask", **fields)


@pytest.mark.parametrize("name", ["", "two words", None, 3, "x" * 65])
def test_name_must_be_that_of_a_tool(name: Any) -> None:
    with pytest.raises(MiddlewareConfigError, match="cannot be"):
        Question(name, tokens=int)


@pytest.mark.parametrize(
    ("text", "values", "problem"),
    [
        ("", {"tokens": 1}, "needs words"),
        (None, {"tokens": 1}, "needs words"),
        (TEXT, {}, "tokens"),
        (TEXT, {"tokens": "many"}, "tokens"),
        (TEXT, {"tokens": 1, "more": 2}, "more"),
        (TEXT, {"tokens": float("nan")}, "cannot be asked"),
        (TEXT, {"tokens": object()}, "cannot be asked"),
    ],
)
async def test_what_cannot_be_asked_is_an_error_of_the_layer(text: Any, values: dict[str, Any], problem: str) -> None:
    class Wrong(Asking):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            yield self.ask.message(agent, text, **values)

    with pytest.raises(UsageError, match=problem):
        await asking_agent(Wrong("")).reply("go")


async def test_question_that_is_not_listed_says_so() -> None:
    class Forgetful(Asking):
        def list_tools(self):
            return []

    with pytest.raises(UsageError, match="return it from list_tools"):
        await asking_agent(Forgetful("on_reasoning")).reply("go")


async def test_question_is_refused_where_no_round_is() -> None:
    class Early(Asking):
        async def on_reply(self, agent, input_kwargs, next_handler):
            self.ask.message(agent, TEXT, tokens=1)
            async for item in next_handler():
                yield item

    with pytest.raises(UsageError, match="call it in on_reasoning or on_model_call"):
        await asking_agent(Early("")).reply("go")


async def test_values_have_the_types_of_the_fields() -> None:
    class Typed(Asking):
        def __init__(self):
            super().__init__("on_reasoning")
            self.ask = Question("when", day=date, account=Literal["private", "work"], tags=list[str])

        async def on_reasoning(self, agent, input_kwargs, next_handler):
            answer = self.ask.answer(agent)
            if answer is None:
                yield self.ask.message(agent, "When?", day=date(2030, 1, 2), account="work", tags=["a"])
                return
            self.answers.append(answer)
            async for item in next_handler():
                yield item

    layer = Typed()
    agent = asking_agent(layer, responses=["done"])
    await agent.reply("go")
    wrong = '{"day":"2031-01-02","account":"other","tags":[]}'
    with pytest.raises(ResumeError):
        await agent.reply(answer_to(agent, True, wrong))
    await agent.reply(answer_to(agent, True, wrong.replace("other", "private")))
    assert layer.answers == [Answer(True, {"day": date(2031, 1, 2), "account": "private", "tags": []})]


def test_question_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Question("ask", tokens=int))).fields == {"tokens": int}
