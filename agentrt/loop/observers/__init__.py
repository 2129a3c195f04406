"""What observers are told: the events of a reply, and the calls that reach a model."""

from agentrt.loop.observers.events import observe_events
from agentrt.loop.observers.wire import observe_wire

__all__ = ["observe_events", "observe_wire"]
