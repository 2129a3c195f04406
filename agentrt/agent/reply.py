"""The core of a reply, inside every layer: rounds of asking the model and running its tools, until it answers."""

from collections.abc import AsyncGenerator
from typing import Any

from agentrt.agent.accept import as_messages
from agentrt.agent.acting import run_calls
from agentrt.agent.ending import ReplyingConversation, end, end_event, leftovers, start
from agentrt.agent.run import Run
from agentrt.agent.step import Act, Finish, Reason, Step, next_step
from agentrt.errors import ChainContractError, ChainError, Malformed
from agentrt.event import (
    AgentEvent,
    ExceedMaxItersEvent,
    HintBlockEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    ReplyStartEvent,
    ToolResultEndEvent,
)
from agentrt.hooks import ReplyInput
from agentrt.message import AssistantMsg, ContentBlock, DataBlock, Msg, TextBlock, ToolCallBlock, copy_block
from agentrt.state import ReplyContext
from agentrt.types import FinishedReason

__all__ = ["reply"]

_MOST_EMPTY_ROUNDS = 1
_EXCEEDED = "I used up the rounds that I have for one reply and could not finish."


async def reply(  # noqa: C901  # in one piece, since another generator would cost every event another frame
    agent: ReplyingConversation, inputs: ReplyInput, structured_schema: Any
) -> AsyncGenerator[AgentEvent | Msg, None]:
    """The core of on_reply: rounds of asking the model and running its tools, until there is an answer.

    The message is built from what leaves on_reasoning, and each result is saved before the event that tells of it.
    """
    run = agent.run
    mailbox = run.mailbox
    context, opening = await _open(agent, run, inputs)
    if opening is not None:
        yield opening
    step = next_step(context)
    try:
        while True:
            if run.ended:
                raise ChainContractError("a layer of on_reply ended the reply itself, but read on: stop there")
            if isinstance(step, Finish):
                if context.cur_iter > context.max_iters or not run.hinted(step):
                    break
                yield _take_hint(run, context)
                step = next_step(context)
            stream = _perform(agent, context, step)
            try:
                async for item in stream:
                    if mailbox.items and not mailbox.is_read:  # if it is, this item came out of it
                        for event in mailbox.take():
                            yield run.admit(event)
                    if isinstance(item, Msg):
                        for event in run.spoken(item):
                            yield run.admit(event)
                        continue
                    if item.__class__ is ReplyEndEvent and item.reply_id == run.id:
                        raise ChainContractError("REPLY_END came from inside the reply: only on_reply may end it")
                    run.admit(item)
                    if item.__class__ is ToolResultEndEvent:
                        await agent.save()
                    yield item
            finally:
                await stream.aclose()
            step = next_step(context)
            if isinstance(step, Act):
                await agent.save()
            else:
                _count_round(agent, context)
                step = next_step(context)
    except Exception:
        for event in leftovers(agent, run):
            yield event
        raise
    final = _final(context, step.reason)
    if step.reason == "exceed_max_iters":
        yield run.admit(ExceedMaxItersEvent(run.id, agent.name))
    if mailbox.items:
        for event in mailbox.take():
            yield run.admit(event)
    yield await end(agent, run, end_event(agent, run, step.reason))
    yield final


async def _open(
    agent: ReplyingConversation, run: Run, inputs: ReplyInput
) -> tuple[ReplyContext, ReplyStartEvent | ModelCallRetryEvent | None]:
    """Take in the input and begin the reply, or begin it again when a layer of on_reply does so."""
    if run.ended:
        raise ChainError(
            "on_reply called next_handler() again after the reply had ended: to have another round, call "
            "agent.run.continue_with(hint) before that"
        )
    state = agent.state
    if state.reply_context is not None:
        return state.reply_context, _begin_again(run, state.reply_context)
    state.context.extend(message.copy() for message in as_messages(inputs))
    message = AssistantMsg(agent.name, [], id=run.id)
    state.reply_context = ReplyContext(run.id, message, agent.react_config.max_iters)
    run.message = message
    if run.start is None:
        opening: ReplyStartEvent | None = start(agent, run)
    else:  # it is out already, since a layer spoke before us
        opening = None
        message.append_event(run.start)
    if agent.state_store is not None:
        await agent.save()
    return state.reply_context, opening


def _begin_again(run: Run, context: ReplyContext) -> ModelCallRetryEvent:
    dropped = [block.id for block in context.blocks]
    run.call_ids.clear()
    run.attempt = None
    context.cur_iter = context.round_start = context.empty_rounds = 0
    context.response = None
    return run.admit(ModelCallRetryEvent("the reply was started again", block_ids=dropped, reply_id=run.id))


def _perform(agent: ReplyingConversation, context: ReplyContext, step: Step) -> AsyncGenerator[AgentEvent | Msg, None]:
    """Return the stream of the step: one round of asking the model, or running its calls."""
    if isinstance(step, Act):
        return run_calls(agent, context, step)
    assert isinstance(step, Reason)  # a hint makes another round, so the step after it is no end either
    agent.run.attempt = None
    context.round_start = len(context.blocks)
    stream: AsyncGenerator[AgentEvent | Msg, None] = agent.chains.on_reasoning(agent, tool_choice=step.tool_choice)
    return stream


def _count_round(agent: ReplyingConversation, context: ReplyContext) -> None:
    """Count a round whose calls, if it has any, all have results; raises `Malformed` for a model that says nothing."""
    context.cur_iter += 1
    context.empty_rounds = 0 if len(context.blocks) > context.round_start else context.empty_rounds + 1
    if context.empty_rounds > _MOST_EMPTY_ROUNDS:
        raise Malformed(f"model {agent.model.model!r} answered with nothing, {context.empty_rounds} times in a row")


def _take_hint(run: Run, context: ReplyContext) -> AgentEvent:
    event = run.admit(HintBlockEvent(run.id, run.new_id(), run.take_hint(), "continue_with"))
    context.round_start = len(context.blocks)
    context.response = None
    return event


def _final(context: ReplyContext, reason: FinishedReason) -> Msg:
    """Return the message that answers the input: what the last round said."""
    message = context.message
    answer = [copy_block(block) for block in context.blocks[context.round_start :]]
    if reason == "exceed_max_iters" and not _is_answer(answer):
        answer = [TextBlock(_EXCEEDED)]
    return Msg(
        message.name,
        answer,
        "assistant",
        id=message.id,
        metadata=dict(context.response.metadata) if context.response else {},
        usage=message.usage,
        finished_reason=reason,
        created_at=message.created_at,
    )


def _is_answer(blocks: list[ContentBlock]) -> bool:
    called = any(isinstance(block, ToolCallBlock) for block in blocks)
    return not called and any(isinstance(block, (TextBlock, DataBlock)) for block in blocks)
