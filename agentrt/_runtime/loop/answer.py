"""The answer of a reply with layers: the items that leave on_reply are announced, shown and kept.

A layer may answer by itself, stop reading and answer, or replace the message that it was given; it may also change, add
or hold back events. So a second message is built from the events as they leave, and a block that ends there is kept in
that form. If the last message differs, the differing blocks are withdrawn and its own are announced, before the end of
the reply.
"""

from collections.abc import Iterable
from copy import copy

from pydantic_core import ValidationError

from agentrt._runtime.block import ContentBlock, ProviderBlock, ThinkingBlock, ToolCallBlock, ToolResultBlock
from agentrt._runtime.boundary import mend_message
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.inputs import as_messages
from agentrt._runtime.conversation.progress import CoreAnswer, ReplyProgress
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.decoding.answer_form import AnswerForm, describe_misfit
from agentrt._runtime.decoding.decoder import Decoder
from agentrt._runtime.decoding.recorder import Recorder
from agentrt._runtime.loop.outcome import begin_context
from agentrt._runtime.model_interface.block_comparison import (
    SPOKEN,
    common_start,
    have_same_content,
    is_same,
    spoken_blocks,
)
from agentrt.errors import ChainContractError
from agentrt.event import AgentEvent, BlocksWithdrawnEvent
from agentrt.hooks import ReplyInput
from agentrt.message import AssistantMsg, Msg, copy_block, find_block, take_over_block
from agentrt.state import AgentState, ReplyContext
from agentrt.state.changes import SaveRecord

_FOR_THE_MODEL_ALONE = (ThinkingBlock, ProviderBlock)


def core_answer(context: ReplyContext, final: Msg) -> CoreAnswer:
    """Return the core's answer, before a layer can change it."""
    ids = {block.id for block in final.get_content_blocks()}
    spoken = spoken_blocks(context.blocks[context.round_start :])
    stands_for_them = any(block.id in ids for block in spoken)
    return CoreAnswer(final.copy(), frozenset(block.id for block in spoken if stands_for_them))


def mend_answer(final: Msg, form: AnswerForm | None) -> Msg:
    """Return the last message of on_reply in a form that can be kept, with its structured output as JSON.

    Its other fields are not kept, and its metadata is for the caller only. Raises `ChainContractError` if it cannot be
    kept, or if its output does not fit the form that the caller asked for.
    """
    content_alone = AssistantMsg("", [], structured_output=final.structured_output)
    content_alone.content = final.content
    try:
        if form is not None and final.structured_output is not None:
            content_alone.structured_output = form.take(final.structured_output)
        mended = mend_message(content_alone)
    except ValidationError as error:
        problem = f"its structured_output does not fit the structured_schema: {describe_misfit(error)}"
    except ValueError as error:
        problem = str(error)
    else:
        if mended.content is not final.content or mended.structured_output is not final.structured_output:
            final = copy(final)
            final.content, final.structured_output = mended.content, mended.structured_output
        return final
    raise ChainContractError(f"on_reply: its last message cannot be kept: {problem}")


def announce_answer(agent: ReplyingAgent, run: ReplyRun, inputs: ReplyInput, final: Msg) -> list[AgentEvent]:
    """Make the reply agree with the last message of on_reply; returns the events that announce the differences.

    If the layers kept the core from starting, the reply starts here, and its input joins the conversation. If the reply
    ended with another answer, its end must be saved again. The message of `handle_interrupt` is for the caller and
    never joins the conversation, whatever a layer does with it.
    """
    state, progress = agent.state, run.progress
    end = progress.end_event
    if end is not None and end.finished_reason == "interrupted":
        return withdraw_unkept(run)
    if progress.has_sent(final):
        return []
    if state.reply_context is None and end is None:
        context = begin_context(agent, run)
        state.context += [message.copy() for message in as_messages(inputs)]
        state.reply_context = context
    message = progress.message
    assert message is not None
    replaced = progress.replaced_ids(state.reply_context)
    events, sent, hidden = _announce_blocks(run, message.get_content_blocks(), replaced, final)
    # If a layer added an event after the end, that has the number saved for the end, which needs a new one.
    is_taken = end is not None and progress.sequence >= progress.highest_seq
    progress.expect(len(events) + is_taken)
    has_changed = _update(message, replaced - hidden, sent)
    answer_ids = {block.id for block in sent} | hidden
    blocks = message.get_content_blocks()
    start = next((index for index, block in enumerate(blocks) if block.id in answer_ids), len(blocks))
    if end is None:
        if state.reply_context is not None and not state.reply_context.parked:
            state.reply_context.round_start = start
    elif progress.take_output(final) or has_changed or events:
        _update_history(state, message, start)
        progress.mark_changed()
    return events


def _announce_blocks(
    run: ReplyRun, blocks: list[ContentBlock], replaced: frozenset[str], final: Msg
) -> tuple[list[AgentEvent], list[ContentBlock], frozenset[str]]:
    """Return the events that announce the answer, its blocks after these, and the ids of blocks that stay unsent.

    `blocks` are those of the reply's message; the answer replaces those with ids in `replaced`.
    """
    progress = run.progress
    assert progress.recorder is not None
    kept_ids = {block.id for block in blocks} - replaced
    sent = [block for block in progress.recorder.blocks if block.id not in kept_ids]
    answer = final.get_content_blocks()
    core = progress.core_answer if progress.end_event is not None else None
    if core is not None and not core.block_ids and have_same_content(answer, core.message.get_content_blocks()):
        answer = []  # the message only says how the reply ended, and so does the end event
    answer = spoken_blocks(answer)
    # Thoughts whose events a layer held back, but which it left unchanged in the message.
    not_sent = replaced - {block.id for block in sent}
    thoughts = {block.id: block for block in answer if isinstance(block, _FOR_THE_MODEL_ALONE)}
    unseen = [block for block in blocks if block.id in not_sent and block.id in thoughts]
    hidden = frozenset(block.id for block in unseen if is_same(block, thoughts[block.id]))
    return *_changes(run, sent, [block for block in answer if block.id not in hidden], final.name), hidden


def keep_as_told(state: AgentState, progress: ReplyProgress, blocks: Iterable[ContentBlock]) -> None:
    """Keep ended blocks as they left on_reply.

    Blocks that a layer held back stay as they were, and so do signed thoughts, which a provider accepts only unchanged.
    """
    message, has_changed = progress.message, False
    if message is None:
        return
    for told_block in blocks:
        try:
            block = find_block(message, told_block.id, told_block.__class__)
        except ValueError:  # a layer has added it
            continue
        if block != told_block and _replaces_core_block(told_block):
            take_over_block(block, told_block)
            has_changed = True
    if has_changed and progress.end_event is None:
        progress.mark_changed()  # the reply waits
    elif has_changed:
        touch_history(state, message)
        progress.expect(1)  # the end gets another number, so that the state is saved again


def _replaces_core_block(block: ContentBlock) -> bool:
    """Say whether a told block that differs from the core's block replaces it."""
    if isinstance(block, ToolCallBlock):
        return bool(block.input)  # empty if held back
    if isinstance(block, ToolResultBlock):
        return bool(block.output)
    return not isinstance(block, ThinkingBlock) or block.signature is None


def withdraw_unkept(run: ReplyRun) -> list[AgentEvent]:
    """Return the events that withdraw the blocks that a reply without an answer sent and does not keep."""
    progress = run.progress
    if progress.recorder is None:
        return []
    kept_ids = set() if progress.message is None else {block.id for block in progress.message.get_content_blocks()}
    events = _withdrawal(run, [block for block in progress.recorder.blocks if block.id not in kept_ids])
    if events:
        # These need numbers, and so does the end, so that the state is saved again.
        progress.expect(len(events) + (progress.end_event is not None))
    return events


async def announce_notice(agent: ReplyingAgent, run: ReplyRun, inputs: ReplyInput, final: Msg) -> list[AgentEvent]:
    """Add a layer's message to a reply that waits, where the layer did not accept the answer; the question stands.

    Returns the events that announce it, after the state is saved.
    """
    events = announce_answer(agent, run, inputs, final)
    context = agent.state.reply_context
    if events and context is not None:
        context.ids, agent.state.sequence = run.progress.ids, run.progress.highest_seq
        await agent.save()
    return events


def _changes(
    run: ReplyRun, sent: list[ContentBlock], answer: list[ContentBlock], name: str
) -> tuple[list[AgentEvent], list[ContentBlock]]:
    """Return the events that turn the sent blocks into those of the answer, and the blocks that are sent then.

    Common blocks at the start stay. Blocks that are not spoken were added by a layer, to the events only.
    """
    withdrawn = _withdrawal(run, [block for block in sent if block.__class__ not in SPOKEN])
    sent = [block for block in sent if block.__class__ in SPOKEN]
    if have_same_content(spoken_blocks(sent), answer):
        return withdrawn, sent
    common = common_start(sent, answer)
    events = withdrawn + _withdrawal(run, sent[common:])
    recorder = Recorder(run.id, name)
    for block in answer[common:]:  # one by one, which keeps their order, and separates blocks with equal ids
        block_events = Decoder(run.id, run.new_id, run.progress.call_ids, name, hook="on_reply").decode_content([block])
        events += block_events
        for event in block_events:
            recorder.record(event)
    return events, sent[:common] + recorder.blocks


def _withdrawal(run: ReplyRun, blocks: list[ContentBlock]) -> list[AgentEvent]:
    return [BlocksWithdrawnEvent(run.id, list(dict.fromkeys(block.id for block in blocks)))] if blocks else []


def _update(message: Msg, replaced: frozenset[str], sent: list[ContentBlock]) -> bool:
    """Replace blocks of the message by those that were sent; returns whether the message changed."""
    sent_ids = {block.id for block in sent}
    blocks = message.get_content_blocks()
    content = [block for block in blocks if block.id not in replaced or block.id in sent_ids]
    known_ids = {block.id for block in blocks}
    added = [copy_block(block) for block in sent if block.id not in known_ids]
    has_changed = bool(added) or len(content) < len(blocks)
    if has_changed:
        message.content = content + added
    return has_changed


def _update_history(state: AgentState, message: Msg, start: int) -> None:
    """Keep the changed message of an ended reply, unless it is empty, which providers refuse."""
    if state.last_reply is not None:
        state.last_reply.answer_start = start
    is_kept = any(other is message for other in state.context)
    if message.content and not is_kept:
        state.context.append(message)
    elif is_kept and not message.content:
        state.context[:] = [other for other in state.context if other is not message]
    else:
        touch_history(state, message)


def touch_history(state: AgentState, message: Msg | None) -> None:
    """Have the next save write a changed message again, if it has joined the history."""
    # Not by `state.touch`, which reads the whole history to refuse a message that has not joined it.
    record: SaveRecord | None = getattr(state, "save_record", None)
    if record is not None and message is not None:
        record.forget(message)


def message_to_return(progress: ReplyProgress, final: Msg) -> Msg:
    """Return the last message, with the id, name, role and end of the reply: a layer decides only on the content."""
    message, end = progress.message, progress.end_event
    if message is None or (end is not None and end.finished_reason == "interrupted"):
        return final
    reason, error = (final.finished_reason, final.error) if end is None else (end.finished_reason, end.error)
    head = (message.id, message.name, message.role, reason, error, final.usage or message.usage)
    if (final.id, final.name, final.role, final.finished_reason, final.error, final.usage) != head:
        final = copy(final)  # a copy, since a layer may reuse its message
        final.id, final.name, final.role, final.finished_reason, final.error, final.usage = head
    return final


def announce_round(run: ReplyRun, context: ReplyContext, message: Msg) -> list[AgentEvent]:
    """Make a round agree with a message from on_reasoning; returns the events that announce the differences.

    The core's own message changes nothing if no layer changed it: the events that left the layers stand.
    """
    blocks = message.get_content_blocks()
    spoken = context.blocks[context.round_start :]
    attempt = run.progress.attempt
    blocks_of_core = None if attempt is None else attempt.message_blocks
    is_unchanged = blocks_of_core is not None and have_same_content(blocks, blocks_of_core)
    if spoken and (is_unchanged or have_same_content(spoken, blocks)):
        return []
    if attempt is None:
        attempt = Decoder(run.id, run.new_id, run.progress.call_ids, message.name, hook="on_reasoning")
    else:
        attempt.discard()  # if the round restarts, the new blocks are those to forget
    return _withdrawal(run, spoken) + attempt.decode_content(blocks)
