"""Compositions of agents: in sequence, in parallel, in a hub where all observe each other, and as one stream."""

from agentrt.pipeline.fanout import FanoutPipeline, fanout_pipeline
from agentrt.pipeline.handoff_middleware import HandoffMiddleware
from agentrt.pipeline.handoffs import Handoffs
from agentrt.pipeline.hub import MsgHub
from agentrt.pipeline.printing import stream_printing_messages
from agentrt.pipeline.sequential import SequentialPipeline, sequential_pipeline

__all__ = [
    "FanoutPipeline",
    "HandoffMiddleware",
    "Handoffs",
    "MsgHub",
    "SequentialPipeline",
    "fanout_pipeline",
    "sequential_pipeline",
    "stream_printing_messages",
]
