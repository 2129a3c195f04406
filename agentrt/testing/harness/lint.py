"""A layer that watches the next inner layer, and names it when it breaks the contract of a hook."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import anyio

from agentrt._runtime.chain.chains import Chains
from agentrt._runtime.chain.check import overrides
from agentrt._runtime.chain.spec import HookSpec, Values
from agentrt._runtime.conversation.run import Run
from agentrt._runtime.model_interface.prefix import Prefix, moved_parts
from agentrt.errors import ChainContractError
from agentrt.hooks import HOOKS, MiddlewareBase
from agentrt.message import SystemMsg, ToolCallBlock
from agentrt.testing.harness.full_text import full_text
from agentrt.tool import ToolBase
from agentrt.types import ToolChoice

_ResultT = TypeVar("_ResultT")

_logger = logging.getLogger("agentrt")

_END = object()
_IGNORED_VARIABLES = {"decimal_context"}  # set by a program's first decimal calculation
_SHARED_KEYS = {"inputs", "messages", "msg", "speech", "tool_choice", "tool_input", "tools"}
_SPECS = {spec.name: spec for spec in HOOKS}
_NAMES_OF_PARTS = {"tools": "tools", "system": "system prompt", "history": "history"}


class _Requests:
    """The values that have passed a `Lint` in one conversation.

    `latest` is the last request of each stage and purpose; `pairs` has the last of each kind, after what the next outer
    `Lint` had seen then.
    """

    def __init__(self) -> None:
        self.latest: dict[tuple[str | None, ...], Prefix] = {}
        self.pairs: dict[tuple[str | None, ...], tuple[Prefix, Prefix]] = {}


class LintedAgent(Protocol):
    """The part of an agent that a `Lint` uses."""

    @property
    def chains(self) -> Chains: ...
    @property
    def run(self) -> Run: ...


def lint(middlewares: Sequence[MiddlewareBase]) -> list[MiddlewareBase]:
    """Return the middlewares with a `Lint` around each, and one around the core.

    For tests and debugging: `Agent(..., middlewares=lint([A(), B()]))`. The runtime names the hook with the
    broken contract; this names the layer, and checks some things that the runtime does not.
    """
    lint_class = lint_class_for(middlewares)
    layers: list[MiddlewareBase] = []
    for middleware in middlewares:
        layers += [lint_class(middleware), middleware]
    around_core = lint_class("the core")
    if layers and layers[-1].position == "innermost":
        around_core.position = "innermost"
    return [*layers, around_core]


def _stream_hook(name: str) -> Any:
    spec = _SPECS[name]

    async def hook(
        self: "Lint", agent: LintedAgent, input_kwargs: Values, next_handler: Callable[..., AsyncIterator[object]]
    ) -> AsyncGenerator[object, None]:
        watch = _CallWatch(self, spec, input_kwargs)
        items = watch.items(next_handler(**input_kwargs), spec.terminal)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    return hook


def _call_hook(name: str) -> Any:
    spec = _SPECS[name]

    async def hook(
        self: "Lint", agent: LintedAgent, input_kwargs: Values, next_handler: Callable[..., Awaitable[object]]
    ) -> object:
        watch = _CallWatch(self, spec, input_kwargs)
        notes = agent.run.scratch(self) if name == "on_model_call" else {}
        if name == "on_model_call":
            self.compare_request(agent, input_kwargs)
        notes["gave_last"] = False
        result = await watch.step(next_handler(**input_kwargs), "returns", None)
        watch.check_values()
        return watch.responses(agent, aiter(result), notes) if isinstance(result, AsyncIterator) else result

    return hook


class Lint(MiddlewareBase):
    """Watches the next inner layer, and raises a `ChainContractError` that names it.

    It finds: an item of a wrong type, a missing last item, anything after the last item, a model's stream without any
    response, or without the one with `is_last` that came from further in, a change of the lists and messages that the
    layer was given, or of what an observer sees (what is printed keeps growing, but not while a layer has it), a part
    of a request that is not what it was in the last one, where the layer does not say so in `rewrites`, a
    `yield` or `return` inside an open cancel scope or task group, and a `ContextVar` left changed while its reader
    runs. `problems` has the same in words,
    even if the error was swallowed. Violations that the runtime itself reports are not repeated.
    """

    def __init__(self, watched: MiddlewareBase | str) -> None:
        self.problems: list[str] = []
        self.shown: dict[int, str] = {}
        self.watched = watched
        self.seen: WeakKeyDictionary[object, _Requests] = WeakKeyDictionary()
        if isinstance(watched, MiddlewareBase):
            self.position = watched.position  # allowed wherever the layer is

    def __repr__(self) -> str:
        name = self.watched if isinstance(self.watched, str) else type(self.watched).__name__
        return f"Lint({name})"

    on_reply = _stream_hook("on_reply")
    on_reasoning = _stream_hook("on_reasoning")
    on_acting = _stream_hook("on_acting")
    on_model_call = _call_hook("on_model_call")
    on_check_permission = _call_hook("on_check_permission")
    on_compress_context = _call_hook("on_compress_context")
    on_observe = _call_hook("on_observe")
    # The runtime itself names the layer that breaks the contract of on_system_prompt or on_tools.

    def look(self, agent: LintedAgent, item: object) -> None:
        """Record the event for the next inner observer, and name the outer one if it changed it."""
        lints = [middleware for middleware in agent.chains.middlewares if isinstance(middleware, Lint)]
        place = lints.index(self)
        # Each removes the record of the one before: the id of a freed object may be reused.
        now = full_text(item)
        before = lints[place - 1].shown.pop(id(item), now) if place else now
        if before != now:
            outer = lints[place - 1]
            watched = outer.watched if isinstance(outer.watched, str) else type(outer.watched).__name__
            problem = (
                f"{watched} changed the {type(item).__name__} that it was shown, which belongs to the reply: an "
                f"observer looks and changes nothing, so change a copy"
            )
            outer.problems.append(problem)
            _logger.error("%s", problem)
        if place + 1 < len(lints):  # otherwise nobody checks for a change
            self.shown[id(item)] = now

    async def see_prompt(self, agent: LintedAgent, current_prompt: str) -> str:
        """Compare the system prompt with the last one."""
        self._compare(agent, ("on_system_prompt",), (), ([], [SystemMsg("system", current_prompt)]))
        return current_prompt

    async def see_tools(self, agent: LintedAgent, current_tools: list[ToolBase]) -> list[ToolBase]:
        """Compare the tools of a round with those of the last one."""
        tools = [{"name": tool.name, "text": tool.description, "input": tool.input_schema} for tool in current_tools]
        self._compare(agent, ("on_tools",), (), (tools, []))
        return current_tools

    def compare_request(self, agent: LintedAgent, values: Any) -> None:
        """Compare a request with the last one of its purpose to its model."""
        choice = values["tool_choice"] or ToolChoice()
        # One that names tools may show others: that is what it is for.
        kind = (values["current_model"].model, choice.mode, *(choice.tools or ()))
        self._compare(agent, ("on_model_call", agent.run.purpose), kind, ([*values["tools"]], [*values["messages"]]))

    def _compare(self, agent: LintedAgent, stage: tuple[str | None, ...], kind: tuple[str, ...], now: Prefix) -> None:
        """Name the next outer layer if it is inside of it that a part has moved."""
        lints = [middleware for middleware in agent.chains.middlewares if isinstance(middleware, Lint)]
        place = lints.index(self)
        seen = self.seen.setdefault(agent, _Requests())
        seen.latest[stage] = now
        outer = lints[place - 1]
        outside = outer.seen[agent].latest.get(stage) if place and agent in outer.seen else None
        if outside is None or not isinstance(outer.watched, MiddlewareBase):
            return
        before = seen.pairs.get((*stage, *kind))
        seen.pairs[*stage, *kind] = outside, now
        if before is None or moved_parts(before[0], outside):  # what is lost outside cannot be lost here
            return
        moved = [part for part in moved_parts(before[1], now) if part not in outer.watched.rewrites]
        if moved:
            name = type(outer.watched).__name__
            problem = (
                f"{name}.{stage[0]} changed the {_NAMES_OF_PARTS[moved[0]]} from one request to the next, so "
                f"a provider cannot read what follows from its cache: put what changes into a last hint, or write "
                f"rewrites = ({moved[0]!r},) on {name}"
            )
            outer.problems.append(problem)
            raise ChainContractError(problem)

    def inner_lint(self, agent: LintedAgent) -> "Lint | None":
        """Return the next inner `Lint`."""
        lints = [middleware for middleware in agent.chains.middlewares if isinstance(middleware, Lint)]
        place = lints.index(self)
        return lints[place + 1] if place + 1 < len(lints) else None


_ONLY_WHERE_SEEN = {
    "on_print": _call_hook("on_print"),
    "on_event": Lint.look,
    "on_wire": Lint.look,
    "on_layer": Lint.look,
    "on_system_prompt": Lint.see_prompt,
    "on_tools": Lint.see_tools,
}
"""Hooks that make an agent do more work, so that a `Lint` has them only if one of the layers does."""


def lint_class_for(middlewares: Sequence[MiddlewareBase]) -> type[Lint]:
    """Return the class of the lints around these layers.

    An agent prints, and emits its events, only if something observes them, so a `Lint` observes them only if
    one of the layers does.
    """
    seen = {
        hook: function
        for hook, function in _ONLY_WHERE_SEEN.items()
        if any(overrides(middleware, MiddlewareBase, hook) for middleware in middlewares)
    }
    return type("Lint", (Lint,), seen) if seen else Lint


class _CallWatch:
    """Watches one call of the layer inside a `Lint`.

    `_blames` says whether that layer overrides the hook; otherwise the violation belongs to a layer further in.
    """

    def __init__(self, layer: Lint, spec: HookSpec, given: Values) -> None:
        watched = layer.watched
        self._layer = layer
        self._spec = spec
        self._blames = isinstance(watched, str) or overrides(watched, MiddlewareBase, spec.name)
        self._given = dict(given) if self._blames else {}
        self._before = self._comparable_values()
        self._subject = f"{watched} of {spec.name}"
        if isinstance(watched, MiddlewareBase):
            self._subject = f"{type(watched).__name__}.{spec.name}"

    async def items(self, stream: AsyncIterator[object], terminal: type | None) -> AsyncGenerator[object, None]:
        """Pass on a stream that the layer returned, item by item."""
        last: object = None
        self._before = self._comparable_values()  # changes since the call returned were made by an outer layer
        while True:
            item = await self.step(anext(stream, _END), "yields", stream)
            if item is _END:
                break
            self._check_item(item, last, terminal)
            last = item
            yield item
        if self._blames and terminal is not None and not isinstance(last, terminal):
            ending = "nothing" if last is None else f"{last!r:.200}"
            raise self._blame(
                f"ended with {ending}, but its last item must be a {terminal.__name__}: "
                f"pass on what next_handler() gives, or yield one in its place"
            )
        self.check_values()

    async def responses(
        self, agent: LintedAgent, stream: AsyncIterator[object], notes: dict[str, Any]
    ) -> AsyncGenerator[object, None]:
        """Pass on a stream of responses, and record for the outer `Lint` whether the last one came."""
        last: object = None
        items = self.items(stream, None)
        try:
            async for last in items:
                notes["gave_last"] = notes["gave_last"] or getattr(last, "is_last", None) is True
                yield last
        finally:
            await items.aclose()
        if not self._blames or notes["gave_last"]:
            return
        if last is None:
            raise self._blame("returned a stream that ended without any response: pass on what next_handler() gives")
        inner = self._layer.inner_lint(agent)
        if inner is not None and agent.run.scratch(inner).get("gave_last"):
            raise self._blame(
                "returned a stream that ended without the response that has is_last=True, which came from further in, "
                "with the usage: pass on all that next_handler() gives, or end it with the whole content"
            )

    async def step(self, work: Awaitable[_ResultT], verb: str, stream: object) -> _ResultT:
        """Do one step of the layer, and raise if it leaves a scope open or a context variable changed.

        The work runs inside a scope of our own, which cannot be left while another one is open inside it.
        """
        before = copy_context()
        has_result = False
        scope = anyio.CancelScope()
        try:
            with scope:
                result = await work
                has_result = True
        except RuntimeError as error:
            if not has_result and isinstance(error.__context__, ChainContractError):
                raise error.__context__ from None  # raised further in, about the scope still open here
            if not has_result or not self._blames:
                raise
            aclose = getattr(stream, "aclose", None)
            with suppress(RuntimeError, BaseExceptionGroup):
                if aclose is not None:
                    await aclose()
            with suppress(RuntimeError):
                scope.__exit__(None, None, None)  # the scopes outside of it are in order again
            raise self._blame(
                f"{verb} inside an open cancel scope or task group, whose deadline and failures then hit its reader: "
                f"have none open at a `{verb.removesuffix('s')}`"
            ) from None
        self._check_context(before)
        return result

    def _check_item(self, item: object, last: object, terminal: type | None) -> None:
        spec = self._spec
        if not self._blames:
            return
        if not isinstance(item, spec.item_types):
            expected = " or ".join(cls.__name__ for cls in spec.item_types)
            raise self._blame(f"yielded {item!r:.200}, but it must yield {expected}")
        if terminal is not None:
            has_ended = isinstance(last, terminal)
        else:
            has_ended = spec.shape == "call" and getattr(last, "is_last", None) is True
        if has_ended:
            raise self._blame(
                f"yielded {item!r:.200} after its {type(last).__name__}, which must come last: "
                f"pass on one stream of next_handler(), and close what you leave"
            )

    def check_values(self) -> None:
        """Raise if the layer changed a value that it was given."""
        now = self._comparable_values()
        for key, value in self._before.items():
            if now[key] != value:
                raise self._blame(
                    f"changed the {key} that it was given, which others share: replace what you change, as in "
                    f"next_handler({key}=...)"
                )

    def _comparable_values(self) -> dict[str, object]:
        """Return the unchangeable parts of the values, in a comparable form."""
        values: dict[str, object] = {}
        for key, value in self._given.items():
            # Methods of custom agent classes have parameters of their own, of any meaning.
            if key in self._spec.keys:
                if isinstance(value, ToolCallBlock):  # its state is the runtime's
                    values[key] = (value.id, value.name, value.input)
                elif key in _SHARED_KEYS:
                    values[key] = full_text(value)
        return values

    def _check_context(self, before: Context) -> None:
        if not self._blames:
            return
        now = copy_context()
        for variable, value in now.items():
            if variable.name not in _IGNORED_VARIABLES and before.get(variable, _END) is not value:
                raise self._blame(
                    f"leaves the ContextVar {variable.name!r} changed while its reader runs: keep what belongs to the "
                    f"reply in agent.run.scratch(self), or set it around each single step of next_handler()"
                )

    def _blame(self, words: str) -> ChainContractError:
        problem = f"{self._subject} {words}"
        self._layer.problems.append(problem)
        return ChainContractError(problem)
