"""Which layer raised an error: found by walking its traceback."""

from collections.abc import Iterable, Mapping, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any

from agentrt.chain.chains import Layer
from agentrt.chain.owner import Owner
from agentrt.chain.spec import HookSpec
from agentrt.chain.violations import misuse
from agentrt.errors import ChainContractError

__all__ = ["code_that_reads", "maker_of_stream", "name_the_layer"]

_NOTE = "agentrt: raised by "


def name_the_layer(error: Exception, spec: HookSpec, codes: Mapping[Any, Any], layers: Sequence[Any]) -> None:
    """Add a note to `error` that names the layer it was raised in, once; none when it came from below the layers.

    `codes` maps the code of each layer's hook to the layer, and that of the core to `None`. The deepest frame with one
    of them is where the error comes from, so nothing has to be watched while all goes well. A `ChainContractError`
    says by itself whose fault it is. What lies below another chain of the same shape, that chain has judged: a function
    that serves two hooks would stand there for the other one.
    """
    if isinstance(error, ChainContractError):
        return
    if any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
        return
    layer, is_own = _deepest(error.__traceback__, codes, layers)
    if layer is not None:
        remedy = misuse(spec, error) if is_own and isinstance(error, TypeError) else ""
        error.add_note(f"{_NOTE}{layer.name} in {spec.name} ({layer.where}){remedy}")


def _deepest(traceback: TracebackType | None, codes: Mapping[Any, Any], layers: Sequence[Any]) -> tuple[Any, bool]:
    """Return the layer that the error comes from, and whether the code of its hook itself raised it."""
    found, is_own = None, False
    entry = traceback and traceback.tb_frame
    while traceback is not None:
        frame = traceback.tb_frame
        if entry is not None and frame is not entry and frame.f_code is entry.f_code:
            break
        if frame.f_code in codes:
            layer = codes[frame.f_code]
            found = layer and _of_instance(frame, layer, layers)
            is_own = traceback.tb_next is None
        traceback = traceback.tb_next
    return found, is_own


def _of_instance(frame: FrameType, layer: Any, layers: Sequence[Any]) -> Any:
    # Instances of one class share their code: the frame's own `self`, or the one that it was made in, says which of
    # them it is, if any of these.
    code = frame.f_code
    own = [frame.f_locals.get(name) for name in (*code.co_varnames[:1], *code.co_freevars)]
    selves = [value for value in own if isinstance(value, type(layer.middleware))]
    if not selves:
        return layer
    return next((each for each in layers if each.middleware is selves[0]), None)


def code_that_reads(stream: object) -> CodeType | None:
    """Return the code that runs at each step of a stream: that of the generator, or of the object's `__anext__`."""
    code: CodeType | None = getattr(stream, "ag_code", None)
    return code or getattr(getattr(type(stream), "__anext__", None), "__code__", None)


def maker_of_stream(reader: FrameType, codes: Iterable[CodeType]) -> Layer | None:
    """Return the layer that returned the stream which runs now, where the frame that reads it is a chain's.

    `codes` are those of the frames inside of the reader's, innermost first.
    """
    owner = reader.f_locals.get("owner")
    if not isinstance(owner, Owner):
        return None
    makers: list[Layer | None] = [owner.makers[code] for code in codes if code in owner.makers]
    return makers[0] if makers else None
