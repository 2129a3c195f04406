"""Faults of models and tools that a conversation is to survive, injected by one layer."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, get_args

import anyio

from agentrt import errors
from agentrt.agent import AgentBase
from agentrt.errors import ConfigError, ModelError, Transient
from agentrt.hooks import ActingValues, MiddlewareBase, ModelCallValues, NextActing, NextModelCall
from agentrt.message import DataBlock, TextBlock, ToolResultState
from agentrt.model import ModelResult
from agentrt.types import JSONObject, ToolChunk, ToolResponse

FaultKind = Literal["fail_model", "fail_tool", "slow_tool", "cut_result", "garble_result"]
FaultPlace = int | Sequence[int] | None
"""The number of a call, counted from 1 in each conversation, several of them, or `None` for all."""

_RESULT_FAULTS = ("cut_result", "garble_result")
_GARBAGE = "\ufffd#@%&~^"


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault of the calls `at` of the model or of a tool, as `fail_model` and its siblings make it."""

    kind: FaultKind
    tool: str | None = None
    at: tuple[int, ...] | None = None
    error: type[ModelError] | ModelError = Transient
    text: str = ""
    seconds: float = 0.0
    length: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        # Of a file as well, which may hold anything.
        at: Any = self.at
        error: Any = self.error
        is_known = issubclass(error, ModelError) if isinstance(error, type) else isinstance(error, ModelError)
        least = 1e-9 if self.kind == "slow_tool" else 0
        checks: dict[str, tuple[bool, str]] = {
            "tool": (
                self.kind == "fail_model" or (isinstance(self.tool, str) and bool(self.tool)),
                "the name of a tool",
            ),
            "at": (
                at is None or (isinstance(at, tuple) and all(type(place) is int and place > 0 for place in at)),
                "the numbers of calls, counted from 1",
            ),
            "error": (is_known, "a ModelError, such as RateLimited"),
            "text": (isinstance(self.text, str), "a str"),
            "seconds": (_is_within(self.seconds, (int, float), least, 86_400), "above 0 and at most a day"),
            "length": (_is_within(self.length, int, 0, float("inf")), "a number of characters"),
            "seed": (type(self.seed) is int, "an int"),
        }
        for option, (is_right, kind) in checks.items():
            if not is_right:
                raise ConfigError(f"{self.kind}({option}=...) must be {kind}, not {getattr(self, option)!r:.100}")

    def to_json(self) -> JSONObject:
        """Return the fault as JSON; of an error only its type is kept."""
        error = self.error if isinstance(self.error, type) else type(self.error)
        values: JSONObject = {"kind": self.kind, "tool": self.tool, "at": None if self.at is None else list(self.at)}
        return {
            **values,
            "error": error.__name__,
            "text": self.text,
            "seconds": self.seconds,
            "length": self.length,
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, value: Any) -> "InjectedFault":
        """Return the fault that `to_json` wrote; raises `ConfigError` for anything else."""
        if not isinstance(value, dict) or value.get("kind") not in get_args(FaultKind):
            raise ConfigError(f"a fault has a kind, one of {', '.join(get_args(FaultKind))}, not {value!r:.200}")
        unknown = sorted(set(value) - set(cls.__dataclass_fields__))
        if unknown:
            raise ConfigError(f"a fault has no {unknown[0]!r:.100}: it has {', '.join(cls.__dataclass_fields__)}")
        name = value.get("error", "Transient")
        error = getattr(errors, name, name) if isinstance(name, str) else name
        return cls(**{**value, "at": _calls_at(value.get("at")), "error": error})


def fail_model(error: type[ModelError] | ModelError = Transient, at: FaultPlace = None) -> InjectedFault:
    """Have calls of the model raise an error, before the provider is asked."""
    return InjectedFault("fail_model", at=_calls_at(at), error=error)


def fail_tool(name: str, at: FaultPlace = None, *, text: str = "The service is unavailable.") -> InjectedFault:
    """Have calls of a tool fail with this text; the tool does not run."""
    return InjectedFault("fail_tool", name, _calls_at(at), text=text)


def slow_tool(name: str, seconds: float, at: FaultPlace = None) -> InjectedFault:
    """Have calls of a tool wait before they run."""
    return InjectedFault("slow_tool", name, _calls_at(at), seconds=seconds)


def cut_result(name: str, length: int, at: FaultPlace = None) -> InjectedFault:
    """Have results of a tool end after some characters."""
    return InjectedFault("cut_result", name, _calls_at(at), length=length)


def garble_result(name: str, at: FaultPlace = None, *, seed: int = 0) -> InjectedFault:
    """Have a third of the characters in results of a tool replaced by garbage, the same with each `seed`."""
    return InjectedFault("garble_result", name, _calls_at(at), seed=seed)


def _calls_at(at: Any) -> tuple[int, ...] | None:
    # A single number is the usual case; anything else is refused by the fault, which names itself.
    if isinstance(at, int):
        return (at,)
    return tuple(at) if isinstance(at, (list, range)) else at


def _is_within(value: Any, kinds: Any, least: float, largest: float) -> bool:
    return not isinstance(value, bool) and isinstance(value, kinds) and least <= value <= largest


class ChaosLayer(MiddlewareBase):
    """Injects faults into the calls of models and tools, nearest to them, in sub-agents too.

    Layers around it, such as retries, see the fault as they would see a real one.
    """

    inherited = True
    position = "innermost"

    def __init__(self, faults: Sequence[InjectedFault]) -> None:
        self.faults = list(faults)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.faults!r:.200})"

    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        number = self._count(agent, "")
        for fault in self.faults:
            if fault.kind == "fail_model" and (fault.at is None or number in fault.at):
                raise fault.error if isinstance(fault.error, ModelError) else fault.error("a fault injected by a test")
        return await next_handler(**input_kwargs)

    async def on_acting(
        self, agent: AgentBase, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        name = input_kwargs["tool_call"].name
        number = self._count(agent, name)
        faults = [fault for fault in self.faults if fault.tool == name and (fault.at is None or number in fault.at)]
        # A slow tool may fail as well.
        for fault in faults:
            if fault.kind == "slow_tool":
                await anyio.sleep(fault.seconds)
            elif fault.kind == "fail_tool":
                yield ToolResponse([TextBlock(fault.text)], ToolResultState.ERROR)
                return
        changed = [fault for fault in faults if fault.kind in _RESULT_FAULTS]
        async for item in next_handler(**input_kwargs):
            if not changed:
                yield item
            elif isinstance(item, ToolResponse):  # its pieces would show what the fault takes away
                yield replace(item, content=_damage(item.content, changed))

    def describe(self, agent: Any) -> Sequence[str]:
        return [f"{fault.kind} {fault.tool or ''}".strip() for fault in self.faults]

    def _count(self, agent: AgentBase, name: str) -> int:
        # In the conversation's state, since a case has several turns.
        counts = agent.state_of(self)
        counts[name] = counts.get(name, 0) + 1
        number: int = counts[name]
        return number


def _damage(content: Sequence[TextBlock | DataBlock], faults: Sequence[InjectedFault]) -> list[TextBlock | DataBlock]:
    damaged = list(content)
    for fault in faults:
        left, random = fault.length, Random(fault.seed)
        for place, block in enumerate(damaged):
            if isinstance(block, TextBlock) and fault.kind == "cut_result":
                damaged[place] = TextBlock(block.text[:left])
                # One length for all blocks of the result.
                left = max(0, left - len(block.text))
            elif isinstance(block, TextBlock):
                letters = (random.choice(_GARBAGE) if random.random() < 1 / 3 else letter for letter in block.text)
                damaged[place] = TextBlock("".join(letters))
    return damaged
