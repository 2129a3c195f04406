"""The spans of sub-agents: under those of the tool calls that asked them, on resume too."""

from typing import Any

import pytest

from agentrt import Agent, MiddlewareBase, UserMsg
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool
from tests.loop.helpers import add, call, confirmation_of, elsewhere
from tests.middleware.tracing.test_tracing import Spans


@pytest.fixture
def spans() -> Spans:
    return Spans()


def agent(name: str, answers: list[Any], *tools: Any, **options: Any) -> Agent:
    return Agent(name, model=ScriptedChatModel(answers), tools=list(tools), **options)


async def run(boss: Agent, inputs: Any, streams: bool) -> None:
    if not streams:
        await boss.reply(inputs)
        return
    async with boss.reply_stream(inputs) as events:
        async for _ in events:
            pass


CHILD = ["invoke_agent child", ["chat scripted"]]


@pytest.mark.parametrize("streams", [True, False])
async def test_spans_of_a_child_are_under_the_call_of_its_tool(spans: Spans, streams: bool):
    child = agent("child", ["found"])
    boss = agent(
        "boss",
        [[call("1", "child", query="?")], "done"],
        child.as_tool("Answers.", stream=streams),
        middlewares=[spans.middleware()],
    )
    await run(boss, "go", streams)
    assert spans.tree() == [["invoke_agent boss", ["chat scripted", ["execute_tool child", [CHILD]], "chat scripted"]]]
    spans.check_all_ended()


@pytest.mark.parametrize("streams", [True, False])
async def test_spans_of_children_side_by_side_are_apart(spans: Spans, streams: bool):
    children = [agent(name, ["found"]) for name in ("a", "b")]
    boss = agent(
        "boss",
        [[call("1", "a", query="?"), call("2", "b", query="?")], "done"],
        *[child.as_tool("Answers.") for child in children],
        middlewares=[spans.middleware()],
    )
    await run(boss, "go", streams)
    [[_, under_boss]] = spans.tree()
    assert [entry for entry in under_boss if isinstance(entry, list)] == [
        [f"execute_tool {name}", [[f"invoke_agent {name}", ["chat scripted"]]]] for name in ("a", "b")
    ]
    spans.check_all_ended()


@pytest.mark.parametrize("streams", [True, False])
async def test_spans_of_a_resumed_child_are_under_the_call_again(spans: Spans, streams: bool):
    child = agent("child", [[call("k", "add", a=1, b=2)], "three"], FunctionTool(add, ask=True))
    boss = agent(
        "boss", [[call("1", "child", query="?")], "done"], child.as_tool("Answers."), middlewares=[spans.middleware()]
    )
    await run(boss, "go", streams)
    assert spans.tree() == [["invoke_agent boss", ["chat scripted", ["execute_tool child", [CHILD]]]]]
    spans.check_all_ended()
    spans.begun.clear()
    spans.ended.clear()

    boss = elsewhere(boss)
    await run(boss, confirmation_of(boss), streams)
    resumed = ["invoke_agent child", ["execute_tool add", "chat scripted"]]
    assert spans.tree() == [["invoke_agent boss", [["execute_tool child", [resumed]], "chat scripted"]]]
    spans.check_all_ended()


@pytest.mark.parametrize("streams", [True, False])
async def test_a_child_that_inherits_nothing_has_no_spans(spans: Spans, streams: bool):
    child = agent("child", ["found"]).as_tool("Answers.", inherit=False)
    boss = agent("boss", [[call("1", "child", query="?")], "done"], child, middlewares=[spans.middleware()])
    await run(boss, "go", streams)
    assert spans.tree() == [["invoke_agent boss", ["chat scripted", "execute_tool child", "chat scripted"]]]
    spans.check_all_ended()


async def test_a_question_beside_a_round_has_a_span_of_its_own(spans: Spans):
    class Asking(MiddlewareBase):
        async def on_reasoning(self, agent: Any, input_kwargs: Any, next_handler: Any):
            async for item in next_handler():
                if getattr(item, "type", "") == "MODEL_CALL_START":
                    await agent.run.ask_model([UserMsg("user", "?")], purpose="check")
                yield item

    boss = agent("boss", ["aside", "said"], middlewares=[spans.middleware(), Asking()])
    await boss.reply("go")
    assert spans.tree() == [["invoke_agent boss", ["chat scripted", "chat scripted"]]]
    assert [span.attributes.get("agentrt.model_call.is_internal") for span in spans.named("chat")] == [True, None]
    spans.check_all_ended()
