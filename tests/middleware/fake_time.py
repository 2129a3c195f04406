"""Event loops whose time jumps, and what the tests of middlewares around model calls share."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial, update_wrapper
from inspect import Parameter, Signature, signature
from random import Random
from time import monotonic
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from agentrt import Agent, Msg
from agentrt.event import AgentEvent, ModelCallRetryEvent, ReplyStartEvent

on_both_loops = pytest.mark.parametrize("backend", ["asyncio", "trio"])


class JumpingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that does not wait for its timers, but sets its clock to the next one."""

    def __init__(self) -> None:
        self._now = monotonic()
        super().__init__()
        select = self._selector.select

        def jump(timeout: float | None = None) -> Any:
            found = select(None if timeout is None else 0)
            if timeout and not found:
                self._now += timeout
            return found

        self._selector.select = jump

    def time(self) -> float:
        return self._now


def play(backend: str, main: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    options: dict[str, Any] = {"loop_factory": JumpingLoop}
    if backend == "trio":
        options = {"clock": MockClock(autojump_threshold=0)}
    return anyio.run(main, *arguments, backend=backend, backend_options=options)


def in_jumping_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make an async test one that runs on both event loops, each of which skips every wait."""

    def run(backend: str, **arguments: Any) -> None:
        play(backend, partial(test, **arguments))

    update_wrapper(run, test)
    del run.__wrapped__  # pytest would take the parameters, and anyio the event loop, from the test inside
    parameters = [Parameter("backend", Parameter.KEYWORD_ONLY), *signature(test).parameters.values()]
    parameters = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return on_both_loops(run)


class Least(Random):
    """Makes every random wait as short as possible."""

    def uniform(self, a: float, b: float) -> float:
        return a


class Most(Random):
    """Makes every random wait as long as possible."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def retries(items: list[Any]) -> list[tuple[str, int, float]]:
    return [
        (event.reason, event.attempt, event.wait_seconds) for event in items if isinstance(event, ModelCallRetryEvent)
    ]


def rebuilt(items: list[Any]) -> Msg:
    """Return the message that a reader builds from the events."""
    events = [item for item in items if isinstance(item, AgentEvent)]
    start = next(event for event in events if isinstance(event, ReplyStartEvent))
    message = Msg(start.name, [], start.role, id=start.reply_id)
    for event in events:
        message.append_event(event)
    return message


def text_of(agent: Agent) -> str | None:
    return agent.state.context[-1].get_text_content()
