"""Whatever an API, a proxy or a broken line sends: the whole answer, or an error of ours, and never half an answer."""

import asyncio
import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import ModelError
from agentrt.message import AssistantMsg
from agentrt.types import ChatResponse
from tests.model.apis.all_apis import NAMES_OF_APIS, TEXT_APIS, Api, read, said
from tests.model.apis.answers import MODELS, TOOLS
from tests.model.wire_openai import HELLO

CUT = httpx2.ReadError("peer closed the connection")
DEEP: Any = json.loads("[" * 300 + "]" * 300)
BAD_VALUES: list[Any] = [None, [], {}, 0, -1, 1e300, 10**400, "x", "", True, [None], [[1]], {"x": None}, DEEP]


def check_cut(runner: asyncio.Runner, api: Api, place: int, *, breaks: bool) -> None:
    outcome = read(runner, api, api.body()[:place], *([CUT] if breaks else []))
    if not isinstance(outcome, ModelError):
        assert said(outcome) == said(read(runner, api, api.body()))


NAMES = st.sampled_from(NAMES_OF_APIS)
NAMES_OF_TEXT_APIS = st.sampled_from(TEXT_APIS)


@given(NAMES, st.integers(0, 10_000), st.booleans())
@settings(max_examples=80)
def test_a_stream_that_is_cut_is_whole_or_an_error(
    apis: dict[str, Api], runner: asyncio.Runner, name: str, place: int, breaks: bool
) -> None:
    check_cut(runner, apis[name], place % len(apis[name].body()), breaks=breaks)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES_OF_APIS)
def test_a_cut_at_each_byte_is_whole_or_an_error(apis: dict[str, Api], runner: asyncio.Runner, name: str) -> None:
    for place in range(len(apis[name].body())):
        check_cut(runner, apis[name], place, breaks=bool(place % 2))


@given(
    NAMES_OF_TEXT_APIS,
    st.lists(st.integers(0, 10_000), max_size=20),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([b": ping\n\n", b"id: 7\nretry: 10\n", b"\n\n", b":\n"]))),
    st.booleans(),
)
def test_the_same_bytes_in_another_form_are_the_same_answer(
    apis: dict[str, Api],
    runner: asyncio.Runner,
    name: str,
    cuts: list[int],
    end: bytes,
    noise: list[tuple[int, bytes]],
    has_mark: bool,
) -> None:
    api = apis[name]
    lines = [api.line(event) for event in api.sent]
    for place, line in noise:
        lines.insert(place % (len(lines) + 1), line)
    body = (b"\xef\xbb\xbf" if has_mark else b"") + (b"".join(lines) + api.end).replace(b"\n", end)
    places = sorted({cut % len(body) for cut in cuts})
    chunks = [body[start:stop] for start, stop in zip([0, *places], [*places, len(body)], strict=True)]
    assert said(read(runner, api, *chunks)) == said(read(runner, api, api.body()))


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value within."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths(item, (*path, key))


@given(st.data(), NAMES)
@settings(max_examples=150)
def test_events_of_any_shape_are_an_answer_or_an_error(
    apis: dict[str, Api], runner: asyncio.Runner, data: st.DataObject, name: str
) -> None:
    api = apis[name]
    sent: list[Any] = json.loads(json.dumps(api.sent))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(sent) - 1))
        match data.draw(st.sampled_from(["change", "change", "change", "drop", "repeat", "swap"])):
            case "change":
                path = data.draw(st.sampled_from([*paths(sent[place], (place,)), (place,)]))
                holder: Any = sent
                for key in path[:-1]:
                    holder = holder[key]
                holder[path[-1]] = deepcopy(data.draw(st.sampled_from(BAD_VALUES)))
            case "drop" if len(sent) > 1:
                del sent[place]
            case "repeat":
                sent.insert(data.draw(st.integers(0, len(sent))), sent[place])
            case "swap":
                other = data.draw(st.integers(0, len(sent) - 1))
                sent[place], sent[other] = sent[other], sent[place]
    outcome = read(runner, api, b"".join(map(api.line, sent)) + api.end)
    if isinstance(outcome, ChatResponse):  # and it can go back
        for model in MODELS.values():
            model._body([*HELLO, AssistantMsg("a", outcome.content)], TOOLS, None)


@pytest.mark.parametrize("name", TEXT_APIS)
@pytest.mark.parametrize("opening", ['{"type": ', '{"choices": [{"delta": ', '{"candidates": [', '{"x": [', "["])
def test_json_of_any_depth_is_an_error(apis: dict[str, Api], runner: asyncio.Runner, name: str, opening: str) -> None:
    deep = opening * 10_000 if opening.endswith("[") else opening + "[" * 10_000
    for end in ("", "]" * 10_000 + "}"):
        outcome = read(runner, apis[name], f"data: {deep}{end}\n\n".encode() + apis[name].body())
        assert isinstance(outcome, ModelError)
