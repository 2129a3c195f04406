"""Recorded runs: the events of each reply, the requests to models, and the changes of layers."""

from agentrt.runs.fork import Effects
from agentrt.runs.parts import Change, LayerCallRecord, ModelRequest, Step
from agentrt.runs.recorder import RunRecorder, run_stores
from agentrt.runs.replay.differences import Difference
from agentrt.runs.replay.replay import Replay
from agentrt.runs.run import After, Run
from agentrt.runs.store import RunInfo, RunPage, RunStore
from agentrt.runs.verification import Verification
from agentrt.state.records.rows import RunQuery, RunRow, RunRows, RunWrite

__all__ = [
    "After",
    "Change",
    "Difference",
    "Effects",
    "LayerCallRecord",
    "ModelRequest",
    "Replay",
    "Run",
    "RunInfo",
    "RunPage",
    "RunQuery",
    "RunRecorder",
    "RunRow",
    "RunRows",
    "RunStore",
    "RunWrite",
    "Step",
    "Verification",
    "run_stores",
]
