"""Agents in sequence, each answering the answer of the previous one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentrt._runtime.block import BlockType
from agentrt._runtime.representation import repr_by_settings
from agentrt.agent import Agent
from agentrt.message import Msg
from agentrt.pipeline.participants import Stage, stages_in

_UNPASSED_BLOCKS: tuple[BlockType, ...] = ("thinking", "tool_call", "tool_result", "hint", "provider")


async def sequential_pipeline(agents: Sequence[Stage], msg: Any = None, **kwargs: object) -> Any:
    """Have each agent answer the answer of the previous one, the first one `msg`, and return the last answer.

    `kwargs`, such as `deps`, go to each of them unchanged. The next agent gets an answer without thinking, tool calls
    and notes of the runtime, which no agent takes from another; the returned one is complete. `None` is passed like any
    other answer, and without agents `msg` is returned. The message of a waiting reply is returned at
    once, since the reply is not finished: answer its agent, then run the next ones. Other pipelines, and coroutine
    functions, may be among the agents.
    """
    stages = stages_in(agents, "sequential_pipeline()")
    for position, stage in enumerate(stages):
        msg = await stage(msg if position == 0 else _without_private_blocks(msg), **kwargs)
        # Its message has the waiting calls, which the next agent cannot answer.
        if isinstance(stage, Agent) and stage.state.reply_context is not None:
            break
    return msg


class SequentialPipeline:
    """A reusable `sequential_pipeline`."""

    def __init__(self, agents: Sequence[Stage]) -> None:
        self.agents = stages_in(agents, "SequentialPipeline(agents=...)")

    __repr__ = repr_by_settings

    async def __call__(self, msg: Any = None, **kwargs: object) -> Any:
        """Run the message through the agents."""
        return await sequential_pipeline(self.agents, msg, **kwargs)


def _without_private_blocks(answer: object) -> object:
    if isinstance(answer, list):
        return [_without_private_blocks(message) for message in answer]
    if not isinstance(answer, Msg) or not any(map(answer.has_content_blocks, _UNPASSED_BLOCKS)):
        return answer
    blocks = answer.get_content_blocks()
    return replace(answer, content=[block for block in blocks if block.type not in _UNPASSED_BLOCKS])
