"""Toolkits: the tools that an agent has."""

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import count
from operator import is_
from typing import Any, Literal, Self

from pydantic_core import to_json

from agentrt.block import TextBlock, ToolCallBlock, ToolResultState
from agentrt.errors import ToolConfigError, UsageError
from agentrt.keywords import accept_old_keywords, suggest_arguments, suggest_attributes, suggest_keywords
from agentrt.module import StateModule
from agentrt.representation import describe_content, never_raises, repr_as_call
from agentrt.text import repr_of, short_repr, type_with_article
from agentrt.tool.arguments import ArgumentsError
from agentrt.tool.base import ToolBase, call_plan_of, check_tool, tool_location
from agentrt.tool.call import PreparedCall, run_call
from agentrt.tool.context import ToolContext
from agentrt.tool.function import FunctionTool
from agentrt.tool.group import BASIC_GROUP, META_TOOL, MetaTool, ToolGroup, check_group, describe_active_groups
from agentrt.tool.invocation import CallPlan
from agentrt.tool.json_schema.compiler import describe_parameters
from agentrt.tool.offer import schema_of
from agentrt.tool.to_response import check_failure_text, failure
from agentrt.tool.toolset import Toolset, check_toolset
from agentrt.types import JSONObject, JSONSchema, ToolChunk, ToolResponse

__all__ = ["ToolLike", "Toolkit"]

# What other frameworks call the methods of a toolkit.
_ADD = "write toolkit.register_tool_function(f)"
_TOOLKIT_GUESSES = {
    "add": _ADD,
    "add_function": _ADD,
    "add_tool": _ADD,
    "append": _ADD,
    "function": _ADD,
    "get_tool": "write toolkit.get(name)",
    "get_tools": "write toolkit.names(), and toolkit.get(name)",
    "register": _ADD,
    "register_function": _ADD,
    "register_tool": _ADD,
    "schemas": "write toolkit.get_json_schemas()",
    "tool": _ADD,
    "tools": "write toolkit.names(), and toolkit.get(name)",
}
# Options of AgentScope 1.x that have no effect with these values.
_OLD_DEFAULTS = {
    "async_execution": False,
    "include_long_description": True,
    "include_var_keyword": False,
    "include_var_positional": False,
    "postprocess_func": None,
}
_MAX_NAMES_LISTED = 50
_MAX_CACHED = 64
_ACTIVE_GROUPS = "active_groups"
_logger = logging.getLogger("agentrt")

ToolLike = Callable[..., Any] | ToolBase | Toolset
"""What gives tools: a function with type hints, a `ToolBase`, or a `Toolset`."""
Namesake = Literal["raise", "override", "skip", "rename"]


@dataclass(slots=True, repr=False, eq=False)
class _ToolEntry:
    tool: ToolBase
    plan: CallPlan
    group: str

    @classmethod
    def of(cls, tool: ToolBase, group: str) -> Self:
        return cls(tool, call_plan_of(tool), group)

    def __reduce__(self) -> tuple[object, ...]:
        return _ToolEntry.of, (self.tool, self.group)  # the plan cannot be pickled


@dataclass(slots=True, repr=False, eq=False)
class _ToolsetEntry:
    """A toolset of a toolkit, the group of its tools, and those of them that the toolkit has taken in."""

    toolset: Toolset
    group: str
    listed: tuple[ToolBase, ...] | None = None
    names: list[str] = field(default_factory=list)


@suggest_attributes(**_TOOLKIT_GUESSES)
@suggest_keywords()
class Toolkit(StateModule):
    """The tools of an agent: functions, `ToolBase`s and `Toolset`s, some in groups that can be switched on and off.

    A toolkit may serve many conversations at once: which groups are active is given to each method that depends on it;
    where nothing is given, the toolkit's own setting holds. Raises `ToolConfigError` for what cannot be a tool.

    Its state is that setting, with which new conversations begin; a conversation that has chosen groups of its own
    keeps them in its `AgentState`. What is registered later is offered from the next round on, in every agent that has
    this toolkit, whether or not the agent has further tools from its middlewares.

    `async with` an agent opens the toolsets of its toolkit, and closes them; so does `async with toolkit`.
    """

    binds = False
    """Whether it has a tool that is another one for each agent, by `ToolBase.bound_to`."""

    def __init__(self, tools: Iterable[ToolLike] = (), groups: Iterable[ToolGroup] = ()) -> None:
        super().__init__()
        self._entries: dict[str, _ToolEntry] = {}
        self._groups: dict[str, ToolGroup] = {}
        self._active: list[str] = []
        self._toolset_entries: list[_ToolsetEntry] = []
        self._exit_stacks: list[AsyncExitStack] = []
        self._snapshot: tuple[list[JSONSchema], _ToolkitSnapshot] | None = None
        self._schemas: dict[tuple[str, ...], list[JSONSchema]] = {}
        self._schema_lengths: dict[tuple[int, ...], tuple[list[JSONSchema], int]] = {}
        for name, argument in (("tools", tools), ("groups", groups)):
            if isinstance(argument, (str, ToolBase, ToolGroup)) or not isinstance(argument, Iterable):
                raise ToolConfigError(
                    f"Toolkit({name}=...) must be a list, not {repr_of(argument)}: write {name}=[...]"
                )
        for tool in tools:
            self.register_tool_function(tool)
        for group in groups:
            self._add_group(group)

    @never_raises
    def __repr__(self) -> str:
        tools = self.names(active_groups=())
        settings: dict[str, object] = {"tools": tools} if tools else {}
        if self.groups:
            settings |= {"groups": self.groups, "active_groups": self.active_groups}
        return repr_as_call("Toolkit", {name: describe_content(value) for name, value in settings.items()})

    @accept_old_keywords(_OLD_DEFAULTS, tool_func="function", namesake_strategy="namesake")
    @suggest_arguments(
        async_execution="tools run in parallel by default, see ReActConfig(parallel_tool_calls=...)",
        include_long_description="write func_description=...",
        include_var_keyword="write json_schema=..., which may have them",
        include_var_positional="write json_schema=..., which may have them",
        postprocess_func="write a middleware with on_acting, which may replace the ToolResponse",
        name="func_name",
        description="func_description",
        group="group_name",
        schema="json_schema",
        override="write namesake='override'",
        ask="write FunctionTool(f, ask=True)",
        timeout="write FunctionTool(f, timeout=...)",
    )
    def register_tool_function(
        self,
        function: ToolLike,
        *,
        group_name: str = BASIC_GROUP,
        preset_kwargs: Mapping[str, object] | None = None,
        func_name: str | None = None,
        func_description: str | None = None,
        json_schema: JSONSchema | None = None,
        namesake: Namesake = "raise",
    ) -> None:
        """Add a function, a finished tool, or a toolset.

        `preset_kwargs` are passed at each call and hidden from the model. `json_schema` is the schema of the
        parameters, or the whole `{"type": "function", "function": {...}}`. `namesake` says what to do when the name is
        taken: "raise", "override" the old tool, "skip" the new one, or "rename" it by a number at its end.
        """
        # With ==, since each access to a method makes another object.
        if function == self.reset_equipped_tools:
            return  # 1.x asked for this; here it is offered as soon as there are groups
        if group_name != BASIC_GROUP and group_name not in self._groups:
            raise ToolConfigError(
                f"the toolkit has no group {group_name!r}: create it with create_tool_group, or take one of "
                f"{self._group_names()}"
            )
        if isinstance(function, Toolset):
            self._add_toolset(function, group_name)
            return
        tool = _as_tool(function, func_name, func_description, preset_kwargs, json_schema)
        chosen = self._resolve_namesake(tool, namesake)
        if chosen is not None:
            self._entries[chosen.name] = _ToolEntry.of(chosen, group_name)
            self._schemas.clear()
            if type(chosen).bound_to is not ToolBase.bound_to:
                self._has_bound_tools()

    def remove_tool_function(self, tool_name: str, allow_not_exist: bool = True) -> None:
        """Remove a tool that was registered; `allow_not_exist=False` raises `ToolConfigError` where there is none."""
        entry = self._entries.get(tool_name)
        if entry is None:
            if not allow_not_exist:
                raise ToolConfigError(
                    f"the toolkit has no tool {tool_name!r}: it has {', '.join(self.names()) or 'none'}"
                )
            return
        if isinstance(entry.tool, MetaTool) or any(tool_name in toolset.names for toolset in self._toolset_entries):
            raise ToolConfigError(
                f"the tool {tool_name!r} was not registered by itself, so it cannot be removed: put it into a group, "
                f"and switch that off"
            )
        del self._entries[tool_name]
        self._forget_schemas()

    @accept_old_keywords(group_name="name")
    def create_tool_group(self, name: str, description: str, active: bool = False, notes: str | None = None) -> None:
        """Add an empty group; `notes` tell the model how to use its tools, once they are active."""
        self._add_group(ToolGroup(name, description, active, notes=notes))

    @accept_old_keywords(group_names="names")
    def update_tool_groups(self, names: Iterable[str], active: bool) -> None:
        """Switch groups on or off in the toolkit's own setting, with which new conversations begin."""
        # Iterating over a `str` would give its characters.
        names = [names] if isinstance(names, str) else list(names)
        self._check_groups(names)
        self._set_active({*self._active, *names} if active else {*self._active} - {*names})

    def reset_equipped_tools(self, **groups: bool) -> ToolResponse:
        """Set the toolkit's own setting of all groups at once: those not given are switched off.

        Models call the tool of the same name, which is offered when there are groups, and which changes only the
        conversation that it is called in.
        """
        self._check_groups(groups)
        self._set_active(name for name, active in groups.items() if active)
        return ToolResponse([TextBlock(describe_active_groups([self._groups[name] for name in self._active]))])

    def with_tools(self, tools: Sequence[ToolLike | ToolGroup], *, override: bool = False) -> "Toolkit":
        """Return a toolkit with the tools of this one, now and later, and further ones; this one if there are none.

        Groups of tools may be among them. The further tools do not enter this toolkit, but whatever is registered or
        set in the new one later enters this one. With `override`, further tools hide tools of the same name.
        """
        if not tools:
            return self
        further = [tool for tool in tools if not isinstance(tool, ToolGroup)]
        if len(further) == len(tools):
            return _ExtendedToolkit(self, further, override)
        return _GroupedToolkit(self, tools, override)

    def without_tools(self, tools: Sequence[ToolLike | ToolGroup]) -> "Toolkit":
        """Return the toolkit that `with_tools` extended by just these tools; this one, if it was not made so."""
        return self

    def bound_by(self, bind: Callable[[ToolBase], ToolBase]) -> "Toolkit":
        """Return a toolkit with what `bind` returns for each tool of this one, now and later, under the same name."""
        return _BoundToolkit(self, bind)

    @property
    def has_toolsets(self) -> bool:
        """Whether it has toolsets, so that its tools may change."""
        return bool(self._toolset_entries)

    @property
    def toolsets(self) -> list[Toolset]:
        """The toolsets whose tools it has."""
        return [entry.toolset for entry in self._toolset_entries]

    def names_of(self, toolset: Toolset) -> list[str]:
        """Return the names of the tools of one of its toolsets, active or not; empty while it is not open."""
        entries = [entry for entry in self._toolset_entries if entry.toolset is toolset and toolset.is_open]
        return [name for entry in entries for name in entry.names]

    async def __aenter__(self) -> Self:
        _refuse_namesakes(self.toolsets)
        async with AsyncExitStack() as stack:
            # Each once, though an agent may have it in two places.
            for toolset in dict.fromkeys(self.toolsets_to_open(set())):
                await stack.enter_async_context(toolset)
            await self.refresh(strict=True)
            self.get_json_schemas(self.groups)  # which raises for a name that a toolset shares with another tool
            self._exit_stacks.append(stack.pop_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit_stacks.pop().aclose()

    async def refresh(self, *, reserved: frozenset[str] = frozenset(), strict: bool = False) -> None:
        """Read the lists of the toolsets that have changed; for the runtime, which does it before each round.

        A tool whose name another tool has, or is among the `reserved`, is left out with a warning, or, if `strict`,
        refused. Raises `UsageError` for a toolset that is not open.
        """
        for entry in self._toolset_entries:
            listed = await entry.toolset.tools()
            if listed is not entry.listed:
                self._take_in(entry, listed, reserved, strict)

    def snapshot(self) -> "Toolkit":
        """Return a toolkit with the tools that this one has now, for one round; this one if it has no toolsets."""
        if not self.has_toolsets:
            return self
        schemas = self.get_json_schemas(self.groups)  # another list once anything has changed
        # The same one for all rounds, and all conversations, until then.
        if self._snapshot is None or self._snapshot[0] is not schemas:
            self._snapshot = schemas, _ToolkitSnapshot(self)
        return self._snapshot[1]

    def toolsets_to_open(self, seen: set[int]) -> Iterator[Toolset]:
        """Yield the toolsets of this toolkit and of the agents among its tools, but of no toolkit that was `seen`."""
        if id(self) in seen:  # agents may call each other in a circle
            return
        seen.add(id(self))
        yield from self.toolsets
        for entry in list(self._entries.values()):
            toolkit = entry.tool.inner_toolkit
            if isinstance(toolkit, Toolkit):
                yield from toolkit.toolsets_to_open(seen)

    def current_entries(self) -> dict[str, _ToolEntry]:
        """Return what it has of each tool now; for the runtime, which takes snapshots."""
        return dict(self._entries)

    def check_open(self) -> None:
        """Raise `UsageError` unless all toolsets are open in this event loop."""
        for toolset in self.toolsets:
            toolset.check_open()

    @property
    def active_groups(self) -> list[str]:
        """The groups that are active in the toolkit's own setting, `basic` not counted."""
        return list(self._active)

    @property
    def groups(self) -> dict[str, list[str]]:
        """The names of the tools in each group, active or not, `basic` not counted."""
        entries = self._entries.items()
        return {group: [name for name, entry in entries if entry.group == group] for group in self._groups}

    @property
    def tool_groups(self) -> dict[str, ToolGroup]:
        """The groups themselves, active or not, `basic` not counted."""
        return dict(self._groups)

    def state_dict(self) -> JSONObject:
        """Return the state: which groups are active in the toolkit's own setting."""
        return {**super().state_dict(), _ACTIVE_GROUPS: self.active_groups}

    def load_state_dict(self, state_dict: JSONObject, strict: bool = True) -> None:
        """Load a state that `state_dict` returned, as a whole or not at all.

        Raises `KeyError` for a state that lacks something, `ValueError` for one that has something else, and
        `ToolConfigError` for groups that the toolkit does not have; unless `strict`, these are ignored.
        """
        active = _read_active_groups(state_dict, strict, self.state_dict())
        if strict:
            self._check_groups(active or ())
        super().load_state_dict(state_dict, strict)
        if active is not None:
            self._set_active(active)

    def get(self, name: str) -> ToolBase | None:
        """Return the tool of that name, in whatever group it is."""
        entry = self._entries.get(name)
        return entry.tool if entry else None

    def group_of(self, name: str) -> str | None:
        """Return the name of the group of a tool, `None` if the toolkit does not have that tool."""
        entry = self._entries.get(name)
        return entry.group if entry else None

    def names(self, active_groups: Iterable[str] | None = None) -> list[str]:
        """Return the names of the tools that are offered, in the order of `get_json_schemas`."""
        return [schema["function"]["name"] for schema in self.get_json_schemas(active_groups)]

    def get_json_schemas(self, active_groups: Iterable[str] | None = None) -> list[JSONSchema]:
        """Return the schemas of the tools that are offered, in the form that OpenAI gave them.

        The list is made once for each choice of groups and then returned each time: copy it before you change it.
        """
        key = tuple(self._active if active_groups is None else active_groups)
        schemas = self._schemas.get(key)
        if schemas is None:
            entries = list(self._entries.values())  # another thread may register a tool meanwhile
            offered = [entry.tool for entry in entries if entry.group in (BASIC_GROUP, *key)]
            schemas = [schema_of(tool) for tool in offered if not tool.is_hidden]
            if len(self._schemas) >= _MAX_CACHED:  # a model may try every choice of groups
                self._schemas.clear()
            self._schemas[key] = schemas
        return schemas

    def schema_characters(self, active_groups: Iterable[str] | None = None) -> int:
        """Return how many characters the schemas of the tools that are offered have as JSON."""
        return self.characters_of(self.get_json_schemas(active_groups))

    def characters_of(self, schemas: Sequence[JSONSchema]) -> int:
        """Return how many characters these schemas have as JSON; the same ones are written only once."""
        if not schemas:
            return 0
        key = tuple(map(id, schemas))
        counted = self._schema_lengths.get(key)
        if counted is None:
            # With the schemas themselves, so that no others get their ids.
            counted = list(schemas), len(to_json(schemas))
            if len(self._schema_lengths) >= _MAX_CACHED:
                self._schema_lengths.clear()
            self._schema_lengths[key] = counted
        return counted[1]

    def prepare(
        self, tool_call: ToolCallBlock, active_groups: Iterable[str] | None = None
    ) -> PreparedCall | ToolResponse:
        """Check a call without running anything: returns what `run_call` takes, or a result that says what is wrong."""
        name, text = tool_call.name, tool_call.input
        if self._toolset_entries:
            self.check_open()
        entry = self._entries.get(name)
        # A model that makes up the name of a hidden tool learns nothing of it: only a layer gives a call such an id.
        # And a yes to what a layer has asked runs no tool that has taken the name since.
        if entry is None or entry.tool.is_hidden is not tool_call.is_hidden:
            return self._unknown_tool(name, active_groups)
        if entry.group != BASIC_GROUP and entry.group not in (self._active if active_groups is None else active_groups):
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

    def call_tool_function(
        self, tool_call: ToolCallBlock, context: ToolContext | None = None
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        """Run a call outside of any agent: yields the pieces of output, if it has any, then the `ToolResponse`."""
        if not isinstance(tool_call, ToolCallBlock):
            raise UsageError(
                f"call_tool_function() takes a ToolCallBlock, not {repr_of(tool_call)}: "
                f"write ToolCallBlock(id, name, json.dumps(arguments))"
            )
        prepared = self.prepare(tool_call)
        if isinstance(prepared, PreparedCall) and (prepared.tool.is_external_tool or prepared.tool.ask):
            # Only a reply can wait for an answer, and a tool that needs one must not run without it.
            why = (
                "it runs outside this program" if prepared.tool.is_external_tool else "the user must agree to it first"
            )
            text = f"{prepared.name} was not run: {why}, and only an agent's reply can wait for that."
            prepared = failure(text, ToolResultState.DENIED)
        if isinstance(prepared, PreparedCall):
            return run_call(prepared, context)

        async def stream_of_one(response: ToolResponse) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
            yield response

        return stream_of_one(prepared)

    def _has_bound_tools(self) -> None:
        self.binds = True

    def _forget_schemas(self) -> None:
        self._schemas.clear()

    def _add_toolset(self, toolset: Toolset, group: str) -> None:
        check_toolset(toolset)
        _refuse_namesakes([*(entry.toolset for entry in self._toolset_entries), toolset])
        self._toolset_entries.append(_ToolsetEntry(toolset, group))

    def _take_in(
        self, entry: _ToolsetEntry, listed: tuple[ToolBase, ...], reserved: frozenset[str], strict: bool
    ) -> None:
        """Put the tools of a toolset in the place of those that it had before."""
        # Its old tools go even where their names come again: they may be other tools.
        others = {name: other for name, other in self._entries.items() if name not in entry.names}
        taken: dict[str, _ToolEntry] = {}
        for tool in listed:
            check_tool(tool)
            problem = self._clash_of(tool.name, entry, others, taken, reserved)
            if problem is None:
                taken[tool.name] = _ToolEntry.of(tool, entry.group)
            elif strict:
                raise ToolConfigError(problem)
            else:
                _logger.warning("%s: the tool of the toolset is left out", problem)
        self._entries = others | taken
        entry.listed, entry.names = listed, list(taken)
        self._forget_schemas()
        if any(type(one.tool).bound_to is not ToolBase.bound_to for one in taken.values()):
            self._has_bound_tools()

    def _clash_of(
        self,
        name: str,
        entry: _ToolsetEntry,
        others: Mapping[str, _ToolEntry],
        taken: Mapping[str, _ToolEntry],
        reserved: frozenset[str],
    ) -> str | None:
        """Say which other tool has the name of a toolset's tool, if one has it."""
        if name in taken:
            other = "another of its tools"
        elif name in others:
            toolset = next((one.toolset for one in self._toolset_entries if name in one.names), None)
            other = tool_location(others[name].tool) if toolset is None else f"one of the toolset {toolset.name!r}"
        elif name in reserved:
            other = "a tool of the agent's middlewares"
        else:
            return None
        return f"the toolset {entry.toolset.name!r} has a tool {name!r}, which is the name of {other} as well"

    def _add_group(self, group: ToolGroup) -> None:
        check_group(group)
        if group.name == BASIC_GROUP or group.name in self._groups:
            raise ToolConfigError(f"the toolkit already has a group {group.name!r}: choose another name")
        self._groups[group.name] = group
        self._renew_meta_tool()
        for tool in group.tools:
            self.register_tool_function(tool, group_name=group.name)
        if group.active:
            self._set_active([*self._active, group.name])

    def _renew_meta_tool(self) -> None:
        if not self._groups:
            return
        entry = self._entries.pop(META_TOOL, None)
        if entry is not None and not isinstance(entry.tool, MetaTool):
            raise ToolConfigError(
                f"{META_TOOL!r} is the tool that switches groups, but {tool_location(entry.tool)} has that name: "
                f"rename it"
            )
        # A new one each time, since its schema names the groups.
        self._entries[META_TOOL] = _ToolEntry.of(MetaTool(dict(self._groups), self._set_active), BASIC_GROUP)
        self._schemas.clear()

    def _resolve_namesake(self, tool: ToolBase, namesake: Namesake) -> ToolBase | None:
        """Return the tool to add, under the name that it is to have, if it is to be added at all."""
        entry = self._entries.get(tool.name)
        if entry is None or namesake == "override":
            return tool
        if namesake == "skip":
            return None
        if namesake == "rename":
            numbered = (f"{tool.name}_{number}" for number in count(2))
            return tool.with_name(next(name for name in numbered if name not in self._entries))
        raise _namesake_error(tool.name, entry.tool, tool)

    def _set_active(self, names: Iterable[str]) -> None:
        # In the order of the groups, so that one choice has one key among the cached schemas.
        active = set(names)
        self._active = [name for name in self._groups if name in active]

    def _check_groups(self, names: Iterable[str]) -> None:
        unknown = [name for name in names if name not in self._groups and name != BASIC_GROUP]
        if unknown:
            raise ToolConfigError(f"the toolkit has no group {unknown[0]!r}: the groups are {self._group_names()}")

    def _group_names(self) -> str:
        return ", ".join(map(repr, (BASIC_GROUP, *self._groups)))

    def _unknown_tool(self, name: str, active_groups: Iterable[str] | None) -> ToolResponse:
        self.check_open()
        names = self.names(active_groups)
        # Cut, since the search takes time in proportion to the name, which a model made up.
        matches = get_close_matches(str(name)[:64], names, 1)
        hint = f" Did you mean {matches[0]}?" if matches else ""
        listing = ", ".join(names[:_MAX_NAMES_LISTED]) + (", ..." if len(names) > _MAX_NAMES_LISTED else "")
        return failure(f"The tool {short_repr(name)} does not exist.{hint} The tools are: {listing or 'none'}.")


class _ToolkitView(Toolkit):
    """A toolkit over another one: what is registered or set in it enters that one."""

    def __init__(self, base: Toolkit, tools: Sequence[ToolLike] = ()) -> None:
        super().__init__(tools)
        self._base = base
        self._combined: dict[tuple[str, ...] | None, tuple[list[JSONSchema], list[JSONSchema]]] = {}

    def register_tool_function(self, *args: Any, **kwargs: Any) -> None:
        # The base class's constructor registers the further tools before there is a base.
        if "_base" in vars(self):
            self._base.register_tool_function(*args, **kwargs)
        else:  # a tool of its own
            super().register_tool_function(*args, **kwargs)

    def remove_tool_function(self, tool_name: str, allow_not_exist: bool = True) -> None:
        self._base.remove_tool_function(tool_name, allow_not_exist)

    def create_tool_group(self, *args: Any, **kwargs: Any) -> None:
        self._base.create_tool_group(*args, **kwargs)

    @accept_old_keywords(group_names="names")
    def update_tool_groups(self, names: Iterable[str], active: bool) -> None:
        self._base.update_tool_groups(names, active)

    def reset_equipped_tools(self, **groups: bool) -> ToolResponse:
        return self._base.reset_equipped_tools(**groups)

    @property
    def has_toolsets(self) -> bool:
        return bool(self._toolset_entries) or self._base.has_toolsets

    @property
    def toolsets(self) -> list[Toolset]:
        return [*self._base.toolsets, *super().toolsets]

    def names_of(self, toolset: Toolset) -> list[str]:
        return self._base.names_of(toolset) or super().names_of(toolset)

    async def refresh(self, *, reserved: frozenset[str] = frozenset(), strict: bool = False) -> None:
        own = frozenset(self._entries).difference(*(entry.names for entry in self._toolset_entries))
        await self._base.refresh(reserved=reserved | own, strict=strict)
        if self._toolset_entries:
            await super().refresh(reserved=reserved | frozenset(self._base.current_entries()), strict=strict)

    def _forget_schemas(self) -> None:
        super()._forget_schemas()
        self._combined.clear()

    def current_entries(self) -> dict[str, _ToolEntry]:
        others = {name: entry for name, entry in self._base.current_entries().items() if name not in self._entries}
        return others | self._entries

    def toolsets_to_open(self, seen: set[int]) -> Iterator[Toolset]:
        yield from self._base.toolsets_to_open(seen)
        yield from super().toolsets_to_open(seen)

    @property
    def active_groups(self) -> list[str]:
        return self._base.active_groups

    @property
    def groups(self) -> dict[str, list[str]]:
        return self._base.groups

    @property
    def tool_groups(self) -> dict[str, ToolGroup]:
        return self._base.tool_groups

    def state_dict(self) -> JSONObject:
        return self._base.state_dict()

    def load_state_dict(self, state_dict: JSONObject, strict: bool = True) -> None:
        self._base.load_state_dict(state_dict, strict)

    def get_json_schemas(self, active_groups: Iterable[str] | None = None) -> list[JSONSchema]:
        # It has no groups of its own: where none are given, the other toolkit's own setting decides.
        key = None if active_groups is None else tuple(active_groups)
        schemas = self._base.get_json_schemas(key)
        combined = self._combined.get(key)
        if combined is None or combined[0] is not schemas:  # which is another list once anything has changed
            if len(self._combined) >= _MAX_CACHED:
                self._combined.clear()
            combined = self._combined[key] = schemas, self._combine(schemas, key or ())
        return combined[1]

    def _combine(self, schemas: list[JSONSchema], key: tuple[str, ...]) -> list[JSONSchema]:
        """Return what this toolkit offers with these groups, where the one that it is over offers these schemas."""
        raise NotImplementedError


class _ExtendedToolkit(_ToolkitView):
    """A toolkit with further tools of its own; all else is that of the toolkit that it extends, now and later."""

    def __init__(self, base: Toolkit, tools: Sequence[ToolLike], override: bool) -> None:
        super().__init__(base, tools)
        self._further: tuple[ToolLike | ToolGroup, ...] = tuple(tools)
        self._override = override
        self.get_json_schemas()  # which raises for a name that both have

    @property
    def binds(self) -> bool:  # type: ignore[override]  # of what it extends too, which may change
        return self._binds or self._base.binds

    _binds = False

    def _has_bound_tools(self) -> None:
        self._binds = True

    def without_tools(self, tools: Sequence[ToolLike | ToolGroup]) -> Toolkit:
        # By identity, since two tools may be equal, and functions of one name are not the same tool.
        is_made_so = len(tools) == len(self._further) and all(map(is_, tools, self._further))
        return self._base if is_made_so else self

    def get(self, name: str) -> ToolBase | None:
        entry = self._entries.get(name)
        return self._base.get(name) if entry is None else entry.tool

    def group_of(self, name: str) -> str | None:
        entry = self._entries.get(name)
        return self._base.group_of(name) if entry is None else entry.group

    def _combine(self, schemas: list[JSONSchema], key: tuple[str, ...]) -> list[JSONSchema]:
        for name, entry in self._entries.items():
            namesake = None if self._override else self._base.get(name)
            # The tool that switches groups is there for those of both.
            if namesake is not None and not (isinstance(entry.tool, MetaTool) and isinstance(namesake, MetaTool)):
                raise _namesake_error(name, namesake, entry.tool)
        others = [schema for schema in schemas if schema["function"]["name"] not in self._entries]
        return [*others, *Toolkit.get_json_schemas(self, key)]

    def prepare(
        self, tool_call: ToolCallBlock, active_groups: Iterable[str] | None = None
    ) -> PreparedCall | ToolResponse:
        name = tool_call.name
        if name not in self._entries and self._base.get(name) is not None:
            return self._base.prepare(tool_call, active_groups)
        return super().prepare(tool_call, active_groups)


class _GroupedToolkit(_ExtendedToolkit):
    """A toolkit with further groups of tools of its own; one setting says which of all groups are active."""

    def __init__(self, base: Toolkit, tools: Sequence[ToolLike | ToolGroup], override: bool) -> None:
        super().__init__(base, [tool for tool in tools if not isinstance(tool, ToolGroup)], override)
        self._further = tuple(tools)
        for group in tools:
            if isinstance(group, ToolGroup):
                self._add_group(group)
        self._combined.clear()
        self.get_json_schemas(self.groups)  # which raises for a name that both have

    def _add_group(self, group: ToolGroup) -> None:
        check_group(group)
        if group.name in self._base.groups:
            raise ToolConfigError(f"the toolkit already has a group {group.name!r}: choose another name")
        super()._add_group(replace(group, active=False))
        if group.active:  # beside those that are active in the other toolkit
            self._active.append(group.name)

    @accept_old_keywords(tool_func="function")
    def register_tool_function(self, function: ToolLike, *, group_name: str = BASIC_GROUP, **options: Any) -> None:
        if group_name in self._groups:
            Toolkit.register_tool_function(self, function, group_name=group_name, **options)
        else:
            super().register_tool_function(function, group_name=group_name, **options)

    @accept_old_keywords(group_names="names")
    def update_tool_groups(self, names: Iterable[str], active: bool) -> None:
        names = [names] if isinstance(names, str) else list(names)
        self._check_groups(names)
        self._set_active({*self.active_groups, *names} if active else {*self.active_groups} - {*names})

    def reset_equipped_tools(self, **groups: bool) -> ToolResponse:
        self._check_groups(groups)
        self._set_active(name for name, active in groups.items() if active)
        chosen = [self.tool_groups[name] for name in self.active_groups]
        return ToolResponse([TextBlock(describe_active_groups(chosen))])

    @property
    def active_groups(self) -> list[str]:
        return [*self._base.active_groups, *self._active]

    @property
    def groups(self) -> dict[str, list[str]]:
        entries = self._entries.items()
        own = {group: [name for name, entry in entries if entry.group == group] for group in self._groups}
        return self._base.groups | own

    @property
    def tool_groups(self) -> dict[str, ToolGroup]:
        return self._base.tool_groups | self._groups

    def state_dict(self) -> JSONObject:
        return {**self._base.state_dict(), _ACTIVE_GROUPS: self.active_groups}

    def load_state_dict(self, state_dict: JSONObject, strict: bool = True) -> None:
        active = _read_active_groups(state_dict, strict, self.state_dict())
        if active is None:
            self._base.load_state_dict(state_dict, strict)
            return
        if strict:
            self._check_groups(active)
        of_base = [name for name in active if name not in self._groups]
        self._base.load_state_dict({**state_dict, _ACTIVE_GROUPS: of_base}, strict)
        self._active = [name for name in self._groups if name in active]

    def prepare(
        self, tool_call: ToolCallBlock, active_groups: Iterable[str] | None = None
    ) -> PreparedCall | ToolResponse:
        return super().prepare(tool_call, self.active_groups if active_groups is None else active_groups)

    def get_json_schemas(self, active_groups: Iterable[str] | None = None) -> list[JSONSchema]:
        return super().get_json_schemas(self.active_groups if active_groups is None else active_groups)

    def _combine(self, schemas: list[JSONSchema], key: tuple[str, ...]) -> list[JSONSchema]:
        self._renew_meta_tool()  # the other toolkit may have got groups, and its own tool for them is hidden
        return super()._combine(schemas, key)

    def _renew_meta_tool(self) -> None:
        if self._groups:
            self._entries[META_TOOL] = _ToolEntry.of(MetaTool(self.tool_groups, self._set_active), BASIC_GROUP)
            self._schemas.clear()

    def _set_active(self, names: Iterable[str]) -> None:
        active = set(names)
        self._active = [name for name in self._groups if name in active]
        of_base = {name: name in active for name in self._base.groups}
        if of_base:
            self._base.reset_equipped_tools(**of_base)

    def _check_groups(self, names: Iterable[str]) -> None:
        unknown = [name for name in names if name not in self.tool_groups and name != BASIC_GROUP]
        if unknown:
            known = ", ".join(map(repr, (BASIC_GROUP, *self.tool_groups)))
            raise ToolConfigError(f"the toolkit has no group {unknown[0]!r}: the groups are {known}")


class _BoundToolkit(_ToolkitView):
    """The tools of a toolkit as `bind` returns them."""

    def __init__(self, base: Toolkit, bind: Callable[[ToolBase], ToolBase]) -> None:
        super().__init__(base)
        self._bind = bind

    def get(self, name: str) -> ToolBase | None:
        tool = self._base.get(name)
        return None if tool is None else self._bind(tool)

    def group_of(self, name: str) -> str | None:
        return self._base.group_of(name)

    def _combine(self, schemas: list[JSONSchema], key: tuple[str, ...]) -> list[JSONSchema]:
        return [self._schema_for(schema) for schema in schemas]

    def current_entries(self) -> dict[str, _ToolEntry]:
        entries = self._base.current_entries().items()
        return {name: self._bound_entry(name, entry) for name, entry in entries}

    def _bound_entry(self, name: str, entry: _ToolEntry) -> _ToolEntry:
        bound = self._bind(entry.tool)
        return entry if bound is entry.tool else _ToolEntry.of(bound, entry.group)

    def _schema_for(self, schema: JSONSchema) -> JSONSchema:
        tool = self._base.get(schema["function"]["name"])
        bound = None if tool is None else self._bind(tool)
        return schema if bound is None or bound is tool else schema_of(bound)

    def prepare(
        self, tool_call: ToolCallBlock, active_groups: Iterable[str] | None = None
    ) -> PreparedCall | ToolResponse:
        name = tool_call.name
        tool = self._base.get(name)
        bound = None if tool is None else self._bind(tool)
        if bound is None or bound is tool:
            return self._base.prepare(tool_call, active_groups)
        entry = self._entries.get(name)
        if entry is None or entry.tool is not bound:
            self._entries[name] = _ToolEntry.of(bound, self._base.group_of(name) or BASIC_GROUP)
        return super().prepare(tool_call, self.active_groups if active_groups is None else active_groups)


class _ToolkitSnapshot(_ToolkitView):
    """The tools that a toolkit has at one moment: a round runs with what its model was offered."""

    def __init__(self, base: Toolkit) -> None:
        super().__init__(base)
        self._entries = base.current_entries()

    def snapshot(self) -> Toolkit:
        return self

    def get(self, name: str) -> ToolBase | None:
        return Toolkit.get(self, name)

    def group_of(self, name: str) -> str | None:
        return Toolkit.group_of(self, name)

    def get_json_schemas(self, active_groups: Iterable[str] | None = None) -> list[JSONSchema]:
        return Toolkit.get_json_schemas(self, self.active_groups if active_groups is None else active_groups)

    def prepare(
        self, tool_call: ToolCallBlock, active_groups: Iterable[str] | None = None
    ) -> PreparedCall | ToolResponse:
        return super().prepare(tool_call, self.active_groups if active_groups is None else active_groups)


def _refuse_namesakes(toolsets: Sequence[Toolset]) -> None:
    names = [toolset.name for toolset in toolsets]
    for name in names:
        if names.count(name) > 1:
            raise ToolConfigError(f"two toolsets of the toolkit are called {name!r}: give each a name of its own")


def _namesake_error(name: str, first: ToolBase, second: ToolBase) -> ToolConfigError:
    if first.is_hidden and second.is_hidden:
        # A user gives no names to these; the layers do.
        return ToolConfigError(
            f"two middlewares of the agent bring a hidden tool called {name!r}, as two do that ask the same question: "
            f"keep one of them with the options of both, or let one bring its tool under another name"
        )
    return ToolConfigError(
        f"two tools are called {name!r}: {tool_location(first)} and {tool_location(second)}; "
        f"rename one with FunctionTool(function, name=...) or agent.as_tool(..., name=...), or register it with "
        f'func_name=..., or with namesake="override", "skip" or "rename"'
    )


def _as_tool(
    function: Callable[..., Any] | ToolBase,
    name: str | None,
    description: str | None,
    preset: Mapping[str, object] | None,
    json_schema: JSONSchema | None,
) -> ToolBase:
    if not isinstance(function, ToolBase):
        if callable(getattr(function, "as_tool", None)):
            raise ToolConfigError(
                f"{function!r:.200} is an agent: give agent.as_tool('what it does') in its place, which says what its "
                f"calls take and return"
            )
        return FunctionTool(function, name=name, description=description, preset_kwargs=preset, json_schema=json_schema)
    if name or description or preset or json_schema:
        raise ToolConfigError(
            f"{function.name} is a finished tool: give its name, description, preset_kwargs and json_schema where you "
            f"make it"
        )
    check_tool(function)
    return function


def _read_active_groups(state: object, strict: bool, expected: JSONObject) -> list[str] | None:
    if not isinstance(state, dict):
        raise TypeError(
            f"the state of a toolkit must be a dict, as state_dict() returns it, not {type_with_article(state)}"
        )
    unknown = [key for key in state if key not in expected]
    if strict and unknown:
        raise ValueError(
            f"the state has {unknown[0]!r:.100}, which this toolkit does not have: it is the state of something else"
        )
    if _ACTIVE_GROUPS not in state:
        if strict:
            raise KeyError(f"the state of a toolkit must have {_ACTIVE_GROUPS!r}, a list of the names of groups")
        return None
    active = state[_ACTIVE_GROUPS]
    if not isinstance(active, list) or not all(isinstance(name, str) for name in active):
        raise TypeError(f"{_ACTIVE_GROUPS!r} in the state of a toolkit must be a list of the names of groups")
    return active
