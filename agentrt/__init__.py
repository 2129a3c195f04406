"""A runtime for LLM agents whose whole behaviour is a set of compiled middleware chains."""

from typing import TYPE_CHECKING

from agentrt._runtime.keywords.moved_names import find_elsewhere, keep_old_modules
from agentrt.agent import Agent, AgentBase, UserAgent
from agentrt.hooks import MiddlewareBase
from agentrt.message import Msg, UserMsg
from agentrt.state import AgentState
from agentrt.tool import Toolkit

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentBase",
    "AgentState",
    "MiddlewareBase",
    "Msg",
    "Toolkit",
    "UserAgent",
    "UserMsg",
    "__version__",
]

keep_old_modules(
    __name__,
    chain={"agentrt.hooks": ["LayerOutcome", "LayerRecord"]},
    probe={"agentrt.middleware": ["LayerTime", "LayerTimes"]},
)

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = find_elsewhere(
        __name__,
        [
            "middleware",
            "model",
            "tool",
            "message",
            "event",
            "errors",
            "state",
            "permission",
            "pipeline",
            "memory",
            "rag",
        ],
    )
