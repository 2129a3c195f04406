"""An agent in an editor, by the SDK's own client in memory."""

import re
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import acp
import anyio
import pytest
from acp.exceptions import RequestError
from acp.schema import (
    AudioContentBlock,
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextResourceContents,
)

from agentrt import Agent
from agentrt.errors import ConfigError, ModelError
from agentrt.event import DataBlockDeltaEvent, DataBlockEndEvent, DataBlockStartEvent
from agentrt.message import DataBlock, Msg, ThinkingBlock, ToolCallBlock, ToolResultState
from agentrt.middleware import HumanApprovalMiddleware, PlanNotebook
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.serving import EditorCommand, acp_agent
from agentrt.serving.acp.updates import ReplyUpdates
from agentrt.state import AgentState, InMemoryStateStore
from agentrt.tool import FunctionTool, ToolContext
from agentrt.types import ToolResponse
from tests.serving.acp.editor import Editor, connected

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # which the SDK needs


def say(text: str) -> list[Any]:
    return [acp.text_block(text)]


def call(name: str, arguments: str = "{}", call_id: str = "c1") -> list[ToolCallBlock]:
    return [ToolCallBlock(call_id, name, arguments)]


async def pay(amount: int) -> str:
    return f"paid {amount}"


@pytest.fixture
def editor() -> Editor:
    return Editor()


async def test_an_image_in_pieces_is_shown_whole(anyio_backend: str) -> None:
    pieces = [b64encode(piece).decode() for piece in (b"im", b"a", b"ge")]
    deltas = [DataBlockDeltaEvent("r", "b", "image/png", piece) for piece in pieces]
    events = [DataBlockStartEvent("r", "b", "image/png"), *deltas, DataBlockEndEvent("r", "b")]
    updates = ReplyUpdates(Agent("helper", "", ScriptedChatModel([])), "/work")

    [update] = [update for event in events for update in updates.translate(event)]

    assert isinstance(update.content, ImageContentBlock)
    assert b64decode(update.content.data) == b"image"


async def test_an_answer_is_streamed(anyio_backend: str, editor: Editor) -> None:
    agent = Agent("helper", "", ScriptedChatModel(["one two three"], stream=True))
    async with connected(agent, editor) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        response = await connection.prompt(session_id=session.session_id, prompt=say("Count."))
    assert response.stop_reason == "end_turn"
    assert editor.text == "one two three"
    assert len(editor.shown("agent_message_chunk")) > 1


async def test_a_call_is_shown_with_its_states_arguments_and_result(anyio_backend: str, editor: Editor) -> None:
    agent = Agent("helper", "", ScriptedChatModel([call("pay", '{"amount": 3}'), "Done."]), tools=[pay])
    async with connected(agent, editor) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        await connection.prompt(session_id=session.session_id, prompt=say("Pay."))
    assert editor.states_of("c1") == ["pending", "in_progress", "completed"]
    [*_, end] = editor.shown("tool_call_update")
    assert end["content"] == [{"type": "content", "content": {"type": "text", "text": "paid 3"}}]
    assert {"amount": 3} in [update.get("rawInput") for update in editor.updates]


async def test_a_tool_gives_a_diff_and_locations(anyio_backend: str, editor: Editor) -> None:
    async def edit() -> ToolResponse:
        diff = {"path": "a.py", "old_text": "x = 1", "new_text": "x = 2"}
        wrong = [{"path": 3}, {"line": 1}, "a.py"]
        return ToolResponse("edited", metadata={"diff": diff, "locations": [{"path": "a.py", "line": 7}, *wrong]})

    async with connected(Agent("helper", "", ScriptedChatModel([call("edit"), "Done."]), tools=[edit]), editor) as it:
        session = await it.new_session(cwd="/work", mcp_servers=[])
        await it.prompt(session_id=session.session_id, prompt=say("Edit."))
    [*_, end] = editor.shown("tool_call_update")
    assert end["content"][1] == {"type": "diff", "path": "/work/a.py", "oldText": "x = 1", "newText": "x = 2"}
    assert end["locations"] == [{"path": "/work/a.py", "line": 7}]


@pytest.mark.parametrize(
    ("answer", "state", "runs"), [("allow_once", "completed", 1), ("reject_once", "failed", 0), ("odd", "failed", 0)]
)
async def test_the_user_is_asked(anyio_backend: str, answer: str, state: str, runs: int) -> None:
    paid: list[int] = []

    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    model = ScriptedChatModel([call("pay", '{"amount": 3}'), "Done."])
    editor = Editor(lambda _: answer)
    async with connected(Agent("helper", "", model, tools=[FunctionTool(pay, ask=True)]), editor) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        response = await connection.prompt(session_id=session.session_id, prompt=say("Pay."))
    assert response.stop_reason == "end_turn"
    assert editor.states_of("c1")[-1] == state
    assert len(paid) == runs
    [(asked, options)] = editor.asked
    assert (asked.tool_call_id, asked.raw_input) == ("c1", {"amount": 3})
    assert options == ["allow_once", "allow_always", "reject_once"]


async def test_always_is_not_asked_again(anyio_backend: str) -> None:
    model = ScriptedChatModel([call("pay", '{"amount": 3}'), call("pay", '{"amount": 3}', "c2"), "Done."])
    editor = Editor(lambda _: "allow_always")
    async with connected(Agent("helper", "", model, tools=[FunctionTool(pay, ask=True)]), editor) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        await connection.prompt(session_id=session.session_id, prompt=say("Pay twice."))
    assert len(editor.asked) == 1
    assert [editor.states_of(call_id)[-1] for call_id in ("c1", "c2")] == ["completed"] * 2


async def test_the_question_of_a_layer_has_its_words(anyio_backend: str, editor: Editor) -> None:
    model = ScriptedChatModel([call("pay", '{"amount": 3}'), "Done."])
    agent = Agent("helper", "", model, tools=[pay], middlewares=[HumanApprovalMiddleware(["pay"])])
    async with connected(agent, editor) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        await connection.prompt(session_id=session.session_id, prompt=say("Pay."))
    assert len(editor.asked) == 1
    assert editor.states_of("c1")[-1] == "completed"


async def test_a_cancelled_question_ends_the_turn_and_the_call(anyio_backend: str) -> None:
    store = InMemoryStateStore()
    model = ScriptedChatModel([call("pay", '{"amount": 3}'), "Hello."])
    agent = Agent("helper", "", model, tools=[FunctionTool(pay, ask=True)], state_store=store)
    editor = Editor(lambda _: None)
    async with connected(agent, editor) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        response = await connection.prompt(session_id=session.session_id, prompt=say("Pay."))
        assert response.stop_reason == "cancelled"
        response = await connection.prompt(session_id=session.session_id, prompt=say("Hello?"))
    assert response.stop_reason == "end_turn"
    assert len(editor.asked) == 1
    state = await store.load(session.session_id)
    [result] = [block for message in state.context for block in message.get_content_blocks("tool_result")]
    assert result.state is ToolResultState.INTERRUPTED


async def test_cancel_ends_a_tool_that_works(anyio_backend: str) -> None:
    begun = anyio.Event()

    async def work() -> str:
        begun.set()
        await anyio.sleep_forever()
        return ""

    agent = Agent("helper", "", ScriptedChatModel([call("work")]), tools=[work])
    editor, responses = Editor(), []
    async with connected(agent, editor) as connection, anyio.create_task_group() as group:
        session = await connection.new_session(cwd="/work", mcp_servers=[])

        async def prompt() -> None:
            responses.append(await connection.prompt(session_id=session.session_id, prompt=say("Work.")))

        group.start_soon(prompt)
        await begun.wait()
        with pytest.raises(RequestError, match="Invalid request"):
            await connection.prompt(session_id=session.session_id, prompt=say("And this?"))
        await connection.cancel(session_id=session.session_id)
    assert [response.stop_reason for response in responses] == ["cancelled"]
    assert editor.states_of("c1")[-1] == "failed"


async def test_content_of_each_kind_reaches_the_model(anyio_backend: str) -> None:
    taken: list[Msg] = []

    def answer(messages: list[Msg], tools: Any) -> str:
        taken.append(messages[-1])
        return "Seen."

    agent = Agent("helper", "", ScriptedChatModel([answer]))
    text = TextResourceContents(uri='file:///a"b.py', text="x = 1")
    blob = BlobResourceContents(uri="file:///a.pdf", blob="UERG", mime_type="application/pdf")
    prompt = [
        acp.text_block("Look:"),
        ImageContentBlock(type="image", data="aW1n", mime_type="image/png"),
        AudioContentBlock(type="audio", data="c25k", mime_type="audio/wav"),
        ResourceContentBlock(type="resource_link", name="main.py", uri="file:///work/main.py"),
        EmbeddedResourceContentBlock(type="resource", resource=text),
        EmbeddedResourceContentBlock(type="resource", resource=blob),
    ]
    async with connected(agent, Editor()) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        await connection.prompt(session_id=session.session_id, prompt=prompt)
    texts = taken[0].get_text_content()
    assert "[main.py](file:///work/main.py)" in str(texts)
    assert '<resource uri="file:///a&quot;b.py">\nx = 1\n</resource>' in str(texts)
    types = [block.source.media_type for block in taken[0].content if isinstance(block, DataBlock)]
    assert types == ["image/png", "audio/wav", "application/pdf"]


async def test_thoughts_plans_and_usage_are_shown(anyio_backend: str) -> None:
    plan = '{"name": "p", "description": "d", "expected_outcome": "e", "subtasks": [%s]}'
    plan %= '{"name": "first", "description": "d", "expected_outcome": "e"}'
    thinking = ChatResponse([ThinkingBlock("hmm"), *call("create_plan", plan)])
    agent = Agent("helper", "", ScriptedChatModel([thinking, "Done."]), middlewares=[PlanNotebook()])
    editor = Editor()
    async with connected(agent, editor) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        await connection.prompt(session_id=session.session_id, prompt=say("Plan."))
    assert "hmm" in [update["content"]["text"] for update in editor.shown("agent_thought_chunk")]
    [update] = editor.shown("plan")
    assert update["entries"] == [{"content": "first", "priority": "medium", "status": "pending"}]


async def test_a_call_of_a_tool_names_the_call_around_it(anyio_backend: str, editor: Editor) -> None:
    async def settle(context: ToolContext) -> Any:
        return await context.call("pay", {"amount": 1})

    tools = [pay, FunctionTool(settle, is_resumable=True)]
    async with connected(Agent("helper", "", ScriptedChatModel([call("settle"), "Done."]), tools=tools), editor) as it:
        session = await it.new_session(cwd="/work", mcp_servers=[])
        await it.prompt(session_id=session.session_id, prompt=say("Settle."))
    inner = next(update for update in editor.shown("tool_call") if "/" in update["toolCallId"])
    assert inner["_meta"] == {"agentrt/parentToolCallId": "c1"}
    assert editor.states_of(inner["toolCallId"])[-1] == "completed"


async def test_a_session_is_loaded_with_what_was_said(anyio_backend: str) -> None:
    store = InMemoryStateStore()
    model = ScriptedChatModel([call("pay", '{"amount": 3}'), "Done.", "Again."])
    agent = Agent("helper", "", model, tools=[pay], state_store=store)
    async with connected(agent, Editor()) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        await connection.prompt(session_id=session.session_id, prompt=say("Pay."))
    editor = Editor()
    async with connected(agent, editor) as connection:
        listed = await connection.list_sessions(cwd="/work")
        assert [info.session_id for info in listed.sessions] == [session.session_id]
        assert (await connection.list_sessions(cwd="/other")).sessions == []
        await connection.load_session(cwd="/work", session_id=session.session_id, mcp_servers=[])
        assert [update["content"]["text"] for update in editor.shown("user_message_chunk")] == ["Pay."]
        assert (editor.text, editor.states_of("c1")) == ("Done.", ["pending", "completed"])
        await connection.prompt(session_id=session.session_id, prompt=say("And now?"))
    assert editor.text == "Done.Again."


async def test_sessions_of_other_programs_are_not_for_editors(anyio_backend: str) -> None:
    store = InMemoryStateStore()
    await store.save(AgentState(session_id="secret", labels={"owner": "ann"}))
    async with connected(Agent("helper", "", ScriptedChatModel([]), state_store=store), Editor()) as connection:
        assert (await connection.list_sessions()).sessions == []
        for session_id in ("secret", "unknown", "../etc"):
            with pytest.raises(RequestError, match="Resource not found"):
                await connection.load_session(cwd="/work", session_id=session_id, mcp_servers=[])


async def test_modes_are_those_of_permissions(anyio_backend: str, editor: Editor) -> None:
    model = ScriptedChatModel([call("pay", '{"amount": 3}'), "Done."])
    async with connected(Agent("helper", "", model, tools=[FunctionTool(pay, ask=True)]), editor) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        modes = [mode.id for mode in session.modes.available_modes]
        assert (session.modes.current_mode_id, "bypass" in modes) == ("default", False)
        for mode in ("bypass", "odd"):
            with pytest.raises(RequestError, match="Invalid params"):
                await connection.set_session_mode(session_id=session.session_id, mode_id=mode)
        await connection.set_session_mode(session_id=session.session_id, mode_id="dont_ask")
        await connection.prompt(session_id=session.session_id, prompt=say("Pay."))
    assert (editor.asked, editor.states_of("c1")[-1]) == ([], "failed")


async def test_commands_of_the_app(anyio_backend: str) -> None:
    async def review(agent: Agent, words: str) -> str | None:
        return f"Review {words}." if words else None

    taken: list[Msg] = []

    def answer(messages: list[Msg], tools: Any) -> str:
        taken.append(messages[-1])
        return "Reviewed."

    agent = Agent("helper", "", ScriptedChatModel([answer]))
    editor = Editor()
    async with connected(agent, editor, commands=[EditorCommand("review", "Review a file", review, "file")]) as it:
        session = await it.new_session(cwd="/work", mcp_servers=[])
        await editor.has_commands.wait()
        await it.prompt(session_id=session.session_id, prompt=say("/review"))
        assert taken == []
        await it.prompt(session_id=session.session_id, prompt=say("/review a.py"))
    [update] = editor.shown("available_commands_update")
    assert [command["name"] for command in update["availableCommands"]] == ["compact", "stop", "review"]
    assert taken[0].get_text_content() == "Review a.py."


async def test_a_folder_of_the_editor_is_a_workspace(anyio_backend: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("saved")
    (tmp_path / "link.txt").symlink_to("/etc/passwd")
    (tmp_path / "refused.txt").write_text("x")
    results: list[Any] = []

    async def work(context: ToolContext) -> str:
        files = context.workspace
        results.append(await files.read_text("a.txt"))
        await files.write_text("new/b.txt", "written")
        results.append(await files.read_text("new/b.txt"))
        await files.write_bytes("c.bin", b"\xff")
        results.append(await files.read_bytes("c.bin"))
        results.append(await files.run(["pytest", "-q"]))
        for path in ("link.txt", "../x", "refused.txt", "missing.txt"):
            try:
                results.append(await files.read_text(path))
            except Exception as error:  # noqa: BLE001  # the test looks at it
                results.append(str(error))
        try:
            await files.write_text("link.txt", "x")
        except Exception as error:  # noqa: BLE001  # as above
            results.append(str(error))
        return "done"

    editor = Editor()
    editor.unsaved[str(tmp_path / "a.txt")] = "unsaved"
    agent = Agent("helper", "", ScriptedChatModel([call("work"), "Done."]), tools=[work])
    async with connected(agent, editor) as connection:
        session = await connection.new_session(cwd=str(tmp_path), mcp_servers=[])
        await connection.prompt(session_id=session.session_id, prompt=say("Work."))
    read, written, data, command, *errors = results
    assert (read, written, data) == ("unsaved", "written", b"\xff")
    assert editor.unsaved[str(tmp_path / "new" / "b.txt")] == "written"
    assert (command.exit_code, command.stdout, editor.commands, editor.released) == (
        3,
        "2 failed",
        [["pytest", "-q"]],
        ["t1"],
    )
    assert len(errors) == 5
    assert not any(re.search("root:|content of the file", error) for error in errors)


async def test_an_error_of_the_model_is_an_error_without_its_words(anyio_backend: str) -> None:
    agent = Agent("helper", "", ScriptedChatModel([ModelError("the key sk-canary is wrong")]))
    async with connected(agent, Editor()) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        with pytest.raises(RequestError) as raised:
            await connection.prompt(session_id=session.session_id, prompt=say("Hello?"))
    assert (raised.value.code, raised.value.data) == (-32603, {"details": "ModelError"})


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("new_session", {"cwd": "relative", "mcp_servers": []}),
        ("new_session", {"cwd": "/" + "x" * 600, "mcp_servers": []}),
        ("prompt", {"session_id": "unknown", "prompt": [acp.text_block("Hello?")]}),
        ("set_session_mode", {"session_id": "unknown", "mode_id": "default"}),
    ],
)
async def test_bad_input_gets_an_error(anyio_backend: str, method: str, arguments: dict[str, Any]) -> None:
    async with connected(Agent("helper", "", ScriptedChatModel([])), Editor()) as connection:
        with pytest.raises(RequestError, match=r"Invalid params|Resource not found"):
            await getattr(connection, method)(**arguments)


async def test_an_empty_prompt_is_refused(anyio_backend: str) -> None:
    async with connected(Agent("helper", "", ScriptedChatModel([])), Editor()) as connection:
        session = await connection.new_session(cwd="/work", mcp_servers=[])
        with pytest.raises(RequestError, match="Invalid params"):
            await connection.prompt(session_id=session.session_id, prompt=say(" "))


@pytest.mark.parametrize("options", [{"commands": ["review"]}, {"modes": ["odd"]}])
def test_wrong_options_are_named(anyio_backend: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="acp_agent"):
        acp_agent(Agent("helper", "", ScriptedChatModel([])), **options)
    with pytest.raises(ConfigError, match="takes an Agent"):
        acp_agent("helper")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="EditorCommand"):
        EditorCommand("Bad Name", "", lambda agent, words: None)  # type: ignore[arg-type, return-value]


async def test_an_editor_may_leave_before_commands_are_offered(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.serving.acp.editor_agent._COMMANDS_DELAY", 0)
    async with connected(Agent("helper", "", ScriptedChatModel([])), Editor()) as connection:
        await connection.new_session(cwd="/work", mcp_servers=[])
        await connection.close()
        await anyio.lowlevel.checkpoint()
