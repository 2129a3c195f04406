"""A tool calls other tools: each call is decided on, run, shown and saved as a call of the model."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import date
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState, Toolkit
from agentrt.errors import UsageError
from agentrt.message import ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionBehavior, PermissionMode, PermissionRule
from agentrt.tool import FunctionTool, ToolBase, ToolContext, ToolResponse
from agentrt.types import PermissionContext, ReActConfig
from tests.loop.helpers import agent_of, call, confirmation_of, items_of, rebuilt, saved_state, short

pytestmark = pytest.mark.anyio

Program = Callable[[ToolContext], Awaitable[Any]]


class Note(ToolBase):
    name = "note"

    def __init__(self, name: str = "note", ask: bool = False, **attributes: Any) -> None:
        self.name, self.ask = name, ask
        vars(self).update(attributes)
        self.noted: list[str] = []

    async def call(self, word: str) -> str:
        self.noted.append(word)
        return f"{self.name} {word}"


def program(work: Program, name: str = "run", **options: Any) -> FunctionTool:
    """Return a tool that does the work with its context."""

    async def run(context: ToolContext) -> Any:
        return await work(context)

    return FunctionTool(run, name=name, description="Runs a program.", is_resumable=True, **options)


def agent_with(work: Program, *tools: ToolBase, state: AgentState | None = None, **options: Any) -> Agent:
    """Return an agent whose model calls the program, and then says that it is done."""
    responses = ["Done."] if state is not None else [[call("c", "run")], "Done."]
    made = agent_of(responses, program(work), *tools, **options)
    return made if state is None else made.with_state(state)


def paths_asked(agent: Agent) -> list[str]:
    event = agent.waiting()
    return [] if event is None else [block.id for block in event.tool_calls]


def result_of(agent: Agent, call_id: str = "c") -> ToolResultBlock:
    context = agent.state.reply_context
    message = agent.state.context[-1] if context is None else context.message
    return next(block for block in message.get_content_blocks("tool_result") if block.id == call_id)


async def two_notes(context: ToolContext) -> ToolResponse | str:
    first = await context.call("note", {"word": "a"})
    if first.waits:
        return first
    second = await context.call("note", {"word": f"{first.text}!"})
    return second if second.waits else second.text


async def test_a_tool_gets_the_result_of_the_tool_that_it_calls() -> None:
    note = Note()
    agent = agent_with(two_notes, note)
    await agent.reply("go")
    assert (note.noted, result_of(agent).text) == (["a", "note a!"], "note note a!")


async def test_its_calls_are_told_as_those_of_the_model_under_paths() -> None:
    items = await items_of(agent_with(two_notes, Note()))
    of_call = ["CALL_START:c/{0}", "CALL_DELTA:c/{0}", "CALL_END:c/{0}", "RESULT_START:c/{0}", "RESULT_DELTA:c/{0}"]
    inside = [name.format(number) for number in (1, 2) for name in [*of_call, "RESULT_END:c/{0}(success)"]]
    order = [short(item) for item in items]
    assert order[order.index("RESULT_START:c") : order.index("RESULT_END:c(success)")] == [
        "RESULT_START:c",
        *inside,
        "RESULT_DELTA:c",
    ]


async def test_the_message_has_the_outer_call_alone() -> None:
    agent = agent_with(two_notes, Note())
    items = await items_of(agent)
    heard = rebuilt(items)
    message = agent.state.context[-1]
    assert [block.id for block in message.get_content_blocks(["tool_call", "tool_result"])] == ["c", "c"]
    assert heard.content == message.content


async def test_no_model_sees_an_inner_call() -> None:
    agent = agent_with(two_notes, Note())
    await agent.reply("go")
    model = agent.model
    assert isinstance(model, ScriptedChatModel)
    assert "c/1" not in str(model.calls[-1].messages)


async def test_a_question_parks_the_reply_until_its_answer() -> None:
    first, second = Note(ask=True), Note(ask=True)
    agent = agent_with(two_notes, first)
    await agent.reply("go")
    assert paths_asked(agent) == ["c/1"]
    # Another process, with tools of its own.
    other = agent_with(two_notes, second, state=saved_state(agent))
    await other.reply(confirmation_of(other))
    assert (first.noted, second.noted, paths_asked(other)) == ([], ["a"], ["c/2"])
    await other.reply(confirmation_of(other))
    assert (second.noted, result_of(other).text) == (["a", "note a!"], "note note a!")


async def test_a_call_of_an_entered_tool_gets_its_earlier_result() -> None:
    note, asking = Note(), Note("ask", ask=True)
    entered: list[list[str]] = []

    async def work(context: ToolContext) -> ToolResponse | str:
        texts = [(await context.call("note", {"word": str(number)})).text for number in range(5)]
        entered.append(texts)
        asked = await context.call("ask", {"word": "x"})
        return asked if asked.waits else " ".join([*texts, asked.text])

    agent = agent_with(work, note, asking)
    await agent.reply("go")
    await agent.reply(confirmation_of(agent))
    assert note.noted == ["0", "1", "2", "3", "4"]
    assert entered == [entered[0]] * 2
    assert asking.noted == ["x"]


async def test_an_answered_call_tells_no_events_again() -> None:
    async def work(context: ToolContext) -> ToolResponse | str:
        await context.call("note", {"word": "a"})
        asked = await context.call("ask", {"word": "x"})
        return asked if asked.waits else asked.text

    agent = agent_with(work, Note(), Note("ask", ask=True))
    await items_of(agent)
    names = [short(item) for item in await items_of(agent, confirmation_of(agent))]
    assert not [name for name in names if ":c/1" in name]
    assert [name for name in names if ":c/2" in name] == [
        "RESULT_START:c/2",
        "RESULT_DELTA:c/2",
        "RESULT_END:c/2(success)",
    ]


@pytest.mark.parametrize(
    ("permissions", "confirmed"),
    [
        (PermissionContext(rules=[PermissionRule("note", None, PermissionBehavior.DENY)]), None),
        (PermissionContext(mode=PermissionMode.DONT_ASK), None),
        (PermissionContext(), False),
    ],
    ids=["rule", "nobody to ask", "user"],
)
async def test_a_denied_call_is_a_result_and_no_exception(
    permissions: PermissionContext, confirmed: bool | None
) -> None:
    async def work(context: ToolContext) -> ToolResponse | str:
        denied = await context.call("note", {"word": "a"})
        return denied if denied.waits else f"{denied.state}: {denied.text}"

    note = Note(ask=True)
    agent = agent_with(work, note, state=None)
    agent.state.permission_context = permissions
    await agent.reply("go")
    if confirmed is not None:
        await agent.reply(confirmation_of(agent, confirmed=confirmed, feedback="not today"))
    assert note.noted == []
    assert result_of(agent).text.startswith("denied: ")


async def test_a_call_that_cannot_be_made_is_a_failed_result() -> None:
    seen: list[ToolResponse] = []

    async def work(context: ToolContext) -> str:
        for name, arguments in [("notes", {}), ("run", {}), ("note", {"words": 1})]:
            seen.append(await context.call(name, arguments))
        return "ok"

    agent = agent_with(work, Note())
    await agent.reply("go")
    assert [item.state for item in seen] == [ToolResultState.ERROR] * 3
    assert "does not exist. Did you mean note?" in seen[0].text
    assert "does not exist" in seen[1].text
    assert "words" in seen[2].text


async def test_questions_of_calls_side_by_side_are_asked_together() -> None:
    async def work(context: ToolContext) -> ToolResponse | str:
        found: dict[str, ToolResponse] = {}

        async def look(word: str) -> None:
            found[word] = await context.call("note", {"word": word}, id=word)

        async with anyio.create_task_group() as tasks:
            for word in ("a", "b", "c"):
                tasks.start_soon(look, word)
        waits = [wait for response in found.values() for wait in response.waits]
        return ToolResponse(waits=waits) if waits else " ".join(found[word].text for word in "abc")

    note = Note(ask=True)
    agent = agent_with(work, note)
    await agent.reply("go")
    assert sorted(paths_asked(agent)) == ["c/a", "c/b", "c/c"]
    await agent.reply(confirmation_of(agent, "c/b"))
    assert (note.noted, sorted(paths_asked(agent))) == (["b"], ["c/a", "c/c"])
    await agent.reply(confirmation_of(agent))
    assert sorted(note.noted) == ["a", "b", "c"]
    assert result_of(agent).text == "note a note b note c"


async def test_another_call_under_the_same_id_never_runs() -> None:
    words = iter("ab")

    async def work(context: ToolContext) -> ToolResponse:
        await context.call("note", {"word": next(words)})
        return await context.call("ask", {"word": "x"})

    note = Note()
    agent = agent_with(work, note, Note("ask", ask=True))
    await agent.reply("go")
    await agent.reply(confirmation_of(agent))
    result = result_of(agent)
    assert (note.noted, result.state) == (["a"], ToolResultState.ERROR)
    assert 'note({"word": "a"}) before, and now note({"word": "b"})' in result.text


async def test_a_program_calls_a_program_that_asks() -> None:
    async def outer(context: ToolContext) -> ToolResponse | str:
        inner = await context.call("inner")
        return inner if inner.waits else f"outer {inner.text}"

    note = Note(ask=True)
    agent = agent_with(outer, program(two_notes, "inner"), note)
    await agent.reply("go")
    assert paths_asked(agent) == ["c/1/1"]
    other = agent_with(outer, program(two_notes, "inner"), note, state=saved_state(agent))
    await other.reply(confirmation_of(other))
    assert paths_asked(other) == ["c/1/2"]
    await other.reply(confirmation_of(other))
    assert (note.noted, result_of(other).text) == (["a", "note a!"], "outer note note a!")


async def test_a_program_calls_a_sub_agent_that_asks() -> None:
    note = Note(ask=True)

    def child() -> Agent:
        model = ScriptedChatModel([[call("k", "note", word="deep")], "The child is done."])
        return Agent("child", "You are asked.", model, Toolkit(tools=[note]))

    async def work(context: ToolContext) -> ToolResponse | str:
        await context.call("before", {"word": "1"})
        asked = await context.call("child", {"query": "look"})
        if asked.waits:
            return asked
        return f"{asked.text} {(await context.call('before', {'word': '2'})).text}"

    before = Note("before")
    agent = agent_with(work, before, child().as_tool("Looks things up."))
    await agent.reply("go")
    event = agent.waiting()
    assert (paths_asked(agent), event.inside) == (["c/2/k"], {"c/2/k": ["child"]})
    other_child = Agent("child", "You are asked.", ScriptedChatModel(["The child is done."]), Toolkit(tools=[note]))
    other = agent_with(work, before, other_child.as_tool("Looks things up."), state=saved_state(agent))
    await other.reply(confirmation_of(other))
    assert (note.noted, before.noted) == (["deep"], ["1", "2"])
    assert result_of(other).text == "The child is done. before 2"


async def test_only_a_resumable_tool_may_call() -> None:
    async def run(context: ToolContext) -> str:
        return (await context.call("note", {"word": "a"})).text

    agent = agent_of([[call("c", "run")], "Done."], run, Note())
    await agent.reply("go")
    assert "is_resumable = True" in result_of(agent).text


async def test_outside_of_a_reply_a_tool_cannot_call() -> None:
    with pytest.raises(UsageError, match="outside of a reply"):
        await ToolContext(ToolCallBlock("c", "run", "{}")).call("note")


async def test_a_tool_calls_those_of_its_own_toolkit_where_it_has_one() -> None:
    note, own = Note(), Note("own")

    async def work(context: ToolContext) -> str:
        return " ".join([(await context.call(name, {"word": "a"})).text for name in ("own", "note")])

    tool = program(work)
    tool.inner_toolkit = Toolkit(tools=[own])
    agent = agent_of([[call("c", "run")], "Done."], tool, note)
    await agent.reply("go")
    assert (own.noted, note.noted) == (["a"], [])
    assert "The tool 'note' does not exist" in result_of(agent).text


class Busy(ToolBase):
    """Wait for another call to run beside it, and note how many did."""

    name = "busy"

    def __init__(self, name: str = "busy", safe: bool = True) -> None:
        self.name, self.is_concurrency_safe = name, safe
        self.running = self.most = 0

    async def call(self) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        self.running -= 1
        return "done"


async def side_by_side(context: ToolContext, *names: str) -> ToolResponse | str:
    found: list[ToolResponse] = []

    async def make(number: int, name: str) -> None:
        found.append(await context.call(name, id=f"n{number}"))

    async with anyio.create_task_group() as tasks:
        for number, name in enumerate(names):
            tasks.start_soon(make, number, name)
    return ToolResponse(waits=[wait for item in found for wait in item.waits]) if found[0].waits else found[0].text


@pytest.mark.parametrize(("safe", "parallel", "most"), [(True, True, 3), (False, True, 1), (True, False, 1)])
async def test_calls_run_side_by_side_where_their_tools_may(safe: bool, parallel: bool, most: int) -> None:
    async def work(context: ToolContext) -> ToolResponse | str:
        return await side_by_side(context, "busy", "busy", "busy")

    busy = Busy(safe=safe)
    await agent_with(work, busy, react_config=ReActConfig(parallel_tool_calls=parallel)).reply("go")
    assert busy.most == most


async def test_programs_beside_each_other_wait_for_no_caller() -> None:
    async def work(context: ToolContext) -> ToolResponse | str:
        return await side_by_side(context, "busy", "busy")

    async def nested(context: ToolContext) -> ToolResponse | str:
        return await side_by_side(context, "inner", "inner", "busy")

    busy = Busy(safe=False)
    calls = [call("c", "run"), call("d", "run")]
    agent = agent_of([calls, "Done."], program(nested), program(work, "inner"), busy)
    await agent.reply("go")
    assert (busy.most, result_of(agent, "c").text, result_of(agent, "d").text) == (1, "done", "done")


@pytest.mark.parametrize("order", ["ch", "hc"])
async def test_a_call_that_runs_alone_waits_for_the_model_s_calls_too(order: str) -> None:
    running: set[str] = set()
    beside: list[set[str]] = []

    def busy(name: str, safe: bool) -> FunctionTool:
        async def work() -> str:
            running.add(name)
            beside.append({*running})
            await anyio.wait_all_tasks_blocked()
            running.discard(name)
            return "done"

        return FunctionTool(work, name=name, description="Works.", is_concurrency_safe=safe)

    async def work(context: ToolContext) -> str:
        return (await context.call("alone")).text

    calls = {"c": call("c", "run"), "h": call("h", "beside")}
    agent = agent_of(
        [[calls[name] for name in order], "Done."], program(work), busy("beside", True), busy("alone", False)
    )
    await agent.reply("go")
    assert sorted(map(sorted, beside)) == [["alone"], ["beside"]]


async def test_calls_made_in_one_expression_have_its_order() -> None:
    async def work(context: ToolContext) -> str:
        calls = [context.call("note", {"word": word}) for word in "abc"]
        return " ".join([(await made).text for made in reversed(calls)])

    agent = agent_with(work, Note())
    names = [short(item) for item in await items_of(agent)]
    assert [name for name in names if name.startswith("CALL_START")] == [
        "CALL_START:c",
        "CALL_START:c/3",
        "CALL_START:c/2",
        "CALL_START:c/1",
    ]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a task of trio ends before the tool that starts it
async def test_a_call_left_in_progress_stops_with_its_tool() -> None:
    started, stopped = anyio.Event(), anyio.Event()

    async def slow() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    async def work(context: ToolContext) -> str:
        left.append(asyncio.ensure_future(context.call("slow")))
        await started.wait()
        return "gone"

    left: list[asyncio.Future[ToolResponse]] = []
    agent = agent_with(work, FunctionTool(slow))
    names = [short(item) for item in await items_of(agent)]
    assert stopped.is_set()
    with pytest.raises(UsageError, match=r"is over, so it makes no more calls: await each ToolContext.call\(\)"):
        await left[0]
    assert "RESULT_END:c/1(interrupted)" in names
    assert result_of(agent).text == "gone"


async def test_a_question_that_the_tool_keeps_to_itself_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work(context: ToolContext) -> str:
        return (await context.call("note", {"word": "a"})).text

    agent = agent_with(work, Note(ask=True))
    names = [short(item) for item in await items_of(agent)]
    assert "its call 'c/1' of note waited for an answer, and so was not run" in caplog.text
    assert "RESULT_END:c/1(interrupted)" in names


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"id": "a/b"},
        {"id": "hidden:1"},
        {"id": "x" * 129},
        {"id": 7},
        {"id": "\ud800"},
        {"arguments": []},
        {"arguments": {1: 2}},
        {"arguments": {"word": float("nan")}},
        {"arguments": {"word": object()}},
        {"arguments": {"word": "x" * 16_000_001}},
        {"name": 7},
        {"name": "\ud800"},
    ],
)
async def test_what_is_no_call_is_refused_in_words(wrong: dict[str, Any]) -> None:
    async def work(context: ToolContext) -> str:
        values: Any = {"name": "note", **wrong}
        with pytest.raises(UsageError, match=r"ToolContext\.call"):
            await context.call(values.pop("name"), values.pop("arguments", None), **values)
        return "refused"

    agent = agent_with(work, Note())
    await agent.reply("go")
    assert result_of(agent).text == "refused"


async def test_two_calls_never_share_an_id() -> None:
    async def work(context: ToolContext) -> str:
        await context.call("note", {"word": "a"})
        with pytest.raises(UsageError, match="also the number of another one"):
            await context.call("note", {"word": "a"}, id="1")
        await context.call("note", {"word": "b"}, id="2")
        with pytest.raises(UsageError, match="also the number of another one"):
            await context.call("note", {"word": "b"})
        return "refused"

    note = Note()
    agent = agent_with(work, note)
    await agent.reply("go")
    assert (result_of(agent).text, note.noted) == ("refused", ["a", "b"])


async def test_arguments_count_in_the_journal_too() -> None:
    states: list[str] = []

    async def work(context: ToolContext) -> None:
        for _ in range(3):
            states.append((await context.call("write", {"text": "x" * 7_000_000})).state)

    async def write(text: str) -> str:
        return "written"

    await agent_with(work, FunctionTool(write, max_output=10_000_000)).reply("go")
    assert states[-1] == "denied"


async def test_metadata_is_the_same_when_the_tool_is_entered_again() -> None:
    got: list[object] = []

    async def look() -> ToolResponse:
        return ToolResponse([], metadata={"pair": (1, 2), "on": date(2026, 1, 1)})

    async def work(context: ToolContext) -> ToolResponse:
        got.append((await context.call("look")).metadata)
        return await context.call("note", {"word": "a"})

    tools = FunctionTool(look), Note(ask=True)
    agent = agent_with(work, *tools)
    await agent.reply("go")
    other = agent_with(work, *tools, state=saved_state(agent))
    await other.reply(confirmation_of(other))
    assert got == [{"pair": [1, 2], "on": "2026-01-01"}] * 2


async def test_a_call_left_in_the_middle_begins_once_for_each_listener() -> None:
    left: list[AgentState] = []
    scopes: list[anyio.CancelScope] = []

    async def slow() -> str:
        left.append(saved_state(agent))
        scopes[-1].cancel()
        await anyio.sleep_forever()
        return ""

    async def work(context: ToolContext) -> ToolResponse | str:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await context.call("slow")
        asked = await context.call("note", {"word": "a"})
        return asked if asked.waits else asked.text

    tools = FunctionTool(slow), Note(ask=True)
    agent = agent_with(work, *tools)
    same = [*await items_of(agent), *await items_of(agent, confirmation_of(agent))]
    # Another process, whose listener gets the reply's message, in which inner calls are not.
    other = await items_of(agent_with(work, *tools, state=left[0]), None)
    for items in same, other:
        of_slow = [name for name in map(short, items) if "c/1" in name]
        assert [name.partition(":")[0] for name in of_slow if "DELTA" not in name] == [
            "CALL_START",
            "CALL_END",
            "RESULT_START",
            "RESULT_END",
        ]


async def test_an_answer_wakes_a_program_with_other_open_questions() -> None:
    first, second = Note("first", ask=True), Note("second", ask=True)

    async def both(context: ToolContext) -> ToolResponse | str:
        one, other = [await context.call(name, {"word": "a"}) for name in ("first", "second")]
        return ToolResponse(waits=[*one.waits, *other.waits]) if one.waits or other.waits else other.text

    async def work(context: ToolContext) -> ToolResponse:
        return await context.call("both")

    agent = agent_with(work, program(both, "both"), first, second)
    await agent.reply("go")
    await agent.reply(confirmation_of(agent, "c/1/2"))
    assert (first.noted, second.noted, paths_asked(agent)) == ([], ["a"], ["c/1/1"])
    await agent.reply(confirmation_of(agent))
    assert (first.noted, second.noted, result_of(agent).text) == (["a"], ["a"], "second a")


async def test_no_call_of_a_tool_looks_through_earlier_ones() -> None:
    class Journal(dict[str, Any]):
        looked = 0

        def __reversed__(self) -> Any:
            for path in super().__reversed__():
                self.looked += 1
                yield path

        def items(self) -> Any:
            self.looked += len(self)
            return super().items()

    journal = Journal()

    async def work(context: ToolContext) -> None:
        context.agent.state.reply_context.inner = journal
        for number in range(50):
            await context.call("note", {"word": str(number)})
        assert len(journal) == 50
        assert journal.looked < 4 * 50

    agent = agent_with(work, Note())
    await agent.reply("Go")
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].state == "success"
