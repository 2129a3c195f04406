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
"""

import inspect
import logging
from collections.abc import Awaitable
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

__all__ = ["PermittedTool", "combine", "covers", "decide", "needs_no_decision"]

_logger = logging.getLogger("agentrt")

_ALLOW, _ASK, _DENY, _PASSTHROUGH = (
    PermissionBehavior.ALLOW,
    PermissionBehavior.ASK,
    PermissionBehavior.DENY,
    PermissionBehavior.PASSTHROUGH,
)
_DEFAULT = PermissionMode.DEFAULT
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


def needs_no_decision(tool: PermittedTool, context: PermissionContext | None = None) -> bool:
    """Say whether `decide` would allow every call of the tool, for much less; `None` is the default context."""
    return (context is None or (context.mode is _DEFAULT and not context.rules)) and tool.is_trusted


async def decide(tool: PermittedTool, tool_input: dict[str, Any], context: PermissionContext) -> PermissionDecision:
    """Return what is to become of the call: ALLOW, ASK or DENY.

    `tool_input` is handed to the tool as it is, and nothing here changes it. An exception of the tool never leaves;
    a cancellation does.
    """
    mode = PermissionMode(context.mode)
    call = _Call(tool, tool_input)
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


def covers(rules: list[PermissionRule], tool: PermittedTool, tool_input: dict[str, Any]) -> bool:
    """Say whether one of the allow rules covers the call."""
    return bool(rules) and _Call(tool, tool_input).covering(rules, _ALLOW) is not None


def _in_mode(mode: PermissionMode, decision: PermissionDecision) -> PermissionDecision:
    if mode != PermissionMode.DONT_ASK or decision.behavior is not _ASK:
        return decision
    message = f"nobody can be asked ({decision.message})" if decision.message else "nobody can be asked"
    reason = f"mode {PermissionMode.DONT_ASK}; {decision.decision_reason}".removesuffix("; ")
    return replace(decision, behavior=_DENY, message=message, decision_reason=reason)


class _Call:
    """A tool call, as the rules see it."""

    __slots__ = ("_is_read", "_subject", "input", "tool")

    def __init__(self, tool: PermittedTool, tool_input: dict[str, Any]) -> None:
        self.tool = tool
        self.input = tool_input
        self._subject: str | None = None
        self._is_read = False

    @property
    def subject(self) -> str | None:
        """What the call is about, `None` if that cannot be told; asked of the tool once, and only if it matters."""
        if not self._is_read:
            self._is_read = True
            self._subject = _subject(self.tool, self.input)
        return self._subject

    def covering(self, rules: list[PermissionRule], behavior: PermissionBehavior) -> PermissionRule | None:
        """Return a rule of that behavior that covers the call."""
        name = self.tool.name
        for rule in rules:
            if rule.behavior is not behavior or not (rule.tool_name == name or matches(rule.tool_name, name)):
                continue
            if rule.rule_content is None or self._is_about(rule.rule_content, behavior):
                return rule
        return None

    def _is_about(self, content: str, behavior: PermissionBehavior) -> bool:
        subject = self.subject
        return behavior is not _ALLOW if subject is None else matches(content, subject)

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
        """Return rules that would allow what is about the same, and nothing else."""
        subject = self.subject
        if subject is None or len(subject) > MAX_CONTENT:
            return []
        content = escape(subject)
        return [PermissionRule(self.tool.name, content, _ALLOW, "suggestion")] if len(content) <= MAX_CONTENT else []


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


def _subject(tool: PermittedTool, tool_input: dict[str, Any]) -> str | None:
    try:
        subject = tool.permission_subject(tool_input)
    except Exception as error:  # noqa: BLE001  # whatever went wrong, the rules must still hold
        what = f"raised {_name_of(error)}"
    else:
        if isinstance(subject, str):
            return subject
        what = f"returned {_name_of(subject)} in place of text"
    _logger.error("permission_subject of %s %s: every deny and ask rule for it holds, no allow rule", tool.name, what)
    return None


def _name_of(value: object) -> str:
    # What it holds may be the arguments of the call, and those are nobody else's.
    return type(value).__name__
