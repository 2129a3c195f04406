"""Compares the steps of an agent with the expected ones."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agentrt._runtime.text import repr_of
from agentrt.agent import Agent
from agentrt.errors import ConfigError
from agentrt.message import Msg, TextBlock, ToolCallBlock, ToolResultBlock

TrajectoryOrder = Literal["exact", "ordered", "unordered", "subset"]
_MISSING = object()
_ORDERS = ("exact", "ordered", "unordered", "subset")


@dataclass(frozen=True, slots=True)
class _TakenStep:
    """One step of an agent: a tool call, or an answer."""

    tool: str | None
    arguments: Any = None
    text: str = ""

    def __str__(self) -> str:
        return f"answer({repr_of(self.text)})" if self.tool is None else f"call({self.tool!r}, {self.arguments!r:.200})"

    @classmethod
    def all_of(cls, message: Msg) -> "list[_TakenStep]":
        """Return the calls of a message in their order, and its answer: the text after the last of them."""
        steps = []
        texts: list[str] = []
        for block in message.get_content_blocks():
            if isinstance(block, (ToolCallBlock, ToolResultBlock)) and block.is_hidden:
                continue  # a layer's question, not a step of the agent
            if isinstance(block, ToolCallBlock):
                try:
                    arguments: Any = json.loads(block.input or "{}")
                except ValueError:
                    arguments = block.input
                steps.append(cls(block.name, arguments))
            if isinstance(block, (ToolCallBlock, ToolResultBlock)):
                texts.clear()  # text before a call is not an answer
            elif isinstance(block, TextBlock):
                texts.append(block.text)
        return [*steps, cls(None, text="\n".join(texts))] if texts else steps


class ExpectedStep(Protocol):
    """An expected step; failures show its `str`."""

    def fits(self, step: Any) -> bool:
        """Say whether the step fits."""


@dataclass(frozen=True, slots=True)
class _ExpectedCall:
    tool: str
    arguments: dict[str, Any]

    def fits(self, step: _TakenStep) -> bool:
        if step.tool != self.tool or not isinstance(step.arguments, dict):
            return step.tool == self.tool and not self.arguments
        for name, expected in self.arguments.items():
            value = step.arguments.get(name, _MISSING)
            if value is _MISSING or not (expected(value) if callable(expected) else expected == value):
                return False
        return True

    def __str__(self) -> str:
        return f"call({self.tool!r}, {self.arguments!r:.200})"


@dataclass(frozen=True, slots=True)
class _ExpectedAnswer:
    text: str | None
    contains: str | None
    matches: str | None

    def fits(self, step: _TakenStep) -> bool:
        if step.tool is not None or (self.text is not None and step.text != self.text):
            return False
        if self.contains is not None and self.contains not in step.text:
            return False
        return self.matches is None or re.search(self.matches, step.text) is not None

    def __str__(self) -> str:
        values = (("", self.text), ("contains=", self.contains), ("matches=", self.matches))
        return f"answer({', '.join(f'{name}{value!r:.200}' for name, value in values if value is not None)})"


def call(tool: str, /, **arguments: Any) -> ExpectedStep:
    """Expect a call of the tool with at least these arguments; a value may be a function that tests the argument."""
    as_given: object = tool
    if not isinstance(as_given, str) or not tool:
        raise ConfigError(f"call(...) takes the name of a tool, not {repr_of(tool)}: write call('search', query='x')")
    return _ExpectedCall(tool, arguments)


def answer(text: str | None = None, *, contains: str | None = None, matches: str | None = None) -> ExpectedStep:
    """Expect an answer: exactly this text, one that contains some text, or one that matches a pattern."""
    for value in (text, contains, matches):
        if not (value is None or isinstance(value, str)):
            raise ConfigError(f"answer(...) takes str, not {repr_of(value)}: write answer(contains='sunny')")
    try:
        re.compile(matches or "")
    except re.error as error:
        raise ConfigError(f"answer(matches={matches!r:.200}) is not a pattern of `re`: {error}") from error
    return _ExpectedAnswer(text, contains, matches)


def assert_trajectory(
    agent: Agent | Msg | Sequence[Msg], expected: Sequence[ExpectedStep], *, order: TrajectoryOrder = "exact"
) -> None:
    """Raise `AssertionError` unless the agent called the expected tools and gave the expected answers.

    `agent` may also be a message, or several. `order` is "exact" (these steps and no others, in this order), "ordered"
    (others may come in between), "unordered" (exactly these, in any order) or "subset" (these among others).
    Calls of hidden tools, such as the questions of layers, are not steps of the agent.
    """
    if order not in _ORDERS:
        raise ConfigError(
            f"assert_trajectory(order=...) must be one of {', '.join(map(repr, _ORDERS))}, not {order!r:.100}"
        )
    if not isinstance(expected, (list, tuple)):
        raise ConfigError(
            f"assert_trajectory() expects a list of steps, not {repr_of(expected)}: write [call('search')]"
        )
    wrong = [step for step in expected if not isinstance(step, (_ExpectedCall, _ExpectedAnswer))]
    if wrong:
        raise ConfigError(f"assert_trajectory() expects call(...) and answer(...), not {repr_of(wrong[0])}")
    steps = [
        step for message in _read_messages(agent) if message.role == "assistant" for step in _TakenStep.all_of(message)
    ]
    is_whole = len(steps) == len(expected) or order in ("ordered", "subset")
    if order in ("exact", "ordered"):
        rest = iter(steps)
        fits = all(any(step.fits(happened) for happened in rest) for step in expected)
    else:
        fits = _fits_somehow(steps, expected)
    if not (is_whole and fits):
        happened = "".join(f"\n  {step}" for step in steps) or "\n  nothing"
        expectation = "".join(f"\n  {step}" for step in expected) or "\n  nothing"
        raise AssertionError(f"expected ({order}):{expectation}\nhappened:{happened}")


def _read_messages(agent: Agent | Msg | Sequence[Msg]) -> Sequence[Msg]:
    """Return the given messages, or those of the agent, including that of a waiting reply."""
    messages: Any = [agent] if isinstance(agent, Msg) else agent
    if isinstance(agent, Agent):
        reply = agent.state.reply_context
        messages = [*agent.state.context, *([] if reply is None else [reply.message])]
    if not isinstance(messages, (list, tuple)) or not all(isinstance(message, Msg) for message in messages):
        raise ConfigError(f"assert_trajectory() takes an Agent or messages, not {repr_of(agent)}: give the agent")
    return messages


def _fits_somehow(steps: Sequence[_TakenStep], expected: Sequence[ExpectedStep]) -> bool:
    """Say whether each expected step can be matched to a step of its own: a bipartite matching."""
    # Not simply the first that fits: it may be the only match for a later expectation.
    owner: dict[int, int] = {}  # the expected step of each actual one

    def place(number: int, tried: set[int]) -> bool:
        for candidate, step in enumerate(steps):
            if candidate not in tried and expected[number].fits(step):
                tried.add(candidate)
                if candidate not in owner or place(owner[candidate], tried):
                    owner[candidate] = number
                    return True
        return False

    return all(place(number, set()) for number in range(len(expected)))
