"""Running tool calls: the core of on_acting, and the events around it."""

import logging
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby

import anyio
from pydantic_core import to_json

from agentrt.agent.host import Host
from agentrt.agent.reasoning import Conversation
from agentrt.agent.run import Run
from agentrt.agent.step import Act
from agentrt.errors import MissingTerminalError
from agentrt.event import (
    AgentEvent,
    ToolResultDataDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.message import Base64Source, DataBlock, Msg, TextBlock, ToolCallBlock, ToolResultState, copy_block
from agentrt.state import ReplyContext
from agentrt.tool import ToolContext
from agentrt.tool.base import plan_of
from agentrt.tool.call import PreparedCall, respond, run_call
from agentrt.types import ToolChunk, ToolOutput, ToolResponse

__all__ = ["act", "run_calls"]

_logger = logging.getLogger("agentrt")
_ANSWERS = ("text", "data", "thinking")
_LOST = "Failed: the result of this call was lost on its way. It may have taken effect."


async def act(agent: Conversation, tool_call: ToolCallBlock) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
    """The core of on_acting: runs the call. One that a layer put in its place is checked like any other first."""
    prepared = _prepare(agent, tool_call)
    if isinstance(prepared, ToolResponse):
        yield prepared
        return
    stream = run_call(prepared, _context(agent, prepared))
    try:
        async for item in stream:
            yield item
    finally:
        await stream.aclose()


def _context(agent: Conversation, prepared: PreparedCall) -> ToolContext | None:
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


async def run_calls(agent: Conversation, context: ReplyContext, step: Act) -> AsyncGenerator[AgentEvent | Msg, None]:
    """Run the calls of one answer, in order; neighbours that may run side by side do.

    Yields the events of the calls and, when a tool ends the reply with an answer of its own, that message.
    """
    for batch in _batches(agent, step.calls):
        if len(batch) > 1 or _may_announce(agent, batch[0]):
            stream = _beside(agent, context, batch)
        else:
            yield _start(agent.run, batch[0])
            prepared = agent.toolkit.prepare(batch[0], agent.state.active_groups)
            response = await _at_once(agent, prepared)
            if response is not None:
                for event in _result(context, agent.run, batch[0], response, []):
                    yield event
                continue
            stream = _after_start(agent, context, batch[0], prepared)
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()
    if context.response is not None:
        context.round_start = len(context.blocks)
        yield context.response


def _batches(agent: Conversation, calls: list[ToolCallBlock]) -> Iterator[list[ToolCallBlock]]:
    """Yield runs of calls that may run side by side, and the other calls one by one."""
    for safe, group in groupby(calls, partial(_is_safe, agent)):
        if safe:
            yield list(group)
        else:
            yield from ([call] for call in group)


def _is_safe(agent: Conversation, call: ToolCallBlock) -> bool:
    tool = agent.toolkit.get(call.name)
    return tool is None or tool.is_concurrency_safe


def _may_announce(agent: Conversation, call: ToolCallBlock) -> bool:
    if "on_acting" in agent._announcing:
        return True
    tool = agent.toolkit.get(call.name)
    return tool is not None and plan_of(tool).context_name is not None


async def _beside(
    agent: Conversation, context: ReplyContext, batch: list[ToolCallBlock]
) -> AsyncGenerator[AgentEvent, None]:
    """Run the calls in a host task, and yield their events as they come."""
    mailbox = agent.run.mailbox
    failures: dict[int, Exception] = {}
    finished: set[int] = set()

    async def work(place: int, call: ToolCallBlock) -> None:
        prepared = agent.toolkit.prepare(call, agent.state.active_groups)
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
                for place, call in enumerate(batch):
                    group.start_soon(work, place, call)
        except BaseExceptionGroup as raised:  # no `Exception`, since those are in `failures`: what stops a program
            raise raised.exceptions[0] from None

    for call in batch:
        yield _start(agent.run, call)
    async with Host(agent.run.id, mailbox, main if len(batch) > 1 else partial(work, 0, batch[0])) as host:
        while await host.running():
            for event in mailbox.take():
                yield event
        await host.outcome()
    for place in sorted({*range(len(batch))} - finished - failures.keys()):
        # A layer raised a cancellation that nobody asked for, and the task group took it for its own.
        for event in _result(context, agent.run, batch[place], _lost(), []):
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


async def _at_once(agent: Conversation, prepared: PreparedCall | ToolResponse) -> ToolResponse | None:
    """Return the response of a call that no layer wraps and that does not stream: what `act` comes to, for less."""
    if isinstance(prepared, ToolResponse):
        return prepared
    if prepared.is_streaming or agent.chains.on_acting is not act:
        return None
    return await respond(prepared, _context(agent, prepared))


async def _after_start(
    agent: Conversation, context: ReplyContext, call: ToolCallBlock, prepared: PreparedCall | ToolResponse
) -> AsyncGenerator[AgentEvent, None]:
    """Yield the events of one call after its start: pieces of output, then the end."""
    run = agent.run
    response = await _at_once(agent, prepared)
    streamed: ToolOutput = []
    if response is None and isinstance(prepared, PreparedCall):
        run.prepared[call.id] = prepared
        stream = agent.chains.on_acting(agent, tool_call=copy_block(call))
        try:
            async for item in stream:
                if response is not None:
                    _logger.warning("on_acting yielded %r after the result of %r: it was dropped", item, call.name)
                elif isinstance(item, ToolResponse):
                    response = item
                else:
                    content = _blocks(item.content)
                    streamed += content
                    for event in _pieces(run, call, content):
                        yield event
        except MissingTerminalError as error:
            _logger.error("%s", error)
        finally:
            await stream.aclose()
    for event in _result(context, run, call, response or _lost(), streamed):
        yield event


def _lost() -> ToolResponse:
    return ToolResponse([TextBlock(_LOST)], ToolResultState.ERROR)


def _prepare(agent: Conversation, call: ToolCallBlock) -> PreparedCall | ToolResponse:
    """Return what was checked before the chain was entered, if the call is still that one; else check it now."""
    prepared = agent.run.prepared.get(call.id)
    if prepared is not None and prepared.is_for(call):
        return prepared
    return agent.toolkit.prepare(call, agent.state.active_groups)


def _take_metadata(context: ReplyContext, response: ToolResponse) -> None:
    """Take the tool's own answer to the user out of the metadata; what fits into no saved state makes it an error."""
    answer = response.metadata.get("response_msg")
    if isinstance(answer, Msg):
        response.metadata = {key: value for key, value in response.metadata.items() if key != "response_msg"}
        refused = next((block.type for block in answer.get_content_blocks() if block.type not in _ANSWERS), None)
        if refused is None:
            context.response = context.response or answer
        else:
            _fail(response, f"the tool's answer to the user holds a {refused} block")
    try:
        to_json(response.metadata)
    except ValueError as error:
        response.metadata = {}
        _fail(response, f"the metadata of the result has no JSON form ({type(error).__name__})")


def _fail(response: ToolResponse, why: str) -> None:
    response.state = ToolResultState.ERROR
    response.content = [TextBlock(f"Failed: {why}.")]


def _result(
    context: ReplyContext, run: Run, call: ToolCallBlock, response: ToolResponse, streamed: ToolOutput
) -> Iterator[AgentEvent]:
    """Yield the end of a call; before it, output that was not streamed, and in it, output that is not what was."""
    if response.metadata:
        response = replace(response)  # a layer may keep the one it gave, for the next time
        _take_metadata(context, response)
    content = _blocks(response.content)
    output: ToolOutput | None = None
    if not streamed:
        yield from _pieces(run, call, content)
    elif not _same(streamed, content):
        output = content
    state = ToolResultState.SUCCESS if response.state is ToolResultState.RUNNING else response.state
    yield ToolResultEndEvent(run.id, call.id, state, output, metadata=response.metadata or None)


def _blocks(content: str | ToolOutput) -> ToolOutput:
    # A plain text is no content by its type, but what is meant is clear.
    return [TextBlock(content)] if isinstance(content, str) else content


def _pieces(run: Run, call: ToolCallBlock, content: ToolOutput) -> Iterator[AgentEvent]:
    for block in content:
        if isinstance(block, DataBlock):
            yield _data(run, call, block)
        else:
            yield ToolResultTextDeltaEvent(run.id, call.id, block.text, block.id)


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
