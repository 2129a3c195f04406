"""Sessions: the states of modules, kept under a name."""

from agentrt.session.base import SessionBase
from agentrt.session.json import JSONSession

__all__ = ["JSONSession", "SessionBase"]
