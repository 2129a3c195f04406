"""A sub-agent writes below `/workspace/subagents/<name>/`, and nowhere else."""

from pathlib import Path

import pytest

from agentrt import Agent, Msg, Toolkit
from agentrt.agent import SubAgentBase
from agentrt.errors import AccessDenied
from agentrt.model import ScriptedChatModel
from agentrt.tool import ToolContext
from agentrt.workspace import LocalWorkspace
from tests.agent.subagents import register, results_of, spec_of
from tests.loop.helpers import call


class Writer(SubAgentBase):
    async def reply(self, msg: Msg) -> Msg:
        assert self.workspace is not None
        try:
            await self.workspace.write_text(msg.get_text_content() or "", "written")
        except AccessDenied as error:
            return Msg(self.name, f"denied: {error}", "assistant")
        pointers = msg.metadata["delegation_context"]["workspace_pointers"]
        return Msg(self.name, f"written to {pointers[0]}", "assistant")


async def write(tmp_path: Path, path: str, name: str = "ann") -> str:
    toolkit = Toolkit()
    tool = await register(toolkit, Writer, spec_of(name))
    model = ScriptedChatModel([[call("1", tool, query=path)], "done"])
    boss = Agent("boss", model=model, toolkit=toolkit, workspace=LocalWorkspace(tmp_path))
    await boss.reply("go")
    return str(results_of(boss)[0].text)


async def test_subagent_filesystem_namespace(tmp_path: Path) -> None:
    """What is written lands in the namespace; what would leave it is denied, and nothing is written."""
    assert await write(tmp_path, "notes/a.md") == "written to /workspace/subagents/ann"
    assert (tmp_path / "subagents" / "ann" / "notes" / "a.md").read_text() == "written"
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    for path in ("../bob/a", "/etc/a", "/internal/a", "../../internal/a", "/workspace/subagents/ann/a", "a\\b"):
        assert "'/workspace/subagents/ann'" in await write(tmp_path, path)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == files


async def test_two_sub_agents_do_not_meet(tmp_path: Path) -> None:
    await write(tmp_path, "a")
    await write(tmp_path, "a", "bob")
    assert (tmp_path / "subagents" / "bob" / "a").exists()


async def test_link_to_another_sub_agent_is_denied(tmp_path: Path) -> None:
    await write(tmp_path, "a", "bob")
    (tmp_path / "subagents" / "ann").mkdir()
    (tmp_path / "subagents" / "ann" / "link").symlink_to(tmp_path / "subagents" / "bob")
    assert (await write(tmp_path, "link/a")).startswith("denied: ")
    assert (tmp_path / "subagents" / "bob" / "a").read_text() == "written"


async def test_tools_of_a_sub_agent_get_its_namespace(tmp_path: Path) -> None:
    async def save(context: ToolContext) -> str:
        return context.workspace.location

    class Using(SubAgentBase):
        tools = (save,)

        async def reply(self, msg: Msg) -> Msg:
            result = await self.call_tool("save")
            return Msg(self.name, result.text, "assistant")

    toolkit = Toolkit()
    tool = await register(toolkit, Using, spec_of("ann", tools_allowlist=["save"]))
    model = ScriptedChatModel([[call("1", tool, query="x")], "done"])
    boss = Agent("boss", model=model, toolkit=toolkit, workspace=LocalWorkspace(tmp_path).namespace("boss"))
    await boss.reply("go")
    assert results_of(boss)[0].text == "/workspace/boss/subagents/ann"


@pytest.mark.parametrize("place", ["agent", "pointers"])
async def test_supervisor_without_files_shares_none(place: str) -> None:
    class Looking(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            pointers = msg.metadata["delegation_context"]["workspace_pointers"]
            return Msg(self.name, str(self.workspace if place == "agent" else pointers), "assistant")

    toolkit = Toolkit()
    tool = await register(toolkit, Looking)
    boss = Agent("boss", model=ScriptedChatModel([[call("1", tool, query="x")], "done"]), toolkit=toolkit)
    await boss.reply("go")
    assert results_of(boss)[0].text == ("None" if place == "agent" else "[]")
