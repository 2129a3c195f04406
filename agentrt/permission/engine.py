"""Deciding on one tool call. The first line that applies decides:

    1. a deny rule covers it                                  DENY
    2. the tool is read-only and does not `ask`               ALLOW
    3. the mode is EXPLORE and the tool is not read-only      DENY
    4. the tool says ALLOW or DENY                            as it says
    5. the tool's ASK is bypass-immune, the mode not BYPASS   ASK
    6. an allow rule covers it                                ALLOW
    7. the mode is BYPASS                                     ALLOW
    8. nothing of this                                        ASK

An ask rule that covers the call then makes an ALLOW an ASK, and never a DENY an ASK: no deny or ask rule makes anything
laxer. In the mode DONT_ASK every ASK is a DENY.

What cannot be told counts against the call: a tool that fails to say what it thinks denies, and every deny or ask rule
covers a call of which the tool cannot say what it is about.

A call has two forms: the arguments that the model wrote, and those that the tool will get, converted and with defaults
filled in. A deny or ask rule covers the call if it fits either; for an ALLOW, an allow rule must cover each of them.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from agentrt.permission.answer import MAX_CONTENT
from agentrt.permission.glob import escape, matches
from agentrt.types import (
    PermissionBehavior,
    PermissionContext,
    PermissionDecision,
    PermissionMode,
    PermissionRule,
)

__all__ = ["EffectiveInput", "PermittedTool", "combine", "covers", "decide", "needs_no_decision"]

_logger = logging.getLogger("agentrt")

_ALLOW, _ASK, _DENY, _PASSTHROUGH = (
    PermissionBehavior.ALLOW,
    PermissionBehavior.ASK,
    PermissionBehavior.DENY,
    PermissionBehavior.PASSTHROUGH,
)
_DEFAULT = PermissionMode.DEFAULT
_NOBODY, _UNASKED = "nobody can be asked", f"mode {PermissionMode.DONT_ASK}"
_STRICTNESS = {_PASSTHROUGH: 0, _ALLOW: 1, _ASK: 2, _DENY: 3}


class PermittedTool(Protocol):
    """What the engine needs of a tool; `agentrt.tool.ToolBase` has it all."""

    name: str
    is_read_only: bool
    ask: bool

    @property
    def is_trusted(self) -> bool: ...

    def check_permissions(
        self, tool_input: dict[str, Any], context: PermissionContext
    ) -> PermissionDecision | Awaitable[PermissionDecision]: ...

    def permission_subject(self, tool_input: dict[str, Any]) -> str: ...

    def has_subject(self, tool_input: dict[str, Any]) -> bool: ...


EffectiveInput = Callable[[], dict[str, Any]]
"""Returns the arguments that the tool will get, in their JSON form; called only if a rule may depend on it."""


def needs_no_decision(tool: PermittedTool, context: PermissionContext | None = None) -> bool:
    """Say whether `decide` would allow every call of the tool, for much less; `None` is the default context."""
    return (context is None or (context.mode is _DEFAULT and not context.rules)) and tool.is_trusted


async def decide(
    tool: PermittedTool,
    tool_input: dict[str, Any],
    context: PermissionContext,
    effective_input: EffectiveInput | None = None,
) -> PermissionDecision:
    """Return what is to become of the call: ALLOW, ASK or DENY.

    `tool_input` is what the model wrote; it is handed to the tool as it is, and nothing here changes it.
    `effective_input` returns what the tool will get. An exception of the tool never leaves; a cancellation does.
    """
    mode = PermissionMode(context.mode)
    call = _Call(tool, tool_input, effective_input)
    decision = call.by_rule(context.rules, _DENY)
    if decision is None:
        asks = call.by_rule(context.rules, _ASK)
        decision = call.by_kind(mode) or await _weighed(call, context, mode)
        decision = decision if asks is None else combine(decision, asks)
    return _in_mode(mode, decision)


def combine(
    engine: PermissionDecision, layer: PermissionDecision, mode: PermissionMode = PermissionMode.DEFAULT
) -> PermissionDecision:
    """Return what holds when a layer of on_check_permission has its say as well: the stricter one.

    A layer may answer an ASK of the engine that is not bypass-immune. PASSTHROUGH is to have no opinion; when nobody
    has one, it is an ASK. In the mode DONT_ASK a layer's ASK is a DENY as well.
    """
    if engine.behavior is _PASSTHROUGH:
        engine = replace(engine, behavior=_ASK, bypass_immune=False)
    if layer.behavior is _PASSTHROUGH:
        layer = engine
    answers = engine.behavior is _ASK and not engine.bypass_immune
    stricter = _STRICTNESS[layer.behavior] > _STRICTNESS[engine.behavior]
    return _in_mode(mode, layer if answers or stricter else engine)


def covers(
    rules: list[PermissionRule],
    tool: PermittedTool,
    tool_input: dict[str, Any],
    effective_input: EffectiveInput | None = None,
    behavior: PermissionBehavior = _ALLOW,
) -> bool:
    """Say whether the rules of that behavior cover the call."""
    return bool(rules) and _Call(tool, tool_input, effective_input).covering(rules, behavior) is not None


def _in_mode(mode: PermissionMode, decision: PermissionDecision) -> PermissionDecision:
    if mode != PermissionMode.DONT_ASK or decision.behavior is not _ASK:
        return decision
    message, reason = decision.message, decision.decision_reason
    if not message.startswith(_NOBODY):
        message = f"{_NOBODY} ({message})" if message else _NOBODY
    if not reason.startswith(_UNASKED):
        reason = f"{_UNASKED}; {reason}" if reason else _UNASKED
    return replace(decision, behavior=_DENY, message=message, decision_reason=reason)


class _Call:
    """A tool call, as the rules see it."""

    __slots__ = ("_effective_input", "_subjects", "input", "tool")

    def __init__(self, tool: PermittedTool, tool_input: dict[str, Any], effective_input: EffectiveInput | None) -> None:
        self.tool = tool
        self.input = tool_input
        self._effective_input = effective_input
        self._subjects: list[str] | None = None

    def subjects(self) -> list[str]:
        """Return what each form of the call is about, or nothing if the tool cannot say it of every form.

        The tool is asked once, and only if it matters.
        """
        if self._subjects is None:
            self._subjects = _subjects(self.tool, self.input, self._effective_input)
        return self._subjects

    def _forms(self) -> list[EffectiveInput]:
        written = [lambda: self.input]
        return written if self._effective_input is None else [*written, self._effective_input]

    def covering(self, rules: list[PermissionRule], behavior: PermissionBehavior) -> PermissionRule | None:
        """Return a rule of that behavior that covers the call; of several that cover it together, the first."""
        name = self.tool.name
        found: PermissionRule | None = None
        left: list[str] | None = None
        for rule in rules:
            if rule.behavior is not behavior or not (rule.tool_name == name or matches(rule.tool_name, name)):
                continue
            if rule.rule_content is None:
                return rule
            subjects = self.subjects()
            if behavior is not _ALLOW:
                if not subjects or any(matches(rule.rule_content, subject) for subject in subjects):
                    return rule
                continue
            left = subjects if left is None else left
            fits = [subject for subject in left if matches(rule.rule_content, subject)]
            if fits:
                found = found or rule
                left = [subject for subject in left if subject not in fits]
                if not left:
                    return found
        return None

    def by_rule(self, rules: list[PermissionRule], behavior: PermissionBehavior) -> PermissionDecision | None:
        """Return the decision of the rules of that behavior, if they have one."""
        rule = self.covering(rules, behavior) if rules else None
        if rule is None:
            return None
        source = f" from {rule.source}" if rule.source else ""
        content = "" if rule.rule_content is None else f"({rule.rule_content})"
        return PermissionDecision(
            behavior,
            f"the {behavior} rule for {rule.tool_name}{source} covers it",
            f"rule {behavior} {rule.tool_name}{content}{source}",
        )

    def by_kind(self, mode: PermissionMode) -> PermissionDecision | None:
        """Return what follows from whether the tool is read-only, if that settles it."""
        if not self.tool.is_read_only:
            explores = mode is PermissionMode.EXPLORE
            return _by_mode(_DENY, mode, "allows only what is read-only") if explores else None
        if self.tool.ask:
            return None
        return PermissionDecision(_ALLOW, f"{self.tool.name} is read-only", "read-only")

    def suggestions(self) -> list[PermissionRule]:
        """Return rules that would allow what the call is about, or the tool itself if it does not say what that is."""
        if not any(_has_subject(self.tool, read) for read in self._forms()):
            return [PermissionRule(self.tool.name, None, _ALLOW, "suggestion")]
        subjects = self.subjects()
        if any(len(subject) > MAX_CONTENT for subject in subjects):
            return []
        contents = [escape(subject) for subject in subjects]
        if any(len(content) > MAX_CONTENT for content in contents):
            return []
        return [PermissionRule(self.tool.name, content, _ALLOW, "suggestion") for content in contents]


async def _weighed(call: _Call, context: PermissionContext, mode: PermissionMode) -> PermissionDecision:
    """Decide by what the tool says, the allow rules and the mode."""
    said = await _asked_of_tool(call, context)
    if said.behavior is _ALLOW or said.behavior is _DENY:
        return said
    asks, bypasses = said.behavior is _ASK, mode is PermissionMode.BYPASS
    if asks and said.bypass_immune and not bypasses:
        return replace(said, suggested_rules=[])
    allowed = call.by_rule(context.rules, _ALLOW)
    if allowed is not None:
        return allowed
    if bypasses:
        return _by_mode(_ALLOW, mode, "allows what no rule forbids")
    if not asks:
        said = _by_mode(_ASK, mode, "asks about what no rule allows")
    return said if said.suggested_rules else replace(said, suggested_rules=call.suggestions())


def _by_mode(behavior: PermissionBehavior, mode: PermissionMode, why: str) -> PermissionDecision:
    return PermissionDecision(behavior, f"the mode {mode} {why}", f"mode {mode}")


async def _asked_of_tool(call: _Call, context: PermissionContext) -> PermissionDecision:
    tool = call.tool
    try:
        said = tool.check_permissions(call.input, context)
        if inspect.isawaitable(said):
            said = await said
    except Exception as error:  # noqa: BLE001  # whatever went wrong, the call must not run
        return _denied_unsaid(tool, f"raised {_name_of(error)}")
    if not isinstance(said, PermissionDecision):
        return _denied_unsaid(tool, f"returned {_name_of(said)} in place of a PermissionDecision")
    return said if said.decision_reason else replace(said, decision_reason=f"tool {tool.name}")


def _denied_unsaid(tool: PermittedTool, what: str) -> PermissionDecision:
    told = f"check_permissions of {tool.name} {what}"
    _logger.error("%s: the call is denied", told)
    return PermissionDecision(_DENY, told, f"tool {tool.name}")


def _subjects(tool: PermittedTool, tool_input: dict[str, Any], effective_input: EffectiveInput | None) -> list[str]:
    written = _subject(tool, lambda: tool_input)
    effective = written if effective_input is None else _subject(tool, effective_input)
    if written is None or effective is None:
        return []
    return [written] if written == effective else [written, effective]


def _subject(tool: PermittedTool, read: EffectiveInput) -> str | None:
    try:
        subject = tool.permission_subject(read())
    except Exception as error:  # noqa: BLE001  # whatever went wrong, the rules must still hold
        what = f"raised {_name_of(error)}"
    else:
        if isinstance(subject, str):
            return subject
        what = f"returned {_name_of(subject)} in place of text"
    _logger.error("permission_subject of %s %s: every deny and ask rule for it holds, no allow rule", tool.name, what)
    return None


def _has_subject(tool: PermittedTool, read: EffectiveInput) -> bool:
    try:
        return tool.has_subject(read())
    except Exception as error:  # noqa: BLE001  # what is offered must not be wider than what the tool may mean
        _logger.error("has_subject of %s raised %s: the narrower rule is offered", tool.name, _name_of(error))
        return True


def _name_of(value: object) -> str:
    # What it holds may be the arguments of the call, and those are nobody else's.
    return type(value).__name__
