"""Asking a person: what is asked, whose answer counts, and that what was confirmed is what runs."""

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from agentrt import Agent, AgentState, MiddlewareBase, Msg
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt.agent import ReActConfig
from agentrt.errors import ResumeError, SessionConflict
from agentrt.event import (
    ConfirmResult,
    ExternalExecutionResultEvent,
    ReplyEndEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    UserConfirmResultEvent,
    UserInterruptEvent,
)
from agentrt.message import ToolCallBlock, ToolCallState, ToolResultBlock, ToolResultState
from agentrt.permission import PermissionBehavior, PermissionContext, PermissionRule, digest
from agentrt.state import InMemoryStateStore
from tests.loop.helpers import agent_of, call, elsewhere, items_of, order_of, short
from tests.loop.parked import Full, Log, PathTool, Told, asked, confirm, done, edited, no, results_of, waiting, yes

ALLOW, ASK, DENY = PermissionBehavior.ALLOW, PermissionBehavior.ASK, PermissionBehavior.DENY
UP_TO_THE_QUESTION = "RS MS CALL_START:1 CALL_DELTA:1 CALL_END:1 ME REQUIRE_USER_CONFIRM Msg"
ANSWER = "MS TX_START TX_DELTA TX_END ME RE(completed) Msg"


def asking(log: Log, *paths: str, **options: Any) -> Agent:
    """Return an agent that wants to remove each path, and asks about it."""
    permissions = options.pop("permissions", None)
    if permissions is not None:
        options["state"] = AgentState(permission_context=permissions)
    calls = [call(str(number), "rm", path=path) for number, path in enumerate(paths or ("/a",), 1)]
    options.setdefault("middlewares", [])
    return agent_of([calls, "done", "more"], PathTool("rm", log, ask=True), **options)


async def refused(agent: Agent, answer: Any, code: str) -> str:
    """Give an answer that is refused and changes nothing; returns what is said about it."""
    before = agent.state.model_dump_json()
    items = []
    with pytest.raises(ResumeError) as caught:
        async with agent.reply_stream(answer) as stream:
            items = [item async for item in stream]
    assert caught.value.code == code
    assert items == []
    assert agent.state.model_dump_json() == before
    return str(caught.value)


async def test_an_allowed_call_runs_when_the_answer_comes():
    log: Log = []
    agent = asking(log)
    assert await order_of(agent) == UP_TO_THE_QUESTION
    assert log == []
    assert await order_of(agent, yes(agent)) == f"RESULT_START:1 RESULT_DELTA:1 RESULT_END:1(success) {ANSWER}"
    assert log == [("rm", "/a")]


async def test_a_denied_call_becomes_a_result_that_says_so():
    log: Log = []
    agent = asking(log)
    assert await order_of(agent) == UP_TO_THE_QUESTION
    assert await order_of(agent, no(agent)) == f"RESULT_START:1 RESULT_DELTA:1 RESULT_END:1(denied) {ANSWER}"
    assert log == []


async def test_the_message_of_a_parked_reply_holds_the_waiting_calls():
    items = await items_of(asking([], "/a", "/b"))
    request, message = items[-2:]
    assert isinstance(request, RequireUserConfirmEvent)
    assert not any(isinstance(item, ReplyEndEvent) for item in items)
    calls = message.get_content_blocks("tool_call")
    assert [(each.id, each.input, each.state) for each in calls] == [
        ("1", '{"path": "/a"}', ToolCallState.ASKING),
        ("2", '{"path": "/b"}', ToolCallState.ASKING),
    ]
    assert request.tool_calls == calls
    assert request.questions["1"].suggested_rules == [PermissionRule("rm", "/a", ALLOW, "suggestion")]
    assert message.finished_reason is None


async def test_what_is_asked_is_saved_before_anybody_hears_of_it():
    log: Log = []
    store = InMemoryStateStore()
    agent = asking(log, state_store=store)
    async for event in agent.reply_stream("go"):
        if isinstance(event, RequireUserConfirmEvent):
            break
    other = agent.with_state(await store.load(agent.state.session_id))
    assert await order_of(other, yes(other)) == f"RESULT_START:1 RESULT_DELTA:1 RESULT_END:1(success) {ANSWER}"
    assert log == [("rm", "/a")]


async def test_leaving_before_the_question_interrupts_the_reply():
    log: Log = []
    agent = asking(log)
    async with agent.reply_stream("go") as stream:
        async for event in stream:
            if short(event) == "ME":
                break
    assert agent.state.reply_context is None
    assert results_of(agent)["1"].state is ToolResultState.INTERRUPTED
    assert log == []


KINDS = {"runs": {}, "asks": {"ask": True}, "external": {"is_external_tool": True}}


def expected_parts(calls: list[tuple[str, bool]]) -> list[tuple[set[str], set[str], set[str]]]:
    """Return for each part of the reply which calls end in it, and about which it asks, and which it gives out."""
    batches: list[list[int]] = []
    for number, (_, safe) in enumerate(calls):
        if safe and batches and calls[number - 1][1]:
            batches[-1].append(number)
        else:
            batches.append([number])
    parts: list[tuple[set[str], set[str], set[str]]] = [(set(), set(), set())]
    for batch in batches:
        of_kind = {kind: {str(each + 1) for each in batch if calls[each][0] == kind} for kind in KINDS}
        ends, asks, given = parts[-1]
        ends |= of_kind["runs"]
        asks |= of_kind["asks"]
        given |= of_kind["external"]
        parts += [(set(each), set(), set()) for each in (asks, given) if each]
    return parts


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_every_mixture_of_calls_that_run_ask_and_run_elsewhere():
    options = list(itertools.product(KINDS, (True, False)))
    for calls in itertools.product(options, repeat=3):
        log: Log = []
        tools = [PathTool(f"{kind}_{safe}", log, is_concurrency_safe=safe, **KINDS[kind]) for kind, safe in set(calls)]
        written = [call(str(number), f"{kind}_{safe}", path="/a") for number, (kind, safe) in enumerate(calls, 1)]
        told = Told(agent_of([written, "done"], *tools))
        await told.part()
        while told.agent.state.reply_context is not None:
            await told.part(yes(told.agent) if asked(told.agent) else done(told.agent))
        check_mixture(told, calls)
        in_this_process = [f"{kind}_{safe}" for kind, safe in calls if kind != "external"]
        assert sorted(name for name, _ in log) == sorted(in_this_process), calls


def check_mixture(told: Told, calls: Any) -> None:
    parts = []
    for part in told.parts:
        ends = [item.tool_call_id for item in part if isinstance(item, ToolResultEndEvent)]
        asks = [each.id for item in part if isinstance(item, RequireUserConfirmEvent) for each in item.tool_calls]
        given = [
            each.id for item in part if isinstance(item, RequireExternalExecutionEvent) for each in item.tool_calls
        ]
        parts.append((set(ends), set(asks), set(given)))
        assert [len(each) for each in (ends, asks, given)] == [len(each) for each in parts[-1]], calls
        kinds = [type(item) for item in part]
        requests = [
            kinds.index(each) for each in (RequireUserConfirmEvent, RequireExternalExecutionEvent) if each in kinds
        ]
        last_end = max((at for at, kind in enumerate(kinds) if kind is ToolResultEndEvent), default=-1)
        assert all(last_end < at for at in requests), calls
    assert parts == expected_parts(list(calls)), calls
    starts = [item.tool_call_id for part in told.parts for item in part if isinstance(item, ToolResultStartEvent)]
    assert sorted(starts) == [str(number + 1) for number in range(len(calls))], calls
    assert {each.state for each in results_of(told.agent).values()} == {ToolResultState.SUCCESS}
    assert told.message == told.agent.state.context[-1], calls
    assert told.numbers == list(range(1, len(told.numbers) + 1)), calls


async def test_every_part_of_a_reply_has_ids_and_numbers_of_its_own():
    log: Log = []
    written = [[call("1", "rm", path="/a")], [call("2", "rm", path="/b")], "done"]
    told = Told(agent_of(written, PathTool("rm", log, ask=True)))
    await told.part()
    await told.part(yes(told.agent))
    await told.part(no(told.agent))
    assert told.agent.state.reply_context is None
    message = told.agent.state.context[-1]
    assert told.message == message
    assert told.numbers == list(range(1, len(told.numbers) + 1))
    outputs = [each for result in message.get_content_blocks("tool_result") for each in result.output]
    ids = [each.id for each in [*message.get_content_blocks("text"), *outputs]]
    assert len(set(ids)) == len(ids) == 3
    assert {item.reply_id for part in told.parts for item in part if not isinstance(item, Msg)} == {message.id}
    assert [short(item) for part in told.parts for item in part].count("RS") == 1


async def test_after_a_partial_answer_the_rest_is_not_asked_again():
    log: Log = []
    told = Told(asking(log, "/a", "/b", "/c"))
    await told.part()
    items = await told.part(yes(told.agent, "2"))
    assert log == [("rm", "/b")]
    assert [short(item) for item in items[:-1]] == ["RESULT_START:2", "RESULT_DELTA:2", "RESULT_END:2(success)"]
    assert [each.id for each in items[-1].get_content_blocks("tool_call")] == ["1", "3"]
    items = await told.part(no(told.agent, "3"))
    assert [each.id for each in items[-1].get_content_blocks("tool_call")] == ["1"]
    items = await told.part(yes(told.agent))
    assert log == [("rm", "/b"), ("rm", "/a")]
    assert short(items[-2]) == "RE(completed)"
    assert told.message == told.agent.state.context[-1]


async def test_an_answer_repeated_while_it_waits_changes_nothing():
    log: Log = []
    agent = asking(log, "/a", "/b")
    await agent.reply("go")
    answer, otherwise = yes(agent, "1", feedback="fine"), no(agent, "1")
    await agent.reply(answer)
    before = agent.state.model_dump_json()
    assert await order_of(agent, answer) == "Msg"
    assert agent.state.model_dump_json() == before
    assert log == [("rm", "/a")]
    await refused(agent, otherwise, "conflict")


async def test_an_answer_that_comes_twice_may_bring_nothing_new():
    log: Log = []
    agent = asking(log, "/a", "/b", permissions=PermissionContext(allow_edited_input=True, allow_new_rules=True))
    await agent.reply("go")
    first, other = [edited(agent, **{"1": f'{{"path": "/{name}"}}'}) for name in ("x", "y")]
    with_a_rule = replace(first, confirm_results=[replace(first.confirm_results[0], rules=[PermissionRule("rm")])])
    await agent.reply(first)
    before = agent.state.model_dump_json()
    await agent.reply(with_a_rule)
    assert agent.state.model_dump_json() == before
    await refused(agent, other, "conflict")
    assert log == [("rm", "/x")]


@pytest.mark.parametrize("confirmed", [True, False])
async def test_an_answer_repeated_after_the_reply_changes_nothing(confirmed):
    log: Log = []
    agent = asking(log)
    await agent.reply("go")
    answer, otherwise = confirm(agent, confirmed), confirm(agent, not confirmed)
    final = await agent.reply(answer)
    before, ran = agent.state.model_dump_json(), list(log)
    agent = elsewhere(agent)
    again = await agent.reply(answer)
    assert (again.id, again.content, again.get_text_content()) == (final.id, final.content, "done")
    assert (agent.state.model_dump_json(), log) == (before, ran)
    await refused(agent, otherwise, "conflict")
    other_session = replace(answer, session_id="another")
    await refused(agent, other_session, "mismatch")


async def test_an_approval_that_policy_overruled_can_be_repeated():
    agent = asking([], "/a", "/b")
    await agent.reply("go")
    answer, otherwise = yes(agent, "1"), no(agent, "1")
    agent.state.permission_context.rules.append(PermissionRule("rm", "/a", DENY))
    await agent.reply(answer)
    assert await order_of(agent, answer) == "Msg"
    await refused(agent, otherwise, "conflict")


async def test_an_approval_after_an_interrupt_is_refused():
    log: Log = []
    agent = asking(log)
    await agent.reply("go")
    answer = yes(agent)
    agent.interrupt()
    await refused(agent, answer, "not_waiting")
    assert log == []


async def test_a_late_yes_has_expired_but_a_late_no_has_not(monkeypatch):
    log: Log = []
    agent = asking(log, react_config=ReActConfig(answer_within=60))
    await agent.reply("go")
    late = ReplyRun.now() + int(60.5e9)
    monkeypatch.setattr(ReplyRun, "now", staticmethod(lambda: late))
    words = await refused(agent, yes(agent), "expired")
    assert "'rm' was asked about more than 60 seconds ago" in words
    assert (await agent.reply(no(agent))).get_text_content() == "done"
    assert log == []


def swapped(**changes: Any) -> Any:
    """Return what changes the call in an answer."""

    def change(answer: UserConfirmResultEvent) -> Any:
        result = answer.confirm_results[0]
        return replace(answer, confirm_results=[replace(result, tool_call=replace(result.tool_call, **changes))])

    return change


def result_with(**changes: Any) -> Any:
    return lambda answer: replace(answer, confirm_results=[replace(answer.confirm_results[0], **changes)])


def event_with(**changes: Any) -> Any:
    return lambda answer: replace(answer, **changes)


def executed(answer: UserConfirmResultEvent) -> Any:
    return ExternalExecutionResultEvent(answer.reply_id, [ToolResultBlock("1", "rm", "x")])


FORGED = {
    "name": (swapped(name="ls"), "mismatch", "the answer names the tool 'ls', but the call '1' is of 'rm'"),
    "input": (swapped(input='{"path": "/etc"}'), "mismatch", "another input, which is not permitted"),
    "blank": (swapped(input='{"path":"/a"}'), "mismatch", "another input"),
    "call": (swapped(id="9"), "unknown_call", "has no call '9'"),
    "rule": (
        result_with(rules=[PermissionRule("rm", None, ALLOW)]),
        "mismatch",
        "brings a rule, which is not permitted",
    ),
    "reply": (event_with(reply_id="another"), "mismatch", "the answer is for the reply 'another'"),
    "session": (event_with(session_id="another"), "mismatch", "for the session 'another'"),
    "kind": (executed, "not_waiting", "does not run outside"),
    "empty": (event_with(confirm_results=[]), "invalid", "the answer is empty"),
    "twice": (
        lambda answer: replace(answer, confirm_results=[*answer.confirm_results, *answer.confirm_results]),
        "conflict",
        "two results for the call '1'",
    ),
    "truthy": (result_with(confirmed="no"), "invalid", "its confirm_results.0.confirmed has the wrong type"),
    "no block": (result_with(tool_call="1"), "invalid", "its confirm_results.0.tool_call has the wrong type"),
    "no JSON": (event_with(metadata={"key": object()}), "invalid", "no JSON form"),
}


@pytest.mark.parametrize(("what", "confirmed"), list(zip(FORGED, itertools.cycle([True, False]), strict=False)))
async def test_a_forged_answer_is_refused_and_the_right_one_taken(what, confirmed):
    forge, code, words = FORGED[what]
    log: Log = []
    store = InMemoryStateStore()
    agent = asking(log, state_store=store)
    await agent.reply("go")
    revision = agent.state.revision
    assert words in await refused(agent, forge(confirm(agent, confirmed)), code)
    assert (await store.load(agent.state.session_id)).revision == revision
    assert log == []
    assert (await agent.reply(yes(agent))).get_text_content() == "done"
    assert log == [("rm", "/a")]


class Forging(MiddlewareBase):
    """A layer that hands on something else than the answer."""

    def __init__(self, forge: Any) -> None:
        self.forge = forge

    async def on_reply(self, agent, input_kwargs, next_handler):
        if isinstance(input_kwargs["inputs"], UserConfirmResultEvent):
            input_kwargs["inputs"] = self.forge(input_kwargs["inputs"])
        async for item in next_handler():
            yield item


@pytest.mark.parametrize("what", FORGED)
async def test_a_layer_of_on_reply_can_forge_no_answer(what):
    forge, code, words = FORGED[what]
    log: Log = []
    layer = Forging(forge)
    agent = asking(log, middlewares=[layer])
    await agent.reply("go")
    assert words in await refused(agent, yes(agent), code)
    layer.forge = lambda answer: answer
    assert (await agent.reply(yes(agent))).get_text_content() == "done"


@pytest.mark.parametrize("instead", [None, Msg("user", "hello", "user")], ids=["None", "Msg"])
async def test_a_layer_cannot_replace_an_answer_by_a_message(instead):
    agent = asking([], middlewares=[Forging(lambda answer: instead)])
    await agent.reply("go")
    await refused(agent, yes(agent), "pending")


async def test_an_answer_to_no_question_is_refused():
    agent = asking([])
    assert "asks none" in await refused(
        agent, UserConfirmResultEvent("r", [ConfirmResult(True, call("1", "rm"))]), "not_waiting"
    )


async def test_a_call_that_nobody_asked_about_cannot_be_confirmed():
    log: Log = []
    written = [call("1", "rm", path="/a"), call("2", "ls", path="/a")]
    agent = agent_of([written, "done"], PathTool("rm", log, ask=True), PathTool("ls", log))
    await agent.reply("go")
    answer = yes(agent)
    answer.confirm_results.append(ConfirmResult(False, written[1]))
    assert "does not ask for the user's approval" in await refused(agent, answer, "not_waiting")
    assert log == [("ls", "/a")]


EDITS = PermissionContext(allow_edited_input=True)


async def test_an_edited_input_runs_and_the_change_is_on_record():
    log: Log = []
    told = Told(asking(log, permissions=replace(EDITS, rules=[PermissionRule("rm", "/b", ASK)])))
    await told.part()
    await told.part(edited(told.agent, **{"1": '{"path":   "/b"}'}))
    assert log == [("rm", "/b")]
    decision = told.agent.state.last_reply.decisions["1"]
    assert (decision.behavior, decision.by, decision.original_input) == (ALLOW, "user", '{"path": "/a"}')
    assert decision.digest == digest("rm", '{"path":   "/b"}')
    kept = told.agent.state.context[-1]
    assert kept.get_content_blocks("tool_call")[0].input == '{"path":   "/b"}'
    assert told.message == kept


@pytest.mark.parametrize(
    "text", ['{"path": 1}', '{"path": "/b", "force": true}', '{"path": "/b", "path": "/c"}', "[]", ""]
)
async def test_an_edited_input_is_checked_like_any_other(text):
    log: Log = []
    agent = asking(log, permissions=replace(EDITS))
    await agent.reply("go")
    assert "the edited input cannot be used" in await refused(agent, edited(agent, **{"1": text}), "invalid")
    assert log == []


async def test_a_deny_rule_holds_for_an_edited_input():
    log: Log = []
    agent = asking(log, permissions=replace(EDITS, rules=[PermissionRule("rm", "/etc*", DENY)]))
    await agent.reply("go")
    await agent.reply(edited(agent, **{"1": '{"path": "/etc/passwd"}'}))
    assert log == []
    assert results_of(agent)["1"].state is ToolResultState.DENIED
    decision = agent.state.last_reply.decisions["1"]
    assert (decision.behavior, decision.by, decision.original_input) == (DENY, "policy", '{"path": "/a"}')


async def test_what_runs_is_to_the_byte_what_was_confirmed():
    seen: list[str] = []

    class Watch(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            seen.append(digest(input_kwargs["tool_call"].name, input_kwargs["tool_call"].input))
            async for item in next_handler():
                yield item

    text = '{ "path" : "/\\u0061" }'
    log: Log = []
    agent = agent_of([[ToolCallBlock("1", "rm", text)], "done"], PathTool("rm", log, ask=True), middlewares=[Watch()])
    await agent.reply("go")
    assert waiting(agent)[0].input == text
    await agent.reply(yes(agent))
    assert seen == [agent.state.last_reply.decisions["1"].digest] == [digest("rm", text)]
    assert log == [("rm", "/a")]


async def test_a_rule_that_comes_with_an_answer_covers_later_calls():
    log: Log = []
    written = [[call("1", "rm", path="/a/1")], [call("2", "rm", path="/a/2")], [call("3", "rm", path="/b")], "done"]
    tool = PathTool("rm", log, ask=True)
    agent = agent_of(written, tool, state=AgentState(permission_context=PermissionContext(allow_new_rules=True)))
    await agent.reply("go")
    await agent.reply(yes(agent, rules=[PermissionRule("rm", "/a/*", ALLOW, "forged")]))
    assert log == [("rm", "/a/1"), ("rm", "/a/2")]
    assert asked(agent) == ["3"]
    assert agent.state.permission_context.rules == [PermissionRule("rm", "/a/*", ALLOW, "user")]


async def test_feedback_reaches_the_model_with_the_result():
    agent = asking([], "/a", "/b")
    await agent.reply("go")
    await agent.reply(yes(agent, "1", feedback="but be careful"))
    await agent.reply(no(agent, "2", feedback="that one is mine"))
    outputs = {each.id: [part.text for part in each.output] for each in results_of(agent).values()}
    assert outputs["1"] == ["rm /a", "[The user adds: but be careful]"]
    assert outputs["2"] == ["The user denied this call: that one is mine"]
    told = json.dumps([each.to_json() for each in agent.model.calls[-1].messages])
    assert "be careful" in told
    assert "that one is mine" in told


async def test_a_confirmed_call_of_a_missing_tool_gets_an_error_result():
    agent = asking([])
    await agent.reply("go")
    other = agent_of(["done"], state=agent.state)
    await other.reply(yes(other))
    result = results_of(other)["1"]
    assert result.state is ToolResultState.ERROR
    assert "rm" in result.output[0].text


async def test_a_rule_added_after_the_question_denies_a_confirmed_call():
    log: Log = []
    agent = asking(log)
    await agent.reply("go")
    agent.state.permission_context.rules.append(PermissionRule("rm", None, DENY))
    assert await order_of(agent, yes(agent)) == f"RESULT_START:1 RESULT_DELTA:1 RESULT_END:1(denied) {ANSWER}"
    assert log == []


RULES = PermissionContext(allow_new_rules=True)


async def test_a_question_waits_where_an_earlier_answer_may_settle_it():
    log: Log = []
    told = Told(asking(log, "/a", "/a", "/b", permissions=replace(RULES)))
    await told.part()
    assert asked(told.agent) == ["1", "3"]
    await told.part(yes(told.agent, "3"))
    assert asked(told.agent) == ["1"]
    rule = told.agent.state.reply_context.decisions["1"].suggested_rules
    await told.part(yes(told.agent, "1", rules=rule))
    assert sorted(log) == [("rm", "/a"), ("rm", "/a"), ("rm", "/b")]
    assert told.agent.state.last_reply.decisions["2"].by == "policy"
    assert told.message == told.agent.state.context[-1]


@pytest.mark.parametrize(("behavior", "ends"), [(ALLOW, "success"), (DENY, "denied")])
async def test_questions_that_an_accepted_rule_covers_are_not_repeated(behavior, ends):
    log: Log = []
    told = Told(asking(log, "/a/1", "/a/2", "/b", permissions=replace(RULES)))
    await told.part()
    assert asked(told.agent) == ["1", "2", "3"]
    told.agent = elsewhere(told.agent)
    await told.part(confirm(told.agent, behavior is ALLOW, "1", rules=[PermissionRule("rm", "/a/*", behavior)]))
    assert asked(told.agent) == ["3"]
    assert [path for _, path in sorted(log)] == (["/a/1", "/a/2"] if behavior is ALLOW else [])
    await told.part(yes(told.agent))
    assert {id_: result.state for id_, result in results_of(told.agent).items()} == {
        "1": ends,
        "2": ends,
        "3": "success",
    }
    assert told.message == told.agent.state.context[-1]


@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_question_that_the_answer_left_open_is_asked_after_it(confirmed):
    log: Log = []
    told = Told(asking(log, "/a", "/a", permissions=replace(RULES)))
    await told.part()
    assert asked(told.agent) == ["1"]
    items = await told.part(confirm(told.agent, confirmed))
    assert asked(told.agent) == ["2"]
    assert [each.id for each in items[-2].tool_calls] == ["2"]
    await told.part(yes(told.agent))
    assert len(log) == 1 + confirmed
    assert told.message == told.agent.state.context[-1]


async def test_without_new_rules_every_question_is_asked_at_once():
    agent = asking([], "/a", "/a")
    await agent.reply("go")
    assert asked(agent) == ["1", "2"]


@pytest.mark.parametrize("inputs", [None, "hello", [Msg("user", "hello", "user")]], ids=["None", "str", "list"])
async def test_whatever_is_no_answer_is_refused_while_the_reply_waits(inputs):
    agent = asking([])
    await agent.reply("go")
    words = await refused(agent, inputs, "pending")
    assert "waits for an answer about 'rm' (1)" in words
    assert agent.state.reply_context.reply_id in words
    assert (await agent.reply(yes(agent))).get_text_content() == "done"


async def test_messages_observed_while_it_waits_follow_the_reply():
    agent = asking([])
    await agent.reply("go")
    await agent.observe(Msg("user", "by the way", "user"))
    agent = elsewhere(agent)
    await agent.reply(yes(agent))
    assert [each.get_text_content() for each in agent.state.context] == ["go", "done", "by the way"]
    assert "by the way" not in str([each.to_json() for each in agent.model.calls[-1].messages])


async def test_an_interrupt_of_a_parked_reply_closes_its_calls_once():
    log: Log = []
    agent = asking(log, "/a", "/b")
    await agent.reply("go")
    answer = yes(agent)
    assert agent.interrupt()
    before = agent.state.model_dump_json()
    assert not agent.interrupt()
    assert agent.state.model_dump_json() == before
    assert {each.state for each in results_of(agent).values()} == {ToolResultState.INTERRUPTED}
    assert agent.state.last_reply.finished_reason == "interrupted"
    await refused(agent, answer, "not_waiting")
    assert (await agent.reply("go on")).get_text_content() == "done"
    assert log == []


async def test_an_interrupt_event_closes_the_calls_of_a_parked_reply():
    agent = elsewhere(asking([]))
    await agent.reply("go")
    event = UserInterruptEvent(agent.state.reply_context.reply_id)
    await refused(agent, replace(event, reply_id="another"), "mismatch")
    await refused(agent, replace(event, session_id="another"), "mismatch")
    items = await items_of(agent, event)
    names = [short(item) for item in items]
    assert names == ["RESULT_START:1", "RESULT_DELTA:1", "RESULT_END:1(interrupted)", "RE(interrupted)", "Msg"]
    assert items[-1].finished_reason == "interrupted"
    before = agent.state.model_dump_json()
    assert await order_of(agent, event) == "Msg"
    assert agent.state.model_dump_json() == before


async def test_an_answer_that_cannot_be_saved_can_be_given_again():
    log: Log = []
    store = Full()
    agent = asking(log, "/a", "/b", permissions=replace(RULES), state_store=store)
    await agent.reply("go")
    answer = yes(agent, rules=[PermissionRule("rm", "/c", ALLOW)])
    before = agent.state.model_dump_json()
    store.is_full = True
    with pytest.raises(OSError, match="disk full"):
        await agent.reply(answer)
    assert (agent.state.model_dump_json(), log) == (before, [])
    store.is_full = False
    assert (await agent.reply(answer)).get_text_content() == "done"
    assert sorted(log) == [("rm", "/a"), ("rm", "/b")]


async def test_an_answer_that_another_process_gave_first_wins():
    log: Log = []
    store = InMemoryStateStore()
    agent = asking(log, state_store=store)
    await agent.reply("go")
    first, second = [agent.with_state(await store.load(agent.state.session_id)) for _ in range(2)]
    await first.reply(yes(first))
    with pytest.raises(SessionConflict):
        await second.reply(yes(second))
    assert log == [("rm", "/a")]
    assert await store.load(agent.state.session_id) == first.state


async def test_a_question_survives_a_crash_while_another_call_runs():
    log: Log = []
    store = InMemoryStateStore()
    agent = asking(log, "/a", "/b", state_store=store)
    await agent.reply("go")
    async with agent.reply_stream(yes(agent, "1")) as stream:
        async for event in stream:
            if isinstance(event, ToolResultEndEvent):
                saved = await store.load(agent.state.session_id)
    revived = agent.with_state(saved)
    revived.state_store = None
    assert not saved.reply_context.parked
    await revived.reply(yes(revived, "2"))
    assert {each.state for each in results_of(revived).values()} == {ToolResultState.SUCCESS}
    assert log == [("rm", "/a"), ("rm", "/b")]
