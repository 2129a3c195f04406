"""Tools that are another tool for each agent that has them."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from agentrt.errors import ToolConfigError
from agentrt.text import repr_of
from agentrt.tool.base import ToolBase, check_tool
from agentrt.tool.toolkit import Toolkit

__all__ = ["ToolBindings"]


class ToolBindings:
    """What the tools of one agent are for it: each is asked once. Shared by the agent's conversations."""

    __slots__ = ("_toolkit", "_tools")

    def __init__(self) -> None:
        self._tools: dict[int, tuple[ToolBase, ToolBase]] = {}  # by the `id()` of the first, which is kept with it
        self._toolkit: tuple[Toolkit, Toolkit] | None = None

    def toolkit(self, agent: Any, toolkit: Toolkit) -> Toolkit:
        """Return the toolkit with its tools as they are for the agent; the same one where `bound_to` changes none."""
        if not toolkit.binds:
            return toolkit
        if self._toolkit is None or self._toolkit[0] is not toolkit:
            self._toolkit = toolkit, toolkit.bound_by(partial(self.tool, agent))
        return self._toolkit[1]

    def tool(self, agent: Any, tool: ToolBase) -> ToolBase:
        """Return what the tool is for the agent."""
        if type(tool).bound_to is ToolBase.bound_to:
            return tool
        known = self._tools.get(id(tool))
        if known is None:
            bound: object = tool.bound_to(agent)
            if not isinstance(bound, ToolBase) or bound.name != tool.name:
                raise ToolConfigError(
                    f"{type(tool).__name__}.bound_to() of {tool.name!r} must return a ToolBase of the same name, not "
                    f"{repr_of(bound)}: return self, or a copy"
                )
            check_tool(bound)
            known = self._tools[id(tool)] = tool, bound
        return known[1]

    def bind_all(self, agent: Any, toolkit: Toolkit) -> None:
        """Ask all tools that the toolkit has now, those of groups that are not active too."""
        if toolkit.binds:
            self.toolkit(agent, toolkit).get_json_schemas(toolkit.groups)

    @property
    def bound(self) -> Iterable[ToolBase]:
        """The tools that are another one for the agent, or could have been, in the order in which they were asked."""
        return [bound for _, bound in self._tools.values()]
