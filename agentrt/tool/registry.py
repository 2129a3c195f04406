"""The tools that are registered with a toolkit, the groups that they are in, and the toolsets that some come from."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Literal

from agentrt.errors import ToolConfigError
from agentrt.tool.base import ToolBase, check_tool, tool_location
from agentrt.tool.group import BASIC_GROUP, META_TOOL, MetaTool, ToolGroup
from agentrt.tool.table import ToolEntry, ToolTable, is_bindable, namesake_error
from agentrt.tool.toolset import Toolset, check_toolset
from agentrt.types import JSONObject

Namesake = Literal["raise", "override", "skip", "rename"]

_logger = logging.getLogger("agentrt")


class Changes:
    """Whether any of the registries that share it has changed: `last` is another object after each change."""

    def __init__(self) -> None:
        self.last = object()


@dataclass(slots=True, repr=False, eq=False)
class ToolsetEntry:
    """A toolset, the group of its tools, and the names of those that the registry has taken in."""

    toolset: Toolset
    group: str
    listed: tuple[ToolBase, ...] | None = None
    names: list[str] = field(default_factory=list)


class ToolRegistry:
    """One layer of a toolkit: tools, in groups, and toolsets.

    `active` are the groups that are switched on where a conversation has made no choice of its own. A registry that
    `overrides` hides tools of the same name in the layers below; otherwise two of one name are refused.
    """

    def __init__(self, *, overrides: bool = False) -> None:
        self.entries: dict[str, ToolEntry] = {}
        self.groups: dict[str, ToolGroup] = {}
        self.active: list[str] = []
        self.toolset_entries: list[ToolsetEntry] = []
        self.changes = Changes()
        self._overrides = overrides
        self._last_change: object = None
        self._folded: tuple[object, ToolTable, ToolTable] | None = None

    def __getstate__(self) -> JSONObject:
        return {**vars(self), "_folded": None}

    @property
    def static_names(self) -> frozenset[str]:
        """The names of its tools, without those of toolsets."""
        return frozenset(self.entries).difference(*(entry.names for entry in self.toolset_entries))

    def add(self, tool: ToolBase | Toolset, group: str = BASIC_GROUP, namesake: Namesake = "raise") -> None:
        """Add a tool that was checked, or a toolset, whose tools `take_in` adds.

        `namesake` says what to do when the name of the tool is taken.
        """
        if isinstance(tool, Toolset):
            check_toolset(tool)
            refuse_toolset_namesakes([*(entry.toolset for entry in self.toolset_entries), tool])
            self.toolset_entries.append(ToolsetEntry(tool, group))
            return
        entry = self.entries.get(tool.name)
        if entry is not None and namesake == "skip":
            return
        if entry is not None and namesake == "rename":
            numbered = (f"{tool.name}_{number}" for number in count(2))
            tool = tool.with_name(next(name for name in numbered if name not in self.entries))
        elif entry is not None and namesake != "override":
            raise namesake_error(entry.tool, tool)
        self.entries[tool.name] = ToolEntry.of(tool, group)
        self.note_change()

    def remove(self, name: str) -> None:
        del self.entries[name]
        self.note_change()

    def add_group(self, group: ToolGroup) -> None:
        """Add a group of another name than all others, without its tools, and renew the tool that switches groups."""
        entry = self.entries.get(META_TOOL)
        if entry is not None and not isinstance(entry.tool, MetaTool):
            raise ToolConfigError(
                f"{META_TOOL!r} is the tool that switches groups, but {tool_location(entry.tool)} has that name: "
                f"rename it"
            )
        self.groups[group.name] = group
        self.entries.pop(META_TOOL, None)
        # A new one each time, since its schema names the groups.
        self.entries[META_TOOL] = ToolEntry.of(MetaTool(dict(self.groups), self.set_active))
        self.note_change()

    def set_active(self, names: Iterable[str]) -> None:
        """Switch on those of its groups that are among the names, and the others off."""
        chosen = set(names)
        # In the order of the groups, so that one choice has one key among the cached schemas.
        active = [name for name in self.groups if name in chosen]
        if active != self.active:
            self.active = active
            self.note_change()

    def take_in(
        self, entry: ToolsetEntry, listed: tuple[ToolBase, ...], reserved: Collection[str], *, strict: bool
    ) -> None:
        """Put the tools of a toolset in the place of those that it had before.

        One whose name is taken, or `reserved`, is left out with a warning, or, if `strict`, refused.
        """
        # Its old tools go even where their names come again: they may be other tools.
        others = {name: other for name, other in self.entries.items() if name not in entry.names}
        taken: dict[str, ToolEntry] = {}
        for tool in listed:
            check_tool(tool)
            owner = "another of its tools" if tool.name in taken else self._owner_of(tool.name, others, reserved)
            if owner is None:
                taken[tool.name] = ToolEntry.of(tool, entry.group)
                continue
            problem = (
                f"the toolset {entry.toolset.name!r} has a tool {tool.name!r}, which is the name of {owner} as well"
            )
            if strict:
                raise ToolConfigError(problem)
            _logger.warning("%s: the tool of the toolset is left out", problem)
        self.entries = others | taken
        entry.listed, entry.names = listed, list(taken)
        self.note_change()

    def over(self, below: ToolTable) -> ToolTable:
        """Return the tools of the table and its own: the same object until something changes."""
        folded, change = self._folded, self._last_change
        if folded is None or folded[0] is not change or folded[1] is not below:
            folded = self._folded = change, below, self._fold(below)
        return folded[2]

    def _fold(self, below: ToolTable) -> ToolTable:
        own, binds = dict(self.entries), below.binds  # a copy, since another thread may register a tool meanwhile
        for name, entry in own.items():
            binds = binds or is_bindable(entry.tool)
            if name not in below.entries:
                continue
            namesake = below.entries[name].tool
            if isinstance(entry.tool, MetaTool) and isinstance(namesake, MetaTool):
                groups = {**namesake.groups, **self.groups}
                own[name] = ToolEntry.of(MetaTool(groups, partial(self._activate_all, namesake)))
            elif not self._overrides:
                raise namesake_error(namesake, entry.tool)
        if not below.entries:
            return ToolTable.of_entries(own, self.active, binds=binds)
        others = {name: entry for name, entry in below.entries.items() if name not in own}
        return ToolTable.of_entries(others | own, [*below.active_groups, *self.active], binds=binds)

    def _activate_all(self, below: MetaTool, names: list[str]) -> None:
        below.activate(names)
        self.set_active(names)

    def _owner_of(self, name: str, others: Mapping[str, ToolEntry], reserved: Collection[str]) -> str | None:
        """Say which other tool has the name of a toolset's tool, if one has it."""
        if name in others:
            toolset = next((one.toolset for one in self.toolset_entries if name in one.names), None)
            return tool_location(others[name].tool) if toolset is None else f"one of the toolset {toolset.name!r}"
        return "a tool of the agent's middlewares" if name in reserved else None

    def note_change(self) -> None:
        """Have tables made again: of other tools, or of tools that say something else."""
        self._last_change = self.changes.last = object()


def refuse_toolset_namesakes(toolsets: Sequence[Toolset]) -> None:
    """Raise `ToolConfigError` for two toolsets of one name."""
    names = [toolset.name for toolset in toolsets]
    for name in names:
        if names.count(name) > 1:
            raise ToolConfigError(f"two toolsets of the toolkit are called {name!r}: give each a name of its own")
