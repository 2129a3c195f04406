"""Questions on standard input: piped, and at a terminal."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pty", reason="there are no pseudo-terminals here")

import termios

from agentrt._runtime.terminal.stdio import echo_off
from tests.console.program import environment as console_environment
from tests.console.terminal import Terminal

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # seconds; only a failure waits that long

CHILD = """
import anyio, sys
from pydantic import BaseModel, SecretStr
from agentrt._runtime.terminal.user_input import TerminalUserInput
from agentrt.errors import InputEnded
class Login(BaseModel):
    user: str
    password: SecretStr
terminal = TerminalUserInput("> ")
async def ask(model=None):
    data = await terminal("id", "friday", structured_model=model)
    print("HEARD", ascii(data.blocks_input[0].text), flush=True)
    return data
async def main():
{main}
try:
    anyio.run(main, backend="{backend}")
except InputEnded as error:
    print("ENDED:", error)
except KeyboardInterrupt:
    print("CTRL-C")
"""


def child(main: str, backend: str) -> list[str]:
    lines = "\n".join(f"    {line}" for line in main.splitlines())
    return [sys.executable, "-c", CHILD.replace("{main}", lines).replace("{backend}", backend)]


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "middleware"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8:strict", **more}


def piped(main: str, said: bytes, backend: str) -> str:
    done = subprocess.run(
        child(main, backend), input=said, capture_output=True, timeout=PATIENCE, env=environment(), check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def test_piped_lines_are_read_one_by_one_to_the_end():
    shown = piped("print(input())\nwhile True: await ask()", b"first\none\r\ntwo\nthree", "trio")
    assert shown == "first\n> HEARD 'one'\n> HEARD 'two'\n> HEARD 'three'\n> \n" + (
        "ENDED: the input ended before '>' was answered: there is nobody to ask\n"
    )


def test_piped_bytes_of_another_encoding_cost_no_line():
    shown = piped("for _ in range(3): await ask()", b"caf\xe9\ntwo\nthree", "asyncio")
    assert shown == "> HEARD 'caf\\ufffd'\n> HEARD 'two'\n> HEARD 'three'\n"


def test_without_a_terminal_there_is_no_echo_to_hide(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    with echo_off():
        assert sys.stdin.read() == "secret\n"


def test_an_unanswered_question_does_not_keep_the_program_alive():
    main = "with anyio.move_on_after(0.05): await ask()\nprint('LEFT')"
    with subprocess.Popen(
        child(main, "asyncio"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdin is not None  # and it stays open
        assert process.wait(PATIENCE) == 0
        assert process.stdout.read() == b"> \nLEFT\n"
        assert process.stderr.read() == b""


def in_a_terminal(main: str, backend: str, tmp_path: Path) -> Terminal:
    session = "import fcntl, signal, termios\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    take = "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"  # so that Ctrl-C becomes a signal
    *python, program = child(main, backend)

    def start(tty: str) -> subprocess.Popen[bytes]:
        streams = os.open(tty, os.O_RDWR | os.O_NOCTTY)
        try:
            return subprocess.Popen(
                [*python, session + take + program],
                stdin=streams,
                stdout=streams,
                stderr=streams,
                cwd=tmp_path,
                env=console_environment(),
                start_new_session=True,
            )
        finally:
            os.close(streams)

    return Terminal(start)


def is_echoing(terminal: Terminal) -> bool:
    return bool(termios.tcgetattr(terminal._master)[3] & termios.ECHO)


AT_A_TERMINAL = """
with anyio.move_on_after(0.05): await ask()
print("LEFT")
await ask()
data = await ask(Login)
print("SECRET", data.structured_input["password"].get_secret_value()[::-1])
try: await ask()
except InputEnded: print("ENDED")
await ask(Login)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_user_at_a_terminal(backend, tmp_path):
    with in_a_terminal(AT_A_TERMINAL, backend, tmp_path) as terminal:
        terminal.read("LEFT\r\n> ")
        terminal.type("late\n")  # the first question, which was left, still reads: the second has the line
        terminal.read("HEARD 'late'\r\n")
        terminal.say("caf\u00e9")
        terminal.read("user (text): ")
        terminal.type("bob\n")
        terminal.read("password (password): ")
        assert not is_echoing(terminal)
        terminal.type("hunter2\n")
        assert terminal.read("HEARD 'caf\\xe9'\r\n").startswith("\r\n")
        terminal.read("SECRET 2retnuh\r\n> ")
        assert "hunter2" not in terminal.transcript
        assert is_echoing(terminal)
        terminal.type("\x04")
        terminal.read("ENDED")
        terminal.say("the end of one input is not the end of all")
        terminal.type("bob\n")
        terminal.read("password (password): ")
        terminal.press_ctrl_c()
        terminal.read("CTRL-C")
        assert is_echoing(terminal)
        assert terminal.end() == 0
        assert "Traceback" not in terminal.transcript
        assert "Fatal" not in terminal.transcript


CUT_OFF = """
import termios, threading
threading.Thread(target=lambda: anyio.run(ask, Login), daemon=True).start()
while termios.tcgetattr(0)[3] & termios.ECHO: await anyio.lowlevel.checkpoint()
"""


def test_an_exit_during_a_secret_restores_the_terminals_echo(tmp_path):
    with in_a_terminal(CUT_OFF, "asyncio", tmp_path) as terminal:
        terminal.say("hello")
        terminal.type("bob\n")
        assert terminal._process.wait(PATIENCE) == 0
        assert is_echoing(terminal)
