"""The requirements of a call, for middlewares that choose a model."""

from agentrt._runtime.model_interface.capabilities import CAPABILITIES, needs_of

__all__ = ["CAPABILITIES", "needs_of"]
