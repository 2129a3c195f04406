"""No query of one owner returns a text of another: by tools, unasked, rewritten, or through a sub-agent."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Agent, AgentState, Msg
from agentrt.memory import LongTermMemory
from agentrt.message import ToolCallBlock
from agentrt.middleware import LongTermMemoryMiddleware, MiddlewareBase, RAGMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.rag import Document, KnowledgeBase, SQLiteTextStore
from tests.middleware.plan.helpers import call

OWNERS = ("ann", "bob")
WORDS = st.lists(st.sampled_from(["tea", "says", "oslo", "天气", "' OR 1=1 --", '"']), min_size=1, max_size=4).map(
    " ".join
)


def owner_of(agent: Agent) -> str:
    # A sub-agent's session begins with that of its supervisor.
    return agent.state.session_id.partition(".")[0]


def layers_for(owner: str, store: SQLiteTextStore) -> list[MiddlewareBase]:
    return [
        LongTermMemoryMiddleware(LongTermMemory(store), owner=owner_of, mode="both"),
        RAGMiddleware(KnowledgeBase(owner, "What they know.", store), "both", rewrite=True),
    ]


def team_of(owner: str, query: str, store: SQLiteTextStore) -> tuple[Agent, list[Agent]]:
    """Return an agent that asks everywhere for the query, and all agents that it works with."""
    other = OWNERS[owner == "ann"]

    def answer(messages: list[Msg], tools: Any) -> Any:
        names = [schema["function"]["name"] for schema in tools or ()]
        if not names:  # a query is rewritten
            return f"{other} {query}"
        if messages[-1].has_content_blocks("tool_result"):
            return "ok"
        calls: list[ToolCallBlock] = [
            call("retrieve_from_memory", keywords=[*query.split(), other], limit=50),
            call("search_knowledge", query=query, knowledge_bases=[other]),
            call("search_knowledge", query=query),
            call("record_to_memory", thinking="", content=[f"{owner} says {query}"]),
        ]
        return [*calls, call("helper", query=f"{owner} says {query}")] if "helper" in names else calls

    def model() -> ScriptedChatModel:
        return ScriptedChatModel([answer] * 10)

    helper = Agent("helper", model=model(), middlewares=layers_for(owner, store))
    boss = Agent(
        "boss",
        model=model(),
        tools=[helper.as_tool("Helps.")],
        middlewares=layers_for(owner, store),
        state=AgentState(session_id=owner),
    )
    return boss, [boss, helper]


@given(st.lists(st.tuples(st.sampled_from(OWNERS), WORDS), min_size=2, max_size=4))
@settings(max_examples=5)
async def test_no_query_of_one_owner_returns_a_text_of_another(queries: list[tuple[str, str]]) -> None:
    store = SQLiteTextStore(":memory:")
    for owner in OWNERS:
        await KnowledgeBase(owner, "What they know.", store).add(Document("1", f"{owner} says tea oslo 天气"))
    for owner, query in queries:
        boss, agents = team_of(owner, query, store)
        await boss.reply(f"{owner} says {query}")
        requests = [str(request.messages) for agent in agents for request in agent.model.calls]  # type: ignore[attr-defined]
        other = OWNERS[owner == "ann"]
        assert len(requests) == 6
        assert all(f"{other} says" not in request for request in requests)


async def test_a_sub_agent_finds_what_its_supervisor_was_told() -> None:
    store = SQLiteTextStore(":memory:")
    boss, _ = team_of("ann", "oslo", store)
    await boss.reply("ann says oslo")
    boss, agents = team_of("ann", "oslo", store)
    await boss.reply("ann says oslo")
    for agent in agents:
        asked = str(agent.model.calls[1].messages)  # type: ignore[attr-defined]
        assert "remembered from earlier conversations" in asked
