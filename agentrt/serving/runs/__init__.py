"""Recorded runs over HTTP: found, read, followed, forked, replayed and deleted."""

from agentrt.serving.runs.routes import RunRoutes

__all__ = ["RunRoutes"]
