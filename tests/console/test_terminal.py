"""The console in a terminal, with a person at the keyboard."""

from pathlib import Path

import pytest

pytest.importorskip("pty", reason="there are no pseudo-terminals here")

from tests.console.program import piped, put_things
from tests.console.terminal import PROMPT, Terminal

SLOW = ["chat", "--model", "things:Slow", "--tools", "things:tools"]


@pytest.fixture(autouse=True)
def things(tmp_path: Path) -> None:
    put_things(tmp_path)


@pytest.mark.parametrize("rich", [True, False], ids=["rich", "plain"])
def test_ctrl_c_stops_a_reply_or_a_tool_and_the_conversation_goes_on(rich, tmp_path):
    with Terminal([*SLOW, "--session", "talk.json"], tmp_path, rich=rich) as terminal:
        assert "Model: slow. Tools: wait, hold, add." in terminal.read(".\r\n")
        terminal.say("add")
        terminal.read('add({"a": 20, "b": 22})')
        terminal.read("add: 42")
        terminal.read("7 in, 5 out")
        terminal.say("dawdle")
        terminal.read("BEGUN")
        terminal.press_ctrl_c()
        terminal.read("stopped")
        terminal.say("hello")
        terminal.read("HEARD 3: ")
        terminal.say("wait")
        terminal.read("TOOL BEGINS")
        terminal.press_ctrl_c()
        terminal.read("TOOL STOPS")
        terminal.read("stopped")
        terminal.say("hello again")
        terminal.read("HEARD 5: ")
        terminal.say("/quit")
        assert terminal.end() == 0
        assert "Traceback" not in terminal.transcript
        assert ("\x1b[1mhello again" in terminal.transcript) is rich
    done = piped([*SLOW, "--session", "talk.json"], "and here\n", tmp_path)
    assert "HEARD 6: **and here**" in done.stdout


def test_a_cursor_that_was_hidden_is_shown_again(tmp_path):
    with Terminal(SLOW, tmp_path) as terminal:
        terminal.say("dawdle")
        terminal.read("BEGUN")
        terminal.press_ctrl_c()
        terminal.read("\x1b[?25h")
        terminal.read(PROMPT)


def test_no_color_means_no_control_codes_in_what_is_printed(tmp_path):
    with Terminal([*SLOW, "--no-color"], tmp_path, env={"TERM": "dumb"}) as terminal:
        terminal.say("hello")
        terminal.read("HEARD 1: **hello**\r\n[tokens] 7 in, 5 out\r\n")
        terminal.say("/quit")
        assert terminal.end() == 0
        assert "\x1b" not in terminal.transcript


def test_ctrl_c_at_the_prompt_hints_and_leaves_when_pressed_again(tmp_path):
    with Terminal(SLOW, tmp_path) as terminal:
        terminal.read(PROMPT)
        assert terminal.press_ctrl_c_until_it_ends() == 0
        assert "Ctrl-C again leaves" in terminal.transcript
        assert "Traceback" not in terminal.transcript


def test_the_end_of_input_leaves(tmp_path):
    with Terminal(SLOW, tmp_path) as terminal:
        terminal.read(PROMPT)
        terminal.type("\x04")
        assert terminal.end() == 0


def test_a_reply_that_does_not_stop_can_be_left(tmp_path):
    with Terminal(SLOW, tmp_path, rich=False) as terminal:
        terminal.say("hold")
        terminal.read("TOOL HOLDS")
        assert terminal.press_ctrl_c_until_it_ends() == 130
        assert "[leaving] once what still runs has stopped" in terminal.transcript
        assert "Traceback" not in terminal.transcript


def test_the_help_names_every_command(tmp_path):
    with Terminal(SLOW, tmp_path) as terminal:
        terminal.say("/help")
        told = terminal.read("Ctrl-C stops a reply")
    assert all(command in told for command in ("/new", "/explain", "/help", "/quit"))
