"""Conversations with sub-agents are whole, and continue, wherever something goes wrong in them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState
from agentrt.model import ScriptedChatModel
from agentrt.state import InMemoryStateStore
from agentrt.testing import FAULTS, ToolLog, approve, check_every_suspension
from agentrt.tool import FunctionTool
from tests.agent.delegation.helpers import agent_of, call

pytestmark = pytest.mark.anyio
Effects = Counter[str]
Scene = Callable[[Effects], Agent]


def script(*answers: Any) -> Callable[[Any, Any], Any]:
    """Answer by how many results the conversation has, so that every process finds the same model."""

    def respond(messages: Any, tools: Any) -> Any:
        results = [block for message in messages for block in message.get_content_blocks("tool_result")]
        return answers[min(len(results), len(answers) - 1)]

    return respond


def agent_with(name: str, answers: list[Any], *tools: Any, **options: Any) -> Agent:
    agent = agent_of(name, [], *tools, **options)
    agent.model = ScriptedChatModel([script(*answers)] * 50)
    return agent


def publishing(effects: Effects, name: str, *, ask: bool) -> Agent:
    async def publish(what: str) -> str:
        await anyio.lowlevel.checkpoint()
        effects[what] += 1
        await anyio.lowlevel.checkpoint()
        return f"{what} is out"

    return agent_with(name, [[call("k1", "publish", what=name)], f"{name} is done."], FunctionTool(publish, ask=ask))


def supervisor(*children: Agent) -> Agent:
    calls = [call(str(number), child.name, query="go") for number, child in enumerate(children, 1)]
    tools = [child.as_tool("Works.") for child in children]
    return agent_with("boss", [calls, *["All done."] * 3], *tools, state_store=InMemoryStateStore())


def one_child(effects: Effects) -> Agent:
    return supervisor(publishing(effects, "writer", ask=False))


def two_that_ask(effects: Effects) -> Agent:
    return supervisor(publishing(effects, "writer", ask=True), publishing(effects, "printer", ask=True))


def three_deep(effects: Effects) -> Agent:
    writer = publishing(effects, "writer", ask=True)
    editor = agent_with("editor", [[call("e1", "writer", query="go")], "Edited."], writer.as_tool("Writes."))
    return supervisor(editor)


def slow_reader(effects: Effects) -> Agent:
    talker = agent_of("talker", [])
    talker.model = ScriptedChatModel([" ".join(["word"] * 100)] * 50, stream=True)
    return supervisor(talker)


SCENES = [one_child, two_that_ask, three_deep, slow_reader]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_a_tree_is_whole_after_any_fault_at_any_place(scene: Scene, fault: str) -> None:
    def make(log: ToolLog) -> Agent:
        return scene(Counter())

    await check_every_suspension(make, faults=[fault])


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_a_tree_is_whole_on_trio_too(scene: Scene) -> None:
    await check_every_suspension(lambda log: scene(Counter()), every=3)


class Recording(InMemoryStateStore):
    """Keeps every state that was saved, and what had been done right before the next one was."""

    def __init__(self, effects: Effects) -> None:
        super().__init__()
        self.effects = effects
        self.saves: list[tuple[str, Effects]] = []

    async def save(self, state: AgentState) -> None:
        self.note_effects()
        await super().save(state)
        self.saves.append((state.model_dump_json(), Counter(self.effects)))

    def note_effects(self) -> None:
        if self.saves:
            text, _ = self.saves.pop()
            self.saves.append((text, Counter(self.effects)))


async def finish(agent: Agent) -> str:
    """Resume until the reply has its answer."""
    for _ in range(20):
        context = agent.state.reply_context
        if context is None:
            break
        await agent.reply(approve(agent.state) if agent.waiting() is not None else None)
    return agent.state.context[-1].get_text_content() or ""


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_after_a_kill_at_any_save_nothing_is_done_twice(scene: Scene) -> None:
    """Each saved state is what a process that is killed then leaves; what it did until the next save has happened."""
    effects: Effects = Counter()
    agent = scene(effects)
    agent.state_store = store = Recording(effects)
    async with agent.reply_stream("go") as events:
        async for _ in events:
            pass
    expected = await finish(agent)
    store.note_effects()
    assert expected == "All done."
    for text, done in store.saves:
        again: Effects = Counter(done)
        other = scene(again).with_state(AgentState.model_validate_json(text))
        other.state.revision = 0
        assert await finish(other) == expected
        assert max(again.values(), default=0) <= 1
        results = other.state.context[-1].get_content_blocks("tool_result")
        assert {block.state for block in results} <= {"success"}
