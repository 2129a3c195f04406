"""Tools as functions of a program: the typed stubs that the model reads, and how to read their results."""

import inspect
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from keyword import iskeyword
from textwrap import indent
from typing import Any, get_origin, get_type_hints

import pydantic

from agentrt._runtime.block import DataBlock, TextBlock
from agentrt._runtime.boundary import json_size
from agentrt._runtime.schema.validator import Validator
from agentrt.errors import ToolError
from agentrt.message import Msg
from agentrt.tool.base import ToolBase
from agentrt.tool.code.sandbox import CodeCall
from agentrt.tool.function import FunctionTool
from agentrt.tool.signature.callables import underlying
from agentrt.types import JSONObject, JSONSchema, ToolChunk, ToolResponse

_SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_MAX_LITERALS = 20
_MAX_ARGUMENT_BYTES = 1_000_000  # bytes of JSON, which are saved with the conversation
# A tool that returns one of these gives text, and what is not text does not reach the program.
_TEXT = (str, ToolResponse, ToolChunk, TextBlock, DataBlock, Msg)


@dataclass(frozen=True, slots=True)
class CodeFunction:
    """A tool as a function: the names of its parameters, in order, and the schema of its results if they are JSON."""

    name: str
    parameters: tuple[str, ...]
    output: Validator | None

    def arguments_of(self, call: CodeCall) -> JSONObject:
        """Return the arguments by name; raises `ToolError`, for the program, for those that have none."""
        if len(call.args) > len(self.parameters):
            parameters = ", ".join(self.parameters)
            raise ToolError(f"too many positional arguments for {self.name}({parameters}): {len(call.args)}")
        by_position = dict(zip(self.parameters, call.args, strict=False))
        twice = by_position.keys() & call.kwargs.keys()
        if twice:
            raise ToolError(f"{self.name}() got its argument {min(twice)!r} twice")
        arguments = by_position | call.kwargs
        try:
            size = json_size(arguments)
        except ValueError as error:
            raise ToolError(f"{self.name}() cannot take its arguments: {error}") from None
        if size > _MAX_ARGUMENT_BYTES:
            raise ToolError(
                f"the arguments of {self.name}() have {size:,} bytes, and at most {_MAX_ARGUMENT_BYTES:,} are allowed"
            )
        return arguments

    def value_of(self, text: str) -> Any:
        """Return the value for the program: JSON read, or the text itself where the tool gives text."""
        if self.output is None:
            return text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):  # a layer may have put other words in its place, or it was cut
            return text
        # Of `str | int`, only the `int` is written as JSON.
        is_text = self.output.problem(value) is not None and self.output.problem(text) is None
        return text if is_text else value


def describe_functions(tools: Iterable[ToolBase]) -> tuple[dict[str, CodeFunction], str]:
    """Return the tools as functions, by name, and the Python code that declares them and the types that they use."""
    writer = StubWriter()
    functions: dict[str, CodeFunction] = {}
    stubs: list[str] = []
    for tool in tools:
        schema = tool.function_schema["function"]["parameters"]
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        # Python has parameters without a default first.
        first = tuple(name for name in properties if name in required)
        parameters = first + tuple(name for name in properties if name not in required)
        output = _output_schema(tool)
        functions[tool.name] = CodeFunction(tool.name, parameters, None if output is None else Validator(output))
        stubs.append(writer.declare(tool, schema, parameters, output))
    return functions, "\n\n".join([*writer.classes.values(), *stubs])


class StubWriter:
    """Writes JSON schemas as Python types; an object with named values becomes a class of its own."""

    def __init__(self) -> None:
        self.classes: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._references: list[str] = []  # that are being followed

    def declare(self, tool: ToolBase, schema: JSONSchema, names: Iterable[str], output: JSONSchema | None) -> str:
        """Return the function that stands for a tool: its types, and the words that the model would read."""
        required, properties = schema.get("required") or (), schema.get("properties") or {}
        arguments: list[str] = []
        others: list[str] = []
        for name in names:
            part = properties[name]
            if not _is_python_name(name):  # a server's, say; a program passes it with **
                others.append(json.dumps(name))
                continue
            default = ""
            if name not in required:
                has_default = isinstance(part, dict) and "default" in part
                default = f" = {part['default']!r:.100}" if has_default else " = ..."
            text = self.type_of(part, schema.get("$defs", {}), f"{tool.name}_{name}")
            arguments.append(f"{name}: {text}{default}")
        if others:
            arguments.append(f"**{{{', '.join(others)}}}")
        returns = "str" if output is None else self.type_of(output, output.get("$defs", {}), f"{tool.name}_result")
        words = [tool.description.strip()] if tool.description.strip() else []
        for name, part in properties.items():
            if isinstance(part, dict) and part.get("description"):
                words.append(f"{name}: {part['description']}")
        docstring = "\n".join(words).replace("\\", "\\\\").replace('"""', "'''")
        body = indent(f'"""{docstring}"""' if docstring else "...", "    ")
        return f"async def {tool.name}({', '.join(arguments)}) -> {returns}:\n{body}"

    def type_of(self, schema: object, definitions: JSONSchema, name: str) -> str:
        """Return the type; `name` is that of the class where the schema gives none."""
        if not isinstance(schema, dict):
            return "Any"
        if "$ref" in schema:
            key = str(schema["$ref"]).rpartition("/")[2]
            return self._follow(key, definitions)
        if "const" in schema or "enum" in schema:
            values = schema["enum"][:_MAX_LITERALS] if "enum" in schema else [schema["const"]]
            return f"Literal[{', '.join(map(repr, values))}]"
        types = schema.get("type")
        parts = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(types, list):
            parts = [{**schema, "type": one} for one in types]
        if parts:
            return " | ".join(dict.fromkeys(self.type_of(part, definitions, name) for part in parts))
        if types == "array":
            return f"list[{self.type_of(schema.get('items'), definitions, f'{name}_item')}]"
        if types == "object" or "properties" in schema:
            return self._object(schema, definitions, name)
        return _SCALARS.get(str(types), "Any")

    def _follow(self, reference: str, definitions: JSONSchema) -> str:
        target = definitions.get(reference)
        # One that leads back to itself must pass a class on its way, which then has its name already.
        if target is None or (reference in self._references and _key_of(target, definitions) not in self._names):
            return "Any"
        self._references.append(reference)
        try:
            return self.type_of(target, definitions, reference)
        finally:
            self._references.pop()

    def _object(self, schema: JSONSchema, definitions: JSONSchema, name: str) -> str:
        properties = schema.get("properties")
        if not properties:
            value = schema.get("additionalProperties")
            return f"dict[str, {self.type_of(value, definitions, f'{name}_value')}]"
        # One class for one schema, whichever tools use it, and never one name for two.
        key = _key_of(schema, definitions)
        known = self._names.get(key)
        if known is not None:
            return known
        stem = "".join(part.capitalize() if part.islower() else part for part in re.split(r"[\W_]+", name))
        class_name = next(
            name
            for number in range(1, len(self.classes) + 2)
            if (name := stem if number == 1 else f"{stem}{number}") not in self.classes
        )
        self._names[key] = class_name
        self.classes[class_name] = ""  # taken, since a schema may use itself
        required = schema.get("required") or ()
        lines = [f"class {class_name}(TypedDict):"]
        for field, part in properties.items():
            text = self.type_of(part, definitions, f"{name}_{field}")
            label = field if _is_python_name(field) else json.dumps(field)
            lines.append(f"    {label}: {text if field in required else f'NotRequired[{text}]'}")
        self.classes[class_name] = "\n".join(lines)
        return class_name


def _is_python_name(name: str) -> bool:
    return name.isidentifier() and not iskeyword(name)


def _key_of(schema: JSONSchema, definitions: JSONSchema) -> str:
    return json.dumps([schema, definitions], sort_keys=True, default=str)


def _output_schema(tool: ToolBase) -> JSONSchema | None:
    """Return the schema of the results, `None` for plain text."""
    function: Any = inspect.unwrap(underlying(tool.function if isinstance(tool, FunctionTool) else type(tool).call))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return None  # its pieces are joined to one text
    try:
        hint = get_type_hints(function, include_extras=True).get("return", str)
    except Exception:  # noqa: BLE001  # hints are the user's code, and may name what is not there
        return None
    if hint is Any:
        return {}
    kind = get_origin(hint) or hint
    if isinstance(kind, type) and issubclass(kind, (*_TEXT, Iterator, AsyncIterator)):
        return None
    try:
        return pydantic.TypeAdapter(hint).json_schema(mode="serialization")
    except (pydantic.errors.PydanticUserError, TypeError, ValueError):
        return {}  # of a type that pydantic does not know
