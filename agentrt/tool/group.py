"""Groups of tools that come and go, and the tool by which a model chooses among them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrt._runtime.text import repr_of
from agentrt.errors import ToolConfigError
from agentrt.tool.base import ToolBase, check_name
from agentrt.tool.context import ToolContext
from agentrt.types import ToolFlow

BASIC_GROUP = "basic"
"""The group of the tools that are always offered."""

META_TOOL = "reset_equipped_tools"


@dataclass(slots=True)
class ToolGroup:
    """Tools that are offered together, or not at all.

    `description` tells the model what the group is for, `notes` how to use its tools, once they are offered. `active`
    is the state in which a conversation begins.
    """

    name: str
    description: str
    active: bool = False
    tools: Sequence[Any] = field(default_factory=list)
    notes: str | None = None


def check_group(group: ToolGroup) -> None:
    """Raise `ToolConfigError` for a group with a field of a wrong type."""
    check_name("group", group.name)
    tools: object = group.tools
    for parameter, value, is_right, what in (
        ("description", group.description, isinstance(group.description, str), "a str, which the model reads"),
        ("active", group.active, isinstance(group.active, bool), "True or False"),
        ("tools", tools, isinstance(tools, (list, tuple)), "a list of tools"),
        ("notes", group.notes, group.notes is None or isinstance(group.notes, str), "a str or None"),
    ):
        if not is_right:
            raise ToolConfigError(f"{parameter}=... of the group {group.name!r} must be {what}, not {repr_of(value)}")


class MetaTool(ToolBase):
    """Sets which groups are offered, all of them at once."""

    name = META_TOOL
    description = (
        "Choose which groups of tools you are offered. The choice is absolute: groups that you set to true are "
        "offered, all others are not."
    )
    is_concurrency_safe = False
    is_read_only = changes_conversation = True
    flow = ToolFlow(trusted_output=True)

    def __init__(self, groups: Mapping[str, ToolGroup], activate: Callable[[list[str]], object]) -> None:
        self.groups = groups
        self.activate = activate
        self.input_schema = {
            "type": "object",
            "properties": {
                name: {"type": "boolean", "description": group.description, "default": False}
                for name, group in groups.items()
            },
            "additionalProperties": False,
        }

    # The long name, since every group's name is a parameter as well.
    async def call(self, _context_of_this_call: ToolContext, **groups: bool) -> str:
        """Set the groups of the conversation that the call belongs to; without one, the toolkit's own."""
        active = [name for name in self.groups if groups.get(name)]
        if _context_of_this_call.run is None:
            self.activate(active)
        else:
            _context_of_this_call.set_active_groups(active)
        return describe_active_groups([self.groups[name] for name in active])


def describe_active_groups(active: Sequence[ToolGroup]) -> str:
    """Return the message to the model about the groups that are now offered."""
    if not active:
        return f"Active now: only the tools that are always offered (group {BASIC_GROUP!r})."
    names = ", ".join(group.name for group in active)
    notes = [f"{group.name}: {group.notes}" for group in active if group.notes]
    return "\n\n".join([f"Active now, besides the tools that are always offered: {names}.", *notes])
