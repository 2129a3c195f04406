"""The errors for a layer that breaks the contract of its hook: what happened, where, and what would be right."""

import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from agentrt._runtime.chain.chains import Layer
from agentrt._runtime.chain.spec import HookSpec
from agentrt.errors import ChainContractError, ChainError, MissingTerminalError

_CALL = {
    "stream": "`async for item in next_handler(**input_kwargs): yield item`",
    "call": "`return await next_handler(**input_kwargs)`",
}
_HOW_TO_PASS_ON = f": a stream is passed on item by item, with {_CALL['stream']}"
# What Python calls `next_handler` or what it returned, in its message about a use as the other kind.
_MISUSED_KINDS = {"stream": ("async_generator", "ProbedStream"), "call": ("coroutine", "function")}


def type_names(types: Sequence[type]) -> str:
    return " or ".join("None" if cls is type(None) else cls.__name__ for cls in types)


def _layer_names(layers: Sequence[Layer]) -> str:
    return "its layers are " + " > ".join(layer.name for layer in layers)


def wrong_item(spec: HookSpec, layers: Sequence[Layer], item: object) -> ChainContractError:
    return ChainContractError(
        f"{spec.name} passes on {type_names(spec.item_types)}, but {item!r:.200} came out of it; {_layer_names(layers)}"
        f"{_HOW_TO_PASS_ON if hasattr(item, '__anext__') else ''}"
    )


def missing_terminal(spec: HookSpec, layers: Sequence[Layer], last: object) -> MissingTerminalError:
    assert spec.terminal is not None
    ending = "nothing came" if last is None else f"its last item was {last!r:.200}"
    return MissingTerminalError(
        f"{spec.name} must end with one {spec.terminal.__name__}, but {ending}; {_layer_names(layers)}: "
        f"one of them did not pass on what next_handler() gave, or gave nothing in its place"
    )


def running_stream(layer: Layer, spec: HookSpec) -> ChainError:
    return ChainError(
        f"{layer.name}.{spec.name} called next_handler() while the stream of its last call is running: "
        f"finish or close that stream first"
    )


def running_call(layer: Layer, spec: HookSpec) -> ChainError:
    return ChainError(
        f"{layer.name}.{spec.name} called next_handler() while its last call is running: await that one first"
    )


def ended_chain(layer: Layer, spec: HookSpec) -> ChainError:
    return ChainError(
        f"{layer.name}.{spec.name} called next_handler() after its chain had ended, when nobody would close what "
        f"it opens: call it while the hook runs, and keep no reference to it"
    )


def uncalled_handler(layer: Layer, spec: HookSpec) -> ChainError:
    return ChainError(f"{layer.name}.{spec.name} did not call next_handler: write {_CALL[spec.shape]}")


def positional_value(layer: Layer, spec: HookSpec, values: Sequence[object]) -> ChainError:
    return ChainError(
        f"{layer.name}.{spec.name} called next_handler() with the positional value {values[0]!r:.100}: it takes "
        f"keywords, as in {_CALL[spec.shape]}"
    )


def wrong_override(spec: HookSpec, layer: Layer, key: str, value: object) -> ChainError:
    return ChainError(
        f"{layer.name}.{spec.name} passed {key}={value!r:.200} to next_handler(), of type {type(value).__name__}: "
        f"{key} must be {type_names(spec.types[key])}; leave it out to pass on what came in"
    )


def unusable_override(spec: HookSpec, layer: Layer, key: str, value: object, error: ValueError) -> ChainError:
    return ChainError(
        f"{layer.name}.{spec.name} passed {key}={value!r:.200} to next_handler(), of type {type(value).__name__}: "
        f"{error}"
    )


def describe_misuse(spec: HookSpec, error: TypeError) -> str:
    """Return what to write when a layer awaits what it must iterate over, or the other way round; empty otherwise.

    Only Python's own message shows which it was, since `next_handler()` returns the stream itself and no wrapper of it.
    """
    text = str(error)
    if not any(words in text for words in ("await", "async for", "not iterable")):
        return ""
    if not any(kind in text for kind in _MISUSED_KINDS[spec.shape]):
        return ""
    return f": if that was next_handler, write {_CALL[spec.shape]}"


def wrong_keys(spec: HookSpec, layer: Layer, values: Mapping[str, object]) -> ChainError:
    allowed = f"{spec.name} passes on {', '.join(spec.keys)}"
    for key in values:
        if key not in spec.keys:
            word = str(key)  # a layer may put a key of any type into its dict
            # A part of a key is not near to it by its letters: `model` of `current_model`.
            matches = [name for name in spec.keys if word in name] or get_close_matches(word, spec.keys, 1)
            hint = f" (did you mean {matches[0]!r}?)" if matches else ""
            return ChainError(
                f"{layer.name}.{spec.name} passed the unknown key {key!r} to next_handler(){hint}: {allowed}"
            )
    missing = next(key for key in spec.keys if key not in values)
    return ChainError(f"{layer.name}.{spec.name} removed the key {missing!r} from its input_kwargs: {allowed}")


def wrong_result(spec: HookSpec, layer: Layer | None, result: object) -> ChainContractError:
    """Return the error for what a call returned: that of a layer, or of the core where that is `None`."""
    if inspect.iscoroutine(result):
        result.close()  # or Python would warn that nobody awaited it
        return ChainContractError(
            f"{spec.name} returned a coroutine from {layer.name if layer else 'its core'}: "
            f"an `await` is missing, as in `return await next_handler()`"
        )
    if layer is not None and getattr(result, "__name__", "") == "next_handler":
        return ChainContractError(f"{layer.name}.{spec.name} returned next_handler itself: write {_CALL[spec.shape]}")
    expected = spec.terminal.__name__ if spec.terminal is not None else "None"
    if spec.item_types:
        expected += f" or an async iterator of {type_names(spec.item_types)}"
    return ChainContractError(
        f"{spec.name} must return {expected}, but {layer.name if layer else 'its core'} returned {result!r:.200}"
    )


def wrong_value(spec: HookSpec, layer: Layer, value: object) -> ChainContractError:
    return ChainContractError(
        f"{spec.name} must return {type_names(spec.item_types)}, but {layer.name} returned {value!r:.200}: "
        f"end it with `return {spec.keys[-1]}`"
    )
