"""The differences between Anthropic's models in what the API accepts."""

from dataclasses import dataclass, replace

from agentrt._runtime.text import lazy_pattern

__all__ = ["CLAUDE_RULES", "ClaudeRules", "rules_of"]

# A date behind the name ("-20250929") and a zero as the minor version ("opus-4-0") are not part of the version.
_MODEL_NAME = lazy_pattern(r"claude-([a-z]+)-(\d+|preview)(?:[.-](?:0|(\d{1,2})))?(?![\da-z])")


@dataclass(frozen=True, slots=True)
class ClaudeRules:
    """The properties of a model behind Anthropic's API.

    `thinking` names the types of `thinking` that it accepts. `thinks`: it thinks unless it is asked not to. `samples`:
    it accepts a temperature and a top_p other than the default. `must_call`: it can be made to call a tool; if not,
    "required" and the name of a tool become "auto". `named_choice`: it can be made to call one tool by its name; if
    not, it is shown that tool alone and made to call one, as by default with servers on this machine and its network.
    `binds_thinking`: its thoughts are valid only after exactly the
    conversation that they followed; the API is then asked to drop those that no longer fit, and not to refuse them.
    `json_schema`: it can bind an answer to a JSON schema.
    """

    thinking: frozenset[str] = frozenset({"adaptive", "between_tools", "disabled", "enabled"})
    thinks: bool = False
    samples: bool = True
    must_call: bool = True
    named_choice: bool = True
    binds_thinking: bool = False
    json_schema: bool = False


# From the oldest to the newest: thinking by a budget, by a budget or adaptive, only adaptive, unless
# it is turned off, always.
_BUDGETED = ClaudeRules(frozenset({"enabled", "disabled"}))
_BUDGETED_WITH_SCHEMA = replace(_BUDGETED, json_schema=True)
_EITHER = ClaudeRules(frozenset({"enabled", "adaptive", "disabled"}), json_schema=True)
_ADAPTIVE = ClaudeRules(frozenset({"adaptive", "disabled"}), samples=False, json_schema=True)
_THINKING = ClaudeRules(frozenset({"adaptive", "disabled"}), thinks=True, samples=False, json_schema=True)
_ALWAYS_THINKING = ClaudeRules(frozenset({"adaptive"}), thinks=True, samples=False, json_schema=True)


def _binding(*thinking: str) -> ClaudeRules:
    return ClaudeRules(
        frozenset(thinking), thinks=True, samples=False, must_call=False, binds_thinking=True, json_schema=True
    )


# From the migration guides and the pages on thinking of platform.claude.com, in November 2026.
CLAUDE_RULES = {
    "opus-4-1": _BUDGETED,
    "opus-4-5": _BUDGETED_WITH_SCHEMA,
    "sonnet-4-5": _BUDGETED_WITH_SCHEMA,
    "haiku-4-5": _BUDGETED_WITH_SCHEMA,
    "opus-4-6": _EITHER,
    "sonnet-4-6": _EITHER,
    "opus-4-7": _ADAPTIVE,
    "opus-4-8": _ADAPTIVE,
    "opus-5": _THINKING,
    "sonnet-5": _THINKING,
    "fable-5": _ALWAYS_THINKING,
    "mythos-5": _ALWAYS_THINKING,
    "mythos-preview": _ALWAYS_THINKING,
    "fable-5-1": _binding("adaptive"),
    "fable-5-2": _binding("adaptive"),
    "mythos-5-1": _binding("adaptive"),
    "mythos-5-2": _binding("adaptive"),
    "opus-5-5": _binding("adaptive"),
    "sonnet-5-5": _binding("adaptive", "between_tools"),
    "haiku-5-5": _binding("adaptive", "disabled"),
}
"""The rules by family and version."""


def rules_of(model: str) -> ClaudeRules:
    """Return the rules of the model with this name, which may include a date or a provider; an unknown one has none."""
    match = _MODEL_NAME.search(model)
    return CLAUDE_RULES.get("-".join(filter(None, match.groups())), ClaudeRules()) if match else ClaudeRules()
