"""What a model wrote is read strictly, or refused in words that the model can use."""

import json
from typing import Annotated, Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import AfterValidator

from agentrt.message import TextBlock, ToolCallBlock
from agentrt.tool import FunctionTool, Toolkit, ToolResponse
from agentrt.tool.arguments import MAX_INPUT, ArgumentsError, parse_arguments
from agentrt.tool.call import PreparedCall, respond

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


async def get_weather(city: str, days: int = 3) -> str:
    return f"{city} {days}"


def refusal(text: str, *, tool: Any = get_weather) -> str:
    result = Toolkit([tool]).prepare(ToolCallBlock("1", "get_weather", text))
    assert isinstance(result, ToolResponse), result
    assert result.state == "error"
    (block,) = result.content
    assert isinstance(block, TextBlock)
    return block.text


def reason(text: str) -> str:
    with pytest.raises(ArgumentsError) as caught:
        parse_arguments(text)
    return str(caught.value)


IT_TAKES = " It takes: city (string), days (integer, optional)."


def test_missing_argument_is_named_with_what_the_tool_takes() -> None:
    assert refusal('{"days": 1}') == f"get_weather was not run: argument 'city' is missing.{IT_TAKES}"


def test_blank_input_is_an_empty_object() -> None:
    assert parse_arguments("") == parse_arguments(" \n\t") == {}
    assert refusal("") == f"get_weather was not run: argument 'city' is missing.{IT_TAKES}"


def test_wrong_type_is_shown_with_its_value() -> None:
    assert refusal('{"city": "Rome", "days": "3"}') == (
        f"get_weather was not run: argument 'days' should be a valid integer, not '3'.{IT_TAKES}"
    )


def test_unknown_argument_is_refused() -> None:
    assert refusal('{"city": "Rome", "unit": "C"}') == f"get_weather was not run: argument 'unit' is unknown.{IT_TAKES}"


def test_up_to_five_problems_are_listed() -> None:
    text = refusal(json.dumps({f"k{n}": n for n in range(10)}))
    assert text.count(" is unknown") == 4
    assert "; and 6 more." in text


def test_truncated_input_is_refused_and_never_completed() -> None:
    assert refusal('{"city": "Rome", "days": 1') == (
        "get_weather was not run: its input is not valid JSON (EOF while parsing an object at line 1 column 26): "
        f"send one complete JSON object.{IT_TAKES}"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' twice"),
        ('{"a": {"b": 1, "b": 1}}', "the key 'b' twice"),
        ('{"a": [{"b": ":", "\\u0062": 1}]}', "the key 'b' twice"),
        ('{"a": NaN}', "not valid JSON"),
        ('{"a": -Infinity}', "not valid JSON"),
        ('{"a": 1e400}', "should be a finite number, not "),
        ('{"a": [{"b": -2.5E+0400}]}', "should be a finite number, not "),
        ('{"a": ' + "9" * 305 + "e5}", "should be a finite number, not "),
        ('{"a": ' + "9" * 400 + ".0}", "should be a finite number, not "),
        ('{"a": 1} {"a": 2}', "trailing characters"),
        ("[1]", "must be a JSON object, not [1]"),
        ('"text"', "must be a JSON object, not 'text'"),
        ("null", "must be a JSON object, not None"),
        ('{"a": "\\ud800"}', "not valid JSON"),
        ('{"a": "\ud800"}', "half of a surrogate pair"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "recursion limit"),
        ('{"a": ' + "1" * 10_000 + "}", "out of range"),
    ],
)
def test_ambiguous_json_input_is_refused(text: str, said: str) -> None:
    assert said in reason(text)


def test_input_that_is_too_large_is_refused_unread() -> None:
    assert (
        reason(" " * (MAX_INPUT + 1))
        == "its input has 1,000,001 characters, but at most 1,000,000 are allowed: send less"
    )


def test_input_that_is_not_a_str_is_refused() -> None:
    assert reason({"a": 1}) == "its input must be JSON text, not dict: write it with json.dumps"  # type: ignore[arg-type]


def test_a_huge_value_is_not_echoed() -> None:
    assert len(refusal(json.dumps({"city": "Rome", "days": "x" * 100_000}))) < 300
    assert len(refusal(json.dumps({"city": "Rome", "y" * 100_000: 1}))) < 300


def test_colon_in_a_string_is_not_a_duplicate_key() -> None:
    assert parse_arguments('{"a": "b:c", "d": ":::"}') == {"a": "b:c", "d": ":::"}


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_every_json_object_comes_back_as_it_was(value: dict[str, Any]) -> None:
    assert parse_arguments(json.dumps(value)) == value
    assert parse_arguments(json.dumps(value, ensure_ascii=False)) == value


@given(st.dictionaries(st.text(), JSON, min_size=1, max_size=4), JSON)
def test_duplicate_key_is_found_at_any_depth(value: dict[str, Any], other: Any) -> None:
    inner = f"{json.dumps(value)[:-1]}, {json.dumps(next(iter(value)))}: {json.dumps(other)}}}"
    assert "twice" in reason(inner)
    assert "twice" in reason(f'{{"deep": [0, {inner}]}}')


@given(JSON)
def test_a_permissive_tool_receives_what_was_sent(value: Any) -> None:
    received = []

    async def take(value: Any) -> None:
        received.append(value)

    prepared = Toolkit([take]).prepare(ToolCallBlock("1", "take", json.dumps({"value": value})))
    assert isinstance(prepared, PreparedCall)
    anyio.run(respond, prepared)
    assert received == [value]


@given(st.text() | st.text(alphabet='{}[]":,0123456789.eE-+truefalsn \\u'))
@example('{"city": "a", "city": "b"}')
@example("[[[[")
@example("\ud800")
def test_garbage_never_raises_and_never_enters_the_tool(text: str) -> None:
    result = KIT.prepare(ToolCallBlock("1", "get_weather", text))
    assert isinstance(result, ToolResponse)
    assert result.state == "error"


KIT = Toolkit([get_weather])


def test_failing_validator_of_the_user_is_reported_to_the_model() -> None:
    def no_rome(city: str) -> str:
        return {"Paris": "Paris"}[city]

    def positive(days: int) -> int:
        if days <= 0:
            raise ValueError("days lie ahead")
        return days

    async def get_weather(
        city: Annotated[str, AfterValidator(no_rome)], days: Annotated[int, AfterValidator(positive)] = 3
    ) -> str:
        return city

    assert "checking the arguments raised KeyError" in refusal('{"city": "Rome"}', tool=get_weather)
    assert "argument 'days' is refused: Value error, days lie ahead" in refusal(
        '{"city": "Paris", "days": 0}', tool=FunctionTool(get_weather)
    )


def test_numbers_that_a_float_can_hold_are_taken_as_they_are():
    text = '{"a": 1e300, "b": ' + "9" * 400 + ', "c": "1e400"}'
    assert parse_arguments(text) == {"a": 1e300, "b": int("9" * 400), "c": "1e400"}


@pytest.mark.parametrize(
    ("detail", "told"), [("message", "KeyError: '***, canary'. It takes"), ("type", "KeyError. It takes")]
)
def test_error_detail_decides_if_a_validators_message_is_shown(
    detail: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    def unknown(city: str) -> str:
        raise KeyError(f"a-preset-secret, {city}")

    async def find(city: Annotated[str, AfterValidator(unknown)], key: str) -> str:
        return city

    tool = FunctionTool(find, name="get_weather", preset_kwargs={"key": "a-preset-secret"}, error_detail=detail)
    assert f"get_weather was not run: checking the arguments raised {told}" in refusal('{"city": "canary"}', tool=tool)
    assert "checking the arguments of tool 'get_weather' failed" in caplog.text
    assert ("canary" in caplog.text) is (detail == "message")
