"""The console in a terminal, with a person at the keyboard."""

from pathlib import Path

import pytest

pytest.importorskip("pty", reason="there are no pseudo-terminals here")

from agentrt import AgentState
from tests.console.program import put_things
from tests.console.terminal import PROMPT

SLOW = ["chat", "--model", "things:Slow", "--tools", "things:tools"]


@pytest.fixture(autouse=True)
def things(tmp_path: Path) -> None:
    put_things(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rich", [True, False], ids=["rich", "plain"])
def test_ctrl_c_stops_a_reply_or_a_tool_not_the_conversation(rich, tmp_path, piped, at_terminal):
    with at_terminal([*SLOW, "--session", "talk.json"], tmp_path, rich=rich) as terminal:
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


def test_a_cursor_that_was_hidden_is_shown_again(tmp_path, at_terminal):
    with at_terminal(SLOW, tmp_path) as terminal:
        terminal.say("dawdle")
        terminal.read("BEGUN")
        terminal.press_ctrl_c()
        terminal.read("\x1b[?25h")
        terminal.read(PROMPT)


@pytest.mark.parametrize("readline", [True, False])
def test_what_is_typed_is_not_echoed_into_streamed_text(readline, tmp_path, at_terminal):
    with at_terminal(SLOW, tmp_path, readline=readline) as terminal:
        terminal.say("code")
        terminal.read("CODE")
        assert not terminal.has_echo
        terminal.type("typed\n")
        (tmp_path / "go").touch()
        assert "typed" not in terminal.read("5 out")
        terminal.read(f"{PROMPT}typed")
        terminal.read("HEARD 2")


@pytest.mark.slow
def test_the_echo_is_back_after_a_reply_that_had_to_be_left(tmp_path, at_terminal):
    with at_terminal(SLOW, tmp_path) as terminal:
        terminal.say("code")
        terminal.read("CODE")
        assert not terminal.has_echo
        terminal.press_ctrl_c_until_it_ends(pause=1.0)
        assert terminal.has_echo


def test_no_color_means_no_control_codes_in_what_is_printed(tmp_path, at_terminal):
    with at_terminal([*SLOW, "--no-color"], tmp_path, env={"TERM": "dumb"}) as terminal:
        terminal.say("hello")
        terminal.read("HEARD 1: **hello**\r\n[tokens] 7 in, 5 out\r\n")
        terminal.say("/quit")
        assert terminal.end() == 0
        assert "\x1b" not in terminal.transcript


@pytest.mark.slow
def test_ctrl_c_at_the_prompt_leaves_when_pressed_twice(tmp_path, at_terminal):
    with at_terminal(SLOW, tmp_path) as terminal:
        terminal.read(PROMPT)
        assert terminal.press_ctrl_c_until_it_ends() == 0
        assert "Ctrl-C again leaves" in terminal.transcript
        assert "Traceback" not in terminal.transcript


def test_the_end_of_input_leaves(tmp_path, at_terminal):
    with at_terminal(SLOW, tmp_path) as terminal:
        terminal.read(PROMPT)
        terminal.type("\x04")
        assert terminal.end() == 0


@pytest.mark.slow
def test_a_reply_that_does_not_stop_can_be_left(tmp_path, at_terminal):
    with at_terminal(SLOW, tmp_path, rich=False) as terminal:
        terminal.say("hold")
        terminal.read("TOOL HOLDS")
        assert terminal.press_ctrl_c_until_it_ends() == 130
        assert "[leaving] once what still runs has stopped" in terminal.transcript
        assert "Traceback" not in terminal.transcript


def test_the_first_lines_say_offline_and_how_to_get_a_model(tmp_path, at_terminal):
    with at_terminal(["chat"], tmp_path, rich=False) as terminal:
        banner = terminal.read(PROMPT)
        assert "Model: rules. Tools: list_files, read_file, search_text, recent_files, calculate." in banner
        for hint in ("not a language model", "OPENAI_API_KEY", "agentrt chat --model"):
            assert hint in banner


def test_a_model_without_tools_is_shown_how_to_get_some(tmp_path, at_terminal):
    with at_terminal(SLOW[:3], tmp_path, rich=False) as terminal:
        assert "Model: slow. Tools: none (--tools folder lets it read this folder)." in terminal.read(PROMPT)


ASKING = ["chat", "--model", "things:Slow", "--tools", "things:asking_tools"]


@pytest.mark.slow
@pytest.mark.parametrize("readline", [True, False])
@pytest.mark.parametrize("typed", ["y\n", "y\ny\nyes\n" * 1000, "y"], ids=["a line", "a long paste", "half a line"])
def test_input_typed_before_a_question_does_not_answer_it(typed, readline, tmp_path, at_terminal):
    with at_terminal(ASKING, tmp_path, rich=False, readline=readline) as terminal:
        terminal.say("ask")
        terminal.read("ABOUT TO ASK")
        terminal.type(typed)
        (tmp_path / "go").touch()
        terminal.read("[question] may it run ask {} (ask asks before each call)? y, n, or say why not")
        terminal.say("not now")
        terminal.read("HEARD 1")
        assert "ASKED AND DONE" not in terminal.transcript
        terminal.say("ask")
        terminal.read("[question]")
        terminal.say("y")
        terminal.read("ASKED AND DONE")


def test_typing_before_the_program_starts_answers_no_question(tmp_path, piped, at_terminal):
    arguments = [*ASKING, "--session", "talk.json"]
    (tmp_path / "go").touch()
    assert "[question]" in piped(arguments, "ask\n", tmp_path).stdout
    with at_terminal(arguments, tmp_path) as terminal:
        terminal.type("y\n")
        terminal.read("[question]")
        terminal.say("n")
        terminal.read("HEARD 1")
        assert "ASKED AND DONE" not in terminal.transcript


@pytest.mark.slow
@pytest.mark.parametrize(("readline", "term"), [(True, "xterm"), (True, "dumb"), (False, "xterm")])
def test_a_paste_of_several_lines_is_one_message(readline, term, tmp_path, at_terminal):
    arguments = [*SLOW, "--session", "talk.json"]
    with at_terminal(arguments, tmp_path, readline=readline, env={"TERM": term}) as terminal:
        terminal.paste("/usr/bin is\n  a folder,\nand so is\n\n/home")
        terminal.read("HEARD 1")
        terminal.say("and this is another")
        terminal.read("HEARD 2")
        terminal.say("/quit")
        assert terminal.end() == 0
    context = AgentState.model_validate_json((tmp_path / "talk.json").read_bytes()).context
    assert [message.get_text_content() for message in context if message.role == "user"] == [
        "/usr/bin is\n  a folder,\nand so is\n\n/home",
        "and this is another",
    ]


@pytest.mark.parametrize("readline", [True, False])
def test_lines_that_are_typed_ahead_are_messages_of_their_own(readline, tmp_path, at_terminal):
    with at_terminal(SLOW, tmp_path, rich=False, readline=readline) as terminal:
        terminal.say("ask")
        terminal.read("ABOUT TO ASK")
        terminal.type("one\ntwo\n")
        (tmp_path / "go").touch()
        terminal.read("HEARD 1: **ask**")
        terminal.read("HEARD 2: **one**")
        terminal.read("HEARD 3: **two**")


def test_the_help_names_every_command(tmp_path, at_terminal):
    with at_terminal(SLOW, tmp_path) as terminal:
        terminal.say("/help")
        told = terminal.read("Ctrl-C stops a reply")
    assert all(command in told for command in ("/new", "/explain", "/input", "/help", "/quit"))
