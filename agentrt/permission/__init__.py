"""Permissions: which tool calls run, which are denied, and which need the user's approval."""

from agentrt.permission.answer import accept_rules, digest
from agentrt.permission.engine import EffectiveInput, PermittedTool, combine, covers, decide, needs_no_decision
from agentrt.types import PermissionBehavior, PermissionContext, PermissionDecision, PermissionMode, PermissionRule

__all__ = [
    "EffectiveInput",
    "PermissionBehavior",
    "PermissionContext",
    "PermissionDecision",
    "PermissionMode",
    "PermissionRule",
    "PermittedTool",
    "accept_rules",
    "combine",
    "covers",
    "decide",
    "digest",
    "needs_no_decision",
]
