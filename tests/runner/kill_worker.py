"""The runner of the workers of the kill test, in which a reply may lose any number of them."""

import os

from agentrt.runner import Runner
from agentrt.state import SQLiteStore
from tests.runner.kill_app import agent

# Kills come by chance, so on a slow machine five in a row may hit one reply before its tool is done.
runner = Runner(agent, SQLiteStore(os.environ["KILL_TEST_DATABASE"]), max_attempts=1_000)
