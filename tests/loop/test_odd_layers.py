"""What layers and tools say oddly is mended, or refused by name, and the conversation goes on after it."""

import math
from pathlib import Path
from typing import Any

import pytest

from agentrt import Agent, MiddlewareBase, Msg, Toolkit
from agentrt.errors import ChainContractError, ConfigError, ResumeError, SessionUnserializable
from agentrt.event import ExternalExecutionResultEvent, ModelCallEndEvent, TextBlockDeltaEvent, ToolCallStartEvent
from agentrt.memory import InMemoryMemory
from agentrt.message import AssistantMsg, TextBlock, ToolResultBlock, UserMsg
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionBehavior, PermissionDecision, PermissionRule
from agentrt.session import JSONSession
from agentrt.state import FileStateStore
from agentrt.tool import ToolBase, ToolChunk, ToolResponse
from tests.loop.helpers import call, saved_state


class Subclass(str):
    pass


class ChangesOnce(MiddlewareBase):
    """Sets one field of the first event of a kind to an odd value, in the first reply only."""

    def __init__(self, kind: type, field: str, value: Any) -> None:
        self.kind, self.field, self.value = kind, field, value
        self.is_done = False

    async def on_reasoning(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        async for item in next_handler():
            if isinstance(item, self.kind) and not self.is_done:
                setattr(item, self.field, self.value)
                self.is_done = True
            yield item


def saved_agent(folder: Path, *layers: MiddlewareBase, script: Any = None, tools: Any = ()) -> Agent:
    model = ScriptedChatModel(script or ["one", "two", "three"])
    store = FileStateStore(folder)
    return Agent("a", model=model, toolkit=Toolkit(list(tools)), middlewares=list(layers), state_store=store)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (TextBlockDeltaEvent, "delta", "\ud800"),
        (ToolCallStartEvent, "tool_call_name", None),
        (ToolCallStartEvent, "tool_call_name", {"a": 1}),
        (ModelCallEndEvent, "input_tokens", "many"),
        pytest.param(ModelCallEndEvent, "input_tokens", 10**5_000, id="digits"),
    ],
)
async def test_a_conversation_continues_after_an_unsaved_reply(kind, field, value, tmp_path):
    script = [[TextBlock("I look."), call("1", "look")], "done", "later"] if kind is ToolCallStartEvent else None
    agent = saved_agent(tmp_path, ChangesOnce(kind, field, value), script=script)
    with pytest.raises(SessionUnserializable, match=r"cannot be saved: its (context\[1\]|reply_context) holds"):
        await agent.reply("go")
    assert (await agent.reply("again")).finished_reason == "completed"
    loaded = await FileStateStore(tmp_path).load(agent.state.session_id)
    assert loaded.context == agent.state.context
    assert [message.get_text_content() for message in loaded.context if message.role == "user"] == ["go", "again"]
    results = [block for message in loaded.context for block in message.get_content_blocks("tool_result")]
    assert results == []


@pytest.mark.parametrize("content", [None, 5, {"a": 1}, ["hi"], [TextBlock(None, "1")], [TextBlock(5, "1")]], ids=str)
async def test_a_last_message_that_cannot_be_kept_is_refused_by_name(content, tmp_path):
    class Rewrites(MiddlewareBase):
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            async for item in next_handler():
                if isinstance(item, Msg) and item.get_text_content() == "one":
                    item.content = content
                yield item

    agent = saved_agent(tmp_path, Rewrites())
    with pytest.raises(ChainContractError, match="on_reply: its last message cannot be kept: it"):
        await agent.reply("go")
    assert (await agent.reply("again")).get_text_content() == "two"


async def test_metadata_of_the_last_message_may_be_anything():
    thing = object()

    class Marks(MiddlewareBase):
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            yield AssistantMsg("a", "hi \ud800", metadata={"thing": thing})

    message = await Agent("a", model=ScriptedChatModel([]), middlewares=[Marks()]).reply("go")
    assert (message.metadata, message.get_text_content()) == ({"thing": thing}, "hi \ufffd")


@pytest.mark.parametrize("behavior", ["deny", "ask"])
@pytest.mark.parametrize("message", [None, "no \ud800", Subclass("no")])
async def test_what_a_layer_says_of_a_permission_can_be_saved(behavior, message, tmp_path):
    class Decides(MiddlewareBase):
        async def on_check_permission(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            rules = [PermissionRule("look", message, "allow", source=None)]
            return PermissionDecision(behavior, message, message, suggested_rules=rules)

    async def look() -> str:
        return "nothing"

    agent = saved_agent(tmp_path, Decides(), script=[[call("1", "look")], "done"], tools=[look])
    await agent.reply("go")
    assert saved_state(agent).context == agent.state.context


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PermissionDecision("deny", 5), r"PermissionDecision\(message=\.\.\.\) must be a str, not 5"),
        (lambda: PermissionDecision("deny", ValueError("x")), r"PermissionDecision\(message=\.\.\.\) must be a str"),
        (lambda: PermissionDecision("ask", suggested_rules=["x"]), r"must be a list of PermissionRule, not \['x'\]"),
        (lambda: PermissionRule(None), r"PermissionRule\(tool_name=\.\.\.\) must be a str, not None"),
        (lambda: PermissionRule("t", {"a": 1}), r"PermissionRule\(rule_content=\.\.\.\) must be a str, not \{'a': 1\}"),
    ],
)
def test_a_decision_and_a_rule_refuse_what_is_not_text(make, words):
    with pytest.raises(TypeError, match=words):
        make()


def test_a_decision_may_be_made_with_nothing_where_text_belongs():
    decision = PermissionDecision(PermissionBehavior.DENY, None, None, suggested_rules=None)
    assert decision == PermissionDecision(PermissionBehavior.DENY)


def test_an_agents_name_that_no_file_can_hold_is_refused():
    with pytest.raises(ConfigError, match=r"Agent\(name=...\) must be valid Unicode"):
        Agent("a\ud800", model=ScriptedChatModel([]))


async def test_a_text_of_a_class_of_its_own_is_a_text():
    message = UserMsg("user", Subclass("go"))
    assert message.get_text_content() == "go"
    agent = Agent("a", Subclass("Be kind."), model=ScriptedChatModel(["one"]))
    assert (await agent.reply(Subclass("go"))).get_text_content() == "one"
    assert saved_state(agent).context == agent.state.context


def result_of(agent: Agent) -> ToolResultBlock:
    return agent.state.context[1].get_content_blocks("tool_result")[0]


@pytest.mark.parametrize("pieces", [1, 3])
async def test_metadata_of_a_streaming_tool_has_a_limit(pieces):
    async def look() -> Any:
        for piece in range(pieces):
            yield ToolChunk([TextBlock("x")], metadata={f"key{piece}": "x" * (1_200_000 // pieces)})

    agent = Agent("a", model=ScriptedChatModel([[call("1", "look")], "done"]), toolkit=Toolkit([look]))
    await agent.reply("go")
    assert result_of(agent).state == "error"
    assert "the metadata of look's result has 1,200,0" in str(result_of(agent).output)
    assert len(agent.state.model_dump_json()) < 1_000_000


async def test_metadata_of_a_tool_has_a_limit():
    async def look() -> ToolResponse:
        return ToolResponse([TextBlock("x")], metadata={"key": "x" * 1_000_000})

    agent = Agent("a", model=ScriptedChatModel([[call("1", "look")], "done"]), toolkit=Toolkit([look]))
    await agent.reply("go")
    assert result_of(agent).state == "error"
    assert "at most 1,000,000 are allowed" in str(result_of(agent).output)


@pytest.mark.parametrize("number", [math.nan, math.inf])
async def test_a_number_that_is_not_finite_is_refused_in_a_memory(number, tmp_path):
    memory, session = InMemoryMemory(), JSONSession(tmp_path)
    await memory.add(UserMsg("user", "go", metadata={"score": number}))
    with pytest.raises(SessionUnserializable, match=r"InMemoryMemory\.content"):
        await session.save_session_state("s", memory=memory)


@pytest.mark.parametrize("number", [math.nan, -math.inf])
async def test_a_number_that_is_not_finite_is_refused_in_a_result(number):
    class Outside(ToolBase):
        name, description, input_schema = "look", "Look.", {"type": "object", "properties": {}}
        is_external_tool = True

    agent = Agent("a", model=ScriptedChatModel([[call("1", "look")], "done"]), toolkit=Toolkit([Outside()]))
    waiting = await agent.reply("go")
    odd = ToolResultBlock("1", "look", "NaN", metadata={"score": number})
    with pytest.raises(ResumeError, match="has no JSON form"):
        await agent.reply(ExternalExecutionResultEvent(waiting.id, [odd]))
    result = ToolResultBlock("1", "look", "NaN", metadata={"score": 1.5})
    assert (await agent.reply(ExternalExecutionResultEvent(waiting.id, [result]))).get_text_content() == "done"
