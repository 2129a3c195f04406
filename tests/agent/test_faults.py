"""Things that go wrong around a reply, and leave the conversation whole."""

import asyncio
import subprocess
import sys

import pytest

from agentrt import Agent, AgentState, MiddlewareBase, Msg, Toolkit
from agentrt.errors import ChainContractError, ConfigError, MiddlewareConfigError, Rejected, ToolConfigError
from agentrt.message import AssistantMsg, TextBlock, ToolResultState
from agentrt.model import ChatModelBase, ChatResponse, ScriptedChatModel
from agentrt.state import ReplyContext
from agentrt.tool import FunctionTool, ToolResponse
from tests.agent.helpers import add, agent_of, call


async def wait_for_what_is_cancelled() -> str:
    """Await a task that is cancelled already."""
    task = asyncio.ensure_future(asyncio.Event().wait())
    await asyncio.sleep(0)
    task.cancel()
    await task
    return "never"


def results(agent: Agent) -> list[tuple[str, ToolResultState]]:
    return [(block.id, block.state) for block in agent.state.context[-1].get_content_blocks("tool_result")]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("others", [0, 1])
async def test_a_cancellation_that_nobody_asked_for_is_a_failed_result_and_runs_nothing_twice(others):
    entered = []

    async def stray() -> str:
        """Fail in the oddest way."""
        entered.append(1)
        return await wait_for_what_is_cancelled()

    calls = [call("0", "stray"), *(call(str(n), "add", a=1, b=2) for n in range(1, others + 1))]
    agent = agent_of([calls, "done"], stray, add)
    assert (await agent.reply("go")).get_text_content() == "done"
    assert entered == [1]
    assert results(agent) == [("0", ToolResultState.ERROR), ("1", ToolResultState.SUCCESS)][: others + 1]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_layer_that_raises_a_cancellation_of_its_own_loses_one_result_and_no_other():
    class Stray(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            if input_kwargs["tool_call"].id == "0":
                await wait_for_what_is_cancelled()
            async for item in next_handler():
                yield item

    agent = agent_of([[call(n, "add", a=1, b=2) for n in "01"], "done"], add, middlewares=[Stray()])
    assert (await agent.reply("go")).get_text_content() == "done"
    assert sorted(results(agent)) == [("0", ToolResultState.ERROR), ("1", ToolResultState.SUCCESS)]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_break_as_the_last_thing_that_a_program_does_ends_it_quietly(backend):
    program = f"""
import anyio
from agentrt import Agent
from agentrt.model import ScriptedChatModel

async def main():
    async for event in Agent("a", model=ScriptedChatModel(["one two three"])).reply_stream("go"):
        if event.type == "TEXT_BLOCK_DELTA":
            break

for _ in range(20):
    anyio.run(main, backend={backend!r})
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_tool_that_needs_somebody_does_not_run_without_him():
    ran = []

    async def remove() -> str:
        """Remove everything."""
        ran.append(1)
        return "gone"

    agent = agent_of([[call("1", "remove")], "done"], FunctionTool(remove, ask=True))
    await agent.reply("go")
    assert ran == []
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert result.state is ToolResultState.DENIED
    assert result.output[0].text == "remove was not run: a person must agree to it first, and nobody can be asked here."


async def test_what_a_provider_says_of_a_key_goes_into_no_state():
    agent = agent_of([Rejected("401: bad key sk-live-123")])
    with pytest.raises(Rejected, match="sk-live-123"):
        await agent.reply("go")
    assert agent.state.last_reply.error == "Rejected"
    assert "sk-live" not in agent.state.model_dump_json()


async def test_an_odd_saved_state_does_not_lock_the_conversation():
    state = AgentState(reply_context=ReplyContext("r", Msg("a", "partial", "assistant"), 5))
    agent = agent_of(["hello"], state=state)
    assert (await agent.reply("go")).get_text_content() == "hello"
    assert [message.get_text_content() for message in agent.state.context] == ["partial", "go", "hello"]


async def test_a_call_that_a_layer_changes_in_place_is_not_changed_in_the_conversation():
    class Mutate(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            input_kwargs["tool_call"].input = '{"a": 5, "b": 5}'
            async for item in next_handler():
                yield item

    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add, middlewares=[Mutate()])
    await agent.reply("go")
    assert agent.state.context[-1].get_content_blocks("tool_call")[0].input == '{"a": 1, "b": 2}'
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].output[0].text == "10"


class PlainCall(ChatModelBase):
    def _call(self, messages, tools, tool_choice):
        return ChatResponse([])


async def test_a_model_whose_call_is_no_coroutine_is_told_what_it_must_be():
    with pytest.raises(ChainContractError, match=r"PlainCall\._call must be a coroutine function"):
        await Agent("a", model=PlainCall(model="plain")).reply("go")


async def test_a_missing_await_in_a_call_layer_is_named():
    class Forgetful(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return next_handler()

    with pytest.raises(ChainContractError, match=r"from Forgetful: an `await` is missing"):
        await agent_of(["hello"], middlewares=[Forgetful()]).reply("go")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "Agent(name=...) must be a text, not ''"),
        ({"system_prompt": 5}, "Agent(system_prompt=...) must be a text, not 5"),
        ({"model": "gpt"}, "Agent(model=...) must be a chat model, such as RulesChatModel(), not 'gpt'"),
        ({"toolkit": [add]}, "write Toolkit(tools=[...])"),
        ({"middlewares": None}, "Agent(middlewares=...) must be a list of middlewares, not None"),
        ({"state": {}}, "a conversation's state must be an AgentState, not {}"),
        ({"state_store": object()}, "Agent(state_store=...) must have `save` and `load`"),
        ({"react_config": {"max_iters": 3}}, "Agent(react_config=...) must be a ReActConfig"),
        ({"when_busy": "queue"}, "Agent(when_busy=...) must be 'raise' or 'wait', not 'queue'"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_what_would(options, words):
    with pytest.raises(ConfigError) as caught:
        Agent(**({"name": "a", "model": ScriptedChatModel([])} | options))
    assert words in str(caught.value)


def test_a_toolkit_and_a_middleware_that_give_no_list_of_tools_are_told_so():
    class Bare(MiddlewareBase):
        def list_tools(self):
            return add

    with pytest.raises(ToolConfigError, match=r"Toolkit\(tools=...\) takes a list, not <function add"):
        Toolkit(tools=add)
    with pytest.raises(MiddlewareConfigError, match=r"Bare.list_tools\(\) must return a list, not <function add"):
        agent_of([], middlewares=[Bare()])


async def test_a_response_whose_content_is_a_plain_text_is_told_what_it_must_be():
    with pytest.raises(ChainContractError, match=r"it must be a list of blocks, as in ChatResponse"):
        await agent_of([ChatResponse("hello")]).reply("go")


async def test_a_response_that_a_layer_keeps_may_end_every_reply_that_it_answers():
    kept = ToolResponse([TextBlock("ok")], metadata={"response_msg": AssistantMsg("cache", "the end")})

    class Cache(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            yield kept

    agent = agent_of([[call("1", "add", a=1, b=2)], [call("2", "add", a=1, b=2)]], add, middlewares=[Cache()])
    assert [(await agent.reply("go")).get_text_content() for _ in range(2)] == ["the end", "the end"]
