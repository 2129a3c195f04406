"""The keywords that apply schemas: to the properties of an object, to the items of an array, or to the value itself.

They are the applicator vocabulary of JSON Schema, with what earlier drafts wrote differently. There is one function for
each keyword, which builds the check of that keyword.
"""

import math

from agentrt.text import short_repr
from agentrt.tool.json_schema.check import (
    Check,
    Problem,
    ReferenceCache,
    SubschemaCompiler,
    combine_checks,
    escape_pointer,
    malformed,
    read_count,
    read_pattern,
    read_schemas,
)
from agentrt.tool.json_schema.validation import build_dependent_required
from agentrt.types import JSONSchema

__all__ = [
    "build_additional_properties",
    "build_all_of",
    "build_any_of",
    "build_contains",
    "build_dependencies",
    "build_dependent_schemas",
    "build_if",
    "build_items",
    "build_not",
    "build_one_of",
    "build_pattern_properties",
    "build_prefix_items",
    "build_properties",
    "build_property_names",
]

_MAX_CAUSES = 3  # in one message: a model need not read why each of twenty alternatives does not fit


def build_properties(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check:
    compiled = {
        name: compiler.subschema(part, f"{pointer}/properties/{escape_pointer(name)}")
        for name, part in read_schemas("properties", setting, pointer).items()
    }
    # A property that takes anything needs no check; it is still known to `additionalProperties`.
    checks = {name: check for name, check in compiled.items() if check is not None}

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if isinstance(value, dict):
            for name, part in value.items():
                check_part = checks.get(name)
                problem = check_part(part, cache) if check_part is not None else None
                if problem is not None:
                    return problem.add_part(name)
        return None

    return check


def build_pattern_properties(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check:
    checks = [
        (
            read_pattern("patternProperties", pattern, pointer),
            compiler.subschema(part, f"{pointer}/patternProperties/{escape_pointer(pattern)}"),
        )
        for pattern, part in read_schemas("patternProperties", setting, pointer).items()
    ]

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if isinstance(value, dict):
            for name, part in value.items():
                for fits, check_part in checks:
                    problem = check_part(part, cache) if check_part is not None and fits(name) else None
                    if problem is not None:
                        return problem.add_part(name)
        return None

    return check


def build_additional_properties(
    compiler: SubschemaCompiler, subschema: object, schema: JSONSchema, pointer: str
) -> Check | None:
    known = read_schemas("properties", schema.get("properties", {}), pointer)
    patterns = [
        read_pattern("patternProperties", pattern, pointer)
        for pattern in read_schemas("patternProperties", schema.get("patternProperties", {}), pointer)
    ]
    check_part = compiler.subschema(subschema, f"{pointer}/additionalProperties")
    if check_part is None:
        return None

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if isinstance(value, dict):
            for name, part in value.items():
                if name in known or any(fits(name) for fits in patterns):
                    continue
                # The usual `false` gets plainer words than "is not allowed".
                problem = Problem("is unknown") if subschema is False else check_part(part, cache)
                if problem is not None:
                    return problem.add_part(name)
        return None

    return check


def build_property_names(
    compiler: SubschemaCompiler, subschema: object, schema: JSONSchema, pointer: str
) -> Check | None:
    check_name = compiler.subschema(subschema, f"{pointer}/propertyNames")
    if check_name is None:
        return None

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if isinstance(value, dict):
            for name in value:
                problem = check_name(name, cache)
                if problem is not None:
                    return Problem("has a name that does not fit", causes=[problem]).add_part(name)
        return None

    return check


def build_dependent_schemas(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check:
    checks = {
        name: compiler.subschema(part, f"{pointer}/dependentSchemas/{escape_pointer(name)}", same_value_as=pointer)
        for name, part in read_schemas("dependentSchemas", setting, pointer).items()
    }

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if isinstance(value, dict):
            for name, check_value in checks.items():
                problem = check_value(value, cache) if check_value is not None and name in value else None
                if problem is not None:
                    return problem
        return None

    return check


def build_dependencies(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check:
    # Draft 7 had one keyword for what are two today; each builder names its own keyword in errors.
    parts = read_schemas("dependencies", setting, pointer)
    names = {name: part for name, part in parts.items() if isinstance(part, list)}
    schemas = {name: part for name, part in parts.items() if name not in names}
    check_required = build_dependent_required(compiler, names, schema, pointer)
    check_schemas = build_dependent_schemas(compiler, schemas, schema, pointer)

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        return check_required(value, cache) or check_schemas(value, cache)

    return check


def build_items(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check | None:
    if isinstance(setting, list):  # before draft 2020-12 the name of `prefixItems`
        checks: list[Check | None] = []
        if setting:
            checks.append(_prefix_check(_compile_list("items", compiler, setting, pointer)))
        if "additionalItems" in schema:
            further = schema["additionalItems"]
            checks.append(_items_check(compiler, further, f"{pointer}/additionalItems", len(setting)))
        return combine_checks([check for check in checks if check is not None])
    prefix = schema.get("prefixItems")
    # It applies to the items that `prefixItems` leaves.
    return _items_check(compiler, setting, f"{pointer}/items", len(prefix) if isinstance(prefix, list) else 0)


def build_prefix_items(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check:
    return _prefix_check(_compile_list("prefixItems", compiler, setting, pointer))


def _prefix_check(checks: list[Check | None]) -> Check:
    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if isinstance(value, list):
            for number, (item, check_item) in enumerate(zip(value, checks, strict=False)):
                problem = check_item(item, cache) if check_item is not None else None
                if problem is not None:
                    return problem.add_part(number)
        return None

    return check


def _items_check(compiler: SubschemaCompiler, subschema: object, pointer: str, start: int) -> Check | None:
    check_item = compiler.subschema(subschema, pointer)
    if check_item is None:
        return None

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if isinstance(value, list):
            for number in range(start, len(value)):
                problem = check_item(value[number], cache)
                if problem is not None:
                    return problem.add_part(number)
        return None

    return check


def build_contains(compiler: SubschemaCompiler, subschema: object, schema: JSONSchema, pointer: str) -> Check:
    check_item = compiler.subschema(subschema, f"{pointer}/contains")
    fewest = read_count("minContains", schema.get("minContains", 1), pointer)
    limit = read_count("maxContains", schema["maxContains"], pointer) if "maxContains" in schema else math.inf

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if not isinstance(value, list):
            return None
        count = len(value) if check_item is None else sum(check_item(item, cache) is None for item in value)
        if count < fewest:
            return Problem(f"should have at least {fewest} items of the required kind, but has {count}")
        if count > limit:
            return Problem(f"should have at most {limit} items of the limited kind, but has {count}")
        return None

    return check


def build_any_of(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check | None:
    compiled = _compile_list("anyOf", compiler, setting, pointer, same_value_as=pointer)
    alternatives = [check for check in compiled if check is not None]
    if len(alternatives) < len(compiled):  # everything fits one of them
        return None

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        problems: list[Problem] = []
        for alternative in alternatives:
            problem = alternative(value, cache)
            if problem is None:
                return None
            problems.append(problem)
        return Problem("fits none of the allowed forms", causes=problems[:_MAX_CAUSES])

    return check


def build_one_of(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check:
    alternatives = _compile_list("oneOf", compiler, setting, pointer, same_value_as=pointer)

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        # All of them run, since a second one that fits is a problem too.
        problems = [alternative(value, cache) if alternative is not None else None for alternative in alternatives]
        fitting = problems.count(None)
        if fitting == 1:
            return None
        if fitting:
            return Problem(f"should fit exactly one of the allowed forms, but fits {fitting}: {short_repr(value)}")
        causes = [problem for problem in problems[:_MAX_CAUSES] if problem]
        return Problem("fits none of the allowed forms", causes=causes)

    return check


def build_all_of(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check | None:
    compiled = _compile_list("allOf", compiler, setting, pointer, same_value_as=pointer)
    return combine_checks([check for check in compiled if check is not None])


def build_not(compiler: SubschemaCompiler, subschema: object, schema: JSONSchema, pointer: str) -> Check:
    forbidden = compiler.subschema(subschema, f"{pointer}/not", same_value_as=pointer)

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        fits = forbidden is None or forbidden(value, cache) is None
        return Problem(f"has a form that is not allowed: {short_repr(value)}") if fits else None

    return check


def build_if(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check:
    condition, then, otherwise = (
        compiler.subschema(schema.get(keyword, True), f"{pointer}/{keyword}", same_value_as=pointer)
        for keyword in ("if", "then", "else")  # one that is missing is `true`, which everything fits
    )

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        branch = then if condition is None or condition(value, cache) is None else otherwise
        return None if branch is None else branch(value, cache)

    return check


def _compile_list(
    keyword: str, compiler: SubschemaCompiler, schemas: object, pointer: str, *, same_value_as: str | None = None
) -> list[Check | None]:
    if not isinstance(schemas, list) or not schemas:
        raise malformed(keyword, pointer, "a list of schemas", schemas)
    return [
        compiler.subschema(schema, f"{pointer}/{keyword}/{number}", same_value_as=same_value_as)
        for number, schema in enumerate(schemas)
    ]
