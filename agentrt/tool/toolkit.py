"""Toolkits: the tools that an agent has."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from operator import is_
from typing import Any, Protocol, Self

from pydantic_core import to_json

from agentrt._runtime.block import TextBlock, ToolCallBlock, ToolResultState
from agentrt._runtime.keywords.attributes import suggest_attributes
from agentrt._runtime.keywords.old_keywords import accept_old_keywords
from agentrt._runtime.keywords.suggestions import suggest_arguments, suggest_keywords
from agentrt._runtime.representation import describe_content, never_raises, repr_as_call
from agentrt._runtime.text import repr_of, type_with_article
from agentrt.errors import ToolConfigError, UsageError
from agentrt.module import StateModule
from agentrt.tool.base import ToolBase, check_tool
from agentrt.tool.call import PreparedCall, run_call
from agentrt.tool.context import ToolContext
from agentrt.tool.function import FunctionTool
from agentrt.tool.group import BASIC_GROUP, MetaTool, ToolGroup, check_group, describe_active_groups
from agentrt.tool.registry import Namesake, ToolRegistry, refuse_toolset_namesakes
from agentrt.tool.table import ToolTable
from agentrt.tool.to_response import failure
from agentrt.tool.toolset import Toolset
from agentrt.types import JSONObject, JSONSchema, ToolChunk, ToolResponse

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
_MAX_CACHED = 64
_ACTIVE_GROUPS = "active_groups"
_EMPTY_TABLE = ToolTable()

ToolLike = Callable[..., Any] | ToolBase | Toolset
"""A source of tools: a function with type hints, a `ToolBase`, or a `Toolset`."""


class _Layer(Protocol):
    """A part of a toolkit: a `ToolRegistry`, a `_Derivation`, or a `ToolTable`."""

    def over(self, below: ToolTable) -> ToolTable:
        """Return the tools of this layer and of those below: the same object until something changes."""


class _Derivation:
    """A layer that makes another table of the one below."""

    def __init__(self, derive: Callable[[ToolTable], ToolTable]) -> None:
        self._derive = derive
        self._folded: tuple[ToolTable, ToolTable] | None = None

    def over(self, below: ToolTable) -> ToolTable:
        if self._folded is None or self._folded[0] is not below:
            self._folded = below, self._derive(below)
        return self._folded[1]


@suggest_attributes(**_TOOLKIT_GUESSES)
@suggest_keywords(functions="tools", toolkit="tools", toolset="tools", tool="tools")
class Toolkit(StateModule):
    """The tools of an agent: functions, `ToolBase`s and `Toolset`s, some in groups that can be switched on and off.

    A toolkit may serve many conversations at once: which groups are active is given to each method that depends on it;
    where nothing is given, the toolkit's own setting holds. Raises `ToolConfigError` for what cannot be a tool.

    Its state is that setting, with which new conversations begin; a conversation that has chosen groups of its own
    keeps them in its `AgentState`. What is registered later is offered from the next round on, in every agent that has
    this toolkit, whether or not the agent has further tools from its middlewares.

    `async with` an agent opens the toolsets of its toolkit, and closes them; so does `async with toolkit`.
    """

    def __init__(self, tools: Iterable[ToolLike] = (), groups: Iterable[ToolGroup] = ()) -> None:
        super().__init__()
        registry = ToolRegistry()
        self._registries: tuple[ToolRegistry, ...] = (registry,)
        self._layers: tuple[_Layer, ...] = (registry,)
        self._extends: tuple[Toolkit, Sequence[ToolLike | ToolGroup]] | None = None
        self._folded: tuple[object, ToolTable] | None = None
        self._snapshot: tuple[ToolTable, Toolkit] | None = None
        self._exit_stacks: list[AsyncExitStack] = []
        self._schema_lengths: dict[tuple[int, ...], tuple[list[JSONSchema], int]] = {}
        for name, argument in (("tools", tools), ("groups", groups)):
            if isinstance(argument, (str, ToolBase, ToolGroup)) or not isinstance(argument, Iterable):
                raise ToolConfigError(
                    f"Toolkit({name}=...) must be a list, not {repr_of(argument)}: write {name}=[...]"
                )
        for tool in tools:
            self.register_tool_function(tool)
        for group in groups:
            self._add_group(registry, group)

    def __getstate__(self) -> JSONObject:
        return {**vars(self), "_folded": None, "_snapshot": None, "_schema_lengths": {}}  # what is worked out again

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
        registry = self._registries[0] if group_name == BASIC_GROUP else self._registry_of(group_name)
        tool = _as_tool(function, func_name, func_description, preset_kwargs, json_schema)
        registry.add(tool, group_name, namesake)

    def remove_tool_function(self, tool_name: str, allow_not_exist: bool = True) -> None:
        """Remove a registered tool; with `allow_not_exist=False` an unknown name raises `ToolConfigError`."""
        registry = self._registries[0]
        entry = registry.entries.get(tool_name)
        if entry is None:
            if not allow_not_exist:
                raise ToolConfigError(
                    f"the toolkit has no tool {tool_name!r}: it has {', '.join(self.names()) or 'none'}"
                )
            return
        if isinstance(entry.tool, MetaTool) or any(tool_name in toolset.names for toolset in registry.toolset_entries):
            raise ToolConfigError(
                f"the tool {tool_name!r} was not registered by itself, so it cannot be removed: put it into a group, "
                f"and switch that off"
            )
        registry.remove(tool_name)

    @accept_old_keywords(group_name="name")
    def create_tool_group(self, name: str, description: str, active: bool = False, notes: str | None = None) -> None:
        """Add an empty group; `notes` tell the model how to use its tools, once they are active."""
        self._add_group(self._registries[0], ToolGroup(name, description, active, notes=notes))

    @accept_old_keywords(group_names="names")
    def update_tool_groups(self, names: Iterable[str], active: bool) -> None:
        """Switch groups on or off in the toolkit's own setting, with which new conversations begin."""
        # Iterating over a `str` would give its characters.
        names = [names] if isinstance(names, str) else list(names)
        self._check_groups(names)
        self._set_active({*self.active_groups, *names} if active else {*self.active_groups} - {*names})

    def reset_equipped_tools(self, **groups: bool) -> ToolResponse:
        """Set the toolkit's own setting of all groups at once: those not given are switched off.

        Models call the tool of the same name, which is offered when there are groups, and which changes only the
        conversation that it is called in.
        """
        self._check_groups(groups)
        self._set_active(name for name, active in groups.items() if active)
        chosen = self.tool_groups
        return ToolResponse([TextBlock(describe_active_groups([chosen[name] for name in self.active_groups]))])

    def with_tools(self, tools: Sequence[ToolLike | ToolGroup], *, override: bool = False) -> "Toolkit":
        """Return a toolkit with the tools of this one, now and later, and further ones; this one if there are none.

        Groups of tools may be among them. The further tools do not enter this toolkit, but whatever is registered or
        set in the new one later enters this one. With `override`, further tools hide tools of the same name.
        """
        if not tools:
            return self
        registry = ToolRegistry(overrides=override)
        other = self._with_layer(registry, _registries=(*self._registries, registry), _extends=(self, tuple(tools)))
        for tool in tools:
            if not isinstance(tool, ToolGroup):
                registry.add(_as_tool(tool))
        for group in tools:
            if isinstance(group, ToolGroup):
                other._add_group(registry, group)
        registry.changes = self._registries[0].changes
        other.get_json_schemas()  # which raises for a name that both have
        return other

    def without_tools(self, tools: Sequence[ToolLike | ToolGroup]) -> "Toolkit":
        """Return the toolkit that `with_tools` extended by just these tools; this one, if it was not made so."""
        if self._extends is None:
            return self
        base, further = self._extends
        # By identity, since two tools may be equal, and functions of one name are not the same tool.
        return base if len(tools) == len(further) and all(map(is_, tools, further)) else self

    def without_names(self, names: Collection[str]) -> "Toolkit":
        """Return a toolkit with the tools of this one, now and later, that have other names."""
        return self._with_layer(_Derivation(lambda below: below.without(names)))

    def bound_by(self, bind: Callable[[ToolBase], ToolBase]) -> "Toolkit":
        """Return a toolkit with what `bind` returns for each tool of this one, now and later, under the same name."""
        return self._with_layer(_Derivation(lambda below: below.bound_by(bind)))

    def with_table(self, table: ToolTable) -> "Toolkit":
        """Return a toolkit that offers and runs the tools of the table; all else is that of this one."""
        return self._with_layer(table)

    @property
    def table(self) -> ToolTable:
        """The tools that it has now: the same object until these or the groups that are active change."""
        change, folded = self._registries[0].changes.last, self._folded
        if folded is None or folded[0] is not change:
            table = _EMPTY_TABLE
            for layer in self._layers:
                table = layer.over(table)
            folded = self._folded = change, table
        return folded[1]

    @property
    def binds(self) -> bool:
        """Whether it has a tool that is another one for each agent, by `ToolBase.bound_to`."""
        return self.table.binds

    @property
    def has_toolsets(self) -> bool:
        """Whether it has toolsets, so that its tools may change."""
        for registry in self._registries:  # noqa: SIM110  # each reply asks, and a generator costs more
            if registry.toolset_entries:
                return True
        return False

    @property
    def toolsets(self) -> list[Toolset]:
        """The toolsets whose tools it has."""
        return [entry.toolset for registry in self._registries for entry in registry.toolset_entries]

    def names_of(self, toolset: Toolset) -> list[str]:
        """Return the names of the tools of one of its toolsets, active or not; empty while it is not open."""
        entries = [entry for registry in self._registries for entry in registry.toolset_entries]
        return [name for entry in entries if entry.toolset is toolset and toolset.is_open for name in entry.names]

    async def __aenter__(self) -> Self:
        refuse_toolset_namesakes(self.toolsets)
        async with AsyncExitStack() as stack:
            toolkits = list(self.toolkits_to_open(set()))
            # Each once, though an agent may have it in two places.
            for toolset in dict.fromkeys(toolset for toolkit in toolkits for toolset in toolkit.toolsets):
                await stack.enter_async_context(toolset)
            await self.refresh(strict=True)
            tables = [toolkit.table for toolkit in toolkits]
            for toolkit in toolkits[1:]:
                await toolkit.refresh()
            if any(toolkit.table is not table for toolkit, table in zip(toolkits, tables, strict=True)):
                for toolkit in toolkits:
                    toolkit.note_change()  # the description of a tool may name the tools that it calls
            self.get_json_schemas()  # which raises for a name that a toolset shares with another tool
            self._exit_stacks.append(stack.pop_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit_stacks.pop().aclose()

    async def refresh(self, *, reserved: frozenset[str] = frozenset(), strict: bool = False) -> None:
        """Read the lists of the toolsets that have changed; for the runtime, which does it before each round.

        A tool whose name another tool has, or is among the `reserved`, is left out with a warning, or, if `strict`,
        refused. Raises `UsageError` for a toolset that is not open.
        """
        for registry in self._registries:
            for entry in registry.toolset_entries:
                listed = await entry.toolset.tools()
                if listed is not entry.listed:
                    position = self._registries.index(registry)
                    below = [frozenset(other.entries) for other in self._registries[:position]]
                    above = [other.static_names for other in self._registries[position + 1 :]]
                    registry.take_in(entry, listed, reserved | frozenset().union(*below, *above), strict=strict)

    def snapshot(self) -> "Toolkit":
        """Return a toolkit with the tools that this one has now, for one round; this one if it has no toolsets."""
        if not self.has_toolsets:
            return self
        table = self.table
        # The same one for all rounds, and all conversations, until the tools change.
        if self._snapshot is None or self._snapshot[0] is not table:
            self._snapshot = table, self.with_table(table)
        return self._snapshot[1]

    def note_change(self) -> None:
        """Have the schemas of the tools made again, since one of them describes itself in other words."""
        for registry in self._registries:
            registry.note_change()

    def toolkits_to_open(self, seen: set[int]) -> Iterator["Toolkit"]:
        """Yield this toolkit, and those of the tools in it, such as agents; none whose registries were all `seen`."""
        registries = [registry for registry in self._registries if id(registry) not in seen]
        if not registries:  # agents may call each other in a circle
            return
        seen.update(map(id, registries))
        yield self
        for registry in registries:
            for entry in list(registry.entries.values()):
                toolkit = entry.tool.inner_toolkit
                if isinstance(toolkit, Toolkit):
                    yield from toolkit.toolkits_to_open(seen)

    def check_open(self) -> None:
        """Raise `UsageError` unless all toolsets are open in this event loop."""
        for registry in self._registries:
            for entry in registry.toolset_entries:
                entry.toolset.check_open()

    @property
    def active_groups(self) -> list[str]:
        """The groups that are active in the toolkit's own setting, `basic` not counted."""
        names: list[str] = []
        for registry in self._registries:
            names += registry.active
        return names

    @property
    def groups(self) -> dict[str, list[str]]:
        """The names of the tools in each group, active or not, `basic` not counted."""
        entries = self.table.entries.items()
        return {group: [name for name, entry in entries if entry.group == group] for group in self.tool_groups}

    @property
    def tool_groups(self) -> dict[str, ToolGroup]:
        """The groups themselves, active or not, `basic` not counted."""
        return {name: group for registry in self._registries for name, group in registry.groups.items()}

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
        entry = self.table.entries.get(name)
        return entry.tool if entry else None

    def group_of(self, name: str) -> str | None:
        """Return the name of the group of a tool, `None` if the toolkit does not have that tool."""
        return self.table.group_of(name)

    def names(self, active_groups: Iterable[str] | None = None) -> list[str]:
        """Return the names of the tools that are offered, in the order of `get_json_schemas`."""
        return [schema["function"]["name"] for schema in self.get_json_schemas(active_groups)]

    def get_json_schemas(self, active_groups: Iterable[str] | None = None) -> list[JSONSchema]:
        """Return the schemas of the tools that are offered, in the form that OpenAI gave them.

        The list is made once for each choice of groups and then returned each time: copy it before you change it.
        """
        return self.table.schemas(active_groups)

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
        for registry in self._registries:
            if registry.toolset_entries:
                self.check_open()
        return self.table.prepare(tool_call, active_groups)

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

    def _with_layer(self, layer: _Layer, **attributes: object) -> "Toolkit":
        # Of the caller's class, so that what a subclass overrides holds.
        other = object.__new__(type(self))
        own = {"_layers": (*self._layers, layer), "_extends": None, "_folded": None, "_snapshot": None}
        vars(other).update(vars(self) | own | {"_exit_stacks": []} | attributes)
        return other

    def _add_group(self, registry: ToolRegistry, group: ToolGroup) -> None:
        check_group(group)
        if group.name == BASIC_GROUP or group.name in self.tool_groups:
            raise ToolConfigError(f"the toolkit already has a group {group.name!r}: choose another name")
        registry.add_group(group)
        for tool in group.tools:
            self.register_tool_function(tool, group_name=group.name)
        if group.active:
            registry.set_active([*registry.active, group.name])

    def _registry_of(self, group: str) -> ToolRegistry:
        for registry in self._registries:
            if group in registry.groups:
                return registry
        raise ToolConfigError(
            f"the toolkit has no group {group!r}: create it with create_tool_group, or take one of "
            f"{self._group_names()}"
        )

    def _set_active(self, names: Iterable[str]) -> None:
        chosen = set(names)
        for registry in self._registries:
            registry.set_active(chosen)

    def _check_groups(self, names: Iterable[str]) -> None:
        unknown = [name for name in names if name not in self.tool_groups and name != BASIC_GROUP]
        if unknown:
            raise ToolConfigError(f"the toolkit has no group {unknown[0]!r}: the groups are {self._group_names()}")

    def _group_names(self) -> str:
        return ", ".join(map(repr, (BASIC_GROUP, *self.tool_groups)))


def _as_tool(
    function: ToolLike,
    name: str | None = None,
    description: str | None = None,
    preset: Mapping[str, object] | None = None,
    json_schema: JSONSchema | None = None,
) -> ToolBase | Toolset:
    if isinstance(function, Toolset):
        return function
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
