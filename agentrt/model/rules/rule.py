"""A rule: when it applies, which tool it calls, and what it answers."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentrt.block import TextBlock, ToolResultBlock, ToolResultState
from agentrt.errors import ConfigError
from agentrt.model.rules.words import numbers_in, search
from agentrt.types import JSONSchema

__all__ = ["MAX_TEXT", "Known", "OfferedTool", "PlannedCall", "Rule"]

MAX_TEXT = 1_000
"""Characters of a question or a result that patterns see, so that none can take long."""

Known = Mapping[str, str]
"""What is known by now, by name: `question`, `system`, `tools`, what patterns have found, and `result` or `error`."""

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

    `pattern` is a regular expression, in upper or lower case; its named groups, `question`, `system` (the system
    prompt), `tools` and, after a call, `result` are what is known. `arguments` and `answer` are templates over that:
    "It is {result} in {city}". `then` is a rule that is tried on the beginning of the result, before the answer is
    given. Functions may stand for all three: `pattern` and `answer` take what is known, `call` also the tools.
    """

    pattern: str | Callable[[Known], Known | None]
    answer: str | Callable[[Known], str] | None = None
    call: str | Callable[[Known, Sequence[OfferedTool]], PlannedCall | None] | None = None
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
        self, known: Known, tools: Sequence[OfferedTool], results: Sequence[ToolResultBlock], may_call: bool
    ) -> PlannedCall | str | None:
        """Return the call that is due, or the answer, or `None` when the rule does not apply.

        The model remembers nothing, so each round pursues a rule from its beginning: the results since the question say
        how far it has come.
        """
        text = known.get("result", known["question"])[:MAX_TEXT]
        found = self.pattern(known) if callable(self.pattern) else search(text, self.pattern)
        if found is None:
            return None
        known = {**known, **found}
        if self.call is None:
            return self._answer(known)
        call = self._planned_call(known, tools)
        if call is None:
            return None
        place = next((n for n, result in enumerate(results) if result.name == call[0]), None)
        if place is not None:
            return self._follow_up(known, tools, results[place:], may_call)
        if may_call:
            return call
        # A follow-up that may not call leaves it to the rule before it, which can tell what it has found.
        return None if "result" in known else f"I would use {call[0]}, but I may not use it now."

    def _follow_up(
        self, known: Known, tools: Sequence[OfferedTool], results: Sequence[ToolResultBlock], may_call: bool
    ) -> PlannedCall | str:
        """Return what comes after the first of these results, which is that of the rule's own call."""
        result = results[0]
        text = result.output
        if not isinstance(text, str):
            text = "\n".join(part.text for part in text if isinstance(part, TextBlock))
        text = text.removeprefix(f"{result.name} failed: ")  # which the answer says anyway
        if result.state is ToolResultState.DENIED:
            return f"I was not allowed to use {result.name}."
        has_failed = result.state is not ToolResultState.SUCCESS
        known = {**known, "result": ""} | {"error" if has_failed else "result": text}
        further = self.then._pursue(known, tools, results[1:], may_call) if self.then else None
        if further is not None:
            return further
        return f"I used {result.name}, but it failed: {text[:300]}" if has_failed else self._answer(known)

    def _planned_call(self, known: Known, tools: Sequence[OfferedTool]) -> PlannedCall | None:
        if callable(self.call):
            return self.call(known, tools)
        tool = next((tool for tool in tools if tool.name == self.call), None)
        if tool is None:
            return None
        arguments = {name: fill_template(value, known) for name, value in self.arguments.items()}
        for name, value in arguments.items():
            # A template gives text; a schema may want a number.
            if isinstance(value, str) and tool.parameters.get(name, {}).get("type") in ("integer", "number"):
                arguments[name] = next(iter(numbers_in(value)), value)
        return tool.name, arguments

    def _answer(self, known: Known) -> str:
        return self.answer(known) if callable(self.answer) else str(fill_template(self.answer or "{result}", known))


def fill_template(template: Any, known: Known) -> Any:
    """Return the template with what is known in place of the names in braces; only a `str` is one."""

    def value(match: re.Match[str]) -> str:
        if match[1] in known:
            return known[match[1]]
        raise ConfigError(
            f"the template {template!r} of a rule names {match[1]!r}, which is not known: it may name {sorted(known)}"
        )

    return re.sub(r"\{(\w+)\}", value, template) if isinstance(template, str) else template
