"""Runs the replies of many sessions: what is submitted is stored, and survives the process that runs it."""

from agentrt.runner.dbos.runner import DBOSRunner
from agentrt.runner.handle import ReplyHandle
from agentrt.runner.runner import Runner

__all__ = ["DBOSRunner", "ReplyHandle", "Runner"]
