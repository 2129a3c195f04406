"""A schema written by hand is checked as it stands."""

from typing import Any

import pytest

from agentrt.tool.schema import problem, summary

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
def test_what_fits_has_no_problem(value: Any) -> None:
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
            "argument 'either' fits none of what is allowed: argument 'either' should be of type string, not 1; "
            "or argument 'either' should be of type null, not 1",
        ),
        ({"one": 6}, "argument 'one' fits 2 of the forms that exclude each other: 6"),
        ({"all": 4}, "argument 'all' should be at least 5, not 4"),
        ({"tree": {"leaf": 1, "child": {}}}, "argument 'tree.child.leaf' is missing"),
        ({"open": {"x": "1"}}, "argument 'open.x' should be of type integer, not '1'"),
        ({"open": {}}, "argument 'open.x' is missing"),
        ({"never": 1}, "argument 'never' is not allowed"),
        ({"other": 1}, "argument 'other' is unknown"),
        ({"count": "x"}, "argument 'count' should be of type integer, not 'x'"),
    ],
)
def test_what_does_not_fit_is_told_by_its_first_problem(value: Any, said: str) -> None:
    assert problem(value, OBJECT) == said


def test_a_keyword_says_nothing_about_values_of_another_type() -> None:
    schema = {"required": ["a"], "properties": {"a": False}, "additionalProperties": False, "items": False}
    assert problem(1, schema | {"prefixItems": [False], "minimum": 5, "minLength": 5, "minItems": 5}) == (
        "its input should be at least 5, not 1"
    )
    assert problem(None, schema | {"prefixItems": [False], "minimum": 5, "minLength": 5, "minItems": 5}) is None


def test_references_that_go_in_circles_end() -> None:
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert problem({}, circle) == "its input is nested too deep to be checked"


def test_keywords_that_are_not_known_are_passed_over() -> None:
    assert problem({"a": "x"}, {"properties": {"a": {"pattern": "^y$", "format": "date"}}}) is None


def test_summary_tells_names_types_and_what_may_be_left_out() -> None:
    assert summary({"type": "object"}) == "It takes no arguments."
    schema = {
        "properties": {
            "a": {"type": "string"},
            "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "c": {"enum": ["x", "y"]},
            "d": {"$ref": "#/$defs/Address"},
            "e": {"type": ["array", "null"]},
            "f": {"const": 1},
            "g": True,
        },
        "required": ["a"],
    }
    assert summary(schema) == (
        'It takes: a (string), b (integer or null, optional), c (one of "x", "y", optional), d (Address, optional), '
        "e (array or null, optional), f (1, optional), g (anything, optional)."
    )


def test_summary_of_many_parameters_is_cut() -> None:
    assert summary({"properties": {f"p{n}": {} for n in range(25)}}).endswith("p19 (anything, optional), and 5 more.")
