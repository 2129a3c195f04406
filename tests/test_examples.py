"""Every example runs offline, as a user would run it, and says what it should."""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.program_runner import ProgramRunner

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
QUICKSTART = EXAMPLES / "quickstart.py"

CALLS_FOR_A_MODEL = {"AGENTRT_MODEL", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"}

EXPECTED_OUTPUT = {
    "approval.py": r"delete {\"path\": \"draft\.txt\"}\? \[.*\] The tool said: Deleted draft\.txt\.\n",
    "ask_the_docs.py": (
        r"(?s)\d+ pages are indexed\.\n\n> How do I interrupt a reply\?\n.*\[1\]\n.*"
        r"  \[1\] docs/how-to/interrupt\.md: .*\n\n> How are tokens counted.*"
        r"  \[\d+\] docs/middlewares/rate-limit\.md: .*\n"
    ),
    "compiled_chains.py": (
        r"(?s)Agent 'assistant': the chains, .*  1\. RetryMiddleware .*  2\. RateLimitMiddleware .*"
        r"\nA wrong order: .*\nrefused: RetryMiddleware must wrap .*: put RetryMiddleware before "
        r"RateLimitMiddleware; .* write: middlewares=\[RetryMiddleware, RateLimitMiddleware, Shout\]\n"
        r"\nA stream that breaks, .*\nPARIS IS COLD AND \nwithdrawn, and asked again: Transient\nPARIS IS SUNNY\.\n"
    ),
    "custom_agent.py": (
        r"parrot: Hello there! Hello there!\n\(Hello there! Hello there! Thank you\.\)\n\['Hello there!'\]\n"
    ),
    "dynamic_system_prompt.py": r"Time: \d{4}-\d\d-\d\dT.*\nTime: \d{4}-\d\d-\d\dT.*\n",
    "evaluation.py": (
        r"without RetryMiddleware: 0\.67, with it: 1\.00\nwithout Facts: 0\.67, with it: 1\.00\njudges: \d+ of .*\n"
    ),
    "external_tool.py": r"\(a colleague in Oslo looks out of the window\)\nIt is snowing in Oslo\.\n",
    "full_observability.py": (
        r"\[reply\] start for assistant\n"
        r"(\[reasoning\] start\n\[system_prompt\] length=28\n\[model_call\] rules\n\[model_call\] done\n"
        r"\[reasoning\] end\n){2}"
        r"\[reply\] end for assistant\nIt is sunny in Beijing\.\n"
    ),
    "handoff.py": (
        r"refunds asks: refund {\"order\": \"7\"}\n"
        r"refunds: Order 7 is refunded\.\nrefunds: You are welcome\.\n"
    ),
    "hooks_legacy.py": (
        r"Hello, world! \[instance\] \[class\]\nHello, world! \[instance\]\nadd gave 5 \(success\)\n5!\n"
        r"  1\. ActingHookMiddleware  agentrt\.compat\.hook_middleware:\d+\n"
    ),
    "killed_worker.py": (
        r"A worker is killed, and another one finishes its reply\n"
        r"agentrt worker: ready: (\S+) works on .*\n"
        r"(this process: waiting: \1 works on .*\n)?killed the worker in the middle of the reply\n"
        r"this process: taking over reply demo of session 'weather' from \1\n"
        r"this process: ready: .*\n"
        r"It was measured in London, Oslo, Beijing\.\n"
        r"(  success: .*\n){3}in \d+\.\d s\n"
    ),
    "memory_across_sessions.py": (
        r"Monday, ann: Noted\.\nTuesday, ann: user: I am allergic to nuts\.\n"
        r"Tuesday, bob: nothing is remembered\nforgotten: nothing is remembered\n"
    ),
    "model_fallback.py": (
        r"Primary model failed: connection refused, switching to fallback\nHello from the other model\.\n"
    ),
    "moon_marathon.py": (
        r"363300 km at 20\.897 km/h take 17385 h: about 17000 hours\.\n"
        r"log: sub-agent 'http_fetch' of 'researcher' failed \(timeout\): TimeoutError\n"
        r"I could not confirm the distance: \[subagent_timeout\] http_fetch: TimeoutError\n"
    ),
    "msghub_debate.py": (
        r"Alice: .* \(Before me spoke: nobody\.\)\nBob: .* \(Before me spoke: Alice\.\)\n"
        r"(Carol: .*\n){2}Bob: .* \(Before me spoke: Alice, Bob, Carol\.\)\nJudge: .* was said by Alice\.\n"
    ),
    "plan.py": (
        r"  Find the distance: todo, Divide by the pace: todo\n  Find the distance: in_progress, .*\n"
        r"  Find the distance: done, Divide by the pace: in_progress\nThe distance is 363300 km\. Shall I continue\?\n"
        r"The subtask at index 1, named 'Divide by the pace', is 'in_progress':\n"
        r"  Find the distance: done, Divide by the pace: done\n  no plan\nIt takes 17000 hours\.\n"
    ),
    "production_stack.py": (
        r"(?s)Agent 'shop': the chains, .*     wraps CacheMiddleware: what is kept is redacted\n.*"
        r"(It is on its way\. \(4 requests\)\n){2}"
        r"RedactionMiddleware must wrap CacheMiddleware \(what is kept is redacted\), but stands inside it: put "
        r"RedactionMiddleware before CacheMiddleware; agentrt\.middleware\.arrange\(middlewares\) returns the correct "
        r"order, write: middlewares=\[(\w+, )+\w+\]\n"
    ),
    "quickstart.py": (
        r"(?s)Agent 'assistant': the chains, .*> Which file defines .*agentrt/hooks\.py defines 'MiddlewareBase' .*"
        r"> What does LICENSE say about trademarks\?.*LICENSE, line \d+: .*> What is 17 \* 23\?.*17 \* 23 = 391\n"
    ),
    "rate_limit.py": r"0\.\d s: Done\.\n0\.[2-9] s: Done\.\n\d+\.\d s: Done\.\n",
    "resume_in_another_process.py": (
        r"first process: Waiting for an answer about 'get_weather' \(\w+\)\.\n"
        r"second process: It is foggy in London\.\n"
    ),
    "streaming_many_agents.py": (
        r"(?s)(?=.*counter: one,\n.*counter: two,\n.*counter: three\n.*counter:  \(complete\)\n)"
        r"(?=.*   poet: A\n.*   poet: tea\n.*   poet:  \(complete\)\n).*"
    ),
    "structured_output.py": r".* argument 'days' should be more than 0, not -3\. .*\n3 days in Kyoto, by train\n",
    "subagents.py": (
        r"(?s)\[call\] searcher\(.*\n\[call\] writer\(.*\n  \[searcher\] It is 363300 km away at its closest\.\n.*"
        r"\[waiting\] for a decision on writer > publish .*--- writer may run publish: yes\n"
        r"  \[result\] publish: 'The Moon' is published\n  \[writer\] The article is out\.\n"
        r"\[result\] writer: The article is out\.\nBoth are done\.\n\[tokens\] about \d+ in, \d+ out, .*\n"
    ),
    "timing.py": (
        r"\[timing\] assistantscripted: \d+\.\d\ds\nGood things take time\.\n"
        r"\[timing\] assistantscripted: \d+\.\d\ds\nThis one was quick\.\n"
    ),
    "which_account.py": (
        r"Which account shall I use\? {\"account\":\"work\"}\n"
        r"The flight is booked\. It is paid from the account: private\n"
    ),
}


Run = Callable[..., "subprocess.CompletedProcess[str]"]
Answer = Callable[..., str]


def offline() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in CALLS_FOR_A_MODEL}


@pytest.fixture
def run(program_runner: ProgramRunner) -> Run:
    """Run a script with a folder as the current one, `typed` as its input, and variables of the environment."""

    def run(
        script: Path, *arguments: str | Path, cwd: Path = ROOT, typed: str = "y\n", **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        paths = os.pathsep.join([str(ROOT), str(ROOT / "middleware")])  # for the processes that it starts
        variables = {**offline(), "PYTHONPATH": paths, **environment}
        return program_runner.run(script, *map(str, arguments), cwd=cwd, typed=typed, environment=variables)

    return run


@pytest.fixture
def answer(run: Run) -> Answer:
    """Ask the quickstart about a folder."""

    def answer(question: str, folder: Path, **environment: str) -> str:
        finished = run(QUICKSTART, question, str(folder), cwd=folder, **environment)
        assert finished.returncode == 0, finished.stderr
        assert not finished.stderr
        return finished.stdout.partition(f"> {question}")[2]

    return answer


def run_python(
    script: Path, *arguments: str | Path, cwd: Path, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a script in a Python of its own, which reads the variables for Python."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "middleware")])
    return subprocess.run(
        [sys.executable, "-W", "error", str(script), *map(str, arguments)],
        cwd=cwd,
        env={**offline(), "PYTHONPATH": paths, **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED_OUTPUT)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "quickstart.py")) for name in EXPECTED_OUTPUT]
)
def test_an_example_runs_and_prints_what_it_should(name: str, tmp_path: Path, run: Run) -> None:
    finished = run(EXAMPLES / name, cwd=tmp_path)

    assert finished.returncode == 0, finished.stderr
    assert not finished.stderr
    assert re.fullmatch(EXPECTED_OUTPUT[name], finished.stdout), finished.stdout


def test_the_first_screen_of_the_demo_is_in_colour(tmp_path: Path, run: Run) -> None:
    finished = run(EXAMPLES / "compiled_chains.py", cwd=tmp_path, FORCE_COLOR="1", TERM="xterm-256color")

    assert "\x1b[31mrefused: RetryMiddleware must wrap" in finished.stdout, finished.stderr
    plain = re.sub(r"\x1b\[[\d;]*m", "", finished.stdout)
    assert re.fullmatch(EXPECTED_OUTPUT["compiled_chains.py"], plain)


def test_the_first_screen_of_the_demo_is_plain_without_rich(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError")
    places = os.pathsep.join(map(str, [tmp_path, ROOT, ROOT / "middleware"]))
    finished = run_python(EXAMPLES / "compiled_chains.py", cwd=tmp_path, FORCE_COLOR="1", PYTHONPATH=places)

    assert re.fullmatch(EXPECTED_OUTPUT["compiled_chains.py"], finished.stdout), finished.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the user's own, with files at several depths and some that no search should enter."""
    top = tmp_path / "notes"
    for place in ("", "garden", "garden/trees", ".git", "node_modules"):
        (top / place).mkdir(parents=True, exist_ok=True)
        (top / place / f"{place.strip('.').replace('/', '-') or 'top'}-a.txt").write_text("nothing of note\nin here\n")
        (top / place / f"{place.strip('.').replace('/', '-') or 'top'}-b.md").write_text("# More\n\nnothing of note\n")
    (top / "picture.bin").write_bytes(bytes(range(256)))
    return top


def some_word() -> str:
    return "".join(random.choices("bcdfghjklmnpqrstvwxz", k=10))


def test_the_quickstart_names_only_the_file_that_has_a_word(folder: Path, answer: Answer) -> None:
    word = some_word()
    needle = random.choice([folder / "top-a.txt", *(folder / "garden").rglob("*.*")])
    with needle.open("a") as file:
        file.write(f"here is {word} at last\n")

    output = answer(f"Which file contains the word {word}?", folder)

    assert needle.name in output
    assert not [path.name for path in folder.rglob("*.*") if path != needle and path.name in output]


def test_the_quickstart_follows_a_file_that_moves(folder: Path, answer: Answer) -> None:
    word = some_word()
    question = f"Which file contains the word {word}?"
    before, after = folder / "garden" / "before.txt", folder / "after.txt"
    before.write_text(f"the {word}\n")
    assert "garden/before.txt" in answer(question, folder)

    before.rename(after)

    output = answer(question, folder)
    assert "after.txt" in output
    assert "before.txt" not in output


@pytest.mark.parametrize("place", [".git", "node_modules"])
def test_the_quickstart_skips_hidden_and_generated_folders(place: str, folder: Path, answer: Answer) -> None:
    word = some_word()
    (folder / place / "hidden.txt").write_text(word)

    assert f"found no file here that contains '{word}'" in answer(f"Which file contains the word {word}?", folder)


def test_the_quickstart_calculates(answer: Answer) -> None:
    first, second = random.randrange(100, 1000), random.randrange(100, 1000)

    assert f" = {first * second + 7}\n" in answer(f"What is {first} * {second} + 7?", ROOT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sum_", "expected"),
    [
        ("9**999999999", "the power is too large"),
        ("9**999**999", "the power is too large"),
        ("(1+" * 60 + "1" + ")" * 60, "longer than 200 characters"),
        ("1/0", "division by zero"),
        ("10**400 * 1.5", "too large"),
    ],
)
def test_the_quickstart_says_why_it_cannot_do_a_sum(sum_: str, expected: str, folder: Path, answer: Answer) -> None:
    assert expected in answer(f"What is {sum_}?", folder).splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["../secret.txt", "garden/../../secret.txt", "link.txt", "linked/secret.txt"])
def test_the_quickstart_reads_nothing_outside_of_its_folder(path: str, folder: Path, answer: Answer) -> None:
    (folder.parent / "secret.txt").write_text("the treasure is under the oak\n")
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "linked").symlink_to(folder.parent, target_is_directory=True)

    output = answer(f"Read the file {path}", folder)

    assert "outside of the folder" in output
    assert "under the oak" not in output
    assert "found no file" in answer("Which file contains the word treasure?", folder)


def test_the_quickstart_refuses_absolute_paths_to_other_places(folder: Path, answer: Answer) -> None:
    secret = folder.parent / "secret.txt"
    secret.write_text("the treasure is under the oak\n")

    assert "under the oak" not in answer(f"Read the file {secret}", folder)


def test_the_quickstart_writes_to_a_terminal_without_unicode(folder: Path) -> None:
    (folder / "tee.txt").write_text("grüner Tee, 绿茶\n", encoding="utf-8")

    finished = run_python(QUICKSTART, "Read tee.txt", folder, cwd=folder, PYTHONIOENCODING="ascii")

    assert "gr?ner Tee, ??" in finished.stdout, finished.stderr


def test_the_quickstart_removes_escape_sequences_of_files(folder: Path, answer: Answer) -> None:
    (folder / "trap.txt").write_text("\x1b[2Jgone\n")

    output = answer("Read trap.txt", folder)

    assert "?[2Jgone" in output
    assert "\x1b" not in output


def test_a_folder_that_is_missing_exits_2_and_is_named(tmp_path: Path, run: Run) -> None:
    finished = run(QUICKSTART, "How many files are there?", tmp_path / "nowhere")

    assert finished.returncode == 2
    assert finished.stderr.endswith(f"error: {str(tmp_path / 'nowhere')!r} is not a folder\n")
    assert not finished.stdout


def test_a_copy_of_the_quickstart_looks_into_the_current_folder(folder: Path, tmp_path: Path, run: Run) -> None:
    copy = tmp_path / "deep" / "down" / "quickstart.py"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(QUICKSTART.read_bytes())

    finished = run(copy, "List the files", cwd=folder)

    assert finished.returncode == 0, finished.stderr
    assert "garden-a.txt" in finished.stdout


class ModelServer(HTTPServer):
    """Has every question looked up with a tool, and tells what the tool output."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ModelHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.models: list[str] = []


class ModelHandler(BaseHTTPRequestHandler):
    server: ModelServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.models.append(request["model"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        last = request["messages"][-1]
        call = {"index": 0, "id": "1", "function": {"name": "list_files", "arguments": "{}"}}
        delta = {"content": f"I see {last['content']}"} if last["role"] == "tool" else {"tool_calls": [call]}
        self._send({"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "model"), [({}, "gpt-5-mini"), ({"AGENTRT_MODEL": "openai:mine"}, "mine")])
def test_the_quickstart_calls_the_model_of_the_environment(
    spec: dict[str, str], model: str, server: ModelServer, tmp_path: Path, answer: Answer
) -> None:
    (tmp_path / "only.txt").write_text("nothing of note\n")

    output = answer("What is here?", tmp_path, OPENAI_BASE_URL=server.url, NO_PROXY="127.0.0.1", **spec)

    assert server.models == [model, model]
    assert "[call] list_files {}\n" in output
    assert output.endswith("I see only.txt\n")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "NO_PROXY": "127.0.0.1"}, "is the server running"),
        ({"AGENTRT_MODEL": "antropic:claude"}, "did you mean 'anthropic'"),
    ],
)
def test_the_quickstart_says_in_one_line_why_there_is_no_model(
    environment: dict[str, str], expected: str, tmp_path: Path, run: Run
) -> None:
    finished = run(QUICKSTART, "What is here?", tmp_path, **environment)

    assert finished.returncode == 1
    assert re.fullmatch(r"error: .+\n", finished.stderr), finished.stderr
    assert expected in finished.stderr


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("y", "Deleted draft.txt."),
        ("n", "The user denied this call."),
        ("other.txt", "Deleted other.txt."),
    ],
)
def test_the_approval_example_does_what_the_user_says(typed: str, expected: str, tmp_path: Path, run: Run) -> None:
    finished = run(EXAMPLES / "approval.py", cwd=tmp_path, typed=f"{typed}\n")

    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.endswith(f"The tool said: {expected}\n")
