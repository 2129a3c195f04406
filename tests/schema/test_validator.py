"""A schema written by hand is honoured as it stands, or refused when it is compiled."""

import copy
import pickle
import sys
from typing import Any

import pytest

from agentrt._runtime.schema.parts import SchemaError
from agentrt._runtime.schema.validator import Validator
from agentrt.errors import ToolConfigError
from agentrt.message import ToolCallBlock
from agentrt.tool import FunctionTool, ToolBase, Toolkit, ToolResponse


def problem(value: Any, schema: dict[str, Any]) -> str | None:
    return Validator(schema).problem(value)


OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 4},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "ratio": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "kind": {"enum": ["a", 1, None]},
        "exact": {"const": True},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "pair": {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "one": {"oneOf": [{"type": "integer"}, {"minimum": 5}]},
        "all": {"allOf": [{"type": "integer"}, {"minimum": 5}]},
        "tree": {"$ref": "#/$defs/tree"},
        "open": {"type": ["object", "null"], "additionalProperties": {"type": "integer"}, "required": ["x"]},
        "never": False,
        "any": True,
    },
    "additionalProperties": False,
    "$defs": {"tree": {"type": "object", "properties": {"child": {"$ref": "#/$defs/tree"}}, "required": ["leaf"]}},
}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"name": "ab", "count": 9, "ratio": 0.5},
        {"count": 3.0},
        {"kind": 1},
        {"kind": None},
        {"exact": True},
        {"tags": ["x", "y"]},
        {"pair": ["x", 1]},
        {"pair": ["x"]},
        {"either": None},
        {"one": 4},
        {"one": 5.5},
        {"all": 5},
        {"tree": {"leaf": 1, "child": {"leaf": 2}}},
        {"open": {"x": 1, "y": 2}},
        {"open": None},
        {"any": [object]},
    ],
)
def test_value_that_fits_has_no_problem(value: Any) -> None:
    assert problem(value, OBJECT) is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "its input should be of type object, not []"),
        ({"name": 1}, "argument 'name' should be of type string, not 1"),
        ({"name": "a"}, "argument 'name' should have at least 2 characters, not 'a'"),
        ({"name": "abcde"}, "argument 'name' should have at most 4 characters, not 'abcde'"),
        ({"count": True}, "argument 'count' should be of type integer, not True"),
        ({"count": 1.5}, "argument 'count' should be of type integer, not 1.5"),
        ({"count": 0}, "argument 'count' should be at least 1, not 0"),
        ({"count": 10}, "argument 'count' should be at most 9, not 10"),
        ({"ratio": 0}, "argument 'ratio' should be more than 0, not 0"),
        ({"ratio": 1}, "argument 'ratio' should be less than 1, not 1"),
        ({"kind": True}, "argument 'kind' should be one of \"a\", 1, null, not True"),
        ({"exact": 1}, "argument 'exact' should be true, not 1"),
        ({"tags": []}, "argument 'tags' should have at least 1 items, not []"),
        ({"tags": ["x", 2]}, "argument 'tags.1' should be of type string, not 2"),
        ({"pair": ["x", 1, 2]}, "argument 'pair.2' is not allowed"),
        ({"pair": [1]}, "argument 'pair.0' should be of type string, not 1"),
        (
            {"either": 1},
            "argument 'either' fits none of the allowed forms: argument 'either' should be of type string, not 1; "
            "or argument 'either' should be of type null, not 1",
        ),
        ({"one": 6}, "argument 'one' should fit exactly one of the allowed forms, but fits 2: 6"),
        ({"all": 4}, "argument 'all' should be at least 5, not 4"),
        ({"tree": {"leaf": 1, "child": {}}}, "argument 'tree.child.leaf' is missing"),
        ({"open": {"x": "1"}}, "argument 'open.x' should be of type integer, not '1'"),
        ({"open": {}}, "argument 'open.x' is missing"),
        ({"never": 1}, "argument 'never' is not allowed"),
        ({"other": 1}, "argument 'other' is unknown"),
        ({"count": "x"}, "argument 'count' should be of type integer, not 'x'"),
    ],
)
def test_value_that_does_not_fit_is_described_by_first_problem(value: Any, said: str) -> None:
    assert problem(value, OBJECT) == said


def test_a_keyword_says_nothing_about_values_of_another_type() -> None:
    schema = {"required": ["a"], "properties": {"a": False}, "additionalProperties": False, "items": False}
    assert problem(1, schema | {"prefixItems": [False], "minimum": 5, "minLength": 5, "minItems": 5}) == (
        "its input should be at least 5, not 1"
    )
    assert problem(None, schema | {"prefixItems": [False], "minimum": 5, "minLength": 5, "minItems": 5}) is None


DOUBLED: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(24)}

REFUSED: list[tuple[Any, str]] = [
    ({"properties": {"a": {"enum": None}}}, "enum at #/properties/a must be a list of values, not None"),
    ({"properties": {"a": {"minimum": "5"}}}, "minimum at #/properties/a must be a number, not '5'"),
    ({"properties": {"a": {"$ref": 5}}}, "$ref at #/properties/a must be a string, not 5"),
    ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "$ref at #/properties/a leads nowhere: '#/$defs/b'"),
    (
        {"properties": {"a": {"$ref": "https://x/y.json"}}},
        "$ref at #/properties/a must name a part of this schema, such as \"#/$defs/City\", not 'https://x/y.json'",
    ),
    ({"type": "objekt"}, "type at # must be one of object, array, string, boolean, null, integer, number, or a list"),
    ({"type": []}, "type at # must be one of "),
    ({"required": "a"}, "required at # must be a list of names, not 'a'"),
    ({"properties": {"a": {"required": True}}}, "required at #/properties/a must be a list of names, not True"),
    ({"properties": []}, "properties at # must be an object of schemas, not []"),
    (
        {"properties": {"a": "string"}},
        "#/properties/a must be a schema, which is an object, true or false, not 'string'",
    ),
    ({"items": 5}, "#/items must be a schema"),
    ({"anyOf": {}}, "anyOf at # must be a list of schemas, not {}"),
    ({"allOf": []}, "allOf at # must be a list of schemas, not []"),
    ({"minLength": -1}, "minLength at # must be a whole number of at least 0, not -1"),
    ({"maxItems": 1.5}, "maxItems at # must be a whole number of at least 0, not 1.5"),
    ({"multipleOf": 0}, "multipleOf at # must be more than 0, not 0"),
    ({"exclusiveMinimum": True}, "exclusiveMinimum at # must be a number, not True"),
    ({"uniqueItems": "yes"}, "uniqueItems at # must be true or false, not 'yes'"),
    ({"format": 1}, "format at # must be the name of a format, not 1"),
    ({"pattern": "("}, "pattern '(' at # cannot be checked: leave it out, or write it without look-around"),
    ({"pattern": r"(a)\1"}, "pattern '(a)\\\\1' at # cannot be checked: leave it out"),
    ({"pattern": r"(\p{L}{1,200}){1,50}b"}, "cannot be checked"),  # too large
    ({"pattern": "a(?=b)"}, "look-around"),
    ({"patternProperties": {"(": {}}}, "patternProperties '(' at # cannot be checked"),
    ({"$defs": {"unused": {"enum": 1}}}, "enum at #/$defs/unused must be a list of values, not 1"),
    (
        {"properties": {"a": {"$id": "https://x", "items": {"$ref": "#"}}}},
        "$id at #/properties/a begins a schema of its own",
    ),
    ({"default": {1, 2}}, "it has no JSON form"),
    ({"maximum": float("nan")}, "it has no JSON form"),
    (
        {"$ref": "#/$defs/d0", "$defs": {**DOUBLED, "d24": {"type": "integer"}}},
        "its references apply its parts too often",
    ),
    (
        {
            "$ref": "#/$defs/d0",
            "$defs": {name: {"properties": {"a": part}} for name, part in DOUBLED.items()} | {"d24": {}},
        },
        "its references apply its parts too often",
    ),
    ({"enum": [list(range(2_000)), 1]}, "its references apply its parts too often"),
]


@pytest.mark.parametrize(("schema", "said"), REFUSED)
def test_unsupported_schema_is_refused_at_registration(schema: dict[str, Any], said: str) -> None:
    class Tool(ToolBase):
        name = "search"
        is_external_tool = True
        input_schema = schema

    with pytest.raises(SchemaError) as refused:
        Validator(schema)
    assert said in str(refused.value)
    if "type" not in schema:
        for register in (
            lambda: Toolkit([Tool()]),
            lambda: FunctionTool(lambda: None, name="search", json_schema=schema),
            lambda: FunctionTool(lambda key: None, name="search", json_schema=schema, preset_kwargs={"key": 1}),
        ):
            with pytest.raises(ToolConfigError, match=r"^the schema of search cannot be used: "):
                register()


async def whatever(value) -> str:  # type: ignore[no-untyped-def]
    return "ran"


async def answer(schema: dict[str, Any], text: str) -> str:
    tool = FunctionTool(whatever, json_schema={"type": "object", "properties": {"value": schema}})
    *_, response = [item async for item in Toolkit([tool]).call_tool_function(ToolCallBlock("1", "whatever", text))]
    assert isinstance(response, ToolResponse)
    return response.content[0].text  # type: ignore[union-attr]


BIG = "1" + "0" * 400


@pytest.mark.parametrize("kind", ["integer", "number"])
async def test_an_integer_of_any_size_is_checked(kind: str) -> None:
    assert await answer({"type": kind}, f'{{"value": {BIG}}}') == "ran"
    assert await answer({"type": kind, "multipleOf": 0.5}, f'{{"value": {BIG}}}') == "ran"
    for text in (BIG, "1" + "0" * 4_290):
        refused = await answer({"type": kind, "maximum": 9}, f'{{"value": {text}}}')
        assert "argument 'value' should be at most 9, not a number of more than 100 digits" in refused


async def test_schema_with_two_references_to_itself_takes_linear_time() -> None:
    twice = {"anyOf": [{"properties": {"a": {"$ref": "#/properties/value"}}}] * 2, "type": "object"}
    deep = '{"a":' * 40 + "5" + "}" * 40
    assert "argument 'value' fits none of the allowed forms" in await answer(twice, f'{{"value": {deep}}}')


async def test_refusal_of_nested_choices_stays_short() -> None:
    branch = {"type": "object", "properties": {"a": {"$ref": "#/properties/value"}}}
    tree = {"anyOf": [{"type": "string"}, branch, branch]}
    deep = '{"a":' * 12 + "5" + "}" * 12
    refused = await answer(tree, f'{{"value": {deep}}}')
    assert "argument 'value.a' should be of type string, not {'a': {'a': {...}}}" in refused
    assert len(refused) < 5_000


def test_refusal_lists_some_of_many_values() -> None:
    refused = problem("x", {"enum": list(range(1_000))})
    assert refused.endswith(", 98, 99 and 900 more, not 'x'")


def test_same_part_is_named_by_each_way_that_leads_to_it() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/n"}, "b": {"items": {"$ref": "#/$defs/n"}}}}
    compiled = Validator({**schema, "$defs": {"n": {"properties": {"c": {"type": "string"}}}}})
    shared = {"c": 1}
    value = {"b": [shared], "a": shared}
    assert compiled.problem(value) == "argument 'b.0.c' should be of type string, not 1"
    assert compiled.problem({"a": shared, **value}) == "argument 'a.c' should be of type string, not 1"


def test_references_in_a_long_list_are_followed_for_each_item() -> None:
    schema = Validator({"items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}})
    assert schema.problem(list(range(150_000))) is None
    assert schema.problem([*range(150_000), "x"]) == "argument '150000' should be of type integer, not 'x'"


def test_a_value_that_would_end_the_process_is_refused() -> None:
    schema = Validator({"items": {"$ref": "#"}})
    value: list[Any] = []
    for _ in range(199):
        value = [value]
    assert schema.problem(value) is None
    for _ in range(100_000):
        value = [value]
    assert schema.problem(value) == "its input is nested too deep to be checked: at most 200 levels"


def test_a_value_that_would_hold_the_interpreter_is_refused() -> None:
    schema = Validator({"items": {"allOf": [{"minimum": n} for n in range(1_000)]}})
    assert schema.problem([1_000] * 1_000) is None
    assert schema.problem([1_000] * 100_000) == "its input is too large to be checked: send less"


@pytest.mark.parametrize("kind", ["allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "unevaluated", "items"])
@pytest.mark.parametrize("leaf", [5, "x"])
def test_a_schema_that_holds_itself_takes_linear_time(kind: str, leaf: object) -> None:
    part: dict[str, Any] = {"properties": {"a": {"$ref": "#"}}}
    never = {"allOf": [part, {"not": {}}]}
    rules: dict[str, dict[str, Any]] = {
        "allOf": {"allOf": [part, part]},
        "anyOf": {"anyOf": [never, part]},
        "oneOf": {"oneOf": [never, part]},
        "not": {"not": {"not": part}, **part},
        "if": {"if": part, "then": part, "else": False},
        "dependentSchemas": {"dependentSchemas": {"a": part}, **part},
        "unevaluated": {"anyOf": [part, part], "unevaluatedProperties": False},
        "items": {"items": {"$ref": "#"}, "contains": {"$ref": "#"}},
    }
    schema = Validator({"type": ["object", "array", "integer"], "patternProperties": {"z": False}} | rules[kind])
    value: Any = leaf
    for _ in range(100):
        value = [value] if kind == "items" else {"a": value}
    problem = schema.problem(value)
    assert (problem is None) == (leaf == 5)
    if kind != "items":  # a part that fits is not the reason
        assert "argument 'z' is not allowed" in str(schema.problem({"a": {"a": 5}, "z": 1}))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1: "a"}, "its input has the key 1, which is not a string"),
        ({"a": "\ud800"}, "its input has half of a surrogate pair"),
        ({"a": 2**70}, "argument 'a' should be of type string, not 1180591620717411303424"),
    ],
)
def test_a_value_that_is_not_json_is_refused_in_words(value: Any, said: str) -> None:
    assert problem(value, {"properties": {"a": {"type": "string", "pattern": "a"}}}) == said


def test_large_numbers_and_long_lists_are_compared_fast() -> None:
    numbers = [number * sys.hash_info.modulus for number in range(1, 20_000)]
    schema = Validator({"uniqueItems": True})
    assert schema.problem([*numbers, 2**70, 2**70 + 1, -(2**70)]) is None
    assert schema.problem([*numbers, numbers[0]]) is not None
    assert schema.problem([2**70, float(2**70)]) is not None
    names = [f"v{number}" for number in range(4_000)]
    assert Validator({"items": {"enum": names}}).problem(names[-1:] * 100_000) is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
@pytest.mark.parametrize("formats", [True, False])
def test_a_copy_checks_the_same(copied: Any, formats: bool) -> None:
    validator = copied(Validator({"pattern": r"^(?!b)[\w-]", "format": "date"}, formats=formats))
    assert [validator.problem(text) is None for text in ("-", "b")] == [not formats, False]


@pytest.mark.parametrize(
    ("schema", "fits", "fits_not"),
    [
        ({"pattern": r"^\d{3}-\w+$"}, ["123-a_b"], ["٣٣٣-a", "123-é", "123-a\n"]),
        ({"pattern": r"[\w-.]"}, ["-", ".", "a"], ["!", ""]),
        ({"pattern": "^[[]&&$"}, ["[&&"], ["[[&&"]),
        ({"pattern": r"^(?!\.)(?!.*\.\.)[a-z.]+@[a-z]+$"}, ["a.b@c"], [".a@c", "a..b@c"]),
        ({"pattern": r"^(?=.*[A-Z])(?=.*\d).{3,}$"}, ["aB3"], ["ab3", "aBc", "B3"]),
        ({"pattern": "(a+)+$"}, ["aaa"], ["a" * 50_000 + "b"]),
        ({"format": "date"}, ["2026-11-22"], ["tomorrow", "2026-02-30", "20261122"]),
        ({"format": "date-time"}, ["2026-11-22T10:00:00Z", "2026-11-22 10:00:00"], ["2026-11-22", "now"]),
        ({"format": "time"}, ["10:00:00", "23:59:60Z"], ["25:00:00", "10"]),
        ({"format": "uuid"}, ["00000000-0000-0000-0000-00000000000f"], ["0", "g" * 36]),
        ({"format": "email"}, ["a@b.c", "ö@ü"], ["a", "a@b@c", "a b@c"]),
        ({"format": "uri"}, ["https://a/b?c#d", "urn:x"], ["/a", "a b:c"]),
        ({"format": "ipv4"}, ["127.0.0.1"], ["127.0.0.256"]),
        ({"format": "ipv6"}, ["::1"], ["::g", "fe80::1%eth0"]),
        ({"format": "int32"}, ["anything"], []),
    ],
)
def test_patterns_and_formats_of_text_are_checked(schema: dict[str, Any], fits: list[str], fits_not: list[str]) -> None:
    compiled = Validator(schema)
    assert [text for text in fits if compiled.problem(text)] == []
    assert [text for text in fits_not if not compiled.problem(text)] == []


def test_patterns_are_limited_together() -> None:
    """Each compiled one may take a megabyte, and a body has room for thousands."""
    large = [rf"\p{{L}}{{20}}{number}" for number in range(100)]
    assert Validator({"pattern": large[0]}).problem(f"{'a' * 20}0") is None
    for many in (
        {"allOf": [{"pattern": pattern} for pattern in large]},
        {"patternProperties": {pattern: {} for pattern in large}},
    ):
        with pytest.raises(SchemaError, match=r"cannot be checked: leave it out, or write it .* or shorter"):
            Validator(many)
    small = [{"pattern": f"^[a-z]+({number})?$"} for number in range(1_000)]
    assert Validator({"allOf": small}).problem("a") is None


def test_a_lookahead_whose_meaning_would_change_is_refused() -> None:
    for pattern in ("^(?=a)b|c", "^(?=a)?b", "x(?!a)", "^(?<=a)b"):
        with pytest.raises(SchemaError, match="cannot be checked"):
            Validator({"pattern": pattern})


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"pattern": "^a$"}, "b", "its input should match the pattern ^a$, not 'b'"),
        ({"format": "date"}, "x", "its input should have the format date, not 'x'"),
        ({"multipleOf": 0.1}, 0.35, "its input should be a multiple of 0.1, not 0.35"),
        ({"uniqueItems": True}, [1, 1.0], "its input should have each item only once, not [1, 1.0]"),
        ({"not": {"type": "null"}}, None, "its input has a form that is not allowed: None"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "argument 'b' is missing, but 'a' requires it"),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "argument 'ab' has a name that does not fit: argument 'ab' "),
        ({"contains": {"type": "null"}}, [1], "its input should have at least 1 items of the required kind"),
        ({"maxProperties": 0}, {"a": 1}, "its input should have at most 0 properties, not {'a': 1}"),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, "argument 'b' is missing"),
        ({"enum": [[True], {"a": 1}]}, [1], 'its input should be one of [true], {"a": 1}, not [1]'),
    ],
)
def test_each_keyword_says_what_it_wants(schema: dict[str, Any], value: Any, said: str) -> None:
    told = problem(value, schema)
    assert told.startswith(said)


def test_keywords_of_earlier_drafts_are_honoured() -> None:
    assert problem(["a", 2], {"items": [{"type": "string"}, {"type": "string"}]}) is not None
    assert problem(["a", 2], {"items": [{"type": "string"}], "additionalItems": False}) == "argument '1' is not allowed"
    assert problem({"a": 1}, {"dependencies": {"a": ["b"]}}) is not None
    assert problem({"a": 1}, {"dependencies": {"a": {"required": ["c"]}}}) == "argument 'c' is missing"
    old = {"properties": {"a": {"$ref": "#/definitions/n"}}, "definitions": {"n": {"type": "integer"}}}
    assert problem({"a": "x"}, old) == "argument 'a' should be of type integer, not 'x'"


def test_unknown_keywords_are_ignored() -> None:
    assert problem({"a": 1}, {"properties": {"a": {"x-order": 1, "nullable": 5, "readOnly": True}}}) is None
