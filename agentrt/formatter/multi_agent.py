"""A conversation of many speakers, told to a model that knows only a user and itself."""

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from agentrt.block import (
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
from agentrt.message import Msg

__all__ = ["multi_agent", "transcribe"]

_T = TypeVar("_T")

_PREFACE = (
    "Several speakers take part in this conversation. Each message begins with its speaker's name and a colon on a "
    "line of their own; the indented lines below are what was said. Answer with your own words alone: put no name "
    "before them, and do not speak for anybody else.\n"
)
_NOTE = "(note)"  # not the name of a speaker, which would stand in quotes
_INDENT = "  "
# All that `str.splitlines` takes for the end of a line: what a speaker writes must not begin one without the indent.
_LINE_END = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_OWN_WORK = (ToolCallBlock, ToolResultBlock, ProviderBlock)
_NO_TEXT = ("image/", "audio/", "video/", "application/pdf")
_PLAIN_NAME = re.compile(r"\w(?:[\w .'-]*\w)?")


def multi_agent(formatter: Callable[[Sequence[Msg]], _T]) -> Callable[[Sequence[Msg]], _T]:
    """Return a formatter that keeps speakers apart by name, for any provider: `multi_agent(format_openai)`.

    For a model that wants its thinking back, as DeepSeek's do: `multi_agent(partial(format_openai, reasoning=True))`.
    """

    def format_transcript(messages: Sequence[Msg]) -> _T:
        return formatter(transcribe(messages))

    return format_transcript


def transcribe(messages: Sequence[Msg]) -> list[Msg]:
    """Return the conversation with each run of plain messages, whoever spoke, told in one message of the user.

    System messages stay as they are, and so do messages with tool calls or results, or with what a provider did on its
    side: they are taken for the agent's own. Images and files keep their places, a file of text among the words of its
    speaker; so do the notes of the runtime, below "(note)". Thinking is nobody else's business and left out. Whatever
    somebody says, it cannot pass for the words of another.
    """
    told: list[Msg] = []
    preface = _PREFACE
    for plain, run in groupby(messages, _is_plain):
        if not plain:
            told += run
        elif blocks := [block for msg in run for block in _told(msg)]:
            told.append(Msg("user", _joined([TextBlock(preface), *blocks]), "user"))
            preface = ""
    return told


def _is_plain(msg: Msg) -> bool:
    works = any(isinstance(block, _OWN_WORK) for block in msg.get_content_blocks())
    return msg.role != "system" and not works


def _told(msg: Msg) -> Iterator[ContentBlock]:
    speaking = False
    for block in msg.get_content_blocks():
        if isinstance(block, HintBlock):  # which may repeat what speakers said
            speaking = False
            yield replace(block, hint=f"{_NOTE}:\n{_indented(block.hint).text}")
        elif isinstance(block, DataBlock) or (isinstance(block, TextBlock) and block.text):
            if not speaking:
                yield TextBlock(f"{_speaker(msg.name)}:\n")
            speaking = True
            yield _indented(block.text) if isinstance(block, TextBlock) else _file(block)


def _speaker(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else repr(name)


def _indented(text: str) -> TextBlock:
    lines = _LINE_END.sub(r"\g<0>" + _INDENT, text)
    return TextBlock(f"{_INDENT}{lines}\n")


def _file(block: DataBlock) -> ContentBlock:
    # Formatters may put a file of text, or the place of a file that their API does not take, among the words.
    text = _text_in(block.source)
    if text is not None:
        return _indented(f"{block.name}:\n{text}" if block.name else text)
    source = replace(block.source, media_type=_LINE_END.sub(" ", block.source.media_type))
    if isinstance(source, URLSource):
        source = replace(source, url=_LINE_END.sub("", source.url))
    return replace(block, source=source, name=block.name and _LINE_END.sub(" ", block.name))


def _text_in(source: Base64Source | URLSource) -> str | None:
    if source.media_type.strip().lower().startswith(_NO_TEXT):
        return None
    data = source.data if isinstance(source, Base64Source) else source.url.partition(";base64,")[2]
    try:
        return b64decode(data).decode() or None
    except ValueError:
        return None


def _joined(blocks: Iterable[ContentBlock]) -> list[ContentBlock]:
    joined: list[ContentBlock] = []
    for kind, run in groupby(blocks, type):
        if kind is TextBlock:
            joined.append(TextBlock("".join(block.text for block in run if isinstance(block, TextBlock))))
        else:
            joined += run
    return joined
