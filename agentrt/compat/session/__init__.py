"""Sessions: the states of modules, kept under a name."""

from agentrt.compat.session.base import SessionBase
from agentrt.compat.session.json import JSONSession

__all__ = ["JSONSession", "SessionBase"]
