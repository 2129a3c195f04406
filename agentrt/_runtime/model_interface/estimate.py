"""An estimate of the tokens of a call, in case the provider does not count them.

Lengths are in characters of English, of which about four are a token. The length of text in another script, or of text
that the user's own tokenizer counts, is that of an English text with as many tokens. So lengths of all kinds can be
added, and only the sum is rounded.
"""

import logging
from collections.abc import Callable, Iterable
from inspect import iscoroutine
from typing import Any

from agentrt._runtime.block import (
    ContentBlock,
    DataBlock,
    HintBlock,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from agentrt._runtime.model_interface.data_size import data_tokens
from agentrt._runtime.text import repr_of
from agentrt.message import Msg
from agentrt.types import ChatUsage

CountTokens = Callable[[str], int]
"""A user's own count of the tokens of some text."""
TextLength = Callable[[str], int]
"""Returns the length of some text, in characters of English."""

CHARACTERS_PER_TOKEN = 4  # in English and in code
_LONG = 8_192  # characters; of a longer text, about as many are sampled, evenly spread
_logger = logging.getLogger("agentrt")

# By the first byte of a character's code, its weight in quarters of an English character: between the token counts of
# o200k (OpenAI) and Tekken (Mistral), whose vocabularies know these scripts. Older ones take more.
_SCRIPT_WEIGHTS = bytearray([12]) * 256
_SCRIPT_WEIGHTS[0x00] = 4  # Latin
_SCRIPT_WEIGHTS[0x01:0x03] = bytes([14, 12])  # Latin with the accents of Polish, Turkish, ...
_SCRIPT_WEIGHTS[0x03:0x06] = bytes([7, 6, 7])  # Greek, Cyrillic, Armenian and Hebrew
_SCRIPT_WEIGHTS[0x06:0x08] = bytes([6, 6])  # Arabic
_SCRIPT_WEIGHTS[0x09:0x10] = bytes([7]) * 7  # Devanagari and the other scripts of India, Thai
_SCRIPT_WEIGHTS[0x10] = 8  # Georgian, Burmese
_SCRIPT_WEIGHTS[0x1E] = 9  # Latin of Vietnamese
_SCRIPT_WEIGHTS[0x20:0x2F] = bytes([14]) * 15  # dashes, quotation marks, arrows, signs
_SCRIPT_WEIGHTS[0x30] = 10  # Japanese kana, punctuation
_SCRIPT_WEIGHTS[0x31:0xA0] = bytes([17]) * 0x6F  # Chinese
_SCRIPT_WEIGHTS[0xAC:0xD8] = bytes([12]) * 44  # Korean
_SCRIPT_WEIGHTS[0xD8:0xE0] = bytes([16]) * 8  # halves of what lies beyond: mostly emoji, of two tokens
_SCRIPT_WEIGHTS[0xFE:0x100] = bytes([6, 16])  # variation selectors; full-width letters
_TABLE = bytes(_SCRIPT_WEIGHTS)


def text_length(text: str) -> int:
    """Return the number of English characters with about as many tokens as the text."""
    size = len(text)
    if text.isascii():  # stored in the str, so free
        return size
    step = size // _LONG + 1
    sample = text[::step]
    # All in C: the first byte of each character, weighted and summed.
    weight = sum(sample.encode("utf-16-le", "surrogatepass")[1::2].translate(_TABLE))
    return weight * size // (4 * len(sample))


class CountedLength:
    """The length of text by a user's count of tokens; if that fails, it is estimated, and one warning is logged."""

    __slots__ = ("_has_failed", "count")

    def __init__(self, count: CountTokens) -> None:
        self.count = count
        self._has_failed = False

    def __call__(self, text: str) -> int:
        try:
            tokens: Any = self.count(text)
        except Exception as error:  # noqa: BLE001  # the user's own; some tokenizers refuse text with special tokens
            problem = f"raised {type(error).__name__}"
        else:
            if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0:
                return tokens * CHARACTERS_PER_TOKEN
            problem = f"returned {repr_of(tokens, 100)} in place of a number of tokens"
            if iscoroutine(tokens):
                tokens.close()
        if not self._has_failed:
            self._has_failed = True
            _logger.warning("count_tokens %s: tokens are estimated instead", problem)
        return text_length(text)


def estimated_usage(
    messages: Iterable[Msg], content: Iterable[ContentBlock], length: TextLength | None = None
) -> ChatUsage:
    """Return the usage of a call with these messages and this answer, by the length of their text."""
    measure = text_length if length is None else length
    input_length = output_length = 0
    for msg in messages:
        # Plain text is counted directly: `get_content_blocks` would make a block of it.
        blocks: Any = msg.content
        if blocks.__class__ is str:
            input_length += len(blocks) if length is None and blocks.isascii() else measure(blocks)
        elif length is None:
            input_length += sum(map(characters_of, blocks))
        else:
            input_length += sum(characters_of(block, length) for block in blocks)
    for block in content:
        output_length += characters_of(block, length)
    return ChatUsage(
        input_length // CHARACTERS_PER_TOKEN + 1, output_length // CHARACTERS_PER_TOKEN + 1, estimated=True
    )


def characters_of(block: Any, length: TextLength | None = None) -> int:
    """Return the number of English characters with about as many tokens as the block has for a model.

    `length` measures text differently. Blocks that cannot be counted, or that no model sees, count 0.
    """
    kind = block.__class__  # compared by identity and in the order of their numbers: a stream counts every piece
    try:
        if kind is TextBlock:
            text = block.text
            # Without a call, since nearly all text is ASCII.
            return len(text) if length is None and text.isascii() else (length or text_length)(text)
        measure = length or text_length
        if kind is ToolCallBlock:
            text = block.name + block.input
            return 0 if block.is_hidden else len(text) if length is None and text.isascii() else measure(text)
        if kind is ToolResultBlock:
            if block.is_hidden:
                return 0
            output = block.output
            if isinstance(output, str):
                return measure(output)
            if length is None:
                return sum(map(characters_of, output))
            return sum(characters_of(part, length) for part in output)
        if kind is ThinkingBlock:
            return measure(block.thinking)
        if kind is ProviderBlock:
            return len(block.content)
        if kind is DataBlock:
            return data_tokens(block.source) * CHARACTERS_PER_TOKEN
        return measure(block.hint) if kind is HintBlock else 0
    except (AttributeError, TypeError):  # a custom adapter may put anything where text belongs
        return 0


def cut_to_length(text: str, length: int) -> str:
    """Return the beginning of the text, about as long as `length`; all of it, if it is not longer."""
    whole = text_length(text)
    return text if whole <= length else text[: max(len(text) * max(length, 0) // whole, 0)]
