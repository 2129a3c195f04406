"""A call that has begun may wait for answers to questions of its own, keep something, and resume."""

import json
from typing import Any

import pytest

from agentrt import Agent, AgentState, Toolkit
from agentrt.errors import ResumeError, SessionUnserializable
from agentrt.event import ConfirmResult, ExternalExecutionResultEvent, UserConfirmResultEvent
from agentrt.message import Msg, ToolCallBlock, ToolCallState, ToolResultBlock
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionDecision, PermissionRule
from agentrt.state import InMemoryStateStore
from agentrt.tool import OpenQuestion, ToolBase, ToolContext, ToolResponse
from agentrt.tool import context as context_module
from tests.loop.helpers import agent_of, call, confirmation_of, items_of, order_of, saved_state

pytestmark = pytest.mark.anyio


class Ask(ToolBase):
    name = "ask"
    is_resumable = True

    def __init__(self, name: str = "ask", kind: Any = "user") -> None:
        self.name, self.kind = name, kind
        self.entered: list[tuple[dict[str, Any], list[str]]] = []

    async def call(self, names: list[str], context: ToolContext) -> str | ToolResponse:
        self.entered.append((dict(context.kept), sorted(context.answers)))
        context.kept["entries"] = context.kept.get("entries", 0) + 1
        questions = [
            OpenQuestion(ToolCallBlock(name, "publish", json.dumps({"what": name})), self.kind, f"may {name} go out?")
            for name in names
            if name not in context.answers
        ]
        if questions:
            return ToolResponse(waits=questions)
        return " ".join(f"{name}={_text_of_answer(context.answers[name])}" for name in names)


def _text_of_answer(answer: ConfirmResult | ToolResultBlock) -> str:
    return answer.text if isinstance(answer, ToolResultBlock) else "yes" if answer.confirmed else "no"


def asking(*names: str, **options: Any) -> Agent:
    return agent_of([[call("1", "ask", names=names)], "Done."], Ask(), **options)


def result_of(agent: Agent) -> ToolResultBlock:
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    return result


async def test_a_call_that_has_begun_asks_and_resumes_with_the_answer() -> None:
    agent = asking("a")
    assert await order_of(agent) == (
        "RS MS CALL_START:1 CALL_DELTA:1 CALL_END:1 ME RESULT_START:1 REQUIRE_USER_CONFIRM Msg"
    )
    assert await order_of(agent, confirmation_of(agent)) == (
        "RESULT_DELTA:1 RESULT_END:1(success) MS TX_START TX_DELTA TX_END ME RE(completed) Msg"
    )
    assert result_of(agent).text == "a=yes"


async def test_the_question_has_a_path_and_says_why_it_is_asked() -> None:
    agent = asking("a")
    message = (await items_of(agent))[-1]
    event = agent.waiting()
    [block] = event.tool_calls
    assert (block.id, block.name, block.input, block.state) == ("1/a", "publish", '{"what": "a"}', "asking")
    assert event.questions["1/a"].message == "may a go out?"
    assert isinstance(message, Msg)
    assert [block.id for block in message.get_content_blocks("tool_call")] == ["1/a"]
    [outer] = agent.state.reply_context.message.get_content_blocks("tool_call")
    assert outer.state is ToolCallState.RUNNING


async def test_what_is_kept_is_there_again_and_gone_with_the_result() -> None:
    tool = Ask()
    agent = agent_of([[call("1", "ask", names=["a"])], "Done."], tool)
    await items_of(agent)
    context = agent.state.reply_context
    assert context.kept == {"1": {"entries": 1}}
    await agent.reply(confirmation_of(agent))
    assert tool.entered == [({}, []), ({"entries": 1}, ["a"])]
    assert (context.kept, context.inner) == ({}, {})


async def test_a_partial_answer_wakes_the_call_and_asks_nothing_again() -> None:
    tool = Ask()
    agent = agent_of([[call("1", "ask", names=["a", "b"])], "Done."], tool)
    await items_of(agent)
    assert await order_of(agent, confirmation_of(agent, "1/b", confirmed=False)) == "Msg"
    assert [block.id for block in agent.waiting().tool_calls] == ["1/a"]
    await agent.reply(confirmation_of(agent))
    assert result_of(agent).text == "a=yes b=no"
    assert [answers for _, answers in tool.entered] == [[], ["b"], ["a", "b"]]


async def test_only_the_call_that_was_answered_is_entered_again() -> None:
    first, second = Ask("ask"), Ask("query")
    calls = [call("1", "ask", names=["a"]), call("2", "query", names=["a"])]
    agent = agent_of([calls, "Done."], first, second)
    await items_of(agent)
    assert sorted(block.id for block in agent.waiting().tool_calls) == ["1/a", "2/a"]
    await agent.reply(confirmation_of(agent, "2/a"))
    assert (len(first.entered), len(second.entered)) == (1, 2)
    await agent.reply(confirmation_of(agent))
    assert (len(first.entered), len(second.entered)) == (2, 2)
    assert agent.state.last_reply.finished_reason == "completed"


async def test_an_external_question_takes_a_result() -> None:
    agent = agent_of([[call("1", "ask", names=["a"])], "Done."], Ask(kind="external"))
    assert (await order_of(agent)).endswith("RESULT_START:1 REQUIRE_EXTERNAL_EXECUTION Msg")
    result = ToolResultBlock("1/a", "publish", "42")
    event = ExternalExecutionResultEvent(agent.waiting().reply_id, [result])
    await agent.reply(event)
    assert result_of(agent).text == "a=42"
    await agent.reply(event)  # the same once more changes nothing
    with pytest.raises(ResumeError) as caught:
        await agent.reply(ExternalExecutionResultEvent(event.reply_id, [ToolResultBlock("1/a", "publish", "43")]))
    assert caught.value.code == "conflict"


async def test_a_parked_call_resumes_in_another_process() -> None:
    agent = asking("a", "b")
    await items_of(agent)
    for path in ("1/b", "1/a"):
        state = saved_state(agent)
        agent = agent_of(["Done."], Ask(), state=state)
        assert path in [block.id for block in agent.waiting().tool_calls]
        await agent.reply(confirmation_of(agent, path))
    assert result_of(agent).text == "a=yes b=yes"


def code_of(caught: pytest.ExceptionInfo[ResumeError]) -> str:
    return caught.value.code


async def test_forged_answers_change_nothing() -> None:
    agent = asking("a", "b")
    await items_of(agent)
    before = agent.state.model_dump_json()
    reply_id = agent.waiting().reply_id
    right = {block.id: block for block in agent.waiting().tool_calls}["1/a"]
    rule = PermissionRule("publish", behavior="allow")

    def answer_to(call_id: str = "1/a", name: str = right.name, text: str = right.input, **fields: Any) -> Any:
        return UserConfirmResultEvent(reply_id, [ConfirmResult(True, ToolCallBlock(call_id, name, text), **fields)])

    twice = answer_to().confirm_results * 2
    for answer, code in [
        (answer_to("1/z"), "unknown_call"),
        (answer_to("2/a"), "unknown_call"),
        (answer_to("1/"), "unknown_call"),
        (answer_to("1/a/a"), "unknown_call"),
        (answer_to("a"), "unknown_call"),
        (answer_to("1"), "not_waiting"),
        (answer_to(name="delete"), "mismatch"),
        (answer_to(text='{"what": "other"}'), "mismatch"),
        (answer_to(rules=[rule]), "mismatch"),
        (UserConfirmResultEvent(reply_id, twice), "conflict"),
        (
            UserConfirmResultEvent(reply_id, [*answer_to().confirm_results, *answer_to("1/z").confirm_results]),
            "unknown_call",
        ),
        (ExternalExecutionResultEvent(reply_id, [ToolResultBlock("1/a", "publish", "x")]), "not_waiting"),
        (UserConfirmResultEvent("other", answer_to().confirm_results), "mismatch"),
        ("hello", "pending"),
    ]:
        with pytest.raises(ResumeError) as caught:
            await agent.reply(answer)
        assert code_of(caught) == code, answer
        assert agent.state.model_dump_json() == before
    await agent.reply(answer_to())
    assert [block.id for block in agent.waiting().tool_calls] == ["1/b"]


async def test_an_answer_that_comes_again_may_say_nothing_new() -> None:
    agent = asking("a", "b")
    await items_of(agent)
    yes, no = confirmation_of(agent, "1/a"), confirmation_of(agent, "1/a", confirmed=False)
    await agent.reply(yes)
    last = confirmation_of(agent)
    for finish in (False, True):
        if finish:
            await agent.reply(last)
            assert agent.state.reply_context is None
        before = agent.state.model_dump_json()
        await agent.reply(yes)
        with pytest.raises(ResumeError) as caught:
            await agent.reply(no)
        assert code_of(caught) == "conflict"
        assert json.loads(agent.state.model_dump_json())["context"] == json.loads(before)["context"]


async def test_a_late_yes_has_expired_and_a_late_no_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrt.types import ReActConfig

    agent = asking("a", react_config=ReActConfig(answer_within=1))
    await items_of(agent)
    agent.state.reply_context.inner["1/a"].decision.asked_at -= 2_000_000_000
    with pytest.raises(ResumeError) as caught:
        await agent.reply(confirmation_of(agent))
    assert code_of(caught) == "expired"
    await agent.reply(confirmation_of(agent, confirmed=False))
    assert result_of(agent).text == "a=no"


async def test_a_question_that_is_not_repeated_is_closed() -> None:
    class Once(Ask):
        async def call(self, names: list[str], context: ToolContext) -> Any:
            if "a" in context.answers or "b" in context.answers:
                question = OpenQuestion(ToolCallBlock("c", "publish", "{}"))
                return "c" if "c" in context.answers else ToolResponse(waits=[question])
            return await super().call(names, context)

    agent = agent_of([[call("1", "ask", names=["a", "b"])], "Done."], Once())
    await items_of(agent)
    late = confirmation_of(agent, "1/b")
    await agent.reply(confirmation_of(agent, "1/a"))
    assert [block.id for block in agent.waiting().tool_calls] == ["1/c"]
    with pytest.raises(ResumeError) as caught:
        await agent.reply(late)
    assert code_of(caught) == "not_waiting"


class AskAnother(ToolBase):
    """Ask the user about two things, and then a program about one of them."""

    name = "ask"
    is_resumable = True

    async def call(self, context: ToolContext) -> str | ToolResponse:
        answers = context.answers
        if "a" in answers:
            return f"{_text_of_answer(answers['a'])} {_text_of_answer(answers['b'])}"
        kind: Any = "external" if "b" in answers else "user"
        names = [name for name in "ab" if name not in answers]
        return ToolResponse(waits=[OpenQuestion(ToolCallBlock(name, "publish", "{}"), kind) for name in names])


async def test_a_question_for_another_kind_of_answer_is_asked_anew() -> None:
    agent = agent_of([[call("1", "ask")], "Done."], AskAnother())
    await items_of(agent)
    late = confirmation_of(agent, "1/a")
    assert (await order_of(agent, confirmation_of(agent, "1/b"))) == "REQUIRE_EXTERNAL_EXECUTION Msg"
    event = agent.waiting()
    assert (event.type, [block.id for block in event.tool_calls]) == ("REQUIRE_EXTERNAL_EXECUTION", ["1/a"])
    with pytest.raises(ResumeError) as caught:
        await agent.reply(late)
    assert code_of(caught) == "not_waiting"
    await agent.reply(ExternalExecutionResultEvent(event.reply_id, [ToolResultBlock("1/a", "publish", "42")]))
    assert result_of(agent).text == "42 yes"


@pytest.mark.parametrize(
    "waits",
    [
        [OpenQuestion(ToolCallBlock("", "a", "{}"))],
        [OpenQuestion(ToolCallBlock("a/", "a", "{}"))],
        [OpenQuestion(ToolCallBlock("a", "a", "{}"))] * 2,
        [OpenQuestion(ToolCallBlock("a", "a", "{}"), "nobody")],  # type: ignore[arg-type]
        [OpenQuestion(ToolCallBlock("a", "a", object()))],  # type: ignore[arg-type]
        [OpenQuestion(ToolCallBlock("a", "a", "x" * 1_000_001))],
        [OpenQuestion(ToolCallBlock(str(number), "a", "{}")) for number in range(1_001)],
        ["really?"],
        True,
    ],
    ids=range(9),
)
async def test_what_cannot_be_asked_makes_an_error_result(waits: Any) -> None:
    class Odd(Ask):
        async def call(self, names: list[str]) -> Any:
            return ToolResponse(waits=waits)

    agent = agent_of([[call("1", "ask", names=[])], "Done."], Odd())
    await agent.reply("go")
    result = result_of(agent)
    assert (result.state, "wanted to wait" in result.text) == ("error", True)


async def test_a_tool_that_is_not_resumable_cannot_wait(caplog: pytest.LogCaptureFixture) -> None:
    class Plain(Ask):
        is_resumable = False

        async def call(self, names: list[str]) -> Any:
            return ToolResponse(waits=[OpenQuestion(ToolCallBlock("a", "publish", "{}"))])

    agent = agent_of([[call("1", "ask", names=[])], "Done."], Plain())
    await agent.reply("go")
    assert result_of(agent).state == "error"
    assert "is_resumable = True" in caplog.text


async def test_a_tool_that_is_not_resumable_keeps_nothing() -> None:
    async def keep(context: ToolContext) -> None:
        context.kept["a"] = 1

    agent = agent_of([[call("1", "keep")], "Done."], keep)
    await agent.reply("go")
    assert "is_resumable = True" in result_of(agent).text


@pytest.mark.parametrize("with_store", [False, True])
async def test_what_is_kept_and_has_no_json_form_is_named(with_store: bool) -> None:
    class Odd(Ask):
        async def call(self, names: list[str], context: ToolContext) -> Any:
            context.kept["socket"] = object()
            return ToolResponse(waits=[OpenQuestion(ToolCallBlock("a", "publish", "{}"))])

    store = InMemoryStateStore() if with_store else None
    agent = agent_of(["Hi.", [call("1", "ask", names=[])], "Done."], Odd(), state_store=store)
    await agent.reply("hello")
    with pytest.raises(SessionUnserializable, match=r"'ask' keeps as 'socket'"):
        await agent.reply("go")
    assert len(saved_state(agent).context) == 4
    assert (await agent.reply("and now?")).get_text_content() == "Done."


async def test_a_call_that_keeps_too_much_is_named_with_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hoarding(Ask):
        async def call(self, names: list[str], context: ToolContext) -> Any:
            context.kept.update(a="x" * 600, b="x" * 600)
            await context.save()

    monkeypatch.setattr(context_module, "_MAX_SAVED", 1_000)
    agent = agent_of([[call("1", "ask", names=[])], "Done."], Hoarding())
    await agent.reply("go")
    result = result_of(agent)
    assert result.state == "error"
    assert "the tool 'ask' keeps 1,2" in result.text
    assert "a call may keep 1,000" in result.text


async def test_output_before_a_wait_is_replaced_by_the_whole_result() -> None:
    class Streaming(ToolBase):
        name = "stream"
        is_resumable = True

        async def call(self, context: ToolContext) -> Any:
            yield "thinking "
            if "a" not in context.answers:
                yield ToolResponse(waits=[OpenQuestion(ToolCallBlock("a", "publish", "{}"))])
                return
            yield "done"

    agent = agent_of([[call("1", "stream")], "Done."], Streaming())
    items = await items_of(agent)
    rebuilt = Msg("tester", [], "assistant", id="")
    answer = confirmation_of(agent)
    for item in [*items[:-1], answer, *(await items_of(agent, answer))[:-1]]:
        rebuilt.append_event(item)
    kept = agent.state.context[-1]
    assert kept.get_content_blocks("tool_result")[0].text == "thinking done"
    assert rebuilt.content == kept.content


@pytest.mark.parametrize("way", ["interrupt", "event", "left"])
async def test_a_waiting_call_ends_with_its_reply(way: str) -> None:
    from agentrt.event import UserInterruptEvent

    agent = asking("a")
    await items_of(agent)
    late = confirmation_of(agent)
    if way == "event":
        await agent.reply(UserInterruptEvent(late.reply_id))
    else:
        agent.interrupt()
    message = agent.state.context[-1]
    [result] = message.get_content_blocks("tool_result")
    assert result.state == "interrupted"
    with pytest.raises(ResumeError) as caught:
        await agent.reply(late)
    assert code_of(caught) == "not_waiting"
    assert (await agent.reply("and now?")).get_text_content() == "Done."


async def test_a_rule_that_came_meanwhile_holds_for_a_resumed_call() -> None:
    agent = asking("a")
    await items_of(agent)
    agent.state.permission_context.rules.append(PermissionRule("ask", behavior="deny"))
    await agent.reply(confirmation_of(agent))
    assert result_of(agent).state == "denied"


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_rule_that_asks_came_meanwhile_and_the_call_resumes(confirmed: bool, is_seen: bool) -> None:
    agent = asking("a", "b")
    rebuilt = Msg("tester", [], "assistant", id="")

    async def take(inputs: Any) -> None:
        if not isinstance(inputs, str):
            rebuilt.append_event(inputs)
        if not is_seen:
            await agent.reply(inputs)
            return
        for item in (await items_of(agent, inputs))[:-1]:
            rebuilt.append_event(item)

    await take("go")
    agent.state.permission_context.rules.append(PermissionRule("ask", behavior="ask"))
    early = confirmation_of(agent, "1/b")
    await take(confirmation_of(agent, "1/a"))
    assert [block.id for block in agent.waiting().tool_calls] == ["1"]
    await take(early)  # of use when the call runs
    await take(confirmation_of(agent, confirmed=confirmed))
    message = agent.state.context[-1]
    [result] = message.get_content_blocks("tool_result")
    assert (result.state, result.text) == (
        ("success", "a=yes b=yes") if confirmed else ("denied", "The user denied this call.")
    )
    if is_seen:
        assert rebuilt.content == message.content


class AskAboutItself(Ask):
    """Ask the same, and, once it is strict, about each call too."""

    strict = False

    async def check_permissions(self, tool_input: Any, context: Any) -> PermissionDecision:
        rules = [PermissionRule("ask", behavior="allow")]
        return PermissionDecision("ask" if self.strict else "allow", suggested_rules=rules)


async def test_an_answer_comes_before_its_call_is_asked_about_again() -> None:
    tool = AskAboutItself()
    calls = [call(number, "ask", names=["a", "b"]) for number in "12"]
    agent = agent_of([calls, "Done."], tool)
    agent.state.permission_context.allow_new_rules = True
    await items_of(agent)
    late = confirmation_of(agent, "1/b", "2/b")
    tool.strict = True
    await agent.reply(confirmation_of(agent, "1/a", "2/a"))
    # A rule that comes with the answer about the one may settle the other, which is not asked about until then.
    assert [block.id for block in agent.waiting().tool_calls] == ["1"]
    await agent.reply(late)
    await agent.reply(confirmation_of(agent))
    await agent.reply(confirmation_of(agent))
    results = agent.state.context[-1].get_content_blocks("tool_result")
    assert [result.text for result in results] == ["a=yes b=yes"] * 2


async def test_a_call_that_has_begun_is_not_said_to_have_done_nothing() -> None:
    agent = asking("a")
    await items_of(agent)
    agent.state.permission_context.rules.append(PermissionRule("ask", behavior="ask"))
    await agent.reply(confirmation_of(agent))
    agent.interrupt()
    result = result_of(agent)
    assert (result.state, "not run" in result.text) == ("interrupted", False)


async def test_a_call_whose_tool_is_gone_ends_with_an_error() -> None:
    agent = asking("a")
    await items_of(agent)
    state = saved_state(agent)
    other = Agent("tester", "", ScriptedChatModel(["Done."]), Toolkit(), state=state)
    await other.reply(confirmation_of(agent))
    [result] = state.context[-1].get_content_blocks("tool_result")
    assert (result.state, state.last_reply.finished_reason) == ("error", "completed")


async def test_an_id_with_a_slash_is_replaced() -> None:
    agent = agent_of([[call("1/a", "ask", names=["a"])], "Done."], Ask())
    await items_of(agent)
    [outer] = agent.state.reply_context.message.get_content_blocks("tool_call")
    assert "/" not in outer.id
    await agent.reply(confirmation_of(agent))
    assert agent.state.last_reply.finished_reason == "completed"


@pytest.mark.parametrize("saves", [False, True])
async def test_a_call_that_was_running_is_entered_again_after_a_kill(saves: bool) -> None:
    """The process ends in the middle of the call: what is left is the last state that was saved."""
    store = InMemoryStateStore()
    left: list[AgentState] = []
    seen: list[dict[str, Any]] = []

    class Steps(ToolBase):
        name = "steps"
        is_resumable = True

        async def call(self, context: ToolContext) -> str:
            seen.append(dict(context.kept))
            context.kept["done"] = ["first"]
            if saves:
                await context.save()
            left.append(await store.load(context.agent.state.session_id))
            return "all steps"

    async def other() -> str:
        return "other"

    calls = [call("1", "steps"), call("2", "other")]
    agent = agent_of([calls, "Done."], Steps(), other, state_store=store)
    whole = await agent.reply("go")
    again = agent_of(["Done."], Steps(), other, state=AgentState.model_validate_json(left[0].model_dump_json()))
    rebuilt = Msg("tester", [], "assistant", id="")
    items = await items_of(again, None)
    for item in items[:-1]:
        rebuilt.append_event(item)
    results = {block.name: block for block in again.state.context[-1].get_content_blocks("tool_result")}
    assert (results["steps"].state, results["steps"].text) == ("success", "all steps")
    assert results["other"].state == "unknown"
    assert seen == [{}, {"done": ["first"]} if saves else {}]
    assert rebuilt.content == again.state.context[-1].content
    assert items[-1].get_text_content() == whole.get_text_content()


async def test_a_call_that_a_new_message_leaves_behind_is_closed() -> None:
    store = InMemoryStateStore()
    left: list[AgentState] = []

    class Steps(ToolBase):
        name = "steps"
        is_resumable = True

        async def call(self, context: ToolContext) -> str:
            left.append(await store.load(context.agent.state.session_id))
            return "all steps"

    await agent_of([[call("1", "steps")], "Done."], Steps(), state_store=store).reply("go")
    again = agent_of(["Hello."], Steps(), state=left[0])
    await again.reply("something else")
    assert [block.state for block in again.state.context[1].get_content_blocks("tool_result")] == ["unknown"]
    assert len(left) == 1


async def test_kept_that_cannot_be_saved_is_told_where_it_is_saved() -> None:
    store = InMemoryStateStore()
    errors: list[Exception] = []

    class Odd(Ask):
        async def call(self, names: list[str], context: ToolContext) -> str:
            context.kept["socket"] = object()
            try:
                await context.save()
            except SessionUnserializable as error:
                errors.append(error)
            del context.kept["socket"]
            return "fine"

    agent = agent_of([[call("1", "ask", names=[])], "Done."], Odd(), state_store=store)
    await agent.reply("go")
    assert "'ask' keeps as 'socket'" in str(errors[0])
    assert agent.state.last_reply.finished_reason == "completed"


async def test_outside_of_a_reply_a_call_keeps_for_itself() -> None:
    tool = Ask()
    items = [item async for item in Toolkit(tools=[tool]).call_tool_function(call("1", "ask", names=["a"]))]
    assert [question.tool_call.id for question in items[-1].waits] == ["a"]
    assert items[-1].state == "running"
