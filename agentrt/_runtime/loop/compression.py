"""Shrinking a conversation that fills its model's context: the core of on_compress_context, and when it is entered.

    system prompt | summary | ... older messages ... | newest messages | reply: ... earlier rounds ... | newest rounds

What does not fit into the reserve, counted from the end, is summarised (summary.py): first the older messages, and
where the reply in progress alone is too long its earlier rounds. The last message of a user stays in any case, and so
does the last round. A tool call and its result stay together, and a call without a result stays.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from agentrt._runtime.concurrency.background_task import BackgroundTask
from agentrt._runtime.concurrency.lifespan import open_for_reply
from agentrt._runtime.conversation.context_usage import characters_in
from agentrt._runtime.conversation.conversation import ReplyingAgent, bound_toolkit
from agentrt._runtime.conversation.inputs import incoming_content, receive
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.conversation.turns import Claim, lock_of
from agentrt._runtime.flow.handles import forget_unnamed, holds
from agentrt._runtime.loop.reasoning import ask_through_layers, system_prompt
from agentrt._runtime.loop.structured_output import toolkit_for_reply
from agentrt._runtime.loop.summary import summarise
from agentrt._runtime.model_interface.estimate import CHARACTERS_PER_TOKEN, TextLength, characters_of, cut_to_length
from agentrt.errors import SessionUnserializable
from agentrt.event import ModelCallEndEvent
from agentrt.message import ContentBlock, HintBlock, Msg, TextBlock, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.state import AgentState
from agentrt.state.state import state_to_json
from agentrt.types import ContextConfig, IncomingContent, ToolChoice

_HistoryItem = TypeVar("_HistoryItem")

_HOOKS_OF_A_COMPRESSION = ("on_compress_context", "on_model_call", "on_system_prompt")
_SHARE_BEFORE_LAYERS = 0.9  # of the limit: what layers make of the prompt may be longer than the last time
_FAR_FROM_LIMIT = 4  # where a request could be this many times as long, an estimate of its length is good enough


def near_context_limit(agent: ReplyingAgent) -> bool:
    """Say whether the next request may be too long, as far as can be told without assembling its prompt."""
    usage = agent.live_conversation.context_usage
    if usage.must_shorten:
        return True
    if agent.model.text_length is not usage.length:
        usage.measure_by(agent.model.text_length)
    usage.was_shortened = False  # in this round: an overflow may be answered by shortening once in each
    tokens = usage.tokens(agent.state, agent.live_conversation.run.toolkit, _last_prompt(agent))
    limit = agent.context_config.trigger_ratio * agent.model.max_input_tokens
    if tokens <= limit / 2:
        # Half of it is left for prompts and tools that grow meanwhile.
        usage.set_headroom(agent.model, int(limit / 2) - tokens)
        return False
    if agent.chains.on_system_prompt is system_prompt:
        return tokens > limit
    # Before the first request nothing is known of the prompt.
    return not agent.live_conversation.prompt_message.last or tokens > limit * _SHARE_BEFORE_LAYERS


def update_from_usage(agent: ReplyingAgent, event: ModelCallEndEvent) -> None:
    """Take in how many tokens the request that was answered just now had; estimates are ignored."""
    if event.estimated or not event.input_tokens:
        return
    tokens = event.input_tokens + (event.output_tokens or 0)
    if tokens * _FAR_FROM_LIMIT > agent.context_config.trigger_ratio * agent.model.context_size:
        conversation = agent.live_conversation
        conversation.context_usage.measure_by(agent.model.text_length)
        conversation.context_usage.update(event, agent.state, conversation.run.toolkit, _last_prompt(agent))


def _last_prompt(agent: ReplyingAgent) -> str:
    if agent.chains.on_system_prompt is system_prompt:
        return agent.system_prompt
    return agent.live_conversation.prompt_message.last or agent.system_prompt


async def compress_then_reason(agent: ReplyingAgent, tool_choice: ToolChoice | None) -> None:
    """Shorten the conversation, if a closer look says so, and then ask the model."""
    run = agent.live_conversation.run
    if agent.live_conversation.emitting_hooks.isdisjoint(_HOOKS_OF_A_COMPRESSION):
        await _compress_if_full(agent)
    else:
        async with BackgroundTask(run, run.mailbox, partial(_compress_if_full, agent)) as task:
            async for event in task:
                await run.outlet.tell_item(event)
            await task.outcome()
    await ask_through_layers(agent, tool_choice)


async def _compress_if_full(agent: ReplyingAgent) -> None:
    usage, config, size = agent.live_conversation.context_usage, agent.context_config, agent.model.max_input_tokens
    usage.measure_by(agent.model.text_length)
    prompt = agent.system_prompt
    if agent.chains.on_system_prompt is not system_prompt:
        prompt = await agent.chains.on_system_prompt(agent, current_prompt=prompt)
    tokens = usage.tokens(agent.state, agent.live_conversation.run.toolkit, prompt)
    if usage.must_shorten:
        # The model refused this request, so its context is not larger than that, whatever its settings say.
        config = replace(config, reserve_ratio=config.reserve_ratio * min(1.0, tokens / size))
    elif tokens <= config.trigger_ratio * size:
        return
    usage.record_shortening()
    await agent.chains.on_compress_context(agent, context_config=config, instructions=None)


async def compress_now(agent: ReplyingAgent, instructions: str | None, deps: object) -> None:
    """Take the conversation, as a reply does, and enter on_compress_context."""
    claim = Claim()
    lock = lock_of(agent.state)
    if not lock.take_free(claim, agent.when_busy):
        await lock.take(claim, agent.when_busy)

    config = agent.context_config
    enter = partial(agent.chains.on_compress_context, agent, context_config=config, instructions=instructions)
    try:
        unfinished = agent.state.reply_context
        if unfinished is None:
            run = ReplyRun(agent, claim, agent.state.sequence, bound_toolkit(agent))
        else:
            claim.reply_id = unfinished.reply_id
            run = ReplyRun(agent, claim, agent.state.sequence, toolkit_for_reply(agent, unfinished))
            run.restore(unfinished)
        run.deps = deps
        agent.live_conversation.begin(run)
        try:
            run.interruption.bind_reader()
            run.interruption.begin(agent.react_config.max_seconds)
            run.interruption.resume()
            async with AsyncExitStack() as lifespans:
                await open_for_reply(lifespans, agent.chains)
                await enter()
        except BaseException as error:
            run.interruption.suspend(error)
            if not await run.interruption.is_interruption(error):
                raise
        finally:
            run.interruption.end()
    finally:
        agent.live_conversation.end()
        claim.give_back()


async def compress(agent: ReplyingAgent, context_config: ContextConfig, instructions: str | None) -> None:
    """The core of on_compress_context: puts a summary in the place of what does not fit into the reserve."""
    state, size = agent.state, agent.model.max_input_tokens * CHARACTERS_PER_TOKEN
    older, summarised = _part_at_reserve(state, int(context_config.reserve_ratio * size), agent.model.text_length)
    if not older:
        return
    summary = await summarise(agent, older, instructions or context_config.instructions)
    if agent.chains.on_content is not incoming_content:
        summary = (await receive(agent, IncomingContent("summary", [TextBlock(summary)]))).text
    # From here to the save nothing waits, so no other task sees a half-changed state.
    limit = int((context_config.trigger_ratio - context_config.reserve_ratio) / 2 * size)
    beginning = cut_to_length(summary, limit)
    state.summary = summary if beginning == summary else beginning + " [...]"
    older_ids = set(map(id, older))
    state.context = [message for message in state.context if id(message) not in older_ids]
    if state.reply_context is not None:
        state.reply_context.summarised = summarised
    agent.live_conversation.context_usage.reset()
    if holds(state):
        with suppress(SessionUnserializable):  # which the save below raises
            forget_unnamed(state, state_to_json(state).decode())
    if agent.state_store is not None:
        await agent.save()


def _part_at_reserve(state: AgentState, room: int, length: TextLength | None) -> tuple[list[Msg], int]:
    """Return what is to be summarised, and how many blocks of the reply in progress that will be in all."""
    context, reply = state.context, state.reply_context
    older: list[Msg] = []
    summarised = 0
    has_rounds = False
    # From the end: first the rounds of the reply in progress, then, with the room that is left, the messages.
    if reply is not None:
        blocks, start = reply.blocks, reply.summarised
        has_rounds = len(blocks) > start
        summarised, room = _newest_part(
            blocks, _starts_of_rounds(blocks, start), lambda block: characters_of(block, length), room, True
        )
        if summarised > start:
            older = [Msg(reply.message.name, blocks[start:summarised], "assistant")]
            room = -1  # a part of the reply itself had no room, so no message before it has
    question = next(
        (
            message
            for message in reversed(context)
            if message.role == "user" and not message.has_content_blocks("tool_result")
        ),
        None,
    )
    room -= characters_in(question, length) if question is not None else 0
    starts, is_open = _starts_of_exchanges(context)

    def size(message: Msg) -> int:
        return 0 if message is question else characters_in(message, length)

    newest, _ = _newest_part(context, starts, size, room, is_open or not has_rounds)
    return [message for message in context[:newest] if message is not question] + older, summarised


def _newest_part(
    items: Sequence[_HistoryItem], starts: list[int], size: Callable[[_HistoryItem], int], room: int, keeps_last: bool
) -> tuple[int, int]:
    """Return where the newest part begins that fits into the room, and how much room it leaves.

    `starts` says where the items may be parted; the part from the last of them on fits in any case with `keeps_last`.
    """
    end = len(items)
    for start in reversed(starts):
        needed = sum(map(size, items[start:end]))
        if needed > room and not keeps_last:
            return end, room
        keeps_last = False
        room -= needed
        end = start
    return end, room


def _starts_of_rounds(blocks: list[ContentBlock], start: int) -> list[int]:
    """Return where the rounds begin that hold tool calls; thinking stays with the calls that it led to."""
    starts = [start] if len(blocks) > start else []
    open_calls: set[str] = set()
    was_end = False
    for index, block in enumerate(blocks[start:], start):
        is_end = isinstance(block, (ToolResultBlock, HintBlock))
        if was_end and not is_end and not open_calls:
            starts.append(index)
        was_end = is_end
        _update_open_calls(open_calls, block)
    return starts


def _starts_of_exchanges(context: list[Msg]) -> tuple[list[int], bool]:
    """Return where no call is open between two messages, and whether one is at the end."""
    starts = []
    open_calls: set[str] = set()
    for index, message in enumerate(context):
        if not open_calls:
            starts.append(index)
        if not isinstance(message.content, str):
            for block in message.content:
                _update_open_calls(open_calls, block)
    return starts, bool(open_calls)


def _update_open_calls(open_calls: set[str], block: ContentBlock) -> None:
    if isinstance(block, ToolCallBlock):
        open_calls.add(block.id)
    elif isinstance(block, ToolResultBlock) and block.state is not ToolResultState.RUNNING:
        open_calls.discard(block.id)
