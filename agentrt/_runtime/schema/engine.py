"""The validation engine for one draft, and its errors for malformed schemas in our words."""

from functools import cache
from typing import TYPE_CHECKING, Any

from agentrt._runtime.schema.formats import FORMATS
from agentrt._runtime.schema.parts import LISTS, MAPS, SINGLES, SchemaError, escape_pointer, schemas_inside
from agentrt._runtime.text import short_repr

if TYPE_CHECKING:
    import jsonschema_rs

_PATTERN_BYTES = 1_000_000
"""The most that a compiled pattern may take."""
_ALL_PATTERN_BYTES = 20_000_000
"""The most that all of them together may take: a megabyte takes 20 ms to compile, in which nothing else runs."""
_DRAFT_OF = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
}
_NEWEST = 2020
_SCHEMA_KINDS = "which is an object, true or false"

_EXPECTED = {
    "const": "a value",
    "dependentRequired": "lists of names",
    "enum": "a list of values",
    "format": "the name of a format",
    "required": "a list of names",
    "type": "one of object, array, string, boolean, null, integer, number, or a list of them",
    "uniqueItems": "true or false",
    "$ref": "a string",
    **dict.fromkeys(MAPS, "an object of schemas"),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"), "a number"),
    **dict.fromkeys(("maxContains", "maxItems", "maxLength", "maxProperties"), "a whole number of at least 0"),
    **dict.fromkeys(("minContains", "minItems", "minLength", "minProperties"), "a whole number of at least 0"),
    **dict.fromkeys(LISTS - SINGLES, "a list of schemas"),
}
"""The required value of each keyword."""


class SchemaEngine:
    """Compiles a schema and parts of it, by the draft that the schema names."""

    def __init__(self, schema: Any, *, formats: bool) -> None:
        self._formats = formats
        name = str(schema.get("$schema", "")) if isinstance(schema, dict) else ""
        usual = 2019 if not name and _has_list(schema) else _NEWEST
        self._draft = _DRAFT_OF.get(name.partition("://")[2].rstrip("#"), usual)
        self.ignores_beside_ref = self._draft < 2019
        patterns, parts = 0, [schema]
        while parts:
            part = parts.pop()
            if isinstance(part, dict):
                by_name = part.get("patternProperties")
                patterns += isinstance(part.get("pattern"), str) + (len(by_name) if isinstance(by_name, dict) else 0)
                parts += part.values()
            elif isinstance(part, (list, tuple)):
                parts += part
        self._pattern_bytes = min(_PATTERN_BYTES, _ALL_PATTERN_BYTES // max(1, patterns))

    def compile(self, schema: Any, registry: "jsonschema_rs.Registry | None" = None) -> "jsonschema_rs.Validator":
        """Return the compiled validator; raises `SchemaError` for a malformed schema."""
        if not isinstance(schema, (dict, bool)):  # a str would be parsed as JSON
            raise SchemaError(f"# must be a schema, {_SCHEMA_KINDS}, not {short_repr(schema)}")
        from jsonschema_rs import RegexOptions

        drafts, options = _load_engine(self._formats)
        make, _ = drafts[self._draft]
        patterns = RegexOptions(size_limit=self._pattern_bytes)
        try:
            validator: jsonschema_rs.Validator = make(schema, registry=registry, pattern_options=patterns, **options)
        except ValueError as error:
            raise SchemaError(_describe_malformed(error, schema)) from None
        return validator

    def registry(self, uri: str, schema: Any) -> "jsonschema_rs.Registry":
        """Return a registry that resolves references to the schema's parts."""
        from jsonschema_rs import Registry

        drafts, _ = _load_engine(self._formats)
        return Registry([(uri, schema)], draft=drafts[self._draft][1])


@cache
def _load_engine(formats: bool) -> tuple[dict[int, tuple[Any, int]], dict[str, Any]]:
    """Return the drafts and the options of the engine, which is imported at the first use."""
    import jsonschema_rs as engine

    options: dict[str, Any] = {
        "offline": True,
        "mask": "...",  # in messages that nobody reads, and that would hold the value each
        "validate_formats": formats,
        "formats": FORMATS if formats else None,
    }
    drafts = {
        4: (engine.Draft4Validator, engine.Draft4),
        6: (engine.Draft6Validator, engine.Draft6),
        7: (engine.Draft7Validator, engine.Draft7),
        2019: (engine.Draft201909Validator, engine.Draft201909),
        _NEWEST: (engine.Draft202012Validator, engine.Draft202012),
    }
    return drafts, options


def _has_list(schema: Any) -> bool:
    """Say whether some `items` is a list, which the newest draft calls `prefixItems`."""
    if not isinstance(schema, dict):
        return False
    return isinstance(schema.get("items"), list) or any(
        _has_list(part.schema) for _, part in schemas_inside(schema, "#")
    )


def _describe_malformed(error: ValueError, schema: Any) -> str:
    kind: Any = getattr(error, "kind", None)
    if kind is None:
        return "it is nested too deep" if "Recursion" in str(error) else f"it has no JSON form: {error}"
    path: list[str | int] = error.instance_path  # type: ignore[attr-defined]
    if not path:  # a reference
        return str(error).partition("\n")[0]
    if kind.as_dict().get("format") == "regex":
        is_name = "patternProperties" in path[-2:-1]
        keyword, pattern = ("patternProperties", path[-1]) if is_name else ("pattern", _value_at(path, schema))
        return (
            f"{keyword} {pattern!r:.200} at {_pointer(path[: -2 if is_name else -1])} cannot be checked: leave it out, "
            f"or write it without look-around and back-references, or shorter"
        )
    place = next((number for number in reversed(range(len(path))) if path[number] in _EXPECTED), -1)
    keyword = str(path[place])
    if place < 0 or keyword in SINGLES or (keyword in MAPS | LISTS and place + 1 < len(path)):
        value = _value_at(path, schema)
        if path[-1] in ("$id", "id", "$schema", "$anchor", "$ref"):
            return f"{path[-1]} at {_pointer(path[:-1])} cannot be {short_repr(value)}: leave it out"
        return f"{_pointer(path)} must be a schema, {_SCHEMA_KINDS}, not {short_repr(value)}"
    value = _value_at(path[: place + 1], schema)
    expected = _EXPECTED[keyword]
    if keyword == "multipleOf" and kind.name != "type":
        expected = "more than 0"
    return f"{keyword} at {_pointer(path[:place])} must be {expected}, not {short_repr(value)}"


def _value_at(path: list[str | int], schema: Any) -> Any:
    for name in path:
        schema = schema[name]
    return schema


def _pointer(path: list[str | int]) -> str:
    return "/".join(("#", *map(escape_pointer, path)))
