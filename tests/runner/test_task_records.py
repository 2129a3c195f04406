"""Recorded background calls: their runs are part of the tree of the reply that let them go."""

from typing import Any

from anyio import to_thread

from agentrt import Agent
from agentrt.__main__ import main
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.runner import Runner
from agentrt.runs import RunRecorder
from tests.runner.conftest import Waiting, make_agent, work
from tests.runner.test_tasks import background, started, woken


def say(content: Any, tokens: int) -> ChatResponse:
    return ChatResponse([TextBlock(content) if isinstance(content, str) else content], usage=ChatUsage(tokens, 0))


def recorder_of(store: Any) -> RunRecorder:
    return RunRecorder(store, cost_of=lambda model, usage: float(usage.input_tokens))  # loads no prices


def make_recorded(store: Any) -> Agent:
    """Return an agent that lets a researcher go, whose model uses 5 tokens; its own uses 1, 2 and 4 when woken."""
    researcher = Agent("researcher", "", ScriptedChatModel([say("found it", 5)]))
    script = [say(ToolCallBlock("c1", "researcher", '{"query": "go"}'), 1), say("Started.", 2), say("Noted.", 4)]
    tool = researcher.as_tool("Looks things up.", background=True)
    return make_agent(tool, model=ScriptedChatModel(script), middlewares=[recorder_of(store)])


async def test_run_of_a_task_counts_in_the_run_that_let_it_go(store):
    async with work(Runner(make_recorded(store), store)) as runner:
        task = await started(await runner.submit("s", "Go", reply_id="r1", labels={"owner": "ann"}))
        await woken(runner, "s", task)
    run = await store.runs.load("s", "r1")
    [of_task] = run.tasks
    [researcher] = of_task.children
    assert of_task.parent == ("s", "r1", "c1")
    assert (of_task.session_id, of_task.reply_id, of_task.title) == (task.session_id, task.task_id, "researcher")
    assert (run.children, run.usage.input_tokens, run.cost, run.calls) == ([], 8, 8.0, 3)
    assert (of_task.usage.input_tokens, researcher.usage.input_tokens, researcher.parent[2]) == (5, 5, "c1")
    # A list has each token once, since it has no run with a parent.
    assert [(info.reply_id, info.usage.input_tokens, info.cost) for info in (await store.runs.list()).runs] == [
        (f"{task.task_id}.done", 4, 4.0),
        ("r1", 8, 8.0),
    ]
    assert (await store.runs.describe("s", "r1")).calls == 3
    assert (await store.runs.verify("s")).lines > (await store.runs.verify("s", "r1")).lines
    replay = await run.replay(make_recorded(store))
    assert (replay.first, replay.finished) == (None, True)
    assert await store.runs.delete("s", "r1") == 3
    assert await store.runs.describe(task.session_id, task.task_id) is None
    assert (await store.runs.verify("s")).ok


async def test_console_shows_the_tree_with_its_background_calls(sqlite, tmp_path, capsys):
    async with work(Runner(make_recorded(sqlite), sqlite)) as runner:
        await woken(runner, "s", await started(await runner.submit("s", "Go", reply_id="r1")))
        await sqlite.runs.flush()
    arguments = ["runs", "show", "s", "r1", "--store", f"sqlite:{tmp_path / 'states.db'}"]
    assert await to_thread.run_sync(main, arguments) == 0
    lines = [line.partition(",")[0] for line in capsys.readouterr().out.splitlines() if " calls, " in line]
    assert lines == ["assistant: completed", "  background call of researcher: completed", "    researcher: completed"]


async def test_fork_answers_a_background_call_from_the_record(sqlite):
    waiting = Waiting()
    waiting.release.set()
    agent = make_agent(background(waiting.wait), middlewares=[recorder_of(sqlite)])
    async with work(Runner(agent, sqlite)) as runner:
        await woken(runner, "s", await started(await runner.submit("s", "call wait", reply_id="r1")))
        run = await sqlite.runs.load("s", "r1")
        fork = run.fork(agent, run.steps[0], session_id="fork", effects="record")
        await sqlite.save(fork.state)
        runner.run_with(fork, "fork")
        task = await started(await runner.submit("fork", None, reply_id=fork.state.reply_context.reply_id))
        assert "is done. Its result follows.\nwaited" in await woken(runner, "fork", task)
    assert waiting.runs == 1


async def test_run_of_a_task_goes_with_the_session_that_let_it_go(store):
    async with work(Runner(make_recorded(store), store)) as runner:
        task = await started(await runner.submit("s", "Go", reply_id="r1"))
        await woken(runner, "s", task)
        await runner.delete("s")
    assert await store.runs.describe(task.session_id, task.task_id) is None
