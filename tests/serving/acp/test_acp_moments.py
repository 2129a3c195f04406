"""An agent in an editor, at moments that are easy to forget: cancels, loads side by side, and errors."""

from typing import ClassVar

import anyio
import pytest
from acp.exceptions import RequestError
from acp.schema import EnvVariable, McpServerStdio, ToolCallProgress

from agentrt import Agent, Msg
from agentrt.message import ToolResultBlock, ToolResultState
from agentrt.model import ScriptedChatModel
from agentrt.serving import EditorCommand
from agentrt.serving.acp.updates import saved_updates
from agentrt.state import AgentState, InMemoryStateStore
from agentrt.tool import ToolBase
from agentrt.types import FlowLabel, JSONObject
from tests.serving.acp.editor import Editor, connected
from tests.serving.acp.test_acp import call, say

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # which the SDK needs


async def test_cancel_ends_a_command_and_no_reply_begins(anyio_backend: str) -> None:
    begun = anyio.Event()

    async def slow(agent: Agent, words: str) -> str:
        begun.set()
        await anyio.sleep_forever()
        return "Do it."

    agent, responses = Agent("helper", "", ScriptedChatModel(["Done."])), []
    async with connected(agent, Editor(), commands=[EditorCommand("slow", "Be slow", slow)]) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])

        async def prompt() -> None:
            responses.append(await connection.prompt(session_id=session.session_id, prompt=say("/slow")))

        async with anyio.create_task_group() as group:
            group.start_soon(prompt)
            await begun.wait()
            await connection.cancel(session_id=session.session_id)
        assert [response.stop_reason for response in responses] == ["cancelled"]
        response = await connection.prompt(session_id=session.session_id, prompt=say("Now?"))
    assert response.stop_reason == "end_turn"


async def test_words_of_unknown_errors_stay_here(anyio_backend: str) -> None:
    async def fail(agent: Agent, words: str) -> str:
        raise ValueError("canary")

    agent = Agent("helper", "", ScriptedChatModel([]))
    async with connected(agent, Editor(), commands=[EditorCommand("fail", "Fail", fail)]) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        with pytest.raises(RequestError) as raised:
            await connection.prompt(session_id=session.session_id, prompt=say("/fail"))
    assert (raised.value.code, raised.value.data) == (-32603, {"details": "ValueError"})


async def test_servers_of_one_name_are_both_tried(anyio_backend: str, caplog: pytest.LogCaptureFixture) -> None:
    variable = EnvVariable(name="KEY", value="canary")
    servers = [McpServerStdio(name=name, command=f"/none/{name}", args=[], env=[variable]) for name in ("a b", "a.b")]
    async with connected(Agent("helper", "", ScriptedChatModel(["Hello."])), Editor()) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=servers)
        response = await connection.prompt(session_id=session.session_id, prompt=say("Hello?"))
    assert response.stop_reason == "end_turn"
    assert ["'a_b'" in caplog.text, "'a_b_2'" in caplog.text, "canary" in caplog.text] == [True, True, False]


async def test_sessions_with_servers_are_limited(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.serving.acp.editor_agent._MAX_WITH_SERVERS", 1)
    server = McpServerStdio(name="gone", command="/no/such", args=[], env=[])
    async with connected(Agent("helper", "", ScriptedChatModel(["Hello."])), Editor()) as it:
        await it.new_session(cwd="/work", mcp_servers=[server])
        await it.new_session(cwd="/work", mcp_servers=[])
        with pytest.raises(RequestError) as caught:
            await it.new_session(cwd="/work", mcp_servers=[server])
    assert "restart the agent" in str(caught.value.data)


async def test_a_session_at_work_is_not_loaded(anyio_backend: str) -> None:
    begun, may_end = anyio.Event(), anyio.Event()

    async def work() -> str:
        begun.set()
        await may_end.wait()
        return "worked"

    model = ScriptedChatModel([call("work"), "Done."])
    agent, editor = Agent("helper", "", model, tools=[work], state_store=InMemoryStateStore()), Editor()
    async with connected(agent, editor) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])

        async def prompt() -> None:
            await connection.prompt(session_id=session.session_id, prompt=say("Work."))

        async with anyio.create_task_group() as group:
            group.start_soon(prompt)
            await begun.wait()
            with pytest.raises(RequestError, match="Invalid request"):
                await connection.load_session(cwd="/work", session_id=session.session_id, mcp_servers=[])
            may_end.set()
        await connection.load_session(cwd="/work", session_id=session.session_id, mcp_servers=[])
    assert editor.states_of("c1") == ["pending", "in_progress", "completed", "pending", "completed"]


async def test_two_loads_at_once_open_one_session(anyio_backend: str) -> None:
    loads: list[str] = []

    class SlowStore(InMemoryStateStore):
        async def load(self, session_id: str) -> AgentState | None:
            loads.append(session_id)
            await anyio.lowlevel.checkpoint()
            return await super().load(session_id)

    store = SlowStore()
    await store.save(AgentState(session_id="one", labels={"editor.folder": "/work"}))
    agent = Agent("helper", "", ScriptedChatModel([]), state_store=store)
    async with connected(agent, Editor()) as connection, anyio.create_task_group() as group:

        async def load() -> None:
            await connection.load_session(cwd="/work", session_id="one", mcp_servers=[])

        group.start_soon(load)
        group.start_soon(load)
    assert loads == ["one"]


async def test_a_loaded_session_shows_what_the_caller_read(anyio_backend: str) -> None:
    agent = Agent("helper", "", ScriptedChatModel([]), state_store=InMemoryStateStore())
    agent.state.labels["editor.folder"] = "/work"
    handle = agent.hold("the value", FlowLabel(trusted=False), release=["output"])
    agent.state.context.append(Msg("helper", f"It is {handle}.", "assistant"))
    await agent.save()
    editor = Editor()
    async with connected(agent, editor) as connection:
        await connection.load_session(cwd="/work", session_id=agent.state.session_id, mcp_servers=[])
    assert editor.text == "It is the value."


async def test_a_call_that_was_left_is_not_shown_as_failed(anyio_backend: str) -> None:
    result = ToolResultBlock("c1", "pay", "", ToolResultState.RUNNING)
    *_, update = saved_updates(Msg("helper", [*call("pay"), result], "assistant"), "/work")
    assert isinstance(update, ToolCallProgress)
    assert update.status == "in_progress"


async def test_a_prompt_beside_an_external_question_names_it(anyio_backend: str) -> None:
    class Locate(ToolBase):
        name = "locate"
        description = "Tell where the user is."
        input_schema: ClassVar[JSONObject] = {"type": "object", "properties": {}}
        is_external_tool = True

    editor = Editor()
    model = ScriptedChatModel([call("locate"), "Hello."])
    async with connected(Agent("helper", "", model, tools=[Locate()]), editor) as it:
        session = await it.new_session(cwd="/work", mcp_servers=[])
        for words in ("Where am I?", "Well?"):
            response = await it.prompt(session_id=session.session_id, prompt=say(words))
            assert response.stop_reason == "end_turn"
        response = await it.prompt(session_id=session.session_id, prompt=say("/stop\n"))
        assert response.stop_reason == "cancelled"
        await it.prompt(session_id=session.session_id, prompt=say("Hi"))
    assert editor.text.endswith("Hello.")
    assert editor.text.count("waits for the result of locate") == 2
