"""Which tools' results are kept, and what their calls are known by."""

import inspect
import json
import sys
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from operator import attrgetter
from secrets import token_hex
from typing import Any
from weakref import ref

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError
from agentrt.message import ToolCallBlock
from agentrt.tool import FunctionTool, ToolBase
from agentrt_middleware.validation import check_number

__all__ = ["ToolKeys", "check_tools"]


def check_tools(tools: object) -> dict[str, float]:
    """Return the names and seconds as a dict; raises `MiddlewareConfigError` for anything else."""
    if not (tools is None or isinstance(tools, Mapping)):
        raise MiddlewareConfigError(
            f"CacheMiddleware(tools=...) must be a dict of names and seconds, not {tools!r:.200}: write "
            f"tools={{'search': 600}}"
        )
    for name, seconds in (tools or {}).items():
        if not isinstance(name, str):
            raise MiddlewareConfigError(f"CacheMiddleware(tools=...) has {name!r:.200}: give the name of a tool")
        check_number(f"CacheMiddleware(tools=...) for {name!r}", seconds, finite=True)
    return dict(tools or {})


class ToolKeys:
    """The keys of calls: two are equal if the same tool would be run with the same arguments.

    A function is known by its place in its module, in every process. Any other tool is known as the object that it is,
    in this process: a method, for one, depends on its object, and a function that a function has made on what it
    was made with. One that takes a `ToolContext` sees the conversation and its caller, so its results are for these
    alone.
    """

    def __init__(self) -> None:
        self._marks: dict[int, tuple[ref[Any], str]] = {}  # by the `id()` of the object, as long as it lives

    def __reduce__(self) -> tuple[type["ToolKeys"], tuple[()]]:
        return ToolKeys, ()  # the objects of one process are not those of another

    def key(self, tool: ToolBase, call: ToolCallBlock, agent: AgentBase, caller: object) -> str:
        """Return the key of the call, for which the order of arguments and ids do not count.

        `caller` is what a tool with a `ToolContext` may learn of its caller. Raises `TypeError` for a tool that is
        bound to an object, or sees one of its caller, that cannot be told from others.
        """
        try:
            arguments: object = json.loads(call.input or "{}")
        except ValueError:
            arguments = call.input
        seen = [agent.state.session_id, caller] if tool.takes_context else None
        described = [call.name, tool.description, tool.input_schema, arguments, seen, *self._describe(tool)]
        return sha256(json.dumps(described, sort_keys=True, default=self.mark).encode()).hexdigest()

    def _describe(self, tool: ToolBase) -> list[object]:
        if not isinstance(tool, FunctionTool):
            return [self.mark(tool)]
        function: Any = tool.function
        described: list[object] = [tool.preset_kwargs]
        while isinstance(function, partial):
            described += [function.args, function.keywords]
            function = function.func
        is_known = _stands_at_its_place(function)
        place = f"{function.__module__}.{function.__qualname__}" if is_known else self.mark(function)
        return [*described, place]

    def mark(self, value: Any) -> str:
        """Return a mark that no other object has, nor this one in another process."""
        if inspect.ismethod(value):  # each look at a method makes another one
            return f"{self.mark(value.__self__)}.{value.__name__}"
        known = self._marks.get(id(value))
        if known is None:
            number = id(value)
            known = self._marks[number] = ref(value, lambda _: self._marks.pop(number, None)), token_hex(8)
        return known[1]


def _stands_at_its_place(function: Any) -> bool:
    """Say whether the function is what its module has under its name."""
    try:
        return bool(attrgetter(function.__qualname__)(sys.modules[function.__module__]) == function)
    except (AttributeError, KeyError):
        return False
