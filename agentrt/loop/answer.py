"""The answer of a reply with layers around it: what leaves on_reply is what is announced, shown and kept.

A layer may answer by itself, stop reading and answer, or replace the message that it was given; it may also change, add
or hold back events. So a second message is built from the events as they leave. If the last message says something
else, the blocks that differ are withdrawn and its own are announced, before the end of the reply, and the message that
is kept becomes what the listener has.
"""

from copy import copy

from pydantic_core import ValidationError

from agentrt.block import ContentBlock, DataBlock, ProviderBlock, TextBlock, ThinkingBlock
from agentrt.boundary import mend_message
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.inputs import as_messages
from agentrt.conversation.progress import CoreAnswer, ReplyProgress
from agentrt.conversation.reply_run import ReplyRun
from agentrt.decoding.answer_form import AnswerForm, describe_misfit
from agentrt.decoding.block_comparison import common_start, have_same_content, is_same, spoken_blocks
from agentrt.decoding.decoder import Decoder
from agentrt.decoding.recorder import Recorder
from agentrt.errors import ChainContractError
from agentrt.event import AgentEvent, BlocksWithdrawnEvent
from agentrt.hooks import ReplyInput
from agentrt.loop.outcome import begin_context
from agentrt.message import AssistantMsg, Msg, copy_block
from agentrt.state import AgentState, ReplyContext
from agentrt.state.changes import SaveRecord

__all__ = [
    "announce_answer",
    "announce_notice",
    "announce_round",
    "core_answer",
    "keep_as_sent",
    "mend_answer",
    "message_to_return",
    "touch_history",
    "withdraw_unkept",
]

_FOR_THE_MODEL_ALONE = (ThinkingBlock, ProviderBlock)


def core_answer(context: ReplyContext, final: Msg) -> CoreAnswer:
    """Return what the core answers, before a layer can change it."""
    ids = {block.id for block in final.get_content_blocks()}
    spoken = spoken_blocks(context.blocks[context.round_start :])
    stands_for_them = any(block.id in ids for block in spoken)
    return CoreAnswer(final.copy(), frozenset(block.id for block in spoken if stands_for_them))


def mend_answer(final: Msg, form: AnswerForm | None) -> Msg:
    """Return the last message of on_reply as it can be kept, with its structured output as JSON.

    Its head is not kept, and its metadata is for the caller alone. Raises `ChainContractError` for one that cannot be
    kept, or whose output does not fit the form that the caller asked for.
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
    """Make the reply say what the last message of on_reply says; returns the events that announce what is new in it.

    If the layers kept the core from beginning, the reply begins here, and its input joins the conversation. If the
    reply had ended with another answer, its end is to be saved again. What `handle_interrupt` gave is for the caller
    and never joins the conversation, whatever a layer makes of it.
    """
    state, progress = agent.state, run.progress
    end = progress.end_event
    if end is not None and end.finished_reason == "interrupted":
        return withdraw_unkept(state, run)
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
    # An event that a layer added after the end has the number that was saved for the end, which needs another one.
    is_taken = end is not None and progress.sequence >= progress.highest_seq
    progress.expect(len(events) + is_taken)
    has_changed = _update(message, replaced - hidden, sent) | keep_as_sent(progress)
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
    """Return the events that announce the answer, its blocks as they are sent then, and the ids of what stays unsent.

    `blocks` are those of the reply's message, and the answer stands for those with the ids in `replaced`.
    """
    progress = run.progress
    assert progress.recorder is not None
    kept_ids = {block.id for block in blocks} - replaced
    sent = [block for block in progress.recorder.blocks if block.id not in kept_ids]
    answer = final.get_content_blocks()
    core = progress.core_answer if progress.end_event is not None else None
    if core is not None and not core.block_ids and have_same_content(answer, core.message.get_content_blocks()):
        answer = []  # the message only tells how the reply ended, which the end event tells as well
    answer = spoken_blocks(answer)
    # The thoughts whose events a layer held back, and which it left in the message as they are.
    not_sent = replaced - {block.id for block in sent}
    thoughts = {block.id: block for block in answer if isinstance(block, _FOR_THE_MODEL_ALONE)}
    unseen = [block for block in blocks if block.id in not_sent and block.id in thoughts]
    hidden = frozenset(block.id for block in unseen if is_same(block, thoughts[block.id]))
    return *_changes(run, sent, [block for block in answer if block.id not in hidden], final.name), hidden


def keep_as_sent(progress: ReplyProgress) -> bool:
    """Keep what was said in the words that left on_reply; says whether that changes anything.

    What a layer held back stays, and so do signed thoughts, which a provider takes back in its own words alone.
    """
    message, recorder = progress.message, progress.recorder
    if message is None or recorder is None:
        return False
    classes = {block.id: block.__class__ for block in message.get_content_blocks()}
    sent = [block for block in recorder.blocks if isinstance(block, (TextBlock, ThinkingBlock, DataBlock))]
    sent = [block for block in sent if block.__class__ is classes.get(block.id)]
    return _update(message, frozenset(), [block for block in sent if getattr(block, "signature", None) is None])


def withdraw_unkept(state: AgentState, run: ReplyRun) -> list[AgentEvent]:
    """Return the events that withdraw what a reply without an answer has said and does not keep."""
    progress = run.progress
    if progress.recorder is None:
        return []
    has_changed = keep_as_sent(progress)
    if has_changed and progress.end_event is not None:
        touch_history(state, progress.message)
    kept_ids = set() if progress.message is None else {block.id for block in progress.message.get_content_blocks()}
    events = _withdrawal(run, [block for block in progress.recorder.blocks if block.id not in kept_ids])
    if has_changed or events:
        # A number is taken, for the end too, so that the state is saved once more.
        progress.expect(len(events) + (progress.end_event is not None))
    if has_changed and progress.end_event is None:
        progress.mark_changed()  # of a reply that waits
    return events


async def announce_notice(agent: ReplyingAgent, run: ReplyRun, inputs: ReplyInput, final: Msg) -> list[AgentEvent]:
    """Add to a reply that waits what a layer says instead of taking the answer; the question stands.

    Returns the events that announce it, once the state is saved.
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
    """Return the events that lead from the blocks that were sent to those of the answer, and what is sent then.

    The blocks that both begin with stay.
    """
    if have_same_content(spoken_blocks(sent), answer):
        return [], sent
    common = common_start(sent, answer)
    events = _withdrawal(run, sent[common:])
    recorder = Recorder(run.id, name)
    for block in answer[common:]:  # one by one, so that they keep their order, and those with one id apart
        block_events = Decoder(run.id, run.new_id, run.progress.call_ids, name, hook="on_reply").decode_content([block])
        events += block_events
        for event in block_events:
            recorder.record(event)
    return events, sent[:common] + recorder.blocks


def _withdrawal(run: ReplyRun, blocks: list[ContentBlock]) -> list[AgentEvent]:
    return [BlocksWithdrawnEvent(run.id, [block.id for block in blocks])] if blocks else []


def _update(message: Msg, replaced: frozenset[str], sent: list[ContentBlock]) -> bool:
    """Replace blocks of the message by what was sent; returns whether that changes anything."""
    new_blocks = {block.id: block for block in sent}
    content: list[ContentBlock] = []
    has_changed = False
    for block in message.get_content_blocks():
        new_block = new_blocks.pop(block.id, None)
        if new_block is not None and not is_same(block, new_block):
            block, has_changed = copy_block(new_block), True
        elif new_block is None and block.id in replaced:
            has_changed = True
            continue
        content.append(block)
    content += map(copy_block, new_blocks.values())
    if has_changed or new_blocks:
        message.content = content
    return has_changed or bool(new_blocks)


def _update_history(state: AgentState, message: Msg, start: int) -> None:
    """Keep the message of a reply that is over, with another answer, unless it is empty: providers refuse that."""
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
    """Have the next save write the message again, which was changed, if it has joined the history."""
    # Not by `state.touch`, which has to refuse a message that has not joined, and so reads the whole history for it.
    record: SaveRecord | None = getattr(state, "save_record", None)
    if record is not None and message is not None:
        record.forget(message)


def message_to_return(progress: ReplyProgress, final: Msg) -> Msg:
    """Return the last message, with the id, name, role and end of the reply: a layer decides on the content alone."""
    message, end = progress.message, progress.end_event
    if message is None or (end is not None and end.finished_reason == "interrupted"):
        return final
    reason, error = (final.finished_reason, final.error) if end is None else (end.finished_reason, end.error)
    head = (message.id, message.name, message.role, reason, error, final.usage or message.usage)
    if (final.id, final.name, final.role, final.finished_reason, final.error, final.usage) != head:
        final = copy(final)  # a layer may keep its own, for the next time
        final.id, final.name, final.role, final.finished_reason, final.error, final.usage = head
    return final


def announce_round(run: ReplyRun, context: ReplyContext, message: Msg) -> list[AgentEvent]:
    """Make a round say what a message from on_reasoning says; returns the events that announce it.

    The core's own message changes nothing if no layer has changed it: what the layers made of the events stands.
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
        attempt.discard()  # if the round is started again, what is said now is what must be forgotten
    return _withdrawal(run, spoken) + attempt.decode_content(blocks)
