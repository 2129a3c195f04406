"""Delegations whose arguments, saved data or surroundings are odd."""

from typing import Any

import pydantic
import pytest

from agentrt.event import ExternalExecutionResultEvent
from agentrt.message import ToolResultBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import ToolBase
from tests.agent.delegation.helpers import Counting, agent_of, asking_child, boss_of, call, results_of
from tests.agent.delegation.test_every_suspension import script
from tests.loop.helpers import confirmation_of, items_of, saved_state

pytestmark = pytest.mark.anyio
CANARY = "canary 4711"


@pytest.mark.parametrize("error", [KeyError(CANARY), TypeError(CANARY), RuntimeError(CANARY)], ids=type)
async def test_an_error_of_a_validator_is_an_error_result(error: Exception, caplog: Any) -> None:
    class Report(pydantic.BaseModel):
        title: str

        @pydantic.field_validator("title")
        @classmethod
        def refuse(cls, title: str) -> str:
            raise error

    critic = agent_of("critic", [])
    tool = critic.as_tool("Judges.", input=Report)
    boss = agent_of("boss", [[call("1", "critic", title="Moon")], "Done."], tool)
    items = await items_of(boss)
    result = results_of(boss)["1"]
    assert (result.state, result.text) == ("error", f"[subagent_error] critic: {type(error).__name__}")
    told = [*map(repr, items), boss.state.model_dump_json(), caplog.text]
    assert not any(CANARY in text for text in told)


@pytest.mark.parametrize(
    "kept",
    [{"answers_used": 5}, {"answers_used": [[]]}, {"state": 5}, {"state": []}, {"state": {"context": 5}}],
    ids=str,
)
async def test_what_another_tool_kept_makes_an_error_result(kept: Any) -> None:
    boss = boss_of(asking_child(Counting()))
    await boss.reply("go")
    question = confirmation_of(boss)
    boss.state.reply_context.kept["1"] = kept
    await boss.reply(question)
    assert (results_of(boss)["1"].state, boss.state.last_reply.finished_reason) == ("error", "completed")


async def test_a_state_copied_in_the_middle_does_nothing_twice() -> None:
    """Also in an entry after the first, where nothing is saved on the way."""

    def tree(counting: Counting) -> Any:
        calls = [[call(f"k{number}", "publish", what=what)] for number, what in enumerate("xy")]
        return boss_of(agent_of("writer", calls, counting.tool(ask=True)))

    counting = Counting()
    boss = tree(counting)
    await boss.reply("go")
    copies = []
    async with boss.reply_stream(confirmation_of(boss)) as events:
        async for _ in events:
            copies.append((saved_state(boss), list(counting.runs)))
    assert counting.runs == ["x"]
    for state, runs in copies:
        again = Counting()
        other = tree(again).with_state(state)
        other.model = agent_of("boss", ["Done."]).model
        if other.waiting() is None:
            await other.reply(None)
        assert runs + again.runs in ([], ["x"])


async def test_a_call_whose_conversation_is_not_kept_is_unknown() -> None:
    copies = []

    def tree(*script: Any) -> Any:
        return boss_of(agent_of("writer", [*script], Counting().tool(ask=True)))

    def finish(*_: Any) -> str:
        copies.append(saved_state(boss))
        return "Published."

    boss = tree([call("k1", "publish", what="x")], finish)
    await boss.reply("go")
    await boss.reply(confirmation_of(boss))
    other = tree().with_state(copies[0])
    other.model = agent_of("boss", ["Done."]).model
    await other.reply(None)
    result = results_of(other)["1"]
    assert (result.state, result.text) == ("unknown", "[subagent_unknown] writer: StateLost")


@pytest.mark.parametrize("is_shared", [True, False])
async def test_agents_in_a_circle_do_not_wait_for_each_other(is_shared: bool) -> None:
    """With the same tools at both levels, or others of the same agents."""

    def ask_twice(other: str) -> Any:
        return script([call("1", other, query="go"), call("2", other, query="go")], *["Enough."] * 2)

    first, second = agent_of("first", []), agent_of("second", [])
    first.model = ScriptedChatModel([ask_twice("second")] * 500)
    second.model = ScriptedChatModel([ask_twice("first")] * 500)
    tools = [agent.as_tool("Works.", max_concurrency=1) for agent in (first, second)]
    others = tools if is_shared else [agent.as_tool("Works.", max_concurrency=1) for agent in (first, second)]
    calls = [call("1", "first", query="go"), call("2", "second", query="go")]
    boss = agent_of("boss", [calls, "Done."], *tools)
    first.toolkit.register_tool_function(others[1])  # closed now: it was not refused when the boss was built
    second.toolkit.register_tool_function(others[0])
    await boss.reply("go")
    assert {result.state for result in results_of(boss).values()} == {"success"}


class Scan(ToolBase):
    name = "scan"
    is_external_tool = True

    def __init__(self, max_output: int = 100) -> None:
        self.max_output = max_output
        self.input_schema = {"type": "object", "properties": {}}


@pytest.mark.parametrize("other_process", [False, True])
@pytest.mark.parametrize("is_seen", [True, False])
async def test_a_result_that_the_child_refuses_is_asked_for_again(is_seen: bool, other_process: bool) -> None:
    """The supervisor has another idea of how long a result may be, as it has no such tool."""
    boss = boss_of(agent_of("child", [[call("k1", "scan")], "Scanned."], Scan()))
    await boss.reply("go")
    for output in ("x" * 1_000, "x" * 1_000, "clean"):
        event = boss.waiting()
        assert [block.id for block in event.tool_calls] == ["1/k1"]
        assert event.inside == {"1/k1": ["child"]}
        result = ExternalExecutionResultEvent(event.reply_id, [ToolResultBlock("1/k1", "scan", output)])
        if other_process:
            boss = boss.with_state(saved_state(boss))
        await (items_of(boss, result) if is_seen else boss.reply(result))
    assert (results_of(boss)["1"].state, results_of(boss)["1"].text) == ("success", "Scanned.")


async def test_a_tool_of_that_name_above_limits_no_result_below() -> None:
    child = agent_of("child", [[call("k1", "scan")], "Scanned."], Scan(1_000))
    boss = agent_of("boss", [[call("1", "child", query="go")], "Done."], child.as_tool("Scans."), Scan(10))
    await boss.reply("go")
    result = ToolResultBlock("1/k1", "scan", "x" * 500)
    await boss.reply(ExternalExecutionResultEvent(boss.waiting().reply_id, [result]))
    assert results_of(boss)["1"].text == "Scanned."
