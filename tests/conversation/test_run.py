"""`agent.run`: what hooks and tools may use of the reply in progress."""

from typing import Any

import pytest

from agentrt import AgentBase, AgentState, MiddlewareBase, Msg, UserMsg
from agentrt._runtime.conversation.context_usage import ContextUsage
from agentrt.message import AssistantMsg, TextBlock
from agentrt.tool import ToolContext
from tests.loop.helpers import add, agent_of, call

FOR_HOOKS = {
    *("agent", "parent", "depth", "root", "ask_model"),
    *(
        "id",
        "deps",
        "task",
        "tool_of",
        "identity",
        "state_of",
        "toolkit",
        "is_internal",
        "is_replay",
        "is_seen",
        "purpose",
        "receive",
        "ended",
        "deadline",
        "now",
        "new_id",
        "begin_child",
    ),
    *("next_seq", "scratch", "call_name", "estimate_tokens", "emit", "relay", "continue_with", "stop"),
    *("hidden_call", "is_handed_over"),
}


class Looking(MiddlewareBase):
    def __init__(self) -> None:
        self.runs: list[Any] = []

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.runs.append(agent.run)
        agent.run.scratch(self)["place"] = "on_reply"
        async for item in next_handler():
            yield item
        self.runs.append(agent.run)


@pytest.fixture
def looking() -> Looking:
    return Looking()


async def test_run_shows_what_hooks_may_use_and_nothing_else(looking: Looking) -> None:
    await agent_of(["hello"], middlewares=[looking]).reply("go")
    assert {name for name in dir(looking.runs[0]) if not name.startswith("_")} == FOR_HOOKS


async def test_hooks_and_tools_have_one_run_of_a_reply(looking: Looking) -> None:
    async def look(context: ToolContext) -> str:
        looking.runs += [context.run, context.agent.run]
        return context.agent.run.scratch(looking)["place"]

    agent = agent_of([[call("1", "look")], "done", "done again"], look, middlewares=[looking])
    await agent.reply("go")
    assert len({id(run) for run in looking.runs}) == 1
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].output[0].text == "on_reply"
    await agent.reply("go")
    assert looking.runs[-1] is not looking.runs[0]
    assert looking.runs[0].ended


async def test_run_of_a_custom_agent_shows_the_same(looking: Looking) -> None:
    class Echo(AgentBase):
        async def reply(self, msg):
            looking.runs.append(self.run.scratch(looking)["place"])
            return Msg(self.name, "hi", "assistant")

    await Echo(middlewares=[looking])(UserMsg("user", "go"))
    first, place, last = looking.runs
    assert {name for name in dir(first) if not name.startswith("_")} == FOR_HOOKS
    assert (place, first.id) == ("on_reply", last.id)


def agent_named(name: str, responses: list[Any], *tools: Any, **options: Any) -> Any:
    agent = agent_of(responses, *tools, **options)
    agent.name = name
    return agent


def child_of(*middlewares: MiddlewareBase, answers: Any = ("found",)) -> Any:
    return agent_named("child", list(answers), middlewares=list(middlewares))


def names(run: Any) -> list[str]:
    """The agents whose replies these are, from the inner one outwards."""
    return [run.agent.name, *(names(run.parent) if run.parent else [])]


async def test_reply_that_nobody_else_asked_for_has_no_parent(looking: Looking) -> None:
    agent = agent_of(["hello"], middlewares=[looking])
    await agent.reply("go")
    run = looking.runs[0]
    assert (run.agent, run.parent, run.depth, run.root) == (agent, None, 0, run)


async def ask_streamed(child: Any) -> str:
    async with child.reply_stream("search") as events:
        async for _ in events:
            pass
    return "found"


async def ask_awaited(child: Any) -> str:
    return (await child.reply("search")).get_text_content()


@pytest.mark.parametrize("ask", [ask_awaited, ask_streamed])
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("listens", [True, False])
async def test_reply_asked_for_in_a_tool_knows_the_one_around_it(ask: Any, calls: int, listens: bool) -> None:
    looking, outer = Looking(), Looking()
    child = child_of(looking, answers=["found"] * calls)
    child.when_busy = "wait"

    async def search() -> str:
        return await ask(child)

    blocks = [call(str(number), "search") for number in range(calls)]
    boss = agent_named("boss", [blocks, "done"], search, middlewares=[outer])
    await (boss.reply("go") if not listens else ask_streamed(boss))
    assert len(looking.runs) == 2 * calls
    for run in looking.runs:
        assert names(run) == ["child", "boss"]
        assert (run.parent, run.depth, run.root) == (outer.runs[0], 1, outer.runs[0])
        assert len({run.parent, run.root, outer.runs[0]}) == 1
    assert outer.runs[0].parent is None


async def test_reply_in_a_tool_that_streams_knows_the_one_around_it(looking: Looking) -> None:
    child = child_of(looking)

    async def search() -> Any:
        yield "one, "
        yield await ask_awaited(child)

    await agent_named("boss", [[call("1", "search")], "done"], search).reply("go")
    assert names(looking.runs[0]) == ["child", "boss"]


async def test_replies_of_depth_three_know_their_root(looking: Looking) -> None:
    leaf = child_of(looking)

    async def search() -> str:
        return await ask_awaited(leaf)

    writer = agent_named("writer", [[call("1", "search")], "written"], search)

    async def write() -> str:
        return await ask_awaited(writer)

    boss = agent_named("boss", [[call("1", "write")], "done"], write)
    await boss.reply("go")
    run = looking.runs[0]
    assert names(run) == ["child", "writer", "boss"]
    assert (run.depth, run.root.agent, run.root) == (2, boss, run.parent.parent)


async def test_reply_after_a_tool_of_the_same_task_has_no_parent(looking: Looking) -> None:
    def search() -> str:
        return "found"

    await agent_of([[call("1", "search")], "done"], search).reply("go")
    await child_of(looking).reply("go")
    assert looking.runs[0].parent is None


async def test_custom_agent_asked_in_a_tool_knows_the_reply_around_it() -> None:
    runs: list[Any] = []

    class Echo(AgentBase):
        async def reply(self, msg):
            runs.append(self.run)
            return Msg(self.name, "hi", "assistant")

    echo = Echo(name="echo")

    async def ask() -> str:
        return (await echo(UserMsg("user", "go"))).get_text_content()

    await agent_named("boss", [[call("1", "ask")], "done"], ask).reply("go")
    assert names(runs[0]) == ["echo", "boss"]
    await echo(UserMsg("user", "go"))
    assert runs[1].parent is None


class Estimating(MiddlewareBase):
    """Estimates each request, and what it would be if nothing were known of those before."""

    def __init__(self, *, with_hint: bool = False) -> None:
        self.estimates: list[tuple[int, int]] = []
        self.with_hint = with_hint

    async def on_model_call(self, agent, input_kwargs, next_handler):
        messages, tools = input_kwargs["messages"], input_kwargs["tools"]
        if self.with_hint:  # a layer may put what it likes in front and at the end
            messages = [*messages[:1], UserMsg("hint", "x" * len(self.estimates)), *messages[1:], UserMsg("hint", "y")]
        anew = ContextUsage().characters_of_request(messages) + agent.run.toolkit.characters_of(tools)
        self.estimates.append((agent.run.estimate_tokens(messages, tools), anew // 4 + 1))
        return await next_handler(messages=messages)


@pytest.mark.parametrize("with_hint", [False, True])
async def test_an_estimate_is_that_of_a_recount(with_hint: bool) -> None:
    estimating = Estimating(with_hint=with_hint)
    rounds: list[Any] = [[call(str(number), "add", a=number, b=2)] for number in range(5)]
    agent = agent_of([*rounds, "done", "so it is", "again"], add, middlewares=[estimating])
    await agent.reply("go")
    await agent.reply("go on, and say more this time")
    del agent.state.context[1:]
    await agent.reply("once more")
    assert len(estimating.estimates) == 8
    for estimate, recount in estimating.estimates:
        assert abs(estimate - recount) <= (2 if with_hint else 0)  # the hint in front counts as it did at first


async def test_an_estimate_does_not_read_the_history_again(monkeypatch: Any) -> None:
    class Estimating(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            agent.run.estimate_tokens(input_kwargs["messages"], input_kwargs["tools"])
            return await next_handler(**input_kwargs)

    rounds: list[Any] = [[call(str(number), "add", a=number, b=2)] for number in range(20)]
    state = AgentState(context=[AssistantMsg("tester", [TextBlock("x")]) for _ in range(500)])
    agent = agent_of(["done", *rounds, "so it is"], add, middlewares=[Estimating()], state=state)
    await agent.reply("go")
    counted: list[object] = []
    monkeypatch.setattr(
        "agentrt._runtime.conversation.context_usage.characters_of", lambda block: counted.append(block) or 0
    )
    await agent.reply("go on")
    assert len(counted) <= 4 * 21  # the call and the result of each round


async def test_outside_of_the_loop_a_request_is_estimated_anew() -> None:
    estimates: list[int] = []

    class Own(AgentBase):
        async def reply(self, msg: Msg) -> Msg:
            estimates.append(self.run.estimate_tokens([msg, UserMsg("user", "x" * 40)]))
            return msg

    await Own().reply(UserMsg("user", "go"))
    assert estimates == [11]
