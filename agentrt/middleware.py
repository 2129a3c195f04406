"""The one door to middlewares: the base class, and everything that ships in `agentrt_middleware`."""

from agentrt.hooks import MiddlewareBase

__all__ = ["MiddlewareBase"]
