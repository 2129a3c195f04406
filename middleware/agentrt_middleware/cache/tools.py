"""The tools whose results are cached, and the keys of their calls."""

import inspect
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
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
    """The keys of calls: equal for the same tool with the same arguments.

    A function is identified by its place in its module, in every process. Any other tool is identified as an object,
    in this process only: a method depends on its object, and a nested function on its
    closure. A tool that takes a `ToolContext` sees the conversation and its caller, so its results are for these
    alone.
    """

    def __init__(self) -> None:
        self._marks: dict[int, tuple[ref[Any], str]] = {}  # by the `id()` of the object, as long as it lives

    def __reduce__(self) -> tuple[type["ToolKeys"], tuple[()]]:
        return ToolKeys, ()  # objects are specific to a process

    def key(self, tool: ToolBase, call: ToolCallBlock, agent: AgentBase, caller: object) -> str:
        """Return the key of the call, which ignores ids and the order of arguments.

        `caller` is the identity of the caller for a tool with a `ToolContext`. Raises `TypeError` for a tool that is
        bound to an object, or sees one of its caller, that cannot be identified.
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
        place = ""
        with suppress(AttributeError, KeyError):
            # Its name will do if the module has it under that name.
            if attrgetter(function.__qualname__)(sys.modules[function.__module__]) == function:
                place = f"{function.__module__}.{function.__qualname__}"
        return [*described, place or self.mark(function)]

    def mark(self, value: Any) -> str:
        """Return a mark of the object that is unique among objects and processes."""
        if inspect.ismethod(value):  # each access to a method creates a new object
            return f"{self.mark(value.__self__)}.{value.__name__}"
        known = self._marks.get(id(value))
        if known is None:
            number = id(value)
            known = self._marks[number] = ref(value, lambda _: self._marks.pop(number, None)), token_hex(8)
        return known[1]
