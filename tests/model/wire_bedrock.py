"""Frames and events as Bedrock sends them, and botocore's judgement of what it is sent."""

import json
import re
from struct import pack
from typing import Any
from zlib import crc32

from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from tests.model.wire_openai import Answer

JSONObject = dict[str, Any]

BINARY = {"content-type": "application/vnd.amazon.eventstream"}
SERVICE = ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"), "bedrock-runtime")


def frame(payload: bytes, **headers: str) -> bytes:
    """Return a frame, whose headers are named without their colon, and with "_" for "-"."""
    parts = b""
    for name, value in headers.items():
        key, text = f":{name.replace('_', '-')}".encode(), value.encode()
        parts += bytes([len(key)]) + key + b"\x07" + pack(">H", len(text)) + text
    prelude = pack(">II", 16 + len(parts) + len(payload), len(parts))
    start = prelude + pack(">I", crc32(prelude)) + parts + payload
    return start + pack(">I", crc32(start))


def event_frame(name: str, fields: object) -> bytes:
    payload = json.dumps(fields, ensure_ascii=False).encode()
    return frame(payload, event_type=name, content_type="application/json", message_type="event")


def error_frame(name: str, message: str) -> bytes:
    return frame(json.dumps({"message": message}).encode(), exception_type=name, message_type="exception")


def events_frames(*events: JSONObject) -> bytes:
    return b"".join(event_frame(name, fields) for event in events for name, fields in event.items())


def stream_of(*chunks: Any) -> Answer:
    return Answer(chunks, headers=BINARY)


def block(index: int, *deltas: JSONObject, start: JSONObject | None = None) -> list[JSONObject]:
    begin = [] if start is None else [{"contentBlockStart": {"contentBlockIndex": index, "start": start}}]
    middle = [{"contentBlockDelta": {"contentBlockIndex": index, "delta": delta, "p": "abc"}} for delta in deltas]
    return [*begin, *middle, {"contentBlockStop": {"contentBlockIndex": index}}]


def text(index: int, *pieces: str) -> list[JSONObject]:
    return block(index, *({"text": piece} for piece in pieces))


def thinking(index: int, signature: str, *pieces: str) -> list[JSONObject]:
    deltas = [*({"text": piece} for piece in pieces), {"signature": signature}]
    return block(index, *({"reasoningContent": delta} for delta in deltas))


def tool_use(index: int, call_id: str, name: str, *pieces: str) -> list[JSONObject]:
    deltas = [{"toolUse": {"input": piece}} for piece in pieces]
    return block(index, *deltas, start={"toolUse": {"toolUseId": call_id, "name": name}})


def message(*blocks: list[JSONObject], reason: str = "end_turn", **usage: int) -> list[JSONObject]:
    """Return the events of a whole answer."""
    counts = {"inputTokens": 20, "outputTokens": 5, "totalTokens": 25, **usage}
    return [
        {"messageStart": {"role": "assistant"}},
        *(event for events in blocks for event in events),
        {"messageStop": {"stopReason": reason}},
        {"metadata": {"usage": counts, "metrics": {"latencyMs": 7}}},
    ]


def check_shape(body: JSONObject) -> None:
    """Fail for what botocore would not send, and for what the API's own description of its strings forbids."""
    shape: Any = SERVICE.operation_model("Converse").input_shape
    report = ParamValidator().validate({"modelId": "m", **body}, shape)
    assert not report.has_errors(), report.generate_report()
    _check_strings(body, shape)


def _check_strings(value: Any, shape: Any) -> None:
    if shape.type_name == "structure" and not shape.is_document_type:
        for name, item in value.items():
            _check_strings(item, shape.members[name])
    elif shape.type_name == "list":
        assert shape.metadata.get("min", 0) <= len(value)
        for item in value:
            _check_strings(item, shape.member)
    elif shape.type_name == "string":
        assert not shape.enum or value in shape.enum
        assert re.fullmatch(shape.metadata.get("pattern", "(?s:.*)"), value)
        assert shape.metadata.get("min", 0) <= len(value) <= shape.metadata.get("max", len(value))
