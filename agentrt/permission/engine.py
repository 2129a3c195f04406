"""Decides on one tool call. The first line that applies decides:

    1. a deny rule covers it                                  DENY
    2. the tool is read-only and does not `ask`               ALLOW
    3. the mode is EXPLORE and the tool is not read-only      DENY
    4. the tool says ALLOW or DENY                            as it says
    5. the tool's ASK is bypass-immune, the mode not BYPASS   ASK
    6. an allow rule covers it                                ALLOW
    7. the mode is BYPASS                                     ALLOW
    8. none of these                                          ASK

An ask rule that covers the call then makes an ALLOW an ASK, and never a DENY an ASK: no deny or ask rule makes anything
laxer. In the mode DONT_ASK every ASK is a DENY.

Unknown facts count against the call: if a tool's own check fails, the call is denied, and if the tool cannot say
what a call is about, every deny or ask rule covers that call.

A call has two forms: the arguments that the model wrote, and those that the tool will receive, converted and with
defaults filled in. A deny or ask rule covers the call if it fits either; for an ALLOW, an allow rule must cover each of
them.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from agentrt.permission.answer import MAX_CONTENT
from agentrt.permission.glob import escape, matches
from agentrt.types import (
    JSONObject,
    PermissionBehavior,
    PermissionContext,
    PermissionDecision,
    PermissionMode,
    PermissionRule,
)

_logger = logging.getLogger("agentrt")

_ALLOW, _ASK, _DENY, _PASSTHROUGH = (
    PermissionBehavior.ALLOW,
    PermissionBehavior.ASK,
    PermissionBehavior.DENY,
    PermissionBehavior.PASSTHROUGH,
)
_DEFAULT, _DONT_ASK = PermissionMode.DEFAULT, PermissionMode.DONT_ASK
_NOBODY_ASKED, _NOT_ASKING = "nobody can be asked", f"mode {PermissionMode.DONT_ASK}"
_STRICTNESS = {_PASSTHROUGH: 0, _ALLOW: 1, _ASK: 2, _DENY: 3}


class PermittedTool(Protocol):
    """The part of a tool that the engine uses; `agentrt.tool.ToolBase` has it."""

    name: str
    is_read_only: bool
    ask: bool

    @property
    def is_trusted(self) -> bool: ...

    def check_permissions(
        self, tool_input: JSONObject, context: PermissionContext
    ) -> PermissionDecision | Awaitable[PermissionDecision]: ...

    def permission_subject(self, tool_input: JSONObject) -> str: ...

    def has_subject(self, tool_input: JSONObject) -> bool: ...


EffectiveInput = Callable[[], JSONObject]
"""Returns the arguments that the tool will receive, as JSON; called only if a rule may depend on them."""


def needs_no_decision(tool: PermittedTool, context: PermissionContext | None = None) -> bool:
    """Say, cheaply, whether `decide` would allow every call of the tool; `None` is the default context."""
    return (context is None or (context.mode is _DEFAULT and not context.rules)) and tool.is_trusted


async def decide(
    tool: PermittedTool,
    tool_input: JSONObject,
    context: PermissionContext,
    effective_input: EffectiveInput | None = None,
) -> PermissionDecision:
    """Return the decision on the call: ALLOW, ASK or DENY.

    `tool_input` is the model's input, which is passed to the tool and never changed here. `effective_input`
    returns the input with which the tool will run. Exceptions of the tool are handled; a cancellation propagates.
    """
    mode = PermissionMode(context.mode)
    call = _CallUnderRules(tool, tool_input, effective_input)
    # Only deny rules decide at once: nothing can make a DENY laxer.
    decision = call.decide_by_rules(context.rules, _DENY)
    if decision is None:
        asks = call.decide_by_rules(context.rules, _ASK)
        decision = call.decide_by_kind(mode) or await _decide_by_tool(call, context, mode)
        decision = decision if asks is None else combine(decision, asks)
    return _apply_mode(mode, decision)


def combine(
    engine: PermissionDecision, layer: PermissionDecision, mode: PermissionMode = PermissionMode.DEFAULT
) -> PermissionDecision:
    """Combine the engine's decision with that of a layer of on_check_permission: the stricter one holds.

    A layer may answer an ASK of the engine that is not bypass-immune. PASSTHROUGH means no opinion; when neither has
    one, the result is an ASK. In the mode DONT_ASK a layer's ASK is a DENY as well.
    """
    if engine.behavior is _PASSTHROUGH:
        engine = replace(engine, behavior=_ASK, bypass_immune=False)
    if layer.behavior is _PASSTHROUGH:
        layer = engine  # so that the comparison below chooses the engine's
    is_answer = engine.behavior is _ASK and not engine.bypass_immune
    is_stricter = _STRICTNESS[layer.behavior] > _STRICTNESS[engine.behavior]
    return _apply_mode(mode, layer if is_answer or is_stricter else engine)


def covers(
    rules: list[PermissionRule],
    tool: PermittedTool,
    tool_input: JSONObject,
    effective_input: EffectiveInput | None = None,
    behavior: PermissionBehavior = _ALLOW,
) -> bool:
    """Say whether the rules of that behavior cover the call."""
    return bool(rules) and _CallUnderRules(tool, tool_input, effective_input).find_rule(rules, behavior) is not None


def _apply_mode(mode: PermissionMode, decision: PermissionDecision) -> PermissionDecision:
    if mode != _DONT_ASK or decision.behavior is not _ASK:
        return decision
    message, reason = decision.message, decision.decision_reason
    # Applied to the engine's decision and to the combined one, but the text is added once.
    if not message.startswith(_NOBODY_ASKED):
        message = f"{_NOBODY_ASKED} ({message})" if message else _NOBODY_ASKED
    if not reason.startswith(_NOT_ASKING):
        reason = f"{_NOT_ASKING}; {reason}" if reason else _NOT_ASKING
    return replace(decision, behavior=_DENY, message=message, decision_reason=reason)


class _CallUnderRules:
    """A tool call, as the rules see it."""

    __slots__ = ("_effective_input", "_subjects", "input", "tool")

    def __init__(self, tool: PermittedTool, tool_input: JSONObject, effective_input: EffectiveInput | None) -> None:
        self.tool = tool
        self.input = tool_input
        self._effective_input = effective_input
        self._subjects: list[str] | None = None

    def subjects(self) -> list[str]:
        """Return the subject of each form of the call, or nothing if the tool cannot name all of them.

        The tool is asked once, and only if a rule depends on it.
        """
        if self._subjects is None:
            self._subjects = []
            written = _subject_of(self.tool, lambda: self.input)
            effective = written if self._effective_input is None else _subject_of(self.tool, self._effective_input)
            if written is not None and effective is not None:
                self._subjects = [written] if written == effective else [written, effective]
        return self._subjects

    def find_rule(self, rules: list[PermissionRule], behavior: PermissionBehavior) -> PermissionRule | None:
        """Return a rule of that behavior that covers the call; the first, if several cover it together."""
        return self._find_allow_rule(rules) if behavior is _ALLOW else self._find_strict_rule(rules, behavior)

    def _find_strict_rule(self, rules: list[PermissionRule], behavior: PermissionBehavior) -> PermissionRule | None:
        # A deny or ask rule needs to fit one form only, and also holds if no form is known.
        name = self.tool.name
        for rule in rules:
            if rule.behavior is not behavior or not (rule.tool_name == name or matches(rule.tool_name, name)):
                continue
            if rule.rule_content is None:
                return rule
            subjects = self.subjects()
            if not subjects or any(matches(rule.rule_content, subject) for subject in subjects):
                return rule
        return None

    def _find_allow_rule(self, rules: list[PermissionRule]) -> PermissionRule | None:
        # Each form must be allowed, though it may be by different rules.
        name = self.tool.name
        first: PermissionRule | None = None
        uncovered: list[str] | None = None
        for rule in rules:
            if rule.behavior is not _ALLOW or not (rule.tool_name == name or matches(rule.tool_name, name)):
                continue
            if rule.rule_content is None:
                return rule
            before = self.subjects() if uncovered is None else uncovered
            uncovered = [subject for subject in before if not matches(rule.rule_content, subject)]
            if len(uncovered) < len(before):
                first = first or rule
                if not uncovered:
                    return first
        return None

    def decide_by_rules(self, rules: list[PermissionRule], behavior: PermissionBehavior) -> PermissionDecision | None:
        """Return the decision of the rules of that behavior, if they have one."""
        rule = self.find_rule(rules, behavior) if rules else None
        if rule is None:
            return None
        source = f" from {rule.source}" if rule.source else ""
        content = "" if rule.rule_content is None else f"({rule.rule_content})"
        return PermissionDecision(
            behavior,
            f"the {behavior} rule for {rule.tool_name}{source} covers it",
            f"rule {behavior} {rule.tool_name}{content}{source}",
        )

    def decide_by_kind(self, mode: PermissionMode) -> PermissionDecision | None:
        """Return the decision that follows from whether the tool is read-only, if any."""
        if not self.tool.is_read_only:
            explores = mode is PermissionMode.EXPLORE
            return _decision_of_mode(_DENY, mode, "allows only what is read-only") if explores else None
        if self.tool.ask:
            return None
        return PermissionDecision(_ALLOW, f"{self.tool.name} is read-only", "read-only")

    async def ask_tool(self, context: PermissionContext) -> PermissionDecision:
        """Return the tool's own decision on the call."""
        tool = self.tool
        try:
            decision = tool.check_permissions(self.input, context)
            if inspect.isawaitable(decision):
                decision = await decision
        except Exception as error:  # noqa: BLE001  # whatever went wrong, the call must not run
            failure = f"raised {_type_name(error)}"
        else:
            if isinstance(decision, PermissionDecision):
                return decision if decision.decision_reason else replace(decision, decision_reason=f"tool {tool.name}")
            failure = f"returned {_type_name(decision)} instead of a PermissionDecision"
        message = f"check_permissions of {tool.name} {failure}"
        _logger.error("%s: the call is denied", message)
        return PermissionDecision(_DENY, message, f"tool {tool.name}")

    def suggestions(self) -> list[PermissionRule]:
        """Return rules that would allow the call's subject, or the tool itself if it names no subject."""
        effective = self._effective_input
        if not (
            _has_subject(self.tool, lambda: self.input)
            or (effective is not None and _has_subject(self.tool, effective))
        ):
            return [PermissionRule(self.tool.name, None, _ALLOW, "suggestion")]
        subjects = self.subjects()
        if any(len(subject) > MAX_CONTENT for subject in subjects):  # before the work of escaping them
            return []
        contents = [escape(subject) for subject in subjects]
        if any(len(content) > MAX_CONTENT for content in contents):
            return []
        return [PermissionRule(self.tool.name, content, _ALLOW, "suggestion") for content in contents]


async def _decide_by_tool(
    call: _CallUnderRules, context: PermissionContext, mode: PermissionMode
) -> PermissionDecision:
    """Decide by what the tool says, the allow rules and the mode: lines 4 to 8."""
    decision = await call.ask_tool(context)
    if decision.behavior is _ALLOW or decision.behavior is _DENY:
        return decision
    asks, bypasses = decision.behavior is _ASK, mode is PermissionMode.BYPASS
    if asks and decision.bypass_immune and not bypasses:
        return replace(decision, suggested_rules=[])  # no rule would change it
    allowed = call.decide_by_rules(context.rules, _ALLOW)
    if allowed is not None:
        return allowed
    if bypasses:
        return _decision_of_mode(_ALLOW, mode, "allows what no rule forbids")
    if not asks:
        decision = _decision_of_mode(_ASK, mode, "asks about what no rule allows")
    return decision if decision.suggested_rules else replace(decision, suggested_rules=call.suggestions())


def _decision_of_mode(behavior: PermissionBehavior, mode: PermissionMode, why: str) -> PermissionDecision:
    return PermissionDecision(behavior, f"the mode {mode} {why}", f"mode {mode}")


def _subject_of(tool: PermittedTool, read_input: EffectiveInput) -> str | None:
    try:
        subject = tool.permission_subject(read_input())
    except Exception as error:  # noqa: BLE001  # whatever went wrong, the rules must still hold
        failure = f"raised {_type_name(error)}"
    else:
        if isinstance(subject, str):
            return subject
        failure = f"returned {_type_name(subject)} instead of a str"
    _logger.error(
        "permission_subject of %s %s: every deny and ask rule for it holds, no allow rule does", tool.name, failure
    )
    return None


def _has_subject(tool: PermittedTool, read_input: EffectiveInput) -> bool:
    try:
        return tool.has_subject(read_input())
    except Exception as error:  # noqa: BLE001  # what is offered must not be wider than what the tool may mean
        _logger.error("has_subject of %s raised %s: the narrower rule is offered", tool.name, _type_name(error))
        return True


def _type_name(value: object) -> str:
    # Never the value: it may hold the arguments of the call, which do not belong in a log.
    return type(value).__name__
