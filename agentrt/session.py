"""Sessions: the states of modules, kept under a name."""

from typing import TYPE_CHECKING

from agentrt._runtime.keywords.moved_names import import_when_read

if TYPE_CHECKING:
    from agentrt.compat.session.base import SessionBase
    from agentrt.compat.session.json import JSONSession

__all__ = ["JSONSession", "SessionBase"]

if not TYPE_CHECKING:  # which would take any name
    _HOMES = {"agentrt.compat.session.base": ["SessionBase"], "agentrt.compat.session.json": ["JSONSession"]}
    __getattr__ = import_when_read(__name__, _HOMES)
