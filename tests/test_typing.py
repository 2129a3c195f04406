"""What a type checker and an editor tell the user: tests/typing holds the code that they look at."""

import inspect
import subprocess
import sys
from pathlib import Path

from agentrt import Agent

ROOT = Path(__file__).resolve().parents[1]
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


def mypy(*arguments: str) -> tuple[int, str]:
    # A user has agentrt installed, so mypy is silent about what is wrong inside it; the job `check` looks there.
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--no-error-summary", *arguments]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return finished.returncode, finished.stdout + finished.stderr


def test_user_code_type_checks_and_its_mistakes_are_found() -> None:
    code, output = mypy("tests/typing")
    assert output == ""
    assert code == 0


def test_a_misspelt_next_handler_key_gets_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "misspelt.py"
    file.write_text(MISSPELT)
    code, output = mypy(str(file))
    assert code == 1
    assert (
        'misspelt.py:14: error: Unexpected keyword argument "tool_choise" for "__call__" of "NextReasoning"; '
        'did you mean "tool_choice"?  [call-arg]'
    ) in output


def test_an_editor_sees_the_parameters_and_types_of_an_agent() -> None:
    parameters = inspect.signature(Agent).parameters
    assert list(parameters)[:5] == ["name", "system_prompt", "model", "toolkit", "middlewares"]
    kinds = {parameter.kind for parameter in parameters.values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters.values())
