"""Finds data that a middleware accumulates from reply to reply."""

import gc
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial

from agentrt.agent import Agent
from agentrt.hooks import MiddlewareBase
from agentrt.state import AgentState
from agentrt.testing.kit.kit_agents import TWO_TOOLS_QUESTION
from agentrt.testing.kit.session import KitConversation, KitRun

_REPLIES = 4  # between two measurements
_CONTAINERS = (dict, list, set, deque)
_LONG_RUN = 1_000  # replies: enough to fill a cache with a limit


async def reply_many_times(run: KitRun) -> None:
    """Let one instance serve many replies, each in its own conversation, and report attributes that keep growing."""
    middleware = run.factory()
    conversation = KitConversation(run, run.make_agent([middleware]))
    sizes = [await _measure_after(conversation, middleware, _REPLIES) for _ in range(3)]
    if _growing_names(sizes):
        await _measure_after(conversation, middleware, _LONG_RUN)
        sizes = [await _measure_after(conversation, middleware, _REPLIES) for _ in range(3)]
    for name in _growing_names(sizes):
        run.report(
            f"its `{name}` grows with each reply, by {(sizes[2][name] - sizes[1][name]) / _REPLIES:g} on average: "
            f"keep what belongs to one reply in agent.run.scratch(self), and forget what is no longer needed"
        )


async def _measure_after(conversation: KitConversation, middleware: MiddlewareBase, replies: int) -> dict[str, int]:
    """Return the size of each attribute after a number of further replies."""

    async def read_reply(agent: Agent) -> None:
        async with agent.reply_stream(TWO_TOOLS_QUESTION) as stream:
            async for _ in stream:
                pass

    for _ in range(replies):
        conversation.run.conversations += 1
        agent = conversation.agent.with_state(AgentState())
        if await conversation.perform("one reply of many", partial(read_reply, agent)) is not None:
            break  # a limiter may refuse more replies
    gc.collect()  # so that weakly referenced data goes with its conversation
    package = _package_of(type(middleware))
    attributes = list(_attributes(middleware))
    for cls in type(middleware).__mro__:
        if cls is not MiddlewareBase and _package_of(cls) == package:  # class attributes of its author
            attributes += [(name, value) for name, value in vars(cls).items() if isinstance(value, _CONTAINERS)]
    return {name: _size(value, package, set()) for name, value in reversed(attributes)}


def _growing_names(sizes: list[dict[str, int]]) -> list[str]:
    first, second, third = sizes
    return [name for name in third if first.get(name, 0) + _REPLIES <= second.get(name, 0) <= third[name] - _REPLIES]


def _package_of(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _size(value: object, package: str, seen: set[int]) -> int:
    """Return the number of items in the value and in its parts, as far as these are the middleware's own."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    count = 0
    parts: Iterable[object] = ()
    if isinstance(value, dict):
        count, parts = len(value), [*value.keys(), *value.values()]
    elif isinstance(value, deque):
        if value.maxlen is not None:
            return 0
        count, parts = len(value), value
    elif isinstance(value, (list, tuple, set, frozenset)):
        count, parts = len(value), value
    elif not isinstance(value, type) and _package_of(type(value)) == package:
        parts = [part for _, part in _attributes(value)]
    return count + sum(_size(part, package, seen) for part in parts)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    yield from [*getattr(value, "__dict__", {}).items()]
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
