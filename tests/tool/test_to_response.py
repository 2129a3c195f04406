"""From what a tool gives back to what the model reads."""

import base64
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import to_json

from agentrt.message import (
    AssistantMsg,
    Base64Source,
    DataBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultState,
    URLSource,
)
from agentrt.tool import FunctionTool, ToolChunk, Toolkit, ToolResponse
from agentrt.tool.stream_output import StreamOutput
from agentrt.tool.to_response import to_response


async def nothing() -> None: ...


TOOL = FunctionTool(nothing, name="tool", max_output=1_000)
SMALL = FunctionTool(nothing, name="small", max_output=10)


def text(value: Any) -> str:
    response = to_response(TOOL, value)
    (block,) = response.content
    assert isinstance(block, TextBlock)
    assert response.state is ToolResultState.SUCCESS
    return block.text


def encoded(data: bytes, block_id: str = "d") -> DataBlock:
    return DataBlock(Base64Source(base64.b64encode(data).decode(), "image/png"), id=block_id)


async def returned(value: Any, **options: Any) -> ToolResponse:
    async def give() -> Any:
        return value

    kit = Toolkit([FunctionTool(give, **options)])
    (response,) = [item async for item in kit.call_tool_function(ToolCallBlock("1", "give", ""))]
    assert isinstance(response, ToolResponse)
    return response


async def streamed(*items: Any, **options: Any) -> tuple[list[ToolChunk], ToolResponse]:
    async def give() -> AsyncIterator[Any]:
        for item in items:
            yield item

    kit = Toolkit([FunctionTool(give, **options)])
    *chunks, response = [item async for item in kit.call_tool_function(ToolCallBlock("1", "give", ""))]
    assert isinstance(response, ToolResponse)
    return [chunk for chunk in chunks if isinstance(chunk, ToolChunk)], response


def texts(result: ToolChunk | ToolResponse) -> list[str]:
    return [block.text for block in result.content if isinstance(block, TextBlock)]


# Plain values


@dataclass
class Point:
    x: int


class Place(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("sunny", "sunny"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (1.5, "1.5"),
        ({"a": [1, "ü"]}, '{"a":[1,"ü"]}'),
        ([], "[]"),
        (["a"], '["a"]'),
        ((1, 2), "[1,2]"),
        (Point(1), '{"x":1}'),
        ([Place(name="a")], '[{"name":"a"}]'),
        (date(2020, 1, 2), '"2020-01-02"'),
    ],
)
def test_values_become_text_or_json(value: Any, said: str) -> None:
    assert text(value) == said


def test_blocks_stay_as_they_are() -> None:
    one, two = TextBlock("a"), encoded(b"x")
    assert to_response(TOOL, one).content == [one]
    assert to_response(TOOL, [one, two]).content == [one, two]


def test_response_is_taken_as_it_is() -> None:
    response = ToolResponse([TextBlock("a")], ToolResultState.DENIED, {"k": 1})
    assert to_response(TOOL, response) == response


def test_a_chunk_is_the_only_piece_there_is() -> None:
    response = to_response(TOOL, ToolChunk([TextBlock("a", "1")], metadata={"k": 1}))
    assert response == ToolResponse([TextBlock("a", "1")], ToolResultState.SUCCESS, {"k": 1})


def test_text_and_data_of_a_message_are_kept() -> None:
    data = encoded(b"x")
    msg = AssistantMsg("expert", [ThinkingBlock("hm"), TextBlock("yes", "1"), data])
    assert to_response(TOOL, msg).content == [TextBlock("yes", "1"), data]


async def test_half_a_surrogate_pair_is_replaced() -> None:
    assert text("caf\ud800") == "caf?"
    assert texts((await streamed("a\ud800"))[1]) == ["a?"]
    assert text({"files": ["caf\ud800", "b"]}) == '{"files":["caf?","b"]}'
    assert texts((await streamed(["caf\ud800"]))[1]) == ['["caf?"]']


# Values that cannot be results


async def test_what_has_no_json_form_is_an_error_that_names_its_type() -> None:
    response = await returned(object())
    assert response.state == "error"
    assert texts(response) == [
        "the output of give is an object, which has no JSON form: Unable to serialize unknown type: <class 'object'>"
    ]


@pytest.mark.parametrize("value", [map(str, "ab"), nothing])
async def test_coroutine_or_generator_as_output_is_refused_with_remedy(value: Any) -> None:
    response = await returned(value() if value is nothing else value)
    assert response.state == "error"
    assert "instead of a value: await it, or make it a generator or a list" in texts(response)[0]


async def test_value_that_contains_itself_is_an_error() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert "Circular reference detected" in texts(await returned(circle))[0]


async def test_wrong_content_is_an_error() -> None:
    response = await returned(ToolResponse([1]))  # type: ignore[list-item]
    assert texts(response) == ["the result of give holds an int: it must be a list of TextBlock and DataBlock"]


async def test_a_wrong_state_is_an_error() -> None:
    response = await returned(ToolResponse([], "fine"))  # type: ignore[arg-type]
    assert texts(response)[0].startswith("the result of give has the state 'fine': the states are running, success, ")


async def test_unsavable_metadata_is_an_error_except_response_msg() -> None:
    response = await returned(ToolResponse([], metadata={"k": object()}))
    assert texts(response) == [
        "the metadata of give's result has no JSON form: Unable to serialize unknown type: <class 'object'>"
    ]
    response = await returned(ToolResponse([], metadata=[1]))  # type: ignore[arg-type]
    assert texts(response) == ["the metadata of give's result is a list: it must be a dict"]
    response = await returned(ToolResponse([], metadata={"response_msg": "done"}))
    assert texts(response) == ["the metadata of give's result has a response_msg that is not a Msg: pass a Msg"]
    message = AssistantMsg("a", "b")
    assert (await returned(ToolResponse([], metadata={"response_msg": message}))).metadata == {"response_msg": message}


# Large output


def test_text_is_cut_with_a_note() -> None:
    response = to_response(SMALL, "x" * 1_234)
    assert texts(response) == ["x" * 10, "[cut: of 1,234 characters the first 10 are kept, 1,224 are left out]"]


def test_blocks_share_one_budget() -> None:
    content = [TextBlock("x" * 3), encoded(b"x"), TextBlock("y" * 6), TextBlock("z" * 6)]
    response = to_response(SMALL, content)
    note = "[cut: of 19 characters the first 10 are kept, 9 are left out]"
    assert [block.type for block in response.content] == ["text", "data", "text", "text"]
    assert texts(response) == ["x" * 3, "y" * 3, note]


BIG = "A" * 4_000


@pytest.mark.parametrize(
    "block",
    [
        DataBlock(Base64Source(BIG, "image/png")),
        DataBlock(URLSource(BIG, "image/png")),
        DataBlock(URLSource("u", "image/png"), BIG),
        DataBlock(URLSource("u", "image/png"), id=BIG),
        DataBlock(URLSource("u", BIG)),
    ],
    ids=["data", "url", "name", "id", "media type"],
)
async def test_data_that_is_too_large_is_replaced_by_a_note(block: DataBlock) -> None:
    content = [TextBlock("a"), block, TextBlock("b")]
    [before, note, after] = texts(to_response(TOOL, content))
    assert (before, after) == ("a", "b")
    assert re.fullmatch(r"\[left out: .*, (4,000|4,001|3,969) characters, of which there is room for 999\]", note)
    chunks, response = await streamed(*(ToolChunk([each]) for each in content), max_output=1_000)
    assert [len(text) < 150 for chunk in chunks for text in texts(chunk)] == [True] * 3
    assert sum(map(len, texts(response))) < 200


async def test_endless_data_is_left_out_with_few_notes() -> None:
    pictures = [ToolChunk([DataBlock(Base64Source(BIG, "image/png"))]) for _ in range(100)]
    _, response = await streamed(*pictures, max_output=1_000)
    assert "".join(texts(response)).count("[left out: image/png") == 10
    assert texts(response)[-1].startswith("[cut: of 361,000 characters the first 1,000 are kept")


async def test_empty_pieces_count_as_well() -> None:
    chunks, _ = await streamed(*[""] * 100, max_output=10)
    assert len(chunks) == 11


def test_data_has_a_limit_of_its_own_unless_the_tool_sets_one() -> None:
    picture = DataBlock(Base64Source("AAAA" * 100_000, "image/png"))
    assert to_response(FunctionTool(nothing), picture).content == [picture]
    [note] = to_response(FunctionTool(nothing, max_output=100_000), picture).content
    assert isinstance(note, TextBlock)


# Odd values


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([TextBlock(None)], "a TextBlock whose text is None: it must be a str"),
        ([TextBlock(5)], "a TextBlock whose text is 5: it must be a str"),
        ([TextBlock("a", ["id"])], "a TextBlock whose id is ['id']: it must be a str"),
        (
            [DataBlock(None)],
            "a DataBlock whose source is None: it must be a Base64Source or a URLSource, "
            "as in DataBlock(URLSource(url, 'image/png'))",
        ),
        ([DataBlock(URLSource(None, "image/png"))], "a URLSource whose url is None: it must be a str"),
        ([DataBlock(Base64Source("no!", "a/b"))], "data that is not base64 ('no!'): encode it with base64.b64encode"),
    ],
)
async def test_block_that_would_not_load_again_is_an_error_with_reason(content: Any, problem: str) -> None:
    response = await returned(content)
    assert (response.state, texts(response)) == ("error", [f"the result of give holds {problem}"])
    _, response = await streamed(ToolChunk(content))
    assert (response.state, texts(response)) == ("error", [f"the result of give holds {problem}"])


async def test_odd_ids_and_types_and_wrapped_base64_are_mended() -> None:
    picture = DataBlock(Base64Source("YWFh\nYWFh\n", "image/png"), id=None, type=None)  # type: ignore[arg-type]
    [one, two, three] = (await returned([TextBlock("a", 7), TextBlock("b", None, None), picture])).content  # type: ignore[arg-type]
    assert one == TextBlock("a", "7")
    assert (two.type, len(two.id), three.type, len(three.id)) == ("text", 24, "data", 24)
    assert three.source.data == "YWFhYWFh"  # type: ignore[union-attr]


deep: list[Any] = []
for _ in range(190):
    deep = [deep]


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], deep], ids=["nan", "infinity", "deep"])
async def test_metadata_that_would_not_load_is_an_error(value: Any) -> None:
    [text] = texts(await returned(ToolResponse([], metadata={"k": value})))
    assert text == (
        "the metadata of give's result has no JSON form: it holds a number that is not finite, or is nested too deep"
    )


async def test_a_stream_is_cut_with_a_note_as_its_last_piece() -> None:
    chunks, response = await streamed("x" * 6, "y" * 6, "z" * 6, max_output=10)
    note = "[cut: of 18 characters the first 10 are kept, 8 are left out]"
    assert [texts(chunk) for chunk in chunks] == [["x" * 6], ["y" * 4], [note]]
    assert texts(response) == ["x" * 6 + "y" * 4, note]


# Streams


async def test_continued_text_is_one_block_under_one_id() -> None:
    chunks, response = await streamed("a", ToolChunk([TextBlock("b")]), "c")
    ids = {block.id for chunk in chunks for block in chunk.content}
    assert len(ids) == 1
    assert response.content == [TextBlock("abc", ids.pop())]


async def test_blocks_of_one_chunk_stay_apart() -> None:
    _, response = await streamed(ToolChunk([TextBlock("a", "1"), TextBlock("b", "2"), TextBlock("c", "2")]))
    assert response.content == [TextBlock("a", "1"), TextBlock("bc", "2")]


async def test_data_of_one_id_is_joined_by_bytes() -> None:
    _, response = await streamed(
        ToolChunk([encoded(b"a")]), ToolChunk([encoded(b"bc")]), ToolChunk([encoded(b"d", "other")]), "text"
    )
    assert response.content[:2] == [encoded(b"abc"), encoded(b"d", "other")]
    assert texts(response) == ["text"]


async def test_data_continues_after_other_blocks_and_text_does_not() -> None:
    _, response = await streamed("a", ToolChunk([encoded(b"x")]), "b", ToolChunk([encoded(b"y")]), "c")
    assert response.content[1] == encoded(b"xy")
    assert texts(response) == ["a", "bc"]
    assert len({block.id for block in response.content}) == 3


async def test_data_behind_a_url_is_never_joined() -> None:
    blocks = [DataBlock(URLSource(f"http://x/{n}", "image/png"), id="u") for n in range(2)]
    _, response = await streamed(*(ToolChunk([block]) for block in blocks))
    assert [block.source for block in response.content] == [block.source for block in blocks]  # type: ignore[union-attr]
    assert len({block.id for block in response.content}) == 2


async def test_data_that_is_not_base64_is_an_error() -> None:
    broken = DataBlock(Base64Source("???", "image/png"), id="d")
    _, response = await streamed(ToolChunk([encoded(b"a")]), ToolChunk([broken]))
    assert response.state == "error"
    assert texts(response)[0].startswith("the result of give holds data that is not base64 ('???')")


async def test_the_worst_state_wins_and_metadata_adds_up() -> None:
    _, response = await streamed(
        ToolChunk([TextBlock("a")], ToolResultState.ERROR, metadata={"a": 1, "b": 1}),
        ToolChunk([TextBlock("b")], ToolResultState.SUCCESS, metadata={"b": 2}),
    )
    assert (response.state, response.metadata) == ("error", {"a": 1, "b": 2})
    assert (await streamed("a"))[1].state == "success"


async def test_streaming_tool_may_return_the_whole_itself() -> None:
    whole = ToolResponse([TextBlock("whole", "1")], metadata={"k": 1})
    chunks, response = await streamed("a", whole)
    assert [texts(chunk) for chunk in chunks] == [["a"]]
    assert response == whole


async def test_item_after_the_last_chunk_is_an_error() -> None:
    chunks, response = await streamed(ToolChunk([TextBlock("a")], is_last=True), "b")
    late = "give yielded str after its last chunk"
    assert ([texts(chunk) for chunk in chunks], texts(response), response.state) == (
        [["a"], [late]],
        ["a", late],
        "error",
    )
    _, response = await streamed("x", ToolResponse([TextBlock("a")]), "b")
    assert (texts(response), response.state) == (["a", late], "error")


async def test_stream_may_yield_anything_that_a_tool_may_return() -> None:
    class Place(BaseModel):
        city: str

    items = ["a", "b", {"n": 1}, Place(city="Oslo"), "c", TextBlock("d"), [TextBlock("e")], None, 2.5]
    chunks, response = await streamed(*items)
    whole = ["ab", '{"n":1}', '{"city":"Oslo"}', "cde", "2.5"]  # text goes on, any other value stands by itself
    assert (texts(response), response.state) == (whole, "success")
    assert "".join(text for chunk in chunks for text in texts(chunk)) == "".join(whole)
    assert len(chunks) == len(items) - 1


async def test_a_value_in_a_stream_that_has_no_json_form_is_an_error() -> None:
    _, response = await streamed("a", object())
    assert response.state == "error"
    assert "the output of give is an object, which has no JSON form" in texts(response)[1]


async def test_a_tool_that_yields_nothing_succeeds_with_nothing() -> None:
    assert await streamed() == ([], ToolResponse([]))


BLOCKS = st.builds(TextBlock, st.text(max_size=4), st.sampled_from("ab")) | st.builds(
    encoded, st.binary(max_size=4), st.sampled_from("ab")
)
ITEMS = st.lists(st.text(max_size=4) | st.builds(ToolChunk, st.lists(BLOCKS, max_size=3)), max_size=6)


@given(ITEMS, st.integers(1, 12))
def test_the_chunks_joined_are_the_result(items: list[Any], max_output: int) -> None:
    output = StreamOutput(FunctionTool(nothing, max_output=max_output))
    shown = [output.add(item) for item in items]
    shown.append(output.end())
    joined: list[Any] = []
    for block in (block for chunk in shown if chunk is not None for block in chunk.content):
        join(joined, block)
    assert joined == output.response().content


def join(blocks: list[Any], block: Any) -> None:
    """Join by the rule that a consumer knows: one id, one block."""
    place = next((place for place, each in enumerate(blocks) if each.id == block.id), None)
    if place is None:
        blocks.append(block)
    elif isinstance(block, TextBlock):
        blocks[place] = TextBlock(blocks[place].text + block.text, block.id)
    else:
        both = base64.b64decode(blocks[place].source.data) + base64.b64decode(block.source.data)
        blocks[place] = encoded(both, block.id)


class _Text(str):
    """A `str` that takes the general path."""


_PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_VALUES = _PLAIN | st.dictionaries(st.text(max_size=5), st.recursive(_PLAIN, st.lists, max_leaves=5), max_size=4)


@given(_VALUES, st.sampled_from([TOOL, SMALL]))
def test_plain_values_come_out_as_their_json_would(value: Any, tool: FunctionTool) -> None:
    in_general = value if isinstance(value, str) else to_json(value).decode()
    response, expected = to_response(tool, value), to_response(tool, _Text(in_general))
    assert [block.text for block in response.content] == [block.text for block in expected.content]
    assert (response.state, response.metadata) == (expected.state, expected.metadata)
