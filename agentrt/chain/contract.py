"""What is said to whoever breaks the contract of a hook: what happened, where, and what would be right."""

import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from agentrt.chain.chains import Layer
from agentrt.chain.spec import HookSpec
from agentrt.errors import ChainContractError, ChainError, MissingTerminalError

__all__ = ["names", "no_terminal", "still_running", "wrong_item", "wrong_keys", "wrong_result", "wrong_value"]


def names(types: Sequence[type]) -> str:
    return " or ".join(each.__name__ for each in types)


def _through(layers: Sequence[Layer]) -> str:
    return "its layers are " + " > ".join(layer.name for layer in layers)


def wrong_item(spec: HookSpec, layers: Sequence[Layer], item: Any) -> ChainContractError:
    return ChainContractError(
        f"{spec.name} passes on {names(spec.item_types)}, but {item!r:.200} came out of it; {_through(layers)}"
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
