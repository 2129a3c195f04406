"""Layers, limits and stores treat calls that a tool makes as calls of the model."""

import json
from collections import Counter
from contextlib import suppress
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState, Toolkit
from agentrt.errors import BudgetExceeded, ResumeError, SessionIOError
from agentrt.event import AgentEvent, ExternalExecutionResultEvent, RequireExternalExecutionEvent
from agentrt.message import AssistantMsg, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    CacheMiddleware,
    InformationFlowMiddleware,
    MiddlewareBase,
    RedactionMiddleware,
    ToolRetryMiddleware,
)
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionBehavior, PermissionRule
from agentrt.runs import RunRecorder
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool, ToolBase, ToolContext, ToolFlow, ToolResponse
from agentrt.types import STRUCTURED_OUTPUT, IncomingContent, JSONSchema, PermissionContext, ReActConfig
from tests.loop.helpers import Passing, agent_of, call, confirmation_of, items_of, rebuilt, saved_state, short
from tests.loop.test_calls_of_tools import Note, agent_with, paths_asked, program, result_of, two_notes

pytestmark = pytest.mark.anyio

CALLS = 20
ASKING = 3


class Audit(MiddlewareBase):
    def __init__(self) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()

    async def on_check_permission(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        self.seen["decided", input_kwargs["tool"].name] += 1
        return await next_handler(**input_kwargs)

    async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        self.seen["acting", input_kwargs["tool_call"].name] += 1
        async for item in next_handler(**input_kwargs):
            yield item

    async def on_content(self, agent: Any, content: IncomingContent) -> IncomingContent:
        if content.tool_call is not None:
            self.seen[content.source, content.name] += 1
        return content

    def on_event(self, agent: Any, event: AgentEvent) -> None:
        if event.type in ("TOOL_CALL_START", "TOOL_RESULT_START", "TOOL_RESULT_END"):
            self.seen[event.type, event.tool_call_name or ""] += 1  # type: ignore[attr-defined]  # these have it


async def twenty(context: ToolContext) -> ToolResponse | str:
    for number in range(1, CALLS + 1):
        result = await context.call("ask" if number == ASKING else "note", {"word": str(number)})
        if result.waits:
            return result
    return "done"


@pytest.fixture
def note() -> Note:
    return Note()


async def test_layers_see_twenty_inner_calls_as_twenty_of_the_model() -> None:
    inside, direct = Audit(), Audit()
    tools = [Note(), Note("ask", ask=True)]
    agent = agent_with(twenty, *tools, middlewares=[inside])
    await agent.reply("go")
    await agent.reply(confirmation_of(agent))
    calls = [[call(str(n), "ask" if n == ASKING else "note", word=str(n))] for n in range(1, CALLS + 1)]
    other = agent_of([*calls, "Done."], *tools, middlewares=[direct], react_config=ReActConfig(max_iters=30))
    await other.reply("go")
    await other.reply(confirmation_of(other))
    assert {key: count for key, count in inside.seen.items() if key[1] != "run"} == direct.seen
    assert direct.seen["acting", "note"] == CALLS - 1


async def test_a_budget_stops_the_third_call(note: Note) -> None:
    # The call of the program is the first.
    agent = agent_with(twenty, note, Note("ask"), middlewares=[BudgetMiddleware(reply=Budget(tool_calls=3))])
    reply = await agent.reply("go")
    assert (note.noted, reply.finished_reason) == (["1", "2"], "exceed_budget")


async def test_an_error_of_a_layer_leaves_the_reply(note: Note) -> None:
    async def work(context: ToolContext) -> str:
        for word in "abcd":
            with suppress(Exception):  # a tool that takes no notice
                await context.call("note", {"word": word})
        return "fine"

    layer = BudgetMiddleware(reply=Budget(tool_calls=3), on_exceed="raise")
    with pytest.raises(BudgetExceeded):
        await agent_with(work, note, middlewares=[layer]).reply("go")
    assert note.noted == ["a", "b"]


async def test_redaction_masks_what_the_program_gets_and_passes_on(note: Note) -> None:
    async def contact() -> str:
        return "write to ann@example.com"

    async def work(context: ToolContext) -> str:
        found = await context.call("contact")
        await context.call("note", {"word": found.text})
        return found.text

    agent = agent_with(work, FunctionTool(contact), note, middlewares=[RedactionMiddleware()])
    items = await items_of(agent)
    assert note.noted == ["write to [EMAIL]"]
    assert "ann@example.com" not in str(items)


async def test_programs_get_handles_and_tools_the_held_values() -> None:
    async def read() -> str:
        return "secret plan"

    sent: list[str] = []

    async def send(text: str) -> str:
        sent.append(text)
        return "sent"

    seen: list[str] = []

    async def work(context: ToolContext) -> ToolResponse | str:
        found = await context.call("read")
        seen.append(found.text)
        result = await context.call("send", {"text": found.text})
        return result if result.waits else result.text

    trusted = ToolFlow(trusted_output=True)
    tools = [FunctionTool(read), FunctionTool(send, flow=trusted)]
    tool = program(work, flow=trusted)
    agent = agent_of([[call("c", "run")], "Done."], tool, *tools, middlewares=[InformationFlowMiddleware()])
    await agent.reply("go")
    if agent.waiting() is not None:
        await agent.reply(confirmation_of(agent))
    assert "secret plan" not in seen[0]
    assert sent == ["secret plan"]


async def test_a_program_that_is_retried_runs_no_call_twice(note: Note) -> None:
    entries: list[int] = []

    async def work(context: ToolContext) -> str:
        entries.append(1)
        text = (await context.call("note", {"word": "a"})).text
        if len(entries) == 1:
            raise ValueError("once more")
        return text

    agent = agent_with(work, note, middlewares=[ToolRetryMiddleware(tools=["run"], initial_delay=0)])
    await agent.reply("go")
    assert (len(entries), note.noted, result_of(agent).text) == (2, ["a"], "note a")


async def test_a_replaced_inner_call_is_of_the_same_toolkit() -> None:
    class Replace(MiddlewareBase):
        async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            made = input_kwargs["tool_call"]
            if made.name == "first":
                made.name = "second"
            async for item in next_handler(tool_call=made):
                yield item

    async def work(context: ToolContext) -> str:
        return (await context.call("first", {"word": "a"})).text

    tool = program(work)
    tool.inner_toolkit = Toolkit(tools=[Note("first"), Note("second")])
    agent = agent_of([[call("c", "run")], "Done."], tool, middlewares=[Replace()])
    await agent.reply("go")
    assert result_of(agent).text == "second a"


async def test_an_inner_call_counts_among_those_of_the_reply(note: Note) -> None:
    states: list[ToolResultState] = []

    async def work(context: ToolContext) -> str:
        for word in "abcd":
            states.append((await context.call("note", {"word": word})).state)
        return "done"

    agent = agent_with(work, note, react_config=ReActConfig(max_tool_calls=3))
    reply = await agent.reply("go")
    assert note.noted == ["a", "b"]
    assert states == ["success", "success", "denied", "denied"]
    assert reply.finished_reason == "completed"


async def test_calls_are_as_deep_as_replies_may_be() -> None:
    async def work(context: ToolContext) -> str:
        other = {"run": "again", "again": "run"}[context.tool_call.name]
        return (await context.call(other)).text

    agent = agent_of([[call("c", "run")], "Done."], program(work), program(work, "again"))
    await agent.reply("go")
    assert result_of(agent).text == "Not run: 8 calls inside of each other are the limit."


async def test_a_journal_that_is_full_takes_no_more_calls() -> None:
    async def much() -> str:
        return "x" * 6_000_000

    states: list[str] = []

    async def work(context: ToolContext) -> str:
        for _ in range(4):
            result = await context.call("much")
            states.append(result.state)
        return result.text

    agent = agent_with(work, FunctionTool(much, max_output=10_000_000))
    await agent.reply("go")
    assert states == ["success", "success", "success", "denied"]
    assert result_of(agent).text == "Not run: the calls of run and their results hold more than 16,000,000 bytes."


async def test_the_output_of_an_inner_call_is_cut_as_its_tool_says() -> None:
    async def much() -> str:
        return "x" * 1000

    async def work(context: ToolContext) -> int:
        return len((await context.call("much")).text)

    agent = agent_with(work, FunctionTool(much, max_output=100))
    await agent.reply("go")
    assert 100 <= int(result_of(agent).text) < 300


async def test_an_inner_result_ends_no_reply() -> None:
    async def final() -> ToolResponse:
        return ToolResponse([], metadata={"response_msg": AssistantMsg("x", "The end."), "kept": 1})

    metadata: list[Any] = []

    async def work(context: ToolContext) -> str:
        metadata.append((await context.call("final")).metadata)
        return "went on"

    agent = agent_with(work, FunctionTool(final))
    reply = await agent.reply("go")
    assert (metadata, reply.get_text_content()) == ([{"kept": 1}], "Done.")


async def test_a_stop_inside_ends_the_reply() -> None:
    async def stop(context: ToolContext) -> None:
        context.agent.run.stop("interrupted", "enough")

    async def work(context: ToolContext) -> str:
        return (await context.call("stop")).text

    reply = await agent_with(work, FunctionTool(stop)).reply("go")
    assert reply.finished_reason == "interrupted"


async def test_a_failed_save_keeps_a_call_from_running(note: Note) -> None:
    class Full(InMemoryStateStore):
        is_full = False

        async def save(self, state: AgentState) -> None:
            if self.is_full:
                raise SessionIOError("the disk is full")
            await super().save(state)

    store = Full()

    async def work(context: ToolContext) -> str:
        store.is_full = True
        return (await context.call("note", {"word": "a"})).text

    with pytest.raises(SessionIOError, match="the disk is full"):
        await agent_with(work, note, state_store=store).reply("go")
    assert note.noted == []


async def test_interrupted_in_an_inner_call_the_reply_ends_tidily() -> None:
    inside = anyio.Event()

    async def slow() -> str:
        inside.set()
        await anyio.sleep_forever()
        return "never"

    async def work(context: ToolContext) -> str:
        return (await context.call("slow")).text

    agent = agent_with(work, FunctionTool(slow))
    items: list[Any] = []

    async def read() -> None:
        items.extend(await items_of(agent))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await inside.wait()
        _ = agent.interrupt()
    ends = {item.tool_call_id: item.state for item in items if getattr(item, "type", "") == "TOOL_RESULT_END"}
    assert ends == {"c/1": "interrupted", "c": "interrupted"}


async def test_a_state_without_begun_is_loaded() -> None:
    agent = agent_with(two_notes, Note(ask=True))
    await agent.reply("go")
    text = agent.state.model_dump_json()
    old = json.loads(text)
    del old["reply_context"]["inner"]["c/1"]["begun"]
    assert AgentState.model_validate_json(json.dumps(old)).reply_context.inner["c/1"].is_call is False  # type: ignore[union-attr]


@pytest.mark.parametrize("behavior", [PermissionBehavior.ALLOW, PermissionBehavior.DENY])
async def test_a_rule_with_an_answer_settles_other_questions(behavior: PermissionBehavior) -> None:
    async def work(context: ToolContext) -> ToolResponse | str:
        found = [await context.call("note", {"word": word}) for word in "abc"]
        waits = [wait for item in found for wait in item.waits]
        return ToolResponse(waits=waits) if waits else " ".join(item.state for item in found)

    note = Note(ask=True)
    agent = agent_with(work, note)
    agent.state.permission_context = PermissionContext(allow_new_rules=True)
    await agent.reply("go")
    other = agent_with(work, note, state=saved_state(agent))
    confirmed = behavior is PermissionBehavior.ALLOW
    rule = PermissionRule("note", None, behavior)
    await other.reply(confirmation_of(other, "c/1", confirmed=confirmed, rules=[rule]))
    assert other.waiting() is None
    assert result_of(other).text == " ".join(["success" if confirmed else "denied"] * 3)
    assert [rule.source for rule in other.state.permission_context.rules] == ["user"]


async def test_an_answer_that_is_too_late_or_comes_twice_counts_once() -> None:
    note = Note(ask=True)
    agent = agent_with(two_notes, note)
    await agent.reply("go")
    first = confirmation_of(agent)
    await agent.reply(first)
    await agent.reply(first)
    assert note.noted == ["a"]
    await agent.reply(confirmation_of(agent))
    await agent.reply(first)
    assert note.noted == ["a", "note a!"]


class Elsewhere(ToolBase):
    name = "elsewhere"
    is_external_tool = True
    input_schema: JSONSchema = {"type": "object", "properties": {"word": {"type": "string"}}}  # noqa: RUF012


async def test_a_program_outside_gives_the_result_of_an_inner_call() -> None:
    async def work(context: ToolContext) -> ToolResponse | str:
        result = await context.call("elsewhere", {"word": "a"})
        return result if result.waits else f"{result.text}, as {result.state}"

    agent = agent_with(work, Elsewhere())
    await agent.reply("go")
    other = agent_with(work, Elsewhere(), state=saved_state(agent))
    event = other.waiting()
    assert isinstance(event, RequireExternalExecutionEvent)
    assert [block.id for block in event.tool_calls] == ["c/1"]
    given = ExternalExecutionResultEvent(event.reply_id, [ToolResultBlock("c/1", "elsewhere", "done far away")])
    names = [short(item) for item in await items_of(other, given)]
    assert result_of(other).text == "done far away, as success"
    assert (
        names.index("RESULT_START:c/1") < names.index("RESULT_END:c/1(success)") < names.index("RESULT_END:c(success)")
    )
    await other.reply(given)  # once more, which changes nothing
    wrong = ExternalExecutionResultEvent(event.reply_id, [ToolResultBlock("c/1", "elsewhere", "something else")])
    with pytest.raises(ResumeError, match="already has another result"):
        await other.reply(wrong)


class Outermost(Passing):
    """A layer of on_reply, so that events are recorded twice."""


@pytest.mark.parametrize("layers", [[Outermost()], [RedactionMiddleware()]], ids=["on_reply", "redaction"])
async def test_layers_around_the_reply_keep_the_message_whole(layers: list[MiddlewareBase]) -> None:
    note = Note(ask=True)
    agent = agent_with(two_notes, note, middlewares=layers)
    items = await items_of(agent)
    while agent.waiting() is not None:
        given = confirmation_of(agent)
        items += [given, *await items_of(agent, given)]
    heard = rebuilt(items)
    message = agent.state.context[-1]
    assert heard.content == message.content
    assert [block.type for block in message.get_content_blocks()] == ["tool_call", "tool_result", "text"]


async def test_a_layer_asks_about_an_inner_call(note: Note) -> None:
    layer = BudgetMiddleware(reply=Budget(tool_calls=3), on_exceed="ask", raise_by=10)
    agent = agent_with(twenty, note, Note("ask"), middlewares=[layer])
    await agent.reply("go")
    [path] = paths_asked(agent)
    assert path.startswith("c/3/hidden:")
    await agent.reply(confirmation_of(agent))
    assert result_of(agent).text == "done"
    assert len(note.noted) == CALLS - 1


async def test_a_question_that_is_not_passed_on_is_asked_later() -> None:
    async def inner(context: ToolContext) -> ToolResponse | str:
        asked = await context.call("note", {"word": "deep"})
        return asked if asked.waits else asked.text

    async def outer(context: ToolContext) -> ToolResponse | str:
        deep = await context.call("inner")
        other = await context.call("note", {"word": "other"})
        return other if other.waits else deep if deep.waits else f"{deep.text}, {other.text}"

    note = Note(ask=True)
    agent = agent_with(outer, program(inner, "inner"), note)
    await agent.reply("go")
    assert paths_asked(agent) == ["c/2"]
    await agent.reply(confirmation_of(agent))
    assert paths_asked(agent) == ["c/1/1"]
    await agent.reply(confirmation_of(agent))
    assert result_of(agent).text == "note deep, note other"


class Swap(MiddlewareBase):
    """Run a program in the place of the model's call."""

    async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        made = input_kwargs["tool_call"]
        if made.id == "c":
            made.name, made.input = "run", "{}"
        async for item in next_handler(tool_call=made):
            yield item


@pytest.mark.parametrize(("asks", "states"), [(False, ("success", "success")), (True, ("interrupted", "error"))])
async def test_a_program_in_the_place_of_another_call_ends_its_calls(asks: bool, states: tuple[str, str]) -> None:
    async def work(context: ToolContext) -> ToolResponse:
        return await context.call("asked", {"word": "a"})

    # The model's call cannot wait, since the tool that it is of does not resume.
    tools = Note(), program(work), Note("asked", ask=asks)
    agent = agent_of([[call("c", "note", word="x")], "Done."], *tools, middlewares=[Swap()])
    ends = [name for name in map(short, await items_of(agent)) if name.startswith("RESULT_END")]
    assert ends == [f"RESULT_END:c/1({states[0]})", f"RESULT_END:c({states[1]})"]


async def test_a_sub_agent_in_a_program_is_recorded_below_its_run() -> None:
    async with InMemoryStateStore() as store:
        child = Agent("child", "You are asked.", ScriptedChatModel(["Found."]), middlewares=[])

        async def work(context: ToolContext) -> str:
            return (await context.call("child", {"query": "look"})).text

        agent = agent_with(work, child.as_tool("Looks."), middlewares=[RunRecorder(store)], state_store=store)
        reply = await agent.reply("go")
        await store.runs.flush()
        run = await store.runs.load(agent.state.session_id, reply.id)
    [below] = run.children
    assert below.parent == (agent.state.session_id, reply.id, "c/1")


class _Runs(ToolBase):
    """Run one call of its own tools."""

    name = "run"
    is_resumable = True

    def __init__(self, *tools: ToolBase) -> None:
        self.inner_toolkit = Toolkit([*tools])

    async def call(self, context: ToolContext) -> ToolResponse:
        return await context.call(self.inner_toolkit.names()[0])


@pytest.mark.parametrize(("is_read_only", "tries"), [(False, 1), (True, 2)])
async def test_a_retry_asks_the_inner_tool_whether_it_may_run_twice(is_read_only: bool, tries: int) -> None:
    tried: list[str] = []

    async def fetch() -> None:
        tried.append("inside")
        raise ValueError

    # The agent has another tool of that name, which is not called.
    of_agent = FunctionTool(lambda: "", name="fetch", description="Fetch.", is_read_only=not is_read_only)
    retry = ToolRetryMiddleware(max_retries=1, initial_delay=0)
    inner = FunctionTool(fetch, is_read_only=is_read_only)
    await agent_of([[call("c", "run")], "Done."], _Runs(inner), of_agent, middlewares=[retry]).reply("go")
    assert len(tried) == tries


async def test_a_cache_knows_an_inner_tool_from_one_of_the_same_name() -> None:
    def fetch(text: str) -> FunctionTool:
        return FunctionTool(lambda: text, name="fetch", description="Fetch.", is_read_only=True)

    calls = [call("c", "run")], [call("d", "fetch")]
    cache = CacheMiddleware(tools={"fetch": 60})
    agent = agent_of([*calls, "Done."], _Runs(fetch("inside")), fetch("outside"), middlewares=[cache])
    await agent.reply("go")
    assert [result_of(agent, call_id).text for call_id in "cd"] == ["inside", "outside"]


async def test_a_changed_inner_tool_is_told_from_one_of_the_same_name() -> None:
    def fetch(text: str, fingerprint: str) -> FunctionTool:
        tool = FunctionTool(lambda: text, name="fetch", description="Fetch.")
        tool.fingerprint = fingerprint
        return tool

    script = [[call("c", "run")], [call("d", "fetch")], [call("e", "run")], "Done."]
    agent = agent_of(script, _Runs(fetch("inside", "1")), fetch("outside", "2"))
    await agent.reply("go")
    assert agent.waiting() is None
    # In another process, the tool inside is another one.
    tools = _Runs(fetch("changed", "3")), fetch("outside", "2")
    other = agent_of([[call("f", "fetch"), call("g", "run")], "Done."], *tools, state=saved_state(agent))
    await other.reply("go")
    assert paths_asked(other) == ["g/1"]
    await other.reply(confirmation_of(other))
    assert result_of(other, "g").text == "changed"
    assert other.state.known_tools == {"run/fetch": "3", "fetch": "2"}


@pytest.mark.parametrize("has_room", [False, True])
async def test_an_inner_result_has_the_room_of_its_own_tool(has_room: bool) -> None:
    def elsewhere(max_output: int) -> Elsewhere:
        tool = Elsewhere()
        tool.max_output = max_output
        return tool

    inner, outer = elsewhere(100 if has_room else 10), elsewhere(10 if has_room else 100)
    agent = agent_of([[call("c", "run")], "Done."], _Runs(inner), outer)
    await agent.reply("go")
    event = agent.waiting()
    given = ExternalExecutionResultEvent(event.reply_id, [ToolResultBlock("c/1", "elsewhere", "x" * 50)])
    if has_room:
        await agent.reply(given)
        assert result_of(agent).text == "x" * 50
    else:
        with pytest.raises(ResumeError, match="at most 10 are allowed"):
            await agent.reply(given)


async def test_the_final_answer_is_not_counted_by_the_limit_of_calls(note: Note) -> None:
    async def work(context: ToolContext) -> str:
        return (await context.call("note", {"word": "a"})).text

    calls = [call("c", "run"), ToolCallBlock("d", STRUCTURED_OUTPUT, '{"name": "Rome"}')]
    agent = agent_of([calls], program(work), note, react_config=ReActConfig(max_tool_calls=2))
    form: JSONSchema = {"type": "object", "properties": {"name": {"type": "string"}}}
    await agent.reply("go", structured_schema=form)
    assert note.noted == ["a"]


async def test_answer_for_a_sub_agents_call_is_not_about_a_tool_here() -> None:
    seen: list[object] = []

    class Reader(MiddlewareBase):
        inherited = False

        async def on_content(self, agent: Any, content: IncomingContent) -> IncomingContent:
            if content.source == "feedback":
                seen.append(content.tool)
            return content

    child = Agent("child", "", ScriptedChatModel([[call("k", "note", word="a")], "Done."]), [Note(ask=True)])
    script = [[call("c", "child", query="go")], "Done."]
    agent = agent_of(script, child.as_tool("Notes."), Note(), middlewares=[Reader()])
    await agent.reply("go")
    assert paths_asked(agent) == ["c/k"]
    await agent.reply(confirmation_of(agent, confirmed=False, feedback="not now"))
    assert seen == [None]
