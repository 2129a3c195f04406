"""In a terminal that can be redrawn, finished paragraphs are printed once and only the last one is drawn again."""

import io
import re
import sys
from contextlib import redirect_stdout
from typing import Any

import pytest

from agentrt import Agent, Msg, Toolkit
from agentrt.console import show
from agentrt.console.render.rich import RichView
from agentrt.message import TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model import ScriptedChatModel

CONTROL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True

    def text(self) -> str:
        return CONTROL_CODES.sub("", self.getvalue())


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "20")
    monkeypatch.delenv("NO_COLOR", raising=False)


async def shown_on(screen: Screen, agent: Agent, **options: Any) -> Msg:
    with redirect_stdout(screen):  # here, since pytest puts in its own before each test
        return await show(agent.reply_stream("go"), **options)


@pytest.fixture
def screen() -> Screen:
    return Screen()


def test_a_finished_paragraph_is_never_drawn_again(screen):
    with RichView(screen) as view:
        view.stream("text", "the first paragraph\n\nthe second")
        view.stream("text", " one\n")
        begun = len(screen.getvalue())
        for number in range(50):
            view.stream("text", f"\nparagraph {number}\n")
            view._live.refresh()
        later = screen.getvalue()[begun:]
    assert "first" not in later
    assert screen.text().count("the first paragraph") >= 1
    assert "paragraph 49" in later


async def test_an_answer_that_is_not_markdown_is_shown_as_it_is(screen):
    answer = "2 files:\n__init__.py\na*b*c.md\n\n# None of them is a heading"
    await shown_on(screen, Agent("friday", model=ScriptedChatModel([answer])), markdown=False)
    assert answer in screen.text()


def test_an_unfinished_paragraph_is_cut_to_the_screen(screen):
    with RichView(screen) as view:
        view.stream("text", "```\n" + "".join(f"row {number}.\n" for number in range(500)))
        begun = len(screen.getvalue())
        view._live.refresh()
        drawn = screen.getvalue()[begun:]
        view.end()
    assert "row 499." in drawn
    assert "row 450." not in drawn
    assert "row 0." in screen.getvalue()[begun:]


async def test_text_is_markdown_and_everything_else_is_there(screen):
    def add(a: int, b: int) -> int:
        return a + b

    answer = "# Result\n\nIt is **five**, see [here](http://example.org).\n\n[red]not markup[/red] :smile:\n"
    call = ToolCallBlock("1", "add", '{"a": 2, "b": 3}')
    model = ScriptedChatModel([[ThinkingBlock("let me see"), call], answer])
    message = await shown_on(screen, Agent("tester", "", model, Toolkit(tools=[add])))
    text = screen.text()
    for wanted in (
        "let me see",
        'call add({"a": 2, "b": 3})',
        "result add: 5",
        "Result",
        "[red]not markup[/red] :smile:",
    ):
        assert wanted in text
    assert "**" not in text
    assert "http://example.org" in text
    assert message.get_text_content() == answer


async def test_control_codes_are_escaped(screen):
    evil = "\x1b]0;title\x07\x1b[2J\u202e"
    call = ToolCallBlock("1", evil, f'{{"{evil}": 1}}')
    await shown_on(screen, Agent(evil, "", ScriptedChatModel([[ThinkingBlock(evil), call], evil])))
    assert "\x1b]" not in screen.getvalue()
    assert "\x1b[2J" not in screen.getvalue()
    assert not {"\x07", "\u202e"} & set(screen.text())
    assert screen.text().count("\\x1b]0;title\\x07\\x1b[2J\\u202e") >= 4


async def test_a_subagent_is_indented_under_its_call(screen):
    looks = [TextBlock("I look."), ToolCallBlock("2", "none", "{}")]
    evil = Agent("an\x1b]0;title\x07\nother", "", ScriptedChatModel([looks, "Two\nlines"]))
    model = ScriptedChatModel([[ToolCallBlock("1", "other", '{"query": "go"}')], "Gone."])
    await shown_on(screen, Agent("boss", "", model, tools=[evil.as_tool("Looks.", name="other")]))
    text = screen.text()
    assert "  an\\x1b]0;title\\x07 other I look.\n" in text
    assert "  call none({})\n" in text
    assert "  an\\x1b]0;title\\x07 other lines\n" in text
    assert "\x1b]" not in screen.getvalue()


@pytest.mark.parametrize("how", ["argument", "NO_COLOR", "dumb", "latin-1", "no rich"])
async def test_text_is_plain_where_markdown_is_unwanted_or_impossible(how, monkeypatch, screen):
    if how == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    elif how == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    elif how == "latin-1":
        monkeypatch.setattr(screen, "encoding", "latin-1", raising=False)
    elif how == "no rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    await shown_on(screen, Agent("tester", "", ScriptedChatModel(["**plain**"])), color=how != "argument")
    assert screen.getvalue().startswith("**plain**\n[tokens] ")
