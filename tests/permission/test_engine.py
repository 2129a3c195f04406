"""Deciding on a tool call."""

import dataclasses
import inspect
import itertools
import logging
import math
import re
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from agentrt.message import ToolCallBlock
from agentrt.permission import (
    PermissionBehavior,
    PermissionContext,
    PermissionDecision,
    PermissionMode,
    PermissionRule,
    combine,
    decide,
    needs_no_decision,
)
from agentrt.tool import FunctionTool, ToolBase, Toolkit
from agentrt.tool.call import PreparedCall

T = TypeVar("T")
ALLOW, ASK, DENY, PASSTHROUGH = (PermissionBehavior(each) for each in ("allow", "ask", "deny", "passthrough"))
DEFAULT, EDITS, EXPLORE, BYPASS, DONT_ASK = PermissionMode
STRICTNESS = [ALLOW, ASK, DENY]

MODES = (DEFAULT, EDITS, EXPLORE, BYPASS, DONT_ASK)
BY_ANSWER = {
    #              DEFAULT, EDITS, EXPLORE, BYPASS, DONT_ASK
    "allow": (ALLOW, ALLOW, DENY, ALLOW, ALLOW),
    "deny": (DENY, DENY, DENY, DENY, DENY),
    "ask": (ASK, ASK, DENY, ALLOW, DENY),
    "immune": (ASK, ASK, DENY, ALLOW, DENY),
    "passthrough": (ASK, ASK, DENY, ALLOW, DENY),
    "raises": (DENY, DENY, DENY, DENY, DENY),
}
"""What becomes of a call with no rule, of a tool that is not read-only."""


class Run(ToolBase):
    name = "run"
    input_schema = {"type": "object", "properties": {"command": {"type": "string"}}}  # noqa: RUF012

    def __init__(self, answer: str = "ask", *, is_read_only: bool = False) -> None:
        self.answer, self.is_read_only = answer, is_read_only

    def check_permissions(self, tool_input: dict[str, Any], context: PermissionContext) -> PermissionDecision:
        if self.answer == "raises":
            raise ValueError("the password is hunter2")
        if self.answer == "immune":
            return PermissionDecision(ASK, "dangerous", bypass_immune=True)
        return PermissionDecision(PermissionBehavior(self.answer), "the tool says so")


async def add(command: str) -> str:
    return command


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run what never has to wait, without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waited")


def decided(
    tool: ToolBase,
    *rules: PermissionRule,
    mode: PermissionMode = DEFAULT,
    command: str = "a",
    effective: str | None = None,
) -> PermissionDecision:
    effective_input = None if effective is None else lambda: {"command": effective}
    return at_once(decide(tool, {"command": command}, PermissionContext(mode, list(rules)), effective_input))


def expected(
    answer: str, is_read_only: bool, rules: tuple[PermissionBehavior, ...], mode: PermissionMode
) -> PermissionBehavior:
    by_answer = BY_ANSWER[answer][MODES.index(mode)]
    if DENY in rules:
        return DENY
    waived = ALLOW in rules and answer in ("ask", "passthrough") and mode is not EXPLORE
    found = ALLOW if is_read_only or waived else by_answer
    if ASK in rules and found is ALLOW:
        return DENY if mode is DONT_ASK else ASK
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "rules", [each for size in range(4) for each in itertools.combinations((ALLOW, ASK, DENY), size)]
)
async def test_each_cell_of_the_table(rules: tuple[PermissionBehavior, ...], mode: PermissionMode) -> None:
    context = PermissionContext(mode, [PermissionRule("run", None, each) for each in rules])
    cells = list(itertools.product(BY_ANSWER, (False, True)))
    found = {cell: (await decide(Run(cell[0], is_read_only=cell[1]), {}, context)).behavior for cell in cells}
    assert found == {cell: expected(*cell, rules, mode) for cell in cells}


@pytest.mark.parametrize(
    ("mode", "ask", "is_read_only", "behavior"),
    [
        (DEFAULT, False, False, ALLOW),
        (DEFAULT, True, False, ASK),
        (DEFAULT, True, True, ASK),
        (EXPLORE, False, False, DENY),
        (EXPLORE, False, True, ALLOW),
        (EXPLORE, True, True, ASK),
        (BYPASS, True, False, ALLOW),
        (DONT_ASK, False, False, ALLOW),
        (DONT_ASK, True, False, DENY),
        (DONT_ASK, True, True, DENY),
    ],
)
def test_function_runs_without_asking_unless_told_otherwise(
    mode: PermissionMode, ask: bool, is_read_only: bool, behavior: PermissionBehavior
) -> None:
    tool = FunctionTool(add, ask=ask, is_read_only=is_read_only)
    assert decided(tool, mode=mode).behavior is behavior
    assert needs_no_decision(tool, PermissionContext(mode)) == (mode is DEFAULT and not ask)


class Trusting(ToolBase):
    name = "trusting"

    async def call(self) -> None: ...


def test_only_a_tool_that_overrides_nothing_needs_no_decision() -> None:
    tool, patched = Trusting(), Trusting()
    patched.check_permissions = Run("deny").check_permissions  # type: ignore[method-assign]
    assert needs_no_decision(tool)
    assert needs_no_decision(tool, PermissionContext())
    assert not needs_no_decision(tool, PermissionContext(rules=[PermissionRule("other")]))
    assert not any(needs_no_decision(tool, PermissionContext(mode)) for mode in MODES[1:])
    assert not needs_no_decision(patched)
    assert decided(patched).behavior is DENY
    assert not needs_no_decision(Run("allow"))
    tool.ask = True
    assert not needs_no_decision(tool)


behaviors = st.sampled_from([ALLOW, ASK, DENY, PASSTHROUGH])
contents = st.sampled_from([None, "", "a", "b", "*", "a*", "?", "?b", "[*]", "*b*"])
rules = st.builds(PermissionRule, st.sampled_from(["run", "r*", "*", "???", "walk", ""]), contents, behaviors)
tools = st.builds(Run, st.sampled_from(list(BY_ANSWER)), is_read_only=st.booleans())
commands = st.text("ab*", max_size=3)
check_many = settings(max_examples=150, deadline=None, database=None)


@check_many
@given(tools, st.lists(rules, max_size=6), st.sampled_from(MODES), commands, st.randoms())
def test_the_order_of_rules_does_not_matter(tool, given_rules, mode, command, random) -> None:
    mixed = random.sample(given_rules, len(given_rules))
    one, other = (decided(tool, *each, mode=mode, command=command) for each in (given_rules, mixed))
    assert (one.behavior, one.bypass_immune) == (other.behavior, other.bypass_immune)


@check_many
@given(tools, st.lists(rules, max_size=6), rules, st.sampled_from(MODES), commands, st.integers(0, 6))
def test_a_deny_or_ask_rule_makes_nothing_laxer(tool, given_rules, rule, mode, command, place) -> None:
    rule = dataclasses.replace(rule, behavior=ASK if rule.behavior in (ALLOW, ASK) else DENY)
    before = decided(tool, *given_rules, mode=mode, command=command)
    after = decided(tool, *given_rules[:place], rule, *given_rules[place:], mode=mode, command=command)
    assert STRICTNESS.index(after.behavior) >= STRICTNESS.index(before.behavior)
    assert after.behavior is DENY or after.bypass_immune >= before.bypass_immune


def fits(pattern: str, text: str) -> bool:
    """Say whether a pattern of a rule fits, by other means than the engine's."""
    holes = {"[*]": r"\*", "[?]": r"\?", "*": "(?s:.*)", "?": "(?s:.)"}
    parts = re.split(r"(\[\*\]|\[\?\]|\*|\?)", pattern)
    return re.fullmatch("".join(holes.get(part, re.escape(part)) for part in parts), text) is not None


def covered(given_rules: list[PermissionRule], behavior: PermissionBehavior, forms: tuple[str, str]) -> bool:
    """Say whether rules of that behavior cover a call of `run`: for a no or a question one form is enough."""
    of_run = [rule for rule in given_rules if rule.behavior is behavior and fits(rule.tool_name, "run")]
    by_form = [any(rule.rule_content is None or fits(rule.rule_content, form) for rule in of_run) for form in forms]
    return all(by_form) if behavior is ALLOW else any(by_form)


@settings(check_many, max_examples=500)
@given(tools, st.lists(rules, max_size=6), st.sampled_from(MODES), commands, st.none() | commands)
def test_a_decision_is_that_of_the_reference_model(tool, given_rules, mode, written, effective) -> None:
    forms = (written, written if effective is None else effective)
    effects = tuple(each for each in (ALLOW, ASK, DENY) if covered(given_rules, each, forms))
    found = decided(tool, *given_rules, mode=mode, command=written, effective=effective)
    assert found.behavior is expected(tool.answer, tool.is_read_only, effects, mode)


@check_many
@given(tools, st.lists(rules, max_size=6), st.sampled_from(MODES), commands, commands)
def test_effective_input_never_makes_a_decision_laxer(tool, given_rules, mode, written, effective) -> None:
    both = decided(tool, *given_rules, mode=mode, command=written, effective=effective)
    for form in (written, effective):
        one = decided(tool, *given_rules, mode=mode, command=form)
        assert STRICTNESS.index(both.behavior) >= STRICTNESS.index(one.behavior)


@check_many
@given(tools, st.lists(rules, max_size=6), st.sampled_from(MODES), commands)
def test_a_deny_rule_that_covers_the_call_always_denies(tool, given_rules, mode, command) -> None:
    for pattern in (None, "*", command.replace("*", "[*]")):
        denied = PermissionRule("r?n", pattern, DENY)
        assert decided(tool, *given_rules, denied, mode=mode, command=command).behavior is DENY


@check_many
@given(tools, st.lists(rules, max_size=6), st.sampled_from(MODES), commands, st.none() | commands, commands)
def test_what_is_suggested_allows_this_call_and_no_other(tool, given_rules, mode, command, effective, other) -> None:
    decision = decided(tool, *given_rules, mode=mode, command=command, effective=effective)
    if decision.bypass_immune or decision.behavior is ALLOW:
        assert decision.suggested_rules == []
    if decision.suggested_rules:
        more = [*given_rules, *decision.suggested_rules]
        assert decided(tool, *more, mode=mode, command=command, effective=effective).behavior is ALLOW
        if other not in (command, effective):
            before = decided(tool, *given_rules, mode=mode, command=other).behavior
            assert decided(tool, *more, mode=mode, command=other).behavior is before


def test_an_ask_comes_with_the_rule_that_would_answer_it() -> None:
    (rule,) = decided(Run(), command="rm *").suggested_rules
    assert rule == PermissionRule("run", "rm [*]", ALLOW, "suggestion")
    assert decided(Run(), mode=DONT_ASK, command="rm *").suggested_rules == [rule]
    assert decided(Run(), PermissionRule("run"), command="rm *").suggested_rules == []  # no allow rule would help
    assert decided(Run("immune")).suggested_rules == []
    assert decided(Run(), command="a" * 1001).suggested_rules == []
    assert decided(Run(), command="*" * 400).suggested_rules == []


async def move(source: str, target: str) -> None: ...


class Moving(FunctionTool):
    def permission_subject(self, tool_input: dict[str, Any]) -> str:
        return str(tool_input["target"])


def test_a_suggested_rule_covers_the_tool_or_what_the_tool_names() -> None:
    for kind, content in ((FunctionTool, None), (Moving, "/b")):
        context = PermissionContext()
        decision = at_once(decide(kind(move, ask=True), {"source": "/a", "target": "/b"}, context))
        assert decision.suggested_rules == [PermissionRule("move", content, ALLOW, "suggestion")]
        context.rules = decision.suggested_rules
        again = at_once(decide(kind(move, ask=True), {"source": "/c", "target": "/b"}, context))
        assert again.behavior is ALLOW


def test_suggested_rule_for_a_default_covers_that_default_only() -> None:
    effective = {"command": "ls"}
    first = at_once(decide(FunctionTool(add, ask=True), {}, PermissionContext(), lambda: effective))
    assert [rule.rule_content for rule in first.suggested_rules] == ["{}", "ls"]
    context = PermissionContext(rules=first.suggested_rules)
    assert at_once(decide(FunctionTool(add, ask=True), {}, context, lambda: effective)).behavior is ALLOW
    assert at_once(decide(FunctionTool(add, ask=True), {"command": "rm -rf /"}, context)).behavior is ASK


def test_tool_with_an_infinite_default_has_rules_like_any_other() -> None:
    async def search(text: str, most: float = math.inf) -> None: ...

    def behavior(*rules: PermissionRule, text: str = "a") -> PermissionBehavior:
        prepared = Toolkit([search]).prepare(ToolCallBlock("1", "search", f'{{"text": "{text}"}}'))
        assert isinstance(prepared, PreparedCall)
        context = PermissionContext(rules=list(rules))
        return at_once(decide(prepared.tool, {"text": text}, context, prepared.effective_input)).behavior

    assert behavior(PermissionRule("*", "*rm -rf*", DENY)) is ALLOW
    assert behavior(PermissionRule("*", "*rm -rf*", DENY), text="rm -rf /") is DENY
    assert behavior(PermissionRule("search", "*Infinity*", DENY)) is DENY


def test_tool_that_cannot_name_its_subject_suggests_no_wide_rule(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Run):
        def has_subject(self, tool_input: dict[str, Any]) -> bool:
            raise ValueError("hunter2")

    assert decided(Odd()).suggested_rules == [PermissionRule("run", "a", ALLOW, "suggestion")]
    assert "has_subject of run raised ValueError" in caplog.text
    assert "hunter2" not in caplog.text


def test_message_says_once_that_nobody_can_be_asked() -> None:
    asked = decided(Run("passthrough"), mode=DONT_ASK)
    assert asked.decision_reason == "mode dont_ask"
    layer = dataclasses.replace(asked, behavior=ASK)
    again = combine(PermissionDecision(ALLOW), layer, DONT_ASK)
    assert (again.message, again.decision_reason) == (asked.message, "mode dont_ask")


def test_unknown_effective_arguments_count_against_the_call() -> None:
    def broken() -> dict[str, Any]:
        raise ValueError("hunter2")

    for behavior, ends in ((DENY, DENY), (ASK, ASK), (ALLOW, ASK)):
        context = PermissionContext(rules=[PermissionRule("run", "a", behavior)])
        assert at_once(decide(Run("passthrough"), {"command": "a"}, context, broken)).behavior is ends


async def test_suggested_rules_are_kept_except_for_an_immune_ask() -> None:
    wide = PermissionRule("run", "git *", ALLOW)

    class Wide(Run):
        def check_permissions(self, tool_input: dict[str, Any], context: PermissionContext) -> PermissionDecision:
            return PermissionDecision(ASK, suggested_rules=[wide], bypass_immune=self.answer == "immune")

    assert (await decide(Wide(), {"command": "git"}, PermissionContext())).suggested_rules == [wide]
    assert (await decide(Wide("immune"), {"command": "git"}, PermissionContext())).suggested_rules == []


@pytest.mark.parametrize(
    ("rules_given", "mode", "answer", "message", "reason"),
    [
        (
            [PermissionRule("r*", "a*", DENY, "policy.json")],
            DEFAULT,
            "allow",
            "the deny rule for r* from policy.json covers it",
            "rule deny r*(a*) from policy.json",
        ),
        ([PermissionRule("run")], DEFAULT, "allow", "the ask rule for run covers it", "rule ask run"),
        (
            [PermissionRule("run")],
            DONT_ASK,
            "allow",
            "nobody can be asked (the ask rule for run covers it)",
            "mode dont_ask; rule ask run",
        ),
        ([], EXPLORE, "allow", "the mode explore allows only what is read-only", "mode explore"),
        ([], BYPASS, "ask", "the mode bypass allows what no rule forbids", "mode bypass"),
        ([], DEFAULT, "passthrough", "the mode default asks about what no rule allows", "mode default"),
        ([], DEFAULT, "deny", "the tool says so", "tool run"),
        ([], DEFAULT, "raises", "check_permissions of run raised ValueError", "tool run"),
    ],
)
def test_a_decision_says_who_took_it(
    rules_given: list[PermissionRule], mode: PermissionMode, answer: str, message: str, reason: str
) -> None:
    decision = decided(Run(answer), *rules_given, mode=mode)
    assert (decision.message, decision.decision_reason) == (message, reason)


async def test_permission_check_of_a_tool_may_be_async() -> None:
    class Slow(Run):
        async def check_permissions(  # type: ignore[override]
            self, tool_input: dict[str, Any], context: PermissionContext
        ) -> PermissionDecision:
            await anyio.lowlevel.checkpoint()
            return PermissionDecision(ALLOW if context.mode is EDITS else PASSTHROUGH)

    assert (await decide(Slow(), {}, PermissionContext(EDITS))).behavior is ALLOW
    assert (await decide(Slow(), {}, PermissionContext())).behavior is ASK


async def test_cancellation_propagates_from_an_async_permission_check() -> None:
    class Stuck(Run):
        def check_permissions(self, *_: Any) -> Awaitable[PermissionDecision]:  # type: ignore[override]
            return anyio.sleep_forever()  # type: ignore[return-value]

    with anyio.move_on_after(0.01) as scope:
        await decide(Stuck(), {}, PermissionContext())
    assert scope.cancelled_caught


async def _none() -> None: ...


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [None, True, ALLOW, "allow", {"behavior": "allow"}, _none])
async def test_a_tool_that_returns_no_decision_denies(value: Any, mode: PermissionMode) -> None:
    class Odd(Run):
        def check_permissions(self, *_: Any) -> Any:
            return value() if inspect.isfunction(value) else value

    decision = await decide(Odd(), {}, PermissionContext(mode))
    assert decision.behavior is DENY
    if mode is not EXPLORE:
        assert "instead of a PermissionDecision" in decision.message


async def test_failing_permission_check_is_logged_by_its_type_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "agentrt"):
        decision = await decide(Run("raises"), {"command": "hunter2"}, PermissionContext())
    assert "hunter2" not in f"{decision!r}{caplog.text}"
    assert [record.getMessage() for record in caplog.records] == [
        "check_permissions of run raised ValueError: the call is denied"
    ]


class Unreadable(Run):
    subject: Any = None

    def permission_subject(self, tool_input: dict[str, Any]) -> str:
        if self.subject is None:
            raise KeyError("hunter2")
        return self.subject  # type: ignore[no-any-return]


@pytest.mark.parametrize("subject", [None, 7, b"a"])
def test_call_without_a_subject_is_covered_by_strict_rules_only(subject: Any, caplog: pytest.LogCaptureFixture) -> None:
    tool = Unreadable("allow")
    tool.subject = subject
    assert decided(tool, PermissionRule("run", "x", DENY)).behavior is DENY
    assert decided(tool, PermissionRule("run", "x", ASK)).behavior is ASK
    assert decided(tool, PermissionRule("walk", "x", DENY)).behavior is ALLOW
    tool.answer = "passthrough"
    decision = decided(tool, PermissionRule("run", "*", ALLOW))
    assert (decision.behavior, decision.suggested_rules) == (ASK, [])
    assert "permission_subject of run" in caplog.text
    assert "hunter2" not in caplog.text


def test_subject_is_read_only_if_a_rule_depends_on_it() -> None:
    assert decided(Unreadable("allow"), PermissionRule("run", None, ALLOW), PermissionRule("walk", "a", DENY)).message
    assert decided(Unreadable("deny"), PermissionRule("run", "x", ALLOW)).behavior is DENY


decisions = st.builds(PermissionDecision, behaviors, bypass_immune=st.booleans())


@check_many
@given(decisions, decisions)
def test_stricter_decision_holds_except_for_an_answered_ask(
    engine: PermissionDecision, layer: PermissionDecision
) -> None:
    behavior = combine(engine, layer).behavior
    opinions = [each.behavior for each in (engine, layer) if each.behavior is not PASSTHROUGH]
    if not opinions:
        assert behavior is ASK
    elif layer.behavior is ALLOW and engine.behavior is ASK:
        assert behavior is (ASK if engine.bypass_immune else ALLOW)
    else:
        assert behavior is max(opinions, key=STRICTNESS.index)
    if behavior is ASK and engine.behavior is ASK:
        assert combine(engine, layer).bypass_immune >= engine.bypass_immune


def test_a_layer_can_ask_nobody_where_nobody_can_be_asked() -> None:
    found = combine(PermissionDecision(ALLOW), PermissionDecision(ASK, "sure?", "layer"), DONT_ASK)
    assert found == PermissionDecision(DENY, "nobody can be asked (sure?)", "mode dont_ask; layer")
    found = combine(PermissionDecision(ALLOW), PermissionDecision(ASK), DONT_ASK)
    assert found == PermissionDecision(DENY, "nobody can be asked", "mode dont_ask")
    assert combine(PermissionDecision(DENY, "no"), PermissionDecision(ALLOW), DONT_ASK).message == "no"


def test_a_layer_cannot_change_the_engines_decision_in_place() -> None:
    decision = decided(Run("deny"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        decision.behavior = ALLOW  # type: ignore[misc]


@given(
    st.builds(
        PermissionContext,
        st.sampled_from(MODES),
        st.lists(
            st.builds(
                PermissionRule,
                st.text().filter(lambda text: "(" not in text),
                st.none() | st.text(),
                behaviors,
                st.text(),
            ),
            max_size=3,
        ),
        st.booleans(),
        st.booleans(),
    )
)
def test_a_context_survives_json(context: PermissionContext) -> None:
    adapter = TypeAdapter(PermissionContext)
    assert adapter.validate_json(adapter.dump_json(context)) == context


def test_a_decision_survives_json() -> None:
    decision = PermissionDecision(ASK, "m", "r", [PermissionRule("f", "a", ALLOW, "s")], True)
    adapter = TypeAdapter(PermissionDecision)
    assert adapter.validate_json(adapter.dump_json(decision)) == decision


@pytest.mark.parametrize(
    "text", ['{"mode":"yolo"}', '{"rules":[{"tool_name":"f","behaviour":"deny"}]}', '{"rules":[{"rule_content":"f"}]}']
)
def test_a_context_with_a_misspelt_field_or_word_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(PermissionContext).validate_json(text)


def test_modes_and_behaviors_may_be_strings_if_spelt_correctly() -> None:
    assert PermissionContext("explore").mode is EXPLORE  # type: ignore[arg-type]
    assert PermissionRule("f", None, "deny").behavior is DENY  # type: ignore[arg-type]
    assert PermissionDecision("allow").behavior is ALLOW  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"PermissionRule\(behavior=...\) must be one of 'allow', .*, not 'denied'"):
        PermissionRule("f", None, "denied")  # type: ignore[arg-type]
    context = PermissionContext()
    context.mode = "explroe"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="'explroe' is not a valid PermissionMode"):
        at_once(decide(Run("allow"), {}, context))


def test_a_rule_that_does_not_say_otherwise_asks() -> None:
    assert PermissionRule("f").behavior is ASK
