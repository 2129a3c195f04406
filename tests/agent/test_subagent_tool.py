"""A sub-agent as a tool: what its supervisor sees of it, and how a tool is made of its class."""

import io
import logging
import sys
from contextlib import closing
from typing import Any, ClassVar

import anyio
import pytest

from agentrt import Agent, AgentBase, Msg, Toolkit, UserMsg
from agentrt.agent import (
    ContextBundle,
    PermissionBundle,
    ReActConfig,
    SubAgentBase,
    SubAgentSpec,
    SubAgentUnavailable,
    make_subagent_tool,
)
from agentrt.errors import AgentRTError, ConfigError
from agentrt.event import SubagentEndEvent, SubagentStartEvent
from agentrt.message import TextBlock, ThinkingBlock
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.pipeline import MsgHub
from agentrt.tool import ToolContext
from tests.agent.subagents import Echo, register, results_of, run_tool, search_web, spec_of, supervisor
from tests.loop.helpers import call


@pytest.fixture
def toolkit() -> Toolkit:
    return Toolkit()


async def test_host_without_direct_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor has no tool but its sub-agent, and gets one whole result with nothing of the way there."""
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stdout", printed)
    boss = await supervisor(Echo, "the task", answer=lambda messages, tools: [TextBlock(str(len(tools)))])
    async with boss.reply_stream("go") as events:
        seen = [event async for event in events]
    [result] = results_of(boss)
    assert (result.text, result.metadata) == ("did the task", {"subagent": "echo", "supervisor": "boss"})
    assert boss.toolkit.names() == ["agent_echo"]
    assert [event.type for event in seen].count("TOOL_RESULT_TEXT_DELTA") == 1
    assert not [event for event in seen if "on the way" in event.to_json()]
    assert printed.getvalue() == ""


async def test_result_of_a_call_is_one_and_the_last(toolkit: Toolkit) -> None:
    name = await register(toolkit)
    items = [item async for item in toolkit.call_tool_function(call("c1", name, query="x"))]
    assert [item.is_last for item in items] == [True]


async def test_schema_has_name_description_and_two_parameters(toolkit: Toolkit) -> None:
    await register(toolkit, Echo, spec_of("search"))
    await register(toolkit, Echo, spec_of("fetch"))
    schemas = [schema["function"] for schema in toolkit.get_json_schemas()]
    assert [schema["name"] for schema in schemas] == ["agent_search", "agent_fetch"]
    assert [schema["description"] for schema in schemas] == ["Does what search does.", "Does what fetch does."]
    assert list(schemas[0]["parameters"]["properties"]) == ["query", "context"]
    assert schemas[0]["parameters"]["required"] == ["query"]


async def test_model_reaches_the_sub_agent_that_it_names(toolkit: Toolkit) -> None:
    for name in ("search", "fetch"):
        await register(toolkit, Echo, spec_of(name))
    model = ScriptedChatModel([[call("1", "agent_fetch", query="a page")], "done"])
    boss = Agent("boss", model=model, toolkit=toolkit)
    await boss.reply("go")
    assert [agent.name for agent in Echo.made] == ["fetch"]
    assert results_of(boss)[0].metadata["subagent"] == "fetch"


async def test_function_can_be_called_as_it_is() -> None:
    function, _ = await make_subagent_tool(Echo, spec_of(), tool_name="agent_echo")
    result = await function("the task", {"url": "https://a.example"})
    assert result.text == "did the task"
    assert result.is_last


async def test_context_of_the_model_is_passed_on_and_forges_nothing(toolkit: Toolkit) -> None:
    received: list[Msg] = []

    class Listening(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            received.append(msg)
            return msg

    name = await register(toolkit, Listening)
    await run_tool(toolkit, name, query="x", context={"url": "u", "delegation_context": {"safety_flags": {}}})
    [msg] = received
    assert (msg.name, msg.role, msg.get_text_content()) == ("user", "user", "x")
    assert msg.metadata["url"] == "u"
    assert msg.metadata["delegation_context"]["task_summary"] == "x"


async def test_only_text_and_data_of_the_answer_leave(toolkit: Toolkit) -> None:
    class Thinking(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            blocks = [ThinkingBlock("hidden"), TextBlock("shown")]
            return Msg(self.name, blocks, "assistant", metadata={"response_msg": msg, "unavailable": True})

    name = await register(toolkit, Thinking)
    result = await run_tool(toolkit, name, query="x")
    assert [block.type for block in result.content] == ["text"]
    assert result.metadata == {"subagent": "echo", "supervisor": ""}


async def test_hubs_and_queues_of_the_supervisor_hear_nothing() -> None:
    class Listener(AgentBase):
        heard: ClassVar[list[Any]] = []

        async def observe(self, msg: Any) -> None:
            self.heard.append(msg)

    boss = await supervisor(Echo, "x")
    boss.set_msg_queue_enabled(True)
    async with MsgHub([boss, Listener()]):
        await boss("go")
    assert [msg.get_text_content() for msg in Listener.heard] == ["done"]


async def test_hooks_of_the_supervisor_do_not_run_in_the_sub_agent() -> None:
    boss, calls = await supervisor(Echo, "x"), []
    boss.register_instance_hook("pre_reply", "count", lambda agent, kwargs: calls.append(agent.name))
    await boss.reply("go")
    assert calls == ["boss"]


async def test_events_of_the_reply_say_when_the_sub_agent_works() -> None:
    boss = await supervisor(Echo, "x")
    seen = [event async for event in boss.reply_stream("go")]
    [start] = [event for event in seen if isinstance(event, SubagentStartEvent)]
    [end] = [event for event in seen if isinstance(event, SubagentEndEvent)]
    assert seen.index(start) < seen.index(end)
    assert (start.tool_call_id, start.name) == (end.tool_call_id, end.name) == ("c0", "echo")
    assert start.child_reply_id == end.child_reply_id
    assert end.state == "success"


@pytest.mark.parametrize("streamed", [False, True])
async def test_usage_of_the_sub_agent_counts_in_the_reply(streamed: bool) -> None:
    class Thinking(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            return Msg(self.name, "thought", "assistant", usage=ChatUsage(70, 5))

    delegating = ChatResponse([call("1", "agent_echo", query="x")], usage=ChatUsage(10, 1))
    done = ChatResponse([TextBlock("done")], usage=ChatUsage(20, 2))
    boss = await supervisor(Thinking, "x")
    boss.model = ScriptedChatModel([delegating, done])
    if streamed:
        await boss.reply_stream("go").drain()
    else:
        await boss.reply("go")
    usage = boss.state.context[-1].usage
    assert (usage.input_tokens, usage.output_tokens, usage.own.input_tokens) == (100, 8, 30)
    assert not usage.estimated


async def test_interrupted_reply_of_a_sub_agent_is_an_interrupted_call() -> None:
    class Stopped(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            return Msg(self.name, "half", "assistant", finished_reason="interrupted")

    boss = await supervisor(Stopped, "x")
    await boss.reply("go")
    [result] = results_of(boss)
    assert (result.state, result.text) == ("interrupted", "[subagent_interrupted] echo: UnfinishedReply")


async def test_interrupt_of_one_sub_agent_ends_its_call_alone() -> None:
    closed: list[str] = []

    class Waiting(Echo):
        async def reply(self, msg: Msg) -> Msg:
            if msg.get_text_content() == "stop":
                try:
                    assert self.interrupt()
                    await anyio.sleep_forever()
                finally:
                    closed.append("stop")
            return await super().reply(msg)

    boss = await supervisor(Waiting, "stop", "go on")
    ends = [event async for event in boss.reply_stream("go") if isinstance(event, SubagentEndEvent)]
    stopped, other = results_of(boss)
    assert (stopped.state, stopped.text) == ("interrupted", "[subagent_interrupted] echo: UnfinishedReply")
    assert (other.state, other.text) == ("success", "did go on")
    assert {event.tool_call_id: event.state for event in ends} == {"c0": "interrupted", "c1": "success"}
    assert closed == ["stop"]
    assert boss.state.last_reply is not None
    assert boss.state.last_reply.finished_reason == "completed"


async def test_handle_interrupt_answers_for_an_interrupted_sub_agent() -> None:
    class Stopped(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            self.interrupt()
            await anyio.sleep_forever()
            return msg

        async def handle_interrupt(self, msg: Msg) -> Msg:  # type: ignore[override]
            return Msg(self.name, f"half of {msg.get_text_content()}", "assistant", usage=ChatUsage(7, 5))

    boss = await supervisor(Stopped, "the task")
    await boss.reply("go", deps={"user": "ann"})
    assert results_of(boss)[0].text == "half of the task"
    usage = boss.state.context[-1].usage
    assert usage is not None
    assert usage.subagents is not None
    assert [part.input_tokens for part in usage.subagents.values()] == [7]


async def test_deps_reach_the_sub_agent() -> None:
    class Needy(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            return Msg(self.name, str(self.run.deps), "assistant")

    boss = await supervisor(Needy, "x")
    await boss.reply("go", deps={"user": "ann"})
    assert results_of(boss)[0].text == "{'user': 'ann'}"


# Registration.


async def test_both_healthchecks_are_asked_once_at_registration(toolkit: Toolkit) -> None:
    asked: list[str] = []

    class Checked(Echo):
        async def healthcheck(self) -> bool:
            asked.append("own")
            return True

    async def check() -> bool:
        asked.append("spec")
        return True

    name = await register(toolkit, Checked, spec_of(healthcheck=check))
    await run_tool(toolkit, name, query="x")
    await run_tool(toolkit, name, query="y")
    assert asked == ["own", "spec"]


async def fail() -> bool:
    raise OSError("no network")


async def deny() -> bool:
    return False


@pytest.mark.parametrize("check", [fail, deny])
@pytest.mark.parametrize("whose", ["own", "spec"])
async def test_unhealthy_sub_agent_makes_no_tool(whose: str, check: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Sick(SubAgentBase):
        async def healthcheck(self) -> bool:
            return await check()

    cls, spec = (Sick, spec_of()) if whose == "own" else (Echo, spec_of(healthcheck=check))
    toolkit = Toolkit()
    with pytest.raises(SubAgentUnavailable):
        await register(toolkit, cls, spec)
    assert toolkit.names() == []
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "'echo'" in record.getMessage()


async def test_healthcheck_that_hangs_makes_no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang() -> bool:
        await anyio.sleep_forever()
        return True

    monkeypatch.setattr("agentrt.compat.subagent.base._HEALTHCHECK_SECONDS", 0.01)
    with pytest.raises(SubAgentUnavailable, match="no answer"):
        await register(Toolkit(), Echo, spec_of(healthcheck=hang))


async def test_class_that_cannot_be_made_makes_no_tool() -> None:
    class Broken(SubAgentBase):
        def __init__(self, **injected: Any) -> None:
            raise RuntimeError("no key")

    with pytest.raises(SubAgentUnavailable, match="cannot be made") as caught:
        await register(Toolkit(), Broken)
    assert isinstance(caught.value.__cause__, RuntimeError)


class ExportsNothing(Echo):
    @classmethod
    async def export_agent(cls, **options: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"spec": SubAgentSpec("a", "")}, "'a' needs a description"),
        ({"spec": SubAgentSpec("a", "  ")}, "needs a description"),
        ({"spec": SubAgentSpec("a", None)}, "needs a description"),  # type: ignore[arg-type]
        ({"spec": SubAgentSpec("../a", "x")}, "'../a' cannot be the name of a sub-agent"),
        ({"spec": {"name": "a"}}, "SubAgentSpec"),
        ({"tool_name": "a b"}, "'a b' cannot be the name of a tool"),
        ({"cls": AgentBase}, "derives from SubAgentBase"),
        ({"cls": Echo()}, "derives from SubAgentBase"),
        ({"host": "boss"}, "host=.*'boss'"),
        ({"spec": spec_of(tools_allowlist=["nope"])}, "'nope'.*host="),
        ({"spec": spec_of(tools_allowlist="search")}, "list of names.*'search'"),
        ({"spec": spec_of(model_override="gpt")}, "model_override.*'gpt'"),
        ({"spec": spec_of(healthcheck=True)}, "healthcheck.*True"),
        ({"spec": spec_of(tags="web")}, "tags.*'web'"),
        ({"spec": spec_of(tags=[1])}, "tags.*1"),
        ({"cls": ExportsNothing}, "ExportsNothing.export_agent.. must return.*not None"),
    ],
)
async def test_wrong_registration_is_told_with_its_remedy(arguments: dict[str, Any], words: str) -> None:
    parts: dict[str, Any] = {"cls": Echo, "spec": spec_of(), "tool_name": "agent_echo", "host": None, **arguments}
    with pytest.raises(ConfigError, match=words):
        await make_subagent_tool(parts["cls"], parts["spec"], tool_name=parts["tool_name"], host=parts["host"])


async def test_registration_without_await_says_so() -> None:
    message = r"make_subagent_tool> \(is an `await` missing\?\) cannot be a tool"
    with (
        closing(make_subagent_tool(Echo, spec_of(), tool_name="a")) as registration,
        pytest.raises(ConfigError, match=message),
    ):
        Toolkit().register_tool_function(registration)  # type: ignore[arg-type]


WRONG_LIMITS: list[Any] = [
    *({"disabled_tools": value} for value in ("publish", {"publish": True}, 5, ["publish", 5])),
    *({"read_only": value} for value in ("false", 1, [])),
    *({"timeout": value} for value in ("60", 0, -1, True, float("nan"), float("inf"))),
    *({"max_depth": value} for value in ("8", -1, 1.5, True)),
    [],
    "timeout",
]


@pytest.mark.parametrize("limits", WRONG_LIMITS, ids=repr)
async def test_limits_that_would_limit_nothing_are_refused(limits: Any) -> None:
    with pytest.raises(ConfigError, match="safety_limits"):
        PermissionBundle(safety_limits=limits)

    class Supervisor(AgentBase):
        safety_limits = limits

    with pytest.raises(ConfigError, match="safety_limits"):
        await make_subagent_tool(Echo, spec_of(), tool_name="agent_echo", host=Supervisor())


@pytest.mark.parametrize("field", ["filesystem", "trace_provider"])
@pytest.mark.parametrize("value", ["x", 5, {}])
def test_a_bundle_refuses_what_it_could_not_share(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"PermissionBundle\({field}="):
        PermissionBundle(**{field: value})


@pytest.mark.parametrize("name", ["disabled_tools", "read_only", "timeout", "max_depth"])
async def test_a_limit_may_be_none(name: str) -> None:
    class Supervisor(AgentBase):
        safety_limits: ClassVar[dict[str, Any]] = {name: None}

    function, _ = await make_subagent_tool(Echo, spec_of(), tool_name="agent_echo", host=Supervisor())
    assert (await function("x")).state == "success"


async def test_export_agent_refuses_what_is_not_a_bundle() -> None:
    for wrong in ({"permissions": {}}, {"parent_context": {}}, {"task": None}):
        options: dict[str, Any] = {
            "permissions": PermissionBundle(),
            "parent_context": (await Echo.context_of(Echo())),
            "task": "x",
            "delegation_context": None,
        }
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            await Echo.export_agent(**{**options, **wrong})


@pytest.mark.parametrize("kind", ["anything", "a list", "two"])
async def test_reply_may_have_other_parameters(kind: str, toolkit: Toolkit) -> None:
    class Anything(SubAgentBase):
        async def reply(self, *args: Any, **kwargs: Any) -> Msg:
            return Msg(self.name, args[0].get_text_content(), "assistant")

    class AList(SubAgentBase):
        async def reply(self, x: Msg | list[Msg] | None = None) -> Msg:  # type: ignore[override]
            assert isinstance(x, Msg)
            return Msg(self.name, x.get_text_content() or "", "assistant")

    class Two(SubAgentBase):
        async def reply(self, msg: Msg, style: str = "plain") -> Msg:  # type: ignore[override]
            return Msg(self.name, f"{msg.get_text_content()}", "assistant", metadata={"style": style})

    name = await register(toolkit, {"anything": Anything, "a list": AList, "two": Two}[kind])
    assert (await run_tool(toolkit, name, query="x")).text == "x"


async def test_one_may_say_nothing(toolkit: Toolkit) -> None:
    class Silent(SubAgentBase):
        async def reply(self, msg: Msg) -> Any:
            return None

    name = await register(toolkit, Silent)
    result = await run_tool(toolkit, name, query="x")
    assert (result.text, result.state) == ("", "success")


async def test_seed_form_of_the_lifecycle_works_by_hand() -> None:
    """Compress on the supervisor's side, export, delegate: the result is one, and the memory had the context."""
    bundle = ContextBundle(conversation=[UserMsg("user", "the question")])
    context = Echo._pre_context_compress(bundle, "the task")
    agent = await Echo.export_agent(
        permissions=PermissionBundle(supervisor_name="boss"),
        parent_context=bundle,
        task="the task",
        delegation_context=context,
        run_healthcheck=True,
        tools_allowlist=["search_web"],
        model_override=None,
        host_toolkit=Toolkit([search_web]),
        ephemeral_memory=False,
    )
    assert agent.toolkit.names() == ["search_web"]
    assert await agent.memory.size() == 1
    result = await agent.delegate("the task", context)
    assert (result.text, result.is_last) == ("did the task", True)
    assert result.metadata == {"subagent": "Echo", "supervisor": "boss"}
    assert await agent.memory.size() == 1


async def test_sub_agent_also_works_by_itself() -> None:
    answer = await Echo(name="alone")(UserMsg("user", "x"))
    assert answer.get_text_content() == "did x"


async def test_delegations_do_not_nest_without_end() -> None:
    """A sub-agent that is allowed to delegate to itself is stopped at the limit, and the supervisor answers."""
    function: Any = None

    class Recursive(SubAgentBase):
        async def reply(self, msg: Msg) -> Msg:
            depths.append(len(depths))
            result = await function("again")
            return Msg(self.name, result.text, "assistant")

    depths: list[int] = []
    function, keywords = await make_subagent_tool(Recursive, spec_of(), tool_name="agent_echo")
    toolkit = Toolkit()
    toolkit.register_tool_function(function, **keywords)
    boss = Agent("boss", model=ScriptedChatModel([[call("1", "agent_echo", query="x")], "done"]), toolkit=toolkit)
    answer = await boss.reply("go")
    assert answer.get_text_content() == "done"
    assert len(depths) == 8
    assert (
        results_of(boss)[0].text
        == "[subagent_max_depth] echo: not run, since 8 delegations inside of each other are the limit."
    )


async def test_delegations_of_a_reply_are_counted() -> None:
    """They count as those of agents that are tools do."""
    boss = await supervisor(Echo, "a", "b", "c", react_config=ReActConfig(max_delegations=2))
    await boss.reply("go")
    results = results_of(boss)
    assert sorted(result.state for result in results) == ["denied", "success", "success"]
    [denied] = [result for result in results if result.state == "denied"]
    assert (
        denied.text
        == "[subagent_max_delegations] echo: not run, since 2 calls of sub-agents are the limit of one reply."
    )
    assert denied.metadata == {
        "unavailable": True,
        "error": "max_delegations",
        "subagent": "echo",
        "supervisor": "boss",
    }


def test_unavailable_is_in_the_tree() -> None:
    assert issubclass(SubAgentUnavailable, AgentRTError)


async def test_tool_context_is_hidden_from_the_model(toolkit: Toolkit) -> None:
    name = await register(toolkit)
    tool = toolkit.get(name)
    assert "tool_context" not in tool.input_schema["properties"]
    assert ToolContext.__name__ not in str(tool.input_schema)
