"""`agent.run.stop`: a layer or a tool ends the reply, for a reason that it gives."""

import pytest

from agentrt import AgentBase
from agentrt.errors import UsageError
from agentrt.hooks import MiddlewareBase
from agentrt.message import AssistantMsg, ToolResultBlock
from agentrt.middleware import ModelFallbackMiddleware, RetryMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.tool import ToolContext
from tests.loop.helpers import add, agent_of, call


class StopInReasoning(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        agent.run.stop("exceed_budget", "The budget is used up.")
        yield


class StopAfterReasoning(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item
        agent.run.stop("exceed_budget", "The budget is used up.")


class StopInModelCall(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        agent.run.stop("exceed_budget", "The budget is used up.")


class StopInBackground(StopInModelCall):
    emits = True


class StopInActing(MiddlewareBase):
    async def on_acting(self, agent, input_kwargs, next_handler):
        agent.run.stop("exceed_budget", "The budget is used up.")
        yield


LAYERS = [StopInReasoning, StopAfterReasoning, StopInModelCall, StopInBackground, StopInActing]


async def stream(agent):
    events = [event async for event in agent.reply_stream("go", yield_final_msg=True)]
    assert events[-2].finished_reason == "exceed_budget"
    return events[-1]


async def ask(agent):
    return await agent.reply("go")


@pytest.mark.parametrize("read", [ask, stream])
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("layer", LAYERS)
async def test_a_layer_stops_the_reply_with_its_reason(layer, calls, read):
    script = [[call(str(number), "add", a=1, b=2) for number in range(calls)], "done"]
    agent = agent_of(script, add, middlewares=[RetryMiddleware(), layer()])
    message = await read(agent)
    assert (message.finished_reason, message.get_text_content()) == ("exceed_budget", "The budget is used up.")
    assert agent.state.last_reply.finished_reason == "exceed_budget"
    results = [block for kept in agent.state.context for block in kept.get_content_blocks("tool_result")]
    assert all(isinstance(result, ToolResultBlock) and result.state == "interrupted" for result in results)
    assert agent.state.reply_context is None


async def test_a_fallback_does_not_take_a_stop():
    other = ScriptedChatModel(["never"])
    agent = agent_of(["never"], middlewares=[ModelFallbackMiddleware([other]), StopInModelCall()])
    assert (await agent.reply("go")).finished_reason == "exceed_budget"
    assert other.calls == []


async def test_a_tool_stops_the_reply():
    async def stop(context: ToolContext) -> str:
        context.run.stop("guardrail")

    message = await agent_of([[call("1", "stop")], "done"], stop).reply("go")
    assert message.finished_reason == "guardrail"
    assert message.get_text_content() == "I was stopped by a rule about what I may say or do."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("completed",), "stop\\(\\) takes one of the reasons 'interrupted', .*, not 'completed'"),
        (("no reason",), "not 'no reason'"),
        (("guardrail", 7), "stop\\(message=...\\) must be a str, .* not 7"),
    ],
)
async def test_what_stops_nothing_is_refused(arguments, words):
    class Stop(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            agent.run.stop(*arguments)
            yield

    with pytest.raises(UsageError, match=words):
        await agent_of(["done"], middlewares=[Stop()]).reply("go")


@pytest.mark.parametrize("is_late", [True, False])
async def test_on_reply_stops_nothing(is_late):
    class Stop(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            if not is_late:
                agent.run.stop("guardrail")
            async for item in next_handler():
                yield item
                agent.run.stop("guardrail")

    with pytest.raises(UsageError, match="outside of a step"):
        await agent_of(["done"], middlewares=[Stop()]).reply("go")


async def test_a_custom_agent_has_nothing_to_stop():
    class Echo(AgentBase):
        async def reply(self, msg):
            self.run.stop("guardrail")
            return AssistantMsg(self.name, msg)

    with pytest.raises(UsageError, match="which an agent that writes its own reply does not have"):
        await Echo()("go")
