"""What passes between the conversations of a supervisor and its sub-agent: a summary one way, a result the other."""

import copy
from typing import Any, ClassVar

import anyio
import pytest
from opentelemetry.trace import NoOpTracer

from agentrt import Agent, Msg, Toolkit, UserMsg
from agentrt.agent import ContextBundle, DelegationContext, PermissionBundle, ReActAgent, SubAgentBase
from agentrt.model import ScriptedChatModel
from agentrt.session import JSONSession
from tests.agent.subagents import Echo, register, results_of, run_tool, search_web, spec_of, supervisor
from tests.loop.helpers import call


class Compressing(Echo):
    """Notes what its supervisor's side is given, and what the new instance gets."""

    compressed: ClassVar[list[tuple[ContextBundle, str]]] = []
    bundles: ClassVar[list[ContextBundle]] = []

    @classmethod
    def _pre_context_compress(cls, parent_context: ContextBundle, task: str) -> DelegationContext:
        cls.compressed.append((parent_context, task))
        return super()._pre_context_compress(parent_context, task)

    @classmethod
    async def export_agent(cls, **options: Any) -> Any:
        cls.bundles.append(options["parent_context"])
        return await super().export_agent(**options)


async def test_subagent_memory_isolation() -> None:
    """The sub-agent's memory begins with the context; the supervisor's conversation gains the result alone."""
    Compressing.compressed.clear()
    Compressing.bundles.clear()
    boss = await supervisor(Compressing, "the task")
    await boss.observe([UserMsg("user", f"old {number} " + "long " * 100) for number in range(30)])
    before = copy.deepcopy(boss.state.context)
    await boss.reply("the question")
    [agent] = Compressing.made
    assert agent.sizes == [1]
    # Of the supervisor: what was there is as it was.
    assert [msg.to_json() for msg in boss.state.context[:30]] == [msg.to_json() for msg in before]
    assert len(boss.state.context) == 32
    assert all("delegation_context" not in msg.metadata for msg in boss.state.context)
    # On a copy of the newest message of the user.
    newest = Compressing.bundles[-1].conversation[-1]
    assert newest.get_text_content() == "the question"
    assert newest.metadata["delegation_context"]["task_summary"] == "the task"
    assert newest is not boss.state.context[30]


async def test_context_is_compressed_once_for_each_call() -> None:
    Compressing.compressed.clear()
    toolkit = Toolkit()
    name = await register(toolkit, Compressing)
    assert Compressing.compressed == []
    await run_tool(toolkit, name, query="a")
    assert [task for _, task in Compressing.compressed] == ["a"]


async def test_context_is_a_summary_and_not_the_conversation() -> None:
    seen: list[str] = []

    class Reading(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            seen.extend(str(entry.get_text_content()) for entry in await self.memory.get_memory())
            seen.append(msg.to_json())
            return msg

    boss = await supervisor(Reading, "the task")
    await boss.observe([UserMsg("user", f"message{number} " + "x" * 5_000) for number in range(50)])
    await boss.reply("the question")
    text = "".join(seen)
    assert len(text) < 4_000
    assert "message1 " not in text
    assert "message49 " in text
    assert "the question" in text


async def test_events_are_those_before_the_delegation() -> None:
    class Telling(Echo):
        async def reply(self, msg: Msg) -> Msg:
            return Msg(self.name, str(msg.metadata["delegation_context"]["recent_events"]), "assistant")

    toolkit = Toolkit([search_web])
    name = await register(toolkit, Telling)
    model = ScriptedChatModel([[call("1", "search_web", query="tea")], [call("2", name, query="x")], "done"])
    boss = Agent("boss", model=model, toolkit=toolkit)
    await boss.reply("go")
    assert results_of(boss)[-1].text == "['user: go', 'boss: search_web: found tea']"


def test_compressed_context_has_five_fields_within_limits() -> None:
    long = UserMsg("user", "word " * 1_000)
    refs = [{"id": str(number)} for number in range(30)]
    context = SubAgentBase._pre_context_compress(ContextBundle([long] * 9, [long] * 2, refs), "t" * 9_000)
    assert set(context) == set(DelegationContext.__annotations__)
    assert len(context["recent_events"]) == 4
    assert all(len(event) <= 200 for event in context["recent_events"])
    assert (len(context["long_term_refs"]), len(context["task_summary"])) == (20, 2_000)


async def test_compression_of_ones_own_is_completed_and_cut() -> None:
    class Own(Echo):
        @classmethod
        def _pre_context_compress(cls, parent_context: ContextBundle, task: str) -> Any:
            return {"recent_events": ["x" * 999] * 9, "safety_flags": {"read_only": False, "note": 1}, "more": True}

        @classmethod
        def permissions_of(cls, host: Any) -> PermissionBundle:
            return PermissionBundle(safety_limits={"read_only": True})

        async def reply(self, msg: Msg) -> Msg:
            contexts.append(msg.metadata["delegation_context"])
            return msg

    contexts: list[Any] = []
    boss = await supervisor(Own, "x")
    await boss.reply("go")
    [context] = contexts
    assert context["safety_flags"] == {"read_only": True, "note": 1}
    assert [len(event) for event in context["recent_events"]] == [200] * 4
    assert context["task_summary"] == "x"
    assert context["more"] is True


@pytest.mark.parametrize("context", [None, "text", {"recent_events": [1], "x": object()}, {"x": float("nan")}])
async def test_compression_that_gives_no_json_dict_is_an_error_result(context: Any) -> None:
    class Wrong(Echo):
        @classmethod
        def _pre_context_compress(cls, parent_context: ContextBundle, task: str) -> Any:
            return context

    toolkit = Toolkit()
    name = await register(toolkit, Wrong)
    result = await run_tool(toolkit, name, query="x")
    assert result.metadata["error"] == "ConfigError"


async def test_loading_the_context_again_changes_nothing() -> None:
    agent = Echo(permissions=PermissionBundle(supervisor_name="boss"))
    context = SubAgentBase._pre_context_compress(ContextBundle(), "the task")
    for _ in range(2):
        agent.load_delegation_context({"delegation_context": context})
        assert await agent.memory.size() == 1
    [frame] = await agent.memory.get_memory()
    assert frame.metadata["delegation_context"] == context
    assert frame.name == "boss"
    other: Any = {**context, "task_summary": "another"}
    agent.load_delegation_context({"delegation_context": other})
    [frame] = await agent.memory.get_memory()
    assert "another" in (frame.get_text_content() or "")
    agent.load_delegation_context(other)
    agent.load_delegation_context({})
    assert await agent.memory.size() == 1


@pytest.mark.parametrize("keeps", [False, True])
async def test_memory_is_empty_afterwards_unless_it_is_kept(keeps: bool) -> None:
    agent = Echo(ephemeral_memory=not keeps)
    context = SubAgentBase._pre_context_compress(ContextBundle(), "the task")
    await agent.delegate("the task", context)
    assert agent.sizes == [1]
    assert await agent.memory.size() == int(keeps)


async def test_memory_is_empty_after_a_failure_and_a_cancellation() -> None:
    class Failing(Echo):
        async def reply(self, msg: Msg) -> Msg:
            if msg.get_text_content() == "wait":
                await anyio.sleep_forever()
            raise ValueError("no")

    context = SubAgentBase._pre_context_compress(ContextBundle(), "the task")
    failing = Failing()
    await failing.delegate("x", context)
    assert await failing.memory.size() == 0
    with anyio.move_on_after(0.01) as scope:
        await failing.delegate("wait", context)
    assert scope.cancelled_caught
    assert await failing.memory.size() == 0


async def test_second_task_at_the_same_time_leaves_the_first_alone() -> None:
    began, go = anyio.Event(), anyio.Event()

    class Waiting(Echo):
        async def reply(self, msg: Msg) -> Msg:
            began.set()
            await go.wait()
            return await super().reply(msg)

    agent = Waiting()
    context = SubAgentBase._pre_context_compress(ContextBundle(), "one")
    texts: list[str] = []

    async def first() -> None:
        texts.append((await agent.delegate("one", context)).content[0].text)  # type: ignore[union-attr]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await began.wait()
        refused = await agent.delegate("two", SubAgentBase._pre_context_compress(ContextBundle(), "two"))
        assert (refused.state, refused.metadata["error"]) == ("error", "AgentBusyError")
        assert agent.delegation_context == context
        go.set()
    assert texts == ["did one"]
    assert agent.sizes == [1]
    assert (await agent.delegate("three", context)).state == "success"


async def test_memory_of_a_custom_supervisor_is_what_is_compressed() -> None:
    class Remembering(Echo):
        async def reply(self, msg: Msg) -> Msg:
            context = msg.metadata["delegation_context"]
            return Msg(self.name, str(context["recent_events"]), "assistant")

    host = ReActAgent("boss", "", ScriptedChatModel([]))
    host.disable_console_output()
    await host.memory.add(UserMsg("ann", "remember me"))
    toolkit = Toolkit()
    name = await register(toolkit, Remembering, host=host)
    assert "ann: remember me" in (await run_tool(toolkit, name, query="x")).text
    assert await host.memory.size() == 1


async def test_resources_are_shared_by_identity_and_limits_are_copied(tmp_path: Any) -> None:
    session, memory, limits = JSONSession(tmp_path), object(), {"disabled_tools": ["a"]}
    tracer = NoOpTracer()
    bundle = PermissionBundle(
        trace_provider=tracer, session=session, long_term_memory=memory, safety_limits=limits, supervisor_name="boss"
    )
    agent = await Echo.export_agent(
        permissions=bundle, parent_context=ContextBundle(), task="x", delegation_context=None
    )
    shared = agent.permissions
    assert (shared.session, shared.trace_provider, shared.long_term_memory) == (session, tracer, memory)
    assert shared.logger is bundle.logger
    assert shared.safety_limits == limits
    shared.safety_limits["disabled_tools"].append("b")
    assert limits == {"disabled_tools": ["a"]}


async def test_session_of_a_sub_agent_has_names_of_its_own(tmp_path: Any) -> None:
    agent = Echo(name="ann", permissions=PermissionBundle(session=JSONSession(tmp_path)))
    assert agent.session is not None
    await agent.memory.add(UserMsg("user", "kept"))
    await agent.session.save_session_state("s", memory=agent.memory)
    assert [path.name for path in tmp_path.glob("*.json")] == ["subagents.ann.s.json"]
    await agent.memory.clear()
    await agent.session.load_session_state("s", memory=agent.memory)
    assert await agent.memory.size() == 1


async def test_result_in_the_supervisor_is_all_that_is_saved() -> None:
    boss = await supervisor(Echo, "x")
    await boss.reply("go")
    text = boss.state.model_dump_json()
    assert "delegation_context" not in text
    assert "on the way" not in text
    assert [result.text for result in results_of(boss)] == ["did x"]


async def test_spec_gives_the_model_and_else_the_class() -> None:
    ours, theirs = ScriptedChatModel([]), ScriptedChatModel([])

    class Modelled(Echo):
        model = ours

    toolkit = Toolkit()
    await run_tool(toolkit, await register(toolkit, Modelled, spec_of("own")), query="x")
    await run_tool(toolkit, await register(toolkit, Modelled, spec_of("other", model_override=theirs)), query="x")
    assert Modelled.made[-1].model is theirs
    assert Modelled().model is ours
