"""No attack leaves a `BubblewrapSandbox`, and each one does where nothing isolates the command."""

import json
import os
import sys
from pathlib import Path

import pytest

from agentrt.workspace import BubblewrapSandbox, NoSandbox, SandboxBase
from tests.program_runner import ProgramRunner
from tests.sandboxes import bwrap_for_all_users, needs_bubblewrap
from tests.workspace.sandbox.attacks import ATTACKS, leaves

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="name spaces are those of Linux")
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture(scope="module", autouse=True)
def _bubblewrap() -> None:
    needs_bubblewrap()


@pytest.mark.parametrize("name", ATTACKS)
async def test_no_attack_leaves_the_sandbox(name: str) -> None:
    assert not await leaves(name, BubblewrapSandbox())


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
async def test_the_same_attack_succeeds_without_a_sandbox(name: str) -> None:
    if ATTACKS[name].needs_root and not IS_ROOT:
        pytest.skip("it needs the rights of root")
    assert await leaves(name, NoSandbox())


# A first attempt loads the modules, since the user may not enter the folders of this project.
AS_ORDINARY_USER = '''
import asyncio, asyncio.subprocess, json, os, sys, tempfile
import anyio, anyio._backends._asyncio
import agentrt.workspace
from tests.workspace.sandbox import attacks

BOMB = """
import os, time
for _ in range(1_000):
    print("forked", flush=True)
    if os.fork() == 0: time.sleep(60)
"""

async def leaving(*names):
    return {
        cls.__name__: [name for name in names if await attacks.leaves(name, cls())]
        for cls in (agentrt.workspace.BubblewrapSandbox, agentrt.workspace.NoSandbox)
    }

async def try_all():
    found = await leaving(*attacks.ATTACKS)
    sandbox = agentrt.workspace.BubblewrapSandbox(processes=20)
    with tempfile.TemporaryDirectory() as folder:
        files = agentrt.workspace.LocalWorkspace(folder, sandbox=sandbox)
        bomb = await files.run(["python3", "-c", BOMB])
    return found | {"forked": len(bomb.stdout.splitlines()), "exit code": bomb.exit_code}

os.environ["PATH"] = sys.argv[1]
anyio.run(leaving, next(iter(attacks.ATTACKS)))
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
os.chdir("/")
print(json.dumps(anyio.run(try_all)))
'''


@pytest.mark.slow  # all of them, twice
def test_no_attack_of_an_ordinary_user_leaves_it(program_runner: ProgramRunner) -> None:
    with bwrap_for_all_users() as folder:
        done = program_runner.run(AS_ORDINARY_USER, f"{folder}:{os.environ['PATH']}", cwd=Path("/"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "BubblewrapSandbox": [],
        "NoSandbox": [name for name, attack in ATTACKS.items() if not attack.needs_root],
        # For an ordinary user the kernel has the limit, exactly: the last attempt is the one that fails.
        "forked": 20,
        "exit code": 1,
    }


@pytest.mark.parametrize("sandbox", [BubblewrapSandbox(), NoSandbox()], ids=repr)
def test_both_take_the_same_limits(sandbox: SandboxBase) -> None:
    assert (sandbox.memory, sandbox.processes, sandbox.cpu, sandbox.file_size) == (10**9, 64, 60, 10**8)
