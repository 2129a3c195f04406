"""The budget of a request: one reader for all routes limits what a body costs before it reaches an agent."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import anyio
from starlette.requests import Request

from agentrt._runtime.boundary import strict_json
from agentrt.serving.failure import ApiError
from agentrt.serving.limits import Limits

_SentItem = TypeVar("_SentItem")
_TakenItem = TypeVar("_TakenItem")

_DEEPEST_BODY = 100
_VALUES_PER_ITEM = 20
"""JSON values in a body per item: a parser makes all of them at once."""
_ITEM_DEPTH = 4
"""Levels below a field that are searched for items: list, message, list, part. Deeper lists are data of one part."""
_PORTION = 50
_CLOSE = {"Connection": "close"}  # the rest of the body is not read
_STRING = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL
)  # an open end matches too, which keeps the search linear
_NO_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))


async def read_json(
    request: Request, limits: Limits, fields: tuple[str, ...] | None, *, items: tuple[str, ...]
) -> dict[str, Any]:
    """Return the body, a JSON object; raises `ApiError` for one that is refused.

    Fields other than `fields` are refused, unless that is `None`. The messages and parts in the fields `items` count.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A form of another page can send any other type without asking the browser.
    if content_type != "application/json":
        raise ApiError(415, "content_type", "send the body as Content-Type: application/json")
    _, value = await read_object(request, limits, items=items)
    for name in value:
        if fields is not None and name not in fields:
            known = ", ".join(map(repr, fields))
            raise ApiError(400, "invalid_body", f"the body has an unknown field {name!r:.50}: it takes {known}")
    return value


async def read_object(request: Request, limits: Limits, *, items: tuple[str, ...]) -> tuple[bytes, dict[str, Any]]:
    """Return the raw body and its JSON object; raises `ApiError` for one that costs too much."""
    # A few compressed bytes may expand without limit.
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise ApiError(415, "content_encoding", "send the body without Content-Encoding")
    body = await _read_body(request, limits)
    _check_structure(body, limits.items * _VALUES_PER_ITEM)
    try:
        # Readers differ on which of two equal fields counts, and an approval must have one meaning.
        value = strict_json(body.decode("utf-8-sig"), object_pairs_hook=_refuse_repeated)
    except ValueError:
        raise ApiError(400, "invalid_json", "the body is not valid JSON in UTF-8, or repeats a field") from None
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_body", "the body must be a JSON object")
    if sum(_count_items(value.get(name), _ITEM_DEPTH) for name in items) > limits.items:
        raise _too_large("items", f"{limits.items:,} messages and content parts")
    return body, value


async def take_in(items: Sequence[_SentItem], take: Callable[[int, _SentItem], _TakenItem]) -> list[_TakenItem]:
    """Call `take` with the number of each item and the item, and let other requests run before each 50."""
    taken = []
    for number, item in enumerate(items):
        if number % _PORTION == 0:
            await anyio.lowlevel.checkpoint()
        taken.append(take(number, item))
    return taken


async def _read_body(request: Request, limits: Limits) -> bytes:
    body = bytearray()
    try:
        with anyio.fail_after(limits.body_seconds):
            while (message := await request.receive())["type"] == "http.request":
                body += message.get("body", b"")
                if len(body) > limits.body_bytes:
                    raise _too_large("body_bytes", f"{limits.body_bytes:,} bytes", _CLOSE)
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise ApiError(
            408,
            "too_slow",
            f"the body did not arrive within {limits.body_seconds:g} seconds, the limit 'body_seconds'",
            details={"limit": "body_seconds"},
            headers=_CLOSE,
        ) from None
    return bytes(body)


def _check_structure(body: bytes, most_values: int) -> None:
    """Refuse a body with too many values or levels before it is parsed."""
    # An entry of an object has at most two strings: with more of them, enough commas remain to refuse the body.
    structure = _STRING.sub(b"", body, count=2 * most_values + 2).translate(None, _NO_STRUCTURE)
    if structure.count(b",") + structure.count(b"[") + structure.count(b"{") > most_values:
        raise _too_large("values", f"{most_values:,} values")
    depth = 0
    for character in structure.translate(None, b","):
        depth += 1 if character in b"[{" else -1
        if depth > _DEEPEST_BODY:
            raise _too_large("depth", f"{_DEEPEST_BODY} levels of lists and objects")


def _count_items(value: object, levels: int) -> int:
    if not levels or not isinstance(value, (dict, list)):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return (len(value) if isinstance(value, list) else 0) + sum(_count_items(item, levels - 1) for item in inner)


def _too_large(limit: str, most: str, headers: dict[str, str] | None = None) -> ApiError:
    message = f"the body has more than {most}, the limit {limit!r} of this server"
    return ApiError(413, "too_large", message, details={"limit": limit}, headers=headers)


def _refuse_repeated(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(fields)
    if len(values) < len(fields):
        raise ValueError("a field is repeated")
    return values
