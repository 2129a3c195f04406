"""A `_reasoning` or `_acting` of one's own in a `ReActAgent`: the innermost layer of its hook."""

import copy
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState, MiddlewareBase, Msg, Toolkit
from agentrt.agent import ReActAgent
from agentrt.errors import ChainContractError, ConfigError, UsageError
from agentrt.message import TextBlock
from agentrt.middleware import RetryMiddleware
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.tool import FunctionTool, ToolChoice
from agentrt.types import ToolResponse
from tests.loop.helpers import add, call, confirmation_of, items_of, order_of, rebuilt

CALLS = [call("1", "add", a=1, b=2), call("2", "add", a=3, b=4)]


class Quiet(ReActAgent):
    """Has the steps of the runtime."""

    def __init__(self, *responses: Any, **options: Any) -> None:
        super().__init__("friday", "Be brief.", ScriptedChatModel(list(responses)), toolkit=Toolkit([add]), **options)
        self.disable_console_output()
        self.log: list[str] = []


class Ported(Quiet):
    """As programs of 1.x override them."""

    async def _reasoning(self, tool_choice=None):
        self.log.append("reasons")
        msg = await super()._reasoning(tool_choice)
        self.log.append(f"said {msg.get_text_content() or [block.name for block in msg.content]}")
        return msg

    async def _acting(self, tool_call):
        self.log.append(f"acts {tool_call.name}")
        response = await super()._acting(tool_call)
        self.log.append(f"got {response.content[0].text}")
        return response


async def test_step_overrides_run_around_those_of_the_runtime():
    agent = Ported(CALLS[:1], "three")
    answer = await agent(Msg("user", "1 + 2?", "user"))
    assert answer.get_text_content() == "three"
    assert agent.log == ["reasons", "said ['add']", "acts add", "got 3", "reasons", "said three"]


async def test_plain_step_overrides_do_not_change_the_stream():
    responses = [CALLS[:1], CALLS[1:], "seven"]
    assert await order_of(Ported(*responses)) == await order_of(Quiet(*responses))


async def test_pieces_are_seen_before_a_step_override_ends():
    end = anyio.Event()

    class Waits(Ported):
        async def _reasoning(self, tool_choice=None):
            msg = await super()._reasoning(tool_choice)
            await end.wait()
            return msg

    async with Waits("one two").reply_stream("go") as events:
        async for event in events:
            if event.type == "MODEL_CALL_END":
                end.set()
    assert end.is_set()


async def test_the_override_is_the_innermost_layer():
    order: list[str] = []

    class Layer(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            order.append("layer")
            async for item in next_handler():
                yield item

    class Notes(Ported):
        async def _reasoning(self, tool_choice=None):
            order.append("override")
            return await super()._reasoning(tool_choice)

    agent = Notes("hi", middlewares=[Layer()])
    agent.register_instance_hook("pre_reasoning", "note", lambda self, kwargs: order.append("hook"))
    await agent.reply("go")
    assert order == ["layer", "hook", "override"]
    assert "test_step_override.py" in agent.explain()


@pytest.mark.parametrize("how", ["another", "in place", "alone"])
async def test_what_a_reasoning_override_says_instead_is_announced(how):
    class Polite(Ported):
        async def _reasoning(self, tool_choice=None):
            if how == "alone":
                return Msg(self.name, "please", "assistant")
            msg = await super()._reasoning(tool_choice)
            if how == "another":
                return Msg(self.name, "please", "assistant")
            msg.content = [TextBlock("please")]
            return msg

    agent = Polite("rude")
    items = await items_of(agent)
    assert items[-1].get_text_content() == "please"
    assert agent.state.context[-1].get_text_content() == "please"
    assert rebuilt(items).get_text_content() == "please"


async def test_the_last_answer_of_two_in_a_round_counts():
    class Twice(Ported):
        async def _reasoning(self, tool_choice=None):
            await super()._reasoning(tool_choice)
            return await super()._reasoning(tool_choice)

    items = await items_of(Twice("one", "two"))
    assert items[-1].get_text_content() == rebuilt(items).get_text_content() == "two"


async def test_none_leaves_what_super_gave():
    class Silent(Ported):
        async def _reasoning(self):
            await super()._reasoning()

        async def _acting(self, tool_call):
            await super()._acting(tool_call)

    agent = Silent(CALLS, "seven")
    assert (await agent.reply("go")).get_text_content() == "seven"
    results = agent.state.context[-1].get_content_blocks("tool_result")
    assert [result.output[0].text for result in results] == ["3", "7"]


async def test_a_plain_mode_reaches_the_model_as_a_choice():
    class NoTools(Ported):
        async def _reasoning(self, tool_choice=None):
            return await super()._reasoning("none")

    agent = NoTools("hi")
    await agent.reply("go")
    assert agent.model.calls[0].tool_choice == ToolChoice("none")


async def test_super_without_arguments_keeps_the_choice_of_the_round():
    class Bare(Quiet):
        async def _reasoning(self):
            return await super()._reasoning()

    agent = Bare(CALLS[:1], "three", max_iters=1)
    await agent.reply("go")
    assert [made.tool_choice for made in agent.model.calls] == [None, ToolChoice("none")]


async def test_an_acting_override_may_answer_without_the_tool():
    class Cached(Ported):
        async def _acting(self, tool_call):
            return ToolResponse([TextBlock("from the cache")])

    agent = Cached(CALLS[:1], "done")
    await agent.reply("go")
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert result.output[0].text == "from the cache"


async def test_a_message_from_an_acting_override_ends_the_reply():
    class Ends(Ported):
        async def _acting(self, tool_call):
            await super()._acting(tool_call)
            return Msg(self.name, "that is all", "assistant")

    assert (await Ends(CALLS[:1], "never").reply("go")).get_text_content() == "that is all"


async def test_a_streaming_tool_streams_through_an_acting_override():
    async def count():
        for number in "12":
            yield number

    agent = Ported([call("1", "count")], "done")
    agent.toolkit.register_tool_function(FunctionTool(count))
    assert "RESULT_DELTA:1" in await order_of(agent)
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert "".join(block.text for block in result.output) == "12"


async def test_an_error_of_a_step_override_leaves_the_reply():
    class Fails(Ported):
        async def _reasoning(self, tool_choice=None):
            await super()._reasoning(tool_choice)
            raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        await Fails("one").reply("go")


async def test_an_interrupt_stops_a_step_override():
    waits = anyio.Event()

    class Waits(Ported):
        async def _reasoning(self, tool_choice=None):
            try:
                waits.set()
                await anyio.sleep_forever()
            finally:
                self.log.append("stopped")

    agent = Waits("never")
    async with anyio.create_task_group() as group:
        group.start_soon(agent.reply, "go")
        await waits.wait()
        agent.interrupt()
    assert agent.log == ["stopped"]
    assert agent.state.last_reply.finished_reason == "interrupted"


@pytest.mark.parametrize("step", ["_reasoning", "_acting"])
async def test_a_result_of_a_wrong_type_names_the_method(step):
    async def wrong(self, value=None):
        return 5

    agent = type("Wrong", (Ported,), {step: wrong})(CALLS[:1], "done")
    with pytest.raises(
        ChainContractError, match=rf"^Wrong\.{step}\(\) must return a \w+, as super\(\)\.{step}\(\) does"
    ):
        await agent.reply("go")


async def test_a_step_called_outside_of_a_reply_is_an_error():
    agent = Ported("never")
    with pytest.raises(UsageError, match=r"super\(\)._reasoning\(\) of 'friday' was called outside of its own"):
        await agent._reasoning()


def test_a_step_that_cannot_be_called_is_refused_at_construction():
    async def nothing(self):
        """Take no call."""

    async def stream(self, tool_call):
        yield tool_call

    for method, words in ((nothing, r"write `async def _acting\(self, tool_call\)`"), (stream, "but it yields")):
        with pytest.raises(ConfigError, match=words):
            type("Wrong", (Ported,), {"_acting": method})()


def test_a_step_of_an_agent_that_is_not_a_react_agent_is_refused():
    async def _reasoning(self, tool_choice=None):
        """Never run."""

    with pytest.raises(ConfigError, match="derive from ReActAgent"):
        type("Wrong", (Agent,), {"_reasoning": _reasoning})("x", model=ScriptedChatModel([]))


async def test_a_reasoning_override_sees_a_retried_stream_once():
    said: list[Any] = []

    class Listens(Ported):
        async def _reasoning(self, tool_choice=None):
            msg = await super()._reasoning(tool_choice)
            said.append(msg.get_text_content())
            return msg

    broken = [ChatResponse([TextBlock("half")], is_last=False), ConnectionError("cut")]
    items = await items_of(Listens(broken, "whole", middlewares=[RetryMiddleware(initial_delay=0)]))
    assert said == ["whole"]
    assert rebuilt(items).get_text_content() == items[-1].get_text_content() == "whole"


async def test_a_reader_that_leaves_stops_a_step_override():
    class Waits(Ported):
        async def _reasoning(self, tool_choice=None):
            try:
                msg = await super()._reasoning(tool_choice)
                await anyio.sleep_forever()
                return msg
            finally:
                self.log.append("stopped")

    agent = Waits("one two")
    async with agent.reply_stream("go") as events:
        async for event in events:
            if event.type == "MODEL_CALL_END":
                break
    assert agent.log[-1] == "stopped"


@pytest.mark.parametrize(
    "another", [copy.copy, copy.deepcopy, lambda agent: agent.with_state(AgentState())], ids=["copy", "deep", "state"]
)
async def test_another_conversation_has_the_steps_of_its_class(another):
    agent = another(Ported(CALLS[:1], "three"))
    agent.log = []
    assert (await agent.reply("go")).get_text_content() == "three"
    assert agent.log[:3] == ["reasons", "said ['add']", "acts add"]


async def test_a_structured_answer_passes_through_step_overrides():
    agent = Ported([call("1", "GenerateStructuredOutput", sum=3)])
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    assert (await agent.reply("go", schema)).structured_output == {"sum": 3}
    assert "acts GenerateStructuredOutput" in agent.log


async def test_a_call_that_waited_runs_through_the_acting_override():
    agent = Ported([call("1", "asks", a=1, b=2)], "three")
    agent.toolkit.register_tool_function(FunctionTool(add, name="asks", ask=True))
    await agent.reply("go")
    assert agent.log == ["reasons", "said ['asks']"]
    await agent.reply(confirmation_of(agent))
    assert agent.log[2:4] == ["acts asks", "got 3"]
