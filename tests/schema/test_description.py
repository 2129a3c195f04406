"""A model whose call did not fit reads which parameters there are."""

from agentrt._runtime.schema.description import describe_parameters


def test_description_lists_names_types_and_optional_parameters() -> None:
    assert describe_parameters({"type": "object"}) == "It takes no arguments."
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
    assert describe_parameters(schema) == (
        'It takes: a (string), b (integer or null, optional), c (one of "x", "y", optional), d (Address, optional), '
        "e (array or null, optional), f (1, optional), g (anything, optional)."
    )


def test_description_says_what_items_are_made_of() -> None:
    person = {"type": "object", "properties": {"name": {"type": "string"}, "friends": {"$ref": "#/$defs/Friends"}}}
    friends = {"type": "object", "properties": {"best": {"$ref": "#/$defs/Person"}}, "required": ["best"]}
    schema = {
        "properties": {"people": {"type": "array", "items": {"$ref": "#/$defs/Person"}}, "tags": {"items": {}}},
        "$defs": {"Person": person, "Friends": friends},
        "required": ["people"],
    }
    assert describe_parameters(schema) == (
        "It takes: people (array of Person), tags (anything, optional). Person: name (string, optional), friends "
        "(Friends, optional). Friends: best (Person)."
    )


def test_description_of_many_parameters_is_cut() -> None:
    many = {f"p{n}": {} for n in range(25)}
    assert describe_parameters({"properties": many}).endswith("p19 (anything, optional), and 5 more.")
