"""Rules that come with answers, limits of the supervisor, and readers that are slow."""

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from agentrt import Agent
from agentrt.agent import ReActConfig
from agentrt.errors import ResumeError
from agentrt.event import ExternalExecutionResultEvent
from agentrt.message import TextBlock, ToolResultBlock
from agentrt.model import ChatModelBase, ChatResponse
from agentrt.permission import PermissionDecision, PermissionRule
from agentrt.tool import ToolBase
from tests.agent.delegation.helpers import Counting, agent_of, boss_of, call, results_of
from tests.agent.delegation.test_every_suspension import agent_with
from tests.loop.helpers import confirmation_of, saved_state

pytestmark = pytest.mark.anyio


def publishing_twice(counting: Counting) -> Any:
    rounds = [[call(f"k{number}", "publish", what="a")] for number in (1, 2)]
    return agent_of("writer", [*rounds, "Twice."], counting.tool(ask=True))


@pytest.mark.parametrize("other_process", [False, True])
async def test_a_rule_of_an_answer_holds_for_that_delegation_alone(other_process: bool) -> None:
    counting = Counting()
    writer = publishing_twice(counting)
    boss = boss_of(writer)
    boss.state.permission_context.allow_new_rules = True
    await boss.reply("go")
    rule = PermissionRule("publish", behavior="allow")
    if other_process:
        boss = boss.with_state(saved_state(boss))
    # The tool itself asks each time; only a rule answers that.
    await boss.reply(confirmation_of(boss, rules=[rule]))
    assert boss.waiting() is None
    assert counting.runs == ["a", "a"]
    assert boss.state.permission_context.rules == writer.state.permission_context.rules == []


async def test_a_rule_is_refused_where_the_root_takes_none() -> None:
    boss = boss_of(publishing_twice(Counting()))
    await boss.reply("go")
    before = boss.state.model_dump_json()
    with pytest.raises(ResumeError, match="rule"):
        await boss.reply(confirmation_of(boss, rules=[PermissionRule("publish", behavior="allow")]))
    assert boss.state.model_dump_json() == before


class Scan(ToolBase):
    name = "scan"
    is_external_tool = True

    def __init__(self) -> None:
        self.input_schema = {"type": "object", "properties": {}}

    async def check_permissions(self, tool_input: Any, context: Any) -> PermissionDecision:
        # It suggests what would answer no other question, so that all of them are asked at once.
        return PermissionDecision("ask", suggested_rules=[PermissionRule("scan", "none", behavior="allow")])


@pytest.mark.parametrize("other_process", [False, True])
async def test_a_rule_may_turn_a_question_into_one_for_a_program(other_process: bool) -> None:
    child = agent_of("child", [[call("k1", "scan"), call("k2", "scan")], "Scanned."], Scan())
    boss = boss_of(child)
    boss.state.permission_context.allow_new_rules = True
    await boss.reply("go")
    await boss.reply(confirmation_of(boss, "1/k1", rules=[PermissionRule("scan", behavior="allow")]))
    if other_process:
        boss = boss.with_state(saved_state(boss))
    while (event := boss.waiting()) is not None:
        assert event.type == "REQUIRE_EXTERNAL_EXECUTION"
        results = [ToolResultBlock(block.id, block.name, "clean") for block in event.tool_calls]
        await boss.reply(ExternalExecutionResultEvent(event.reply_id, results))
    assert results_of(boss)["1"].text == "Scanned."


async def test_a_rule_of_an_answer_holds_after_a_further_question() -> None:
    counting = Counting()
    rounds = [[call("k1", "publish", what="a")], [call("k2", "scan")], [call("k3", "publish", what="b")]]
    boss = boss_of(agent_of("writer", [*rounds, "Published."], counting.tool(ask=True), Scan()))
    boss.state.permission_context.allow_new_rules = True
    await boss.reply("go")
    await boss.reply(confirmation_of(boss, rules=[PermissionRule("publish", behavior="allow")]))
    await boss.reply(confirmation_of(boss))
    event = boss.waiting()
    assert event.type == "REQUIRE_EXTERNAL_EXECUTION"
    results = [ToolResultBlock(block.id, block.name, "clean") for block in event.tool_calls]
    await boss.reply(ExternalExecutionResultEvent(event.reply_id, results))
    assert boss.waiting() is None
    assert counting.runs == ["a", "b"]


async def test_without_a_rule_the_second_call_asks_again() -> None:
    counting = Counting()
    boss = boss_of(publishing_twice(counting))
    await boss.reply("go")
    await boss.reply(confirmation_of(boss))
    assert [block.id for block in boss.waiting().tool_calls] == ["1/k2"]
    assert counting.runs == ["a"]
    await boss.reply(confirmation_of(boss))
    assert counting.runs == ["a", "a"]
    assert boss.state.reply_context is None


async def test_the_supervisors_time_ends_its_children() -> None:
    stopped = anyio.Event()

    async def wait() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ""

    child = agent_of("child", [[call("k1", "wait")], "Waited."], wait)
    boss = boss_of(child, react_config=ReActConfig(max_seconds=0.1))
    await boss.reply("go")
    assert stopped.is_set()
    assert boss.state.last_reply.finished_reason == "exceed_max_seconds"
    assert results_of(boss)["1"].state == "interrupted"


class Endless(ChatModelBase):
    """Streams many pieces, and counts those that were taken."""

    def __init__(self, pieces: int) -> None:
        super().__init__(model="endless", stream=True)
        self.pieces = pieces
        self.given = 0

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> AsyncGenerator[ChatResponse, None]:
        return self._stream()

    async def _stream(self) -> AsyncGenerator[ChatResponse, None]:
        for number in range(self.pieces):
            self.given += 1
            yield ChatResponse([TextBlock(f"{number} ", "t")], is_last=False)


async def test_a_child_is_never_far_ahead_of_a_slow_reader() -> None:
    child = agent_of("child", [])
    model = child.model = Endless(10_000)
    boss = boss_of(child)
    texts: list[str] = []
    ahead = 0
    async with boss.reply_stream("go") as events:
        async for event in events:
            if event.type == "TEXT_BLOCK_DELTA" and event.reply_id != boss.reply_id:
                texts.append(event.delta)
                ahead = max(ahead, model.given - len(texts))
                if len(texts) % 500 == 0:
                    for _ in range(20):
                        await anyio.lowlevel.checkpoint()
    assert "".join(texts) == "".join(f"{number} " for number in range(10_000))
    assert ahead <= 80


async def test_the_number_of_delegations_is_counted_over_processes() -> None:
    counting = Counting()
    rounds: list[Any] = [[call(str(number), "writer", query="go")] for number in range(3)]

    def make_boss() -> Agent:
        publishes = [call("k1", "publish", what="a")]
        writer = agent_with("writer", [publishes, "Out."], counting.tool(ask=True))
        limits = ReActConfig(max_delegations=2)
        return agent_with("boss", [*rounds, "Done."], writer.as_tool("Writes."), react_config=limits)

    boss = make_boss()
    await boss.reply("go")
    while boss.waiting() is not None:
        question = confirmation_of(boss)
        boss = make_boss().with_state(saved_state(boss))
        await boss.reply(question)
    assert [result.state for result in results_of(boss).values()] == ["success", "success", "denied"]


async def test_a_denied_delegation_names_its_agent_and_not_the_tool() -> None:
    writer = agent_of("writer", [])
    calls = [call("1", "write", query="go")]
    tool = writer.as_tool("Writes.", name="write")
    boss = agent_of("boss", [calls, "Done."], tool, react_config=ReActConfig(max_depth=1))
    await boss.reply("go")
    result = results_of(boss)["1"]
    assert result.text.startswith("[subagent_max_depth] writer: not run")
    assert result.metadata["subagent"] == "writer"
