"""What a record holds, and that nothing and nobody keeps it from there."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentrt import Agent, MiddlewareBase
from agentrt.errors import MiddlewareConfigError, Transient, UsageError
from agentrt.event import ConfirmResult, UserConfirmResultEvent
from agentrt.message import AssistantMsg, TextBlock
from agentrt.middleware import RetryMiddleware
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.permission import PermissionBehavior, PermissionDecision
from agentrt.runs import RunRecorder
from agentrt.runs import writer as writer_module
from agentrt.state import AgentState, InMemoryStateStore
from agentrt.tool import FunctionTool
from tests.loop.helpers import rebuilt
from tests.runs.conftest import SECRET, call, find, make_agent


class Swallows(MiddlewareBase):
    """Keeps all events and answers from those further out, answers by itself, and stops what it can."""

    inherited = False
    rewrites = ("tools", "system", "history")

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for _ in next_handler():
            pass
        yield AssistantMsg(agent.name, "nothing happened")

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            if not str(getattr(item, "type", "")).startswith("TEXT"):
                yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):
        await next_handler(messages=input_kwargs["messages"][-1:])
        return ChatResponse([TextBlock("a lie")])


async def test_no_layer_keeps_anything_from_the_record(store: InMemoryStateStore):
    """Complete by contract: what was sent, what came back and the end are there, whatever the layers say."""
    agent = make_agent(store, Swallows(), script=[ChatResponse([TextBlock("the truth")])])
    answer = await agent.reply("What happened?")
    run = await store.runs.load(agent.state.session_id)
    assert answer.get_text_content() == run.message.get_text_content() == "nothing happened"
    [request] = run.requests
    assert [message.get_text_content() for message in request.messages] == ["What happened?"]
    assert request.answer.content[0].text == "the truth"
    assert [(change.layer, change.where) for change in request.changes] == [
        ("Swallows", "messages[0]"),
        ("Swallows", "answer"),
    ]
    assert request.changes[0].before.get_text_content() == "You find things."
    assert (request.changes[0].after, request.changes[1].after.content[0].text) == (None, "a lie")
    assert run.lines[-1]["reason"] == run.status == "completed"
    assert (await store.runs.verify(agent.state.session_id)).ok


class SameAgain(MiddlewareBase):
    inherited = False
    rewrites = ("history",)

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler(messages=[message.copy() for message in input_kwargs["messages"]])


class Denies(MiddlewareBase):
    inherited = False

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        await next_handler()
        return PermissionDecision(PermissionBehavior.DENY, "not today")


class Adds(MiddlewareBase):
    """Adds a line to the prompt and shortens what comes in."""

    inherited = False

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt} Quickly."

    async def on_content(self, agent, content):
        return content.with_text("short") if content.source == "tool_result" else content


async def test_changes_and_decisions_are_named_with_their_layers(store: InMemoryStateStore):
    agent = make_agent(store, SameAgain(), Adds())
    await agent.reply("Find it", reply_id="r1")
    run = await store.runs.load(agent.state.session_id)
    first, second = run.requests
    assert [(change.layer, change.where, change.after) for change in first.changes] == [
        ("Adds", "current_prompt", "You find things. Quickly.")
    ]
    assert "Quickly" in first.messages[0].get_text_content()
    assert {change.layer for change in second.changes} == {"Adds"}
    [shortened] = [layer for layer in run.layers if layer.hook == "on_content" and layer.changes]
    assert "short" in str(shortened.changes[0].after)
    agent = make_agent(store, Denies())
    await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    [denial] = [layer for layer in run.layers if layer.hook == "on_check_permission" and layer.layer == "Denies"]
    assert (denial.decision, denial.reason, denial.outcome) == ("deny", "not today", "returned")
    assert denial.total_seconds >= denial.own_seconds > 0


async def test_attempts_usage_and_cost_are_those_of_the_wire(store: InMemoryStateStore):
    script = [Transient("no"), ChatResponse([TextBlock("yes")], usage=ChatUsage(1_000_000, 10))]
    agent = make_agent(store, RetryMiddleware(initial_delay=0.001), script=script, prices={"scripted": (2.0, 0.0)})
    await agent.reply("Well?")
    run = await store.runs.load(agent.state.session_id)
    assert [(request.error, request.cost) for request in run.requests] == [("Transient", None), (None, 2.0)]
    assert (run.cost, run.calls, run.usage.input_tokens) == (2.0, 1, 1_000_000)
    unpriced = make_agent(store, script=["yes"])
    await unpriced.reply("Well?")
    assert (await store.runs.load(unpriced.state.session_id)).cost is None


async def test_sub_agents_are_recorded_in_the_tree_of_their_run(store: InMemoryStateStore):
    def say(text: Any, tokens: int) -> ChatResponse:
        content = [TextBlock(text)] if isinstance(text, str) else [text]
        return ChatResponse(content, usage=ChatUsage(tokens, 0))

    child = Agent("child", "", ScriptedChatModel([say("done", 5)]))
    script = [say(call("c1", "child", '{"query": "go"}'), 1), say("all done", 2)]
    agent = make_agent(store, script=script, tools=[child.as_tool("Does it.")])
    await agent.reply("Go")
    run = await store.runs.load(agent.state.session_id)
    [below] = run.children
    assert below.parent == (run.session_id, run.reply_id, "c1")
    assert (below.agent, below.message.get_text_content(), below.usage.input_tokens) == ("child", "done", 5)
    assert (run.usage.input_tokens, run.calls, len(run.requests)) == (8, 3, 2)
    assert {event.reply_id for event in run.events} == {run.reply_id}
    [info] = (await store.runs.list()).runs
    assert (info.reply_id, info.usage.input_tokens) == (run.reply_id, 8)
    await store.delete(run.session_id)
    with pytest.raises(UsageError, match="has no run"):
        await store.runs.load(below.session_id)


async def test_a_run_that_waited_goes_on_in_its_record(open_sqlite: Any):
    first, second = open_sqlite(), open_sqlite()
    state = AgentState(session_id="s1")
    agent = make_agent(first, tools=[FunctionTool(find, ask=True)]).with_state(state)
    await agent.reply("Find it", reply_id="r1")
    await first.runs.flush()
    run = await second.runs.load("s1")
    assert (run.status, run.steps[-1].kind) == ("waiting", "question")
    other = make_agent(second, tools=[FunctionTool(find, ask=True)], script=["found"])
    other = other.with_state(await second.load("s1"))
    await other.reply(UserConfirmResultEvent("r1", [ConfirmResult(True, call("c1"))]))
    await second.runs.flush()
    run = await first.runs.load("s1")
    assert (run.status, run.message.get_text_content(), run.title) == ("completed", "found", "Find it")
    assert [line["resumed"] for line in run.lines if line["kind"] == "begin"] == [False, True]
    assert (await first.runs.verify("s1")).ok


async def test_results_side_by_side_have_one_step(store: InMemoryStateStore):
    """Between them the state is not whole: a call that runs would be in doubt."""
    agent = make_agent(store, script=[[call("c1"), call("c2"), call("c3")], "done"])
    await agent.reply("Find them")
    run = await store.runs.load(agent.state.session_id)
    assert [step.kind for step in run.steps] == ["model", "answer", "result", "model", "answer"]
    state = run.state_at(2)
    assert len(state.reply_context.message.get_content_blocks("tool_result")) == 3


async def test_deltas_of_one_batch_are_one_line(store: InMemoryStateStore):
    agent = make_agent(store, script=["one two three four five"])
    await agent.reply("Count")
    run = await store.runs.load(agent.state.session_id)
    deltas = [line for line in run.lines if line["kind"] == "event" and line["event"]["type"] == "TEXT_BLOCK_DELTA"]
    assert sum(line["count"] for line in deltas) == 5 > len(deltas)
    assert rebuilt(run.events).get_text_content() == "one two three four five"


async def test_secrets_are_redacted_before_they_are_hashed(open_sqlite: Any, tmp_path: Any):
    """Also one that comes in two pieces, and in arguments of tools."""
    store = open_sqlite()
    pieces = [ChatResponse([TextBlock(part)], is_last=False) for part in ("it is ", SECRET[:6], SECRET[6:], "!")]
    script = [[call("c1", arguments=f'{{"name": "{SECRET}"}}')], pieces]
    agent = make_agent(store, script=script, redact=[SECRET]).with_state(AgentState(session_id="s1"))
    await agent.reply(f"My key is {SECRET}")
    run = await store.runs.load("s1")
    assert run.title == run.inputs[0].get_text_content() == "My key is [REDACTED]"
    await store.delete("s1")  # which holds it in the state
    agent = agent.with_middlewares([*agent.middlewares])
    agent.state_store = None
    agent.model = ScriptedChatModel(script)
    await agent.with_state(AgentState(session_id="s2")).reply(f"My key is {SECRET}")
    run = await store.runs.load("s2")
    assert "[REDACTED]" in str(run.events)
    await store.aclose()
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    text = b"".join(content for content in _unpacked(tmp_path))
    assert SECRET.encode() not in text
    assert b"REDACTED" in text
    assert kept


@pytest.mark.parametrize("secret", ["-----BEGIN KEY-----\nabc\n-----END KEY-----", 'pässword-"1"', "k" * 470])
async def test_secrets_are_redacted_however_json_writes_them(store: InMemoryStateStore, secret: str):
    script = [
        [call("c1", arguments=json.dumps({"name": [{"it": secret}]}))],
        [call("c2", arguments=f'{{"name": {json.dumps(secret)}')],  # cut off
    ]
    agent = make_agent(store, script=[*script, "done"], redact=[secret])
    await agent.reply(f"{secret}  {secret}")
    run = await store.runs.load(agent.state.session_id)
    assert run.title == "[REDACTED] [REDACTED]"
    first, second = run.requests[0].answer, run.requests[1].answer
    assert first
    assert second
    assert [block.input for block in first.content] == ['{"name": [{"it": "[REDACTED]"}]}']
    assert [block.input.rstrip("}") for block in second.content] == ['{"name": "[REDACTED]"']
    assert json.dumps(secret)[1:-1] not in str([event.to_json() for event in run.events])


def _unpacked(folder: Any) -> Any:
    import sqlite3

    from agentrt.state.records.rows import content_text

    with sqlite3.connect(folder / "agent.db") as connection:
        for (content,) in connection.execute("SELECT content FROM run_contents"):
            yield content_text(content)
        for table, column in (("run_lines", "line"), ("runs", "title"), ("runs", "about")):
            for (value,) in connection.execute(f"SELECT {column} FROM {table}"):
                yield value if isinstance(value, bytes) else value.encode()
    connection.close()


async def test_without_content_numbers_and_names_stay(store: InMemoryStateStore):
    class Deny(MiddlewareBase):
        inherited = False

        async def on_check_permission(self, agent, input_kwargs, next_handler):
            return PermissionDecision(PermissionBehavior.DENY, "a secret reason")

    agent = make_agent(store, Deny(), script=[[call("c1")], "a secret answer"], content=False)
    await agent.reply("a secret question")
    run = await store.runs.load(agent.state.session_id)
    assert {layer.reason for layer in run.layers} == {""}
    assert (run.title, run.tools, run.calls) == ("", ["find"], 2)
    assert not any(word in str(run.lines) for word in ("secret", "found it"))
    assert {line["event"]["type"] for line in run.lines if line["kind"] == "event"} > {"REPLY_START", "TOOL_CALL_END"}
    for read in (lambda: run.state_at(0), lambda: run.requests, lambda: run.events):
        with pytest.raises(UsageError, match="recorded without content"):
            read()


def test_layers_are_not_observed_where_they_are_not_recorded():
    store = InMemoryStateStore()
    agent = make_agent(store, SameAgain(), layers=False)
    assert agent.chains.on_layer is None
    assert make_agent(store, SameAgain()).chains.on_layer is not None
    assert agent.chains.key_of(agent.middlewares[-1]) == "RunRecorder"


class Full(Exception):
    pass


async def test_a_failing_store_delays_no_reply_and_leaves_a_gap(store: InMemoryStateStore, caplog, monkeypatch):
    rows = store.runs._rows
    failing = True
    write = rows.write

    def fail(writes: Any) -> None:
        if failing:
            raise Full("with a secret")
        write(writes)

    monkeypatch.setattr(rows, "write", fail)
    agent = make_agent(store, script=["one", "two"])
    with caplog.at_level(logging.ERROR, "agentrt"):
        async with agent.reply_stream("Go", reply_id="r1") as events:
            async for event in events:
                if event.type == "TEXT_BLOCK_END":
                    await store.runs.flush()
                    failing = False
    run = await store.runs.load(agent.state.session_id)
    assert run.status == "completed"
    [gap] = [line for line in run.lines if line["kind"] == "gap"]
    assert gap["reason"] == "Full"
    assert gap["count"] > 0
    assert [record.getMessage() for record in caplog.records] == ["runs cannot be recorded, and replies continue: Full"]
    assert (await store.runs.verify(agent.state.session_id)).ok


async def test_a_full_queue_loses_items_and_says_so(store: InMemoryStateStore, monkeypatch):
    monkeypatch.setattr(writer_module, "_MAX_QUEUED", 6)
    agent = make_agent(store)
    await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    assert (run.status, run.message.get_text_content()) == ("completed", "It is there.")
    assert sum(line["count"] for line in run.lines if line["kind"] == "gap") > 10


async def test_a_run_that_is_too_long_is_cut_and_ends(store: InMemoryStateStore):
    agent = make_agent(store, script=[[call(f"c{n}")] for n in range(8)] + ["done"], max_bytes=6_000)
    await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    [gap] = [line for line in run.lines if line["kind"] == "gap"]
    assert (gap["reason"], run.lines[-1]["kind"], run.status) == ("max_bytes", "end", "completed")
    assert sum(len(str(line)) for line in run.lines) < 20_000


async def test_a_run_whose_process_died_is_ended_by_the_next(open_sqlite: Any):
    """Its last line says so, and the chain of the session continues after it."""
    first, second = open_sqlite(), open_sqlite()
    agent = make_agent(first, script=["one two", "three"]).with_state(AgentState(session_id="s1"))
    events: AsyncIterator[Any] = aiter(agent.reply_stream("Go", reply_id="r1"))
    while (await anext(events)).type != "TEXT_BLOCK_DELTA":
        pass
    await first.runs.flush()
    assert (await second.runs.load("s1")).status == "running"
    found = await second.runs.verify("s1", "r1")
    assert (found.ok, found.reason, found.first_wrong) == (False, "no end", None)
    other = make_agent(second, script=["four"]).with_state(AgentState(session_id="s1"))
    other.state_store = None
    await other.reply("Again", reply_id="r2")
    run = await second.runs.load("s1", "r1")
    assert (run.status, run.lines[-1]["reason"]) == ("died", "died")
    assert (await second.runs.verify("s1")).ok
    await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": 0}, "keep=...\\) must be a number above 0"),
        ({"max_bytes": True}, "max_bytes"),
        ({"sign": "short"}, "at least 16 bytes"),
        ({"cost_of": 3}, "cost_of"),
        ({"prices": {"m": 1}}, "prices"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], words: str):
    with pytest.raises(MiddlewareConfigError, match=words):
        RunRecorder(InMemoryStateStore(), **options)


def test_a_store_without_runs_is_refused():
    with pytest.raises(MiddlewareConfigError, match="must be a session store"):
        RunRecorder(object())
