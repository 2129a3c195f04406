"""Reading the arguments that a model wrote: strict JSON text of one object, each key once."""

import json
import math
from collections.abc import Callable
from typing import Protocol

from pydantic_core import ErrorDetails, ValidationError, from_json

from agentrt._runtime.schema.validator import Validator
from agentrt._runtime.text import lazy_pattern, short_repr
from agentrt.errors import ToolError
from agentrt.types import JSONObject, JSONSchema

Parse = Callable[[str], JSONObject]
"""Reads the arguments of a call from the text that the model wrote; raises `ArgumentsError`."""

MAX_INPUT = 1_000_000
"""The most characters that the arguments of one call may have."""

_MAX_PROBLEMS = 5
# A number of fewer digits is finite, if it has no exponent.
_LONGEST_FINITE = 290
_MAY_BE_INFINITE = lazy_pattern(r"[0-9][eE]\+?[0-9]{2}|(?<![0-9])[0-9]{290}")


class TypeValidator(Protocol):
    """The one method of pydantic's validator that is used here; it returns a dict."""

    def validate_json(self, data: str, *, strict: bool) -> JSONObject: ...


class ArgumentsError(ToolError):
    """The arguments cannot be used; the message says why, so that the model can do better.

    Its cause, if any, is what a validator of the tool raised: how much of that the model sees depends on the tool.
    """


def parser_by_types(validator: TypeValidator) -> Parse:
    """Return a parser that checks and converts the arguments with a validator made from type hints."""
    validate = validator.validate_json

    def parse(text: str) -> JSONObject:
        arguments = parse_arguments(text)
        try:
            # Validates the text and not the parsed value: only in JSON does strict validation accept a str as a date.
            return validate(text if arguments else "{}", strict=True)
        except ValidationError as error:
            raise ArgumentsError(_describe_errors(error.errors(include_url=False, include_context=False))) from None
        except Exception as error:  # from a validator that the user wrote
            raise ArgumentsError(f"checking the arguments raised {type(error).__name__}") from error

    return parse


def parser_by_schema(schema: JSONSchema, hidden: frozenset[str], convert: Parse | None) -> Parse:
    """Return a parser that checks the arguments against a JSON schema; `convert` may then give them Python's types.

    Raises `SchemaError` for a schema that is malformed or cannot be checked. The names in `hidden` are filled in by the
    runtime, so a model may not give them even where the schema is open.
    """

    validator = Validator(schema)

    def parse(text: str) -> JSONObject:
        arguments = parse_arguments(text)
        forbidden = sorted(hidden & arguments.keys())
        if forbidden:
            raise ArgumentsError(f"argument {forbidden[0]!r} is unknown")
        try:
            problem = validator.problem(arguments)
        except Exception as error:  # noqa: BLE001  # the tool must not run with arguments that could not be checked
            problem = f"its input cannot be checked: {short_repr(str(error))}"
        if problem is not None:
            raise ArgumentsError(problem)
        return convert(text) if convert else arguments

    return parse


def parse_arguments(text: str) -> JSONObject:
    """Return the object that the text holds, `{}` for blank text; raises `ArgumentsError` for anything doubtful.

    It refuses duplicate keys at any depth, `NaN`, `Infinity` and numbers as large (`1e400`), text after the object, an
    object cut short, anything but an object, nesting deeper than 200 and text longer than `MAX_INPUT`.
    """
    # The cheap checks come before the parser, those that need the parsed value after it.
    if not isinstance(text, str):
        raise ArgumentsError(f"its input must be JSON text, not {type(text).__name__}: write it with json.dumps")
    if len(text) > MAX_INPUT:
        raise ArgumentsError(
            f"its input has {len(text):,} characters, but at most {MAX_INPUT:,} are allowed: send less"
        )
    try:
        value = from_json(text, allow_inf_nan=False)
    except (ValueError, TypeError) as error:  # TypeError: text with half a surrogate pair
        if not text.strip():
            return {}
        why = "half of a surrogate pair" if isinstance(error, TypeError) else error
        raise ArgumentsError(f"its input is not valid JSON ({why}): send one complete JSON object") from None
    if value.__class__ is not dict:
        raise ArgumentsError(f"its input must be a JSON object, not {short_repr(value)}")
    # Every key is followed by a colon, so as many colons as keys leave no room for a duplicate or a nested object.
    if text.count(":") != len(value):
        try:
            # Deep nesting has been refused by now, so the recursion of the standard library's parser has a bound.
            _unique_keys_decoder.decode(text)
        except ValueError as error:
            raise ArgumentsError(f"its input is not valid JSON ({error}): send one complete JSON object") from None
    # The parser reads 1e400 as infinity. A pattern over the text rules that out without a walk through the value.
    if ("e" in text or "E" in text or len(text) > _LONGEST_FINITE) and _MAY_BE_INFINITE.search(text):
        _refuse_infinite(value, ())
    return value


def _refuse_infinite(value: object, path: tuple[str | int, ...]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        where = ".".join(map(str, path))
        raise ArgumentsError(
            f"argument {short_repr(where)} should be a finite number, not {value}: send less than 1e308"
        )
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        _refuse_infinite(part, (*path, name))


def _object_of_unique_keys(pairs: list[tuple[str, object]]) -> JSONObject:
    unique = dict(pairs)
    if len(unique) == len(pairs):
        return unique
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            break
        seen.add(key)
    raise ArgumentsError(f"its input has the key {short_repr(key)} twice in one object: give each key once")


_unique_keys_decoder = json.JSONDecoder(object_pairs_hook=_object_of_unique_keys)


def _describe_errors(errors: list[ErrorDetails]) -> str:
    problems = []
    for error in errors[:_MAX_PROBLEMS]:
        where = ".".join(str(part) for part in error["loc"])
        if error["type"] == "missing":
            problems.append(f"argument {where!r} is missing")
        elif error["type"] == "extra_forbidden":
            problems.append(f"argument {short_repr(where)} is unknown")  # cut, since the model chose the name
        elif error["msg"].startswith("Input should "):
            expectation = error["msg"].removeprefix("Input ")
            problems.append(f"argument {where!r} {expectation}, not {short_repr(error['input'])}")
        else:
            problems.append(f"argument {where!r} is refused: {error['msg']}")
    if len(errors) > _MAX_PROBLEMS:
        problems.append(f"and {len(errors) - _MAX_PROBLEMS} more")
    return "; ".join(problems)
