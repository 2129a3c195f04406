"""Sessions: the states of modules, kept under a name."""

from typing import TYPE_CHECKING

from agentrt._runtime.keywords import import_when_read

if TYPE_CHECKING:
    from agentrt.compat.session import JSONSession, SessionBase

__all__ = ["JSONSession", "SessionBase"]

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = import_when_read(__name__, {"agentrt.compat.session": __all__})
