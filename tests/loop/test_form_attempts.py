"""Answers that do not fit their form: how many there may be, and how the reply ends after them."""

import json
from collections.abc import Awaitable
from typing import Any

import pytest

from agentrt import Agent, AgentState, MiddlewareBase
from agentrt.agent import ReActAgent, ReActConfig
from agentrt.errors import ConfigError, StructuredOutputError
from agentrt.message import AssistantMsg, Msg, ToolCallBlock
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.state import InMemoryStateStore, StructuredTask
from agentrt.types import STRUCTURED_OUTPUT
from tests.loop.helpers import Even, Passing, add, agent_of, call, elsewhere, items_with, rebuilt


def answer(call_id: str = "1", /, **given: Any) -> ToolCallBlock:
    return ToolCallBlock(call_id, STRUCTURED_OUTPUT, json.dumps(given))


def odd(number: int) -> list[ToolCallBlock]:
    return [answer(str(number), n=number * 2 + 1)]


async def failing(reply: Awaitable[Msg]) -> Msg:
    """Await a reply that gives no answer of its form, and return its message."""
    with pytest.raises(StructuredOutputError) as caught:
        await reply
    message = caught.value.final_message
    assert message.error in str(caught.value)
    return message


WORDS = "none of 3 answers fits the structured_schema; the last one: it is in words"
MISFIT = "none of 3 answers fits the structured_schema; the last one: n: Value error, it must be even"


@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        ([odd(1), odd(2), odd(3)], MISFIT, "I could not give an answer in the form that was asked for."),
        (["It is one.", "One.", "One, I say."], WORDS, "One, I say."),
        (["It is one.", odd(2), odd(3)], MISFIT, "I could not give an answer in the form that was asked for."),
    ],
)
async def test_a_reply_ends_after_three_answers_that_do_not_fit(script, error, text):
    agent = agent_of([*script, "next"], state_store=InMemoryStateStore())
    *events, message = await items_with(agent, Even)
    end = events[-1]
    assert (end.finished_reason, end.error, end.structured_output) == ("exceed_max_form_attempts", error, None)
    assert (message.finished_reason, message.error) == (end.finished_reason, error)
    assert (message.structured_output, message.get_text_content()) == (None, text)
    outcome = agent.state.last_reply
    assert (outcome.finished_reason, outcome.error) == (end.finished_reason, error)
    assert len(agent.model.calls) == 3
    assert rebuilt(events) == agent.state.context[-1]
    agent = elsewhere(agent)
    again = await failing(agent.reply("go", Even, reply_id=message.id))
    assert (again.finished_reason, again.error) == (message.finished_reason, error)
    assert (await agent.reply("and now?")).get_text_content() == "next"


async def test_the_error_names_what_a_schema_refuses():
    agent = agent_of([[answer("1", n="one")], [answer("2")], [ToolCallBlock("3", STRUCTURED_OUTPUT, '{"n": 1')]])
    agent.react_config = ReActConfig(max_form_attempts=2)
    message = await failing(agent.reply("go", Even))
    assert message.error.startswith("none of 2 answers fits the structured_schema; the last one: ")
    assert "'n'" in message.error
    assert len(agent.model.calls) == 2


async def test_one_attempt_may_be_all():
    agent = agent_of(["words"], react_config=ReActConfig(max_form_attempts=1))
    message = await failing(agent.reply("go", Even))
    assert message.error == "the answer does not fit the structured_schema: it is in words"
    assert len(agent.model.calls) == 1


class Own(Agent):
    async def reply(self, inputs=None, structured_schema=None):
        return await super().reply(inputs, structured_schema)


MAKERS = {
    "unseen": lambda model, **options: Agent("a", model=model, **options),
    "streamed": lambda model, **options: Agent("a", model=model, middlewares=[Passing()], **options),
    "own": lambda model, **options: Own("a", model=model, **options),
    "react": lambda model, **options: ReActAgent("a", "", model, **options),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
async def test_every_way_to_reply_raises_or_returns_as_configured(make):
    message = await failing(make(ScriptedChatModel(["words"] * 3)).reply("go", Even))
    returning = make(ScriptedChatModel(["words"] * 3), react_config=ReActConfig(raise_form_errors=False))
    again = await returning.reply("go", Even)
    assert message.finished_reason == again.finished_reason == "exceed_max_form_attempts"


async def test_used_up_rounds_say_what_did_not_fit():
    calls = [[call(str(number), "add", a=1, b=1)] for number in range(9)]
    agent = agent_of([odd(9), *calls], add, react_config=ReActConfig(max_iters=1))
    *events, message = await items_with(agent, Even)
    error = "the answer does not fit the structured_schema: n: Value error, it must be even"
    assert (message.finished_reason, message.error) == ("exceed_max_iters", error)
    assert (events[-1].finished_reason, events[-1].error) == ("exceed_max_iters", error)
    assert (await agent_of(calls, add, react_config=ReActConfig(max_iters=1)).reply("go", Even)).error is None


async def test_the_last_attempt_may_fit():
    agent = agent_of([odd(1), "words", [answer("3", n=4)]])
    message = await agent.reply("go", Even)
    assert (message.structured_output, message.finished_reason, message.error) == (Even(n=4), "completed", None)


async def test_calls_of_other_tools_are_no_attempts():
    calls = [[call(str(number), "add", a=1, b=1)] for number in range(5)]
    agent = agent_of([*calls, odd(7), "words", ["so", call("8", "add", a=1, b=1)], [answer("9", n=2)]], add)
    assert (await agent.reply("go", Even)).structured_output == Even(n=2)


async def test_a_pause_of_the_provider_is_no_attempt():
    pauses = [ChatResponse([*AssistantMsg("", "still at it").get_content_blocks()], finished_reason="pause")] * 4
    agent = agent_of([*pauses, [answer("9", n=2)]])
    assert (await agent.reply("go", Even)).structured_output == Even(n=2)


async def test_another_round_has_its_own_attempts():
    class Doubt(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            scratch = agent.run.scratch(self)
            scratch["calls"] = scratch.get("calls", 0) + 1
            if scratch["calls"] == 3:
                agent.run.continue_with("Are you sure?")
            return await next_handler()

    agent = agent_of([odd(1), odd(2), [answer("3", n=2)], odd(4), odd(5), [answer("6", n=4)]], middlewares=[Doubt()])
    assert (await agent.reply("go", Even)).structured_output == Even(n=4)


async def test_a_reply_that_begins_again_has_its_own_attempts():
    class Again(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            count = 0
            async for item in next_handler():
                yield item
                count += getattr(item, "type", "") == "TOOL_RESULT_END"
                if count == 2:
                    break
            async for item in next_handler():
                yield item

    agent = agent_of([odd(1), odd(2), odd(3), odd(4), [answer("5", n=4)]], middlewares=[Again()])
    assert (await agent.reply("go", Even)).structured_output == Even(n=4)


@pytest.mark.parametrize("killed_after", [1, 2])
@pytest.mark.parametrize("kind", [Even, {"type": "object", "properties": {"n": {"const": 2}}, "required": ["n"]}])
async def test_attempts_are_counted_across_a_kill(kind, killed_after):
    store = InMemoryStateStore()
    saved: list[str] = []

    async def killed(messages, tools):
        saved.append((await store.load(agent.state.session_id)).model_dump_json())
        return "never seen"

    agent = agent_of([*[odd(number) for number in range(killed_after)], killed, odd(8), odd(9)], state_store=store)
    await failing(agent.reply("go", kind))
    left = agent_of([odd(number) for number in range(10, 13)]).with_state(AgentState.model_validate_json(saved[0]))
    message = await failing(left.reply(None, kind))
    assert message.finished_reason == "exceed_max_form_attempts"
    assert len(left.model.calls) == 3 - killed_after


def test_a_task_that_an_older_version_saved_is_read():
    state = AgentState.model_validate_json(
        '{"reply_context": {"reply_id": "r", "message": {"name": "a", "content": [], "role": "assistant"}, '
        '"max_iters": 5, "structured": {"schema": {"type": "object"}, "output": null}}}'
    )
    assert state.reply_context.structured == StructuredTask({"type": "object"}, max_attempts=3)


@pytest.mark.parametrize("number", [0, -1, 1.5, "3", True, None])
def test_max_form_attempts_is_a_whole_number_from_1_up(number):
    with pytest.raises(ConfigError, match=r"ReActConfig\(max_form_attempts=...\) must be a whole number"):
        ReActConfig(max_form_attempts=number)
