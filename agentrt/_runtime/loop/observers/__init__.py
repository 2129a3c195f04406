"""The notifications of observers: the events of a reply, and the calls that reach a model."""

from agentrt._runtime.loop.observers.events import observe_events
from agentrt._runtime.loop.observers.wire import observe_wire

__all__ = ["observe_events", "observe_wire"]
