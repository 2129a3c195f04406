"""Agents one after the other, each answering what the one before it has said."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentrt.agent import Agent
from agentrt.block import BlockType
from agentrt.message import Msg
from agentrt.pipeline.participants import Stage, stages_in

__all__ = ["SequentialPipeline", "sequential_pipeline"]

_KEPT_TO_ONESELF: tuple[BlockType, ...] = ("thinking", "tool_call", "tool_result", "hint", "provider")


async def sequential_pipeline(agents: Sequence[Stage], msg: Any = None) -> Any:
    """Have each agent answer what the one before it answered, the first one `msg`, and return the last answer.

    An answer goes on as what was said, without thoughts, tool calls and notes of the runtime, which no agent takes from
    another; the one returned is whole. `None` goes on like any other answer, and without agents `msg` is returned. A
    reply that waits for somebody's answer is returned at once, since it is not finished: answer its agent, then run
    those after it. Other pipelines, and coroutine functions, may stand among the agents.
    """
    stages = stages_in(agents, "sequential_pipeline()")
    for place, stage in enumerate(stages):
        msg = await stage(msg if place == 0 else _as_said(msg))
        if isinstance(stage, Agent) and stage.state.reply_context is not None:
            break
    return msg


class SequentialPipeline:
    """A `sequential_pipeline` to be called again and again."""

    def __init__(self, agents: Sequence[Stage]) -> None:
        self.agents = stages_in(agents, "SequentialPipeline(agents=...)")

    async def __call__(self, msg: Any = None) -> Any:
        """Run the message through the agents."""
        return await sequential_pipeline(self.agents, msg)


def _as_said(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_as_said(each) for each in answer]
    if not isinstance(answer, Msg) or not any(map(answer.has_content_blocks, _KEPT_TO_ONESELF)):
        return answer
    said = [block for block in answer.get_content_blocks() if block.type not in _KEPT_TO_ONESELF]
    return replace(answer, content=said)
