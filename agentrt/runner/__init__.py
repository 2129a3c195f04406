"""Runs the replies of many sessions: what is submitted is stored, and survives the process that runs it."""

from agentrt.runner.dbos.runner import DBOSRunner
from agentrt.runner.handle import ReplyHandle
from agentrt.runner.runner import Runner
from agentrt.runner.tasks import TaskInfo

__all__ = ["DBOSRunner", "ReplyHandle", "Runner", "TaskInfo"]
