"""A test that leaves something behind fails, and the message names what it left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEAVING = """
import asyncio
import os
import socket

kept = []

def test_file(tmp_path):
    kept.append(open(tmp_path / "left", "w"))

def test_file_in_place_of_another(tmp_path):  # it gets the other's descriptor
    kept[0].close()
    kept.append(open(tmp_path / "instead", "w"))

def test_socket():
    kept.append(socket.socket())

async def test_async_file(tmp_path):
    kept.append(open(tmp_path / "left_async", "w"))

async def test_task():
    kept.append(asyncio.create_task(asyncio.sleep(100)))

def test_of_what_is_no_file():
    kept.append(open(os.devnull))

async def test_nothing(tmp_path):
    with open(tmp_path / "closed", "w"):
        pass
"""
LEFT = ("/left'", "/instead'", "{'socket:[", "/left_async'", "tasks left behind: {<Task pending")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")
def test_each_test_that_leaves_something_fails_and_no_other(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.conftest"]\n', encoding="utf-8")
    (tmp_path / "test_it.py").write_text(LEAVING, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "anyio_mode=auto", "--rootdir=.", "-p", "no:cacheprovider"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "middleware"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1].startswith("7 passed, 5 errors"), done.stdout
    assert [text for text in LEFT if text not in done.stdout] == []
