"""The answer of a reply with layers around it: what leaves on_reply is what is announced, shown and kept.

A layer may answer by itself, stop reading and answer, or replace the message that it was given; it may also change, add
or hold back events. So a second message is built from the events as they leave. If the last message says something
else, the blocks that differ are withdrawn and its own are announced, before the end of the reply, and the message that
is kept becomes what the listener has.
"""

from copy import copy, deepcopy

from agentrt.block import ContentBlock, DataBlock, ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.boundary import mend_message
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.inputs import as_messages
from agentrt.conversation.progress import CoreAnswer
from agentrt.conversation.run import Run
from agentrt.decoding.decoder import Decoder
from agentrt.decoding.recorder import Recorder, have_same_content, is_same, spoken_blocks
from agentrt.errors import ChainContractError
from agentrt.event import AgentEvent, BlocksWithdrawnEvent
from agentrt.hooks import ReplyInput
from agentrt.loop.outcome import begin
from agentrt.message import AssistantMsg, Msg, copy_block
from agentrt.state import AgentState, ReplyContext

__all__ = [
    "announce_answer",
    "announce_notice",
    "announce_round",
    "answer_of_core",
    "checked_answer",
    "keep_as_told",
    "message_to_return",
    "withdraw_unkept",
]

_KEPT_TO_ITSELF = (ThinkingBlock, ProviderBlock)


def answer_of_core(context: ReplyContext, final: Msg) -> CoreAnswer:
    """Return what the core answers, before a layer can change it."""
    ids = {block.id for block in final.get_content_blocks()}
    said = spoken_blocks(context.blocks[context.round_start :])
    stands_for_them = any(block.id in ids for block in said)
    return CoreAnswer(final.copy(), frozenset(block.id for block in said if stands_for_them))


def checked_answer(final: Msg) -> Msg:
    """Return the last message of on_reply as it can be kept; raises `ChainContractError` for one that cannot.

    Its head is not kept, and its metadata is for the caller alone.
    """
    kept = AssistantMsg("", [], structured_output=final.structured_output)
    kept.content = final.content
    try:
        mended = mend_message(kept)
    except ValueError as error:
        problem = str(error)
    else:
        if mended is not kept:
            final = copy(final)
            final.content = mended.content
        return final
    raise ChainContractError(f"on_reply: its last message cannot be kept: {problem}")


def announce_answer(agent: ReplyingAgent, run: Run, inputs: ReplyInput, final: Msg) -> list[AgentEvent]:
    """Make the reply say what the last message of on_reply says; returns the events that announce what is new in it.

    If the layers kept the core from beginning, the reply begins here, and its input joins the conversation. If the
    reply had ended with another answer, its end is to be saved again. What `handle_interrupt` gave is for the caller
    and never joins the conversation, whatever a layer makes of it.
    """
    if run.progress.end_event is not None and run.progress.end_event.finished_reason == "interrupted":
        return withdraw_unkept(run)
    state, recorder = agent.state, run.progress.recorder
    if run.progress.end_event is not None and run.progress.core_answer is not None and recorder is not None:
        # Most replies: one round, and nothing changed.
        is_same_answer = final.content == run.progress.core_answer.message.content == recorder.blocks
        if is_same_answer and final.structured_output == run.progress.end_event.structured_output:
            return []
    if state.reply_context is None and run.progress.end_event is None:
        context = begin(agent, run)
        state.context += [message.copy() for message in as_messages(inputs)]
        state.reply_context = context
    message = run.progress.message
    assert message is not None
    assert recorder is not None
    blocks = message.get_content_blocks()
    replaced = _replaced_ids(run, state.reply_context)
    kept = {block.id for block in blocks} - replaced
    told = [block for block in recorder.blocks if block.id not in kept]
    wanted = _blocks_to_say(run, final)
    hidden = _hidden_ids(blocks, replaced - {block.id for block in told}, wanted)
    events, told = _changes(run, told, [block for block in wanted if block.id not in hidden], final.name)
    is_taken = (
        run.progress.end_event is not None and run.progress.sequence >= run.progress.highest_seq
    )  # the number of the end, by an event after it
    run.progress.expect(len(events) + is_taken)
    has_changed = _update(message, replaced - hidden, told) | keep_as_told(run)
    start = _start_of_answer(message, {block.id for block in told} | hidden)
    if run.progress.end_event is None:
        if state.reply_context is not None and not state.reply_context.parked:
            state.reply_context.round_start = start
    elif _take_output(run, message, final) or has_changed or events:
        _update_history(state, message, start)
        run.progress.mark_changed()
    return events


def keep_as_told(run: Run) -> bool:
    """Keep what was said in the words that left on_reply; says whether that changes anything.

    What a layer held back stays, and so do signed thoughts, which a provider takes back in its own words alone.
    """
    message, recorder = run.progress.message, run.progress.recorder
    if message is None or recorder is None:
        return False
    blocks = {block.id: block for block in message.get_content_blocks()}
    told = [block for block in recorder.blocks if isinstance(block, (TextBlock, ThinkingBlock, DataBlock))]
    told = [block for block in told if block.__class__ is blocks.get(block.id).__class__]
    return _update(message, frozenset(), [block for block in told if getattr(block, "signature", None) is None])


def withdraw_unkept(run: Run) -> list[AgentEvent]:
    """Return the events that withdraw what a reply without an answer has said and does not keep."""
    if run.progress.recorder is None:
        return []
    has_changed = keep_as_told(run)
    kept = set() if run.progress.message is None else {block.id for block in run.progress.message.get_content_blocks()}
    surplus = [block.id for block in run.progress.recorder.blocks if block.id not in kept]
    events: list[AgentEvent] = [BlocksWithdrawnEvent(run.id, surplus)] if surplus else []
    if has_changed or surplus:
        run.progress.expect(
            len(events) + (run.progress.end_event is not None)
        )  # a number is taken, so the state is saved once more
    if has_changed and run.progress.end_event is None:
        run.progress.mark_changed()  # of a reply that waits
    return events


async def announce_notice(agent: ReplyingAgent, run: Run, inputs: ReplyInput, final: Msg) -> list[AgentEvent]:
    """Add to a reply that waits what a layer says instead of taking the answer; the question stands.

    Returns the events that announce it, once the state is saved.
    """
    events = announce_answer(agent, run, inputs, final)
    context = agent.state.reply_context
    if events and context is not None:
        context.ids, agent.state.sequence = run.progress.ids, run.progress.highest_seq
        await agent.save()
    return events


def _replaced_ids(run: Run, context: ReplyContext | None) -> frozenset[str]:
    """Return the ids of the blocks that the last message stands for."""
    if run.progress.end_event is not None:
        return run.progress.core_answer.block_ids if run.progress.core_answer is not None else frozenset()
    blocks = context.blocks[context.round_start :] if context is not None else []
    if any(isinstance(block, ToolCallBlock) for block in blocks):
        return frozenset()  # what was said before a call is not an answer
    return frozenset(block.id for block in spoken_blocks(blocks))


def _blocks_to_say(run: Run, final: Msg) -> list[ContentBlock]:
    blocks = final.get_content_blocks()
    answer = run.progress.core_answer if run.progress.end_event is not None else None
    if answer is not None and not answer.block_ids and have_same_content(blocks, answer.message.get_content_blocks()):
        return []  # it is about the end of the reply, and the end says so
    return spoken_blocks(blocks)


def _hidden_ids(
    blocks: list[ContentBlock], not_told: frozenset[str], final_blocks: list[ContentBlock]
) -> frozenset[str]:
    """Return the ids of the thoughts whose events a layer held back, and which it left in the message as they are."""
    final = {block.id: block for block in final_blocks if isinstance(block, _KEPT_TO_ITSELF)}
    unseen = [block for block in blocks if block.id in not_told and block.id in final]
    return frozenset(block.id for block in unseen if is_same(block, final[block.id]))


def _changes(
    run: Run, told: list[ContentBlock], wanted: list[ContentBlock], name: str
) -> tuple[list[AgentEvent], list[ContentBlock]]:
    """Return the events that lead from the blocks that were told to those that are wanted, and what is told then.

    The blocks that both begin with stay.
    """
    if have_same_content(spoken_blocks(told), wanted):
        return [], told
    common = 0
    for one, other in zip(told, wanted, strict=False):
        if not is_same(one, other):
            break
        common += 1
    events: list[AgentEvent] = []
    if told[common:]:
        events.append(BlocksWithdrawnEvent(run.id, [block.id for block in told[common:]]))
    recorder = Recorder(run.id, name)
    for block in wanted[common:]:  # one by one, so that they keep their order, and those with one id apart
        said = Decoder(run.id, run.new_id, run.progress.call_ids, name, hook="on_reply").decode_content([block])
        events += said
        for event in said:
            recorder.record(event)
    return events, told[:common] + recorder.blocks


def _update(message: Msg, replaced: frozenset[str], told: list[ContentBlock]) -> bool:
    """Replace blocks of the message by what was told; returns whether that changes anything."""
    new = {block.id: block for block in told}
    content: list[ContentBlock] = []
    has_changed = False
    for block in message.get_content_blocks():
        stands = new.pop(block.id, None)
        if stands is not None and not is_same(block, stands):
            block, has_changed = copy_block(stands), True
        elif stands is None and block.id in replaced:
            has_changed = True
            continue
        content.append(block)
    content += map(copy_block, new.values())
    if has_changed or new:
        message.content = content
    return has_changed or bool(new)


def _take_output(run: Run, message: Msg, final: Msg) -> bool:
    """Take over the structured output of the last message; returns whether it differs from the core's."""
    output = final.structured_output
    if run.progress.end_event is None or output == run.progress.end_event.structured_output:
        return False
    message.structured_output = deepcopy(output)
    run.progress.end_event.structured_output = deepcopy(output)
    return True


def _start_of_answer(message: Msg, ids: set[str]) -> int:
    """Return the index of the first block of the answer in the message."""
    blocks = message.get_content_blocks()
    return next((place for place, block in enumerate(blocks) if block.id in ids), len(blocks))


def _update_history(state: AgentState, message: Msg, start: int) -> None:
    """Keep the message of a reply that is over, with another answer, unless it is empty: providers refuse that."""
    if state.last_reply is not None:
        state.last_reply.answer_start = start
    is_there = any(each is message for each in state.context)
    if message.content and not is_there:
        state.context.append(message)
    elif is_there and not message.content:
        state.context[:] = [each for each in state.context if each is not message]


def message_to_return(run: Run, final: Msg) -> Msg:
    """Return the last message, with the id, name, role and end of the reply: a layer decides on the content alone."""
    message, end = run.progress.message, run.progress.end_event
    if message is None or (end is not None and end.finished_reason == "interrupted"):
        return final
    reason, error = (final.finished_reason, final.error) if end is None else (end.finished_reason, end.error)
    head = (message.id, message.name, message.role, reason, error, final.usage or message.usage)
    if (final.id, final.name, final.role, final.finished_reason, final.error, final.usage) != head:
        final = copy(final)  # a layer may keep its own, for the next time
        final.id, final.name, final.role, final.finished_reason, final.error, final.usage = head
    return final


def announce_round(run: Run, context: ReplyContext, message: Msg) -> list[AgentEvent]:
    """Make a round say what a message from on_reasoning says; returns the events that announce it.

    The core's own message changes nothing if no layer has changed it: what the layers made of the events stands.
    """
    blocks = message.get_content_blocks()
    said = context.blocks[context.round_start :]
    attempt = run.progress.attempt
    entered = None if attempt is None else attempt.message_blocks
    is_as_it_was = entered is not None and have_same_content(blocks, entered)
    if said and (is_as_it_was or have_same_content(said, blocks)):
        return []
    events: list[AgentEvent] = [BlocksWithdrawnEvent(run.id, [block.id for block in said])] if said else []
    if attempt is None:
        return events + Decoder(
            run.id, run.new_id, run.progress.call_ids, message.name, hook="on_reasoning"
        ).decode_content(blocks)
    attempt.discard()  # if the round is started again, what is said now is what must be forgotten
    return events + attempt.decode_content(blocks)
