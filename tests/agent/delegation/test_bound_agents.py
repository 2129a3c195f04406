"""Tools that are agents: their chains are compiled and shown with those of the agent that has them."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrt import Agent, AgentState, MiddlewareBase
from agentrt.errors import ConfigError
from agentrt.middleware import RateLimitMiddleware, RetryMiddleware, TracingMiddleware, UsageMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionBehavior, PermissionContext, PermissionRule
from agentrt.tool import ToolContext, Toolkit
from agentrt.workspace import LocalWorkspace
from tests.loop.helpers import call


def agent(name: str, *tools: Any, middlewares: Any = (), answers: Any = ()) -> Agent:
    return Agent(name, model=ScriptedChatModel(list(answers)), tools=list(tools), middlewares=list(middlewares))


class Innermost(MiddlewareBase):
    inherited = True
    position = "innermost"

    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        return current_prompt


class Wanted(Innermost):
    position = None
    wrapped_by = (Innermost,)


async def test_layers_of_the_parent_run_in_the_child():
    usage = UsageMiddleware()
    child = agent("child", answers=["found"])
    boss = agent(
        "boss", child.as_tool("Answers."), middlewares=[usage], answers=[[call("1", "child", query="Where?")], "done"]
    )
    await boss.reply("go")
    assert usage.total().calls == 3
    assert child.middlewares == ()
    assert boss.state.context[-1].get_content_blocks("tool_result")[0].text == "found"


def test_layers_that_do_not_fit_are_refused_at_construction():
    child = agent("child", middlewares=[Wanted()])
    toolkit = Toolkit([child.as_tool("Answers.")])  # which has no parent yet
    with pytest.raises(ConfigError, match="agent 'child' cannot be a tool of 'boss': their middlewares fit into no"):
        Agent("boss", model=ScriptedChatModel([]), toolkit=toolkit, middlewares=[Innermost()])
    with pytest.raises(ConfigError, match="agent 'child' cannot be a tool of 'boss': inherit"):
        agent("boss", child.as_tool("Answers.", inherit=[RetryMiddleware]))


async def test_a_child_that_joins_later_is_bound_at_the_next_reply():
    child = agent("child", middlewares=[Wanted()])
    boss = agent("boss", middlewares=[Innermost()])
    boss.toolkit.register_tool_function(child.as_tool("Answers."))
    with pytest.raises(ConfigError, match="agent 'child' cannot be a tool of 'boss'"):
        await boss.reply("go")
    with pytest.raises(ConfigError, match="agent 'child' cannot be a tool of 'boss'"):
        boss.explain()


def circle(toolkit: Toolkit) -> Agent:
    """Return an agent with that toolkit, which gets a tool that asks an agent that asks this one."""
    boss = Agent("boss", model=ScriptedChatModel([[call("1", "child", query="?")], "done"]), toolkit=toolkit)
    child = agent("child", boss.as_tool("Answers."), answers=[[call("1", "boss", query="?")], "ok"] * 9)
    toolkit.register_tool_function(child.as_tool("Answers."))
    return boss


def test_agents_that_work_for_each_other_are_refused():
    toolkit = Toolkit()
    circle(toolkit)
    with pytest.raises(ConfigError, match="agent 'child' cannot be a tool of 'boss': it would work for itself"):
        Agent("third", model=ScriptedChatModel([]), toolkit=toolkit)
    with pytest.raises(ConfigError, match="agent 'boss' cannot be a tool of 'child'"):
        Agent("third", model=ScriptedChatModel([]), tools=[circle(Toolkit()).as_tool("Answers.")])


async def test_a_circle_that_is_closed_later_ends_in_a_denied_result():
    usage = UsageMiddleware()
    toolkit = Toolkit()
    boss = Agent("boss", model=ScriptedChatModel([]), toolkit=toolkit, middlewares=[usage])

    def respond(messages: Any, tools: Any) -> Any:
        results = [block for message in messages for block in message.get_content_blocks("tool_result")]
        return "Enough." if results else [call("1", tools[0]["function"]["name"], query="again")]

    boss.model = ScriptedChatModel([respond] * 99)
    child = agent("child", boss.as_tool("Answers."), answers=[respond] * 99)
    toolkit.register_tool_function(child.as_tool("Answers."))
    message = await boss.reply("go")
    assert message.get_text_content() == "Enough."
    assert usage.total().calls == len(boss.model.calls) + len(child.model.calls) == 16
    assert "The tool 'child' is an agent" in boss.explain()


async def test_settings_assigned_to_a_child_later_count():
    child = agent("child")
    boss = agent("boss", child.as_tool("Answers."), answers=[[call("1", "child", query="?")], "done"])
    child.model, child.system_prompt = ScriptedChatModel(["of another model"]), "Be brief."
    await boss.reply("go")
    assert boss.state.context[-1].get_content_blocks("tool_result")[0].text == "of another model"
    assert child.model.calls[0].messages[0].get_text_content() == "Be brief."


async def delegate_again(boss: Agent) -> str | None:
    """Have the boss ask its child once more; returns the text of the result."""
    boss.model = ScriptedChatModel([[call("1", "child", query="?")], "done"])
    await boss.reply("go")
    return boss.state.context[-1].get_content_blocks("tool_result")[0].text


@pytest.mark.parametrize("inherits", [True, False])
async def test_hooks_registered_on_a_child_later_run(inherits: bool):
    seen: list[str] = []
    child = agent("child", answers=["one", "two", "three"])
    boss = agent("boss", child.as_tool("Answers.", inherit=inherits), middlewares=[UsageMiddleware()])
    assert await delegate_again(boss) == "one"
    child.register_instance_hook("pre_reply", "note", lambda self, kwargs: seen.append(self.name))
    assert "pre_reply" in boss.explain() or "HookMiddleware" in boss.explain()
    assert await delegate_again(boss) == "two"
    assert seen == ["child"]
    child.remove_instance_hook("pre_reply", "note")
    assert "HookMiddleware" not in boss.explain()
    assert await delegate_again(boss) == "three"
    assert seen == ["child"]


async def test_hooks_registered_on_a_class_later_run_in_children_once():
    class Child(Agent):
        pass

    seen: list[str] = []
    leaf = Child("leaf", model=ScriptedChatModel(["deep"] * 3))
    child = agent("child", leaf.as_tool("Answers."), answers=[[call("2", "leaf", query="?")], "found"] * 2)
    boss = agent("boss", child.as_tool("Answers."))
    await delegate_again(boss)
    Child.register_class_hook("post_reply", "note", lambda self, kwargs, output: seen.append(self.name))
    await delegate_again(boss)
    assert seen == ["leaf"]


async def test_a_toolkit_assigned_to_a_child_later_counts():
    async def look_up(order: str) -> str:
        return f"order {order}"

    usage = UsageMiddleware()
    leaf = agent("leaf", answers=["deep"])
    child = agent("child")
    boss = agent("boss", child.as_tool("Answers."), middlewares=[usage])
    child.toolkit = Toolkit([look_up, leaf.as_tool("Answers.")])
    child.model = ScriptedChatModel([[call("2", "look_up", order="7"), call("3", "leaf", query="?")], "found"])
    assert "The tool 'leaf' is an agent" in boss.explain()
    assert await delegate_again(boss) == "found"
    results = child.model.calls[-1].messages[-1].get_content_blocks("tool_result")
    assert [result.text for result in results] == ["order 7", "deep"]
    assert usage.total().calls == 5


async def test_another_state_and_workspace_of_a_child_count(tmp_path: Path):
    files: list[Any] = []

    async def note(context: ToolContext) -> str:
        files.append(context.workspace)
        return "noted"

    child = agent("child", note, answers=[[call("2", "note")], "one", [call("2", "note")], "two"])
    boss = agent("boss", child.as_tool("Answers."))
    child.workspace = LocalWorkspace(tmp_path)
    assert await delegate_again(boss) == "one"
    assert files == [child.workspace]
    rule = PermissionRule("note", None, PermissionBehavior.DENY)
    child.state = AgentState(permission_context=PermissionContext(rules=[rule]))
    assert await delegate_again(boss) == "two"
    assert len(files) == 1


async def test_a_child_that_is_not_changed_is_bound_once(monkeypatch: pytest.MonkeyPatch):
    child = agent("child", answers=["one", "two"])
    boss = agent("boss", child.as_tool("Answers."))
    await delegate_again(boss)
    monkeypatch.setattr(Agent, "with_middlewares", None)
    assert await delegate_again(boss) == "two"


def tree() -> Agent:
    leaf = agent("leaf")
    child = agent("child", leaf.as_tool("Answers."), middlewares=[RetryMiddleware()])
    other = agent("other")
    middlewares = [TracingMiddleware(), RateLimitMiddleware()]
    return agent("boss", child.as_tool("Answers."), other.as_tool("Answers.", inherit=False), middlewares=middlewares)


def test_explain_shows_the_chains_of_children_and_their_origins():
    text = tree().explain()
    assert "Agent 'boss': the chains, outermost first" in text
    assert "\nThe tool 'child' is an agent, with chains of its own:\n\n    Agent 'child': the chains" in text
    assert "      1. TracingMiddleware, from 'boss'  agentrt_middleware" in text
    assert "      1. RetryMiddleware  agentrt_middleware" in text or "2. RetryMiddleware  agentrt_middleware" in text
    assert "\n        Agent 'leaf': the chains, outermost first" in text
    assert text.count("1. TracingMiddleware, from 'boss'") > 3
    assert "      middlewares: its own, and TracingMiddleware of 'boss', RateLimitMiddleware of 'boss'" in text
    assert "middlewares: its own alone: what those of 'boss' limit, count, record or refuse does not hold here" in text
    assert text.count("deadline, interrupt, cancellation: those of") == 3


def test_explain_as_json_has_the_same():
    description = json.loads(tree().explain("json"))
    child, other = description["children"]
    assert (child["tool"], child["chains"]["agent"], other["tool"]) == ("child", "child", "other")
    assert [one.get("from") for one in child["chains"]["middlewares"]] == ["boss", None, "boss"]
    model_calls = next(hook for hook in child["chains"]["hooks"] if hook["hook"] == "on_model_call")
    assert [layer["class"] for layer in model_calls["layers"]] == [
        "TracingMiddleware",
        "RetryMiddleware",
        "RateLimitMiddleware",
    ]
    assert child["chains"]["children"][0]["tool"] == "leaf"
    absent = "guards and observers that are not inherited"
    assert absent not in child["isolation"]
    assert other["isolation"][absent] == "TracingMiddleware, RateLimitMiddleware"
    assert len(child["isolation"]) == len(other["isolation"]) - 1 == 10
    assert "children" not in other["chains"]
    assert "children" not in json.loads(agent("alone").explain("json"))


def test_explain_as_mermaid_has_nodes_of_different_names():
    diagram = tree().explain("mermaid")
    nodes = [line.split("[")[0].split()[-1] for line in diagram.splitlines() if "[" in line]
    assert len(nodes) == len(set(nodes))
    assert "subgraph child_1[\"The tool 'child': the agent 'child'\"]" in diagram
    assert "TracingMiddleware, from 'boss'" in diagram
    assert diagram.count("subgraph") == diagram.count("  end")
    assert "child_1_child_1_isolation" in diagram


def test_a_tool_that_was_replaced_is_not_explained():
    boss = agent("boss", agent("child").as_tool("Answers."))
    boss.toolkit.register_tool_function(
        agent("child", middlewares=[RetryMiddleware()]).as_tool("Answers."), namesake="override"
    )
    (child,) = json.loads(boss.explain("json"))["children"]
    assert child["chains"]["middlewares"][0]["class"] == "RetryMiddleware"


def test_a_child_alone_has_no_parent():
    tool = agent("child").as_tool("Answers.")
    assert tool.isolation["middlewares"] == "its own"
    assert tool.bound_to(agent("boss")).agent.lineage.ancestors[0].name == "boss"
    assert tool.agent.lineage.ancestors == ()


async def test_inherited_layers_leave_the_keys_of_the_childs_own():
    of_boss, of_child = UsageMiddleware(), UsageMiddleware()
    child = agent("child", middlewares=[of_child])
    boss = agent("boss", child.as_tool("Answers."), middlewares=[of_boss])
    bound = boss.live_conversation.bindings.tool(boss, boss.toolkit.get("child")).agent
    assert (bound.chains.key_of(of_boss), bound.chains.key_of(of_child)) == ("UsageMiddleware@boss", "UsageMiddleware")
    assert child.chains.key_of(of_child) == "UsageMiddleware"
