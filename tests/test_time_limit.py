"""A test that hangs fails, and the tests after it run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = """
import tests.time_limit

tests.time_limit.GRACE = {grace}
tests.time_limit.SLACK = tests.time_limit.IDLE = 1.0
pytest_plugins = ["tests.time_limit"]
"""
HANGING = """
import threading

import anyio
import pytest
from hypothesis import given, strategies

@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param

async def test_async():
    try:
        await anyio.sleep_forever()
    finally:
        print("CLEANED UP")

def test_sync():
    try:
        threading.Event().wait()
    except Exception:
        pass

@given(strategies.integers())
async def test_property(number):
    await anyio.sleep_forever()

async def test_clean_up_that_fails():
    try:
        await anyio.sleep_forever()
    finally:
        raise ValueError("not now")

async def test_after():
    assert anyio.current_effective_deadline() == float("inf")

@pytest.mark.time_limit(60)
async def test_with_more_time():
    await anyio.sleep(1.1)
"""
SHIELDED = """
import anyio
import pytest

@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param

def test_before():  # the next one shares its timer
    pass

async def test_shielded(anyio_backend_name):
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()
"""
FIXTURE = """
import threading

import pytest

@pytest.fixture
def waits():
    yield
    threading.Event().wait()

def test_that_fails(waits):
    assert False
"""

QUIET = """
import time

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    time.sleep(5)
"""


def run_pytest(folder: Path, test: str, grace: float, plugin: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(PLUGIN.format(grace=grace) + plugin, encoding="utf-8")
    (folder / "test_it.py").write_text(test, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "anyio_mode=auto", "--time-limit=1", "--rootdir=."]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "middleware"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.slow
def test_a_hanging_test_fails_and_the_others_run(tmp_path):
    done = run_pytest(tmp_path, HANGING, grace=40.0)
    assert done.stdout.splitlines()[-1].startswith("7 failed, 4 passed"), done.stdout
    assert done.stdout.count("longer than its limit of 1 seconds") >= 7
    assert done.stdout.count("CLEANED UP") >= 2
    assert done.stdout.count("ValueError: not now") >= 2


@pytest.mark.slow
@pytest.mark.parametrize(("test", "name"), [(SHIELDED, "test_shielded[asyncio]"), (FIXTURE, "test_that_fails")])
def test_a_test_that_nothing_stops_ends_the_process(test, name, tmp_path):
    done = run_pytest(tmp_path, test, grace=1.0)
    assert done.returncode == 1
    assert f"test_it.py::{name}: the test took longer than its limit" in done.stderr
    assert "most recent call first" in done.stderr


@pytest.mark.slow
def test_a_process_without_a_test_to_run_has_no_limit(tmp_path):
    done = run_pytest(tmp_path, "def test_it():\n    pass\n", grace=1.0, plugin=QUIET)
    assert done.returncode == 0, done.stderr
