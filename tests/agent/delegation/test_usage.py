"""The usage of a reply includes that of its sub-agents."""

from typing import Any

import anyio
import pytest

from agentrt import Msg
from agentrt.event import SubagentEndEvent
from agentrt.message import TextBlock
from agentrt.model import ChatResponse, ChatUsage
from tests.agent.delegation.helpers import Counting, agent_of, boss_of, call
from tests.loop.helpers import confirmation_of, saved_state


def response(content: Any, *tokens: int) -> ChatResponse:
    return ChatResponse([TextBlock(content) if isinstance(content, str) else content], usage=ChatUsage(*tokens))


def counts(usage: ChatUsage | None) -> tuple[int, int, bool]:
    return usage.input_tokens, usage.output_tokens, usage.estimated


@pytest.mark.parametrize("seen", [False, True])
async def test_usage_of_a_reply_includes_its_sub_agents_at_any_depth(seen):
    grandchild = agent_of("c", [response("Three.", 1, 1)])
    child = agent_of(
        "b", [response(call("2", "c", query="x"), 10, 20), response("Two.", 10, 20)], grandchild.as_tool("Asks.")
    )
    boss = agent_of(
        "a", [response(call("1", "b", query="x"), 100, 200), response("One.", 100, 200)], child.as_tool("Asks.")
    )
    if seen:
        shown = Msg("a", [], "assistant")
        async for event in boss.reply_stream("go"):
            shown.append_event(event)
        final = boss.state.context[-1]
        assert shown.usage == final.usage
    else:
        final = await boss.reply("go")
    assert final.usage is not None
    assert counts(final.usage) == (221, 441, False)
    assert counts(final.usage.own) == (200, 400, False)
    [part] = (final.usage.subagents or {}).values()
    assert (counts(part), counts(part.own)) == ((21, 41, False), (20, 40, False))
    assert counts(final.usage + final.usage) == (442, 882, False)
    assert counts((final.usage + final.usage).own) == (400, 800, False)


async def test_sub_agent_that_waits_is_counted_once():
    counting = Counting()
    answers = [response(call("k", "publish", what="x"), 10, 20), response("Done.", 10, 20)]
    boss = boss_of(agent_of("writer", answers, counting.tool(ask=True)))
    await boss.reply("go")
    other = saved_state(boss)
    waiting = other.reply_context.message.usage
    final = await boss.with_state(other).reply(confirmation_of(boss, "1/k"))
    parts = [counts(part) for usage in (waiting, final.usage) if usage for part in (usage.subagents or {}).values()]
    assert parts == [(10, 20, False), (20, 40, False)]


async def test_reply_that_is_cancelled_counts_its_sub_agents():
    async def stop() -> str:
        """Cancel the caller."""
        scope.cancel()
        await anyio.sleep_forever()
        return ""

    leaf = agent_of("leaf", [response(call("k", "stop"), 10, 20)], stop)
    boss = agent_of("boss", [response(call("1", "leaf", query="x"), 100, 200)], leaf.as_tool("Stops."))
    with anyio.CancelScope() as scope:
        async for _ in boss.reply_stream("go"):
            pass
    assert counts(boss.state.context[-1].usage) == (110, 220, False)


def test_sub_agent_of_unknown_usage_makes_the_sum_an_estimate():
    message = Msg("a", [], "assistant", id="r", usage=ChatUsage(1, 2))
    message.append_event(SubagentEndEvent("r", "1", "b", "r2", "s2"))
    assert counts(message.usage) == (1, 2, True)
