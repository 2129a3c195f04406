"""Guards judge what enters by a side door: feedback, results that no tool gave, hints, and what is outside."""

from dataclasses import replace
from typing import Any

import pytest

from agentrt.event import ExternalExecutionResultEvent, HintBlockEvent
from agentrt.message import ToolResultBlock
from agentrt.middleware import GuardrailMiddleware, MiddlewareBase, Replace
from agentrt.tool import FunctionTool, ToolContext
from agentrt.types import PermissionBehavior
from tests.loop.helpers import agent_of, call, confirmation_of
from tests.loop.test_round_tools import Elsewhere
from tests.middleware.guardrail.test_guardrail import SECRET, hide_secret, no_secret

HIDE = GuardrailMiddleware(input=hide_secret, tool_result=hide_secret)


def sent(agent: Any) -> str:
    return "".join(message.to_json() for made in agent.model.calls for message in made.messages)


async def look(context: ToolContext) -> str:
    context.emit(HintBlockEvent("", context.new_id(), f"mind {SECRET}", "look"))
    return "done"


class Deny(MiddlewareBase):
    async def on_check_permission(self, agent, input_kwargs, next_handler):
        decision = await next_handler()
        return replace(decision, behavior=PermissionBehavior.DENY, message=f"not {SECRET}")


@pytest.mark.parametrize("confirmed", [True, False])
async def test_feedback_to_a_question_is_judged_as_input(confirmed):
    agent = agent_of([[call("1", "look")], "done"], FunctionTool(look, ask=True), middlewares=[HIDE])
    await agent.reply("go")
    await agent.reply(confirmation_of(agent, confirmed=confirmed, feedback=f"tell {SECRET} " * 700))
    assert "tell ***" in sent(agent)
    assert SECRET not in sent(agent) + agent.state.model_dump_json()


async def test_feedback_that_trips_ends_the_reply():
    agent = agent_of(
        [[call("1", "look")], "done"],
        FunctionTool(look, ask=True),
        middlewares=[GuardrailMiddleware(input=no_secret, message="No.")],
    )
    await agent.reply("go")
    answer = confirmation_of(agent, feedback=SECRET)
    message = await agent.reply(answer)
    assert (message.get_text_content(), message.finished_reason) == ("No.", "guardrail")
    assert len(agent.model.calls) == 1
    assert SECRET not in agent.state.model_dump_json()


@pytest.mark.parametrize("made", [call("1", f"{SECRET}"), call("1", "add", a=SECRET), call("1", "look")])
async def test_what_is_said_of_calls_that_were_not_run_is_judged(made):
    agent = agent_of([[made], "done"], look, middlewares=[HIDE, Deny()])
    await agent.reply("go")
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert SECRET not in result.output[0].text


async def test_an_external_result_is_judged():
    agent = agent_of([[call("1", "elsewhere")], "done"], Elsewhere(), middlewares=[HIDE])
    question = await agent.reply("go")
    [block] = question.get_content_blocks("tool_call")
    await agent.reply(ExternalExecutionResultEvent(question.id, [ToolResultBlock(block.id, block.name, f"a {SECRET}")]))
    assert "a ***" in sent(agent)
    assert SECRET not in sent(agent) + agent.state.model_dump_json()


async def test_a_hint_that_a_tool_emits_is_judged():
    agent = agent_of([[call("1", "look")], "done"], look, middlewares=[HIDE])
    await agent.reply("go")
    assert "mind ***" in sent(agent)
    assert SECRET not in sent(agent) + agent.state.model_dump_json()


async def test_guards_of_calls_see_the_defaults_of_a_tool():
    seen: list[Any] = []

    async def pay(amount: int, currency: str = "EUR") -> str:
        return "paid"

    guardrail = GuardrailMiddleware(tool_call=lambda value, agent: seen.append(value.arguments))
    agent = agent_of([[call("1", "pay", amount=3)], "done"], pay, middlewares=[guardrail])
    await agent.reply("go")
    assert seen == [{"amount": 3, "currency": "EUR"}]


async def test_a_denial_of_its_own_is_not_judged_again():
    judged: list[str] = []
    guardrail = GuardrailMiddleware(
        tool_call=lambda value, agent: "no", tool_result=lambda value, agent: judged.append(value)
    )
    agent = agent_of([[call("1", "look")], "done"], look, middlewares=[guardrail])
    await agent.reply("go")
    assert judged == []


@pytest.mark.parametrize("parallel", [True, False])
async def test_a_replaced_input_is_the_only_text_there_is(parallel):
    # A judge beside the model may be the later one: the model is asked again then.
    agent = agent_of(["one"] * 4, middlewares=[GuardrailMiddleware(input=hide_secret, parallel=parallel)])
    await agent.reply(f"tell {SECRET}")
    await agent.reply("and?")
    assert agent.state.context[0].get_text_content() == "tell ***"
    assert SECRET not in agent.state.model_dump_json()


async def test_each_input_is_judged_once_before_the_model_is_asked():
    seen: list[str] = []

    def watch(value: str, agent: Any) -> Replace | None:
        seen.append(value)
        return Replace("b") if value == "a" else None

    agent = agent_of(["one", "two"], middlewares=[GuardrailMiddleware(input=watch, parallel=False)])
    await agent.reply("a")
    await agent.observe("c")
    await agent.reply("d")
    assert seen == ["a", "d", "c"]
