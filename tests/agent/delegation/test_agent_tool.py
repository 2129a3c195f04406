"""An agent as a tool of another one."""

from contextlib import aclosing
from typing import Any

import pydantic
import pytest

from agentrt import Agent, MiddlewareBase, Msg, UserMsg
from agentrt.errors import ToolConfigError
from agentrt.event import ReplyEndEvent, SubagentEndEvent
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import Handoffs
from tests.agent.delegation.helpers import Counting, agent_of, asking_child, boss_of, call, results_of
from tests.loop.helpers import confirmation_of, items_of, rebuilt, saved_state

pytestmark = pytest.mark.anyio


@pytest.fixture
def counting() -> Counting:
    return Counting()


async def test_the_answer_of_a_child_is_the_result_of_the_call() -> None:
    boss = boss_of(agent_of("searcher", ["The Moon is far."]))
    final = await boss.reply("How far is the Moon?")
    assert final.get_text_content() == "All done."
    result = results_of(boss)["1"]
    assert (result.state, result.text) == ("success", "The Moon is far.")
    assert result.metadata == {"subagent": "searcher", "supervisor": "boss"}


def test_the_description_of_an_agent_is_that_of_its_tool() -> None:
    writer = Agent("writer", "secret", ScriptedChatModel(["x"]), description="Writes.")
    assert (writer.as_tool().description, writer.as_tool("Publishes.").description) == ("Writes.", "Publishes.")
    with pytest.raises(ToolConfigError, match=r"as Agent\(description=...\)"):
        agent_of("plain", ["x"]).as_tool()
    handoffs = Handoffs([writer, agent_of("plain", ["x"])])
    assert "Writes." in str(handoffs.agents["plain"].toolkit.table.schemas([]))


async def test_a_child_has_a_fresh_conversation_for_each_call() -> None:
    searcher = agent_of("searcher", ["One.", "Two."])
    tool = searcher.as_tool("Searches.")
    boss = agent_of("boss", [[call("1", "searcher", query="a")], [call("2", "searcher", query="b")], "Done."], tool)
    await boss.reply("go")
    heard = [[message.get_text_content() for message in each.messages[1:]] for each in searcher.model.calls]
    assert heard == [["a"], ["b"]]
    assert (searcher.state.context, len(boss.state.context)) == ([], 2)


async def test_the_events_of_a_child_come_between_its_start_and_end() -> None:
    boss = boss_of(agent_of("searcher", ["Found."]))
    items = await items_of(boss)
    events = items[:-1]
    types = [event.type for event in events]
    start, end = events[types.index("SUBAGENT_START")], events[types.index("SUBAGENT_END")]
    between = events[types.index("SUBAGENT_START") + 1 : types.index("SUBAGENT_END")]
    assert {event.reply_id for event in between} == {start.child_reply_id}
    assert [between[0].type, between[-1].type] == ["REPLY_START", "REPLY_END"]
    assert (start.tool_call_id, start.name, start.resumed) == ("1", "searcher", False)
    assert start.child_session_id == f"{boss.state.session_id}.searcher.1"
    assert (end.state, end.usage is not None) == ("success", True)
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert rebuilt(events).content == boss.state.context[-1].content


async def test_without_stream_only_the_ends_are_seen() -> None:
    tool = agent_of("searcher", ["Found."]).as_tool("Searches.", stream=False)
    items = await items_of(agent_of("boss", [[call("1", "searcher", query="a")], "Done."], tool))
    assert {item.reply_id for item in items[:-1]} == {items[-1].id}
    assert [item.type for item in items[:-1] if item.type.startswith("SUBAGENT")] == ["SUBAGENT_START", "SUBAGENT_END"]


async def test_a_question_inside_a_child_is_asked_and_answered_outside(counting: Counting) -> None:
    boss = boss_of(asking_child(counting))
    items = await items_of(boss)
    asked = [item for item in items[:-1] if item.type == "REQUIRE_USER_CONFIRM"]
    assert [(event.reply_id, [block.id for block in event.tool_calls]) for event in asked] == [(items[-1].id, ["1/k1"])]
    assert asked[0].inside == {"1/k1": ["writer"]}
    assert counting.runs == []
    await boss.reply(confirmation_of(boss))
    assert counting.runs == ["a"]
    assert results_of(boss)["1"].text == "writer has published a."


@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_parked_child_resumes_in_another_process(confirmed: bool, counting: Counting) -> None:
    boss = boss_of(asking_child(counting))
    await boss.reply("go")
    other = boss_of(asking_child(counting))
    other.model = agent_of("x", ["All done."]).model
    other = other.with_state(saved_state(boss))
    writer = other.toolkit.get("writer").agent
    writer.model = agent_of("x", ["It is out." if confirmed else "They said no."]).model
    items = await items_of(other, confirmation_of(other, confirmed=confirmed))
    assert [item.resumed for item in items[:-1] if item.type == "SUBAGENT_START"] == [True]
    assert counting.runs == (["a"] if confirmed else [])
    assert results_of(other)["1"].text == ("It is out." if confirmed else "They said no.")
    assert other.state.last_reply.finished_reason == "completed"


async def test_answers_to_two_children_wake_only_the_one_that_is_meant(counting: Counting) -> None:
    boss = boss_of(asking_child(counting, "writer", "a"), asking_child(counting, "printer", "b"))
    await boss.reply("go")
    assert sorted(block.id for block in boss.waiting().tool_calls) == ["1/k1", "2/k1"]
    items = await items_of(boss, confirmation_of(boss, "2/k1"))
    assert [item.name for item in items[:-1] if item.type == "SUBAGENT_START"] == ["printer"]
    assert counting.runs == ["b"]
    await boss.reply(confirmation_of(boss))
    assert counting.runs == ["b", "a"]
    assert boss.state.last_reply.finished_reason == "completed"


def three_deep(counting: Counting) -> Any:
    writer = asking_child(counting)
    editor = agent_of(
        "editor", [[call("e1", "writer", query="write")], "Edited."], writer.as_tool("Writes and publishes.")
    )
    return boss_of(editor)


async def test_a_question_at_depth_three_has_a_path_of_three_parts(counting: Counting) -> None:
    boss = three_deep(counting)
    await boss.reply("go")
    event = boss.waiting()
    assert [block.id for block in event.tool_calls] == ["1/e1/k1"]
    assert event.inside == {"1/e1/k1": ["editor", "writer"]}
    await boss.reply(confirmation_of(boss))
    assert counting.runs == ["a"]
    assert results_of(boss)["1"].text == "Edited."


async def test_events_at_depth_three_are_seen_once_and_in_order() -> None:
    boss = three_deep(Counting())
    events = [*(await items_of(boss))[:-1], *(await items_of(boss, confirmation_of(boss)))[:-1]]
    numbers = [event.seq for event in events]
    assert numbers == sorted(set(numbers))
    assert len({event.reply_id for event in events}) == 3


@pytest.mark.parametrize(("behavior", "expected"), [("deny", []), ("ask", [])], ids=["deny", "ask"])
async def test_rules_of_the_supervisor_hold_at_depth_three(behavior: str, expected: list[str]) -> None:
    from agentrt.permission import PermissionRule

    counting = Counting()
    writer = agent_of("writer", [[call("k1", "publish", what="a")], "Tried."] * 2, counting.tool())
    editor = agent_of("editor", [[call("e1", "writer", query="write")], "Edited."], writer.as_tool("Writes."))
    boss = boss_of(editor)
    boss.state.permission_context.rules.append(PermissionRule("publish", behavior=behavior))
    await boss.reply("go")
    assert counting.runs == expected
    if behavior == "ask":
        assert [block.id for block in boss.waiting().tool_calls] == ["1/e1/k1"]
    else:
        assert boss.state.last_reply.finished_reason == "completed"


async def test_a_budget_of_the_supervisor_holds_at_depth_three(counting: Counting) -> None:
    from agentrt.middleware import Budget, BudgetMiddleware

    publishes = [[call(f"k{number}", "publish", what=str(number))] for number in range(9)]
    writer = agent_of("writer", [*publishes], counting.tool())
    editor = agent_of("editor", [[call("e1", "writer", query="write")], "Edited."], writer.as_tool("Writes."))
    boss = boss_of(editor, middlewares=[BudgetMiddleware(reply=Budget(model_calls=4, tool_calls=50))])
    await boss.reply("go")
    assert counting.runs == ["0", "1"]  # the calls of the boss and the editor were two of the four
    assert boss.state.last_reply.finished_reason == "exceed_budget"


async def test_a_rule_that_is_added_while_a_child_waits_holds_for_it(counting: Counting) -> None:
    from agentrt.permission import PermissionRule

    boss = boss_of(asking_child(counting))
    await boss.reply("go")
    boss.state.permission_context.rules.append(PermissionRule("publish", behavior="deny"))
    await boss.reply(confirmation_of(boss))
    assert counting.runs == []
    assert boss.state.last_reply.finished_reason == "completed"


@pytest.mark.parametrize(
    ("own", "supervisor", "expected"),
    [
        ("default", "explore", "explore"),
        ("explore", "default", "explore"),
        ("bypass", "default", "default"),
        ("bypass", "accept_edits", "accept_edits"),
        ("dont_ask", "default", "dont_ask"),
        ("explore", "dont_ask", "explore"),
        ("bypass", "bypass", "bypass"),
    ],
)
async def test_the_stricter_mode_holds(own: str, supervisor: str, expected: str) -> None:
    from agentrt.permission import PermissionContext, PermissionMode
    from agentrt.tool import ToolContext

    seen: list[str] = []

    class Look(Counting):
        pass

    from agentrt.tool import ToolBase

    class Looking(ToolBase):
        name = "look"
        is_read_only = True

        async def call(self, context: ToolContext) -> str:
            seen.append(str(context.agent.state.permission_context.mode))
            return "seen"

    child = agent_of("child", [[call("k1", "look")], "Seen."], Looking())
    child.state.permission_context = PermissionContext(PermissionMode(own))
    tool = child.as_tool("Looks.")
    tool.is_read_only = True
    boss = agent_of("boss", [[call("1", "child", query="look")], "Done."], tool)
    boss.state.permission_context = PermissionContext(PermissionMode(supervisor))
    await boss.reply("go")
    assert seen == [expected]


async def test_structured_input_and_output() -> None:
    class Report(pydantic.BaseModel):
        title: str
        pages: int = 2

    class Verdict(pydantic.BaseModel):
        good: bool

    critic = agent_of("critic", [[call("k1", "GenerateStructuredOutput", good=True)]])
    prompts: list[Report] = []

    def prompt(report: Report) -> Msg:
        prompts.append(report)
        return UserMsg("boss", f"Judge {report.title}.")

    tool = critic.as_tool("Judges.", input=Report, prompt=prompt, output=Verdict)
    boss = agent_of("boss", [[call("1", "critic", title="Moon")], "Done."], tool)
    await boss.reply("go")
    assert prompts == [Report(title="Moon")]
    assert critic.model.calls[0].messages[1].get_text_content() == "Judge Moon."
    assert results_of(boss)["1"].text == '{"good":true}'


async def test_a_context_function_tells_of_the_conversation() -> None:
    child = agent_of("child", ["Yes."])
    tool = child.as_tool("Answers.", context=lambda context, arguments: f"Before: {len(context.agent.state.context)}")
    boss = agent_of("boss", [[call("1", "child", query="a")], "Done."], tool)
    await boss.reply("go")
    assert [message.get_text_content() for message in child.model.calls[0].messages[1:]] == ["Before: 1", "a"]


async def test_a_summary_tells_of_the_newest_events() -> None:
    child = agent_of("child", ["Yes."])
    tool = child.as_tool("Answers.", context="summary")
    boss = agent_of("boss", ["Hello.", [call("1", "child", query="task a")], "Done."], tool)
    await boss.reply("good morning")
    await boss.reply("please delegate")
    told, task = child.model.calls[0].messages[1:]
    assert (told.role, task.get_text_content()) == ("user", "task a")
    context = told.metadata["delegation_context"]
    assert context["task_summary"] == "task a"
    assert [words in " ".join(context["recent_events"]) for words in ("good morning", "Hello.", "please delegate")] == [
        True,
        True,
        True,
    ]


CANARY = "canary 4711"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failing_child_is_an_error_result_without_its_words(stream: bool, caplog: Any) -> None:
    child = agent_of("child", [RuntimeError(CANARY)])
    boss = agent_of("boss", [[call("1", "child", query="a")], "Done."], child.as_tool("Fails.", stream=stream))
    items = await items_of(boss)
    result = results_of(boss)["1"]
    assert (result.state, result.text) == ("error", "[subagent_error] child: RuntimeError")
    assert result.metadata == {"unavailable": True, "error": "RuntimeError", "subagent": "child", "supervisor": "boss"}
    told = [item.to_json() for item in items]
    assert all(CANARY not in text for text in [*told, boss.state.model_dump_json(), caplog.text])
    assert [item.state for item in items[:-1] if item.type == "SUBAGENT_END"] == ["error"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_child_that_exits_is_an_error_result(stream: bool, caplog: Any) -> None:
    class Exits(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            raise SystemExit(CANARY)

    child = agent_of("child", ["x"], middlewares=[Exits()])
    boss = agent_of("boss", [[call("1", "child", query="a")], "Done."], child.as_tool("Exits.", stream=stream))
    await boss.reply("go")
    result = results_of(boss)["1"]
    assert (result.state, result.text) == ("error", "[subagent_error] child: SystemExit")
    assert result.metadata["error"] == "SystemExit"
    assert CANARY not in boss.state.model_dump_json() + caplog.text


async def test_a_child_whose_time_is_up_is_a_timeout_result() -> None:
    import anyio

    async def wait() -> str:
        await anyio.sleep_forever()
        return ""

    child = agent_of("child", [[call("k1", "wait")], "Waited."], wait)
    boss = agent_of("boss", [[call("1", "child", query="a")], "Done."], child.as_tool("Waits.", timeout=0.05))
    await boss.reply("go")
    result = results_of(boss)["1"]
    assert (result.state, result.text) == ("timeout", "[subagent_timeout] child: TimeoutError")
    assert result.metadata["unavailable"] is True


async def test_a_child_at_its_limit_is_an_error_result() -> None:
    from agentrt.agent import ReActConfig

    async def again() -> str:
        return "again"

    rounds = [[call(f"k{number}", "again")] for number in range(3)]
    child = agent_of("child", [*rounds[:2], "Only half."], again, react_config=ReActConfig(max_iters=2))
    boss = boss_of(child)
    await boss.reply("go")
    result = results_of(boss)["1"]
    assert result.state == "error"
    assert result.text.splitlines() == ["[subagent_max_iters] child: UnfinishedReply", "Only half."]


async def test_interrupting_one_delegation_ends_that_call_alone() -> None:
    import anyio

    begun = anyio.Event()

    async def wait() -> str:
        begun.set()
        await anyio.sleep_forever()
        return ""

    slow = agent_of("slow", [[call("k1", "wait")], "Waited."], wait)
    boss = boss_of(slow, agent_of("quick", ["Quick."]))
    tool = boss.toolkit.get("slow")
    async with anyio.create_task_group() as group:

        async def interrupt() -> None:
            await begun.wait()
            [delegation] = tool.running(boss)
            assert tool.running(agent_of("other", [])) == []
            assert (delegation.name, delegation.call_id) == ("slow", "1")
            delegation.interrupt()

        group.start_soon(interrupt)
        await boss.reply("go")
    results = results_of(boss)
    assert (results["1"].state, results["1"].text) == ("interrupted", "[subagent_interrupted] slow: UnfinishedReply")
    assert (results["2"].state, tool.running()) == ("success", [])
    assert boss.state.last_reply.finished_reason == "completed"


async def test_interrupting_the_supervisor_stops_its_children() -> None:
    import anyio

    begun, stopped = anyio.Event(), anyio.Event()

    async def wait() -> str:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ""

    boss = boss_of(agent_of("slow", [[call("k1", "wait")], "Waited."], wait))
    async with anyio.create_task_group() as group:

        async def interrupt() -> None:
            await begun.wait()
            boss.interrupt()

        group.start_soon(interrupt)
        await boss.reply("go")
    assert stopped.is_set()
    assert (results_of(boss)["1"].state, boss.state.reply_context) == ("interrupted", None)


def unclosed(events: list[Any]) -> list[str]:
    """Return what was started and not ended, in any of the replies that the events tell of."""
    open_parts: list[str] = []
    for event in events:
        ids = (event.reply_id, getattr(event, "block_id", ""), getattr(event, "tool_call_id", ""))
        name, _, kind = event.type.rpartition("_")
        if kind == "START":
            open_parts.append(f"{name} {ids}")
        elif kind == "END":
            open_parts.remove(f"{name} {ids}")
    return open_parts


@pytest.mark.parametrize("where", ["a tool", "the model"])
@pytest.mark.parametrize("stopped_by", ["interrupt", "timeout"])
async def test_a_child_that_is_stopped_closes_all_it_has_begun(where: str, stopped_by: str) -> None:
    import anyio

    async def stop() -> None:
        if stopped_by == "interrupt":
            boss.interrupt()
        await anyio.sleep_forever()

    async def wait() -> str:
        await stop()
        return ""

    class Slow(ScriptedChatModel):
        async def _call(self, *arguments: Any) -> Any:
            pieces = await super()._call(*arguments)

            async def stream() -> Any:
                async with aclosing(pieces):
                    yield await anext(pieces)
                    await stop()

            return stream() if where == "the model" else pieces

    seconds = 0.05 if stopped_by == "timeout" else None
    leaf = agent_of("leaf", [], wait)
    leaf.model = Slow([[call("k1", "wait")] if where == "a tool" else "Some words to say."])
    middle = agent_of("middle", [[call("m1", "leaf", query="x")], "Done."], leaf.as_tool("Does it."))
    boss = agent_of("boss", [[call("1", "middle", query="x")], "Done."], middle.as_tool("Asks.", timeout=seconds))
    async with boss.reply_stream("go") as stream:
        events = [event async for event in stream]
    assert unclosed(events) == []
    ends = {event.name: event.state for event in events if isinstance(event, SubagentEndEvent)}
    assert ends == {"leaf": "interrupted", "middle": "interrupted" if stopped_by == "interrupt" else "timeout"}
    replies = [event.finished_reason for event in events if isinstance(event, ReplyEndEvent)]
    assert replies == ["interrupted"] * 2 + ["interrupted" if stopped_by == "interrupt" else "completed"]


async def test_result_without_its_form_is_alike_streamed_and_awaited() -> None:
    results = []
    for is_seen in (True, False):
        critic = agent_of("critic", ["No form."] * 3)
        boss = agent_of("boss", [[call("1", "critic", query="x")], "Done."], critic.as_tool("Judges.", output=dict))
        if is_seen:
            await boss.reply_stream("go").drain()
        else:
            await boss.reply("go")
        results.append(results_of(boss)["1"])
    assert results[0].metadata == results[1].metadata
    assert results[0].metadata["error"] == "max_form_attempts"


async def test_a_cycle_of_agents_ends_in_a_denied_result() -> None:
    me = agent_of("me", [])
    me.model = agent_of("x", [lambda messages, tools: [call("1", "me", query="again")] if tools else "x"] * 30).model

    def respond(messages: Any, tools: Any) -> Any:
        results = [block for message in messages for block in message.get_content_blocks("tool_result")]
        return "Enough." if results else [call("1", "me", query="again")]

    from agentrt.model import ScriptedChatModel

    me.model = ScriptedChatModel([respond] * 100)
    me.toolkit.register_tool_function(me.as_tool("Asks itself."))
    final = await me.reply("go")
    assert final.get_text_content() == "Enough."
    asked = [each for each in me.model.calls if len(each.messages) == 2]
    assert len(asked) == 8  # replies inside of each other


async def test_delegations_beyond_the_limit_are_denied() -> None:
    from agentrt.agent import ReActConfig

    child = agent_of("child", ["Yes."] * 5)
    calls = [call(str(number), "child", query="a") for number in range(5)]
    boss = agent_of("boss", [calls, "Done."], child.as_tool("Answers."), react_config=ReActConfig(max_delegations=3))
    await boss.reply("go")
    assert sorted(result.state for result in results_of(boss).values()) == ["denied"] * 2 + ["success"] * 3
    assert len(child.model.calls) == 3


async def test_at_most_so_many_calls_run_at_a_time() -> None:
    import anyio

    running = most = 0

    async def work() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.lowlevel.checkpoint()
        running -= 1
        return "worked"

    def respond(messages: Any, tools: Any) -> Any:
        results = [block for message in messages for block in message.get_content_blocks("tool_result")]
        return "Done." if results else [call("k", "work")]

    from agentrt.model import ScriptedChatModel

    child = agent_of("child", [], work)
    child.model = ScriptedChatModel([respond] * 20)
    calls = [call(str(number), "child", query="a") for number in range(6)]
    boss = agent_of("boss", [calls, "Done."], child.as_tool("Works.", max_concurrency=2))
    await boss.reply("go")
    assert most == 2
    assert [result.state for result in results_of(boss).values()] == ["success"] * 6


async def test_a_state_of_another_shape_is_an_error_result(counting: Counting) -> None:
    boss = boss_of(asking_child(counting))
    await boss.reply("go")
    question = confirmation_of(boss)
    boss.state.reply_context.kept["1"]["state"] = {"version": 99}
    await boss.reply(question)
    assert results_of(boss)["1"].text == "[subagent_error] writer: SessionVersion"
    assert boss.state.last_reply.finished_reason == "completed"


async def test_a_child_that_is_no_tool_any_more_is_an_error_result(counting: Counting) -> None:
    boss = boss_of(asking_child(counting))
    await boss.reply("go")
    other = agent_of("boss", ["Done."], state=saved_state(boss))
    await other.reply(confirmation_of(other))
    assert results_of(other)["1"].state == "error"
    assert other.state.last_reply.finished_reason == "completed"


async def test_files_are_a_part_of_those_of_the_supervisor(tmp_path: Any) -> None:
    from agentrt.tool import ToolContext
    from agentrt.workspace import LocalWorkspace

    async def note(context: ToolContext) -> str:
        await context.workspace.write_text("note.md", "x")
        return context.workspace.location

    child = agent_of("child", [[call("k1", "note")], "Noted."], note)
    files = LocalWorkspace(tmp_path)
    boss = boss_of(child)
    boss.workspace = files
    await boss.reply("go")
    assert await files.list("subagents/child") == ["note.md"]


async def test_a_child_prints_nothing(capsys: Any) -> None:
    child = agent_of("child", ["Secret."])
    child.set_console_output_enabled(True)
    await boss_of(child).reply("go")
    assert "Secret" not in capsys.readouterr().out


async def test_deps_reach_the_tools_of_a_child() -> None:
    from agentrt.tool import ToolContext

    seen: list[Any] = []

    async def look(context: ToolContext) -> str:
        seen.append(context.deps)
        return "seen"

    boss = boss_of(agent_of("child", [[call("k1", "look")], "Seen."], look))
    await boss.reply("go", deps="ann")
    assert seen == ["ann"]


async def write_later(*arguments: Any) -> str:
    return "later"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"description": " "}, "description"),
        ({"input": 3}, r"as_tool\(input=...\)"),
        ({"output": "str"}, r"as_tool\(output=...\)"),
        ({"prompt": "Judge it."}, r"as_tool\(prompt=...\)"),
        ({"context": "everything"}, r"as_tool\(context=...\)"),
        ({"prompt": write_later}, r"as_tool\(prompt=...\) of 'child' is called and not awaited: write `def`"),
        ({"context": write_later}, r"as_tool\(context=...\) of 'child' is called and not awaited"),
        ({"inherit": ["Tracing"]}, r"as_tool\(inherit=...\)"),
        ({"timeout": 0}, r"as_tool\(timeout=...\)"),
        ({"timeout": float("inf")}, r"as_tool\(timeout=...\)"),
        ({"max_concurrency": 0}, r"as_tool\(max_concurrency=...\)"),
        ({"stream": "no"}, r"as_tool\(stream=...\) of 'child' must be True or False, not 'no'"),
        ({"stream": 0}, r"as_tool\(stream=...\)"),
        ({"workspace": "files"}, r"as_tool\(workspace=...\)"),
        ({"name": "no name"}, "name of a tool"),
    ],
)
def test_what_makes_no_tool_is_refused(options: dict[str, Any], words: str) -> None:
    from agentrt.errors import ConfigError

    child = agent_of("child", [])
    with pytest.raises(ConfigError, match=words):
        child.as_tool(**{"description": "Answers.", **options})


def test_an_agent_whose_name_is_no_tool_name_needs_another() -> None:
    with pytest.raises(ToolConfigError, match="name="):
        agent_of("Ann Lee", []).as_tool("Answers.")
    assert agent_of("Ann Lee", []).as_tool("Answers.", name="ann").name == "ann"


def test_two_agents_of_one_tool_name_are_refused_by_their_names() -> None:
    finder, searcher = agent_of("finder", []), agent_of("searcher", [])
    tools = finder.as_tool("Finds."), searcher.as_tool("Searches.", name="finder")
    with pytest.raises(ToolConfigError) as caught:
        agent_of("boss", [], *tools)
    assert "two tools are called 'finder': the agent 'finder' and the agent 'searcher'; rename one" in str(caught.value)
    assert "agent.as_tool(..., name=...)" in str(caught.value)


def test_an_agent_among_the_tools_is_told_to_be_one_by_as_tool() -> None:
    with pytest.raises(ToolConfigError, match=r"is an agent: give agent\.as_tool\('what it does'\) in its place"):
        agent_of("boss", [], agent_of("finder", []))


async def test_a_child_that_failed_before_a_kill_is_not_asked_again() -> None:
    from agentrt import AgentState
    from agentrt.state import InMemoryStateStore

    saved: list[str] = []

    class Recording(InMemoryStateStore):
        async def save(self, state: AgentState) -> None:
            await super().save(state)
            saved.append(state.model_dump_json())

    child = agent_of("child", [RuntimeError(CANARY)] * 9)
    await boss_of(child, state_store=Recording()).reply("go")
    left = [text for text in saved if '"last_reply":{' in text.replace(" ", "") and '"kept":{"1"' in text]
    assert left
    other = agent_of("boss", ["Done."], child.as_tool("Fails."), state=AgentState.model_validate_json(left[0]))
    asked = len(child.model.calls)
    await other.reply(None)
    assert len(child.model.calls) == asked
    assert results_of(other)["1"].text == "[subagent_error] child: RuntimeError"
