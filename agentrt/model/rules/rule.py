"""A rule: when it applies, which tool it calls, and what it answers."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentrt.block import TextBlock, ToolResultBlock, ToolResultState
from agentrt.errors import ConfigError
from agentrt.model.rules.words import numbers_in, search
from agentrt.types import JSONSchema

__all__ = ["MAX_TEXT", "Facts", "OfferedTool", "PlannedCall", "Rule", "fill_template", "to_argument"]

MAX_TEXT = 1_000
"""Characters of a question or a result that patterns see, so that none can take long."""

Facts = Mapping[str, str]
"""What is known by name: `question`, `system`, `tools`, `examples`, what patterns have found, `result` or `error`."""

PlannedCall = tuple[str, dict[str, Any]]
"""The name of a tool, and the arguments for it."""


class OfferedTool(NamedTuple):
    """What a tool's schema says of it."""

    name: str
    description: str
    parameters: Mapping[str, JSONSchema]
    required: Sequence[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """When `pattern` is found in the question: `call` a tool, give the `answer`, or one after the other.

    `pattern` is a regular expression, whose case does not matter; its named groups, `question`, `system` (the system
    prompt), `tools`, `examples` (of questions for them) and, after a call, `result` are what is known. `arguments` and
    `answer` are templates over that: "It is {result} in {city}". `then` is a rule that is tried on the beginning of the
    result, before the answer is given. Functions may stand for all three: `pattern` and `answer` take what is known,
    `call` also the tools.
    """

    pattern: str | Callable[[Facts], Facts | None]
    answer: str | Callable[[Facts], str] | None = None
    call: str | Callable[[Facts, Sequence[OfferedTool]], PlannedCall | None] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    then: "Rule | None" = None

    def __post_init__(self) -> None:
        if self.answer is None and self.call is None:
            raise ConfigError(f"the rule for {self.pattern!r} does nothing: give it answer=, call= or both")
        if isinstance(self.pattern, str):
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigError(f"the pattern {self.pattern!r} is not a regular expression: {error}") from error

    def _pursue(
        self, facts: Facts, tools: Sequence[OfferedTool], results: Sequence[ToolResultBlock], may_call: bool
    ) -> PlannedCall | str | None:
        """Return the call that is due, or the answer, or `None` when the rule does not apply.

        The model remembers nothing, so each round pursues a rule from its beginning: the results since the question say
        how far it has come.
        """
        text = facts.get("result", facts["question"])[:MAX_TEXT]
        groups = self.pattern(facts) if callable(self.pattern) else search(text, self.pattern)
        if groups is None:
            return None
        facts = {**facts, **groups}
        if self.call is None:
            return self._answer(facts)
        call = self._planned_call(facts, tools)
        if call is None:
            return None
        place = next((n for n, result in enumerate(results) if result.name == call[0]), None)
        if place is not None:
            return self._follow_up(facts, tools, results[place:], may_call)
        if may_call:
            return call
        # A follow-up that may not call leaves it to the rule before it, which can tell what it has found.
        return None if "result" in facts else f"I would use {call[0]}, but I may not use it now."

    def _follow_up(
        self, facts: Facts, tools: Sequence[OfferedTool], results: Sequence[ToolResultBlock], may_call: bool
    ) -> PlannedCall | str:
        """Return what comes after the first of these results, which is that of the rule's own call."""
        result = results[0]
        text = result.output
        if not isinstance(text, str):
            text = "\n".join(part.text for part in text if isinstance(part, TextBlock))
        text = text.removeprefix(f"{result.name} failed: ")  # the answer says it anyway
        if result.state is ToolResultState.DENIED:
            return f"I was not allowed to use {result.name}."
        has_failed = result.state is not ToolResultState.SUCCESS
        facts = {**facts, "result": ""} | {"error" if has_failed else "result": text}
        further = self.then._pursue(facts, tools, results[1:], may_call) if self.then else None
        if further is not None:
            return further
        return f"I used {result.name}, but it failed: {text[:300]}" if has_failed else self._answer(facts)

    def _planned_call(self, facts: Facts, tools: Sequence[OfferedTool]) -> PlannedCall | None:
        if callable(self.call):
            return self.call(facts, tools)
        tool = next((tool for tool in tools if tool.name == self.call), None)
        if tool is None:
            return None
        filled = {name: fill_template(value, facts) for name, value in self.arguments.items()}
        return tool.name, {name: to_argument(tool, name, value) for name, value in filled.items()}

    def _answer(self, facts: Facts) -> str:
        return self.answer(facts) if callable(self.answer) else str(fill_template(self.answer or "{result}", facts))


def to_argument(tool: OfferedTool, name: str, value: Any) -> Any:
    """Return the value as the tool takes it: what is known is text, but a schema may want a number."""
    if isinstance(value, str) and tool.parameters.get(name, {}).get("type") in ("integer", "number"):
        return next(iter(numbers_in(value)), value)
    return value


def fill_template(template: Any, facts: Facts) -> Any:
    """Return the template with what is known in place of the names in braces; only a `str` is one."""

    def value(match: re.Match[str]) -> str:
        if match[1] in facts:
            return facts[match[1]]
        raise ConfigError(
            f"the template {template!r} of a rule names {match[1]!r}, which is not known: it may name {sorted(facts)}"
        )

    return re.sub(r"\{(\w+)\}", value, template) if isinstance(template, str) else template
