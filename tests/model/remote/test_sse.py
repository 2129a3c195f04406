"""Server-sent events and JSON, read strictly."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import Malformed, Transient
from agentrt.model.remote.sse import EventReader, count_in, dict_in, list_in, parse_object, text_in


def read(*chunks: bytes) -> list[bytes]:
    reader = EventReader()
    return [event.data for chunk in chunks for event in reader.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "wanted"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r:", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": ping\n\nevent: x\nid: 1\nretry: 5\ndata: a\n\n", [b"a"]),
        (b"event: x\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\n", []),
        (b"data:\n\n", []),
    ],
)
def test_events_are_read_as_the_standard_says(stream: bytes, wanted: list[bytes]) -> None:
    assert read(stream) == wanted


def test_the_name_of_an_event_is_its_own() -> None:
    events = EventReader().feed(b"event: error\ndata: a\n\ndata: b\n\n")

    assert events == [("error", b"a"), ("", b"b")]


@given(st.lists(st.integers(0, 40)), st.sampled_from([b"\n", b"\r\n"]))
def test_events_do_not_depend_on_how_their_bytes_arrive(cuts: list[int], end: bytes) -> None:
    stream = "data: ä\ndata: b\n\n: ping\ndata: 🤔\n\n".encode().replace(b"\n", end)
    places = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})

    found = read(*(stream[start:stop] for start, stop in pairwise(places)))
    assert found == ["ä\nb".encode(), "🤔".encode()]


def test_the_first_line_outside_of_events_is_kept_for_the_error() -> None:
    reader = EventReader()
    reader.feed(b"<html>\n<body>")
    reader.end()
    assert reader.stray == b"<html>"

    reader = EventReader()
    reader.feed(b'{"id": 1}')
    reader.end()
    assert reader.stray == b'{"id": 1}'


@pytest.mark.parametrize("data", [b"", b"[1]", b"5", b"{a", b"[", b"{} {", b"\xff", b"[" * 100_000, b"9" * 5000])
def test_anything_but_a_json_object_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        parse_object(data)


def test_a_byte_order_mark_is_not_part_of_an_object() -> None:
    assert parse_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_a_count_may_be_a_float() -> None:
    assert count_in({"x": 5.0}, "x") == 5


@pytest.mark.parametrize(
    ("read_field", "wrong", "empty"),
    [
        (text_in, 5, ""),
        (dict_in, [], {}),
        (list_in, {}, []),
        (list_in, [5], []),
        (count_in, "5", 0),
        (count_in, float("nan"), 0),
    ],
)
def test_a_field_is_of_its_type_or_absent(read_field: Any, wrong: Any, empty: Any) -> None:
    assert read_field({}, "x") == read_field({"x": None}, "x") == empty
    with pytest.raises(Malformed, match="'x"):
        read_field({"x": wrong}, "x")


def test_every_beginning_of_an_object_is_transient() -> None:
    whole = json.dumps({"a": ["\U0001f600", True, {"b": "}\n"}], "c": -1.5e3}, ensure_ascii=False).encode()
    assert parse_object(whole)
    for length in range(1, len(whole)):
        with pytest.raises(Transient, match="breaks off"):
            parse_object(whole[:length])
