"""One JSON schema, ready to check values.

The engine is `jsonschema-rs`, which knows all drafts. It opens no address and no file for a reference, and its
patterns take linear time. The limits that it lacks are here: the depth of a value, which would crash the
process, and the work of a check, which holds the interpreter until it is done.
"""

import json
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from agentrt._runtime.schema.engine import SchemaEngine
from agentrt._runtime.schema.explanation import PATTERN, Explanation
from agentrt._runtime.schema.parts import LISTS, MAPS, SINGLES, Parts, SchemaError, escape_pointer
from agentrt._runtime.schema.patterns import PatternError, split_pattern, translate
from agentrt._runtime.text import short_repr
from agentrt.types import JSONSchema

_MAX_LEVELS = 200
_MAX_WORK = 20_000_000  # takes one or two seconds at worst
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SAFE_IN_REFERENCE = "#/~!$&'()*+,;=:@?"
_CHARACTERS = 100  # of text: as slow as one check


class Validator:
    """A JSON schema, ready to check values; raises `SchemaError` for a malformed or uncheckable one.

    A schema that names no draft means 2020-12, or 2019-09 where `items` is a list. Formats are annotations only
    unless `formats` is true.
    """

    __slots__ = ("_engine", "_explanation", "_formats", "_parts", "_text")

    def __init__(self, schema: object, *, formats: bool = True) -> None:
        try:
            # A model gets it as JSON; this also finds cycles of Python objects.
            self._text = json.dumps(schema, allow_nan=False)
            root = _prepare(json.loads(self._text), "#")
            parts = Parts(root if isinstance(root, dict) else {})
            self._parts = parts.count()
        except (TypeError, ValueError) as error:
            raise error if isinstance(error, SchemaError) else SchemaError(f"it has no JSON form: {error}") from None
        except RecursionError:  # here the stack is unwound, and there is room again
            raise SchemaError("it is nested too deep") from None
        self._formats = formats
        engine = SchemaEngine(schema, formats=formats)
        self._engine = engine.compile(root)
        self._explanation = Explanation(root, parts, engine)

    def problem(self, value: object) -> str | None:
        """Describe the problem of a value for the model; `None` if it fits the schema."""
        try:
            problem = self._refuse(value)
            if problem is not None or self._engine.is_valid(value):
                return problem
            return self._explanation.explain(value)
        except UnicodeEncodeError:
            return "its input has half of a surrogate pair"

    def _refuse(self, value: object) -> str | None:
        """Say why a value is too large or too deep for the engine, or `None`."""
        size, level = 0, [value]
        for _ in range(_MAX_LEVELS):
            inner: list[object] = []
            size += len(level)
            for part in level:
                if isinstance(part, dict):
                    for name in part:
                        if not isinstance(name, str):
                            return f"its input has the key {short_repr(name)}, which is not a string"
                    inner += part.values()
                elif isinstance(part, (list, tuple)):
                    inner += part
                elif isinstance(part, str):
                    size += len(part) // _CHARACTERS
            if size * self._parts > _MAX_WORK:
                return "its input is too large to be checked: send less"
            if not inner:
                return None
            level = inner
        return f"its input is nested too deep to be checked: at most {_MAX_LEVELS} levels"

    def __deepcopy__(self, _: object) -> "Validator":
        return self  # it never changes

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Validator, formats=self._formats), (json.loads(self._text),)


def _prepare(schema: Any, pointer: str) -> Any:
    """Return a copy with patterns that the engine supports, and without addresses of parts."""
    if not isinstance(schema, dict):
        return schema
    prepared: dict[str, Any] = {}
    dynamic: list[JSONSchema] = []
    for keyword, setting in schema.items():
        if keyword in MAPS and isinstance(setting, dict):
            is_pattern = keyword == "patternProperties"
            prepared[keyword] = {
                translate(name) if is_pattern else name: _prepare(part, f"{pointer}/{keyword}/{escape_pointer(name)}")
                for name, part in setting.items()
            }
        elif keyword in LISTS and isinstance(setting, list):
            prepared[keyword] = [_prepare(part, f"{pointer}/{keyword}/{i}") for i, part in enumerate(setting)]
        elif keyword in SINGLES:
            prepared[keyword] = _prepare(setting, f"{pointer}/{keyword}")
        elif keyword in ("$id", "id") and isinstance(setting, str) and not setting.startswith("#"):
            _check_own_address(keyword, schema, pointer)
        elif keyword in _REFERENCES and isinstance(setting, str):
            # Dynamic ones always lead to the same part, since no part has an address of its own.
            reference = quote(unquote(setting), safe=_SAFE_IN_REFERENCE)  # many generators do not quote
            if keyword == "$ref":
                prepared["$ref"] = reference
            else:
                dynamic.append({"$ref": reference})
        elif keyword != "$schema":
            prepared[keyword] = setting
    for part in dynamic:
        _add_to_all(prepared, part)
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        _prepare_pattern(prepared, pattern, pointer)
    return prepared


def _check_own_address(keyword: str, schema: JSONSchema, pointer: str) -> None:
    """Refuse a part with an address of its own, unless nothing refers to it or from it."""
    if pointer != "#" and _has_references(schema):
        raise SchemaError(
            f"{keyword} at {pointer} begins a schema of its own, where references lead elsewhere: leave it out"
        )


def _add_to_all(prepared: JSONSchema, part: JSONSchema) -> None:
    # At the end, so that no reference changes its target.
    others = prepared.get("allOf", [])
    prepared["allOf"] = [*(others if isinstance(others, list) else []), part]


def _prepare_pattern(schema: JSONSchema, pattern: str, pointer: str) -> None:
    try:
        split = split_pattern(pattern)
    except PatternError as error:
        raise SchemaError(f"pattern {pattern!r:.200} at {pointer} cannot be checked ({error}): leave it out") from None
    if split != [{"pattern": pattern}]:
        del schema["pattern"]
        _add_to_all(schema, {PATTERN: pattern, "allOf": split})


def _has_references(schema: Any) -> bool:
    if isinstance(schema, dict):
        named = any(isinstance(schema.get(keyword), str) for keyword in (*_REFERENCES, "$anchor", "$dynamicAnchor"))
        return named or any(map(_has_references, schema.values()))
    return isinstance(schema, list) and any(map(_has_references, schema))
