"""Servers that others wrote, in two languages, over standard input and output."""

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentrt import Agent
from agentrt.event import CustomEvent, UserConfirmResultEvent
from agentrt.message import ToolCallBlock
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.tool import MCPToolset
from tests.servers import node_packages, python_packages
from tests.tool.mcp.servers import results_of
from tests.tool.mcp.test_elicitation import fill_in

pytestmark = pytest.mark.slow

# In an environment of their own, since what they need must not decide what we have.
FROM_PYPI = ("mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19")


@pytest.fixture(scope="session")
def node_servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = node_packages.cache_folder(request.config, tmp_path_factory, "mcp-servers")
    return node_packages.install(folder, "MCP servers", node_packages.HERE / "mcp_foreign") / ".bin"


@pytest.fixture(scope="session")
def python_servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = node_packages.cache_folder(request.config, tmp_path_factory, "mcp-python-servers")
    return python_packages.install(folder, "MCP servers", *FROM_PYPI)


def calling(name: str, command: list[str], *calls: tuple[str, Any]) -> Agent:
    """Return an agent whose model makes these calls of a server's tools."""
    answers = [
        ChatResponse([ToolCallBlock(f"c{number}", f"mcp__{name}__{tool}", json.dumps(arguments))])
        for number, (tool, arguments) in enumerate(calls)
    ]
    tools = MCPToolset(name, command=command, ask=False)
    return Agent("a", "Help.", ScriptedChatModel([*answers, "done"]), tools=[tools])


async def test_everything_server_works_and_asks(node_servers: Path) -> None:
    agent = calling(
        "all",
        [str(node_servers / "mcp-server-everything")],
        ("echo", {"message": "hi"}),
        ("get-tiny-image", {}),
        ("get-structured-content", {"location": "New York"}),
        ("trigger-long-running-operation", {"duration": 0.4, "steps": 2}),
        ("echo", {"message": 1}),
        ("trigger-elicitation-request", {}),
    )
    async with agent:
        async with agent.reply_stream("Go") as events:
            progress = [event.value["progress"] async for event in events if isinstance(event, CustomEvent)]
        assert progress
        waiting = agent.waiting()
        assert waiting is not None
        assert not isinstance(waiting, UserConfirmResultEvent)
        await fill_in(agent, json.dumps({"name": "Ann"}))
        if agent.waiting() is not None:  # a form of more fields than the one that matters
            await fill_in(agent, "", "denied")
    echo, image, structured, long, wrong, asked = results_of(agent)
    assert echo == ("success", "Echo: hi")
    assert image[0] == structured[0] == long[0] == "success"
    assert any(block.type == "data" for block in agent.state.context[-1].get_content_blocks("tool_result")[1].output)
    assert wrong[0] == "error"
    assert "was not run" in wrong[1]
    assert asked[0] == "success"


async def test_everything_server_offers_resources_prompts_and_logs(node_servers: Path) -> None:
    server = MCPToolset("all", command=[str(node_servers / "mcp-server-everything")], ask=False, log_level="debug")
    call = ChatResponse([ToolCallBlock("c", "mcp__all__toggle-simulated-logging", "{}")])
    async with Agent("a", "Help.", ScriptedChatModel([call, "done"]), tools=[server]) as agent:
        uris = [resource.uri for resource in await server.resources()]
        assert "demo://resource/static/document/architecture.md" in uris
        [text] = await server.read_resource("demo://resource/dynamic/text/{resourceId}", {"resourceId": "1"})
        [blob] = await server.read_resource("demo://resource/dynamic/blob/{resourceId}", {"resourceId": "1"})
        assert "Resource 1" in str(text)
        assert blob.type == "data"
        prompts = {prompt.name: prompt for prompt in await server.prompts()}
        assert prompts["args-prompt"].required == {"city"}
        [message] = await server.get_prompt("args-prompt", {"city": "Oslo"})
        assert "Oslo" in (message.get_text_content() or "")
        async with agent.reply_stream("Go") as events:
            names = [event.name async for event in events if isinstance(event, CustomEvent)]
    assert names == ["mcp_log"]


async def test_everything_server_is_reached_over_sse(node_servers: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [node_servers / "mcp-server-everything", "sse"]
    with subprocess.Popen(command, env={**os.environ, "PORT": str(port)}, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            while b"running on port" not in (line := process.stderr.readline()):
                assert line, "it has ended"
            server = MCPToolset("all", url=f"http://127.0.0.1:{port}/sse", protocol="sse", ask=False)
            call = ChatResponse([ToolCallBlock("c", "mcp__all__echo", '{"message": "hi"}')])
            async with Agent("a", "Help.", ScriptedChatModel([call, "done"]), tools=[server]) as agent:
                await agent.reply("Go")
        finally:
            process.kill()
    assert results_of(agent) == [("success", "Echo: hi")]


async def test_servers_of_node_answer(node_servers: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    files = [str(node_servers / "mcp-server-filesystem"), str(tmp_path)]
    reads = [("read_text_file", {"path": str(tmp_path / "a.txt")}), ("read_text_file", {"path": "/etc/passwd"})]
    async with calling("files", files, *reads) as agent:
        await agent.reply("Go")
    assert [state for state, _ in results_of(agent)] == ["success", "error"]
    for name, call in (
        ("memory", ("read_graph", {})),
        (
            "sequential-thinking",
            (
                "sequentialthinking",
                {"thought": "a", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
            ),
        ),
    ):
        async with calling("s", [str(node_servers / f"mcp-server-{name}")], call) as agent:
            await agent.reply("Go")
        assert results_of(agent)[0][0] == "success"


async def test_servers_of_python_answer(python_servers: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    git = [str(python_servers / "mcp-server-git"), "--repository", str(tmp_path)]
    clock = [str(python_servers / "mcp-server-time")]
    for name, command, call, says in (
        ("git", git, ("git_status", {"repo_path": str(tmp_path)}), "On branch"),
        ("time", clock, ("get_current_time", {"timezone": "Europe/Oslo"}), "Europe/Oslo"),
    ):
        async with calling(name, command, call) as agent:
            await agent.reply("Go")
        assert results_of(agent)[0][0] == "success"
        assert says in results_of(agent)[0][1]
