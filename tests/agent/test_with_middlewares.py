"""An agent with other middlewares, and what it shares with the one that it was made of."""

import copy
import pickle
from typing import Any

import pytest

from agentrt import Agent, AgentBase, AgentState, MiddlewareBase, Msg
from agentrt.agent import ReActAgent
from agentrt.errors import ConfigError, MiddlewareConfigError, ToolConfigError
from agentrt.middleware import When
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionBehavior, PermissionRule
from agentrt.state.state import WRAPPER
from agentrt.tool import FunctionTool, ToolBase, Toolkit
from agentrt.types import STRUCTURED_OUTPUT
from tests.loop.helpers import add, agent_of, call


class Note(MiddlewareBase):
    """Adds a word to the prompt, and brings a tool of that name."""

    def __init__(self, word: str) -> None:
        self.word = word

    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        return f"{current_prompt} {self.word}"

    def list_tools(self) -> list[Any]:
        return [FunctionTool(add, name=f"add_{self.word}")]


class Shape(MiddlewareBase):
    wraps = (Note,)

    async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any):
        async for item in next_handler():
            yield item


def prompt_of(agent: Any) -> str:
    return agent.model.calls[-1].messages[0].get_text_content()


def test_middlewares_are_those_that_it_was_built_with():
    notes = [Note("a"), Note("b")]
    agent = agent_of([], middlewares=notes)
    notes.append(Note("c"))
    assert agent.middlewares == tuple(notes[:2])
    assert agent_of([]).middlewares == ()
    assert AgentBase(middlewares=[Shape()]).middlewares[0].__class__ is Shape
    with pytest.raises(AttributeError):
        agent.middlewares = ()


@pytest.mark.parametrize("cls", [Agent, ReActAgent])
async def test_other_middlewares_run_with_their_own_tools(cls: Any):
    agent = cls("tester", "You are tested.", ScriptedChatModel(["one", "two"]), toolkit=[add], middlewares=[Note("a")])
    agent.config = "the configuration that lists its middlewares"
    other = agent.with_middlewares([Note("b"), Note("c")])
    assert other.config is None
    await agent.reply("go")
    assert prompt_of(agent) == "You are tested. a"
    await other.reply("go on")
    assert prompt_of(other) == "You are tested. b c"
    assert type(other) is cls
    assert agent.toolkit.names() == ["add", "add_a"]
    assert other.toolkit.names() == ["add", "add_b", "add_c"]
    assert "add_b" in other.explain()
    assert "add_a" not in other.explain()


async def test_both_agents_have_one_conversation_and_its_rules():
    state = AgentState()
    state.permission_context.rules.append(PermissionRule("add", None, PermissionBehavior.DENY))
    agent = agent_of(["one", [call("1", "add", a=1, b=2)], "two"], add, state=state)
    other = agent.with_middlewares([Note("b")])
    assert other.state is agent.state
    await agent.reply("go")
    await other.reply("go on")
    assert [message.role for message in agent.state.context] == ["user", "assistant"] * 2
    (result,) = agent.state.context[-1].get_content_blocks("tool_result")
    assert result.state == "denied"


async def test_a_conversation_of_its_own_leaves_the_other_alone():
    agent = agent_of(["one"])
    other = agent.with_middlewares([Note("b")]).with_state(AgentState())
    await other.reply("go")
    assert agent.state.context == []


def test_settings_are_shared():
    agent = agent_of([], when_busy="wait")
    other = agent.with_middlewares([])
    names = ["id", "name", "system_prompt", "model", "react_config", "context_config", "when_busy", "state_store"]
    assert [getattr(other, name) for name in names] == [getattr(agent, name) for name in names]
    assert other.toolkit is agent.toolkit


def test_tools_registered_later_reach_both_agents():
    agent = agent_of([], middlewares=[Note("a")])
    other = agent.with_middlewares([Note("b")])
    agent.toolkit.register_tool_function(add)
    assert (agent.toolkit.names(), other.toolkit.names()) == (["add", "add_a"], ["add", "add_b"])


def test_tools_given_beside_a_toolkit_stay():
    toolkit = Toolkit()
    agent = Agent("a", model=ScriptedChatModel([]), toolkit=toolkit, tools=[add], middlewares=[Note("a")])
    assert agent.with_middlewares([Note("b")]).toolkit.names() == ["add", "add_b"]
    agent.toolkit = Toolkit([add])
    assert agent.with_middlewares([Note("b")]).toolkit.names() == ["add", "add_b"]


async def test_pre_and_post_hooks_stay():
    agent = agent_of(["one"])
    seen = []
    agent.register_instance_hook("pre_reply", "look", lambda self, kwargs: seen.append(self.name))
    other = agent.with_middlewares([Note("b")])
    await other.reply("go")
    assert seen == ["tester"]


def test_a_copy_with_other_middlewares_can_be_copied():
    agent = agent_of([], middlewares=[Note("a")]).with_middlewares([Note("b")])
    for other in (copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
        assert other.toolkit.names() == ["add_b"]
        assert other.with_middlewares([Note("c")]).toolkit.names() == ["add_c"]


async def test_a_class_that_hides_attributes_from_copies_keeps_them():
    class Locked(Agent):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.lock = object()

        def __getstate__(self) -> dict[str, object]:
            return {name: value for name, value in super().__getstate__().items() if name != "lock"}

    agent = Locked("a", model=ScriptedChatModel([]))
    assert agent.with_middlewares([Note("b")]).lock is agent.lock


@pytest.mark.parametrize(
    ("middlewares", "error"),
    [
        ("Note", ConfigError),
        (Note("a"), ConfigError),
        ([Note], MiddlewareConfigError),
        ([None], MiddlewareConfigError),
        ([Note("a"), Shape()], MiddlewareConfigError),
        ([Note("a"), Note("a")], ToolConfigError),
    ],
    ids=str,
)
def test_middlewares_that_do_not_fit_are_refused(middlewares: Any, error: type[Exception]):
    agent = agent_of([], middlewares=[Note("first")])
    with pytest.raises(error):
        agent.with_middlewares(middlewares)
    assert agent.toolkit.names() == ["add_first"]


# Tools that are another one for each agent


class Signed(ToolBase):
    name = "sign"

    def __init__(self, owner: str = "nobody") -> None:
        self.owner = owner
        self.asked: list[str] = []
        self.description = f"Signs for {owner}."

    def bound_to(self, agent: Any) -> ToolBase:
        self.asked.append(agent.name)
        return Signed(agent.name)

    async def call(self) -> str:
        return f"signed by {self.owner}"


def result_of(agent: Any) -> str:
    return agent.state.context[-1].get_content_blocks("tool_result")[-1].text


def offered_to(agent: Any) -> list[str]:
    return [tool["function"]["description"] for tool in agent.model.calls[-1].tools]


@pytest.mark.parametrize("calls", [1, 2])
async def test_a_tool_is_bound_once_to_each_agent(calls: int):
    tool = Signed()
    toolkit = Toolkit([tool, add])
    agents = [
        Agent(
            name, model=ScriptedChatModel([[call(str(n), "sign") for n in range(calls)], "done"] * 2), toolkit=toolkit
        )
        for name in ("ann", "bob")
    ]
    assert tool.asked == ["ann", "bob"]  # when they were built
    for agent in agents:
        for conversation in (agent, agent.with_state(AgentState())):
            await conversation.reply("go")
            assert result_of(conversation) == f"signed by {agent.name}"
            assert offered_to(agent)[0] == f"Signs for {agent.name}."
    assert tool.asked == ["ann", "bob"]
    assert agents[0].toolkit is toolkit


async def test_tools_of_groups_that_are_not_active_are_bound_as_well():
    tool = Signed()
    toolkit = Toolkit()
    toolkit.create_tool_group("more", "More tools.")
    toolkit.register_tool_function(tool, group_name="more")
    agent = Agent(
        "ann", model=ScriptedChatModel([[call("1", "sign")], "no", [call("2", "sign")], "done"]), toolkit=toolkit
    )
    assert tool.asked == ["ann"]
    await agent.reply("go")
    assert "is not active" in result_of(agent)
    agent.state.active_groups = ["more"]
    await agent.reply("go")
    assert result_of(agent) == "signed by ann"


@pytest.mark.parametrize("before", [[], [add]])
async def test_a_tool_that_joins_during_a_reply_is_bound(before: list[Any]):
    tool = Signed()
    toolkit = Toolkit(before)

    def join() -> str:
        toolkit.register_tool_function(tool)
        return "joined"

    toolkit.register_tool_function(join)
    model = ScriptedChatModel([[call("1", "join")], [call("2", "sign")], "done"])
    agent = Agent("ann", model=model, toolkit=toolkit, middlewares=[Note("a")])
    await agent.reply("go")
    assert result_of(agent) == "signed by ann"
    assert tool.asked == ["ann"]


async def test_a_tool_that_a_layer_adds_is_bound():
    tool = Signed()

    class Adding(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            return await next_handler(tools=[*input_kwargs["tools"], tool])

    agent = agent_of([[call("1", "sign")], [call("2", "sign")], "done"], middlewares=[Adding()])
    await agent.reply("go")
    assert result_of(agent) == "signed by tester"
    assert tool.asked == ["tester"]


async def test_a_tool_of_a_middleware_is_bound():
    class Bringing(MiddlewareBase):
        def list_tools(self) -> list[Any]:
            return [Signed()]

    agent = agent_of([[call("1", "sign")], "done"], middlewares=[Bringing()])
    await agent.reply("go", structured_schema=None)
    assert result_of(agent) == "signed by tester"


async def test_a_bound_tool_works_beside_structured_output():
    answer = call("2", STRUCTURED_OUTPUT, **{WRAPPER: 1})
    agent = agent_of([[call("1", "sign")], [answer]], Signed())
    message = await agent.reply("go", structured_schema=int)
    assert message.structured_output == 1
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].text == "signed by tester"


async def test_a_tool_put_in_the_place_of_another_is_bound_anew():
    agent = agent_of([[call("1", "sign")], "one", [call("2", "sign")], "two"], Signed())
    await agent.reply("go")
    second = Signed()
    agent.toolkit.register_tool_function(second, namesake="override")
    await agent.reply("go")
    assert second.asked == ["tester"]


class Wrong(Signed):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def bound_to(self, agent: Any) -> Any:
        return self.result


class Renamed(Signed):
    name = "other"


@pytest.mark.parametrize(
    "result", [None, "sign", Renamed(), Msg("a", "b", "user")], ids=lambda value: type(value).__name__
)
async def test_what_is_bound_must_be_a_tool_of_the_same_name(result: Any):
    with pytest.raises(ToolConfigError, match=r"Wrong.bound_to\(\) of 'sign' must return a ToolBase of the same name"):
        agent_of([], Wrong(result))
    agent = agent_of(["done"])
    agent.toolkit.register_tool_function(Wrong(result))
    with pytest.raises(ToolConfigError, match="same name"):
        await agent.reply("go")


async def test_bound_tools_survive_a_copy_of_the_agent():
    agent = agent_of([[call("1", "sign")], "done"], Signed())
    for other in (copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
        await other.reply("go")
        assert result_of(other) == "signed by tester"


class LouderNote(Note):
    pass


class Reads(MiddlewareBase):
    requires = (Shape,)


def test_layers_are_left_out_by_class_and_by_key():
    shape, a, b, loud = Shape(), Note("a"), Note("b"), LouderNote("c")
    agent = agent_of([], middlewares=[shape, When(bool, a), b, loud])
    assert agent.without(Note).middlewares == (shape,)
    assert agent.without("Note#2", LouderNote).middlewares == (shape, a)
    assert agent.without("Note#2").chains.terms.entries[id(a)] is not a
    assert agent.without(Shape).toolkit.names() == ["add_a", "add_b", "add_c"]
    assert (agent.without("Note", Note).state is agent.state, agent.without().middlewares) == (True, agent.middlewares)


@pytest.mark.parametrize("layer", [Reads, "Note#3", Note("a")])
def test_a_layer_that_is_not_there_cannot_be_left_out(layer: Any):
    agent = agent_of([], middlewares=[Shape(), Note("a")])
    with pytest.raises(ConfigError, match=r"tester has no such middleware: give classes or keys .* are Shape, Note"):
        agent.without(layer)


def test_a_layer_that_another_one_requires_stays():
    with pytest.raises(ConfigError, match="requires Shape"):
        agent_of([], middlewares=[Shape(), Reads()]).without(Shape)
