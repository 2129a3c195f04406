"""Answers of the user: the digest that binds one to its question, and the rules that it may add."""

from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256

from agentrt.errors import ResumeError
from agentrt.types import PermissionBehavior, PermissionContext, PermissionRule

MAX_CONTENT = 1_000
"""The maximum length of the content of a rule from outside, in characters."""

_MAX_NAME_SHOWN = 100


def digest(name: str, input_text: str) -> str:
    """Return a digest that only this tool with exactly this input has."""
    encoded = name.encode("utf-8", "surrogatepass")
    # The length says where the name ends, whatever is in it.
    return sha256(b"%d:%s%s" % (len(encoded), encoded, input_text.encode("utf-8", "surrogatepass"))).hexdigest()


def accept_rules(context: PermissionContext, rules: Iterable[PermissionRule], tool_name: str) -> list[PermissionRule]:
    """Return those rules of an answer that are new, for `context.rules` to be extended with; changes nothing.

    Their source becomes "user", whatever they say. Raises `ResumeError` unless the context takes new rules and each of
    them is for the tool that the question was about.
    """
    new: list[PermissionRule] = []
    for rule in rules:
        _check_rule(context, rule, tool_name)
        accepted = replace(rule, source="user")  # always: an answer cannot pass for policy
        if accepted not in context.rules and accepted not in new:
            new.append(accepted)
    return new


def _check_rule(context: PermissionContext, rule: PermissionRule, tool_name: str) -> None:
    if not context.allow_new_rules:
        raise ResumeError(
            f"the answer about {tool_name!r} brings a rule, which is not permitted: leave `rules` empty, or set "
            f"allow_new_rules in the conversation's permission_context",
            code="mismatch",
        )
    if rule.tool_name != tool_name:
        raise ResumeError(
            f"the answer about {tool_name!r} brings a rule for {rule.tool_name[:_MAX_NAME_SHOWN]!r}: a rule must name "
            f"the tool that was asked about",
            code="mismatch",
        )
    if rule.behavior is PermissionBehavior.PASSTHROUGH:
        raise ResumeError(
            f"the answer about {tool_name!r} brings a rule that says nothing: its behavior must be allow, ask or deny",
            code="invalid",
        )
    if rule.rule_content is not None and len(rule.rule_content) > MAX_CONTENT:
        raise ResumeError(
            f"the answer about {tool_name!r} brings a rule of {len(rule.rule_content):,} characters, but at most "
            f"{MAX_CONTENT:,} are allowed: use `*`",
            code="invalid",
        )
