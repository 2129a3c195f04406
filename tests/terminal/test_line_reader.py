"""Lines that are typed, and the questions that they answer."""

import asyncio
import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from anyio.lowlevel import checkpoint
from pydantic import BaseModel, SecretStr

from agentrt._runtime.terminal.user_input import TerminalUserInput
from agentrt.errors import InputEnded, InvalidInputError
from tests.loop.keyboard import Keyboard, asked, text_of

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # seconds; only a failure waits that long


@pytest.fixture
def keyboard() -> Keyboard:
    return Keyboard()


async def test_the_event_loop_runs_while_a_line_is_awaited(keyboard):
    answers = []

    async def ask() -> None:
        answers.append(await text_of(keyboard.input()))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await keyboard.is_read()  # this very task runs meanwhile
        assert answers == []
        keyboard.type("late")
    assert answers == ["late"]


class Answers(list[str]):
    async def ask(self, terminal) -> None:
        self.append(await text_of(terminal))


async def test_the_line_of_an_abandoned_question_answers_the_next_one(keyboard):
    terminal = keyboard.input()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(asked, terminal)
            await keyboard.is_read()
            scope.cancel()
    assert scope.cancelled_caught
    answers = Answers()
    async with anyio.create_task_group() as group:
        group.start_soon(answers.ask, terminal)
        while keyboard.screen.count("> ") < 2:
            await checkpoint()
        keyboard.type("for the second")
    assert answers == ["for the second"]
    assert keyboard.reads == 1


async def test_a_line_typed_between_two_questions_answers_the_second(keyboard):
    terminal = keyboard.input()
    async with anyio.create_task_group() as group:
        group.start_soon(asked, terminal)
        await keyboard.is_read()
        group.cancel_scope.cancel()
    keyboard.type("in between", "and after")
    while terminal._reader._is_reading:
        await checkpoint()
    assert [await text_of(terminal), await text_of(terminal)] == ["in between", "and after"]
    assert keyboard.reads == 2


async def test_a_line_that_comes_with_the_cancellation_is_kept(keyboard):
    terminal = keyboard.input()
    async with anyio.create_task_group() as group:
        group.start_soon(asked, terminal)
        await keyboard.is_read()
        keyboard.type("early")
        while terminal._reader._is_reading:
            time.sleep(0)  # the event loop stands still: the line has come, but not to who asked
        group.cancel_scope.cancel()
    keyboard.close()
    assert await text_of(terminal) == "early"
    assert keyboard.reads == 1


async def test_a_timeout_of_the_callers_own_leaves_as_what_it_is(keyboard):
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0):
            await asked(keyboard.input())
    assert keyboard.reads == 0


async def test_questions_asked_at_once_are_asked_one_after_the_other(keyboard):
    terminal = keyboard.input()
    answers = Answers()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(answers.ask, terminal)
        for number in range(3):
            await keyboard.is_read()
            await anyio.wait_all_tasks_blocked()
            assert keyboard.screen == "> " * (number + 1)
            keyboard.type(str(number))
            while len(answers) == number:
                await checkpoint()
    assert answers == ["0", "1", "2"]


async def test_a_form_is_not_interrupted_by_another_question():
    class Form(BaseModel):
        a: int
        b: int

    keyboard = Keyboard("said", "1", "2", "other")
    terminal = keyboard.input()
    found = []

    async def fill() -> None:
        found.append((await asked(terminal, Form)).structured_input)

    async def ask() -> None:
        found.append(await text_of(terminal))

    async with anyio.create_task_group() as group:
        group.start_soon(fill)
        await keyboard.is_read()
        group.start_soon(ask)
    assert found == [{"a": 1, "b": 2}, "other"]


async def test_a_question_abandoned_in_the_queue_blocks_no_other(keyboard):
    terminal = keyboard.input()
    answers = Answers()
    async with anyio.create_task_group() as group:
        group.start_soon(answers.ask, terminal)
        await keyboard.is_read()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(answers.ask, terminal)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        group.start_soon(answers.ask, terminal)
        keyboard.type("one", "two")
    assert answers == ["one", "two"]


def test_questions_of_several_event_loops_take_turns(keyboard):
    terminal = keyboard.input()
    with start_blocking_portal("asyncio") as first, start_blocking_portal("trio") as second:
        answers = [first.start_task_soon(text_of, terminal)]
        keyboard.reading.acquire()
        answers.append(second.start_task_soon(text_of, terminal))
        keyboard.type("one")
        assert answers[0].result(PATIENCE) == "one"
        keyboard.type("two")
        assert answers[1].result(PATIENCE) == "two"


async def test_the_end_of_input_is_an_error_and_not_a_loop(keyboard):
    keyboard.close()
    with pytest.raises(InputEnded, match="the input ended before '>' was answered"):
        await asked(keyboard.input())
    assert issubclass(InputEnded, EOFError)


async def test_the_end_of_input_in_a_form_is_the_same_error():
    class Form(BaseModel):
        a: int

    keyboard = Keyboard("said", "nonsense")
    keyboard.close()
    with pytest.raises(InputEnded, match=r"a \(integer\)"):
        await asked(keyboard.input(), Form)


async def test_an_error_of_the_input_affects_no_later_question():
    answers = [OSError("the line is dead"), "alive\n"]

    def read_line() -> str:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    terminal = TerminalUserInput(read_line=read_line, write=lambda _: None)
    with pytest.raises(OSError, match="the line is dead"):
        await asked(terminal)
    assert await text_of(terminal) == "alive"


async def test_a_line_that_is_not_a_str_is_named_by_its_type_alone():
    terminal = TerminalUserInput(read_line=lambda: b"hunter2\n", write=lambda _: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidInputError, match=r"read_line must return a str .* not one of type bytes") as caught:
        await asked(terminal)
    assert "hunter2" not in str(caught.value)


class Login(BaseModel):
    password: SecretStr


async def abandon_secret(*typed):
    """Ask for a name and a secret, and cancel at the secret, once these lines were typed."""
    keyboard = Keyboard("said")
    terminal = keyboard.input()
    async with anyio.create_task_group() as group:
        group.start_soon(asked, terminal, Login)
        await keyboard.is_read()
        await keyboard.is_read()
        keyboard.type(*typed)
        while typed and terminal._reader._is_reading:
            time.sleep(0)  # the event loop stands still: the line has come, but not to who asked
        group.cancel_scope.cancel()
    return keyboard, terminal


async def test_a_secret_of_an_abandoned_question_answers_no_other():
    keyboard, terminal = await abandon_secret()
    keyboard.type("hunter2", "for all to see")
    while terminal._reader._is_reading:
        await checkpoint()
    assert await text_of(terminal) == "for all to see"


async def test_a_secret_typed_during_a_cancellation_answers_no_other():
    keyboard, terminal = await abandon_secret("hunter2")
    keyboard.type("for all to see")
    assert await text_of(terminal) == "for all to see"


async def test_an_end_of_input_after_an_abandoned_secret_is_kept():
    keyboard, terminal = await abandon_secret()
    keyboard.close()
    while terminal._reader._is_reading:
        await checkpoint()
    with pytest.raises(InputEnded):
        await asked(terminal)
    assert keyboard.reads == 2


def test_a_question_of_an_ended_event_loop_leaves_its_line(keyboard):
    terminal = keyboard.input()
    loop = asyncio.new_event_loop()
    task = loop.create_task(text_of(terminal))
    while not keyboard.reading.acquire(blocking=False):
        loop.run_until_complete(asyncio.sleep(0))
    waiting = loop.create_task(text_of(terminal))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    for each in (task, waiting):
        each._log_destroy_pending = False  # it is what is tested
    keyboard.type("for the next")
    while terminal._reader._is_reading:
        time.sleep(0)
    del task, waiting, each
    gc.collect()
    assert anyio.run(text_of, terminal) == "for the next"


FORKED = """
import os, sys, threading, warnings
import anyio
from agentrt._runtime.terminal.user_input import TerminalUserInput
warnings.simplefilter("ignore")  # of forking with threads
parent, reading = os.getpid(), threading.Event()
def read_line():
    reading.set()
    return "of the child\\n" if os.getpid() != parent else threading.Event().wait()
terminal = TerminalUserInput(read_line=read_line, write=lambda _: None)
async def ask():
    return (await terminal("id", "friday")).blocks_input[0].text
async def leave():
    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        while not reading.is_set():
            await anyio.sleep(0)
        group.cancel_scope.cancel()
anyio.run(leave)
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(anyio.run(ask), flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_reads_lines_of_its_own():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "middleware")])}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, timeout=PATIENCE, env=environment, check=False, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "of the child\n", "")
