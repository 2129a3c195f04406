"""Running tool calls: the core of on_acting, and the events around it."""

import logging
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby

import anyio

from agentrt.boundary import is_plain_text, json_problem, mend_block, mend_message
from agentrt.concurrency.background_task import BackgroundTask, enclosing_replies
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.run import Run
from agentrt.conversation.step import STRUCTURED_OUTPUT, Act
from agentrt.decoding.base64_groups import DataPieces
from agentrt.errors import MissingTerminalError
from agentrt.event import (
    AgentEvent,
    ToolResultDataDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.loop.approval import Prepared, decide_call, denial, prepare_call, prepare_without_asking
from agentrt.message import Base64Source, DataBlock, Msg, TextBlock, ToolCallBlock, ToolResultState, copy_block
from agentrt.state import ReplyContext
from agentrt.tool import ToolContext, Toolkit
from agentrt.tool.call import PreparedCall, respond, run_call
from agentrt.tool.to_response import failure
from agentrt.types import PermissionBehavior, ToolChunk, ToolOutput, ToolResponse

__all__ = ["act", "calls_of_round", "result_events", "run_calls"]

_logger = logging.getLogger("agentrt")
_Output = AsyncGenerator[ToolChunk | ToolResponse, None]
_ANSWERS = ("text", "data", "thinking")
_DENIED = ToolResultState.DENIED
_LOST = "Failed: the result of this call was lost on its way. It may have taken effect."


async def act(agent: ReplyingAgent, tool_call: ToolCallBlock) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
    """The core of on_acting: runs the call. One that a layer put in its place is checked like any other first."""
    prepared = await _prepare(agent, tool_call)
    result = prepared if isinstance(prepared, ToolResponse) else await _run_tool(agent, prepared)
    if isinstance(result, ToolResponse):
        yield result
        return
    try:
        async for item in result:
            yield item
    finally:
        await result.aclose()


async def _run_tool(agent: ReplyingAgent, prepared: PreparedCall) -> ToolResponse | _Output:
    """Run a checked call; returns its result, or, if the tool streams, its output."""
    context = _context(agent, prepared)
    if prepared.is_streaming:
        return _mark_each_step(agent.run, run_call(prepared, context))
    token = enclosing_replies.set(agent.run.progress.enclosing_replies)
    try:
        result = await respond(prepared, context)
    finally:
        enclosing_replies.reset(token)
    return result if isinstance(result, ToolResponse) else _mark_each_step(agent.run, result)


async def _mark_each_step(run: Run, stream: _Output) -> _Output:
    """Yield the items of the stream; at each of its steps the context says that it runs inside of this reply."""
    try:
        item: ToolChunk | ToolResponse | None
        while True:
            # For one step at a time, since our reader has the same context.
            token = enclosing_replies.set(run.progress.enclosing_replies)
            try:
                item = await anext(stream, None)
            finally:
                enclosing_replies.reset(token)
            if item is None:
                return
            yield item
    finally:
        await stream.aclose()


def _context(agent: ReplyingAgent, prepared: PreparedCall) -> ToolContext | None:
    if prepared.plan.context_name is None:
        return None
    state = agent.state
    return ToolContext(
        prepared.tool_call,
        agent,
        agent.run,
        active_groups=state.active_groups,
        on_active_groups=partial(setattr, state, "active_groups"),
    )


async def run_calls(agent: ReplyingAgent, context: ReplyContext, step: Act) -> AsyncGenerator[AgentEvent | Msg, None]:
    """Decide on the calls of one answer and run those that may, in order; neighbours that may run side by side do.

    Yields the events of the calls and, when a tool ends the reply with an answer of its own, that message. Stops after
    neighbours of which one has to wait for somebody. Calls beyond the most that a reply may have are denied.
    """
    run = agent.run
    too_many = _beyond_limit(agent, context)
    calls = [call for call in step.calls if call.id not in too_many] if too_many else step.calls
    for batch in [calls] if len(calls) == 1 else _batches(run.toolkit, calls):
        ready = prepare_without_asking(agent, run, context, batch)
        if ready is None:
            ready = []
            stream = _decide(agent, context, batch, ready)
            try:
                async for event in stream:
                    yield event
            finally:
                await stream.aclose()
        if len(ready) > 1 or (ready and _may_announce(agent, ready[0][1])):
            stream = _beside(agent, context, ready)
            try:
                async for event in stream:
                    yield event
            finally:
                await stream.aclose()
        elif ready:
            call, prepared = ready[0]
            yield _start(run, call)
            result = await _begin(agent, call, prepared)
            if isinstance(result, ToolResponse):
                for event in result_events(context, run, call, result, []):
                    yield event
            else:
                stream = _output_events(agent, context, call, result)
                try:
                    async for event in stream:
                        yield event
                finally:
                    await stream.aclose()
        if len(ready) < len(batch):
            return
    denied = [call for call in step.calls if call.id in too_many] if too_many else []
    for call in denied:
        for event in _denied(agent, context, call):
            yield event
    if context.response is not None:
        context.tool_calls += len(calls_of_round(context))
        context.round_start = len(context.blocks)
        yield context.response


def calls_of_round(context: ReplyContext) -> list[ToolCallBlock]:
    """Return the calls that the model made in the current round, but for the one that gives its final answer."""
    calls = [block for block in context.blocks[context.round_start :] if isinstance(block, ToolCallBlock)]
    return calls if context.structured is None else [call for call in calls if call.name != STRUCTURED_OUTPUT]


def _beyond_limit(agent: ReplyingAgent, context: ReplyContext) -> set[str]:
    room = agent.react_config.max_tool_calls - context.tool_calls
    if len(context.blocks) - context.round_start <= room:
        return set()
    return {call.id for call in calls_of_round(context)[max(room, 0) :]}


def _denied(agent: ReplyingAgent, context: ReplyContext, call: ToolCallBlock) -> list[AgentEvent]:
    most = agent.react_config.max_tool_calls
    response = failure(f"Not run: {most} tool calls are the most for one reply, and they are used up.", _DENIED)
    return [_start(agent.run, call), *result_events(context, agent.run, call, response, [])]


async def _decide(
    agent: ReplyingAgent, context: ReplyContext, batch: list[ToolCallBlock], ready: list[tuple[ToolCallBlock, Prepared]]
) -> AsyncGenerator[AgentEvent, None]:
    """Decide on the calls, and add those that need not wait to `ready`; yields what layers emit meanwhile."""

    async def main() -> None:
        for call in batch:
            prepared = await prepare_call(agent, context, call)
            if prepared is not None:
                ready.append((call, prepared))

    if "on_check_permission" not in agent.conversation.emitting_hooks:
        await main()
        return
    async with BackgroundTask(agent.run.claim, agent.run.mailbox, main) as task:
        async for event in task:
            yield event
        await task.outcome()


def _batches(toolkit: Toolkit, calls: list[ToolCallBlock]) -> Iterator[list[ToolCallBlock]]:
    """Yield runs of calls that may run side by side, and the other calls one by one."""
    for safe, group in groupby(calls, partial(_is_safe, toolkit)):
        if safe:
            yield list(group)
        else:
            yield from ([call] for call in group)


def _is_safe(toolkit: Toolkit, call: ToolCallBlock) -> bool:
    tool = toolkit.get(call.name)
    return tool is None or tool.is_concurrency_safe


def _may_announce(agent: ReplyingAgent, prepared: Prepared) -> bool:
    if "on_acting" in agent.conversation.emitting_hooks:
        return True
    return isinstance(prepared, PreparedCall) and prepared.plan.context_name is not None


async def _beside(
    agent: ReplyingAgent, context: ReplyContext, batch: list[tuple[ToolCallBlock, Prepared]]
) -> AsyncGenerator[AgentEvent, None]:
    """Run the calls in a host task, and yield their events as they come."""
    mailbox = agent.run.mailbox
    failures: dict[int, Exception] = {}
    finished: set[int] = set()

    async def work(place: int, call: ToolCallBlock, prepared: Prepared) -> None:
        stream = _after_start(agent, context, call, prepared)
        try:
            async for event in stream:
                await mailbox.put(event)
            finished.add(place)
        except Exception as error:  # noqa: BLE001  # its neighbours go on; raised below
            failures[place] = error
        finally:
            await stream.aclose()

    async def main() -> None:
        try:
            async with anyio.create_task_group() as group:
                for place, (call, prepared) in enumerate(batch):
                    group.start_soon(work, place, call, prepared)
        except BaseExceptionGroup as raised:  # no `Exception`, since those are in `failures`: what stops a program
            raise raised.exceptions[0] from None

    for call, _ in batch:
        yield _start(agent.run, call)
    async with BackgroundTask(
        agent.run.claim, mailbox, main if len(batch) > 1 else partial(work, 0, *batch[0])
    ) as task:
        async for event in task:
            yield event
        await task.outcome()
    for place in sorted({*range(len(batch))} - finished - failures.keys()):
        # A layer raised a cancellation that nobody asked for, and the task group took it for its own.
        for event in result_events(context, agent.run, batch[place][0], _lost(), []):
            yield event
    if failures:
        raise _first_of(failures)


def _first_of(failures: dict[int, Exception]) -> Exception:
    first, *others = (failures[place] for place in sorted(failures))
    for error in others:
        first.add_note(f"another tool call of the same answer failed as well: {type(error).__name__}")
    return first


def _start(run: Run, call: ToolCallBlock) -> ToolResultStartEvent:
    return ToolResultStartEvent(run.id, call.id, call.name)


async def _begin(agent: ReplyingAgent, call: ToolCallBlock, prepared: Prepared) -> ToolResponse | _Output:
    """Return the result of a call, or the stream that ends with it; without layers no chain is entered."""
    if isinstance(prepared, ToolResponse):
        return prepared
    if agent.chains.on_acting is act:
        return await _run_tool(agent, prepared)
    agent.run.progress.prepared[call.id] = prepared
    stream: _Output = agent.chains.on_acting(agent, tool_call=copy_block(call))
    return stream


async def _after_start(
    agent: ReplyingAgent, context: ReplyContext, call: ToolCallBlock, prepared: Prepared
) -> AsyncGenerator[AgentEvent, None]:
    """Yield the events of one call after its start: pieces of output, then the end."""
    result = await _begin(agent, call, prepared)
    if isinstance(result, ToolResponse):
        for event in result_events(context, agent.run, call, result, []):
            yield event
        return
    stream = _output_events(agent, context, call, result)
    try:
        async for event in stream:
            yield event
    finally:
        await stream.aclose()


async def _output_events(
    agent: ReplyingAgent, context: ReplyContext, call: ToolCallBlock, stream: _Output
) -> AsyncGenerator[AgentEvent, None]:
    response: ToolResponse | None = None
    streamed: ToolOutput = []
    pieces: DataPieces | None = None
    try:
        async for item in stream:
            if response is not None:
                _logger.warning("on_acting yielded %r after the result of %r: it was dropped", item, call.name)
            elif isinstance(item, ToolResponse):
                response = item
            else:
                try:
                    content = _blocks(item.content)
                except ValueError as error:
                    response = failure(f"Failed: the output holds {error}.")
                    continue
                streamed += content
                pieces = pieces or DataPieces()
                for event in _pieces(agent.run, call, [_joinable(block, pieces) for block in content]):
                    yield event
    except MissingTerminalError as error:
        _logger.error("%s", error)
    finally:
        await stream.aclose()
    for event in result_events(context, agent.run, call, response or _lost(), streamed):
        yield event


def _lost() -> ToolResponse:
    return ToolResponse([TextBlock(_LOST)], ToolResultState.ERROR)


async def _prepare(agent: ReplyingAgent, call: ToolCallBlock) -> Prepared:
    """Return what was checked and decided before the chain was entered, if the call is still that one.

    One that a layer put in its place is checked and decided on like any other, but nobody can be asked about it here.
    """
    known = agent.run.progress.prepared.get(call.id)
    if known is not None and known.is_for(call):
        return known
    prepared = agent.run.toolkit.prepare(call, agent.state.active_groups)
    if isinstance(prepared, ToolResponse):
        return prepared
    decision = await decide_call(agent, prepared, None)
    if decision.waits_for:
        return failure(
            f"{call.name} was not run: a layer put this call in the place of another one, and nobody can be asked "
            f"about it any more.",
            ToolResultState.DENIED,
        )
    return prepared if decision.behavior is PermissionBehavior.ALLOW else denial(decision)


def _take_metadata(context: ReplyContext, response: ToolResponse) -> None:
    """Take the tool's own answer to the user out of the metadata; what fits into no saved state makes it an error."""
    if not isinstance(response.metadata, dict):
        _fail(response, f"the metadata of the result is {response.metadata!r:.100}: it must be a dict")
        response.metadata = {}
        return
    answer = response.metadata.get("response_msg")
    if isinstance(answer, Msg):
        response.metadata = {key: value for key, value in response.metadata.items() if key != "response_msg"}
        refused = next((block.type for block in answer.get_content_blocks() if block.type not in _ANSWERS), None)
        try:
            answer = mend_message(answer)
        except ValueError as error:
            _fail(response, f"the tool's answer to the user could not be saved: {error}")
        else:
            if refused is None:
                context.response = context.response or answer
            else:
                _fail(response, f"the tool's answer to the user holds a {refused} block")
    problem = json_problem(response.metadata)
    if problem is not None:
        response.metadata = {}
        _fail(response, f"the metadata of the result has no JSON form: {problem}")


def _fail(response: ToolResponse, why: str) -> None:
    response.state = ToolResultState.ERROR
    response.content = [TextBlock(f"Failed: {why}.")]


def result_events(
    context: ReplyContext, run: Run, call: ToolCallBlock, response: ToolResponse, streamed: ToolOutput
) -> list[AgentEvent]:
    """Return the end of a call; before it, output that was not streamed, and in it, output that is not what was."""
    if response.metadata:
        response = replace(response)  # a layer may keep the one it gave, for the next time
        _take_metadata(context, response)
    try:
        content, state = _blocks(response.content), response.state
        if state.__class__ is not ToolResultState:
            state = ToolResultState(state)
    except ValueError as error:  # of a layer's making, since the tool's own is sound
        content, state = [TextBlock(f"Failed: the result holds {error}.")], ToolResultState.ERROR
    for block in content:
        if isinstance(block, TextBlock):
            context.received += len(block.text)
    note = note_of(context, call)
    output: ToolOutput | None = None
    if not streamed:
        events = _pieces(run, call, [*content, *note] if note else content)
    elif _same(streamed, content):
        events = _pieces(run, call, note)
    else:
        events, output = [], [*content, *note]
    state = ToolResultState.SUCCESS if state is ToolResultState.RUNNING else state
    events.append(ToolResultEndEvent(run.id, call.id, state, output, metadata=response.metadata or None))
    return events


def note_of(context: ReplyContext, call: ToolCallBlock) -> ToolOutput:
    """Return what the person who allowed the call had to say with that; it stands at the end of the result."""
    decision = context.decisions.get(call.id)
    if decision is None or decision.by == "policy" or decision.behavior is PermissionBehavior.DENY:
        return []
    return [TextBlock(f"[The user adds: {decision.message}]")] if decision.message else []


def _blocks(content: str | ToolOutput) -> ToolOutput:
    """Return the content, which may come from a layer, as it can be kept; raises `ValueError` for what cannot be."""
    # By its type a plain `str` is not content, but its meaning is clear.
    if isinstance(content, str):
        content = [TextBlock(content)]
    if not isinstance(content, (list, tuple)):
        raise ValueError(f"the content {content!r:.200}, which is not a list of blocks")
    return [block if is_plain_text(block) else _block(block) for block in content]


def _block(block: object) -> TextBlock | DataBlock:
    if not isinstance(block, (TextBlock, DataBlock)):
        raise ValueError(f"{block!r:.200}, which is neither a TextBlock nor a DataBlock")
    return mend_block(block)


def _pieces(run: Run, call: ToolCallBlock, content: ToolOutput) -> list[AgentEvent]:
    return [
        _data(run, call, block)
        if isinstance(block, DataBlock)
        else ToolResultTextDeltaEvent(run.id, call.id, block.text, block.id)
        for block in content
    ]


def _joinable(block: TextBlock | DataBlock, pieces: DataPieces) -> TextBlock | DataBlock:
    # The rest after the last piece is not announced: output that holds data is announced whole in the end.
    if not isinstance(block, DataBlock) or not isinstance(block.source, Base64Source):
        return block
    source = Base64Source(pieces.take(block.id, block.source.data), block.source.media_type)
    return DataBlock(source, block.name, block.id)


def _data(run: Run, call: ToolCallBlock, block: DataBlock) -> ToolResultDataDeltaEvent:
    source = block.source
    data, url = (source.data, None) if isinstance(source, Base64Source) else (None, source.url)
    return ToolResultDataDeltaEvent(run.id, call.id, block.id, source.media_type, data, url, block.name)


def _same(streamed: Iterable[TextBlock | DataBlock], whole: Iterable[TextBlock | DataBlock]) -> bool:
    # Data comes in pieces that are encoded one by one, so only text can be compared cheaply; data is sent whole again.
    texts = [_text(streamed), _text(whole)]
    return None not in texts and texts[0] == texts[1]


def _text(content: Iterable[TextBlock | DataBlock]) -> str | None:
    blocks = list(content)
    return "".join(block.text for block in blocks if isinstance(block, TextBlock)) if _all_text(blocks) else None


def _all_text(blocks: list[TextBlock | DataBlock]) -> bool:
    return all(isinstance(block, TextBlock) for block in blocks)
