"""Which layer raised an error, or runs just now: found by walking frames, so nothing is recorded while all is well."""

import inspect
from collections.abc import Collection, Sequence
from types import CodeType, FrameType, TracebackType

from agentrt._runtime.chain.chains import Layer
from agentrt._runtime.chain.spec import Function, HookSpec
from agentrt._runtime.chain.violations import describe_misuse
from agentrt.errors import ChainContractError

Origins = dict[CodeType | None, Layer | None]
"""By its code, which layer a function belongs to; `None` stands for the core."""

ORIGIN_NOTE = "agentrt: raised by "
"""How the note begins that says which layer or hook raised an error; one is enough."""


def origins_of(core: Function, layers: Sequence[Layer]) -> Origins:
    """Return the layers by the code of their hooks, with and without decorators, and `None` by that of the core."""
    origins: Origins = {}
    for layer in layers:
        hook = layer.hook
        functions = (hook, inspect.unwrap(hook)) if hasattr(hook, "__wrapped__") else (hook,)
        for function in functions:
            code = getattr(function, "__code__", None)
            if code is not None:
                origins[code] = layer
    code = getattr(inspect.unwrap(core), "__code__", None)
    if code is not None:
        origins[code] = None
    return origins


def code_that_reads(stream: object) -> CodeType | None:
    """Return the code that runs at each step of a stream: that of the generator, or of the object's `__anext__`."""
    code: CodeType | None = getattr(stream, "ag_code", None)
    return code or getattr(getattr(type(stream), "__anext__", None), "__code__", None)


def name_the_layer(
    error: Exception, spec: HookSpec, origins: Origins, layers: Sequence[Layer], entries: Collection[CodeType | None]
) -> None:
    """Add a note to `error` that names the layer it was raised in, once; none when it came from below the layers.

    `entries` are the codes with which a chain of this shape is entered. A `ChainContractError` says by itself whose
    fault it is.
    """
    if isinstance(error, ChainContractError):
        return
    if has_origin_note(error):  # of an inner chain, or of an earlier attempt that raised the same object
        return
    layer, raised_by_hook = _find_layer(error.__traceback__, origins, layers, entries)
    if layer is not None:
        remedy = describe_misuse(spec, error) if raised_by_hook and isinstance(error, TypeError) else ""
        add_origin_note(error, f"{layer.name} in {spec.name} ({layer.where}){remedy}")


def add_origin_note(error: Exception, origin: str) -> None:
    """Add a note to `error` that says what raised it, unless it has one."""
    if not has_origin_note(error):
        error.add_note(f"{ORIGIN_NOTE}{origin}")


def has_origin_note(error: Exception) -> bool:
    return any(note.startswith(ORIGIN_NOTE) for note in getattr(error, "__notes__", ()))


def _find_layer(
    traceback: TracebackType | None, origins: Origins, layers: Sequence[Layer], entries: Collection[CodeType | None]
) -> tuple[Layer | None, bool]:
    """Return the layer that the error comes from, and whether the code of its hook itself raised it.

    The error comes from the deepest frame whose code has an origin.
    """
    layer: Layer | None = None
    raised_by_hook = False
    entry = traceback and traceback.tb_frame
    while traceback is not None:
        frame = traceback.tb_frame
        # Another chain of the same shape has judged for itself what lies below its entry: a function that serves two
        # hooks would stand there for the other one.
        if frame is not entry and frame.f_code in entries:
            break
        if frame.f_code in origins:
            origin = origins[frame.f_code]
            layer = origin and _layer_of_instance(frame, origin, layers)
            raised_by_hook = traceback.tb_next is None
        traceback = traceback.tb_next
    return layer, raised_by_hook


def _layer_of_instance(frame: FrameType, layer: Layer, layers: Sequence[Layer]) -> Layer | None:
    # Instances of one class share their code: the frame's own `self`, or the one that it was made in, says which of
    # them it is, if any of these.
    code = frame.f_code
    candidates = [frame.f_locals.get(name) for name in (*code.co_varnames[:1], *code.co_freevars)]
    middlewares = [value for value in candidates if isinstance(value, type(layer.middleware))]
    if not middlewares:
        return layer
    return next((other for other in layers if other.middleware is middlewares[0]), None)
