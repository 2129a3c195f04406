"""Recorded runs over HTTP: found, read, followed, forked, replayed and deleted."""

from agentrt.serving.runs.playground import Playground, PlaygroundSetting
from agentrt.serving.runs.routes import RunRoutes

__all__ = ["Playground", "PlaygroundSetting", "RunRoutes"]
