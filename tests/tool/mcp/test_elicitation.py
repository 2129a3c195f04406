"""What MCP servers ask the user in the middle of a call."""

import logging
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ElicitResult
from pydantic import BaseModel

from agentrt import Agent, AgentState
from agentrt.event import ExternalExecutionResultEvent
from agentrt.message import TextBlock, ToolResultBlock, ToolResultState
from agentrt.tool import MCPToolset
from agentrt.tool.mcp.elicitation import elicit_result_of
from tests.loop.helpers import confirmation_of, saved_state
from tests.tool.mcp.servers import agent_calling, results_of, toolset, wait_for_line


async def fill_in(agent: Agent, text: str, state: Any = "success") -> None:
    waiting = agent.waiting()
    call = waiting.tool_calls[0]
    assert call.name == "mcp_elicitation"
    answer = ToolResultBlock(call.id, call.name, text, state)
    await agent.reply(ExternalExecutionResultEvent(waiting.reply_id, [answer]))


async def confirm(agent: Agent, yes: bool) -> None:
    await agent.reply(confirmation_of(agent, confirmed=yes))


async def test_question_parks_the_reply_until_it_is_answered(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with agent_calling(toolset(log=log), "ask", "ask_twice") as agent:
        await agent.reply("Go")
        assert "Which colour?" in str(agent.waiting())
        await fill_in(agent, '{"color": 1}')
        assert "asked again: argument \\'colour\\' is missing" in str(agent.waiting())
        await fill_in(agent, '{"colour": "red"}')
        await confirm(agent, False)
        assert results_of(agent) == [("success", 'accept: {"colour": "red"}'), ("success", "decline: ")]
    assert log.read_text().count("call ask\n") == 1  # the server waited for the answer


async def test_same_question_again_is_another_question() -> None:
    async with agent_calling(toolset(), "ask_again", "bad_form") as agent:
        await agent.reply("Go")
        await fill_in(agent, '{"colour": "wrong"}')
        state = saved_state(agent)
    # Sent again in another process: the first question has its answer, and the second waits for its own.
    async with agent_calling(toolset(), "bad_form", state=state) as agent:
        await fill_in(agent, '{"colour": "right"}')
        assert results_of(agent) == [("success", 'accept: {"colour": "right"}'), ("success", "cancel: ")]


async def test_question_is_answered_in_another_process(tmp_path: Path) -> None:
    async with agent_calling(toolset(), "ask") as agent:
        await agent.reply("Go")
        saved = agent.state.model_dump_json()
    state = AgentState.model_validate_json(saved)
    async with agent_calling(toolset(log=tmp_path / "log"), state=state) as agent:
        await fill_in(agent, '{"colour": "blue"}')
        assert results_of(agent) == [("success", 'accept: {"colour": "blue"}')]
    assert (tmp_path / "log").read_text().count("call ask\n") == 1


async def test_secret_is_never_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    async with agent_calling(toolset(), "secret") as agent:
        await agent.reply("Go")
        assert results_of(agent) == [("success", "decline: ")]
    assert "asked the user for a secret in a form" in caplog.text


async def test_question_that_two_calls_may_have_asked_is_cancelled(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    tools = toolset(log=log)
    agent = agent_calling(tools, "slow")
    other = agent_calling(tools, "ask", "ask")
    async with agent, other, anyio.create_task_group() as group:
        group.start_soon(agent.reply, "Go")
        await wait_for_line(log, "call slow")
        await other.reply("Go")
        assert "gets one call at a time" in caplog.text
        agent.interrupt()


async def test_call_whose_process_died_is_unknown() -> None:
    async with agent_calling(toolset(), "ask") as agent:
        await agent.reply("Go")
        state = saved_state(agent)
    context = state.reply_context
    assert context is not None
    # As it was saved before the call was sent.
    context.kept["c0"] = {"is_sent": True}
    context.inner.clear()
    context.decisions["c0"].waits_for = None
    context.parked = None
    async with agent_calling(toolset(), state=state) as agent:
        await agent.reply(None)
        assert results_of(agent)[0][0] == "unknown"


class Colour(BaseModel):
    colour: str


async def ask_colour() -> Elicit[Colour]:
    return Elicit("Which colour?", Colour)


def painter() -> Any:
    handlers = logging.getLogger().handlers[:]
    server = MCPServer("s")
    logging.getLogger().handlers[:] = handlers

    @server.tool()
    async def paint(text: str, colour: Annotated[Colour, Resolve(ask_colour)]) -> str:
        return f"{text} in {colour.colour}"

    return server


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_question_of_a_server_of_the_newer_protocol_parks_too(is_restarted: bool) -> None:
    server = painter()
    async with agent_calling(MCPToolset("s", server=server, ask=False), "paint") as agent:
        await agent.reply("Go")
        assert "Which colour?" in str(agent.waiting())
        state = saved_state(agent)
    # Another process of the server refuses the state of the first one, and gets the call and the answer again.
    server = painter() if is_restarted else server
    async with agent_calling(MCPToolset("s", server=server, ask=False), state=state) as agent:
        await fill_in(agent, "green")  # the only field takes a word as it is
        assert results_of(agent) == [("success", "hi in green")]


def test_answer_has_the_defaults_of_fields_that_were_left_out() -> None:
    fields = {"colour": {"type": "string", "default": "red"}, "count": {"type": "integer", "default": 2}}
    question = {"requested_schema": {"type": "object", "properties": fields, "required": ["colour", "count"]}}
    for text, content in (("", {"colour": "red", "count": 2}), ('{"count": 3}', {"colour": "red", "count": 3})):
        block = ToolResultBlock("q", "mcp_elicitation", [TextBlock(text)], ToolResultState.SUCCESS)
        answer = elicit_result_of(question, block)
        assert isinstance(answer, ElicitResult)
        assert answer.content == content
