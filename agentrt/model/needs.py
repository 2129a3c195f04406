"""What a call needs of its model, for middlewares that choose one."""

from agentrt.model_interface.capabilities import CAPABILITIES, needs_of

__all__ = ["CAPABILITIES", "needs_of"]
