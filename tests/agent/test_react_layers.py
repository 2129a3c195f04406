"""Options of 1.x that are layers: memory, knowledge, a plan, and hints that are printed."""

import json
import re
from typing import Any

import pytest

from agentrt import AgentState, Toolkit
from agentrt.agent import Agent, ReActAgent
from agentrt.errors import ConfigError, MiddlewareConfigError
from agentrt.memory import LongTermMemory, LongTermMemoryBase
from agentrt.message import Msg, ToolCallBlock
from agentrt.middleware import PlanNotebook, RedactionMiddleware, TodoMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.rag import Document, KnowledgeBase, SQLiteTextStore
from agentrt.session import JSONSession
from agentrt.tool import ToolGroup
from tests.middleware.plan.helpers import call


def agent_of(*script: Any, **options: Any) -> ReActAgent:
    agent = ReActAgent("friday", "Be brief.", ScriptedChatModel(list(script)), **options)
    agent.disable_console_output()
    return agent


def memory() -> LongTermMemory:
    return LongTermMemory(SQLiteTextStore(":memory:"))


async def handbook() -> KnowledgeBase:
    knowledge = KnowledgeBase("handbook", "How we work.", SQLiteTextStore(":memory:"))
    await knowledge.add(Document("office", "The office opens at nine."))
    return knowledge


def hints_of(agent: Agent, number: int = -1) -> list[str]:
    messages = agent.model.calls[number].messages  # type: ignore[attr-defined]
    return [str(block.source) for msg in messages for block in msg.get_content_blocks("hint")]


def tools_of(agent: Agent) -> list[str]:
    return [schema["function"]["name"] for schema in agent.model.calls[-1].tools or ()]  # type: ignore[attr-defined]


async def test_options_become_layers_outside_of_the_middlewares():
    notebook, redaction = PlanNotebook(), RedactionMiddleware()
    agent = agent_of(
        "Nine.",
        long_term_memory=memory(),
        knowledge=await handbook(),
        plan_notebook=notebook,
        print_hint_msg=True,
        middlewares=[redaction],
    )
    layers = ["LongTermMemoryMiddleware", "RAGMiddleware", "PlanNotebook", "HintPrinter", "RedactionMiddleware"]
    assert [type(layer).__name__ for layer in agent.middlewares] == layers
    text = agent.explain()
    assert "record_to_memory" in text
    chain = text.partition("\non_model_call (call)")[2].partition("  core")[0]
    assert re.findall(r"\d\. (\w+)", chain) == layers
    assert agent.plan_notebook is notebook


async def test_without_the_options_there_are_no_layers():
    agent = agent_of("Hello.", knowledge=[])
    assert (agent.middlewares, agent.long_term_memory, agent.plan_notebook) == ((), None, None)


async def test_what_was_said_is_known_to_a_later_agent():
    kept = memory()
    await agent_of("Noted.", long_term_memory=kept)("I am allergic to nuts.")
    other = agent_of("No nuts.", long_term_memory=kept, long_term_memory_mode="static_control")
    await other("A cake with nuts?")
    assert hints_of(other) == ["long_term_memory"]
    assert not tools_of(other)


async def test_an_owner_shares_nothing_with_another():
    kept = memory()
    await agent_of("Noted.", long_term_memory=kept, long_term_memory_owner="ann")("I am allergic to nuts.")
    other = agent_of("A cake.", long_term_memory=kept, long_term_memory_owner=lambda agent: "bob")
    await other("A cake with nuts?")
    assert hints_of(other) == []


async def test_conversations_must_say_whose_memories_they_have():
    agent = agent_of(long_term_memory=memory())
    assert agent.with_state(agent.state).state is agent.state
    with pytest.raises(ConfigError, match=r"share the long-term memory of 'friday': .*long_term_memory_owner=\.\.\."):
        agent.with_state(AgentState())
    with pytest.raises(ConfigError, match=r"long_term_memory_owner=\.\.\."):
        agent.as_tool("Has a memory.")
    agent_of(long_term_memory=memory(), long_term_memory_owner="ann").with_state(AgentState())


async def test_a_memory_of_1x_needs_no_owner():
    class Mine(LongTermMemoryBase):
        def __init__(self) -> None:
            super().__init__()
            self.heard: list[str | None] = []

        async def record(self, msgs: list[Msg | None], **kwargs: Any) -> Any:
            self.heard += [msg.get_text_content() for msg in msgs if msg is not None]

        async def retrieve(self, msg: Msg | list[Msg] | None, limit: int = 5, **kwargs: Any) -> str:
            return "likes tea"

    mine = Mine()
    agent = agent_of("Tea.", long_term_memory=mine, long_term_memory_mode="static_control")
    await agent(Msg("user", "What do I like?", "user"))
    assert hints_of(agent) == ["long_term_memory"]
    assert mine.heard == ["What do I like?", "Tea."]


@pytest.mark.parametrize(("rewrites", "requests"), [(True, 2), (False, 1)])
async def test_knowledge_is_found_before_the_first_round(rewrites: bool, requests: int):
    script = ["office opening", "At nine [1]."] if rewrites else ["At nine [1]."]
    agent = agent_of(*script, knowledge=[await handbook()], enable_rewrite_query=rewrites)
    answer = await agent("When does the office open?")
    assert len(agent.model.calls) == requests  # type: ignore[attr-defined]
    assert hints_of(agent) == ["knowledge"]
    assert [place["document"] for place in answer.metadata["citations"]] == ["office"]


async def test_a_meta_tool_has_the_tools_of_a_plan_in_a_group():
    notebook = PlanNotebook()
    agent = agent_of(
        [ToolCallBlock("1", "reset_equipped_tools", json.dumps({"plan_related": True}))],
        "Ready.",
        plan_notebook=notebook,
        enable_meta_tool=True,
    )
    await agent("Plan.")
    assert agent.model.calls[0].tools is not None  # type: ignore[attr-defined]
    first = [schema["function"]["name"] for schema in agent.model.calls[0].tools]  # type: ignore[attr-defined]
    assert first == ["reset_equipped_tools"]
    assert "create_plan" in tools_of(agent)
    assert hints_of(agent) == ["plan"]


async def test_without_a_meta_tool_a_plan_is_at_hand():
    agent = agent_of("Ready.", plan_notebook=PlanNotebook())
    await agent("Plan.")
    assert "create_plan" in tools_of(agent)
    assert "reset_equipped_tools" not in tools_of(agent)


async def test_a_notebook_gets_no_group_in_another_agent():
    notebook = PlanNotebook()
    before = agent_of("Ready.", plan_notebook=notebook)
    agent_of(plan_notebook=notebook, enable_meta_tool=True)
    await before("Plan.")
    assert hints_of(before) == ["plan"]


async def test_groups_of_a_toolkit_can_be_switched_in_any_case():
    agent = agent_of("Hello.", toolkit=Toolkit(groups=[ToolGroup("maps", "Maps.")]))
    await agent("Hello.")
    assert tools_of(agent) == ["reset_equipped_tools"]


@pytest.mark.parametrize("prints", [True, False])
async def test_hints_are_printed_once_each_if_asked_for(prints: bool):
    kept = memory()
    await kept.record([Msg("user", "I drink tea.", "user")], owner="friday", key="1")
    agent = agent_of(
        [call("view_historical_plans")],
        "Done.",
        long_term_memory=kept,
        knowledge=await handbook(),
        enable_rewrite_query=False,
        plan_notebook=PlanNotebook(),
        print_hint_msg=prints,
    )
    agent.set_msg_queue_enabled(True)
    await agent("Tea in the office?")
    shown = []
    assert agent.msg_queue is not None
    while not agent.msg_queue.empty():
        message, _, _ = agent.msg_queue.get_nowait()
        shown += [block.source for block in message.get_content_blocks("hint")]
    assert shown == (["long_term_memory", "knowledge", "plan"] if prints else [])


async def test_a_session_from_before_the_memory_still_loads(tmp_path: Any):
    session, before = JSONSession(tmp_path), agent_of("one")
    await before("a")
    await session.save_session_state("s", agent=before)
    after = agent_of("two", long_term_memory=memory())
    await session.load_session_state("s", agent=after)
    assert len(after.state.context) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"long_term_memory": 5}, r"ReActAgent\(long_term_memory=...\) must be a LongTermMemoryBase, .* not 5"),
        ({"long_term_memory_mode": "static"}, r"\(long_term_memory_mode=...\) must be one of .* not 'static'"),
        ({"long_term_memory_owner": ""}, r"\(long_term_memory_owner=...\) must be a str, .* not ''"),
        ({"knowledge": [5]}, r"\(knowledge=...\) must be a KnowledgeBase or a list of them, not \[5\]"),
        ({"plan_notebook": TodoMiddleware()}, r"\(plan_notebook=...\) must be a PlanNotebook .* not TodoMiddleware"),
        ({"enable_meta_tool": 1}, r"\(enable_meta_tool=...\) must be True or False, not 1"),
        ({"enable_rewrite_query": None}, r"\(enable_rewrite_query=...\) must be True or False"),
        ({"print_hint_msg": "yes"}, r"\(print_hint_msg=...\) must be True or False"),
        ({"parallel_tool_calls": 5}, r"\(parallel_tool_calls=...\) must be True or False, not 5"),
    ],
)
def test_a_wrong_option_is_named_with_its_value(options: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        agent_of(**options)


def test_a_second_plan_is_refused():
    with pytest.raises(MiddlewareConfigError, match="plan"):
        agent_of(plan_notebook=PlanNotebook(), middlewares=[TodoMiddleware()])
