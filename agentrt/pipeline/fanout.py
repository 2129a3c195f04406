"""Agents in parallel, all answering the same message."""

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from agentrt._runtime.representation import repr_by_settings
from agentrt._runtime.text import repr_of
from agentrt.errors import InvalidInputError
from agentrt.message import Msg
from agentrt.pipeline.concurrency import gather
from agentrt.pipeline.participants import Stage, stages_in


async def fanout_pipeline(
    agents: Sequence[Stage], msg: object = None, enable_gather: bool = True, **kwargs: object
) -> list[Any]:
    """Have each agent answer its own copy of `msg`, and return the answers in the order of the agents.

    They answer concurrently, or one after the other without `enable_gather`; `kwargs`, such as `deps`, go to each of
    them unchanged. The first failure stops the others, is raised unchanged once they have stopped, and names in a
    note the types of the errors that followed. The message of a waiting reply is among the answers
    unchanged. Other pipelines, and coroutine functions, may be among the agents.
    """
    stages = stages_in(agents, "fanout_pipeline()")
    calls = [partial(stage, _copy(msg), **kwargs) for stage in stages]
    # Each gets its own copy, so that no agent sees another's changes to the message.
    return await gather(calls) if enable_gather else [await call() for call in calls]


class FanoutPipeline:
    """A reusable `fanout_pipeline`."""

    def __init__(self, agents: Sequence[Stage], enable_gather: bool = True) -> None:
        self.agents = stages_in(agents, "FanoutPipeline(agents=...)")
        self.enable_gather = enable_gather

    __repr__ = repr_by_settings

    async def __call__(self, msg: object = None, **kwargs: object) -> list[Any]:
        """Give the message to all agents."""
        return await fanout_pipeline(self.agents, msg, self.enable_gather, **kwargs)


def _copy(msg: object) -> object:
    if isinstance(msg, list):
        return [_copy(message) for message in msg]
    try:
        return msg.copy() if isinstance(msg, Msg) else deepcopy(msg)
    except Exception as error:  # copying may raise anything
        raise InvalidInputError(
            f"a fanout gives each agent a copy of the message, and {repr_of(msg)} cannot be copied: give what agents "
            f"share as deps=..."
        ) from error
