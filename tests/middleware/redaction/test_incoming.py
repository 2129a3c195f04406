"""What enters a conversation by a side door stands redacted in its state and its requests."""

import pytest

from agentrt.event import (
    ExternalExecutionResultEvent,
    HintBlockEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.message import ToolResultBlock
from agentrt.middleware import EMAIL, MiddlewareBase, RedactionMiddleware
from agentrt.tool import FunctionTool, ToolContext
from tests.loop.helpers import agent_of, call, confirmation_of, items_of
from tests.loop.test_round_tools import Elsewhere

BOB = "bob@example.com"


async def hint(context: ToolContext) -> str:
    context.emit(HintBlockEvent("", context.new_id(), f"write to {BOB}", "hint"))
    return "done"


class Continue(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        if not agent.run.scratch(self):
            agent.run.scratch(self)["done"] = True
            agent.run.continue_with(f"write to {BOB}")
        async for item in next_handler():
            yield item


def sent_and_kept(agent) -> str:
    requests = [message.to_json() for made in agent.model.calls for message in made.messages]
    return agent.state.model_dump_json() + "".join(requests)


async def test_a_hint_that_a_tool_emits_is_kept_redacted():
    agent = agent_of([[call("1", "hint")], "done"], hint, middlewares=[RedactionMiddleware([EMAIL])])
    await agent.reply("go")
    assert "write to [EMAIL]" in sent_and_kept(agent)
    assert BOB not in sent_and_kept(agent)


async def test_a_hint_of_a_layer_is_kept_redacted():
    agent = agent_of(["one", "two"], middlewares=[RedactionMiddleware([EMAIL]), Continue()])
    await agent.reply("go")
    assert "write to [EMAIL]" in sent_and_kept(agent)
    assert BOB not in sent_and_kept(agent)


async def test_what_is_said_of_an_unknown_tool_is_kept_redacted():
    model_calls = [[call("1", "hint", to=BOB)], "done"]
    agent = agent_of(model_calls, middlewares=[RedactionMiddleware([EMAIL], output=False)])
    await agent.reply("go")
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert BOB not in result.output[0].text


@pytest.mark.parametrize("confirmed", [True, False])
async def test_feedback_is_kept_redacted(confirmed):
    tool = FunctionTool(hint, ask=True)
    agent = agent_of([[call("1", "hint")], "done"], tool, middlewares=[RedactionMiddleware([EMAIL])])
    await agent.reply("go")
    answer = confirmation_of(agent, confirmed=confirmed, feedback=f"ask {BOB}")
    await agent.reply(answer)
    assert "ask [EMAIL]" in sent_and_kept(agent)
    assert BOB not in sent_and_kept(agent)


async def test_an_external_result_is_kept_redacted_and_known_again():
    agent = agent_of([[call("1", "elsewhere")], "done"], Elsewhere(), middlewares=[RedactionMiddleware([EMAIL])])
    question = await agent.reply("go")
    [block] = question.get_content_blocks("tool_call")
    result = ToolResultBlock(block.id, block.name, BOB, metadata={"by": BOB})
    answer = ExternalExecutionResultEvent(question.id, [result])
    first = await agent.reply(answer)
    assert BOB not in sent_and_kept(agent)
    assert (await agent.reply(answer)).id == first.id


async def test_a_result_that_is_streamed_leaves_whole():
    async def drip():
        yield "bob@exam"
        yield "ple.com and more"

    agent = agent_of([[call("1", "drip")], "done"], drip, middlewares=[RedactionMiddleware([EMAIL])])
    items = await items_of(agent)
    assert [item.delta for item in items if isinstance(item, ToolResultTextDeltaEvent)] == ["[EMAIL] and more"]
