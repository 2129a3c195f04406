"""Events: one class per kind, and each of them goes to JSON and back."""

import gc
import inspect
import json
from dataclasses import MISSING, fields
from time import time_ns
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import event as events
from agentrt.errors import InvalidInputError
from agentrt.event import (
    AgentEvent,
    AnyEvent,
    ConfirmResult,
    CustomEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    TextBlockDeltaEvent,
    ToolCallStartEvent,
    UserConfirmResultEvent,
)
from agentrt.message import ToolCallBlock, ToolResultState, UserMsg
from agentrt.types import PermissionRule
from tests.test_message import anything

CLASSES: tuple[type[AgentEvent], ...] = get_args(get_args(AnyEvent)[0])
EACH = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)

FIELDS = {
    "REPLY_START": "session_id reply_id name role",
    "REPLY_RESUMED": "session_id reply_id name role blocks usage begun_at",
    "REPLY_END": "session_id reply_id finished_reason error",
    "MODEL_CALL_START": "reply_id model_name is_answer_wrapped",
    "MODEL_CALL_END": "reply_id input_tokens output_tokens cache_input_tokens "
    "cache_creation_input_tokens finished_reason estimated replayed",
    "MODEL_CALL_RETRY": "reply_id reason attempt wait_seconds block_ids",
    "BLOCKS_WITHDRAWN": "reply_id block_ids",
    "TEXT_BLOCK_START": "reply_id block_id",
    "TEXT_BLOCK_DELTA": "reply_id block_id delta",
    "TEXT_BLOCK_END": "reply_id block_id text",
    "THINKING_BLOCK_START": "reply_id block_id",
    "THINKING_BLOCK_DELTA": "reply_id block_id delta",
    "THINKING_BLOCK_END": "reply_id block_id signature",
    "DATA_BLOCK_START": "reply_id block_id media_type name",
    "DATA_BLOCK_DELTA": "reply_id block_id media_type data url",
    "DATA_BLOCK_END": "reply_id block_id",
    "HINT_BLOCK": "reply_id block_id source hint",
    "PROVIDER_BLOCK": "reply_id block_id provider content",
    "TOOL_CALL_START": "reply_id tool_call_id tool_call_name",
    "TOOL_CALL_DELTA": "reply_id tool_call_id tool_call_name delta",
    "TOOL_CALL_END": "reply_id tool_call_id tool_call_name",
    "TOOL_RESULT_START": "reply_id tool_call_id tool_call_name",
    "TOOL_RESULT_TEXT_DELTA": "reply_id tool_call_id tool_call_name delta",
    "TOOL_RESULT_DATA_DELTA": "reply_id tool_call_id tool_call_name block_id media_type data url",
    "TOOL_RESULT_END": "reply_id tool_call_id tool_call_name state metadata",
    "EXCEED_MAX_ITERS": "reply_id name",
    "SUBAGENT_START": "reply_id tool_call_id name child_reply_id child_session_id resumed",
    "SUBAGENT_END": "reply_id tool_call_id name child_reply_id child_session_id resumed state usage",
    "TASK_STARTED": "reply_id tool_call_id task_id session_id",
    "REQUIRE_USER_CONFIRM": "reply_id tool_calls",
    "REQUIRE_EXTERNAL_EXECUTION": "reply_id tool_calls",
    "USER_CONFIRM_RESULT": "reply_id confirm_results",
    "EXTERNAL_EXECUTION_RESULT": "reply_id execution_results",
    "USER_INTERRUPT": "reply_id",
    "CUSTOM": "name value",
}


def descendants(cls: type) -> set[type]:
    return {cls}.union(*map(descendants, cls.__subclasses__())) if cls.__subclasses__() else {cls}


def kind(cls: type[AgentEvent]) -> str:
    return next(field.default for field in fields(cls) if field.name == "type")


def class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_")) + "Event"


def test_there_is_one_class_per_kind_and_it_is_called_after_it():
    assert {kind(cls): cls.__name__ for cls in CLASSES} == {name: class_name(name) for name in FIELDS}
    assert len(CLASSES) == len(FIELDS)


def test_the_union_leaves_no_class_out():
    gc.collect()  # a class that gets slots is made anew, and the first one may still be lying about
    assert descendants(AgentEvent) - {AgentEvent} == set(CLASSES)


def test_an_event_has_the_fields_that_its_readers_know():
    for cls in CLASSES:
        wanted = {*FIELDS[kind(cls)].split(), "metadata", "created_at", "seq", "type"}
        assert wanted <= {field.name for field in fields(cls)}


def test_every_event_is_documented_and_public():
    for cls in CLASSES:
        assert inspect.getdoc(cls) != inspect.getdoc(AgentEvent)
        assert cls.__name__ in events.__all__


def test_the_rest_of_the_module_is_public_too():
    rest = {"AgentEvent", "AnyEvent", "ConfirmResult", "ReplyClosedEvent"}
    assert set(events.__all__) == rest | {cls.__name__ for cls in CLASSES}


@EACH
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_event_takes_keywords_and_survives_json(cls, data):
    event = data.draw(anything(cls))
    again = cls(**{field.name: getattr(event, field.name) for field in fields(cls)})
    assert again == event
    back = AgentEvent.from_json(event.to_json())
    assert back == event
    assert type(back) is cls
    assert "\n" not in event.to_json()


def test_json_without_the_name_of_the_tool_is_read():
    for cls in CLASSES:
        required = {field.name: "x" for field in fields(cls) if field.default is field.default_factory is MISSING}
        names = {field.name for field in fields(cls)}
        if "tool_call_name" in required or not {"tool_call_name", "tool_call_id"} <= names:
            continue
        event = cls(**required | ({"state": ToolResultState.SUCCESS} if "state" in required else {}))
        values = json.loads(event.to_json())
        del values["tool_call_name"]
        assert AgentEvent.from_json(json.dumps(values)) == event


def test_every_event_is_an_agent_event_with_type_and_time():
    for cls in CLASSES:
        before = time_ns()
        required = {field.name: "x" for field in fields(cls) if field.default is field.default_factory is MISSING}
        event = cls(**required)
        assert isinstance(event, AgentEvent)
        assert event.type == kind(cls)
        assert before <= event.created_at <= time_ns()
        assert (event.seq, event.metadata) == (0, None)


def test_an_event_has_no_dictionary_of_its_own():
    for cls in CLASSES:
        assert not hasattr(cls.__new__(cls), "__dict__")


def test_a_numbered_event_has_a_name_of_its_own():
    assert TextBlockDeltaEvent("r", "b", "hi", seq=7).id == "r:7"


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000000000Z"),
        (1_769_860_800_123_456_789, "2026-01-31T12:00:00.123456789Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
    ],
)
def test_the_times_of_an_event_are_iso_8601_text_in_json(nanoseconds, text):
    event = ReplyResumedEvent("r", [], begun_at=nanoseconds, created_at=nanoseconds)
    values = json.loads(event.to_json())
    assert (values["begun_at"], values["created_at"]) == (text, text)
    assert AgentEvent.from_json(event.to_json()) == event


@pytest.mark.parametrize("time", [1_769_860_800.5, "yesterday", None])
def test_time_that_is_not_in_nanoseconds_stays_and_warns(time):
    with pytest.warns(UserWarning, match=r"times are an int of nanoseconds, such as time\.time_ns\(\)"):
        values = json.loads(CustomEvent("a", created_at=time).to_json())
    assert values["created_at"] == time


@given(st.integers())
def test_every_time_is_read_back_exactly(nanoseconds):
    assert AgentEvent.from_json(CustomEvent("a", created_at=nanoseconds).to_json()).created_at == nanoseconds


@pytest.mark.parametrize(
    ("written", "nanoseconds"),
    [
        ("1769860800123456789", 1_769_860_800_123_456_789),
        ('"2026-01-31T12:00:00.123Z"', 1_769_860_800_123_000_000),  # as JavaScript's toISOString() writes it
        ('"2026-01-31T12:00:00Z"', 1_769_860_800_000_000_000),
        ('"2026-01-31T14:00:00.5+02:00"', 1_769_860_800_500_000_000),
    ],
)
def test_times_are_read_from_numbers_and_other_iso_8601_texts(written, nanoseconds):
    event = AgentEvent.from_json(f'{{"type": "CUSTOM", "name": "a", "created_at": {written}}}')
    assert event.created_at == nanoseconds


@pytest.mark.parametrize("written", ['"yesterday"', '"2026-13-01T00:00:00Z"', '"2026-01-31T12:00:00"', "1.5", "null"])
def test_a_time_that_is_none_is_refused_with_an_example(written):
    with pytest.raises(InvalidInputError, match="its 'created_at' should be a time in ISO 8601, such as '2026-"):
        AgentEvent.from_json(f'{{"type": "CUSTOM", "name": "a", "created_at": {written}}}')


NOT_JSON: list[Any] = [object(), "\ud800", b"\xff", print, itself := [], {"deep": {object()}}]
itself.append(itself)


@pytest.mark.parametrize("value", NOT_JSON, ids=["object", "surrogate", "bytes", "function", "cycle", "set"])
def test_event_or_message_that_has_no_json_form_is_named(value):
    for event in (CustomEvent("a", value, reply_id="r"), ReplyStartEvent("r", "s", "ann", metadata={"a": value})):
        with pytest.raises(InvalidInputError, match=f"the event {event.type} of the reply 'r' cannot be written as"):
            event.to_json()
    for message in (UserMsg("ann", "x", metadata={"a": value}), UserMsg("ann", "x", structured_output=value)):
        with pytest.raises(InvalidInputError, match=r"the message from 'ann' cannot be written as JSON: .*; put only"):
            message.to_json()


def test_two_events_share_no_list_by_default():
    one, other = ConfirmResult(True, ToolCallBlock("1", "f")), ConfirmResult(True, ToolCallBlock("1", "f"))
    one.rules.append(PermissionRule("f"))
    assert other.rules == []
    retries = [events.ModelCallRetryEvent("cut"), events.ModelCallRetryEvent("cut")]
    retries[0].block_ids.append("b")
    assert retries[1].block_ids == []


def test_base_event_cannot_be_made():
    with pytest.raises(TypeError) as caught:
        _ = AgentEvent("r").type
    assert str(caught.value) == "AgentEvent is the base class of all events: make an instance of a subclass"


def test_events_take_their_documented_arguments_in_order():
    call = ToolCallBlock("1", "delete")
    assert CustomEvent("progress", 0.5).reply_id == ""
    assert ToolCallStartEvent("r", "1", "add").tool_call_name == "add"
    assert UserConfirmResultEvent("r", [ConfirmResult(False, call)]).confirm_results[0].tool_call is call
    assert ReplyStartEvent("r", "s", "ann").role == "assistant"


def test_a_nested_block_keeps_its_class():
    event = UserConfirmResultEvent("r", [ConfirmResult(True, ToolCallBlock("1", "f", "{}"), [PermissionRule("f")])])
    back: Any = AgentEvent.from_json(event.to_json())
    assert isinstance(back.confirm_results[0].tool_call, ToolCallBlock)
    assert back == event


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is not JSON (EOF while parsing a value at line 1 column 0)"),
        ("[]", "it is not a JSON object"),
        ("null", "it is not a JSON object"),
        ('"CUSTOM"', "it is not a JSON object"),
        ('{"name": "no type"}', "it has no type"),
        ('{"type": "NOPE", "reply_id": "r"}', "it has the type 'NOPE', which does not exist"),
        (
            '{"type": "text_block_start", "reply_id": "r", "block_id": "b"}',
            "it has the type 'text_block_start', which does not exist",
        ),
        ('{"type": "TEXT_BLOCK_DELTA", "reply_id": "r", "block_id": "b"}', "it has no 'delta'"),
        (
            '{"type": "TEXT_BLOCK_DELTA", "reply_id": "r", "block_id": "b", "delta": 1}',
            "its 'delta' should be a valid string",
        ),
        (
            '{"type": "REPLY_END", "reply_id": "r", "session_id": "s", "finished_reason": "bored"}',
            "its 'finished_reason' should be 'completed', ",
        ),
        (
            '{"type": "USER_CONFIRM_RESULT", "reply_id": "r", "confirm_results": [{"confirmed": 1}]}',
            "its 'confirm_results.0' has no 'tool_call'",
        ),
        ('{"type": "CUSTOM", "name": "a"} and more', "it is not JSON (trailing characters at line 1 column 33)"),
        ('{"type": "CUSTOM", "name": "a", "nmae": "b"}', "it has the unknown field 'nmae'"),
        ('{"type": "CUSTOM", "name": "a", "\\u0000": "b"}', r"it has the unknown field '\x00'"),
        ('{"type": "CUSTOM", "name": "a", "NAME": "b"}', "it has the unknown field 'NAME'"),
    ],
)
def test_json_that_is_not_an_event_is_refused_in_one_line(text, problem):
    with pytest.raises(InvalidInputError) as caught:
        AgentEvent.from_json(text)
    assert str(caught.value).startswith(f"not an event: {problem}")
    assert "\n" not in str(caught.value)
    assert caught.value.__context__ is None
