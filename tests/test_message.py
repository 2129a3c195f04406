"""Messages: what they are made of, and how events build one."""

import base64
import os
import re
import uuid
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from time import time_ns
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import pytest
import shortuuid
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt._runtime import block as blocks
from agentrt.errors import InvalidInputError
from agentrt.event import (
    CustomEvent,
    DataBlockDeltaEvent,
    DataBlockEndEvent,
    DataBlockStartEvent,
    ExceedMaxItersEvent,
    ExternalExecutionResultEvent,
    HintBlockEvent,
    ModelCallEndEvent,
    ModelCallRetryEvent,
    ModelCallStartEvent,
    ProviderBlockEvent,
    ReplyEndEvent,
    ReplyStartEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    TextBlockStartEvent,
    ThinkingBlockDeltaEvent,
    ThinkingBlockEndEvent,
    ThinkingBlockStartEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
    ToolResultDataDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
    UserInterruptEvent,
)
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    Msg,
    ProviderBlock,
    SystemMsg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    ToolResultState,
    URLSource,
    UserMsg,
)
from agentrt.types import ChatUsage, ToolResponse

BLOCKS: tuple[type, ...] = get_args(get_args(ContentBlock)[0])

_scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
_json = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
)


@cache
def anything(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for whatever a type hint allows, all fields of a dataclass included."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):  # what a message carries for its reader, as JSON
        return _json
    if origin is Annotated:
        return anything(arguments[0])
    if origin in (Union, UnionType):
        return st.one_of(*map(anything, arguments))
    if origin is list:
        return st.lists(anything(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(anything(arguments[0]), anything(arguments[1]), max_size=2)
    if hint is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        return st.deferred(lambda: st.builds(hint, **{each.name: anything(hints[each.name]) for each in fields(hint)}))
    return st.from_type(hint)


def built(*events: Any) -> Msg:
    message = AssistantMsg("", [], id="r")
    for event in events:
        assert message.append_event(event) is message
    return message


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


# Making


def test_a_message_is_written_with_name_content_and_role():
    message = Msg("user", "hello", "user")
    assert (message.name, message.content, message.role) == ("user", "hello", "user")


@pytest.mark.parametrize(("make", "role"), [(UserMsg, "user"), (AssistantMsg, "assistant"), (SystemMsg, "system")])
def test_each_role_has_a_short_form(make, role):
    message = make("ann", "hi", metadata={"a": 1})
    assert message == Msg("ann", "hi", role, id=message.id, metadata={"a": 1}, created_at=message.created_at)


def test_text_may_be_added_to_a_message_in_place():
    message = Msg("user", "hel", "user")
    message.content += "lo"
    assert message.get_text_content() == "hello"


def test_ids_and_times_fill_themselves_in_and_ids_differ():
    before = time_ns()
    messages = [Msg("user", "hi", "user") for _ in range(50)]
    assert len({message.id for message in messages}) == 50
    assert all(before <= message.created_at <= time_ns() for message in messages)
    assert all(re.fullmatch("[0-9a-f]{24}", message.id) for message in messages)
    assert all(cls("x").id != cls("x").id for cls in (TextBlock, ThinkingBlock, DataBlock, HintBlock))


@pytest.mark.parametrize(("make", "zeros"), [(blocks.new_id, "0" * 24), (blocks.new_name, "222222")])
def test_ids_are_made_of_the_systems_random_bytes_alone(monkeypatch, make, zeros):
    monkeypatch.setattr(os, "urandom", bytes)
    assert make().startswith(zeros)


@pytest.mark.parametrize(
    "random", [bytes(16), bytes(15) + b"\x38", bytes(14) + b"\x0c\xb1", b"\xff" * 16, b"\x0f" * 16]
)
def test_a_name_is_a_random_uuid_as_shortuuid_writes_it(monkeypatch, random):
    monkeypatch.setattr(os, "urandom", lambda size: random)
    assert blocks.new_name() == shortuuid.ShortUUID().encode(uuid.UUID(bytes=random, version=4))


@pytest.mark.parametrize("role", ["tool", "User", "", None])
def test_a_role_that_no_provider_knows_is_refused(role):
    with pytest.raises(ValueError, match="Msg role must be") as caught:
        Msg("user", "hello", role)
    assert str(caught.value) == f"Msg role must be one of 'user', 'assistant', 'system', not {role!r}"


@pytest.mark.parametrize(
    ("content", "shown"), [(None, "None"), (TextBlock("a"), "TextBlock(text='a')"), (("a",), "('a',)"), (b"a", "b'a'")]
)
def test_content_that_is_neither_str_nor_list_is_refused(content, shown):
    with pytest.raises(TypeError) as caught:
        Msg("user", content, "user")
    assert str(caught.value) == (
        f"Msg content must be a str or a list of blocks, not {shown}: wrap a single block in a list"
    )


@pytest.mark.parametrize("cls", BLOCKS, ids=lambda cls: cls.__name__)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_block_takes_all_its_fields_by_keyword(cls, data):
    block = data.draw(anything(cls))
    assert cls(**{each.name: getattr(block, each.name) for each in fields(cls)}) == block
    assert block.type == next(each.default for each in fields(cls) if each.name == "type")


def test_every_kind_of_block_has_a_name_of_its_own():
    kinds = [next(each.default for each in fields(cls) if each.name == "type") for cls in BLOCKS]
    assert sorted(kinds) == sorted(get_args(blocks.BlockType))


# Reading


@pytest.mark.parametrize("content", ["hello", [TextBlock("hello")]])
def test_text_and_one_text_block_read_alike(content):
    message = Msg("user", content, "user")
    assert message.get_text_content() == "hello"
    assert [block.text for block in message.get_content_blocks()] == ["hello"]
    assert [block.text for block in message.get_content_blocks("text")] == ["hello"]
    assert message.get_content_blocks("data") == []
    assert message.has_content_blocks()
    assert message.has_content_blocks("text")
    assert not message.has_content_blocks("tool_call")


def test_text_blocks_are_joined_and_other_blocks_left_out():
    message = AssistantMsg("a", [TextBlock("one"), ThinkingBlock("hm"), TextBlock("two")])
    assert message.get_text_content() == "one\ntwo"
    assert message.get_text_content(separator=" ") == "one two"


def test_no_text_is_none_and_an_empty_text_is_empty():
    assert AssistantMsg("a", [ThinkingBlock("hm")]).get_text_content() is None
    assert AssistantMsg("a", []).get_text_content() is None
    assert AssistantMsg("a", "").get_text_content() == ""
    assert not AssistantMsg("a", []).has_content_blocks()


@given(st.lists(st.one_of(*map(anything, BLOCKS)), max_size=6))
@settings(max_examples=30, deadline=None)
def test_blocks_are_found_by_type_in_order(content):
    message = AssistantMsg("a", content)
    for cls in BLOCKS:
        kind = next(each.default for each in fields(cls) if each.name == "type")
        assert message.get_content_blocks(kind) == [block for block in content if isinstance(block, cls)]
        assert message.has_content_blocks(kind) == any(isinstance(block, cls) for block in content)


def test_blocks_of_several_types_are_found_in_their_order():
    message = AssistantMsg("a", [ThinkingBlock("hm"), TextBlock("one"), ToolCallBlock("1", "f"), TextBlock("two")])
    assert message.get_content_blocks(["text", "tool_call"]) == message.content[1:]
    assert message.get_content_blocks(("data",)) == message.get_content_blocks([]) == []
    assert [message.has_content_blocks(each) for each in (["data", "tool_call"], ["data"], [])] == [True, False, False]
    assert AssistantMsg("a", "one").get_content_blocks(["data", "text"])[0].text == "one"
    assert AssistantMsg("a", "one").has_content_blocks(["data", "text"])
    assert not AssistantMsg("a", "one").has_content_blocks(["data"])


def test_the_list_of_blocks_is_new_and_the_blocks_are_not():
    message = AssistantMsg("a", [TextBlock("one")])
    found = message.get_content_blocks()
    found[0].text = "two"
    found.clear()
    assert message.get_text_content() == "two"


# Copying


def full_message() -> Msg:
    result = ToolResultBlock("1", "f", [TextBlock("out")], metadata={"a": 1})
    content = [TextBlock("t"), ThinkingBlock("h"), DataBlock(Base64Source("YQ==", "image/png"), id="d")]
    content += [HintBlock("x"), ToolCallBlock("1", "f", "{}"), result, ProviderBlock("anthropic", "{}")]
    return AssistantMsg("a", content, metadata={"a": 1}, structured_output={"a": 1}, usage=ChatUsage(1, 2))


def test_a_copy_equals_what_it_was_made_from():
    message = full_message()
    assert message.copy() == message
    assert UserMsg("u", "text").copy().content == "text"


@pytest.mark.parametrize("place", range(len(BLOCKS)))
def test_changing_the_blocks_of_a_copy_leaves_the_message_alone(place):
    message = full_message()
    before = message.to_json()
    block = message.copy().content[place]
    for each in fields(block):
        setattr(block, each.name, "changed")
    assert message.to_json() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda copy: copy.content.clear(),
        lambda copy: copy.content.append(TextBlock("more")),
        lambda copy: copy.metadata.update(a=2),
        lambda copy: copy.content[5].metadata.update(a=2),
        lambda copy: copy.content[5].output.append(TextBlock("more")),
        lambda copy: setattr(copy.content[5].output[0], "text", "changed"),
        lambda copy: setattr(copy, "name", "b"),
        lambda copy: copy.structured_output.update(a=2),
    ],
    ids=["list", "block", "metadata", "result metadata", "output", "output text", "name", "structured output"],
)
@pytest.mark.parametrize("copied", [Msg.copy, deepcopy], ids=["copy", "deepcopy"])
def test_changing_a_copy_leaves_the_message_alone(change, copied):
    message = full_message()
    message.content[5].metadata["nested"] = [1]
    before = message.to_json()
    copy = copied(message)
    change(copy)
    if copy.content:
        copy.content[5].metadata["nested"].append(2)
    assert message.to_json() == before


def test_a_deep_copy_is_made_once_and_shares_not_even_the_usage():
    message = UserMsg("u", "text", usage=ChatUsage(1, 2))
    first, second = deepcopy([message, message])
    assert first is second
    first.usage.input_tokens = 9
    assert message.usage == ChatUsage(1, 2)


@pytest.mark.parametrize(
    "event",
    [
        TextBlockDeltaEvent("r", "t", "more"),
        ThinkingBlockDeltaEvent("r", "h", "more"),
        DataBlockDeltaEvent("r", "d", "image/png", encoded(b"more")),
        ToolCallDeltaEvent("r", "1", "more"),
        ToolResultTextDeltaEvent("r", "1", "more", "o"),
        ToolResultDataDeltaEvent("r", "1", "p", "image/png", encoded(b"more")),
        ToolResultEndEvent("r", "1", ToolResultState.ERROR),
        ModelCallEndEvent("r", 1, 1),
    ],
    ids=lambda event: event.type,
)
def test_an_event_applied_to_a_copy_leaves_the_message_alone(event):
    output = [TextBlock("out", "o"), DataBlock(Base64Source("YQ==", "image/png"), id="p")]
    content = [TextBlock("t", "t"), ThinkingBlock("h", "h"), DataBlock(Base64Source("YQ==", "image/png"), id="d")]
    content += [ToolCallBlock("1", "f", "{}"), ToolResultBlock("1", "f", output)]
    message = AssistantMsg("a", content, id="r", usage=ChatUsage(1, 2))
    before = message.to_json()
    message.copy().append_event(event)
    assert message.to_json() == before


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("one\ntwo", "one\ntwo"),
        ([TextBlock("one"), DataBlock(URLSource("u", "image/png")), TextBlock("two")], "one\ntwo"),
        ([DataBlock(URLSource("u", "image/png"))], ""),
        ([], ""),
    ],
)
def test_a_result_of_a_tool_has_its_text(output, text):
    assert ToolResultBlock("1", "f", output).text == text
    assert ToolResponse(output).text == text


def test_a_result_of_a_tool_has_its_blocks():
    data = DataBlock(URLSource("u", "image/png"))
    result = ToolResultBlock("1", "f", [data])
    assert result.blocks == [data]
    result.blocks.clear()  # a new list
    assert result.blocks == [data]
    assert [block.text for block in ToolResultBlock("1", "f", "one").blocks] == ["one"]


# JSON


@given(anything(Msg))
@settings(max_examples=40, deadline=None)
def test_a_message_goes_to_json_and_back_unchanged(message):
    text = message.to_json()
    assert Msg.from_json(text) == message
    assert Msg.from_json(text.encode()) == message
    assert "\n" not in text


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # which say the same
@pytest.mark.parametrize("time", [1_769_860_800.5, "2026-01-31T12:00:00Z", None])
def test_time_that_is_not_in_nanoseconds_is_not_written(time):
    with pytest.raises(InvalidInputError, match=r"times are an int of nanoseconds, such as time\.time_ns\(\)"):
        UserMsg("ann", "hi", created_at=time).to_json()


def test_json_of_a_message_has_iso_8601_time_and_reads_numbers():
    message = UserMsg("ann", "hi", created_at=1_769_860_800_123_456_789)
    text = message.to_json()
    assert '"created_at":"2026-01-31T12:00:00.123456789Z"' in text
    assert Msg.from_json(text.replace('"2026-01-31T12:00:00.123456789Z"', "1769860800123456789")) == message


@pytest.mark.parametrize("cls", BLOCKS, ids=lambda cls: cls.__name__)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_kind_of_block_comes_back_as_what_it_was(cls, data):
    message = AssistantMsg("a", [data.draw(anything(cls))])
    back = Msg.from_json(message.to_json())
    assert type(back.content[0]) is cls
    assert back == message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"name": "a", "content": "b"}',
        '{"name": "a", "content": "b", "role": "tool"}',
        '{"name": "a", "content": 1, "role": "user"}',
        '{"name": "a", "content": "b", "role": "user"} and more',
        '{"name": "a", "content": [{"type": "video", "url": "b"}], "role": "user"}',
        '{"name": "a", "content": [{"text": "no type"}], "role": "user"}',
        '{"name": "a", "content": [{"type": "data", "source": {"type": "file"}}], "role": "user"}',
    ],
)
def test_json_that_to_json_did_not_write_is_refused(text):
    with pytest.raises(InvalidInputError, match="not a message: it"):
        Msg.from_json(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "a", "content": "b", "role": "user", "junk": 1}',
        '{"name": "a", "content": [{"type": "text", "text": "b", "junk": 1}], "role": "user"}',
    ],
)
def test_a_field_that_no_message_has_is_refused(text):
    with pytest.raises(InvalidInputError, match="not a message: it"):
        Msg.from_json(text)


# From events


def test_start_event_names_the_message_and_end_says_how_it_went():
    message = built(
        ReplyStartEvent("r", "s", "ann", created_at=5), ReplyEndEvent("r", "s", "error", "ModelError: too slow")
    )
    assert message == Msg(
        "ann", [], "assistant", id="r", created_at=5, finished_reason="error", error="ModelError: too slow"
    )


def test_text_is_the_sum_of_its_deltas():
    message = built(
        TextBlockStartEvent("r", "b"),
        TextBlockDeltaEvent("r", "b", "hel"),
        TextBlockDeltaEvent("r", "b", "lo"),
        TextBlockEndEvent("r", "b"),
    )
    assert message.content == [TextBlock("hello", "b")]


def test_a_text_given_at_the_end_replaces_the_deltas():
    message = built(TextBlockStartEvent("r", "b"), TextBlockDeltaEvent("r", "b", "x"), TextBlockEndEvent("r", "b", ""))
    assert message.content == [TextBlock("", "b")]


def test_deltas_find_their_block_behind_others():
    message = built(
        TextBlockStartEvent("r", "a"),
        ThinkingBlockStartEvent("r", "b"),
        ToolCallStartEvent("r", "1", "f"),
        ToolCallStartEvent("r", "2", "g"),
        TextBlockDeltaEvent("r", "a", "one"),
        ToolCallDeltaEvent("r", "1", "{"),
        ToolCallDeltaEvent("r", "2", "["),
        ThinkingBlockDeltaEvent("r", "b", "hm"),
        ToolCallDeltaEvent("r", "1", "}"),
        TextBlockDeltaEvent("r", "a", " two"),
    )
    assert message.content == [
        TextBlock("one two", "a"),
        ThinkingBlock("hm", "b"),
        ToolCallBlock("1", "f", "{}"),
        ToolCallBlock("2", "g", "["),
    ]


def test_thinking_keeps_its_signature():
    start, delta = ThinkingBlockStartEvent("r", "b"), ThinkingBlockDeltaEvent("r", "b", "hm")
    assert built(start, delta, ThinkingBlockEndEvent("r", "b", "sig")).content == [ThinkingBlock("hm", "b", "sig")]
    assert built(start, delta, ThinkingBlockEndEvent("r", "b")).content == [ThinkingBlock("hm", "b")]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    return [data[start:end] for start, end in pairwise([0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)])]


@settings(max_examples=50)
@given(st.binary(max_size=50), st.lists(st.integers(0, 50), max_size=5))
def test_data_that_was_encoded_piece_by_piece_is_joined_as_bytes(data, cuts):
    deltas = [DataBlockDeltaEvent("r", "b", "image/png", encoded(piece)) for piece in pieces(data, cuts)]
    message = built(DataBlockStartEvent("r", "b", "image/png", "a.png"), *deltas)
    assert message.content == [DataBlock(Base64Source(encoded(data), "image/png"), "a.png", "b")]


@settings(max_examples=50)
@given(st.binary(max_size=50), st.lists(st.integers(0, 50), max_size=5))
def test_a_tools_data_is_joined_as_bytes_too(data, cuts):
    start = ToolResultStartEvent("r", "1", "f")
    deltas = [
        ToolResultDataDeltaEvent("r", "1", "b", "image/png", encoded(piece), name="a.png")
        for piece in pieces(data, cuts)
    ]
    output = built(start, *deltas).content[0].output
    assert output == [DataBlock(Base64Source(encoded(data), "image/png"), "a.png", "b")]


def test_joining_data_decodes_each_piece_once(monkeypatch):
    """A minute of sound is some thousand pieces; decoding all of it for each of them would stop the event loop."""
    decoded = 0

    def count(data: str) -> bytes:
        nonlocal decoded
        decoded += len(data)
        return decode(data)

    decode = base64.b64decode
    monkeypatch.setattr("agentrt.message.base64.b64decode", count)
    delta = DataBlockDeltaEvent("r", "b", "audio/wav", encoded(b"x" * 100))
    message = built(DataBlockStartEvent("r", "b", "audio/wav"), *[delta] * 200)
    assert decode(message.content[0].source.data) == b"x" * 20_000
    assert decoded < 4 * len(message.content[0].source.data)


def test_url_event_replaces_the_data():
    delta = DataBlockDeltaEvent("r", "b", "image/png", url="https://example.org/a.png")
    message = built(DataBlockStartEvent("r", "b", "image/png"), delta)
    assert message.content == [DataBlock(URLSource("https://example.org/a.png", "image/png"), id="b")]


def test_a_hint_is_one_event():
    assert built(HintBlockEvent("r", "b", "look again", "me")).content == [HintBlock("look again", "me", "b")]


def test_provider_block_is_one_event():
    message = built(ProviderBlockEvent("r", "b", "anthropic", '{"type": "x"}'))
    assert message.content == [ProviderBlock("anthropic", '{"type": "x"}', "b")]
    assert Msg.from_json(message.to_json()) == message
    assert message.get_content_blocks("provider") == message.content


def test_result_grows_by_blocks_and_its_end_finishes_the_call():
    message = built(
        ToolCallStartEvent("r", "1", "f"),
        ToolResultStartEvent("r", "1", "f"),
        ToolResultTextDeltaEvent("r", "1", "one ", "x"),
        ToolResultTextDeltaEvent("r", "1", "two", "x"),
        ToolResultTextDeltaEvent("r", "1", "three", "y"),
        ToolResultDataDeltaEvent("r", "1", "z", "image/png", url="u"),
    )
    assert message.content[1].state is ToolResultState.RUNNING
    assert message.content[0].state is ToolCallState.PENDING
    message.append_event(ToolResultEndEvent("r", "1", ToolResultState.SUCCESS, metadata={"a": 1}))
    output = [TextBlock("one two", "x"), TextBlock("three", "y"), DataBlock(URLSource("u", "image/png"), id="z")]
    assert message.content == [
        ToolCallBlock("1", "f", state=ToolCallState.FINISHED),
        ToolResultBlock("1", "f", output, ToolResultState.SUCCESS, {"a": 1}),
    ]


def test_results_side_by_side_do_not_mix():
    calls = [event for n in "12" for event in (ToolCallStartEvent("r", n, "f"), ToolResultStartEvent("r", n, "f"))]
    deltas = [ToolResultTextDeltaEvent("r", n, n, "b") for n in "12121"]
    results = built(*calls, *deltas).get_content_blocks("tool_result")
    assert [result.output for result in results] == [[TextBlock("111", "b")], [TextBlock("22", "b")]]


def test_output_in_the_end_event_replaces_the_deltas_as_a_copy():
    output = [TextBlock("[redacted]", "x")]
    message = built(
        ToolCallStartEvent("r", "1", "f"),
        ToolResultStartEvent("r", "1", "f"),
        ToolResultTextDeltaEvent("r", "1", "secret", "x"),
        ToolResultEndEvent("r", "1", ToolResultState.ERROR, output),
    )
    output[0].text = "changed"
    assert message.content[1].output == [TextBlock("[redacted]", "x")]
    assert message.content[1].state is ToolResultState.ERROR


@pytest.mark.parametrize(
    ("cls", "state"),
    [
        (RequireUserConfirmEvent, ToolCallState.ASKING),
        (RequireExternalExecutionEvent, ToolCallState.SUBMITTED),
    ],
)
def test_waiting_call_says_for_whose_answer(cls, state):
    calls = [ToolCallStartEvent("r", "1", "f"), ToolCallStartEvent("r", "2", "f")]
    message = built(*calls, cls("r", [ToolCallBlock("2", "f")]))
    assert [block.state for block in message.content] == [ToolCallState.PENDING, state]


@settings(max_examples=50)
@given(st.lists(st.builds(ChatUsage, *[st.integers(0, 9)] * 4, st.booleans()), min_size=1, max_size=4))
def test_usage_adds_up(usages):
    message = built(
        *(
            ModelCallEndEvent(
                "r",
                each.input_tokens,
                each.output_tokens,
                each.cache_input_tokens,
                each.cache_creation_input_tokens,
                estimated=each.estimated,
            )
            for each in usages
        )
    )
    assert message.usage == sum(usages[1:], usages[0])
    assert message.usage.input_tokens == sum(each.input_tokens for each in usages)
    assert message.usage.estimated == any(each.estimated for each in usages)


@settings(max_examples=50)
@given(st.lists(st.builds(ChatUsage, *[st.integers(0, 9)] * 4, st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_replayed_usage_is_in_no_sum(usages):
    events = [
        ModelCallEndEvent("r", each.input_tokens, each.output_tokens, estimated=each.estimated, replayed=each.replayed)
        for each in usages
    ]
    paid = [ChatUsage(each.input_tokens, each.output_tokens, estimated=each.estimated) for each in usages]
    paid = [usage for usage, each in zip(paid, usages, strict=True) if not each.replayed]
    assert built(*events).usage == sum(paid, ChatUsage())
    total = sum(usages, ChatUsage())
    assert (total.input_tokens, total.replayed) == (sum(usage.input_tokens for usage in paid), False)


def test_a_replayed_answer_does_not_make_up_for_an_unknown_one():
    call, result = ToolCallBlock("1", "f"), ToolResultBlock("1", "f", "done")
    message = AssistantMsg("a", [call, result], id="r")
    message.append_event(ModelCallEndEvent("r", 5, 5, replayed=True))
    assert message.usage is None


def test_a_retry_drops_the_blocks_that_it_names_and_no_others():
    message = built(
        TextBlockStartEvent("r", "a"),
        TextBlockStartEvent("r", "b"),
        ToolCallStartEvent("r", "1", "f"),
        ModelCallRetryEvent("cut", block_ids=["b", "1", "unheard of"], reply_id="r"),
    )
    assert message.content == [TextBlock("", "a")]


def test_a_message_that_was_text_becomes_a_list_of_blocks():
    message = AssistantMsg("a", "so far", id="r").append_event(HintBlockEvent("r", "b", "x"))
    assert [block.type for block in message.content] == ["text", "hint"]
    assert message.get_text_content() == "so far"
    assert AssistantMsg("a", "", id="r").append_event(HintBlockEvent("r", "b", "x")).get_text_content() is None


def test_events_of_another_reply_are_ignored():
    message = AssistantMsg("", [])
    message.append_event(ReplyStartEvent("r", "s", "ann", created_at=5))
    message.append_event(TextBlockStartEvent("r", "b"))
    for foreign in [
        ReplyStartEvent("other", "t", "bob"),
        TextBlockDeltaEvent("other", "b", "not hers"),
        TextBlockStartEvent("other", "c"),
        TextBlockDeltaEvent("other", "unknown", "not hers"),
        ModelCallEndEvent("other", 1, 1),
        ModelCallRetryEvent(block_ids=["b"], reply_id="other"),
        ReplyEndEvent("other", "t", "error", "too slow"),
    ]:
        message.append_event(foreign)
    message.append_event(TextBlockDeltaEvent("r", "b", "hers"))
    assert message == Msg("ann", [TextBlock("hers", "b")], "assistant", id="r", created_at=5)


def test_message_belongs_to_its_reply_before_its_first_block():
    message = AssistantMsg("ann", [], id="r").append_event(TextBlockStartEvent("other", "b"))
    assert (message.id, message.content) == ("r", [])


CALLS = [ToolCallBlock("nope", "f")]
UNKNOWN = {
    "TextBlock": [TextBlockDeltaEvent("r", "nope", "x"), TextBlockEndEvent("r", "nope", "x")],
    "ThinkingBlock": [ThinkingBlockDeltaEvent("r", "nope", "x"), ThinkingBlockEndEvent("r", "nope", "x")],
    "DataBlock": [DataBlockDeltaEvent("r", "nope", "image/png", "YQ==")],
    "ToolCallBlock": [
        ToolCallDeltaEvent("r", "nope", "x"),
        RequireUserConfirmEvent("r", CALLS),
        RequireExternalExecutionEvent("r", CALLS),
    ],
    "ToolResultBlock": [
        ToolResultTextDeltaEvent("r", "nope", "x"),
        ToolResultDataDeltaEvent("r", "nope", "b", "image/png", "YQ=="),
        ToolResultEndEvent("r", "nope", ToolResultState.SUCCESS),
    ],
}


@pytest.mark.parametrize(
    ("kind", "event"), [pytest.param(kind, each, id=each.type) for kind, found in UNKNOWN.items() for each in found]
)
def test_event_of_an_unknown_block_is_refused(kind, event):
    message = AssistantMsg("a", [], id="r")
    with pytest.raises(ValueError, match="has no") as caught:
        message.append_event(event)
    assert str(caught.value) == f"the message 'r' has no {kind} with id 'nope': was an event left out?"
    assert message.content == []


def test_id_of_a_block_of_another_type_does_not_match():
    with pytest.raises(ValueError, match="has no ThinkingBlock with id 'b'"):
        built(TextBlockStartEvent("r", "b"), ThinkingBlockDeltaEvent("r", "b", "x"))


PASSED_OVER = [
    CustomEvent,
    ExceedMaxItersEvent,
    ExternalExecutionResultEvent,
    ModelCallStartEvent,
    ToolCallEndEvent,
    UserInterruptEvent,
    DataBlockEndEvent,
]


@pytest.mark.parametrize("cls", PASSED_OVER, ids=lambda cls: cls.__name__)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_event_that_changes_no_message_is_ignored(cls, data):
    message = full_message()
    before = message.to_json()
    message.append_event(data.draw(anything(cls)))
    assert message.to_json() == before


@pytest.mark.parametrize("content", [[{"type": "text", "text": "hi"}], [TextBlock("hi"), "hi"], [None]])
def test_content_that_is_not_a_block_is_refused(content):
    with pytest.raises(TypeError, match=r"Msg content holds .*, which is not a block: a block is an object, such as"):
        UserMsg("u", content)


def test_unknown_block_type_is_refused_with_the_known_ones():
    message = UserMsg("u", "hi")
    for ask in (message.get_content_blocks, message.has_content_blocks):
        with pytest.raises(
            ValueError, match="the block type 'tool_use' does not exist: the types are text, thinking, data, hint"
        ):
            ask("tool_use")
        with pytest.raises(ValueError, match="the block type 'tool_use' does not exist"):
            ask(["text", "tool_use"])
    with pytest.raises(ValueError, match="the type of a ToolCallBlock is 'tool_call', not 'tool_use'"):
        ToolCallBlock("1", "f", "{}", type="tool_use")


@pytest.mark.parametrize("wrong", [["a", "b"], None, TextBlock("a")])
def test_hint_that_is_not_a_str_is_refused_at_once(wrong):
    with pytest.raises(TypeError, match=r"HintBlock.*must be a str"):
        HintBlock(wrong)
