"""Claude on any server: the differences between its models, and its thinking."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentrt._runtime.block import HintBlock, JSONObject
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import ConfigError
from agentrt.message import Msg
from agentrt.model.remote.accumulator import join_base64
from agentrt.model.remote.schema.dialect import TEXT_FORMATS, SchemaDialect

REFUSED_THOUGHTS = lazy_pattern(
    r"invalid `?(?:signature|data)`? in `?(?:redacted_)?thinking|thinking`? blocks? .{0,80}cannot be modified",
    re.IGNORECASE,
)
"""Matches the error of an API for thinking of Claude that it does not take back."""
# From the page on structured outputs of platform.claude.com, in November 2026.
CLAUDE_SCHEMAS = SchemaDialect(frozenset(), TEXT_FORMATS | {"uri"}, all_required=False, recursive=False)
_OVERRIDE = "if the API accepts it now, give rules=ClaudeRules(...)"

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
    `json_schema`: it can bind an answer to a JSON schema. `searches_tools`: it can look for tools that are deferred.
    """

    thinking: frozenset[str] = frozenset({"adaptive", "between_tools", "disabled", "enabled"})
    thinks: bool = False
    samples: bool = True
    must_call: bool = True
    named_choice: bool = True
    binds_thinking: bool = False
    json_schema: bool = False
    searches_tools: bool = False


# From the oldest to the newest: thinking by a budget, by a budget or adaptive, only adaptive, unless
# it is turned off, always.
_BUDGETED = ClaudeRules(frozenset({"enabled", "disabled"}))
_BUDGETED_WITH_SCHEMA = replace(_BUDGETED, json_schema=True, searches_tools=True)
_EITHER = replace(_BUDGETED_WITH_SCHEMA, thinking=frozenset({"enabled", "adaptive", "disabled"}))
_ADAPTIVE = replace(_EITHER, thinking=frozenset({"adaptive", "disabled"}), samples=False)
_THINKING = replace(_ADAPTIVE, thinks=True)
_ALWAYS_THINKING = replace(_THINKING, thinking=frozenset({"adaptive"}))


def _binding(*thinking: str) -> ClaudeRules:
    return replace(_THINKING, thinking=frozenset(thinking), must_call=False, binds_thinking=True)


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


def check_sampling(
    model: str, temperature: float | None, top_p: float | None, rules: ClaudeRules
) -> tuple[float | None, float | None]:
    """Return the two settings as they are sent; raises `ConfigError` for what the API would refuse."""
    if rules.samples:
        return temperature, top_p
    for name, value in (("temperature", temperature), ("top_p", top_p)):
        if value is not None and value != 1:
            reason = f"{model!r} accepts only its default {name}, not {value!r}"
            raise ConfigError(f"{reason}: leave it out; {_OVERRIDE}")
    return None, None  # at most their default, which need not be sent


def check_thinking(cls: str, model: str, thinking: Mapping[str, object] | None, rules: ClaudeRules) -> JSONObject:
    """Return the thinking fields of a request, {} for none; raises `ConfigError` for what the API would refuse."""
    setting: JSONObject = dict(thinking) if isinstance(thinking, Mapping) else {}
    is_typed = isinstance(setting.get("type"), str) and isinstance(setting.get("budget_tokens", 0), int)
    if thinking is not None and not is_typed:
        raise ConfigError(
            f"{cls}(thinking=...) must be what the API takes, such as "
            f'{{"type": "enabled", "budget_tokens": 4000}} or {{"type": "adaptive"}}, not {thinking!r:.100}'
        )
    if setting and setting["type"] not in rules.thinking:
        remedy = "" if "enabled" in rules.thinking else ", and effort=... for how much"
        raise ConfigError(
            f"{model!r} does not accept thinking of the type {setting['type']!r:.100}: give one of "
            f"{', '.join(sorted(rules.thinking))}{remedy}; {_OVERRIDE}"
        )
    if not rules.binds_thinking:
        return setting
    setting = setting or {"type": "adaptive"}
    if setting["type"] not in ("adaptive", "enabled"):
        return setting
    # Let the API drop outdated thoughts, as after compression or a change of the system prompt.
    return {"block_binding": {"prefix_mismatch_behavior": "drop_block"}, **setting}


@dataclass(slots=True)
class Thought:
    """A block of thinking; an encrypted one has `data`, in pieces of base64."""

    texts: list[str] = field(default_factory=list)
    signature: str = ""
    data: list[str] = field(default_factory=list)

    def part(self) -> JSONObject:
        if self.data:
            data = self.data[0] if len(self.data) == 1 else join_base64(self.data, "thinking")
            return {"type": "redacted_thinking", "data": data}
        return {"type": "thinking", "thinking": "".join(self.texts), "signature": self.signature}


def count_passing_hints(messages: Sequence[Msg]) -> int:
    """Return how many hints stand in separate messages at the end, which the next request does not repeat."""
    count = 0
    for message in reversed(messages):
        blocks = message.get_content_blocks()
        if message.role == "assistant" or not all(isinstance(block, HintBlock) for block in blocks):
            break
        count += sum(isinstance(block, HintBlock) and bool(block.hint.strip()) for block in blocks)
    return count
