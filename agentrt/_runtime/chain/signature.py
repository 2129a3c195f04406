"""Reads signatures whose hints may name what only a type checker imports."""

import inspect
import sys
from collections.abc import Callable

if sys.version_info >= (3, 14):
    from annotationlib import Format


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature; a hint that cannot be looked up is a `ForwardRef`, or text where it was written as text."""
    if sys.version_info >= (3, 14):  # hints are evaluated only now, and may have been imported under TYPE_CHECKING
        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)
