"""Replays: an agent runs from the input of a recorded run, with recorded answers in place of models and tools."""

from agentrt.runs.replay.differences import Difference
from agentrt.runs.replay.replay import Replay, replay_run

__all__ = ["Difference", "Replay", "replay_run"]
