"""`show`: prints a reply as it happens."""

import codecs
import os
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Protocol, TextIO

import anyio

from agentrt._runtime.conversation.reply_stream import ReplyStream
from agentrt.console.render.event_renderer import EventRenderer
from agentrt.console.render.plain import PlainView
from agentrt.errors import UsageError
from agentrt.event import (
    AgentEvent,
    BlocksWithdrawnEvent,
    ModelCallStartEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    ToolResultEndEvent,
)
from agentrt.message import Msg
from agentrt.types import ChatUsage


class _ReplyItems(Protocol):
    def __aiter__(self) -> AsyncIterator[AgentEvent | Msg]: ...
    async def aclose(self) -> None: ...


async def show(stream: _ReplyItems, *, color: bool = True, markdown: bool = True) -> Msg:
    """Print a reply as it happens, `await show(agent.reply_stream("Hi!"))`, and return its final message.

    Prints to `sys.stdout`: Markdown in colours on a terminal, with rich; plain text otherwise, and with `color=False`
    or `NO_COLOR` set. With `markdown=False` the answer is shown unchanged, in colours or without. Control codes
    are escaped. The stream is always closed, and its errors are raised.
    """
    final = _FinalMessage()
    async with aclosing(stream):
        with _open_view(sys.stdout, color, markdown) as view:
            renderer = EventRenderer(view)
            try:
                async for item in stream:
                    final.add(item)
                    if not isinstance(item, Msg):
                        renderer.render(item)
            except anyio.get_cancelled_exc_class():
                # Shown here, since the view is closed after the cancellation.
                view.line("stopped", "")
                raise
            message = stream.message if isinstance(stream, ReplyStream) else final.message()
            if not renderer.has_shown_text:  # a layer may answer without a single event
                view.stream("text", message.get_text_content() or "")
            if message.usage is not None and message.usage != ChatUsage():  # without a known usage, show no zeros
                renderer.render_usage(message.usage)
    return message


class _FinalMessage:
    """The final message: the one at the end of the stream, or else the last round of the events' message."""

    def __init__(self) -> None:
        self._last_item: Msg | None = None
        self._rebuilt: Msg | None = None
        self._round_start = 0

    def add(self, item: AgentEvent | Msg) -> None:
        if isinstance(item, Msg):
            self._last_item = item
            return
        if self._rebuilt is None and isinstance(item, (ReplyStartEvent, ReplyResumedEvent)):
            self._rebuilt = Msg(item.name, [], item.role, id=item.reply_id)
        if self._rebuilt is None or item.reply_id != self._rebuilt.id:
            return
        if isinstance(item, BlocksWithdrawnEvent):
            earlier = self._rebuilt.get_content_blocks()[: self._round_start]
            self._round_start -= sum(block.id in item.block_ids for block in earlier)
        with suppress(ValueError):  # a layer kept the start of a block
            self._rebuilt.append_event(item)
        # The final message of a reply is its last round: the text after the last tool.
        if isinstance(item, (ModelCallStartEvent, ToolResultEndEvent)):
            self._round_start = len(self._rebuilt.content)

    def message(self) -> Msg:
        if self._last_item is not None:
            return self._last_item
        if self._rebuilt is None:
            raise UsageError(
                "show() was given a stream without a reply: write `await show(agent.reply_stream(...))`, with "
                "yield_final_msg=True where reply_id may name a reply that is over and has no events any more"
            )
        self._rebuilt.content = self._rebuilt.get_content_blocks()[self._round_start :]
        return self._rebuilt


def _open_view(file: TextIO, color: bool, markdown: bool) -> PlainView:
    if color and not os.environ.get("NO_COLOR"):
        is_utf8 = codecs.lookup(getattr(file, "encoding", None) or "ascii").name == "utf-8"
        if is_utf8 and file.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown"):
            from agentrt.console.render.rich import RichView

            with suppress(ImportError):
                return RichView(file, markdown=markdown)
    return PlainView(file)
