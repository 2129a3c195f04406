"""Tables of tools: those of one moment, and those that one request offers."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Self

from agentrt._runtime.block import ToolCallBlock
from agentrt._runtime.schema.description import describe_parameters
from agentrt._runtime.text import repr_of, short_repr
from agentrt.errors import ToolConfigError
from agentrt.tool.arguments import ArgumentsError
from agentrt.tool.base import ToolBase, call_plan_of, check_tool, tool_location
from agentrt.tool.call import PreparedCall
from agentrt.tool.group import BASIC_GROUP, META_TOOL
from agentrt.tool.invocation import CallPlan
from agentrt.tool.to_response import check_failure_text, failure
from agentrt.types import JSONSchema, ToolResponse

_MAX_NAMES_LISTED = 50
_MAX_CHOICES = 64


@dataclass(slots=True, repr=False, eq=False)
class ToolEntry:
    """A tool in a table: how to call it, and the group that it is offered with."""

    tool: ToolBase
    plan: CallPlan
    group: str

    @classmethod
    def of(cls, tool: ToolBase, group: str = BASIC_GROUP) -> Self:
        """Return the entry of a tool that was checked."""
        return cls(tool, call_plan_of(tool), group)

    def __reduce__(self) -> tuple[object, ...]:
        return ToolEntry.of, (self.tool, self.group)  # the plan cannot be pickled


class ToolTable:
    """The tools of one moment, by name. It never changes, so two tables that are the same object have the same tools.

    The tools given here are always offered. `Toolkit.table` has some in groups; `active_groups` are then those of a
    conversation, or `None` for those that were active in the toolkit at that moment. Raises `ToolConfigError` for what
    cannot be a tool, and for two tools of one name.
    """

    __slots__ = ("_schemas", "active_groups", "binds", "entries")

    def __init__(self, tools: Iterable[ToolBase] = ()) -> None:
        entries: dict[str, ToolEntry] = {}
        for tool in tools:
            value: object = tool
            if not isinstance(value, ToolBase):
                raise ToolConfigError(
                    f"ToolTable() takes ToolBase instances, not {repr_of(value)}: write FunctionTool(function)"
                )
            check_tool(tool)
            if tool.name in entries:
                raise namesake_error(entries[tool.name].tool, tool)
            entries[tool.name] = ToolEntry.of(tool)
        self.entries: Mapping[str, ToolEntry] = entries
        self.active_groups: Sequence[str] = ()
        self.binds = any(is_bindable(entry.tool) for entry in entries.values())
        self._schemas: dict[tuple[str, ...], list[JSONSchema]] = {}

    @classmethod
    def of_entries(
        cls, entries: Mapping[str, ToolEntry], active_groups: Sequence[str] = (), *, binds: bool
    ) -> "ToolTable":
        """Return a table of these entries, which it keeps; `binds` says whether `bound_by` may change any of them."""
        table = cls()
        table.entries, table.active_groups, table.binds = entries, active_groups, binds
        return table

    def get(self, name: str) -> ToolBase | None:
        """Return the tool of that name, in whatever group it is."""
        entry = self.entries.get(name)
        return entry.tool if entry else None

    def group_of(self, name: str) -> str | None:
        """Return the name of the group of a tool, `None` if the table does not have that tool."""
        entry = self.entries.get(name)
        return entry.group if entry else None

    def names(self) -> list[str]:
        """Return the names of all tools, in the order in which they are offered."""
        return list(self.entries)

    def schemas(self, active_groups: Iterable[str] | None = None) -> list[JSONSchema]:
        """Return the schemas of the tools that are offered with these groups, in the form that OpenAI gave them.

        The list is made once for each choice of groups and then returned each time: copy it before you change it.
        """
        key = tuple(self.active_groups if active_groups is None else active_groups)
        schemas = self._schemas.get(key)
        if schemas is None:
            offered = [entry.tool for entry in self.entries.values() if entry.group in (BASIC_GROUP, *key)]
            schemas = [tool.function_schema for tool in offered if not tool.is_hidden]
            if len(self._schemas) >= _MAX_CHOICES:  # a model may try every choice of groups
                self._schemas.clear()
            self._schemas[key] = schemas
        return schemas

    def prepare(
        self, tool_call: ToolCallBlock, active_groups: Iterable[str] | None = None
    ) -> PreparedCall | ToolResponse:
        """Check a call without running anything: returns what `run_call` takes, or a result that says what is wrong."""
        name, text = tool_call.name, tool_call.input
        entry = self.entries.get(name)
        # A model that makes up the name of a hidden tool learns nothing of it: only a layer gives a call such an id.
        # And a yes to what a layer has asked runs no tool that has taken the name since.
        if entry is None or entry.tool.is_hidden is not tool_call.is_hidden:
            return self._unknown_tool(name, active_groups)
        if entry.group != BASIC_GROUP and entry.group not in (
            self.active_groups if active_groups is None else active_groups
        ):
            return failure(
                f"{name} was not run: its group {entry.group!r} is not active. Call {META_TOOL} with {entry.group!r} "
                f"set to true first, together with the groups that you want to keep."
            )
        # The name and the text are read once: what is checked here is what `run_call` runs.
        try:
            arguments = entry.plan.parse(text)
        except ArgumentsError as error:
            why = str(error) if error.__cause__ is None else check_failure_text(entry.tool, error.__cause__)
            return failure(f"{name} was not run: {why}. {describe_parameters(entry.plan.schema)}")
        return PreparedCall(entry.tool, entry.plan, tool_call, name, text, arguments)

    def over(self, below: "ToolTable") -> "ToolTable":
        """Return this table: as a layer of a toolkit, it hides the layers below."""
        return self

    def bound_by(self, bind: Callable[[ToolBase], ToolBase]) -> "ToolTable":
        """Return a table with what `bind` returns for each tool, under the same name."""
        entries: dict[str, ToolEntry] = {}
        for name, entry in self.entries.items():
            bound = bind(entry.tool)
            entries[name] = entry if bound is entry.tool else ToolEntry.of(bound, entry.group)
        return ToolTable.of_entries(entries, self.active_groups, binds=False)

    def without(self, names: Collection[str]) -> "ToolTable":
        """Return a table with the tools of this one that have other names."""
        entries = {name: entry for name, entry in self.entries.items() if name not in names}
        return ToolTable.of_entries(entries, self.active_groups, binds=self.binds)

    def _unknown_tool(self, name: str, active_groups: Iterable[str] | None) -> ToolResponse:
        names = [schema["function"]["name"] for schema in self.schemas(active_groups)]
        # Cut, since the search takes time in proportion to the name, which a model made up.
        matches = get_close_matches(str(name)[:64], names, 1)
        hint = f" Did you mean {matches[0]}?" if matches else ""
        listing = ", ".join(names[:_MAX_NAMES_LISTED]) + (", ..." if len(names) > _MAX_NAMES_LISTED else "")
        return failure(f"The tool {short_repr(name)} does not exist.{hint} The tools are: {listing or 'none'}.")


def is_bindable(tool: ToolBase) -> bool:
    """Say whether the tool may be another one for each agent, by `ToolBase.bound_to`."""
    return type(tool).bound_to is not ToolBase.bound_to


def namesake_error(first: ToolBase, second: ToolBase) -> ToolConfigError:
    """Return the error about two tools of one name."""
    if first.is_hidden and second.is_hidden:
        # A user gives no names to these; the layers do.
        return ToolConfigError(
            f"two middlewares add a hidden tool called {second.name!r}, such as two instances of one class: merge them "
            f"into one instance with the options of both, or rename the tool of one"
        )
    owner, other = (getattr(getattr(tool, "function", None), "__self__", None) for tool in (first, second))
    if owner is not None and owner is not other and type(owner) is type(other):
        return ToolConfigError(
            f"two tools are called {second.name!r}: two instances of {type(owner).__name__} add it; keep one of them"
        )
    return ToolConfigError(
        f"two tools are called {second.name!r}: {tool_location(first)} and {tool_location(second)}; "
        f"rename one with FunctionTool(function, name=...) or agent.as_tool(..., name=...), or register it with "
        f'func_name=..., or with namesake="override", "skip" or "rename"'
    )


class OfferedTools(list[JSONSchema]):
    """The schemas that a request offers, in a list that layers replace and never change.

    `runnable` are the schemas of the tools that the agent itself can run in this round, `None` if it runs none.
    `added` are the tools that layers have added to this request, by name, each with the name of its layer; `None` while
    there are none. `allowed` are the names to which the round narrows the tools, `None` if it does not.
    """

    # Defaults of the class, since one is made for each request and hardly ever gets more.
    runnable: list[JSONSchema] | None = None
    added: dict[str, tuple[ToolBase, str]] | None = None
    allowed: list[str] | None = None

    def __reduce__(self) -> tuple[type[list[JSONSchema]], tuple[list[JSONSchema]]]:
        return list, (list(self),)  # a copy is a plain list: tools can be added to the request only


def as_offered_tools(value: object, offered_before: object, layer: str) -> OfferedTools:
    """Return a list or tuple of schemas and tools as `OfferedTools`, among what the request offered before any layer.

    Raises `ValueError` for a schema whose tool the agent cannot run.
    """
    if value is not None and not isinstance(value, list | tuple):
        raise ValueError(f"tools must be a list of JSON schemas and ToolBase instances, not {value!r:.200}")
    before = offered_before if isinstance(offered_before, OfferedTools) else OfferedTools()
    # One dict for the whole request: a tool that one layer added stays runnable when another replaces the list.
    added = before.added = {} if before.added is None else before.added
    offered = OfferedTools()
    offered.runnable, offered.added, offered.allowed = before.runnable, added, before.allowed
    known = None if before.runnable is None else {_schema_name(schema) for schema in before.runnable}
    names: set[str] = set()
    for tool in value or ():
        if isinstance(tool, ToolBase):
            check_tool(tool)
            if tool.is_hidden:
                raise ValueError(
                    f"{tool.name} is a hidden tool, which no model is offered: return it from list_tools() instead"
                )
            added[tool.name] = tool, layer
        schema = tool.function_schema if isinstance(tool, ToolBase) else tool
        name = _schema_name(schema)
        if name in names:
            raise ValueError(f"two tools are called {name!r}: leave one of them out, or rename it")
        if known is not None and name not in known and name not in added:
            raise ValueError(
                f"the schema {name!r} is of a tool that this agent cannot run in this round: put a ToolBase in its "
                f"place, such as FunctionTool(function), or register it with the toolkit and activate its group"
            )
        names.add(name)
        offered.append(schema)
    return offered


def _schema_name(schema: object) -> str:
    function = schema.get("function") if isinstance(schema, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise ValueError(
            f'a tool must be a ToolBase, or a JSON schema as in {{"type": "function", "function": {{"name": ...}}}}, '
            f"not {schema!r:.200}"
        )
    return name
