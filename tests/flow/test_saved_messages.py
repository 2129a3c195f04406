"""What clients read of saved messages is what the readers of the streams were told: values in the place of handles."""

import re

from agentrt import Agent, AgentState
from agentrt.message import TextBlock
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.runs import RunRecorder
from agentrt.state import SQLiteStore
from agentrt.tool import FlowLabel
from tests.flow.test_held_values import HANDLE, HoldMail, last_handle, mail
from tests.loop.helpers import call
from tests.serving.conftest import serve

SSE = {"Accept": "text/event-stream"}


def mail_agent(**options) -> Agent:
    def answer(messages, tools):
        return [TextBlock(f"It says {last_handle(messages, tools)}.")]

    return Agent("clerk", "", ScriptedChatModel([[call("1", "mail")], answer]), [mail], [HoldMail()], **options)


async def test_a_session_reads_as_its_stream_did(tmp_path):
    async with SQLiteStore(tmp_path / "a.db") as store, serve(mail_agent(state_store=store)) as client:
        told = await client.post("/api/sessions/s1/replies", json={"input": "Read it."}, headers=SSE)
        session = await client.get("/api/sessions/s1")
        saved = await store.load("s1")
    assert "IGNORE ALL" in told.text
    message = session.json()["messages"][-1]
    assert [block["text"] for block in message["content"] if block["type"] == "text"] == ["It says IGNORE ALL."]
    assert not HANDLE.search(session.text)
    assert HANDLE.search(saved.context[-1].to_json())


async def test_a_follower_that_comes_late_reads_values(tmp_path):
    async with SQLiteStore(tmp_path / "a.db") as store:
        agent = mail_agent(state_store=store, state=AgentState(session_id="s1"))
        reply_id = (await agent.reply("Read it.")).id
        async with Runner(mail_agent(), store) as runner:
            events = [event.to_json() async for event in runner.events("s1", reply_id)]
            message = await runner.read_message("s1", reply_id)
    assert "It says IGNORE ALL." in "".join(events)
    assert not HANDLE.search("".join(events))
    assert message.get_text_content() == "It says IGNORE ALL."


async def test_values_for_tools_alone_stay_handles_in_messages():
    agent = Agent("clerk", "", ScriptedChatModel(["One"]))
    secret = agent.hold("K-1", FlowLabel(), release=["tools"])
    other = agent.hold("9", FlowLabel())
    agent.model = ScriptedChatModel([f"{secret} and {other}"])
    await agent.reply("Hi")
    read = agent.released(agent.state.context[-1], "output")
    assert re.fullmatch(r"<private_1_\w+> and 9", read.get_text_content())
    assert agent.state.context[-1].get_text_content() == f"{secret} and {other}"


async def test_a_recorded_run_ends_with_the_message_as_it_was_told(tmp_path):
    async with SQLiteStore(tmp_path / "a.db") as store:
        agent = mail_agent(state_store=store).with_middlewares([HoldMail(), RunRecorder(store)])
        message = await agent.reply("Read it.")
        await store.runs.flush()
        run = await store.runs.load(agent.state.session_id)
    assert run.message.get_text_content() == message.get_text_content() == "It says IGNORE ALL."
