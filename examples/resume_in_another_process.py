"""Ask in one process and resume in another: they share only a folder."""

import asyncio
import subprocess
import sys
import tempfile

from agentrt import Agent
from agentrt.event import RequireUserConfirmEvent
from agentrt.state import AgentState, FileStateStore
from agentrt.tool import FunctionTool


async def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"It is foggy in {city}."


def make_agent(store: FileStateStore, state: AgentState) -> Agent:
    return Agent(
        name="assistant",
        model="rules",
        tools=[FunctionTool(get_weather, ask=True)],
        state=state,
        state_store=store,
    )


async def ask(folder: str) -> None:
    agent = make_agent(FileStateStore(folder), AgentState(session_id="weather"))
    msg = await agent.reply("What is the weather in London?")
    print(f"first process: {msg.get_text_content()}")


async def resume(folder: str) -> None:
    store = FileStateStore(folder)
    state = await store.load("weather")
    assert state is not None
    agent = make_agent(store, state)
    question = agent.waiting()
    assert isinstance(question, RequireUserConfirmEvent)
    msg = await agent.reply(question.approve())
    print(f"second process: {msg.get_text_content()}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for step in ("ask", "resume"):
            subprocess.run([sys.executable, __file__, step, folder], check=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        asyncio.run({"ask": ask, "resume": resume}[sys.argv[1]](sys.argv[2]))
