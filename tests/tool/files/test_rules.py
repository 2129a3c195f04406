"""Permission rules for the tools of a workspace: they are about normalised paths, and about arguments."""

import json
import sys
from pathlib import Path

import pytest

from agentrt import Agent, AgentState
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionContext, PermissionMode, PermissionRule
from agentrt.tool import workspace_tools
from agentrt.types import ChatResponse
from agentrt.workspace import LocalWorkspace, NoSandbox
from tests.tool.files.helpers import Desk, ask, results_of

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="commands run on Linux")


async def is_asked(root: Path, rule: PermissionRule | None, name: str, **arguments: object) -> bool:
    """Say whether the user is asked about the call."""
    desk = Desk(root, rule or PermissionRule("nothing", None, "allow"), sandbox=NoSandbox())
    message = await desk.reply(name, **arguments)
    return message.finished_reason != "completed"


@pytest.mark.parametrize(
    ("path", "asked"),
    [("docs/a.md", False), ("./docs//a.md", False), ("docs/deep/a.md", False), ("a.md", True), ("docs", True)],
)
async def test_rule_for_a_path_is_a_policy_of_the_workspace(path: str, asked: bool, tmp_path: Path) -> None:
    rule = PermissionRule("write_file", "docs/*", "allow")
    assert await is_asked(tmp_path, rule, "write_file", path=path, content="x") is asked


async def test_path_that_leaves_by_dots_fits_no_allow_rule(tmp_path: Path) -> None:
    rule = PermissionRule("write_file", "docs/*", "allow")
    assert await is_asked(tmp_path, rule, "write_file", path="docs/../a.md", content="x")
    assert not (tmp_path / "a.md").exists()


async def test_rule_may_cover_the_tools_that_edit_in_one(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("x")
    rule = PermissionRule("*_file", "*.md", "allow")
    assert not await is_asked(tmp_path, rule, "edit_file", path="a.md", old="x", new="y")


async def test_deny_rule_holds_for_each_way_to_write_a_path(tmp_path: Path) -> None:
    await LocalWorkspace(tmp_path).write_text("secret/key", "value")
    for path in ("secret/key", "secret//key", "./secret/./key", "secret/../secret/key"):
        result = await Desk(tmp_path, PermissionRule("read_file", "secret/*", "deny")).call("read_file", path=path)
        assert result.state == "denied", path


async def test_mode_for_edits_allows_writing_and_no_commands(tmp_path: Path) -> None:
    for name, arguments, asked in (
        ("write_file", {"path": "a", "content": "x"}, False),
        ("edit_file", {"path": "a", "old": "x", "new": "y"}, False),
        ("run_command", {"argv": ["true"]}, True),
    ):
        desk = Desk(tmp_path)
        desk.mode = PermissionMode.ACCEPT_EDITS
        message = await desk.reply(name, **arguments)
        assert (message.finished_reason != "completed") is asked, name


@needs_linux
@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        (["git", "status"], False),
        (["git", "status", "--short"], False),
        (["git", "push"], True),
        (["git status"], True),
        (["sh", "-c", "git status"], True),
        (["./git", "status"], True),
        (["git", "-c", "alias.status=!id", "status"], True),
    ],
    ids=str,
)
async def test_rule_for_arguments_is_compared_with_them_quoted(argv: list[str], asked: bool, tmp_path: Path) -> None:
    rule = PermissionRule("run_command", "git status*", "allow")
    assert await is_asked(tmp_path, rule, "run_command", argv=argv) is asked


@needs_linux
async def test_command_asks_and_the_offered_rule_is_for_that_very_one(tmp_path: Path) -> None:
    arguments = {"argv": ["echo", "a*b", "it's"]}
    made = ChatResponse([ToolCallBlock("c1", "run_command", json.dumps(arguments))])
    context = PermissionContext(allow_new_rules=True)
    agent = Agent(
        "a",
        model=ScriptedChatModel([made, "done"]),
        tools=workspace_tools(run=True),
        workspace=LocalWorkspace(tmp_path, sandbox=NoSandbox()),
        state=AgentState(permission_context=context),
    )
    question = await ask(agent)
    [rule] = question.questions["c1"].suggested_rules
    assert (rule.tool_name, rule.rule_content, rule.behavior) == ("run_command", """echo 'a[*]b' 'it'"'"'s'""", "allow")
    await agent.reply(question.approve(always=True))
    assert "a*b it's" in results_of(agent)[0].text


@needs_linux
async def test_result_of_a_command_has_code_and_streams(tmp_path: Path) -> None:
    desk = Desk(tmp_path, sandbox=NoSandbox())
    await desk.files.write_text("src/a.txt", "")
    result = await desk.call("run_command", argv=["sh", "-c", "ls; echo problem >&2; exit 3"], cwd="src")
    assert result.text == "exit code 3\n--- stdout\na.txt\n--- stderr\nproblem"
    assert result.metadata["exit_code"] == 3
    assert "stopped after 0.2 seconds" in await desk.text("run_command", argv=["sleep", "60"], timeout=0.2)


async def test_command_without_a_sandbox_is_an_error_result(tmp_path: Path) -> None:
    result = await Desk(tmp_path).call("run_command", argv=["true"])
    assert result.state == "error"
    assert "BubblewrapSandbox" in result.text


@pytest.mark.parametrize(
    "arguments", [{"argv": "git status"}, {"argv": []}, {"argv": [1]}, {"argv": ["a"], "timeout": 601}, {}], ids=str
)
async def test_arguments_that_do_not_fit_never_run(arguments: dict[str, object], tmp_path: Path) -> None:
    result = await Desk(tmp_path, sandbox=NoSandbox()).call("run_command", **arguments)
    assert result.state == "error"
