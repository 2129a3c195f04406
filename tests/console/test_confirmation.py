"""Questions of a waiting reply, answered in the console."""

import json
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest

from agentrt import Agent, AgentState, Toolkit
from agentrt.console.chat import listen_for_logins
from agentrt.console.confirmation import next_confirmation
from agentrt.console.render.call_description import describe_call
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, MCPToolset, OAuth
from tests.loop.helpers import agent_of, call

THINGS = '''
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, ToolBase


async def remove(path: str) -> str:
    """Remove a file."""
    return f"{path} is gone"


class Elsewhere(ToolBase):
    """Measure the temperature."""

    name = "measure"
    is_external_tool = True
    input_schema = {"type": "object", "properties": {}}


def told(messages, tools):
    results = [each for message in messages for each in message.get_content_blocks("tool_result")]
    return "TOLD " + " | ".join(block.text for result in results for block in result.output)


calls = [ToolCallBlock("1", "remove", '{"path": "/a"}'), ToolCallBlock("2", "remove", '{"path": "/b"}')]
asks = ScriptedChatModel([calls, told, "bye"])
outside = ScriptedChatModel([[ToolCallBlock("1", "measure", "{}")], told])
tools = [FunctionTool(remove, ask=True), Elsewhere()]
'''


ASKS = ("chat", "--model", "things:asks", "--tools", "things:tools")


@pytest.fixture(autouse=True)
def things(tmp_path):
    (tmp_path / "things.py").write_text(THINGS, encoding="utf-8")


def test_each_call_is_asked_about_and_a_reason_reaches_the_model(tmp_path, piped):
    done = piped(ASKS, "tidy up\ny\nkeep that one\nthanks\n", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("[question]")] == [
        '[question] may it run remove {"path": "/a"} (remove asks before each call)? y, n, or say why not',
        '[question] may it run remove {"path": "/b"} (remove asks before each call)? y, n, or say why not',
    ]
    assert "TOLD /a is gone | The user denied this call: keep that one" in lines
    assert "bye" in lines


@pytest.mark.slow
def test_a_question_stays_over_sessions_and_new_forgets_it(tmp_path, piped):
    arguments = [*ASKS, "--session", "talk.json"]
    assert "[question]" in piped(arguments, "tidy up\n", tmp_path).stdout
    again = piped(arguments, "/new\n", tmp_path)
    assert again.stdout.splitlines()[0].startswith("[question] may it run remove")
    assert "[question]" not in piped(arguments, "", tmp_path).stdout


def test_the_result_of_a_call_from_elsewhere_is_the_next_line(tmp_path, piped):
    done = piped(
        ["chat", "--model", "things:outside", "--tools", "things:tools"], "how warm is it?\n21 degrees\n", tmp_path
    )
    assert "[question] what is the result of measure {}?" in done.stdout
    assert "TOLD 21 degrees" in done.stdout.splitlines()


def test_a_question_cuts_long_values_and_input_shows_them(tmp_path, piped):
    long = THINGS.replace('"/a"', '"/begin' + "x" * 2000 + '\\\\u202e/end"')
    (tmp_path / "things.py").write_text(long, encoding="utf-8")
    done = piped(ASKS, "go\n/input\n", tmp_path)
    [question] = [line for line in done.stdout.splitlines() if line.startswith("[question]")]
    head, tail = "/begin" + "x" * 94, "x" * 95 + "\\u202e/end"
    assert question.endswith(
        f'[question] may it run remove {{"path": "{head}"... 1,811 more characters ..."{tail}"}} '
        "(remove asks before each call)? y, n, or say why not"
    )
    [whole] = [line for line in done.stdout.splitlines() if line.startswith("[input]")]
    assert whole == '[input] {"path": "/begin' + "x" * 2000 + '\\u202e/end"}'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a":1,\n  "b" : [true,null, 1.50]}', '{"a": 1, "b": [true, null, 1.5]}'),
        ("", "{}"),
        (
            r'{"a": "\u0007\n\u009b\u200b\ufe0f\u00a0\u007f早 é"}',
            r'{"a": "\u0007\n\u009b\u200b\ufe0f\u00a0\u007f早 é"}',
        ),
        ('{"a\u202e": 1}', r'{"a\u202e": 1}'),
        ('{"a": "\U000e0041"}', r'{"a": "\udb40\udc41"}'),
        ('{"a": "\u00e9", "b": "😀"}', '{"a": "é", "b": "😀"}'),
        ('{"a": 1, "a": 2}', r'(this is not a JSON object) "{\"a\": 1, \"a\": 2}"'),
        ("rm\n", r'(this is not a JSON object) "rm\n"'),
        (
            "{" + "x" * 300,
            '(this is not a JSON object) "{' + "x" * 99 + '"... 101 more characters ..."' + "x" * 100 + '"',
        ),
        ('{"a": ' + "9" * 4400 + "}", None),
    ],
)
def test_an_input_is_shown_as_canonical_json_in_one_line(text, told):
    line = describe_call(ToolCallBlock("1", "f", text))
    assert line == f"f {told}" if told is not None else line.startswith("f (this is not a JSON object)")
    assert line.isprintable()


def test_an_input_of_many_values_is_cut_as_a_whole():
    line = describe_call(ToolCallBlock("1", "f\n" * 500, json.dumps({"a": list(range(5000))})))
    assert len(line) < 4300
    assert " more characters ... " in line
    assert line.endswith("4999]}")


async def test_a_conversation_that_does_not_wait_asks_nothing():
    async def add(a: int, b: int) -> int:
        return a + b

    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add)
    assert next_confirmation(AgentState()) is None
    await agent.reply("go")
    assert next_confirmation(agent.state) is None


async def test_logins_at_servers_of_programs_are_listened_for() -> None:
    toolset = MCPToolset("books", url="https://books.example/mcp", auth=OAuth())
    tool = FunctionTool(lambda: "", name="work", description="Work.")
    tool.inner_toolkit = Toolkit([toolset])
    listeners: list[Any] = []

    class Portal:
        def wrap_async_context_manager(self, manager: Any) -> Any:
            listeners.append(manager)
            return nullcontext()

    portal: Any = Portal()
    with ExitStack() as stack:
        listen_for_logins(Agent("clerk", "", ScriptedChatModel([]), toolkit=Toolkit([tool])), portal, stack)
    assert len(listeners) == 1
