"""What is said to whoever breaks the contract of a hook: what happened, where, and what would be right."""

import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from agentrt.chain.chains import Layer
from agentrt.chain.spec import HookSpec
from agentrt.errors import ChainContractError, ChainError, MissingTerminalError

__all__ = [
    "call_is_running",
    "chain_has_ended",
    "misuse",
    "names",
    "no_terminal",
    "not_called",
    "positional_value",
    "still_running",
    "unfit_override",
    "wrong_item",
    "wrong_keys",
    "wrong_override",
    "wrong_result",
    "wrong_value",
]

_CALL = {
    "stream": "`async for item in next_handler(**input_kwargs): yield item`",
    "call": "`return await next_handler(**input_kwargs)`",
}
_HOW_TO_PASS_ON = f": a stream is passed on item by item, with {_CALL['stream']}"
_UNFIT = {"stream": ("async_generator",), "call": ("coroutine", "function")}


def names(types: Sequence[type]) -> str:
    return " or ".join("None" if each is type(None) else each.__name__ for each in types)


def _through(layers: Sequence[Layer]) -> str:
    return "its layers are " + " > ".join(layer.name for layer in layers)


def wrong_item(spec: HookSpec, layers: Sequence[Layer], item: Any) -> ChainContractError:
    return ChainContractError(
        f"{spec.name} passes on {names(spec.item_types)}, but {item!r:.200} came out of it; {_through(layers)}"
        f"{_HOW_TO_PASS_ON if inspect.isasyncgen(item) else ''}"
    )


def no_terminal(spec: HookSpec, layers: Sequence[Layer], last: Any) -> MissingTerminalError:
    assert spec.terminal is not None
    ended = "nothing came" if last is None else f"its last item was {last!r:.200}"
    return MissingTerminalError(
        f"{spec.name} must end with one {spec.terminal.__name__}, but {ended}; {_through(layers)}: "
        f"one of them did not pass on what next_handler() gave, or gave nothing in its place"
    )


def still_running(layer: Layer, spec: HookSpec) -> ChainError:
    return ChainError(
        f"{layer.name}.{spec.name} called next_handler() while the stream of its last call is running: "
        f"finish or close that stream first"
    )


def call_is_running(layer: Layer, spec: HookSpec) -> ChainError:
    return ChainError(
        f"{layer.name}.{spec.name} called next_handler() while its last call is running: await that one first"
    )


def chain_has_ended(layer: Layer, spec: HookSpec) -> ChainError:
    return ChainError(
        f"{layer.name}.{spec.name} called next_handler() after its chain had ended, when nobody would close what "
        f"it opens: call it while the hook runs, and keep no reference to it"
    )


def not_called(layer: Layer, spec: HookSpec) -> ChainError:
    return ChainError(f"{layer.name}.{spec.name} did not call next_handler: write {_CALL[spec.shape]}")


def positional_value(layer: Layer, spec: HookSpec, values: Sequence[Any]) -> ChainError:
    return ChainError(
        f"{layer.name}.{spec.name} called next_handler() with the positional value {values[0]!r:.100}: it takes "
        f"keywords, as in {_CALL[spec.shape]}"
    )


def wrong_override(spec: HookSpec, layer: Layer, key: str, value: Any) -> ChainError:
    return ChainError(
        f"{layer.name}.{spec.name} passed {key}={value!r:.200} to next_handler(), of type {type(value).__name__}: "
        f"{key} must be {names(spec.types[key])}"
    )


def unfit_override(spec: HookSpec, layer: Layer, key: str, error: ValueError) -> ChainError:
    return ChainError(f"{layer.name}.{spec.name} passed {key} to next_handler() that cannot be used: {error}")


def misuse(spec: HookSpec, error: TypeError) -> str:
    """Return what to write when a layer awaits what it must iterate over, or the other way round; empty otherwise.

    Only Python's own message shows which it was, since what `next_handler()` returns is handed out unwrapped.
    """
    text = str(error)
    if not any(words in text for words in ("await", "async for", "not iterable")):
        return ""
    if not any(kind in text for kind in _UNFIT[spec.shape]):
        return ""
    return f": if that was next_handler, write {_CALL[spec.shape]}"


def wrong_keys(spec: HookSpec, layer: Layer, values: Mapping[str, Any]) -> ChainError:
    allowed = f"{spec.name} passes on {', '.join(spec.keys)}"
    for key in values:
        if key not in spec.keys:
            near = get_close_matches(str(key), spec.keys, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            return ChainError(
                f"{layer.name}.{spec.name} passed the unknown key {key!r} to next_handler(){hint}: {allowed}"
            )
    lost = next(key for key in spec.keys if key not in values)
    return ChainError(f"{layer.name}.{spec.name} removed the key {lost!r} from its input_kwargs: {allowed}")


def wrong_result(spec: HookSpec, by: Layer | None, result: Any) -> ChainContractError:
    if inspect.iscoroutine(result):
        result.close()
        return ChainContractError(
            f"{spec.name} returned a coroutine from {by.name if by else 'its core'}: "
            f"an `await` is missing, as in `return await next_handler()`"
        )
    if by is not None and getattr(result, "__name__", "") == "next_handler":
        return ChainContractError(f"{by.name}.{spec.name} returned next_handler itself: write {_CALL[spec.shape]}")
    wanted = spec.terminal.__name__ if spec.terminal is not None else "None"
    if spec.item_types:
        wanted += f" or an async iterator of {names(spec.item_types)}"
    return ChainContractError(
        f"{spec.name} must return {wanted}, but {by.name if by else 'its core'} returned {result!r:.200}"
    )


def wrong_value(spec: HookSpec, by: Layer, value: Any) -> ChainContractError:
    return ChainContractError(
        f"{spec.name} must return {names(spec.item_types)}, but {by.name} returned {value!r:.200}: "
        f"end it with `return {spec.keys[-1]}`"
    )
