"""Faults that are injected into the calls of models and tools."""

from typing import Any

import pytest

from agentrt import Agent
from agentrt.errors import ConfigError, RateLimited, Transient
from agentrt.message import TextBlock, ToolCallBlock, ToolResultState
from agentrt.middleware import RetryMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.testing import (
    ChaosLayer,
    InjectedFault,
    check_middleware,
    cut_result,
    fail_model,
    fail_tool,
    garble_result,
    slow_tool,
)
from agentrt.types import ToolChunk

RAN: list[str] = []


async def find(name: str) -> str:
    RAN.append(name)
    return f"found {name} in the long list"


async def read() -> Any:
    for piece in ("One, ", "two, ", "three"):
        yield ToolChunk([TextBlock(piece)])


def call(call_id: str, tool: str = "find") -> ToolCallBlock:
    return ToolCallBlock(call_id, tool, '{"name": "it"}' if tool == "find" else "{}")


def make_agent(faults: list[InjectedFault], script: Any, *layers: Any) -> Agent:
    RAN.clear()
    return Agent("finder", "You find.", ScriptedChatModel(script), [find, read], [*layers, ChaosLayer(faults)])


async def results_of(agent: Agent) -> list[tuple[str, str]]:
    await agent.reply("Find it")
    message = agent.state.context[-1]  # with the results, which the answer leaves out
    return [(block.state.value, block.text) for block in message.get_content_blocks("tool_result")]


async def test_a_tool_fails_without_running() -> None:
    agent = make_agent([fail_tool("find", 2)], [[call("c1")], [call("c2")], [call("c3")], "Done."])
    assert await results_of(agent) == [
        ("success", "found it in the long list"),
        ("error", "The service is unavailable."),
        ("success", "found it in the long list"),
    ]
    assert RAN == ["it", "it"]


async def test_a_model_fails_and_a_retry_sees_it() -> None:
    agent = make_agent([fail_model(at=1)], ["Hello."], RetryMiddleware(initial_delay=0.001))
    assert (await agent.reply("Hi")).get_text_content() == "Hello."
    agent = make_agent([fail_model(RateLimited("slow down"), at=[2])], ["Hello.", "Again."])
    await agent.reply("Hi")
    with pytest.raises(RateLimited, match="slow down"):
        await agent.reply("Hi again")
    with pytest.raises(Transient):
        await make_agent([fail_model()], ["Hello."]).reply("Hi")


async def test_results_are_cut_and_garbled_alike_each_time() -> None:
    faults = [cut_result("find", 5, at=1), garble_result("find", at=[2, 3])]
    first = await results_of(make_agent(faults, [[call("c1")], [call("c2")], [call("c3")], "."]))
    assert first[0] == ("success", "found")
    assert first[1][1] == first[2][1] != "found it in the long list"
    assert len(first[1][1]) == len("found it in the long list")
    assert await results_of(make_agent(faults, [[call("c1")], [call("c2")], [call("c3")], "."])) == first


async def test_pieces_of_a_damaged_result_are_not_seen() -> None:
    seen = []
    agent = make_agent([cut_result("read", 6)], [[call("c1", "read")], "."])
    async for event in agent.reply_stream("Read"):
        seen.append(str(getattr(event, "delta", "")))
    assert "three" not in "".join(seen)
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert result.text == "One, t"


async def test_a_slow_tool_waits_and_then_runs() -> None:
    agent = make_agent([slow_tool("find", 0.01)], [[call("c1")], "."])
    assert await results_of(agent) == [("success", "found it in the long list")]


async def test_counts_are_of_one_conversation() -> None:
    layer = ChaosLayer([fail_tool("find", 1)])
    for _ in range(2):
        agent = Agent("finder", "", ScriptedChatModel([[call("c1")], "."]), [find], [layer])
        assert (await results_of(agent))[0][0] == ToolResultState.ERROR.value


def test_faults_are_json_and_back() -> None:
    faults = [
        fail_model(RateLimited, at=[1, 2]),
        fail_tool("find", text="gone"),
        slow_tool("find", 2.5, 3),
        cut_result("find", 9),
        garble_result("find", seed=4),
    ]
    assert [InjectedFault.from_json(fault.to_json()) for fault in faults] == faults


@pytest.mark.parametrize(
    "make",
    [
        lambda: fail_model(ValueError),  # type: ignore[arg-type]
        lambda: fail_model(at=0),
        lambda: fail_model(at=[1, "2"]),  # type: ignore[list-item]
        lambda: fail_tool(""),
        lambda: slow_tool("find", -1),
        lambda: slow_tool("find", float("nan")),
        lambda: cut_result("find", -1),
        lambda: cut_result("find", float("inf")),  # type: ignore[arg-type]
        lambda: fail_tool("find", text=7),  # type: ignore[arg-type]
        lambda: garble_result("find", seed=None),  # type: ignore[arg-type]
        lambda: InjectedFault.from_json({"kind": "fail_tool"}),
        lambda: InjectedFault.from_json({"kind": "cut_result", "tool": "find", "length": "a"}),
        lambda: InjectedFault.from_json({"kind": "burn"}),
        lambda: InjectedFault.from_json({"kind": "fail_tool", "wrong": 1}),
        lambda: InjectedFault.from_json({"kind": "fail_model", "error": "SystemExit"}),
        lambda: InjectedFault.from_json([]),
    ],
)
def test_wrong_faults_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.slow
async def test_the_layer_keeps_the_contract() -> None:
    await check_middleware(lambda: ChaosLayer([]))
