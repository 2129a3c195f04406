"""Background calls over a runner: each is made once, elsewhere, and its end wakes the session that let it go, once."""

from typing import Any

import anyio
import pytest

from agentrt import Agent
from agentrt.agent import ReActConfig
from agentrt.errors import InvalidInputError
from agentrt.event import ReplyEndEvent, RequireUserConfirmEvent, TaskStartedEvent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.runner.base import RunnerBase
from agentrt.tool import FunctionTool, task_tools
from tests.loop.helpers import rebuilt
from tests.runner.conftest import Waiting, answer_to, approved_pay, make_agent, work


def background(function: Any, **options: Any) -> FunctionTool:
    return FunctionTool(function, background=True, **options)


async def crawl() -> str:
    return "12 pages"


async def started(handle: Any) -> TaskStartedEvent:
    return next(event for event in [event async for event in handle.events()] if isinstance(event, TaskStartedEvent))


async def woken(runner: RunnerBase, session_id: str, task: TaskStartedEvent) -> str:
    """Wait for the reply that a task wakes, and return its answer."""
    while not await runner.has_reply(session_id, f"{task.task_id}.done"):  # noqa: ASYNC110  # made by a worker
        await anyio.sleep(0.01)
    return (await runner.handle(session_id, f"{task.task_id}.done").result()).get_text_content() or ""


async def test_background_call_returns_a_handle_and_wakes_once(store):
    async with work(Runner(make_agent(background(crawl)), store)) as runner:
        handle = await runner.submit("s", "call crawl", labels={"owner": "ann"})
        task = await started(handle)
        first = (await handle.result()).get_text_content() or ""
        assert first.startswith(f"crawl runs in the background as {task.task_id}.")
        answer = await woken(runner, "s", task)
        state = await store.load("s")
        done = await store.load(task.session_id)
    assert answer == f"You said: The background call of crawl ({task.task_id}) is done. Its result follows.\n12 pages"
    [wake] = [message for message in state.context if message.name == "task"]
    assert (wake.role, wake.metadata) == ("user", {"task_id": task.task_id})
    assert state.tasks == {}
    assert done.labels == {"owner": "ann"}
    assert [block.type for block in done.context[0].get_content_blocks()] == ["tool_call", "tool_result", "text"]
    assert task.session_id == f"s~{task.task_id}"


async def test_events_of_a_task_build_its_message(sqlite):
    async with work(Runner(make_agent(background(crawl)), sqlite)) as runner:
        task = await started(await runner.submit("s", "call crawl"))
        await woken(runner, "s", task)
        events = [event async for event in runner.handle(task.session_id, task.task_id).events()]
        done = await sqlite.load(task.session_id)
    assert isinstance(events[-1], ReplyEndEvent)
    assert rebuilt(events).content == done.context[0].content


async def test_parent_answers_others_while_a_task_works(sqlite, waiting):
    async with work(Runner(make_agent(background(waiting.wait)), sqlite)) as runner:
        task = await started(await runner.submit("s", "call wait"))
        await waiting.begun.wait()
        other = await (await runner.submit("s", "Hello")).result()
        assert other.get_text_content() == "You said: Hello"
        [info] = await runner.tasks("s")
        assert (info.id, info.tool, info.state) == (task.task_id, "wait", "running")
        waiting.release.set()
        assert "waited" in await woken(runner, "s", task)
        [info] = await runner.tasks("s")
        assert (info.state, info.outcome) == ("over", "success")
    assert waiting.runs == 1


async def test_without_a_runner_the_call_is_awaited():
    agent = make_agent(background(crawl))
    assert "Background tools, awaited where no runner runs the agent: crawl" in agent.explain()
    assert (await agent.reply("call crawl")).get_text_content() == "12 pages, as you said: call crawl"
    assert agent.state.tasks == {}


async def ask_in_task(runner: RunnerBase, tool: str = "pay") -> tuple[TaskStartedEvent, RequireUserConfirmEvent]:
    """Start a task whose sub-agent asks, and return both events."""
    task = await started(await runner.submit("s", f"call {tool}"))
    question = [event async for event in runner.handle(task.session_id, task.task_id).events()][-1]
    assert isinstance(question, RequireUserConfirmEvent)
    return task, question


def clerk() -> Any:
    """Return an agent whose tool asks, as a background tool."""
    model = ScriptedChatModel([[ToolCallBlock("k1", "pay", "{}")], "Paid it."] * 10)
    return Agent("clerk", "You pay.", model, tools=[approved_pay()]).as_tool("Pays.", background=True)


class BossModel(ScriptedChatModel):
    """Asks the clerk once, and then repeats what it was told."""

    def __init__(self) -> None:
        super().__init__([self.answer] * 100)

    def answer(self, messages: Any, tools: Any) -> Any:
        text = messages[-1].get_text_content() or ""
        if text.startswith("call "):
            return [ToolCallBlock("c1", text.removeprefix("call "), '{"query": "Pay Bob."}')]
        results = messages[-1].get_content_blocks("tool_result")
        return f"You said: {results[-1].text if results else text}"


async def test_question_in_a_task_is_answered_by_way_of_the_parent(sqlite):
    async with work(Runner(make_agent(clerk(), model=BossModel()), sqlite)) as runner:
        task, question = await ask_in_task(runner, "clerk")
        assert [call.id for call in question.tool_calls] == ["c1/k1"]
        [info] = await runner.tasks("s")
        assert (info.state, info.question.reply_id) == ("waiting", task.task_id)
        assert (await (await runner.submit("s", "Hello")).result()).get_text_content() == "You said: Hello"
        handle = await runner.answer("s", answer_to(question))
        assert (handle.session_id, handle.reply_id) == (task.session_id, task.task_id)
        assert "is done. Its result follows.\nPaid it." in await woken(runner, "s", task)


async def test_call_that_asks_is_asked_about_before_it_is_let_go(sqlite):
    async with work(Runner(make_agent(background(crawl, ask=True)), sqlite)) as runner:
        handle = await runner.submit("s", "call crawl")
        question = [event async for event in handle.events()][-1]
        assert await runner.tasks("s") == []
        await runner.answer("s", answer_to(question))
        task = await started(runner.handle("s", handle.reply_id))
        assert "12 pages" in await woken(runner, "s", task)


async def test_denied_call_is_not_let_go(sqlite):
    async with work(Runner(make_agent(background(crawl, ask=True)), sqlite)) as runner:
        handle = await runner.submit("s", "call crawl")
        question = [event async for event in handle.events()][-1]
        await runner.answer("s", answer_to(question, confirmed=False))
        await handle.result()
        assert await runner.tasks("s") == []


async def test_parent_that_waits_is_woken_after_the_answer(sqlite, waiting):
    async with work(Runner(make_agent(background(waiting.wait), approved_pay()), sqlite)) as runner:
        task = await started(await runner.submit("s", "call wait"))
        parked = await runner.submit("s", "call pay")
        question = [event async for event in parked.events()][-1]
        waiting.release.set()
        await runner.handle(task.session_id, task.task_id).result()
        await runner.answer("s", answer_to(question))
        assert "waited" in await woken(runner, "s", task)
        state = await sqlite.load("s")
    replies = [message.id for message in state.context if message.role == "assistant"]
    assert replies[1:] == [parked.reply_id, f"{task.task_id}.done"]


async def test_failing_task_wakes_with_its_error(sqlite):
    async def fail() -> str:
        raise ValueError("no such site")

    async with work(Runner(make_agent(background(fail)), sqlite)) as runner:
        task = await started(await runner.submit("s", "call fail"))
        answer = await woken(runner, "s", task)
    assert f"({task.task_id}) failed. Its result follows." in answer
    assert "no such site" in answer


async def test_task_that_says_nothing_wakes_too(sqlite):
    async def nothing() -> str:
        return ""

    async with work(Runner(make_agent(background(nothing)), sqlite)) as runner:
        task = await started(await runner.submit("s", "call nothing"))
        assert await woken(runner, "s", task) == f"You said: The background call of nothing ({task.task_id}) is done."


async def test_waiting_task_is_stopped_and_wakes(sqlite):
    async with work(Runner(make_agent(clerk(), model=BossModel()), sqlite)) as runner:
        task, _ = await ask_in_task(runner, "clerk")
        assert await runner.stop_task("s", task.task_id)
        assert f"({task.task_id}) was stopped" in await woken(runner, "s", task)
        assert not await runner.stop_task("s", task.task_id)
        with pytest.raises(InvalidInputError, match="session 's' has no background call 'task:0'"):
            await runner.stop_task("s", "task:0")


async def test_running_task_is_stopped_and_wakes(sqlite, waiting):
    async with work(Runner(make_agent(background(waiting.wait)), sqlite)) as runner:
        task = await started(await runner.submit("s", "call wait"))
        await waiting.begun.wait()
        assert await runner.stop_task("s", task.task_id)
        assert f"({task.task_id}) was stopped. Its result follows." in await woken(runner, "s", task)


async def test_queued_task_is_stopped_unrun_and_wakes(sqlite):
    waiting, runs = Waiting(), []

    async def note() -> str:
        runs.append(1)
        return "noted"

    calls = [ToolCallBlock("1", "wait", "{}"), ToolCallBlock("2", "note", "{}")]
    agent = make_agent(
        background(waiting.wait), background(note), model=ScriptedChatModel([calls, "Two.", *["Woken."] * 9])
    )
    async with work(Runner(agent, sqlite, max_concurrency=1)) as runner:
        handle = await runner.submit("s", "Go")
        tasks = [event async for event in handle.events() if isinstance(event, TaskStartedEvent)]
        await waiting.begun.wait()
        assert await runner.stop_task("s", tasks[1].task_id)
        waiting.release.set()
        await woken(runner, "s", tasks[1])
    state = await sqlite.load("s")
    words = [message.get_text_content() for message in state.context if message.name == "task"]
    assert f"The background call of note ({tasks[1].task_id}) was stopped." in words
    assert runs == []


async def test_interrupt_of_the_parent_leaves_its_tasks(sqlite):
    waiting, other = Waiting(), Waiting()
    other_tool = FunctionTool(other.wait, name="block")
    async with work(Runner(make_agent(background(waiting.wait), other_tool), sqlite)) as runner:
        task = await started(await runner.submit("s", "call wait"))
        await waiting.begun.wait()
        busy = await runner.submit("s", "call block")
        await other.begun.wait()
        assert await busy.interrupt()
        waiting.release.set()
        assert "is done" in await woken(runner, "s", task)


async def test_deleted_parent_takes_its_tasks_with_it(sqlite, waiting):
    async with work(Runner(make_agent(background(waiting.wait)), sqlite)) as runner:
        task = await started(await runner.submit("s", "call wait"))
        await waiting.begun.wait()
        await runner.delete("s")
        await (await runner.submit("s", "Hello")).result()
    assert [info.session_id for info in (await sqlite.list()).sessions] == ["s"]
    assert waiting.runs == 1
    state = await sqlite.load("s")
    assert all(message.name != "task" for message in state.context), task


async def test_background_calls_beyond_the_limit_are_denied(sqlite, waiting):
    calls = [ToolCallBlock(str(number), "wait", "{}") for number in range(3)]
    model = ScriptedChatModel([calls, "Three.", *["Woken."] * 9])
    agent = make_agent(background(waiting.wait), model=model, react_config=ReActConfig(max_background=2))
    async with work(Runner(agent, sqlite)) as runner:
        await (await runner.submit("s", "Go")).result()
        assert len(await runner.tasks("s")) == 2
        waiting.release.set()
        for info in await runner.tasks("s"):
            await runner.handle(info.session_id, info.reply_id).result()
    state = await sqlite.load("s")
    results = state.context[1].get_content_blocks("tool_result")
    assert [result.state for result in results] == ["success", "success", "denied"]
    assert "ReActConfig(max_background=2) allows no more" in results[2].text


async def test_ids_of_tasks_are_not_for_callers(sqlite):
    async with Runner(make_agent(), sqlite) as runner:
        with pytest.raises(InvalidInputError, match="are for background calls"):
            await runner.submit("s", "Hello", reply_id="task:0123456789abcdef.done")


async def test_model_lists_reads_and_stops_its_tasks(sqlite, waiting):
    seen: list[str] = []

    def act(messages: Any, _: Any) -> Any:
        results = messages[-1].get_content_blocks("tool_result")
        text = results[-1].text if results else messages[-1].get_text_content() or ""
        seen.append(text)
        if text == "start":
            return [ToolCallBlock("1", "wait", "{}")]
        if text in ("list", "read", "stop"):
            name = {"list": "list_tasks", "read": "read_task", "stop": "stop_task"}[text]
            arguments = "{}" if text == "list" else f'{{"task_id": "{task_id}"}}'
            return [ToolCallBlock("1", name, arguments)]
        return "Yes."

    task_id = ""
    agent = make_agent(background(waiting.wait), *task_tools(), model=ScriptedChatModel([act] * 100))
    async with work(Runner(agent, sqlite)) as runner:
        task = await started(await runner.submit("s", "start"))
        task_id = task.task_id
        await waiting.begun.wait()
        for word in ("list", "read", "stop"):
            await (await runner.submit("s", word)).result()
        await woken(runner, "s", task)
        await (await runner.submit("s", "read")).result()
    assert f"{task_id} wait: running" in seen
    assert f"{task_id} is told to stop." in seen
    assert seen[-1].startswith(f"{task_id} wait: over\nInterrupted")
