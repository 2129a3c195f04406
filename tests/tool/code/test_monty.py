"""Programs in Monty: what they can do, and what hostile ones cannot."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio.lowlevel
import pydantic_monty
import pytest

from agentrt.errors import ToolError
from agentrt.tool import CodeCall, CodeResult
from agentrt.tool.code.monty import Worker
from tests.tool.code.programs import PROGRAM, Caller, run

GATHER = """\
import asyncio
async def twice(n):
    return await double(await double(n))
await asyncio.gather(*[twice(n) for n in range(8)])
"""


async def test_value_of_the_last_expression_is_the_result() -> None:
    result = await run("x = await double(4)\nprint('seen', x)\n{'x': x}")
    assert (result.printed, result.value, result.error) == ("seen 8\n", {"x": 8}, None)


async def test_gathered_calls_come_together_in_their_order() -> None:
    caller = Caller()
    result = await run(GATHER, caller)
    assert result.value == [4 * n for n in range(8)]
    batches = [[call.args[0] for call in batch] for batch in caller.batches]
    assert batches == [list(range(8)), list(range(0, 16, 2))]


async def test_same_program_makes_the_same_calls_each_time() -> None:
    # The order in which Monty names waiting calls, and the time that one takes, differ from run to run.
    batches: list[list[Sequence[CodeCall]]] = []
    for _ in range(5):
        caller = Caller()
        await run(GATHER, caller)
        batches.append(caller.batches)
    assert all(again == batches[0] for again in batches)


async def test_time_and_chance_are_the_same_in_each_run() -> None:
    code = "import datetime, random, time\n[str(datetime.datetime.now()), time.time(), random.random(), hash('a')]"
    first, second = await run(code), await run(code)
    assert first == second
    assert first.value[0] == "2026-03-01 12:00:00"
    assert (await run(code, seed="another")).value[2] != first.value[2]


async def test_sleep_takes_no_time() -> None:
    result = await run("import asyncio, time\ntime.sleep(10_000)\nawait asyncio.sleep(10_000)\n'awake'")
    assert result.value == "awake"


async def test_program_catches_the_error_of_a_tool() -> None:
    async def refuse(calls: Sequence[CodeCall]) -> list[Any]:
        return [ToolError("the user said no") for _ in calls]

    result = await run("try:\n    await double(1)\nexcept ToolError as error:\n    print('caught', error)", refuse)
    assert (result.printed, result.error) == ("caught the user said no\n", None)


async def test_function_can_be_passed_on_as_a_value() -> None:
    assert (await run("steps = [double, shout]\n[await step('a') for step in steps]")).value == ["aa", "aa"]


async def test_program_has_its_line_and_no_frame_of_ours_in_an_error() -> None:
    result = await run("x = 1\n\ndef half(n):\n    return n / 0\n\nhalf(x)")
    assert result.error is not None
    assert "line 4, in half" in result.error
    assert "line 6, in <module>" in result.error
    assert result.error.endswith("ZeroDivisionError: division by zero")
    assert "agentrt" not in result.error
    assert "File" not in result.error


async def test_call_that_is_not_awaited_is_not_made_and_said_so() -> None:
    caller = Caller()
    result = await run("double(1)\n'end'", caller)
    assert (result.value, result.printed) == ("end", "RuntimeWarning: double() was not awaited, and so not called\n")
    assert caller.batches == []


async def test_argument_without_a_json_form_raises_in_the_program() -> None:
    caller = Caller()
    result = await run("await double(len)", caller)
    assert "TypeError: an argument of double() is not made of str" in (result.error or "")
    assert caller.batches == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("open('/etc/passwd').read()", "PermissionError"),
        ("import pathlib\npathlib.Path('/etc/passwd').read_text()", "PermissionError"),
        ("open('/tmp/x', 'w')", "PermissionError"),
        ("import os\nos.environ['PATH']", "not supported"),
        ("import os\nos.getenv('PATH')", "not supported"),
        ("import os\nos.system('ls')", "AttributeError"),
        ("import os\nos.urandom(3)", "not supported"),
        ("import socket", "ModuleNotFoundError"),
        ("import subprocess", "ModuleNotFoundError"),
        ("import ctypes", "ModuleNotFoundError"),
        ("import agentrt", "ModuleNotFoundError"),
        ("__import__('os')", "NameError"),
        ("().__class__.__bases__[0].__subclasses__()", "AttributeError"),
        ("double.__globals__", "AttributeError"),
        ("await hidden(1)", "NameError: name 'hidden' is not defined"),
        ("await run_code('1')", "NameError: name 'run_code' is not defined"),
        ("def f(:", "SyntaxError"),
        ("(" * 5_000 + ")" * 5_000, "SyntaxError"),
        ("raise SystemExit(1)", "Error"),
        ("import sys\nsys.exit(1)", "AttributeError"),
        ("def f():\n    return f()\nf()", "RecursionError"),
        ("x = 'x' * 1_000_000_000", "stopped at 20,000,000 bytes of memory: CodeTool(max_memory=20000000)"),
        ("x = []\nwhile True:\n    x.append('y' * 1_000)", "CodeTool(max_memory=20000000)"),
        ("10 ** 10 ** 8", "CodeTool(max_memory=20000000)"),
        ("while True:\n    pass", "stopped after 0.1 seconds: CodeTool(max_seconds=0.1)"),
        (
            "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
            "CodeTool(max_seconds=0.1)",
        ),
        ("while True:\n    print('x' * 1_000)", "CodeTool(max_seconds=0.1)"),
        ("for n in range(10_000):\n    await double(n)", "stopped after 20 calls: CodeTool(max_calls=20)"),
        ("while True:\n    try: open('x')\n    except Exception: pass", "stopped after 1,000 attempts"),
    ],
)
async def test_hostile_program_ends_with_an_error_of_its_own(code: str, words: str) -> None:
    caller = Caller()
    # A machine that is busy must not end the others by this limit.
    result = await run(code, caller, max_seconds=0.1 if "max_seconds" in words else 60.0)
    assert words in (result.error or "")
    assert len(result.error or "") < 15_000
    assert sum(map(len, caller.batches)) <= 20
    assert (await run("1 + 1")).value == 2


async def test_batch_beyond_the_limit_of_calls_is_not_made_in_part() -> None:
    caller = Caller()
    code = "import asyncio\nawait double(1)\nawait asyncio.gather(*[double(n) for n in range(10_000)])"
    result = await run(code, caller)
    assert (result.error or "").startswith(
        "stopped after 1 call, with more to make than are allowed: CodeTool(max_calls=20)"
    )
    assert [len(batch) for batch in caller.batches] == [1]


async def test_printed_text_beyond_the_limit_is_counted_and_not_kept() -> None:
    result = await run("for n in range(1_000):\n    print('x' * 9_999)")
    assert (len(result.printed), result.left_out) == (1_000, 9_999_000)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("{1, 2}", [1, 2]),
        ("(1, None)", [1, None]),
        ("{(1, 2): 3}", {"1,2": 3}),
        ("class P:\n    def __init__(self):\n        self.x = 1\nP()", {"x": 1}),
        ("x = []\nx.append(x)\nx", ["[...]"]),
        ("x = []\nfor _ in range(5_000): x = [x]\nx", "(the value of the last expression has no JSON form)"),
        ("b'\\xff'", "(the value of the last expression has no JSON form)"),
    ],
)
async def test_any_value_has_a_form_that_can_be_shown(code: str, value: object) -> None:
    assert (await run(code)).value == value


def processes() -> set[str]:
    """Return the ids of the sandboxes' processes that this one has started."""
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                command, _, rest = file.read().rpartition(")")
        except OSError:  # it has ended meanwhile
            continue
        state, parent = rest.split()[:2]
        if command.endswith("(monty") and parent == str(os.getpid()) and state != "Z":
            found.add(name)
    return found


async def all_processes_ended() -> bool:
    """Wait until the sandboxes' processes have ended, which a kill does not wait for."""
    with anyio.move_on_after(20):
        while processes():  # noqa: ASYNC110  # the end of a child of a child has no event
            await anyio.sleep(0.01)
    return not processes()


async def test_cancellation_stops_a_program_that_computes() -> None:
    reached = anyio.Event()

    async def note(_: Sequence[CodeCall]) -> list[Any]:
        reached.set()
        return [None]

    with anyio.fail_after(20):  # far below the limit of the program
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: run("await double(1)\nwhile True:\n    pass", note, max_seconds=1_000.0))
            await reached.wait()
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert await all_processes_ended()


async def test_event_loop_continues_while_a_program_computes() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(turn)
        await run("while True:\n    pass", max_seconds=0.1)
        group.cancel_scope.cancel()
    assert turns > 10


async def test_error_of_a_caller_leaves_unchanged_and_ends_the_process() -> None:
    error = LookupError("mine")

    async def fail(_: Sequence[CodeCall]) -> list[Any]:
        raise error

    with pytest.raises(LookupError) as caught:
        await run("await double(1)", fail)
    assert caught.value is error
    assert await all_processes_ended()


async def test_process_of_a_program_has_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2hunter2")
    environments: list[bytes] = []

    async def read_environment(_: Sequence[CodeCall]) -> list[Any]:
        for name in processes():
            with open(f"/proc/{name}/environ", "rb") as file:
                environments.append(file.read())
        return [None]

    await run("await double(1)", read_environment)
    assert environments
    assert not any(b"hunter2" in environment for environment in environments)


async def test_program_stopped_before_its_thread_begins_never_runs() -> None:
    worker = Worker(pydantic_monty, replace(PROGRAM, code="while True:\n    pass", max_seconds=1_000.0))
    worker.open()
    worker.stop()
    assert worker.start() == CodeResult()
    worker.close()
    assert await all_processes_ended()
