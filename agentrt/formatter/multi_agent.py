"""A conversation of many speakers, for a model that knows only a user and itself."""

from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from agentrt._runtime.block import (
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    ProviderBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
)
from agentrt._runtime.text import lazy_pattern
from agentrt.message import Msg

_Payload = TypeVar("_Payload")

_PREFACE = (
    "Several speakers take part in this conversation. Each message begins with its speaker's name and a colon on a "
    "line of their own; the indented lines below are what was said. Answer with your own words alone: put no name "
    "before them, and do not speak for anyone else.\n"
)
_NOTE = "(note)"  # not a speaker: names are in quotes
_INDENT = "  "
# All line breaks of `str.splitlines`: every line of a speaker must be indented.
_LINE_BREAK = lazy_pattern("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_OWN_WORK = (ToolCallBlock, ToolResultBlock, ProviderBlock)
_NEVER_TEXT = ("image/", "audio/", "video/", "application/pdf")
_PLAIN_NAME = lazy_pattern(r"\w(?:[\w .'-]*\w)?")


def multi_agent(formatter: Callable[[Sequence[Msg]], _Payload]) -> Callable[[Sequence[Msg]], _Payload]:
    """Return a formatter that keeps speakers apart by name, for any provider: `multi_agent(format_openai)`.

    For a model that needs its thinking back, such as DeepSeek's: `multi_agent(partial(format_openai, reasoning=True))`.
    """

    def format_transcript(messages: Sequence[Msg]) -> _Payload:
        return formatter(transcribe(messages))

    return format_transcript


def transcribe(messages: Sequence[Msg]) -> list[Msg]:
    """Return the conversation with each run of plain messages, of any speakers, as one message of the user.

    System messages stay as they are, and so do messages with tool calls or results, or with blocks of a provider's own
    tools: they count as the agent's own. Images and files keep their places, a text file among the words of its
    speaker; so do the notes of the runtime, below "(note)". Thinking is left out: it is private. The words of
    one speaker cannot pass for those of another.
    """
    transcribed: list[Msg] = []
    preface = _PREFACE

    def stays(msg: Msg) -> bool:
        return msg.role == "system" or any(isinstance(block, _OWN_WORK) for block in msg.get_content_blocks())

    for is_kept, run in groupby(messages, stays):
        if is_kept:
            transcribed += run
        elif blocks := [block for msg in run for block in _attributed_blocks(msg)]:
            content: list[ContentBlock] = []
            # Providers separate blocks of text, so consecutive ones are merged.
            for kind, group in groupby([TextBlock(preface), *blocks], type):
                if kind is TextBlock:
                    content.append(TextBlock("".join(block.text for block in group if isinstance(block, TextBlock))))
                else:
                    content += group
            transcribed.append(Msg("user", content, "user"))
            preface = ""
    return transcribed


def _attributed_blocks(msg: Msg) -> Iterator[ContentBlock]:
    """Yield the blocks of a message, with its speaker's name before what the speaker says."""
    speaker = msg.name if _PLAIN_NAME.fullmatch(msg.name) else repr(msg.name)
    is_speaking = False
    for block in msg.get_content_blocks():
        if isinstance(block, HintBlock):  # which may repeat what speakers said
            is_speaking = False
            yield replace(block, hint=f"{_NOTE}:\n{_indent(block.hint).text}")
        elif isinstance(block, DataBlock) or (isinstance(block, TextBlock) and block.text):
            if not is_speaking:
                yield TextBlock(f"{speaker}:\n")
            is_speaking = True
            yield _indent(block.text) if isinstance(block, TextBlock) else _file_block(block)


def _indent(text: str) -> TextBlock:
    lines = _LINE_BREAK.sub(r"\g<0>" + _INDENT, text)
    return TextBlock(f"{_INDENT}{lines}\n")


def _file_block(block: DataBlock) -> ContentBlock:
    # Formatters may insert a text file, or the location of an unsupported file, into the text: neither
    # may begin a line without the indent.
    source = block.source
    # Whether it is text is judged by the data, since each formatter has its own rules for types.
    if not source.media_type.strip().lower().startswith(_NEVER_TEXT):
        data = source.data if isinstance(source, Base64Source) else source.url.partition(";base64,")[2]
        with suppress(ValueError):
            if text := b64decode(data).decode():
                return _indent(f"{block.name}:\n{text}" if block.name else text)
    source = replace(source, media_type=_LINE_BREAK.sub(" ", source.media_type))
    if isinstance(source, URLSource):
        source = replace(source, url=_LINE_BREAK.sub("", source.url))
    return replace(block, source=source, name=block.name and _LINE_BREAK.sub(" ", block.name))
