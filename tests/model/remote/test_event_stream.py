"""The binary event streams of AWS: what botocore reads in them, and no more than that."""

import json
from itertools import pairwise
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from botocore.parsers import EventStreamJSONParser
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import Malformed
from agentrt.model.remote.event_stream import FrameReader
from tests.model import wire_bedrock as wire

EVENTS = wire.message(
    wire.thinking(0, "c2ln", "Hm. 🚀"),
    wire.text(1, "Größe"),
    wire.tool_use(2, "t", "add", '{"a": 1}'),
    reason="tool_use",
)
STREAM = wire.events_frames(*EVENTS)


def read(*chunks: bytes) -> list[dict[str, Any]]:
    reader = FrameReader()
    return [json.loads(event.data) for chunk in chunks for event in reader.feed(chunk)]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_frames_are_read_from_chunks_of_any_size(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert read(*(STREAM[start:stop] for start, stop in pairwise(places))) == EVENTS


def test_botocore_reads_the_same_in_the_frames() -> None:
    shape: Any = wire.SERVICE.operation_model("ConverseStream").output_shape
    parser = EventStreamJSONParser()
    buffer = EventStreamBuffer()
    buffer.add_data(STREAM)
    parsed = [parser.parse(frame.to_response_dict(), shape.members["stream"]) for frame in buffer]

    def without_padding(event: Any) -> Any:
        return {name: {key: value for key, value in fields.items() if key != "p"} for name, fields in event.items()}

    assert parsed == [*map(without_padding, read(STREAM))]


@pytest.mark.parametrize("place", [0, 3, 5, 9, 20, 60, -1])
def test_a_changed_byte_is_seen(place: int) -> None:
    frame = bytearray(wire.event_frame("messageStart", {"role": "assistant"}))
    frame[place] ^= 1
    with pytest.raises(Malformed, match="checksum"):
        read(wire.events_frames(*EVENTS), bytes(frame))


def prelude(size: int, size_of_headers: int) -> bytes:
    lengths = wire.pack(">II", size, size_of_headers)
    return lengths + wire.pack(">I", wire.crc32(lengths))


@pytest.mark.parametrize(
    ("size", "size_of_headers"), [(2**30, 10), (2**32 - 1, 0), (24 * 2**20 + 1, 0), (15, 0), (40, 30), (0, 0)]
)
def test_a_frame_is_refused_as_soon_as_it_announces_itself(size: int, size_of_headers: int) -> None:
    with pytest.raises(Malformed, match=f"announced a frame of {size} bytes"):
        read(prelude(size, size_of_headers))


def test_an_exception_is_an_error_with_its_name() -> None:
    reader = FrameReader()
    sent = [
        wire.error_frame("throttlingException", "Slow down."),
        wire.frame(b"", message_type="error", error_code="InternalError", error_message="Oh."),
        wire.frame(b"<html>", message_type="exception", exception_type="x"),
    ]
    found = [event for frame in sent for event in reader.feed(frame)]

    assert {event.name for event in found} == {"error"}
    assert [json.loads(event.data) for event in found] == [
        {"message": "Slow down.", "type": "throttlingException"},
        {"message": "Oh.", "type": "InternalError"},
        {"message": "<html>", "type": "x"},
    ]


def test_headers_of_every_type_are_passed_over() -> None:
    values = [(0, b""), (1, b""), (2, b"a"), (3, b"ab"), (4, b"abcd"), (5, b"a" * 8), (6, b"\0\1x"), (8, b"a" * 8)]
    others = b"".join(b"\1h" + bytes([kind]) + value for kind, value in [*values, (9, b"a" * 16)])
    name = b"\x0b:event-type\x07\0\4stop"
    assert read(frame_of(others + name)) == [{"stop": {}}]


@pytest.mark.parametrize("headers", [b"\1", b"\1h\x07\xff\xffa", b"\1h\x0a", b"\xffh\x07\0\1a", b"\1h\x04a"])
def test_headers_that_leave_their_room_are_refused(headers: bytes) -> None:
    with pytest.raises(Malformed, match="headers cannot be read"):
        read(frame_of(headers))


@pytest.mark.parametrize("name", ["", 'a":1,"error', "ü", "a" * 65])
def test_a_name_that_is_none_of_an_event_is_refused(name: str) -> None:
    with pytest.raises(Malformed, match="not the name of an event"):
        read(wire.event_frame(name, {}))


def frame_of(headers: bytes) -> bytes:
    start = prelude(16 + len(headers), len(headers)) + headers
    return start + wire.pack(">I", wire.crc32(start))
