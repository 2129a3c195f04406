"""The `agentrt` command without a terminal: what it prints, keeps and refuses."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

import agentrt
from agentrt import Agent, AgentState
from agentrt.console.chat import Chat
from agentrt.console.cli import main
from agentrt.errors import SessionIOError
from agentrt.middleware import GuardrailMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.state import InMemoryStateStore
from tests.console.program import environment, put_things

SLOW = ["chat", "--model", "things:Slow", "--tools", "things:tools"]


@pytest.fixture(autouse=True)
def things(tmp_path: Path) -> None:
    put_things(tmp_path)


def test_a_conversation_through_a_pipe_is_plain_text(tmp_path, piped):
    done = piped([*SLOW, "--system", "Be kind."], "hello\nadd\nfail\n/explain\n/what now\n\n\x1b[31m早\n", tmp_path)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "[error] Transient: the line\\x1b[31m is cut",
        "[error] '/what' is not a command: /help lists all commands",
    ]
    before, _, after = done.stdout.partition("Agent 'assistant': the chains, outermost first\n")
    assert before.splitlines() == [
        "HEARD 1: **hello**",
        "[tokens] 7 in, 5 out",
        '[call] add({"a": 20, "b": 22})',
        "[result] add: 42",
        "HEARD 2: **add**",
        "[tokens] about 7 in, 5 out",
    ]
    assert after.splitlines()[-2:] == ["HEARD 4: **\\x1b[31m早**", "[tokens] 7 in, 5 out"]
    assert {char for char in done.stdout if ord(char) < 32} == {"\n"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "code"),
    [("fail\n", 1), ("hello\nfail\n/help\n", 1), ("fail\n/quit\n", 1), ("fail\nhello\n", 0), ("", 0)],
)
def test_a_last_reply_that_failed_fails_the_command(said, code, tmp_path, piped):
    done = piped(SLOW, said, tmp_path)
    assert done.returncode == code
    assert "Transient" not in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the streams")
@pytest.mark.parametrize(("closed", "word"), [("<&-", "input"), (">&-", "output")])
def test_a_closed_stream_is_reported_in_one_line(closed, word, tmp_path):
    line = f"{shlex.join([sys.executable, '-m', 'agentrt.console', *SLOW])} {closed}"
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"agentrt: the standard {word} is closed: redirect it, for example to /dev/null\n"


def test_without_a_model_the_offline_rules_answer_and_say_so(tmp_path, piped):
    done = piped(["chat"], "What is 2 + 3?\n/quit\nnever said\n", tmp_path)
    assert done.returncode == 0
    assert "2 + 3 = 5\n" in done.stdout
    assert "never said" not in done.stdout
    assert done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in ("Offline", "OPENAI_API_KEY", "--model"))


@pytest.mark.parametrize(("arguments", "variables"), [(["--model", "rules"], {}), ([], {"AGENTRT_MODEL": "rules"})])
def test_rules_that_are_asked_for_answer_without_a_note(arguments, variables, tmp_path, piped):
    done = piped(["chat", *arguments], "hi\n", tmp_path, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "I am a set of rules, not a language model" in done.stdout


def test_tools_that_are_named_replace_those_of_the_rules(tmp_path, piped):
    done = piped(["chat", "--model", "rules", "--tools", "things:add"], "What is add 2 and 3?\nhi\n", tmp_path)
    assert '[call] add({"a": 2, "b": 3})\n[result] add: 5\n' in done.stdout
    assert "list_files" not in done.stdout


@pytest.mark.parametrize(("arguments", "tools"), [([], "none"), (["--tools", "folder"], "list_files, read_file")])
def test_a_real_model_reads_the_folder_only_if_asked_to(arguments, tools, tmp_path, monkeypatch):
    chats = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Chat, "run", lambda self: chats.append(self._agent) or True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "things", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["chat", "--model", "things:Slow", *arguments]) == 0
    assert (", ".join(chats[0].toolkit.names()[:2]) or "none") == tools


FIRST_LINES = {
    "hi": "Hello. I am a set of rules",
    "Hello there!": "Hello. I am a set of rules",
    "what can you do?": "- read_file: Read one text file.",
    "help": "Ask me, for example: ",
    "who are you": "I am a set of rules, not a language model",
    "list files": "animals.txt\nthings.py",
    "what is 2+3": "2+3 = 5",
    "what is 1/0": "it failed: division by zero",
    "which file contains zebra?": "animals.txt contains 'zebra' on line 1: a zebra",
    "read animals.txt": "animals.txt has 1 line:\na zebra",
    "cat animals.txt": "animals.txt has 1 line:\na zebra",
    "read ../secret": "'../secret' is outside of the folder",
    "read missing.txt": "'missing.txt' does not exist",
    "summarize this folder": "I cannot answer that: I am a set of rules",
    "what is the capital of France?": "Ask me, for example: ",
    "asdkjh": "Ask me, for example: ",
    "你好": "Hello. I am a set of rules",
    "哪个文件包含zebra？": "animals.txt contains 'zebra'",
    "x" * 100_000: "I searched, and found no file",
    "": "",
}


def test_the_first_line_of_a_stranger_gets_a_useful_answer(tmp_path, piped):
    (tmp_path / "animals.txt").write_text("a zebra\n", encoding="utf-8")
    done = piped(["chat", "--model", "rules"], "\n".join([*FIRST_LINES, "/quit"]), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    answers = re.split(r"^\[tokens\].*$", done.stdout, flags=re.MULTILINE)
    for (line, answer), shown in zip(FIRST_LINES.items(), answers, strict=True):
        assert answer in shown, line[:100]


def test_the_log_of_a_failing_tool_has_no_control_codes(tmp_path, piped):
    (tmp_path / "bad.py").write_text("def wait() -> str:\n    raise ValueError('\\x1b[31mno')\n", encoding="utf-8")
    done = piped(["chat", "--model", "things:Slow", "--tools", "bad:wait"], "wait\n", tmp_path)
    assert "[error] wait: error" in done.stdout
    assert done.stderr.rstrip().endswith(r"ValueError: \x1b[31mno")
    assert "\x1b" not in done.stdout + done.stderr


def test_a_session_continues_in_another_process(tmp_path, piped):
    with_session = [*SLOW, "--session", "talk.json"]
    first = piped(with_session, "one\ntwo\n", tmp_path)
    second = piped(with_session, "three\n", tmp_path)
    assert (first.stderr, second.stderr) == ("", "")
    assert "HEARD 2: **two**" in first.stdout
    assert "HEARD 3: **three**" in second.stdout
    assert len(json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))["context"]) == 6


def test_a_new_conversation_takes_the_place_of_the_old_one(tmp_path, piped):
    with_session = [*SLOW, "--session", "talk.json"]
    piped(with_session, "one\n/new\n", tmp_path)
    done = piped(with_session, "two\n/new\nthree\n", tmp_path)
    assert "HEARD 1: **two**" in done.stdout
    assert "HEARD 1: **three**" in done.stdout


@pytest.mark.parametrize("window", [None, 40])
def test_a_terminal_is_told_why_answers_do_not_stream(window, monkeypatch, capsys):
    guardrail = GuardrailMiddleware(output=lambda text, agent: None, window=window)
    agent = Agent("tester", model=ScriptedChatModel(["one"]), middlewares=[guardrail])
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with start_blocking_portal() as portal:
        assert Chat(agent, portal, color=False).run()
    said = "GuardrailMiddleware holds each answer until it is whole" in capsys.readouterr().out
    assert said is (window is None)


def test_a_new_conversation_that_cannot_be_saved_does_not_begin(monkeypatch, capsys):
    class FullOnce(InMemoryStateStore):
        saves = 0

        async def save(self, state: AgentState) -> None:
            self.saves += 1
            if self.saves == 1:
                raise SessionIOError("full")
            await super().save(state)

    agent = Agent("tester", model=ScriptedChatModel(["one"]), state_store=FullOnce())
    monkeypatch.setattr(sys, "stdin", io.StringIO("/new\nhello\n"))
    with start_blocking_portal() as portal:
        assert Chat(agent, portal, color=False).run()
    assert "SessionIOError: full" in capsys.readouterr().err
    assert [message.get_text_content() for message in agent.state.context] == ["hello", "one"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--session", ""], "agentrt: the session file needs a name: write --session FILE"),
        (["--model", "opnai:gpt-5"], "agentrt: 'opnai:gpt-5' names an unknown provider: did you mean 'openai'?"),
        (["--model", "things:Fast"], "agentrt: 'things' has no 'Fast'"),
        (["--tools", "nowhere:f"], "agentrt: 'nowhere:f' cannot be loaded: importing 'nowhere' failed"),
        (["--tools", "things:nothing"], "agentrt: 'things' has no 'nothing'; it has "),
        (["--tools", "things:THINGS"], "agentrt: 'things' has no 'THINGS'"),
        (["--session", "broken.json"], "broken.json' holds no conversation that this version can read"),
        (["--session", "missing/talk.json"], "agentrt: the session file 'missing/talk.json' cannot be saved"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(arguments, complaint, tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "things", raising=False)
    assert main(["chat", "--model", "things:Slow", *arguments]) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert (tmp_path / "broken.json").read_text(encoding="utf-8") == "{"


@pytest.mark.parametrize("arguments", [["--version"], ["chat", "--version"]])
def test_the_version_is_printed(arguments, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    assert capsys.readouterr().out == f"agentrt {agentrt.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["sing"], ["chat", "--loud"]])
def test_unknown_arguments_exit_2_and_say_how_it_is_used(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: agentrt" in capsys.readouterr().err


def test_a_misspelt_option_is_refused_with_the_right_one(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["chat", "--modle=rules"])
    assert "usage: agentrt chat [-h]" in (printed := capsys.readouterr().err)
    assert printed.endswith("unrecognized arguments: --modle=rules; did you mean --model?\n")


def test_a_reader_that_leaves_ends_the_program_with_one_line(tmp_path):
    command = [sys.executable, "-m", "agentrt.console", *SLOW]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b"two\n" * 3)
        process.stdin.close()
        complaints = process.stderr.read()
    assert (process.returncode, complaints) == (1, b"agentrt: standard output can no longer be written: Broken pipe\n")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("said", ["hello\nhello\n", "/explain\n", "/help\n", "wait\n"])
def test_a_full_disk_ends_the_program_with_one_line(said, unbuffered, tmp_path):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "agentrt.console", *SLOW],
            cwd=tmp_path,
            env=environment(PYTHONUNBUFFERED=unbuffered),
            input=said.encode(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.stderr == b"agentrt: standard output can no longer be written: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full"])
def test_a_conversation_needs_no_standard_error(errors, tmp_path):
    (tmp_path / "bad.py").write_text("def wait() -> str:\n    raise ValueError('no')\n", encoding="utf-8")
    command = [sys.executable, "-m", "agentrt.console", "chat", "--model", "things:Slow", "--tools", "bad:wait"]
    done = subprocess.run(
        ["sh", "-c", f"{shlex.join(command)} {errors}"],
        cwd=tmp_path,
        env=environment(),
        input="/what\nwait\nfail\nhello\n",
        stdout=subprocess.PIPE,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert "HEARD 3: **hello**" in done.stdout


@pytest.mark.slow
def test_the_second_program_on_a_session_file_may_not_save(tmp_path, piped):
    arguments = [*SLOW, "--session", "talk.json"]
    command = [sys.executable, "-m", "agentrt.console", *arguments]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        process.stdout.readline()
        assert b"tokens" in process.stdout.readline()
        second = piped(arguments, "two\n", tmp_path)
        rest, complaints = process.communicate(b"three\n", timeout=60)
    assert "HEARD 2: **two**" in second.stdout
    assert (process.returncode, rest) == (1, b"")
    assert complaints.startswith(b"[error] SessionConflict: the session file ")
    assert complaints.count(b"\n") == 1
    context = AgentState.model_validate_json((tmp_path / "talk.json").read_bytes()).context
    assert [message.get_text_content() for message in context if message.role == "user"] == ["one", "two"]


@pytest.mark.slow
def test_a_file_in_the_current_folder_shadows_no_module(tmp_path):
    for name in ("rich", "openai", "readline"):
        (tmp_path / f"{name}.py").write_text("print('TAKEN IN')", encoding="utf-8")
    # As the installed command is started, and not with `-m` or `-c`, where Python itself puts the folder first.
    program = "import sys; sys.path.pop(0); from agentrt.console.cli import main; sys.exit(main(sys.argv[1:]))"
    for arguments in (["--model", "openai:gpt"], SLOW[1:]):
        done = subprocess.run(
            [sys.executable, "-c", program, "chat", *arguments],
            cwd=tmp_path,
            env=environment(OPENAI_API_KEY="k"),
            input="/help\n",
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "TAKEN IN" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "is_added"),
    [([], False), (["--model", "rules"], False), (["--tools", "things:add"], True), (["--model", "things:Slow"], True)],
)
def test_the_current_folder_is_last_and_only_for_a_module(arguments, is_added, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = [entry for entry in sys.path if entry not in ("", str(tmp_path))]
    monkeypatch.setattr(sys, "path", [*before])
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setenv("AGENTRT_MODEL", "rules")
    monkeypatch.delitem(sys.modules, "things", raising=False)
    assert main(["chat", *arguments]) == 0
    assert sys.path == [*before, str(tmp_path)] if is_added else before
