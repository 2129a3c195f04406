"""The worker of the tests on many machines: the agent of the kill test, over a database that the environment names."""

import os

from agentrt import Agent
from agentrt.runner import DBOSRunner
from agentrt.runner.dbos.version import version_of
from agentrt.state import PostgresStore
from tests.runner.kill_app import TOOLS, agent, make_tool, model

__all__ = ["runner"]

if os.environ.get("KILL_TEST_IS_NEW"):
    # Of another version, which also runs what is of the old one.
    accepts = [version_of(agent)]
    agent = Agent("assistant", "You work.", model, tools=[*map(make_tool, TOOLS), make_tool("call")])
else:
    accepts = []
_url = os.environ["KILL_TEST_DATABASE"]
runner = DBOSRunner(
    agent,
    PostgresStore(_url),
    _url,
    accepts=accepts,
    max_attempts=1_000,  # by chance a reply is on many of the workers that are killed, and it is not to be given up
    lease_seconds=float(os.environ.get("KILL_TEST_LEASE_SECONDS", "30")),
)
