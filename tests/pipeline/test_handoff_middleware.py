"""The layer by which agents pass a conversation on keeps the contract of its hooks."""

import pytest

from agentrt import Agent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import HandoffMiddleware
from agentrt.testing import check_middleware
from agentrt.tool import Toolkit
from tests.loop.helpers import call


@pytest.mark.slow
async def test_layer_that_transfers_keeps_its_contract() -> None:
    def model() -> ScriptedChatModel:
        return ScriptedChatModel([[call("1", "transfer_to_other", reason="why not")]])

    await check_middleware(lambda: HandoffMiddleware({"other": "Another one."}), inputs=["go"], model=model, every=4)


async def test_transfer_is_noted_and_ends_the_reply() -> None:
    layer = HandoffMiddleware({"other": "Answers the rest."})
    model = ScriptedChatModel([[call("1", "transfer_to_other")]])
    agent = Agent("speaker", model=model, middlewares=[layer])
    answer = await agent.reply("go")
    assert answer.get_text_content() is None
    assert agent.state_of(layer) == {"next": "other", "count": 1}
    description = model.calls[0].tools[0]["function"]["description"]
    assert description == "Transfer the conversation to other, who answers in your place. Answers the rest."


async def test_transfer_outside_of_a_reply_is_refused() -> None:
    toolkit = Toolkit(HandoffMiddleware({"other": ""}).list_tools())
    items = [item async for item in toolkit.call_tool_function(ToolCallBlock("1", "transfer_to_other", "{}"))]
    assert items[-1].state == "denied"
