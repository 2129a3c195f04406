"""What layers may do to a reply, and what the loop makes of it."""

import logging

import anyio
import pytest

from agentrt import Agent, MiddlewareBase, Msg, Toolkit
from agentrt.agent import ReActConfig
from agentrt.errors import ChainContractError, ChainError, MissingTerminalError, UsageError
from agentrt.event import CustomEvent, ModelCallRetryEvent, ReplyEndEvent, ToolResultTextDeltaEvent
from agentrt.message import AssistantMsg, HintBlock, TextBlock, ToolCallBlock, ToolResultState
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.tool import FunctionTool, ToolContext
from agentrt.types import ToolChunk, ToolResponse
from tests.loop.helpers import AgainReply, AgainRound, add, agent_of, call, items_of, order_of, rebuilt, short


async def test_a_short_circuit_is_announced_and_kept_with_its_input():
    class Closed(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            yield AssistantMsg("door", "We are closed.")

    agent = agent_of([], middlewares=[Closed()])
    assert await order_of(agent) == "RS TX_START TX_DELTA TX_END RE(completed) Msg"
    assert [message.get_text_content() for message in agent.state.context] == ["go", "We are closed."]
    assert agent.state.last_reply.finished_reason == "completed"


async def test_a_reply_without_a_final_message_names_hook_and_layers():
    class Swallow(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                if not isinstance(item, Msg):
                    yield item

    agent = agent_of(["hello"], middlewares=[Swallow()])
    with pytest.raises(MissingTerminalError, match=r"on_reply must end with one Msg, but .* its layers are Swallow"):
        await agent.reply("go")


async def test_an_end_that_a_layer_swallows_is_supplied_once():
    class Swallow(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                if not isinstance(item, ReplyEndEvent):
                    yield item

    class Double(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item
                if isinstance(item, ReplyEndEvent):
                    yield item

    for layer in (Swallow(), Double()):
        names = [short(item) for item in await items_of(agent_of(["hello"], middlewares=[layer]))]
        assert names.count("RE(completed)") == 1
        assert names[-2:] == ["RE(completed)", "Msg"]


async def test_an_error_of_a_layer_is_raised_after_one_end():
    class Early(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            raise ValueError("early")
            yield

    class Late(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item
            raise ValueError("late")

    for layer, ends in ((Early(), ["RS", "RE(error)"]), (Late(), ["ME", "RE(completed)"])):
        names = []
        with pytest.raises(ValueError, match=r"early|late") as caught:
            async for item in agent_of(["hello"], middlewares=[layer]).reply_stream("go"):
                names.append(short(item))
        assert names[-2:] == ends
        assert len(caught.value.__notes__) == 1


async def test_a_reply_that_a_layer_starts_again_counts_once():
    agent = agent_of([["half ", ConnectionError("cut")], "whole"], middlewares=[AgainReply()])
    items = await items_of(agent)
    assert [message.role for message in agent.state.context] == ["user", "assistant"]
    assert agent.state.context[-1].get_text_content() == "whole"
    assert rebuilt(items) == agent.state.context[-1]
    assert [short(item) for item in items].count("RS") == 1


async def test_a_reply_started_again_forgets_output_of_running_tools():
    class Again(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for event in next_handler(**input_kwargs):
                yield event
                if isinstance(event, ToolResultTextDeltaEvent):
                    agent.run.emit(CustomEvent("stays"))
                    break
            async for event in next_handler(**input_kwargs):
                yield event

    calls = [call("1", "add", a=1, b=2), call("2", "add", a=3, b=4)]
    agent = agent_of([calls, "done"], add, middlewares=[Again()])
    items = await items_of(agent)
    assert rebuilt(items) == agent.state.context[-1]
    assert [short(item) for item in items].count("stays") == 1
    assert agent.state.context[-1].get_text_content() == "done"


async def test_a_round_that_a_layer_starts_again_shows_no_text_twice():
    agent = agent_of([["half ", ConnectionError("cut")], "whole"], middlewares=[AgainRound()])
    items = await items_of(agent)
    assert rebuilt(items) == agent.state.context[-1]
    assert agent.state.context[-1].get_text_content() == "whole"


async def test_an_attempt_discarded_in_mid_stream_names_its_blocks():
    class Retry(MiddlewareBase):
        emits = True

        async def on_model_call(self, agent, input_kwargs, next_handler):
            async def stream():
                try:
                    async for response in await next_handler():
                        yield response
                except ConnectionError:
                    agent.run.emit(ModelCallRetryEvent("cut"))
                    async for response in await next_handler():
                        yield response

            return stream()

    agent = agent_of([["half ", ConnectionError("cut")], "whole answer"], middlewares=[Retry()])
    items = await items_of(agent)
    announced = next(item for item in items if isinstance(item, ModelCallRetryEvent))
    assert len(announced.block_ids) == 1
    assert rebuilt(items) == agent.state.context[-1]
    assert items[-1].get_text_content() == "whole answer"


async def test_the_naive_fallback_of_a_user_works():
    class Fallback(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            try:
                return await next_handler()
            except RuntimeError:
                return await next_handler(current_model=ScriptedChatModel(["from the second"]))

    agent = agent_of([RuntimeError("down")], middlewares=[Fallback()])
    assert (await agent.reply("go")).get_text_content() == "from the second"


async def test_a_message_in_on_reasoning_stands_for_the_models_answer():
    class Cached(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            yield AssistantMsg("cache", "I knew that.")

    agent = agent_of([], middlewares=[Cached()])
    items = await items_of(agent)
    assert " ".join(short(item) for item in items) == "RS TX_START TX_DELTA TX_END RE(completed) Msg"
    assert items[-1].get_text_content() == "I knew that."
    assert rebuilt(items) == agent.state.context[-1]


async def test_what_leaves_on_reasoning_is_what_the_conversation_keeps():
    class Shout(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for event in next_handler():
                if short(event) == "TX_DELTA":
                    event.delta = event.delta.upper()
                yield event

    agent = agent_of(["hello you"], middlewares=[Shout()])
    assert (await agent.reply("go")).get_text_content() == "HELLO YOU"
    assert agent.state.context[-1].get_text_content() == "HELLO YOU"


async def test_a_hint_asks_for_another_round_instead_of_the_end():
    class Check(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                if short(item) == "ME" and not agent.run.scratch(self):
                    agent.run.scratch(self)["asked"] = True
                    agent.run.continue_with("Are you sure?")
                yield item

    agent = agent_of(["It is 4.", "It is 5."], middlewares=[Check()])
    items = await items_of(agent)
    order = " ".join(short(item) for item in items)
    assert order.count("RE(completed)") == 1
    assert "ME HINT_BLOCK MS" in order
    assert items[-1].get_text_content() == "It is 5."
    assert rebuilt(items) == agent.state.context[-1]
    sent = agent.model.calls[1].messages[-1]
    assert [block.type for block in sent.content] == ["text", "hint"]
    assert isinstance(sent.content[1], HintBlock)


async def test_hints_do_not_go_beyond_the_rounds_of_a_reply():
    class Nag(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                if short(item) == "ME":
                    agent.run.continue_with("again")
                yield item

    agent = agent_of(["a", "b", "c", "d"], middlewares=[Nag()], react_config=ReActConfig(max_iters=2))
    assert (await agent.reply("go")).finished_reason == "exceed_max_iters"
    assert len(agent.model.calls) == 3


async def test_a_hint_after_the_end_is_refused_and_so_is_another_round():
    class TooLate(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                if isinstance(item, ReplyEndEvent):
                    with pytest.raises(UsageError, match="continue_with\\(\\) came after the end"):
                        agent.run.continue_with("more")
                yield item
            async for item in next_handler():
                yield item

    with pytest.raises(ChainError, match=r"after the reply had ended: .* agent\.run\.continue_with\(hint\)"):
        await agent_of(["a", "b"], middlewares=[TooLate()]).reply("go")


@pytest.mark.parametrize("hook", ["on_model_call", "on_system_prompt", "on_acting", "tool"])
async def test_an_emitted_event_is_seen_while_its_emitter_waits(hook):
    seen = anyio.Event()

    async def announce_and_wait(emit) -> None:
        emit(CustomEvent("waiting"))
        await seen.wait()

    class OnModelCall(MiddlewareBase):
        emits = True

        async def on_model_call(self, agent, input_kwargs, next_handler):
            await announce_and_wait(agent.run.emit)
            return await next_handler()

    class OnSystemPrompt(MiddlewareBase):
        emits = True

        async def on_system_prompt(self, agent, current_prompt):
            await announce_and_wait(agent.run.emit)
            return current_prompt

    class OnActing(MiddlewareBase):
        emits = True

        async def on_acting(self, agent, input_kwargs, next_handler):
            await announce_and_wait(agent.run.emit)
            async for item in next_handler():
                yield item

    async def work(context: ToolContext) -> str:
        if hook == "tool":
            await announce_and_wait(context.emit)
        return "done"

    layers = {"on_model_call": [OnModelCall()], "on_system_prompt": [OnSystemPrompt()], "on_acting": [OnActing()]}
    agent = agent_of([[call("1", "work")], "done"], work, middlewares=layers.get(hook, []))
    numbers = []
    async with agent.reply_stream("go") as events:
        async for event in events:
            numbers.append(event.seq)
            if short(event) == "waiting":
                seen.set()
    assert seen.is_set()
    assert numbers == list(range(1, len(numbers) + 1))


async def test_a_plain_function_in_its_thread_may_emit_too():
    def work(context: ToolContext) -> str:
        for step in range(3):
            context.emit(CustomEvent(f"step {step}"))
        return "done"

    agent = agent_of([[call("1", "work")], "done"], work)
    names = [short(item) for item in await items_of(agent)]
    assert [name for name in names if name.startswith("step")] == ["step 0", "step 1", "step 2"]


async def test_emitting_after_the_end_is_refused():
    kept = []

    class Keep(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            kept.append(agent.run)
            async for item in next_handler():
                yield item

    await agent_of(["hello"], middlewares=[Keep()]).reply("go")
    with pytest.raises(UsageError, match=r"CUSTOM was emitted after the reply .* had ended"):
        kept[0].emit(CustomEvent("late"))


async def test_an_acting_layer_may_answer_in_the_tools_place():
    class Answer(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            yield ToolResponse([TextBlock("cached")])

    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add, middlewares=[Answer()])
    await agent.reply("go")
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].output[0].text == "cached"


async def test_a_lost_tool_response_becomes_an_error_result(caplog):
    class Lose(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            async for _ in next_handler():
                pass
            return
            yield

    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add, middlewares=[Lose()])
    with caplog.at_level(logging.ERROR, "agentrt"):
        assert (await agent.reply("go")).get_text_content() == "done"
    result = agent.state.context[-1].get_content_blocks("tool_result")[0]
    assert result.state is ToolResultState.ERROR
    assert "on_acting must end with one ToolResponse" in caplog.text
    assert "Lose" in caplog.text


async def test_items_after_a_tool_response_are_dropped_with_a_warning(caplog):
    class Chatty(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item
            yield ToolChunk([TextBlock("and another thing")])

    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add, middlewares=[Chatty()])
    with caplog.at_level(logging.WARNING, "agentrt"):
        await agent.reply("go")
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].output[0].text == "3"
    assert "it was dropped" in caplog.text


async def pieces():
    yield "a"
    yield {"n": 1}


async def give() -> object:
    return pieces()


class Passes(MiddlewareBase):
    async def on_acting(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item


@pytest.mark.parametrize("layers", [[], [Passes()]], ids=["no layer", "a layer"])
@pytest.mark.parametrize("calls", [1, 2])
async def test_a_tool_that_returns_a_generator_streams_in_a_reply(calls, layers):
    agent = agent_of([[call(str(n), "give") for n in range(calls)], "done"], give, middlewares=layers)
    names = [short(item) for item in await items_of(agent)]
    for n in range(calls):
        assert [name for name in names if name.startswith("RESULT") and f":{n}" in name] == [
            f"RESULT_START:{n}",
            *[f"RESULT_DELTA:{n}"] * 2,
            f"RESULT_END:{n}(success)",
        ]
    for result in agent.state.context[-1].get_content_blocks("tool_result"):
        assert [block.text for block in result.output] == ["a", '{"n":1}']


async def test_a_rewritten_result_replaces_what_was_streamed():
    async def count() -> object:
        yield "1 "
        yield "2 secret"

    class Redact(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                if isinstance(item, ToolResponse):
                    item = ToolResponse([TextBlock("1 2 [redacted]")], item.state)
                yield item

    agent = agent_of([[call("1", "count")], "done"], count, middlewares=[Redact()])
    items = await items_of(agent)
    assert rebuilt(items) == agent.state.context[-1]
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].output[0].text == "1 2 [redacted]"


@pytest.mark.parametrize("text", ['{"a": 1}', '{"a": 1, "b": "x"}', '{"a": 1', '{"a": 1, "b": 2, "b": 3}'])
async def test_a_call_that_a_layer_puts_in_its_place_is_checked_again(text):
    class Replace(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            async for item in next_handler(tool_call=ToolCallBlock("1", "add", text)):
                yield item

    class Mutate(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            input_kwargs["tool_call"].input = text
            async for item in next_handler():
                yield item

    for layer in (Replace(), Mutate()):
        agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add, middlewares=[layer])
        await agent.reply("go")
        result = agent.state.context[-1].get_content_blocks("tool_result")[0]
        assert result.state is ToolResultState.ERROR
        assert "add was not run" in result.output[0].text


async def test_a_wrong_item_fails_the_reply_and_names_hook_and_layers():
    class Wrong(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            yield "text"

    agent = agent_of([], middlewares=[Wrong()])
    with pytest.raises(ChainContractError) as caught:
        await agent.reply("go")
    assert str(caught.value) == (
        "on_reasoning passes on AgentEvent or Msg, but 'text' came out of it; its layers are Wrong"
    )


async def test_a_model_that_returns_something_else_is_named():
    class Model(ScriptedChatModel):
        async def _call(self, messages, tools, tool_choice):
            return "text"

    agent = agent_of([])
    agent.model = Model([], model="mine")
    with pytest.raises(ChainContractError, match="model 'mine' returned 'text': return a ChatResponse, or an"):
        await agent.reply("go")


async def test_streamed_or_not_a_layer_sees_one_contract():
    class Count(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for event in next_handler():
                kinds.append(short(event))
                yield event

    order = []
    for response in ("hello", ChatResponse([TextBlock("hello")])):
        kinds: list[str] = []
        await agent_of([response], middlewares=[Count()]).reply("go")
        order.append(kinds)
    assert order[0] == order[1]


class BringsATool(MiddlewareBase):
    def list_tools(self):
        return [FunctionTool(add, name="add_too")]


@pytest.mark.parametrize("place", ["toolkit", "agent.toolkit"])
@pytest.mark.parametrize("structured_schema", [None, {"type": "object", "properties": {}}])
@pytest.mark.parametrize("middlewares", [[], [BringsATool()]], ids=["alone", "beside tools of a middleware"])
async def test_a_tool_registered_later_is_offered_and_runs(middlewares, structured_schema, place):
    kit = Toolkit()

    def register(messages, tools):
        (agent.toolkit if place == "agent.toolkit" else kit).register_tool_function(add)
        return [call("0", "add", a=0, b=0)]

    final = [call("2", "GenerateStructuredOutput")] if structured_schema else "5"
    model = ScriptedChatModel([register, [call("1", "add", a=2, b=3)], final, "5"])
    agent = Agent("tester", "", model, kit, middlewares)
    await agent.reply("2 + 3?", structured_schema)
    offered = [[tool["function"]["name"] for tool in made.tools] for made in model.calls]
    assert "add" not in offered[0]
    assert all("add" in names for names in offered[1:3])
    results = agent.state.context[-1].get_content_blocks("tool_result")
    assert [result.output[0].text for result in results[:2]] == ["0", "5"]


async def test_a_tool_of_a_middleware_is_offered_and_explained():
    class Calculator(MiddlewareBase):
        def list_tools(self):
            return [add]

    agent = agent_of([[call("1", "add", a=2, b=3)], "5"], middlewares=[Calculator()])
    await agent.reply("2 + 3?")
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].output[0].text == "5"
    assert "Tools of Calculator: add" in agent.explain()
