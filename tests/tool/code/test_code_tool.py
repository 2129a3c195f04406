"""What a `CodeTool` takes, refuses and says."""

import copy
import pickle
import re
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from agentrt import Agent, Toolkit
from agentrt.errors import ConfigError, ToolConfigError
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import CodeProgram, CodeResult, CodeTool, FunctionTool, ToolBase, ToolResponse, Toolset


async def read(name: str) -> str:
    return name


def write(name: str) -> str:
    return name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_calls": 0}, r"CodeTool\(max_calls=...\) of 'run_code' must be a whole number from 1 to 100,000, not 0"),
        ({"max_seconds": float("inf")}, "max_seconds=.* must be a finite number of seconds above 0, not inf"),
        ({"max_memory": 10}, "max_memory=.* must be a whole number of at least 1000000, not 10"),
        ({"max_output": 10}, "max_output=.* must be a whole number of at least 400, not 10"),
        ({"sandbox": "docker"}, """sandbox=...\\) must be "monty" or a CodeSandbox, not 'docker'"""),
        ({"name": "run code"}, "'run code' cannot be the name of a tool"),
    ],
)
def test_option_that_cannot_be_is_refused_with_its_value(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolConfigError, match=words):
        CodeTool([read], **options)


@pytest.mark.parametrize("name", ["read-file", "class", "7up"])
def test_tool_whose_name_is_no_python_name_is_refused(name: str) -> None:
    with pytest.raises(
        ToolConfigError, match=rf"'run_code' cannot have the tool '{name}': its name is not a Python name"
    ):
        CodeTool([FunctionTool(read, name=name)])


@pytest.mark.parametrize("name", ["open", "sum", "ToolError", "run_code"])
def test_tool_whose_name_means_something_else_is_refused(name: str) -> None:
    with pytest.raises(ToolConfigError, match=f"cannot have the tool '{name}': its name has another meaning"):
        CodeTool([FunctionTool(read, name=name)])


def test_tool_can_be_pickled_and_copied() -> None:
    tool = CodeTool([read])
    for other in (pickle.loads(pickle.dumps(tool)), copy.deepcopy(tool)):
        assert other.description == tool.description


def test_code_tool_in_a_code_tool_is_refused() -> None:
    with pytest.raises(ToolConfigError, match="a program cannot run programs; give their tools to this one"):
        CodeTool([CodeTool([read], name="inner")])


def test_missing_extra_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(ConfigError, match=r'CodeTool needs the package pydantic_monty: pip install "agentrt\[code\]"'):
        CodeTool([read])


def test_tool_is_read_only_and_concurrent_where_its_tools_are() -> None:
    careful, careless = CodeTool([FunctionTool(read, is_read_only=True)]), CodeTool([read, write])
    assert (careful.is_read_only, careful.is_concurrency_safe) == (True, True)
    assert (careless.is_read_only, careless.is_concurrency_safe) == (False, False)


class Shelf(Toolset):
    def __init__(self, *tools: ToolBase) -> None:
        self.name = "shelf"
        self.stock: Sequence[ToolBase] = tools

    async def list_tools(self) -> Sequence[ToolBase]:
        return self.stock


async def test_tools_of_a_toolset_are_described_once_it_is_open(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf(FunctionTool(read), FunctionTool(read, name="read-all"))
    model = ScriptedChatModel(["done"])
    agent = Agent("clerk", "", model, toolkit=Toolkit([CodeTool([write, shelf])]))
    async with agent:
        await agent.reply("Hello")
        assert "The toolset 'shelf' (open): read, read-all" in agent.explain()
        health = await agent.health()
    description = model.calls[0].tools[0]["function"]["description"]
    assert "async def write(name: str)" in description
    assert "async def read(name: str)" in description
    assert "read-all" not in description
    assert "run_code leaves out the tool 'read-all': its name is not a Python name" in caplog.text
    assert ("shelf", None) in [(part.name, part.problem) for part in health.parts]


async def test_tools_that_change_are_described_after_the_next_program() -> None:
    shelf = Shelf(FunctionTool(read))
    programs = [[ToolCallBlock(f"c{number}", "run_code", '{"code": "1"}')] for number in range(2)]
    model = ScriptedChatModel([*programs, "done"])
    async with Agent("clerk", "", model, toolkit=Toolkit([CodeTool([shelf])])) as agent:
        shelf.stock, shelf.changed = [FunctionTool(write)], True
        await agent.reply("Hello")
    names = [re.findall(r"async def (\w+)", call.tools[0]["function"]["description"]) for call in model.calls]
    assert names == [["read"], ["write"], ["write"]]


class Recorder:
    """A sandbox that runs nothing, and keeps what it is given."""

    def __init__(self, result: CodeResult) -> None:
        self.result = result
        self.programs: list[CodeProgram] = []

    async def run(self, program: CodeProgram, call_tools: Any) -> CodeResult:
        self.programs.append(program)
        return self.result


async def text_of(result: CodeResult) -> str:
    tool = CodeTool([read], sandbox=Recorder(result), max_output=1_000)
    call = ToolCallBlock("c", "run_code", '{"code": ""}')
    [response] = [item async for item in Toolkit([tool]).call_tool_function(call) if isinstance(item, ToolResponse)]
    return response.text


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (CodeResult("a\nb\n", {"x": [1, None]}), 'a\nb\n{"x": [1, null]}'),
        (CodeResult("a\n", "text"), "a\ntext"),
        (CodeResult("a\n"), "a"),
        (CodeResult(), "The program printed nothing, and its last line has no value."),
        (CodeResult("a\n", error="line 1\nValueError: x"), "a\nline 1\nValueError: x"),
    ],
)
async def test_result_is_the_printed_text_and_then_the_value(result: CodeResult, text: str) -> None:
    assert await text_of(result) == text


@pytest.mark.parametrize(
    "result",
    [
        CodeResult("x" * 5_000, "the end"),
        CodeResult("x" * 5_000, error="the end"),
        CodeResult("x" * 1_000, "the end", left_out=4_000),
    ],
)
async def test_output_that_is_cut_keeps_its_end(result: CodeResult) -> None:
    text = await text_of(result)
    assert text.endswith("[cut: 4,207 characters are left out, since CodeTool(max_output=1000)]\nthe end")
    assert len(text) <= 1_000


async def test_value_that_is_too_long_is_cut() -> None:
    text = await text_of(CodeResult("printed", "y" * 5_000))
    assert text.startswith("[cut: 4,207 characters are left out")
    assert len(text) <= 1_000
