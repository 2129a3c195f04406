"""Finds what a middleware keeps more of with each reply."""

import gc
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from agentrt.agent import Agent
from agentrt.hooks import MiddlewareBase
from agentrt.state import AgentState
from agentrt.testing.kit.kit_agents import QUESTIONS
from agentrt.testing.kit.session import Rehearsal, Talk

__all__ = ["replying_again_and_again"]

_EACH_TIME = 4  # replies, between two looks at what is kept
_LONG_RUN = 1_000  # replies, after which a cache with a limit is full


async def replying_again_and_again(rehearsal: Rehearsal) -> None:
    """Let one instance serve many replies, each in a conversation of its own, and report what grows all the time."""
    middleware = rehearsal.factory()
    agent = rehearsal.agent([middleware])
    talk = Talk(rehearsal, agent)
    sizes = [await _sizes_after(talk, middleware, _EACH_TIME) for _ in range(3)]
    if _growing(sizes):
        await _sizes_after(talk, middleware, _LONG_RUN)
        sizes = [await _sizes_after(talk, middleware, _EACH_TIME) for _ in range(3)]
    for name in _growing(sizes):
        rehearsal.tell(
            f"its `{name}` grows with each reply, by {(sizes[2][name] - sizes[1][name]) / _EACH_TIME:g} on average: "
            f"keep what belongs to one reply in agent.run.scratch(self), and forget what is no longer needed"
        )


async def _sizes_after(talk: Talk, middleware: MiddlewareBase, replies: int) -> dict[str, int]:
    """Return how much each attribute holds after so many more replies."""
    for _ in range(replies):
        talk.rehearsal.trials += 1
        if await talk.do("one reply of many", _reply, talk.agent.with_state(AgentState())) is not None:
            break  # a limiter may refuse so many
    gc.collect()  # so that what only weak references keep goes with its conversation
    return dict(_sizes(middleware))


async def _reply(agent: Agent) -> None:
    async with agent.reply_stream(QUESTIONS["tools side by side"]) as stream:
        async for _ in stream:
            pass


def _growing(sizes: list[dict[str, int]]) -> list[str]:
    first, second, third = sizes
    return [
        name for name in third if first.get(name, 0) + _EACH_TIME <= second.get(name, 0) <= third[name] - _EACH_TIME
    ]


def _sizes(middleware: MiddlewareBase) -> Iterator[tuple[str, int]]:
    package = type(middleware).__module__.partition(".")[0]
    for cls in type(middleware).__mro__:
        if cls.__module__.partition(".")[0] == package and cls is not MiddlewareBase:
            yield from ((name, _size(value, package, set())) for name, value in vars(cls).items() if _is_data(value))
    yield from ((name, _size(value, package, set())) for name, value in _attributes(middleware))


def _is_data(value: Any) -> bool:
    return isinstance(value, (dict, list, set, deque))


def _size(value: Any, package: str, seen: set[int]) -> int:
    """Return how many items the value holds, those of its parts included, as far as these are the middleware's own."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, dict):
        return len(value) + _total([*value.keys(), *value.values()], package, seen)
    if isinstance(value, (list, tuple, set, frozenset)):
        return len(value) + _total(value, package, seen)
    if isinstance(value, deque):
        return 0 if value.maxlen is not None else len(value) + _total(value, package, seen)
    if isinstance(value, type) or type(value).__module__.partition(".")[0] != package:
        return 0
    return _total((each for _, each in _attributes(value)), package, seen)


def _total(values: Iterable[Any], package: str, seen: set[int]) -> int:
    return sum(_size(value, package, seen) for value in values)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from [*getattr(value, "__dict__", {}).items()]
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
