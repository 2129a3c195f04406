"""`agentrt eval`: its exit codes, its files, and what it prints."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrt.__main__ import main

CASES = """
from itertools import repeat

from agentrt import Agent, MiddlewareBase
from agentrt.evaluation import Case, Dataset, contains
from agentrt.model import ScriptedChatModel


class Facts(MiddlewareBase):
    async def on_system_prompt(self, agent, current_prompt):
        return current_prompt + FACT


FACT = "The capital of Norway is Oslo."


def respond(messages, tools):
    return "It is Oslo." if "Oslo" in messages[0].get_text_content() else "I do not know."


def build(case):
    return Agent("helper", "You help.", ScriptedChatModel(repeat(respond)), middlewares=[Facts()])


cases = Dataset("capitals", [Case(f"Question {n}", "Oslo") for n in range(6)], [contains()])
one = [Case("Only\\x1b[2J one")]
evaluators = [lambda trial: True]
wrong = 7
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs the command in a folder with a file of cases."""
    (tmp_path / "cases.py").write_text(CASES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)

    def run_command(*arguments: str) -> tuple[int, str]:
        code = main(["eval", *arguments])
        output = capsys.readouterr()
        return code, output.out + output.err

    yield run_command
    for name in {"cases_in_cases", "cases_in_broken", "cases_in_leaving"} - modules:
        sys.modules.pop(name, None)


def break_the_layer() -> None:
    Path("cases.py").write_text(CASES.replace('FACT = "The capital of Norway is Oslo."', 'FACT = ""'), "utf-8")


def test_passed_cases_are_exit_code_0_with_files(run: Any) -> None:
    code, output = run("cases.py", "--repeats", "2", "--ablate", "--json", "r.json", "--html", "r.html")
    assert code == 0
    assert "capitals: 6 cases x 2, 1.000 passed" in output
    assert "without Facts: 0.000, worth +1.000 [1.000, 1.000], p 0.031" in output
    assert json.loads(Path("r.json").read_text())["quality"] == 1.0
    assert Path("r.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_broken_layer_is_exit_code_1_with_the_cases(run: Any) -> None:
    assert run("cases.py", "--json", "last.json")[0] == 0
    break_the_layer()
    code, output = run("cases.py")
    assert code == 1
    assert "failed: Question 5 (1): contains: 0.00, without 'Oslo'" in output
    code, output = run("cases.py", "--baseline", "last.json")
    assert code == 1
    assert "better: 0, worse: 6, same: 0, p = 0.031\n  worse: Question 0\n" in output


def test_a_baseline_alone_allows_what_is_not_worse(run: Any) -> None:
    break_the_layer()
    assert run("cases.py", "--json", "last.json", "--fail-under", "0")[0] == 0
    assert run("cases.py", "--baseline", "last.json")[0] == 0
    assert run("cases.py", "--baseline", "last.json", "--fail-under", "0.5")[0] == 1


def test_a_baseline_of_other_cases_is_refused(run: Any) -> None:
    assert run("cases.py", "--json", "last.json")[0] == 0
    code, output = run("cases.py:one", "--baseline", "last.json")
    assert (code, "'last.json' has no case of 'cases.py:one'" in output) == (2, True)


def test_errors_in_trials_are_exit_code_3(run: Any) -> None:
    Path("cases.py").write_text(CASES.replace('return "It is', 'raise ValueError("no key") or "It is'), "utf-8")
    code, output = run("cases.py", "--fail-under", "0")
    assert code == 3
    assert "reply: ValueError: no key" in output


def test_a_list_of_cases_takes_the_evaluators_of_its_file(run: Any) -> None:
    code, output = run("cases.py:one", "--backend", "trio")
    assert (code, "cases: 1 cases x 1, 1.000 passed" in output) == (0, True)
    assert "\x1b" not in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.py"], "is not a Python file"),
        (["cases.py:missing"], "has no 'missing'"),
        (["cases.py:wrong"], "must be a Dataset"),
        (["broken.py"], "cannot be loaded: ZeroDivisionError"),
        (["leaving.py"], "cannot be loaded: SystemExit"),
        (["cases.py", "--html", "/dev/full"], "cannot be written"),
        (["cases.py", "--baseline", "cases.py"], "is not a report"),
        (["cases.py", "--fail-under", "7"], "from 0 to 1"),
        (["cases.py", "--repeats", "0"], "repeats"),
        (["cases.py", "--json", "nowhere/r.json"], "cannot be written"),
    ],
)
def test_wrong_use_is_exit_code_2(arguments: list[str], words: str, run: Any) -> None:
    Path("broken.py").write_text("1 / 0", encoding="utf-8")
    Path("leaving.py").write_text("import sys\nsys.exit(0)", encoding="utf-8")
    code, output = run(*arguments)
    assert code == 2
    assert words in output


def test_progress_is_shown_on_a_terminal_alone(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "trials" not in run("cases.py")[1]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert "\r6 of 6 trials, 0 failed\n" in run("cases.py")[1]
