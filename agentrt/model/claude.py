"""What Anthropic's API takes from each of its models, so far as they differ."""

import re
from dataclasses import dataclass

__all__ = ["CLAUDE_RULES", "ClaudeRules", "rules_of"]

_NAME = re.compile(r"claude-([a-z]+)-(\d+|preview)(?:[.-](?:0|(\d{1,2})))?(?![\da-z])")


@dataclass(frozen=True, slots=True)
class ClaudeRules:
    """In what a model differs from others behind Anthropic's API.

    `thinking` names the types of `thinking` that it takes. `thinks`: it thinks unless it is told not to. `samples`: it
    takes a temperature and a top_p other than the default. `must_call`: it can be made to call a tool; where not,
    "required" and the name of a tool become "auto". `binds_thinking`: its thoughts hold only for the conversation that
    they came from, word for word; those that no longer fit are then dropped, where the API would refuse the request.
    """

    thinking: frozenset[str] = frozenset({"adaptive", "between_tools", "disabled", "enabled"})
    thinks: bool = False
    samples: bool = True
    must_call: bool = True
    binds_thinking: bool = False


_BUDGETED = ClaudeRules(frozenset({"enabled", "disabled"}))
_EITHER = ClaudeRules(frozenset({"enabled", "adaptive", "disabled"}))
_ADAPTIVE = ClaudeRules(frozenset({"adaptive", "disabled"}), samples=False)
_THINKING = ClaudeRules(frozenset({"adaptive", "disabled"}), thinks=True, samples=False)
_ALWAYS_THINKING = ClaudeRules(frozenset({"adaptive"}), thinks=True, samples=False)


def _bound(*thinking: str) -> ClaudeRules:
    return ClaudeRules(frozenset(thinking), thinks=True, samples=False, must_call=False, binds_thinking=True)


# From the migration guides and the pages on thinking of platform.claude.com, in November 2026.
CLAUDE_RULES = {
    "opus-4-1": _BUDGETED,
    "opus-4-5": _BUDGETED,
    "sonnet-4-5": _BUDGETED,
    "haiku-4-5": _BUDGETED,
    "opus-4-6": _EITHER,
    "sonnet-4-6": _EITHER,
    "opus-4-7": _ADAPTIVE,
    "opus-4-8": _ADAPTIVE,
    "opus-5": _THINKING,
    "sonnet-5": _THINKING,
    "fable-5": _ALWAYS_THINKING,
    "mythos-5": _ALWAYS_THINKING,
    "mythos-preview": _ALWAYS_THINKING,
    "fable-5-1": _bound("adaptive"),
    "fable-5-2": _bound("adaptive"),
    "mythos-5-1": _bound("adaptive"),
    "mythos-5-2": _bound("adaptive"),
    "opus-5-5": _bound("adaptive"),
    "sonnet-5-5": _bound("adaptive", "between_tools"),
    "haiku-5-5": _bound("adaptive", "disabled"),
}
"""The rules by family and version."""


def rules_of(model: str) -> ClaudeRules:
    """Return the rules of the model with this name, be it with a date or a provider; of one not known, none at all."""
    match = _NAME.search(model)
    return CLAUDE_RULES.get("-".join(filter(None, match.groups())), ClaudeRules()) if match else ClaudeRules()
