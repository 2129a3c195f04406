"""A layer that watches the layer inside of it, and names it when it breaks the contract of a hook."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

import anyio

from agentrt.chain import HookSpec
from agentrt.chain.check import overrides
from agentrt.errors import ChainContractError
from agentrt.hooks import HOOKS, MiddlewareBase
from agentrt.message import ToolCallBlock

__all__ = ["Lint", "kind_of_lint", "lint"]

_END: Any = object()
_NOT_OURS = {"decimal_context"}  # comes into being where somebody first calculates
_SHARED = {"inputs", "messages", "msg", "speech", "tool_choice", "tool_input", "tools"}
_SPECS = {spec.name: spec for spec in HOOKS}


def lint(middlewares: Sequence[MiddlewareBase]) -> list[MiddlewareBase]:
    """Return the middlewares with a `Lint` around each, and one around what lies inside of them all.

    For tests and for finding a fault: `Agent(..., middlewares=lint([A(), B()]))`. The runtime tells which hook had its
    contract broken; this tells by which layer, and notices some things that the runtime does not look at.
    """
    kind = kind_of_lint(middlewares)
    watched: list[MiddlewareBase] = []
    for each in middlewares:
        watched += [kind(each), each]
    core = kind("the core")
    if watched and watched[-1].position == "innermost":
        core.position = "innermost"
    return [*watched, core]


def _stream_hook(name: str) -> Any:
    spec = _SPECS[name]

    async def hook(
        self: "Lint", agent: Any, input_kwargs: dict[str, Any], next_handler: Any
    ) -> AsyncGenerator[Any, None]:
        look = _Look(self, spec, input_kwargs)
        items = look.items(next_handler(**input_kwargs), spec.terminal)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    return _told_apart(hook, name)


def _call_hook(name: str) -> Any:
    spec = _SPECS[name]

    async def hook(self: "Lint", agent: Any, input_kwargs: dict[str, Any], next_handler: Any) -> Any:
        look = _Look(self, spec, input_kwargs)
        data = agent.run.scratch(self) if name == "on_model_call" else {}
        data["gave_last"] = False
        result = await look.call(next_handler(**input_kwargs))
        look.check_values()
        return look.pieces(agent, aiter(result), data) if hasattr(result, "__anext__") else result

    return _told_apart(hook, name)


def _told_apart(hook: Any, name: str) -> Any:
    # The runtime tells by the code which hook an error comes from, and these would share theirs.
    hook.__code__ = hook.__code__.replace(co_name=name)
    return hook


class Lint(MiddlewareBase):
    """Watches the one layer that stands next inside of it, and raises `ChainContractError` that names it.

    It is told of: an item of a wrong type, a missing last item, anything after the last item, a model's stream without
    any response, or without the one with `is_last` that came from further in, a change of the lists and messages that
    the layer was given (what is printed goes on growing, but not while a layer has it), a `yield` or `return` inside an
    open cancel scope or task group, and a `ContextVar` left changed while its reader runs. `problems` has the same in
    words, also where the error went no further. What the runtime itself blames on a layer is not said again.
    """

    def __init__(self, watched: MiddlewareBase | str) -> None:
        self.problems: list[str] = []
        self.watched = watched
        if isinstance(watched, MiddlewareBase):
            self.position = watched.position  # it may stand wherever the layer may

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
    # Of on_system_prompt the runtime names the layer itself.

    def inside(self, agent: Any) -> "Lint | None":
        """Return the next `Lint` further in."""
        layers = agent.chains.middlewares
        place = next(place for place, each in enumerate(layers) if each is self)
        return next((each for each in layers[place + 1 :] if isinstance(each, Lint)), None)

    def _watches(self, hook: str) -> bool:
        watched = self.watched
        return isinstance(watched, str) or getattr(type(watched), hook) is not getattr(MiddlewareBase, hook)


class _LintThatSeesPrinting(Lint):
    on_print = _call_hook("on_print")


def kind_of_lint(watched: Sequence[MiddlewareBase]) -> type[Lint]:
    """Return the class of the lints around these layers: an agent prints for whoever looks, so only some look."""
    sees = any(overrides(each, MiddlewareBase, "on_print") for each in watched)
    return _LintThatSeesPrinting if sees else Lint


class _Look:
    """What one `Lint` sees of one call of the layer inside."""

    def __init__(self, layer: Lint, spec: HookSpec, given: Mapping[str, Any]) -> None:
        self._layer = layer
        self._spec = spec
        self._is_blaming = layer._watches(spec.name)
        self._given = dict(given) if self._is_blaming else {}
        self._were = self._told()
        self._who = f"{layer.watched} of {spec.name}"
        if isinstance(layer.watched, MiddlewareBase):
            self._who = f"{type(layer.watched).__name__}.{spec.name}"

    def _told(self) -> dict[str, Any]:
        # Methods that a class of agents writes itself have parameters of their own, of whatever meaning.
        return {key: _told(key, value) for key, value in self._given.items() if key in self._spec.keys}

    async def items(self, stream: AsyncIterator[Any], terminal: type | None) -> AsyncGenerator[Any, None]:
        last: Any = None
        self._were = self._told()  # what has changed since the call returned was changed further out
        while True:
            item = await self._step(stream)
            if item is _END:
                break
            self._check_item(item, last, terminal)
            last = item
            yield item
        self._check_end(last, terminal)
        self.check_values()

    async def pieces(self, agent: Any, stream: AsyncIterator[Any], data: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """Watch a stream of responses, and note in `data`, for the `Lint` further out, whether the last one came."""
        last: Any = None
        items = self.items(stream, None)
        try:
            async for last in items:
                data["gave_last"] = data["gave_last"] or getattr(last, "is_last", None) is True
                yield last
        finally:
            await items.aclose()
        self._check_pieces(agent, last, has_last=data["gave_last"])

    async def call(self, work: Awaitable[Any]) -> Any:
        """Return what the layer's call returns, if it leaves nothing open or changed."""
        return await self._watched(work, "returns", None)

    async def _step(self, stream: AsyncIterator[Any]) -> Any:
        return await self._watched(anext(stream, _END), "yields", stream)

    async def _watched(self, work: Awaitable[Any], does: str, stream: Any) -> Any:
        """Do the work inside a scope of our own: it cannot be left when another one is still open inside."""
        before = copy_context()
        has_come = False
        scope = anyio.CancelScope()
        try:
            with scope:
                result = await work
                has_come = True
        except RuntimeError as error:
            if not has_come and isinstance(error.__context__, ChainContractError):
                raise error.__context__ from None  # told further in, of what is still open here
            if not has_come or not self._is_blaming:
                raise
            with suppress(RuntimeError, BaseExceptionGroup):
                if hasattr(stream, "aclose"):
                    await stream.aclose()
            with suppress(RuntimeError):
                scope.__exit__(None, None, None)  # the scopes outside of it are in order again
            raise self._blame(
                f"{does} inside an open cancel scope or task group, whose deadline and failures then hit its reader: "
                f"have none open at a `{does.removesuffix('s')}`"
            ) from None
        self.check_context(before)
        return result

    def _check_item(self, item: Any, last: Any, terminal: type | None) -> None:
        spec = self._spec
        if not self._is_blaming:
            return
        if not isinstance(item, spec.item_types):
            wanted = " or ".join(each.__name__ for each in spec.item_types)
            raise self._blame(f"yielded {item!r:.200}, but what passes there is {wanted}")
        ended = isinstance(last, terminal) if terminal is not None else getattr(last, "is_last", None) is True
        if ended and last is not None and (terminal is not None or spec.shape == "call"):
            raise self._blame(
                f"yielded {item!r:.200} after its {type(last).__name__}, which must come last: "
                f"pass on one stream of next_handler(), and close what you leave"
            )

    def _check_end(self, last: Any, terminal: type | None) -> None:
        if not self._is_blaming:
            return
        if terminal is not None and not isinstance(last, terminal):
            came = "nothing" if last is None else f"{last!r:.200}"
            raise self._blame(
                f"ended with {came}, but its last item must be a {terminal.__name__}: "
                f"pass on what next_handler() gives, or yield one in its place"
            )

    def _check_pieces(self, agent: Any, last: Any, *, has_last: bool) -> None:
        if not self._is_blaming or has_last:
            return
        if last is None:
            raise self._blame("returned a stream that ended without any response: pass on what next_handler() gives")
        inside = self._layer.inside(agent)
        if inside is not None and agent.run.scratch(inside)["gave_last"]:
            raise self._blame(
                "returned a stream that ended without the response that has is_last=True, which came from further in, "
                "with the usage: pass on all that next_handler() gives, or end it with the whole content"
            )

    def check_values(self) -> None:
        """Raise when a value that was given to the layer is not what it was."""
        for key, was in self._were.items():
            if _told(key, self._given[key]) != was:
                raise self._blame(
                    f"changed the {key} that it was given, which others share: replace what you change, as in "
                    f"next_handler({key}=...)"
                )

    def check_context(self, before: Context) -> None:
        """Raise when a context variable is not what it was."""
        if not self._is_blaming:
            return
        now = copy_context()
        for variable, value in now.items():
            if variable.name not in _NOT_OURS and before.get(variable, _END) is not value:
                raise self._blame(
                    f"leaves the ContextVar {variable.name!r} changed while its reader runs: keep what belongs to the "
                    f"reply in agent.run.scratch(self), or set it around each single step of next_handler()"
                )

    def _blame(self, words: str) -> ChainContractError:
        told = f"{self._who} {words}"
        self._layer.problems.append(told)
        return ChainContractError(told)


def _told(key: str, value: Any) -> Any:
    """Return what must not change about a value, in a form that is compared."""
    if isinstance(value, ToolCallBlock):  # its state is the runtime's
        return (value.id, value.name, value.input)
    return repr(value) if key in _SHARED else None
