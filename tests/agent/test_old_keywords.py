"""Keywords and parameters of AgentScope 1.x work as its documents write them, or say what to write."""

from typing import Any

import pytest

from agentrt import Agent, AgentBase, Msg, Toolkit, UserMsg
from agentrt.agent import ReActAgent
from agentrt.errors import ToolConfigError, WrongCallError
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import MsgHub


def add(a: int, b: int) -> int:
    return a + b


def test_groups_take_their_old_keywords():
    toolkit = Toolkit()
    toolkit.create_tool_group(group_name="files", description="Files.")
    toolkit.update_tool_groups(group_names=["files"], active=True)
    assert toolkit.active_groups == ["files"]
    further = toolkit.with_tools([add])
    further.update_tool_groups(group_names=["files"], active=False)
    assert toolkit.active_groups == []


def test_a_function_is_registered_by_its_old_keywords():
    toolkit = Toolkit([add])
    toolkit.register_tool_function(
        tool_func=add,
        func_name="plus",
        namesake_strategy="rename",
        async_execution=False,
        include_long_description=True,
        postprocess_func=None,
    )
    toolkit.register_tool_function(tool_func=add, namesake_strategy="rename")
    assert toolkit.names() == ["add", "plus", "add_2"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"async_execution": True}, "tools run in parallel by default"),
        ({"include_long_description": False}, "write func_description"),
        ({"postprocess_func": print}, "middleware with on_acting"),
        ({"include_var_keyword": True}, "write json_schema"),
    ],
)
def test_an_option_that_is_not_here_says_what_to_write(option: dict[str, Any], words: str):
    with pytest.raises(WrongCallError, match=words):
        Toolkit().register_tool_function(add, **option)


def test_two_names_of_one_parameter_are_refused():
    with pytest.raises(WrongCallError, match="leave out 'namesake_strategy'"):
        Toolkit().register_tool_function(add, namesake="skip", namesake_strategy="skip")


async def test_a_removed_tool_is_not_offered_in_the_next_round():
    def respond(messages: Any, tools: Any) -> Any:
        offered.append([tool["function"]["name"] for tool in tools])
        return "done"

    offered: list[list[str]] = []
    toolkit = Toolkit([add])
    agent = Agent("tester", model=ScriptedChatModel([respond, respond]), toolkit=toolkit)
    await agent.reply("go")
    toolkit.remove_tool_function("add")
    toolkit.remove_tool_function("add")
    await agent.reply("again")
    assert offered == [["add"], []]
    with pytest.raises(ToolConfigError, match="has no tool 'add'"):
        toolkit.remove_tool_function("add", allow_not_exist=False)
    toolkit.create_tool_group("files", "Files.")
    with pytest.raises(ToolConfigError, match="not registered by itself"):
        toolkit.remove_tool_function("reset_equipped_tools")


async def test_a_function_of_keywords_alone_is_a_tool():
    def note(**facts: Any) -> str:
        return str(facts)

    calls = [ToolCallBlock("1", "note", '{"age": 3}')]
    agent = Agent("tester", model=ScriptedChatModel([calls, "done"]), tools=[note])
    await agent.reply("go")
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert result.text == "{'age': 3}"


async def test_observe_takes_msgs_in_every_class():
    class Listener(AgentBase):
        async def observe(self, msg: Any) -> None:
            heard.append(msg)

    heard: list[Any] = []
    message = UserMsg("user", "Hi")
    await Listener().observe(msgs=message)
    assert heard == [message]
    for agent in (Agent("a", model=ScriptedChatModel([])), ReActAgent("a", "", ScriptedChatModel([]))):
        await agent.observe(msgs=[message])
        assert [seen.get_text_content() for seen in agent.state.context] == ["Hi"]


async def test_interrupt_takes_a_message():
    message = Msg("user", "Stop.", "user")
    for agent in (AgentBase(), Agent("a", model=ScriptedChatModel([]))):
        assert not agent.interrupt(message)
        assert not await agent.interrupt(msg=message)


def test_the_input_of_the_studio_can_be_imported_with_the_agents():
    from agentrt import agent, serving

    assert agent.StudioUserInput is serving.StudioUserInput  # type: ignore[attr-defined]  # at run time alone
    assert not hasattr(agent, "StudioInput")


def test_a_hub_takes_enable():
    hub = MsgHub([])
    hub.set_auto_broadcast(enable=False)
    assert hub._automatic is False


async def test_options_of_a_react_agent_can_be_read_and_set():
    agent = ReActAgent("Friday", "You are Friday.", ScriptedChatModel(["Hello."]), max_iters=3)
    assert (agent.sys_prompt, agent.max_iters, agent.parallel_tool_calls) == ("You are Friday.", 3, False)
    assert (agent.formatter, agent.knowledge, agent.enable_rewrite_query) == (None, [], True)
    assert (agent.enable_meta_tool, agent.print_hint_msg, agent.long_term_memory_mode) == (False, False, "both")
    agent.max_iters, agent.parallel_tool_calls = 5, True
    assert (agent.react_config.max_iters, agent.react_config.parallel_tool_calls) == (5, True)


async def test_a_react_agent_may_speak_first():
    agent = ReActAgent("Friday", "You are Friday.", ScriptedChatModel(["Hello."]))
    assert (await agent()).get_text_content() == "Hello."
