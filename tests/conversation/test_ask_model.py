"""`agent.run.ask_model`: asking the model something beside the conversation."""

import json
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from agentrt import AgentBase, MiddlewareBase, Msg, UserMsg
from agentrt.agent import ReActConfig
from agentrt.errors import ChainContractError, InvalidInputError, Malformed, RateLimited, UsageError
from agentrt.event import ModelCallRetryEvent
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.middleware import RetryMiddleware, UsageMiddleware
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.state.state import WRAPPER
from agentrt.tool import ToolContext
from agentrt.types import STRUCTURED_OUTPUT
from tests.loop.helpers import add, agent_of, call, items_of, short

QUESTION = [UserMsg("user", "Where?")]


def fill_in(call_id: str, answer: dict[str, Any]) -> ToolCallBlock:
    return ToolCallBlock(call_id, STRUCTURED_OUTPUT, json.dumps(answer))


class City(BaseModel):
    name: str
    people: int = 0


class Asking(MiddlewareBase):
    """Asks before the first round, and keeps what comes of it."""

    def __init__(self, messages: Any = QUESTION, **options: Any) -> None:
        self.arguments = messages, {"purpose": "search", **options}
        self.answer: Any = None
        self.error: Exception | None = None

    async def on_reasoning(self, agent: Any, input_kwargs: Any, next_handler: Any):
        messages, options = self.arguments
        try:
            self.answer = await agent.run.ask_model(messages, **options)
        except Exception as error:
            self.error = error
            raise
        async for item in next_handler():
            yield item


class Watching(MiddlewareBase):
    def __init__(self) -> None:
        self.calls: list[tuple[bool, int, Any]] = []

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        self.calls.append((agent.run.is_internal, len(input_kwargs["tools"]), input_kwargs["tool_choice"]))
        return await next_handler()


@pytest.mark.parametrize("streams", [True, False])
async def test_the_answer_is_a_message_and_no_event_tells_of_it(streams: bool):
    asking, watching = Asking(), Watching()
    agent = agent_of(["In Rome.", "done"], add, middlewares=[asking, watching])
    agent.model.stream = streams
    plain = agent_of(["done"], add)
    plain.model.stream = streams
    items = await items_of(agent)
    assert [short(item) for item in items] == [short(item) for item in await items_of(plain)]
    assert (asking.answer.get_text_content(), asking.answer.role, asking.answer.name) == (
        "In Rome.",
        "assistant",
        "tester",
    )
    assert watching.calls == [(True, 0, None), (False, 1, None)]
    assert agent.model.calls[0].messages == QUESTION
    assert "In Rome." not in str(agent.state)
    assert [item.seq for item in items[:-1]] == list(range(1, len(items)))


async def test_a_tool_may_ask():
    async def look(context: ToolContext) -> str:
        message = await context.agent.run.ask_model(QUESTION, purpose="look")
        return message.get_text_content() or ""

    agent = agent_of([[call("1", "look")], "In Rome.", "done"], look)
    await agent.reply("go")
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].text == "In Rome."


async def test_concurrent_questions_do_not_mark_the_calls_of_others():
    seen: list[tuple[str, bool]] = []

    class Marks(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            is_internal = agent.run.is_internal
            seen.append((input_kwargs["messages"][-1].get_text_content(), is_internal))
            await anyio.lowlevel.checkpoint()
            assert agent.run.is_internal is is_internal
            return await next_handler()

    class Both(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            if agent.run.is_internal:
                return await next_handler()
            async with anyio.create_task_group() as group:
                group.start_soon(self.ask, agent)
                await anyio.lowlevel.checkpoint()
                result = await next_handler()
            assert not agent.run.is_internal
            return result

        async def ask(self, agent: Any) -> None:
            await agent.run.ask_model([UserMsg("user", "aside")], purpose="check")

    agent = agent_of(
        [ChatResponse([TextBlock("one")]), ChatResponse([TextBlock("two")])], middlewares=[Both(), Marks()]
    )
    await agent.reply("go")
    assert sorted(seen) == [("aside", True), ("go", False)]


async def test_another_model_answers_in_place_of_the_agents():
    other = ScriptedChatModel(["from the other"])
    asking = Asking(model=other)
    agent = agent_of(["done"], middlewares=[asking])
    await agent.reply("go")
    assert asking.answer.get_text_content() == "from the other"
    assert len(other.calls) == len(agent.model.calls) == 1


async def test_it_is_counted_in_the_usage():
    usage = UsageMiddleware()
    paid = ChatResponse([TextBlock("In Rome.")], usage=ChatUsage(10, 5))
    asking = Asking()
    agent = agent_of([paid, ChatResponse([TextBlock("done")], usage=ChatUsage(1, 1))], middlewares=[asking, usage])
    await agent.reply("go")
    assert usage.of_reply(agent).calls == 2
    assert usage.total().tokens.input_tokens == 11
    assert asking.answer.usage == ChatUsage(10, 5)


# Answers of a form


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        (City, {"name": "Rome", "people": 3}, City(name="Rome", people=3)),
        (City, {"name": "Rome"}, City(name="Rome")),
        (list[str], {WRAPPER: ["Rome"]}, ["Rome"]),
        ({"type": "object", "properties": {"n": {"type": "integer", "default": 7}}}, {}, {"n": 7}),
    ],
)
async def test_an_answer_of_a_form_is_an_instance(schema: Any, arguments: Any, expected: Any):
    asking, watching = Asking(schema=schema), Watching()
    agent = agent_of([[fill_in("1", arguments)], "done"], add, middlewares=[asking, watching])
    await agent.reply("go")
    assert asking.answer.structured_output == expected
    assert [(internal, tools) for internal, tools, _ in watching.calls] == [(True, 1), (False, 1)]
    assert watching.calls[0][2].mode == STRUCTURED_OUTPUT


async def test_an_answer_that_does_not_fit_is_asked_for_again():
    asking = Asking(schema=City)
    answers = [
        ChatResponse([TextBlock("In Rome.")], usage=ChatUsage(1, 1)),
        ChatResponse([fill_in("1", {"people": "many"})], usage=ChatUsage(1, 1)),
        ChatResponse([fill_in("2", {"name": "Rome"})], usage=ChatUsage(1, 1)),
        "done",
    ]
    agent = agent_of(answers, middlewares=[asking])
    await agent.reply("go")
    assert (asking.answer.structured_output, asking.answer.usage) == (City(name="Rome"), ChatUsage(3, 3))
    (result,) = agent.model.calls[2].messages[-1].get_content_blocks("tool_result")
    assert "name" in result.text


@pytest.mark.parametrize("answer", ["in words", [fill_in("1", {"people": 1})], [call("1", "other")]])
async def test_answers_that_never_fit_raise_malformed(answer: Any):
    asking = Asking(schema=City)
    agent = agent_of([answer] * 2, middlewares=[asking], react_config=ReActConfig(max_form_attempts=2))
    with pytest.raises(Malformed, match="for 'search' that fits its schema, in 2 attempts"):
        await agent.reply("go")


# Limits, and what goes wrong


async def test_an_answer_without_end_is_cut():
    class Endless(ScriptedChatModel):
        async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
            async def pieces() -> Any:
                while True:
                    yield ChatResponse([TextBlock("word ")], is_last=False)

            return pieces()

    asking = Asking(model=Endless([]))
    agent = agent_of(["done"], middlewares=[asking], react_config=ReActConfig(max_output=100))
    await agent.reply("go")
    assert asking.answer.finished_reason == "exceed_max_output"
    assert len(asking.answer.get_text_content()) <= 110


async def test_an_error_of_the_model_leaves_as_it_is():
    agent = agent_of([RateLimited("slow down")], middlewares=[Asking()])
    with pytest.raises(RateLimited):
        await agent.reply("go")


async def test_a_retry_withdraws_nothing_that_the_round_has_said():
    class AskingLate(MiddlewareBase):
        async def on_reasoning(self, agent: Any, input_kwargs: Any, next_handler: Any):
            async for item in next_handler():
                yield item
            await agent.run.ask_model(QUESTION, purpose="check")

    retry = RetryMiddleware(initial_delay=0, max_delay=0)
    agent = agent_of(["said", RateLimited("slow down"), "checked"], middlewares=[AskingLate(), retry])
    items = await items_of(agent)
    assert not any(isinstance(item, ModelCallRetryEvent) for item in items)
    assert agent.state.context[-1].get_text_content() == "said"
    assert len(agent.model.calls) == 3


async def test_a_layer_that_asks_in_its_own_question_is_stopped():
    class Endless(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            await agent.run.ask_model(QUESTION, purpose="again")
            return await next_handler()

    agent = agent_of(["never"], middlewares=[Endless()])
    with pytest.raises(UsageError, match="was called inside 3 other calls"):
        await agent.reply("go")
    assert agent.model.calls == []


async def test_another_agents_reply_in_a_question_is_not_internal():
    watching = Watching()
    judge = agent_of(["fine"], middlewares=[watching])

    class Judging(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            if agent.run.is_internal:
                await judge.reply("Is this fine?")
            return await next_handler()

    await agent_of(["In Rome.", "done"], middlewares=[Asking(), Judging()]).reply("go")
    assert watching.calls == [(False, 0, None)]


@pytest.mark.parametrize(
    ("messages", "options", "says"),
    [
        ("Where?", {}, "takes a list of messages"),
        (UserMsg("user", "Where?"), {}, "takes a list of messages"),
        ([], {}, "at least one"),
        (["Where?"], {}, "takes a list of messages"),
        (None, {}, "takes a list of messages"),
        (QUESTION, {"purpose": ""}, "what the call is for"),
        (QUESTION, {"purpose": None}, "what the call is for"),
        (QUESTION, {"model": "openai:gpt-5-mini"}, "must be a chat model"),
        (QUESTION, {"schema": "City"}, "structured_schema must be a type"),
    ],
)
async def test_what_cannot_be_asked_is_refused(messages: Any, options: Any, says: str):
    agent = agent_of(["done"], middlewares=[Asking(messages, **options)])
    with pytest.raises((UsageError, InvalidInputError), match=says):
        await agent.reply("go")
    assert agent.model.calls == []


async def test_a_layer_that_returns_no_answer_is_named():
    class Silent(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            return None if agent.run.is_internal else await next_handler()

    with pytest.raises(ChainContractError, match="Silent"):
        await agent_of(["done"], middlewares=[Asking(), Silent()]).reply("go")


async def test_a_model_that_returns_no_answer_is_named():
    class Silent(ScriptedChatModel):
        async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
            return None

    with pytest.raises(ChainContractError, match="returned None: return a ChatResponse"):
        await agent_of(["done"], middlewares=[Asking(model=Silent([]))]).reply("go")


async def test_asking_after_the_end_is_refused():
    class Late(MiddlewareBase):
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any):
            async for item in next_handler():
                yield item
            await agent.run.ask_model(QUESTION, purpose="late")

    with pytest.raises(UsageError, match="after the end of the reply"):
        await agent_of(["done"], middlewares=[Late()]).reply("go")


async def test_a_custom_agent_is_told_what_to_do():
    class Echo(AgentBase):
        async def reply(self, msg: Any) -> Msg:
            await self.run.ask_model(QUESTION, purpose="search")
            raise AssertionError

    with pytest.raises(UsageError, match="ask the model itself"):
        await Echo()("go")


async def test_an_interrupt_ends_a_question():
    begun = anyio.Event()

    class Hanging(ScriptedChatModel):
        async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
            begun.set()
            await anyio.sleep_forever()

    agent = agent_of(["done"], middlewares=[Asking(model=Hanging([]))])

    async def stop() -> None:
        await begun.wait()
        agent.interrupt()

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        message = await agent.reply("go")
    assert message.finished_reason == "interrupted"


async def test_a_layer_asks_through_its_own_next_handler():
    """Only the layers inside of it see the call, with its purpose and the model that reached it."""
    seen: list[tuple[str, str | None, bool, str]] = []
    other = ScriptedChatModel(["judged", "done"], model="other")

    class Look(MiddlewareBase):
        def __init__(self, key: str) -> None:
            self.key = key

        async def on_model_call(self, agent, input_kwargs, next_handler):
            run, model = agent.run, input_kwargs["current_model"]
            seen.append((self.key, run.purpose, run.is_internal, model.model))
            return await next_handler(current_model=other)

    class Judge(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            answer = await agent.run.ask_model([UserMsg("user", "?")], purpose="judge", through=next_handler)
            assert answer.get_text_content() == "judged"
            return await next_handler(**input_kwargs)

    agent = agent_of([], middlewares=[Look("outside"), Judge(), Look("inside")])
    assert (await agent.reply("go")).get_text_content() == "done"
    assert seen == [
        ("outside", None, False, "scripted"),
        ("inside", "judge", True, "other"),
        ("inside", None, False, "other"),
    ]


async def test_what_a_question_cannot_go_through_is_refused():
    class Ask(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            await agent.run.ask_model([UserMsg("user", "?")], purpose="judge", through="next_handler")
            yield

    with pytest.raises(UsageError, match="must be the next_handler of on_model_call, not 'next_handler'"):
        await agent_of(["done"], middlewares=[Ask()]).reply("go")
