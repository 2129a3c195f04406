"""What a model answers is checked: mended where that is plain, and else refused by name."""

from typing import Any

import pytest

from agentrt.errors import ChainContractError
from agentrt.event import ModelCallEndEvent, ToolCallStartEvent, ToolResultStartEvent
from agentrt.message import (
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
)
from agentrt.types import ChatResponse, ChatUsage
from tests.decoding.helpers import at_once, blocks_of, decoder, last, message_of, piece, streamed

# Blocks that no model may send


@pytest.mark.parametrize(
    "block", [HintBlock("x"), ToolResultBlock("1", "f", "x"), "text"], ids=["hint", "result", "str"]
)
@pytest.mark.parametrize("make", [piece, last])
def test_a_block_that_no_model_writes_is_refused(block, make):
    with pytest.raises(ChainContractError) as caught:
        decoder().feed(make(block))
    assert str(caught.value) == (
        f"on_model_call: model 'tester' answered with {block!r:.200}: "
        f"an answer holds text, thinking, data and tool calls"
    )


def test_call_input_that_is_not_a_str_is_refused():
    with pytest.raises(ChainContractError, match="tester"):
        message_of(at_once(last(ToolCallBlock("1", "f", {"a": 1}))))


# Odd values: mended where it is plain what they mean, and refused by name where it is not


HALF = "\ud800"


MENDED: dict[str, tuple[list[ContentBlock], list[ContentBlock]]] = {
    "half a character": ([TextBlock(f"a{HALF}")], [TextBlock("a\ufffd", "r-1")]),
    "no text": ([TextBlock(None), TextBlock("a")], [TextBlock("a", "r-1")]),
    "half a signature": ([ThinkingBlock("a", signature=HALF)], [ThinkingBlock("a", "r-1", "\ufffd")]),
    "no thinking": ([ThinkingBlock(None, signature="s")], [ThinkingBlock("", "r-1", "s")]),
    "half a name and id": (
        [ToolCallBlock(f"1{HALF}", f"f{HALF}", f"{{{HALF}}}")],
        [ToolCallBlock("1\ufffd", "f\ufffd", "{\ufffd}")],
    ),
    "an id that is a number": ([ToolCallBlock(7, "f", "{}")], [ToolCallBlock("7", "f", "{}")]),
    "no id": ([ToolCallBlock(None, "f", "{}")], [ToolCallBlock("r-1", "f", "{}")]),
    "no name": ([ToolCallBlock("1", None, "{}")], [ToolCallBlock("1", "tool_without_a_name", "{}")]),
    "empty name": ([ToolCallBlock("1", "", "{}")], [ToolCallBlock("1", "tool_without_a_name", "{}")]),
    "no input": ([ToolCallBlock("1", "f", None)], [ToolCallBlock("1", "f", "")]),
    "a picture's name": (
        [DataBlock(URLSource(f"u{HALF}", "image/png"), HALF, 3)],
        [DataBlock(URLSource("u\ufffd", "image/png"), "\ufffd", "r-1")],
    ),
}


REFUSED: dict[str, tuple[Any, str]] = {
    "content": (ChatResponse(None), "answered with the content None: it must be a list of blocks"),
    "content text": (ChatResponse("hi"), "answered with the content 'hi': it must be a list of blocks"),
    "text": (last(TextBlock(5)), "answered with a TextBlock whose text is 5: it must be a str"),
    "thinking": (last(ThinkingBlock(["a"])), r"answered with a ThinkingBlock whose thinking is \['a'\]: it must be"),
    "signature": (
        last(ThinkingBlock("a", signature=b"s")),
        "a ThinkingBlock whose signature is b's': it must be a str",
    ),
    "name": (last(ToolCallBlock("1", 5)), "answered with a ToolCallBlock whose name is 5: it must be a str"),
    "id": (last(ToolCallBlock(["1"], "f")), r"answered with a ToolCallBlock whose id is \['1'\]: it must be a str"),
    "input": (last(ToolCallBlock("1", "f", {"a": 1})), r"a ToolCallBlock whose input is \{'a': 1\}: it must be a str"),
    "source": (last(DataBlock(None)), "answered with a DataBlock whose source is None"),
    "media type": (last(DataBlock(URLSource("u", None, "url"))), "answered with a URLSource whose media_type is"),
    "base64": (last(DataBlock(Base64Source("no!", "image/png"))), "answered with data that is not base64"),
    "usage": (ChatResponse([], usage={"input_tokens": 3}), "reported the usage {'input_tokens': 3}: it must be a Chat"),
    "tokens": (ChatResponse([], usage=ChatUsage("many", 3)), r"reported the usage .*: it must be in whole numbers"),
}


@pytest.mark.parametrize("case", MENDED)
def test_an_odd_value_of_plain_meaning_is_mended(case):
    odd, mended = MENDED[case]
    assert message_of(at_once(last(*odd))).content == mended
    assert blocks_of(*map(piece, odd), last(*odd)) == mended


@pytest.mark.parametrize("case", [case for case in REFUSED if case != "media type"])
def test_an_odd_value_is_refused_by_hook_model_and_value(case):
    odd, problem = REFUSED[case]
    with pytest.raises(ChainContractError, match=f"^on_model_call: model 'tester' .*{problem}"):
        streamed(odd)
    with pytest.raises(ChainContractError, match=f"^on_model_call: model 'tester' .*{problem}"):
        at_once(odd)


# Usage


def test_usage_and_reason_come_at_the_end():
    assert streamed(last())[-1] == ModelCallEndEvent("r", 5, 3, 2, 1, "stop", created_at=0)


def test_unknown_usage_is_none_or_marked_as_an_estimate():
    unknown = ChatResponse([], usage=ChatUsage(5, 3, None, None, estimated=True))
    assert streamed(unknown)[-1] == ModelCallEndEvent("r", 5, 3, 0, 0, None, estimated=True, created_at=0)
    half = ChatResponse([], usage=ChatUsage(None, 3))
    assert streamed(half)[-1] == ModelCallEndEvent("r", 0, 3, 0, 0, None, estimated=True, created_at=0)
    for nothing in (None, ChatUsage(None, None)):
        assert streamed(ChatResponse([], usage=nothing))[-1] == ModelCallEndEvent("r", None, None, created_at=0)


def test_a_count_that_is_not_finite_is_left_out():
    usage = ChatUsage(5, 3, float("inf"), float("nan"))
    assert streamed(ChatResponse([], usage=usage))[-1] == ModelCallEndEvent("r", 5, 3, 0, 0, created_at=0)


def test_usage_of_partly_counted_calls_is_marked_as_an_estimate():
    unknown, known = ModelCallEndEvent("r"), ModelCallEndEvent("r", 5, 3)
    result = [ToolCallStartEvent("r", "1", "f"), ToolResultStartEvent("r", "1", "f")]
    assert message_of([unknown]).usage is None
    assert message_of([known]).usage == ChatUsage(5, 3)
    assert message_of([known, unknown]).usage == ChatUsage(5, 3, estimated=True)
    assert message_of([unknown, *result, known]).usage == ChatUsage(5, 3, estimated=True)
