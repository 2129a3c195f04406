"""What type checkers and an editor tell the user, about tests/typing and the programs in the documentation."""

import inspect
import re
import shutil
from pathlib import Path
from typing import get_args

import pytest

from agentrt import Agent
from agentrt.agent import ReActAgentBase
from agentrt.console.cli import main
from agentrt.types import PostHookTypes, PreHookTypes
from tests.documents import all_programs
from tests.type_checkers import report_of_mypy, report_of_pyright

MISSPELT = """
from collections.abc import AsyncGenerator
from typing import Any

from agentrt import MiddlewareBase, Msg
from agentrt.event import AgentEvent
from agentrt.hooks import NextReasoning


class Misspelt(MiddlewareBase):
    async def on_reasoning(
        self, agent: Any, input_kwargs: Any, next_handler: NextReasoning
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        async for item in next_handler(tool_choise=None):
            yield item
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write what users wrote, read and begin with, and one file with a mistake that no `type: ignore` announces."""
    shutil.copytree(Path(__file__).parent / "typing", tmp_path / "user_code")
    for program in all_programs():
        file = tmp_path / "user_code" / f"{re.sub(r'[^a-z0-9]', '_', program.name.lower())}.py"
        # Empty lines first, so that a report has the line of the page.
        file.write_text("\n" * (program.line - 1) + program.source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["new", "first_agent"]) == 0
    (tmp_path / "first_agent").rename(tmp_path / "user_project")  # else mypy takes it for the package in it
    (tmp_path / "misspelt.py").write_text(MISSPELT, encoding="utf-8")
    return tmp_path


# One run of each checker for all files, since most of its time is reading the libraries.


@pytest.mark.slow
def test_mypy_finds_one_mistake_in_the_code_of_users(folder: Path):
    report = report_of_mypy(folder)
    assert (
        'misspelt.py:14: error: Unexpected keyword argument "tool_choise" for "__call__" of "NextReasoning"; '
        'did you mean "tool_choice"?  [call-arg]'
    ) in report
    assert "user_" not in report


@pytest.mark.slow
def test_pyright_finds_one_mistake_in_the_code_of_users(folder: Path):
    report = report_of_pyright(folder)
    assert 'No parameter named "tool_choise"' in report
    assert "user_" not in report


def test_each_hook_type_is_typed_as_a_pre_or_a_post_hook():
    assert sorted(get_args(PreHookTypes) + get_args(PostHookTypes)) == sorted(ReActAgentBase.supported_hook_types)


def test_an_editor_sees_the_parameters_and_types_of_an_agent() -> None:
    parameters = inspect.signature(Agent).parameters
    assert list(parameters)[:5] == ["name", "system_prompt", "model", "toolkit", "middlewares"]
    kinds = {parameter.kind for parameter in parameters.values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters.values())
