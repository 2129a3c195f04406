"""The tool emulator answers in the place of tools, which do not run."""

from typing import Any

import pytest

from agentrt import Agent
from agentrt.errors import MiddlewareConfigError, Transient
from agentrt.middleware import ToolEmulatorMiddleware, ToolResultLimitMiddleware
from agentrt.model import ScriptedChatModel
from tests.loop.helpers import agent_of, call

runs: list[str] = []


async def pay(amount: int) -> str:
    """Pay an amount."""
    runs.append(str(amount))
    return "paid"


async def result_of(layer: ToolEmulatorMiddleware, **arguments: Any) -> tuple[Agent, Any]:
    runs.clear()
    agent = agent_of([[call("1", "pay", **arguments)], "done"], pay, middlewares=[layer])
    await agent.reply("go")
    (block,) = agent.state.context[-1].get_content_blocks("tool_result")
    return agent, block


async def test_a_model_says_what_the_tool_would_return() -> None:
    model = ScriptedChatModel(["receipt 7"])
    _, block = await result_of(ToolEmulatorMiddleware(model), amount=3)
    assert (block.state, block.text, runs) == ("success", "receipt 7", [])
    question = model.calls[0].messages[-1].get_text_content() or ""
    assert "Pay an amount." in question
    assert '{"amount": 3}' in question


async def test_only_the_named_tools_are_emulated() -> None:
    _, block = await result_of(ToolEmulatorMiddleware(ScriptedChatModel([]), tools=["search_*"]), amount=3)
    assert (block.text, runs) == ("paid", ["3"])


@pytest.mark.parametrize(("tools", "is_emulated"), [("*", False), (["pay", "read_*", "read_result"], True)])
async def test_tools_of_other_layers_run_unless_named_in_full(tools: Any, is_emulated: bool) -> None:
    emulator = ToolEmulatorMiddleware(ScriptedChatModel(["x" * 90 + "end", "made up"]), tools=tools)
    script = [[call("1", "pay", amount=3)], [call("2", "read_result", ref="result-1", offset=89)], "done"]
    agent = agent_of(script, pay, middlewares=[ToolResultLimitMiddleware(50, head=1, tail=1), emulator])
    await agent.reply("go")
    *_, block = agent.state.context[-1].get_content_blocks("tool_result")
    assert block.text == ("made up" if is_emulated else "xend")


async def test_the_form_of_an_answer_is_not_emulated() -> None:
    layers = [ToolEmulatorMiddleware(ScriptedChatModel([]))]
    agent = agent_of([[call("1", "GenerateStructuredOutput", n=3)]], middlewares=layers)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert (await agent.reply("go", structured_schema=schema)).structured_output == {"n": 3}


async def test_arguments_are_checked_as_if_the_tool_ran() -> None:
    model = ScriptedChatModel([])
    _, block = await result_of(ToolEmulatorMiddleware(model), amount="much")
    assert (block.state, model.calls) == ("error", [])


async def test_a_failed_emulation_is_an_error_result() -> None:
    _, block = await result_of(ToolEmulatorMiddleware(ScriptedChatModel([Transient("secret")])), amount=3)
    assert (block.state, block.text, runs) == ("error", "pay could not be emulated: Transient", [])


@pytest.mark.parametrize("model", [None, 7, ["openai:gpt-5-mini"]])
def test_what_is_not_a_model_is_refused(model: Any) -> None:
    with pytest.raises(MiddlewareConfigError, match=r"model=\.\.\.\) must be a chat model, or a name"):
        ToolEmulatorMiddleware(model)
    with pytest.raises(MiddlewareConfigError, match="must be a list of names of tools"):
        ToolEmulatorMiddleware(ScriptedChatModel([]), tools=[""])
