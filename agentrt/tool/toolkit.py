"""The tools that an agent has."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from agentrt.block import TextBlock, ToolCallBlock, ToolResultState
from agentrt.errors import ToolConfigError
from agentrt.module import StateModule
from agentrt.text import short_repr
from agentrt.tool.arguments import ArgumentsError
from agentrt.tool.base import ToolBase, call_plan_of, check_name, check_tool, tool_location
from agentrt.tool.call import PreparedCall, run_call
from agentrt.tool.context import ToolContext
from agentrt.tool.function import FunctionTool
from agentrt.tool.group import BASIC, META_TOOL, MetaTool, ToolGroup, describe
from agentrt.tool.invocation import CallPlan
from agentrt.tool.json_schema.compiler import describe_parameters
from agentrt.tool.offer import schema_of
from agentrt.tool.to_response import check_failure_text, failure
from agentrt.types import JSONSchema, ToolChunk, ToolResponse

__all__ = ["Toolkit"]

_MAX_LISTED = 50
_MAX_CACHED = 64
_STATE = "active_groups"

Namesake = Literal["raise", "override", "skip", "rename"]


@dataclass(slots=True)
class _Entry:
    tool: ToolBase
    plan: CallPlan
    group: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _enter, (self.tool, self.group)  # the plan goes into no pickle


def _enter(tool: ToolBase, group: str) -> _Entry:
    return _Entry(tool, call_plan_of(tool), group)


class Toolkit(StateModule):
    """The tools of an agent: functions and `ToolBase`s, some of them in groups that can be switched on and off.

    A toolkit may serve many conversations at once: which groups are active is given to each method that depends on it;
    where nothing is given, the toolkit's own setting holds. Raises `ToolConfigError` for what cannot be a tool.

    Its state is that setting, with which new conversations begin; a conversation that has chosen groups of its own
    keeps them in its `AgentState`. What is registered later is offered from the next round on, in every agent that has
    this toolkit, whether or not the agent has further tools from its middlewares.
    """

    def __init__(self, tools: Iterable[Callable[..., Any] | ToolBase] = (), groups: Iterable[ToolGroup] = ()) -> None:
        super().__init__()
        self._entries: dict[str, _Entry] = {}
        self._groups: dict[str, ToolGroup] = {}
        self._active: list[str] = []
        self._schemas: dict[tuple[str, ...], list[JSONSchema]] = {}
        for name, given in (("tools", tools), ("groups", groups)):
            if isinstance(given, (str, ToolBase, ToolGroup)) or not isinstance(given, Iterable):
                raise ToolConfigError(f"Toolkit({name}=...) takes a list, not {given!r:.200}: write {name}=[...]")
        for tool in tools:
            self.register_tool_function(tool)
        for group in groups:
            self._add_group(group)

    def register_tool_function(
        self,
        function: Callable[..., Any] | ToolBase,
        *,
        group_name: str = BASIC,
        preset_kwargs: Mapping[str, Any] | None = None,
        func_name: str | None = None,
        func_description: str | None = None,
        json_schema: JSONSchema | None = None,
        namesake: Namesake = "raise",
    ) -> None:
        """Add a function, or a finished tool.

        `preset_kwargs` are passed at each call and hidden from the model. `json_schema` is the schema of the
        parameters, or the whole `{"type": "function", "function": {...}}`. `namesake` says what to do when the name is
        taken: "raise", "override" the old tool, "skip" the new one, or "rename" it by a number at its end.
        """
        if function == self.reset_equipped_tools:
            return  # 1.x asked for this; here it is offered as soon as there are groups
        if group_name != BASIC and group_name not in self._groups:
            raise ToolConfigError(
                f"there is no group {group_name!r}: create it with create_tool_group, or take one of "
                f"{self._group_names()}"
            )
        given = {"name": func_name, "description": func_description}
        tool = _as_tool(function, given, preset_kwargs, json_schema)
        chosen = self._settle(tool, namesake)
        if chosen is not None:
            self._entries[chosen.name] = _Entry(chosen, call_plan_of(chosen), group_name)
            self._schemas.clear()

    def create_tool_group(self, name: str, description: str, active: bool = False, notes: str | None = None) -> None:
        """Add an empty group; `notes` tell the model how to use its tools, once they are active."""
        self._add_group(ToolGroup(name, description, active, notes=notes))

    def update_tool_groups(self, names: Iterable[str], active: bool) -> None:
        """Switch groups on or off in the toolkit's own setting, with which new conversations begin."""
        names = [names] if isinstance(names, str) else list(names)
        self._check_groups(names)
        wanted = {*self._active, *names} if active else {*self._active} - {*names}
        self._set_active(wanted)

    def reset_equipped_tools(self, **groups: bool) -> ToolResponse:
        """Set the toolkit's own setting of all groups at once: those not given are switched off.

        Models call the tool of the same name, which is offered when there are groups, and which changes only the
        conversation that it is called in.
        """
        self._check_groups(groups)
        self._set_active(name for name, active in groups.items() if active)
        return ToolResponse([TextBlock(describe([self._groups[name] for name in self._active]))])

    def with_tools(self, tools: Sequence[Callable[..., Any] | ToolBase], *, override: bool = False) -> "Toolkit":
        """Return a toolkit with the tools of this one, now and later, and further ones; this one if there are none.

        The further tools do not enter this toolkit, but whatever is registered or set in the new one later enters this
        one. With `override`, further tools hide tools of the same name.
        """
        return _ExtendedToolkit(self, tools, override) if tools else self

    @property
    def active_groups(self) -> list[str]:
        """The groups that are active in the toolkit's own setting, `basic` not counted."""
        return list(self._active)

    def state_dict(self) -> dict[str, Any]:
        """Return the state: which groups are active in the toolkit's own setting."""
        return {**super().state_dict(), _STATE: self.active_groups}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Take over a state that `state_dict` returned, whole or not at all.

        Raises `KeyError` for a state that lacks something, `ValueError` for one that has something else, and
        `ToolConfigError` for groups that the toolkit does not have; unless `strict`, these are passed over.
        """
        active = _active_in(state_dict, strict, self.state_dict())
        if strict:
            self._check_groups(active or ())
        super().load_state_dict(state_dict, strict)
        if active is not None:
            self._set_active(active)

    def get(self, name: str) -> ToolBase | None:
        """Return the tool of that name, in whatever group it is."""
        entry = self._entries.get(name)
        return entry.tool if entry else None

    def names(self, active_groups: Iterable[str] | None = None) -> list[str]:
        """Return the names of the tools that are offered, in the order of `get_json_schemas`."""
        return [schema["function"]["name"] for schema in self.get_json_schemas(active_groups)]

    def get_json_schemas(self, active_groups: Iterable[str] | None = None) -> list[JSONSchema]:
        """Return the schemas of the tools that are offered, in the form that OpenAI gave them.

        The list is made once for each choice of groups and handed out again and again: copy it before you change it.
        """
        key = self._active if active_groups is None else active_groups
        key = tuple(key)
        found = self._schemas.get(key)
        return self._make_schemas(key) if found is None else found

    def prepare(
        self, tool_call: ToolCallBlock, active_groups: Iterable[str] | None = None
    ) -> PreparedCall | ToolResponse:
        """Check a call without running anything: returns what `run_call` takes, or a result that says what is wrong."""
        name, text = tool_call.name, tool_call.input
        entry = self._entries.get(name)
        if entry is None:
            return self._unknown(name, active_groups)
        if entry.group != BASIC and entry.group not in (self._active if active_groups is None else active_groups):
            return _inactive(name, entry.group)
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
        prepared = self.prepare(tool_call)
        if isinstance(prepared, PreparedCall) and (prepared.tool.is_external_tool or prepared.tool.ask):
            prepared = _unattended(prepared.name, prepared.tool.is_external_tool)
        return _only(prepared) if isinstance(prepared, ToolResponse) else run_call(prepared, context)

    def _add_group(self, group: ToolGroup) -> None:
        check_name("group", group.name)
        if group.name == BASIC or group.name in self._groups:
            raise ToolConfigError(f"there is a group {group.name!r} already: choose another name")
        self._groups[group.name] = group
        self._renew_meta_tool()
        for tool in group.tools:
            self.register_tool_function(tool, group_name=group.name)
        if group.active:
            self._set_active([*self._active, group.name])

    def _renew_meta_tool(self) -> None:
        if not self._groups:
            return
        found = self._entries.pop(META_TOOL, None)
        if found is not None and not isinstance(found.tool, MetaTool):
            raise ToolConfigError(
                f"{META_TOOL!r} is the tool that switches groups, but {tool_location(found.tool)} has that name: "
                f"rename it"
            )
        tool = MetaTool(dict(self._groups), self._set_active)
        self._entries[META_TOOL] = _Entry(tool, call_plan_of(tool), BASIC)
        self._schemas.clear()

    def _settle(self, tool: ToolBase, namesake: Namesake) -> ToolBase | None:
        """Return the tool to add, under the name that it is to have, if it is to be added at all."""
        found = self._entries.get(tool.name)
        if found is None or namesake == "override":
            return tool
        if namesake == "skip":
            return None
        if namesake == "rename":
            return tool.with_name(self._free_name(tool.name))
        raise _namesakes(tool.name, found.tool, tool)

    def _free_name(self, name: str) -> str:
        number = 2
        while f"{name}_{number}" in self._entries:
            number += 1
        return f"{name}_{number}"

    def _set_active(self, names: Iterable[str]) -> None:
        wanted = set(names)
        self._active = [name for name in self._groups if name in wanted]

    def _check_groups(self, names: Iterable[str]) -> None:
        unknown = [name for name in names if name not in self._groups and name != BASIC]
        if unknown:
            raise ToolConfigError(f"there is no group {unknown[0]!r}: the groups are {self._group_names()}")

    def _group_names(self) -> str:
        return ", ".join(map(repr, (BASIC, *self._groups)))

    def _make_schemas(self, key: tuple[str, ...]) -> list[JSONSchema]:
        entries = list(self._entries.values())  # another thread may register a tool meanwhile
        schemas = [schema_of(each.tool) for each in entries if each.group in (BASIC, *key)]
        if len(self._schemas) >= _MAX_CACHED:
            self._schemas.clear()
        self._schemas[key] = schemas
        return schemas

    def _unknown(self, name: str, active_groups: Iterable[str] | None) -> ToolResponse:
        names = self.names(active_groups)
        near = get_close_matches(str(name)[:64], names, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        listed = ", ".join(names[:_MAX_LISTED]) + (", ..." if len(names) > _MAX_LISTED else "")
        return failure(f"There is no tool {short_repr(name)}.{hint} The tools are: {listed or 'none'}.")


class _ExtendedToolkit(Toolkit):
    """A toolkit with further tools of its own; all else is that of the toolkit which it extends, now and later."""

    def __init__(self, base: Toolkit, tools: Sequence[Callable[..., Any] | ToolBase], override: bool) -> None:
        super().__init__(tools)
        self._base = base
        self._override = override
        self._joined: dict[tuple[str, ...], tuple[list[JSONSchema], list[JSONSchema]]] = {}
        self.get_json_schemas()

    def register_tool_function(self, *args: Any, **kwargs: Any) -> None:
        if "_base" in vars(self):
            self._base.register_tool_function(*args, **kwargs)
        else:  # a tool of its own
            super().register_tool_function(*args, **kwargs)

    def create_tool_group(self, *args: Any, **kwargs: Any) -> None:
        self._base.create_tool_group(*args, **kwargs)

    def update_tool_groups(self, names: Iterable[str], active: bool) -> None:
        self._base.update_tool_groups(names, active)

    def reset_equipped_tools(self, **groups: bool) -> ToolResponse:
        return self._base.reset_equipped_tools(**groups)

    @property
    def active_groups(self) -> list[str]:
        return self._base.active_groups

    def state_dict(self) -> dict[str, Any]:
        return self._base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        self._base.load_state_dict(state_dict, strict)

    def get(self, name: str) -> ToolBase | None:
        entry = self._entries.get(name)
        return self._base.get(name) if entry is None else entry.tool

    def get_json_schemas(self, active_groups: Iterable[str] | None = None) -> list[JSONSchema]:
        key = tuple(self.active_groups if active_groups is None else active_groups)
        schemas = self._base.get_json_schemas(key)
        found = self._joined.get(key)
        if found is None or found[0] is not schemas:  # which is another list once anything has changed
            for name, entry in self._entries.items():
                namesake = None if self._override else self._base.get(name)
                if namesake is not None:
                    raise _namesakes(name, namesake, entry.tool)
            if len(self._joined) >= _MAX_CACHED:
                self._joined.clear()
            others = [schema for schema in schemas if schema["function"]["name"] not in self._entries]
            found = self._joined[key] = (schemas, [*others, *super().get_json_schemas(())])
        return found[1]

    def prepare(
        self, tool_call: ToolCallBlock, active_groups: Iterable[str] | None = None
    ) -> PreparedCall | ToolResponse:
        name = tool_call.name
        if name not in self._entries and self._base.get(name) is not None:
            return self._base.prepare(tool_call, active_groups)
        return super().prepare(tool_call, active_groups)


def _namesakes(name: str, first: ToolBase, second: ToolBase) -> ToolConfigError:
    return ToolConfigError(
        f"two tools are called {name!r}: {tool_location(first)} and {tool_location(second)}; "
        f'rename one with func_name=..., or say what to do with namesake="override", "skip" or "rename"'
    )


def _as_tool(
    function: Any, given: dict[str, Any], preset: Mapping[str, Any] | None, json_schema: JSONSchema | None
) -> ToolBase:
    if not isinstance(function, ToolBase):
        return FunctionTool(function, **given, preset_kwargs=preset, json_schema=json_schema)
    if preset or json_schema or any(given.values()):
        raise ToolConfigError(
            f"{function.name} is a finished tool: give name, description, preset_kwargs and json_schema where it is "
            f"made"
        )
    check_tool(function)
    return function


def _active_in(state: Any, strict: bool, own: dict[str, Any]) -> list[str] | None:
    if not isinstance(state, dict):
        raise TypeError(
            f"the state of a toolkit must be a dict, as state_dict() returns it, not a {type(state).__name__}"
        )
    extra = [key for key in state if key not in own]
    if strict and extra:
        raise ValueError(f"the state is of something else than this toolkit, which has no {extra[0]!r:.100}")
    if _STATE not in state:
        if strict:
            raise KeyError(f"the state of a toolkit must have {_STATE!r}, a list of the names of groups")
        return None
    active = state[_STATE]
    if not isinstance(active, list) or not all(isinstance(name, str) for name in active):
        raise TypeError(f"{_STATE!r} in the state of a toolkit must be a list of the names of groups")
    return active


def _unattended(name: str, external: bool) -> ToolResponse:
    # Only a reply can wait for somebody, and a tool that needs that must not run without it.
    why = "it runs outside of this program" if external else "a person must agree to it first"
    return failure(f"{name} was not run: {why}, and nobody can be asked here.", ToolResultState.DENIED)


def _inactive(name: str, group: str) -> ToolResponse:
    return failure(
        f"{name} was not run: its group {group!r} is not active. Call {META_TOOL} with {group!r} set to true first, "
        f"together with the groups that you want to keep."
    )


async def _only(response: ToolResponse) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
    yield response
