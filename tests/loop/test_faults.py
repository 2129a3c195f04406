"""Things that go wrong around a reply, and leave the conversation whole."""

import asyncio
import os
import sys

import anyio
import pytest

from agentrt import Agent, AgentState, MiddlewareBase, Msg, Toolkit
from agentrt.agent import ReActConfig
from agentrt.errors import (
    AgentBusyError,
    ChainContractError,
    ConfigError,
    Malformed,
    MiddlewareConfigError,
    Rejected,
    ToolConfigError,
    ToolError,
)
from agentrt.event import ExternalExecutionResultEvent
from agentrt.message import AssistantMsg, TextBlock, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.model import ChatModelBase, ChatResponse, ScriptedChatModel
from agentrt.state import InMemoryStateStore, ReplyContext
from agentrt.tool import FunctionTool, ToolResponse
from tests.loop.helpers import Elsewhere, add, agent_of, call, confirmation_of


async def wait_for_what_is_cancelled() -> str:
    task = asyncio.ensure_future(asyncio.Event().wait())
    await asyncio.sleep(0)
    task.cancel()
    await task
    return "never"


def results(agent: Agent) -> list[tuple[str, ToolResultState]]:
    return [(block.id, block.state) for block in agent.state.context[-1].get_content_blocks("tool_result")]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("others", [0, 1])
async def test_an_unrequested_cancellation_is_a_failed_result(others):
    entered = []

    async def stray() -> str:
        entered.append(1)
        return await wait_for_what_is_cancelled()

    calls = [call("0", "stray"), *(call(str(n), "add", a=1, b=2) for n in range(1, others + 1))]
    agent = agent_of([calls, "done"], stray, add)
    assert (await agent.reply("go")).get_text_content() == "done"
    assert entered == [1]
    assert results(agent) == [("0", ToolResultState.ERROR), ("1", ToolResultState.SUCCESS)][: others + 1]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_layers_own_cancellation_loses_one_result_alone():
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
def test_a_program_whose_last_act_is_a_break_ends_quietly(backend, program_runner):
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
    done = program_runner.run(program)
    assert (done.returncode, done.stderr) == (0, "")


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


async def test_a_call_changed_in_place_is_kept_as_it_was():
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


async def test_a_model_whose_call_is_not_a_coroutine_is_refused():
    with pytest.raises(ChainContractError, match=r"PlainCall\._call must be a coroutine function"):
        await Agent("a", model=PlainCall(model="plain")).reply("go")


async def test_a_missing_await_in_a_call_layer_is_named():
    class Forgetful(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return next_handler()

    with pytest.raises(ChainContractError, match=r"from Forgetful: an `await` is missing"):
        await agent_of(["hello"], middlewares=[Forgetful()]).reply("go")


def test_a_session_that_was_never_saved_is_named_with_the_remedy():
    agent = Agent("a", model=ScriptedChatModel([]))
    with pytest.raises(ConfigError, match=r"never saved: write `await store\.load\(session_id\) or AgentState\("):
        agent.with_state(None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "Agent(name=...) must be a str that is not empty, not ''"),
        ({"system_prompt": 5}, "Agent(system_prompt=...) must be a str, not 5"),
        ({"model": None}, "Agent(model=...) must be a chat model, or the name of one, such as 'openai:gpt-5-mini'"),
        ({"model": ScriptedChatModel}, "not an instance of it: write ScriptedChatModel(...)"),
        ({"model": "opnai:gpt-5"}, "did you mean 'openai"),
        ({"model": "openai:"}, "write 'openai:MODEL', as in 'openai:gpt-5-mini'"),
        ({"tools": add}, "Agent(tools=...) must be a list of functions and tools, not <function add"),
        ({"tools": add}, ": write tools=[add]"),
        ({"toolkit": add}, ": write toolkit=[add]"),
        ({"tools": "add"}, "not 'add': write tools=[function]"),
        ({"tools": {"add": add}}, "write tools=[function]"),
        ({"tools": FunctionTool(add)}, "write tools=[function]"),
        ({"tools": Toolkit([add])}, "Agent(tools=...) holds a Toolkit: write toolkit=..., and tools=[...] for others"),
        ({"toolkit": [Toolkit([add])]}, "Agent(toolkit=...) holds a Toolkit: write toolkit=..."),
        ({"tools": [5]}, "5 cannot be a tool: pass a function with type hints, or a ToolBase"),
        ({"tools": [add, add]}, "two tools are called 'add'"),
        ({"toolkit": [add], "tools": [add]}, "two tools are called 'add'"),
        ({"toolkit": Toolkit([add]), "tools": [add]}, "rename one with FunctionTool(function, name=...)"),
        ({"middlewares": None}, "Agent(middlewares=...) must be a list of middlewares, not None"),
        ({"state": {}}, "a conversation's state must be an AgentState, not {}"),
        ({"state": AgentState(context=[{"role": "user"}])}, "holds {'role': 'user'}, which is not a Msg: write"),
        ({"state": AgentState(context=["Hi"])}, "which is not a Msg: write UserMsg('Hi'), or give dicts and texts to"),
        ({"state_store": object()}, "Agent(state_store=...) must have `save` and `load`"),
        ({"react_config": {"max_iters": 3}}, "Agent(react_config=...) must be a ReActConfig"),
        ({"when_busy": "queue"}, "Agent(when_busy=...) must be 'raise' or 'wait', not 'queue'"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_what_would(options, words):
    with pytest.raises(ConfigError) as caught:
        Agent(**({"name": "a", "model": ScriptedChatModel([])} | options))
    assert words in str(caught.value)


def test_a_toolkit_or_middleware_must_return_a_list_of_tools():
    class Bare(MiddlewareBase):
        def list_tools(self):
            return add

    with pytest.raises(ToolConfigError, match=r"Toolkit\(tools=...\) must be a list, not <function add"):
        Toolkit(tools=add)
    with pytest.raises(MiddlewareConfigError, match=r"Bare.list_tools\(\) must return a list, not <function add"):
        agent_of([], middlewares=[Bare()])


async def test_a_response_whose_content_is_a_str_is_refused():
    with pytest.raises(ChainContractError, match=r"it must be a list of blocks, as in ChatResponse"):
        await agent_of([ChatResponse("hello")]).reply("go")


async def test_a_response_that_a_layer_keeps_may_end_every_reply():
    kept = ToolResponse([TextBlock("ok")], metadata={"response_msg": AssistantMsg("cache", "the end")})

    class Cache(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            yield kept

    agent = agent_of([[call("1", "add", a=1, b=2)], [call("2", "add", a=1, b=2)]], add, middlewares=[Cache()])
    assert [(await agent.reply("go")).get_text_content() for _ in range(2)] == ["the end", "the end"]


async def test_a_model_that_says_nothing_twice_is_malformed():
    agent = agent_of([ChatResponse([]), "hello", ChatResponse([]), ChatResponse([]), "never said"])
    assert (await agent.reply("go")).get_text_content() == "hello"
    with pytest.raises(Malformed, match="gave 2 empty answers in a row"):
        await agent.reply("go")
    assert agent.state.last_reply.finished_reason == "error"


async def test_a_failing_concurrent_call_leaves_the_others_in_order():
    async def fail() -> str:
        raise ToolError("no")

    agent = agent_of([[call("1", "add", a=1, b=2), call("2", "fail"), call("3", "add", a=3, b=4)], "done"], add, fail)
    assert (await agent.reply("go")).get_text_content() == "done"
    succeeded, failed = ToolResultState.SUCCESS, ToolResultState.ERROR
    assert results(agent) == [("1", succeeded), ("2", failed), ("3", succeeded)]


async def test_after_an_error_past_the_end_the_answer_stands_saved():
    class Late(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item
            raise OSError("too late")

    store = InMemoryStateStore()
    agent = agent_of(["hello"], middlewares=[Late()], state_store=store)
    with pytest.raises(OSError, match="too late"):
        await agent.reply("go")
    saved = await store.load(agent.state.session_id)
    assert saved.last_reply.finished_reason == "completed"
    assert saved.context[-1].get_text_content() == "hello"


async def test_a_prompt_that_fails_keeps_the_model_from_being_asked():
    class Broken(MiddlewareBase):
        async def on_system_prompt(self, agent, current_prompt):
            raise OSError("no prompt")

    agent = agent_of(["hello"], middlewares=[Broken()])
    with pytest.raises(OSError, match="no prompt"):
        await agent.reply("go")
    assert not agent.model.calls


class CancelledSave(InMemoryStateStore):
    """Cancels a scope as soon as it has saved, once, and keeps what another process would find then."""

    scope = found = None

    async def save(self, state):
        await super().save(state)
        if self.scope is not None:
            self.found = await self.load(state.session_id)
            self.scope.cancel()
            self.scope = None
            await anyio.lowlevel.checkpoint()


async def test_an_external_result_is_on_record_from_the_first_save():
    store = CancelledSave()
    agent = agent_of([[call("1", "elsewhere")], "done"], Elsewhere(), state_store=store)
    await agent.reply("go")
    answer = ExternalExecutionResultEvent(agent.state.reply_context.reply_id, [ToolResultBlock("1", "elsewhere", "42")])
    with anyio.CancelScope() as scope:
        store.scope = scope
        await agent.reply(answer)
    assert scope.cancelled_caught
    another = agent_of(["done"], Elsewhere(), state=store.found)
    assert (await another.reply()).get_text_content() == "done"
    for each in (agent, another):
        assert results(each) == [("1", ToolResultState.SUCCESS)]


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_a_call_cut_before_its_arguments_does_not_run(streamed):
    ran = []

    async def wipe(path: str = "/") -> str:
        ran.append(path)
        return "gone"

    cut = ChatResponse([ToolCallBlock("1", "wipe", "")], finished_reason="length")
    agent = agent_of([[cut] if streamed else cut, "done"], wipe)
    await agent.reply("go")
    assert ran == []
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert result.state is ToolResultState.ERROR
    assert "cut off before its arguments were complete" in result.output[0].text


async def test_a_call_without_arguments_runs_where_nothing_was_cut():
    ran = []

    async def wipe(path: str = "/tmp") -> str:
        ran.append(path)
        return "gone"

    agent = agent_of([ChatResponse([ToolCallBlock("1", "wipe", "")], finished_reason="tool_calls"), "done"], wipe)
    await agent.reply("go")
    assert ran == ["/tmp"]


@pytest.mark.parametrize("tool", ["plain", "elsewhere"])
async def test_a_denied_call_is_never_said_to_have_run_perhaps(tool):
    def plain() -> str:
        return "never"

    agent = agent_of([[call("1", tool)]], FunctionTool(plain, ask=True), Elsewhere(ask=True))
    await agent.reply("go")
    async with agent.reply_stream(confirmation_of(agent, confirmed=False)) as events:
        await anext(events)  # the denied call has begun
    assert results(agent) == [("1", ToolResultState.INTERRUPTED)]


TERMINATED = """
import os, signal, sys, threading
import anyio
from agentrt import Agent, AgentState
from agentrt.model import ScriptedChatModel
from agentrt.state import FileStateStore

where, directory, backend = sys.argv[1:]
signal.signal(signal.SIGTERM, signal.SIG_DFL)

async def answer(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    if where == "hangs":
        await anyio.sleep_forever()
    await anyio.sleep(0.05)
    return "in time"

async def stop(agent, task_status):
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            await anyio.sleep(0.1 if where == "hangs" else 60)
            agent.interrupt("the server stops")

async def main():
    store = FileStateStore(directory)
    agent = Agent("a", model=ScriptedChatModel([answer]), state=AgentState(session_id="s"), state_store=store)
    async with anyio.create_task_group() as group:
        await group.start(lambda *, task_status: stop(agent, task_status))
        message = await agent.reply("go")
        group.cancel_scope.cancel()
    saved = await store.load("s")
    assert saved.reply_context is None
    print(message.finished_reason, saved.last_reply.finished_reason)

anyio.run(main, backend=backend)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM to be received")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("where", "reason"), [("answers", "completed"), ("hangs", "interrupted")])
def test_sigterm_lets_a_reply_finish_then_interrupts_it(where, reason, backend, tmp_path, program_runner):
    done = program_runner.run(TERMINATED, where, str(tmp_path), backend)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{reason} {reason}\n", "")


async def test_an_inner_agent_that_fails_or_loops_ends_its_call():
    async def again() -> str:
        return "more"

    async def fail(task: str) -> str:
        """Hand over to an agent whose model is out of order."""
        return (await agent_of([Rejected("out of order")]).reply(task)).get_text_content()

    async def loop(task: str) -> str:
        """Hand over to an agent that never comes to an end."""
        calls = [[call(str(number), "again")] for number in range(9)]
        inner = agent_of(calls, again, react_config=ReActConfig(max_iters=3))
        return (await inner.reply(task)).finished_reason

    agent = agent_of([[call("1", "fail", task="t"), call("2", "loop", task="t")], "done"], fail, loop)
    assert (await agent.reply("go")).get_text_content() == "done"
    assert results(agent) == [("1", ToolResultState.ERROR), ("2", ToolResultState.SUCCESS)]
    _, looped = agent.state.context[-1].get_content_blocks("tool_result")
    assert looped.output[0].text == "exceed_max_iters"


@pytest.mark.parametrize("second", ["asyncio", "trio"])
@pytest.mark.parametrize("first", ["asyncio", "trio"])
def test_an_agent_serves_one_event_loop_after_the_other(first, second):
    agent = agent_of(["one", "two"])
    assert anyio.run(agent.reply, "go", backend=first).get_text_content() == "one"
    assert anyio.run(agent.reply, "on", backend=second).get_text_content() == "two"
    assert len(agent.state.context) == 4


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_replying_conversation_is_busy_for_other_loops(backend):
    async def reply_elsewhere(*_):
        def run() -> str:
            with pytest.raises(AgentBusyError) as caught:
                anyio.run(agent.reply, "me too", backend=backend)
            return type(caught.value).__name__

        return await anyio.to_thread.run_sync(run)

    agent = agent_of([reply_elsewhere])
    assert anyio.run(agent.reply, "go", backend=backend).get_text_content() == "AgentBusyError"
    assert len(agent.state.context) == 2


FORKED = """
import os, sys, warnings
import anyio
from agentrt import Agent, AgentState
from agentrt.errors import SessionConflict
from agentrt.model import ScriptedChatModel
from agentrt.state import FileStateStore

# From 3.12 on, Python warns of a fork beside the threads that trio and anyio keep.
warnings.filterwarnings("ignore", "This process", DeprecationWarning)
store = FileStateStore(sys.argv[1])
agent = Agent("a", model=ScriptedChatModel(["one", "two"]), state=AgentState(session_id="s"), state_store=store)
anyio.run(agent.reply, "go", backend=sys.argv[2])
child = os.fork()
if child == 0:
    print(anyio.run(agent.reply, "child", backend=sys.argv[2]).get_text_content(), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
try:
    anyio.run(agent.reply, "parent", backend=sys.argv[2])
except SessionConflict:
    print("conflict")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_forked_process_goes_on_and_the_other_is_told(backend, tmp_path, program_runner):
    done = program_runner.run(FORKED, str(tmp_path), backend)
    assert (done.returncode, done.stdout, done.stderr) == (0, "two\nconflict\n", "")
