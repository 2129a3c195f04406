"""The keywords of JSON schemas, each with the function that builds its check."""

from agentrt.tool.json_schema import applicators, validation
from agentrt.tool.json_schema.check import Build, Check, SubschemaCompiler, escape_pointer, malformed, read_schemas
from agentrt.types import JSONSchema

__all__ = ["KEYWORDS", "UNSUPPORTED"]

UNSUPPORTED = ("$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems")
"""Keywords of the drafts that are not supported."""


def build_ref(compiler: SubschemaCompiler, reference: object, schema: JSONSchema, pointer: str) -> Check:
    if not isinstance(reference, str):
        raise malformed("$ref", pointer, "a string", reference)
    return compiler.reference(reference, pointer)


def _definitions(keyword: str) -> Build:
    def build(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> None:
        # Nothing is checked; but a malformed definition is refused, even if no `$ref` leads to it.
        for name, part in read_schemas(keyword, setting, pointer).items():
            compiler.subschema(part, f"{pointer}/{keyword}/{escape_pointer(name)}")

    return build


# The model sees the first problem only, so the type and missing parts are checked before what is inside of the value.
KEYWORDS: dict[str, Build] = {
    "type": validation.build_type,
    "enum": validation.build_enum,
    "const": validation.build_const,
    "required": validation.build_required,
    "properties": applicators.build_properties,
    "patternProperties": applicators.build_pattern_properties,
    "additionalProperties": applicators.build_additional_properties,
    "propertyNames": applicators.build_property_names,
    "dependentRequired": validation.build_dependent_required,
    "dependentSchemas": applicators.build_dependent_schemas,
    "dependencies": applicators.build_dependencies,
    "prefixItems": applicators.build_prefix_items,
    "items": applicators.build_items,
    "contains": applicators.build_contains,
    "uniqueItems": validation.build_unique_items,
    "pattern": validation.build_pattern,
    "format": validation.build_format,
    "multipleOf": validation.build_multiple_of,
    "$ref": build_ref,
    "allOf": applicators.build_all_of,
    "anyOf": applicators.build_any_of,
    "oneOf": applicators.build_one_of,
    "not": applicators.build_not,
    "if": applicators.build_if,
    "$defs": _definitions("$defs"),
    "definitions": _definitions("definitions"),
    **validation.LIMITS,
}
"""The builder of each keyword that is honoured, in the order in which the checks run."""
