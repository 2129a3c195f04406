"""The parameters of a tool in words, for a model whose call was invalid."""

import json

from agentrt.types import JSONSchema

_MAX_DESCRIBED = 20
_MAX_DEFINITIONS = 5


def describe_parameters(schema: JSONSchema) -> str:
    """Return the parameters in words: "It takes: city (string), days (integer, optional)."

    The definitions follow, as in "It takes: people (array of Person). Person: name (string).".
    """
    if not schema.get("properties"):
        return "It takes no arguments."
    sentences = [f"It takes: {_describe_properties(schema)}."]
    definitions = schema.get("$defs", {})
    described: list[str] = []
    unread = [schema]
    while unread and len(described) < _MAX_DEFINITIONS:
        parts = list(unread.pop(0)["properties"].values())[:_MAX_DESCRIBED]
        names: list[str] = []
        for part in parts:  # to which those inside of it are added
            if isinstance(part, dict):
                parts += [part.get("items"), *(part.get("anyOf") or part.get("oneOf") or ())]
                if "$ref" in part:
                    names.append(_name_of_reference(part["$ref"]))
        for name in names:
            definition = definitions.get(name)
            if name not in described and isinstance(definition, dict) and definition.get("properties"):
                described.append(name)
                unread.append(definition)
                sentences.append(f"{name}: {_describe_properties(definition)}.")
    return " ".join(sentences)


def _describe_properties(schema: JSONSchema) -> str:
    properties, required = schema["properties"], schema.get("required", ())
    parameters = [
        f"{name} ({_describe_type(part)}{'' if name in required else ', optional'})"
        for name, part in list(properties.items())[:_MAX_DESCRIBED]
    ]
    if len(properties) > _MAX_DESCRIBED:
        parameters.append(f"and {len(properties) - _MAX_DESCRIBED} more")
    return ", ".join(parameters)


def _name_of_reference(reference: object) -> str:
    return str(reference).rsplit("/", 1)[-1]


def _describe_type(schema: object) -> str:
    if not isinstance(schema, dict):
        return "anything"
    if "enum" in schema:
        return f"one of {', '.join(map(_as_written, schema['enum'][:_MAX_DESCRIBED]))}"
    if "const" in schema:
        return _as_written(schema["const"])
    if "$ref" in schema:
        return _name_of_reference(schema["$ref"])
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        return " or ".join(_describe_type(alternative) for alternative in alternatives)
    types = schema.get("type", "anything")
    if types == "array" and isinstance(schema.get("items"), dict):
        return f"array of {_describe_type(schema['items'])}"
    return " or ".join(types) if isinstance(types, list) else str(types)


def _as_written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
