"""An agent under its old names: the memory is what the conversation is made of."""

import copy

import pytest

from agentrt import Toolkit
from agentrt.agent import ContextConfig, ReActAgent, ReActConfig
from agentrt.errors import ConfigError, UsageError
from agentrt.memory import InMemoryMemory
from agentrt.message import Msg
from agentrt.model import ScriptedChatModel
from agentrt.session import JSONSession
from agentrt.state import AgentState


def agent_of(*responses: object, **options: object) -> ReActAgent:
    agent = ReActAgent("friday", "Be brief.", ScriptedChatModel(list(responses)), **options)  # type: ignore[arg-type]
    agent.disable_console_output()
    return agent


def said(text: str) -> Msg:
    return Msg("user", text, "user")


def last_asked(agent: ReActAgent) -> list[str | None]:
    return [msg.get_text_content() for msg in agent.model.calls[-1].messages[1:]]  # type: ignore[attr-defined]


async def remembered(agent: ReActAgent) -> list[str | None]:
    return [msg.get_text_content() for msg in await agent.memory.get_memory()]


async def test_the_memory_holds_the_conversation():
    agent = agent_of("one")
    await agent(said("a"))
    await agent.observe(Msg("bob", "b", "user"))
    assert await remembered(agent) == ["a", "one", "b"]


async def test_messages_added_to_the_memory_join_before_the_next_input():
    memory = InMemoryMemory()
    await memory.add(said("a"))
    agent = agent_of("one", "two", memory=memory)
    await agent(said("b"))
    await memory.add(said("c"))
    await agent(said("d"))
    assert last_asked(agent) == ["a", "b", "one", "c", "d"]
    assert await remembered(agent) == ["a", "b", "one", "c", "d", "two"]


async def test_a_model_does_not_see_what_was_cleared_from_the_memory():
    agent = agent_of("one", "two")
    agent.state.summary = "a secret"
    await agent(said("a secret"))
    await agent.memory.clear()
    await agent(said("b"))
    assert (last_asked(agent), agent.state.summary) == (["b"], "")
    assert await remembered(agent) == ["b", "two"]


async def test_a_message_replaced_in_the_memory_is_noticed():
    agent = agent_of("one", "two")
    await agent(said("a"))
    await agent.memory.delete([(await agent.memory.get_memory())[0].id])
    await agent.memory.add(said("c"))
    await agent(said("d"))
    assert last_asked(agent) == ["one", "c", "d"]


async def test_summarised_messages_stay_in_the_memory_alone():
    long, short = "a" * 4_000, ContextConfig(reserve_ratio=0.0001)
    agent = agent_of("one", "two", "the summary", "three", context_config=short)
    await agent(said(long))
    await agent(said("b"))
    await agent.compress_context()
    assert long not in [msg.get_text_content() for msg in agent.state.context]
    await agent.memory.add(said("c"))
    await agent(said("d"))
    assert long not in last_asked(agent)
    assert last_asked(agent)[-4:] == ["b", "two", "c", "d"]
    assert await remembered(agent) == [long, "one", "b", "two", "c", "d", "three"]


async def test_a_memory_cleared_after_loading_a_session_stays_cleared(tmp_path):
    session, agent = JSONSession(tmp_path), agent_of("one")
    await agent(said("a secret"))
    await session.save_session_state("s", agent=agent)
    cleared = agent_of()
    await session.load_session_state("s", agent=cleared)
    assert await remembered(cleared) == ["a secret", "one"]
    await cleared.memory.clear()
    await session.save_session_state("s", agent=cleared)
    later = agent_of("two")
    await session.load_session_state("s", agent=later)
    await later(said("b"))
    assert last_asked(later) == ["b"]


async def test_another_conversation_has_its_own_context_and_memory():
    agent = agent_of("one", "two")
    await agent(said("a"))
    other = agent.with_state(AgentState(context=[said("x")], summary="what was before"))
    await other(said("b"))
    assert last_asked(other)[-2:] == ["x", "b"]
    assert (other.state.summary, await remembered(other)) == ("what was before", ["x", "b", "two"])
    assert await remembered(agent) == ["a", "one"]


@pytest.mark.parametrize("option", ["compression_config", "tts_model"])
def test_an_option_of_then_is_refused_with_what_does_it_now(option):
    with pytest.raises(ConfigError, match=rf"ReActAgent\({option}=...\) is not an option: \w"):
        ReActAgent("friday", "", None, **{option: None})


def test_rounds_are_limited_in_one_way_only():
    assert agent_of().react_config.max_iters == 10
    assert agent_of(max_iters=3).react_config.max_iters == 3
    assert agent_of(react_config=ReActConfig(max_iters=4)).react_config.max_iters == 4
    with pytest.raises(ConfigError, match=r"not both: write ReActConfig\(max_iters=3\)"):
        agent_of(max_iters=3, react_config=ReActConfig())


def test_tool_calls_run_one_after_the_other_unless_asked_for():
    assert not agent_of().react_config.parallel_tool_calls
    assert agent_of(parallel_tool_calls=True).react_config.parallel_tool_calls
    with pytest.raises(ConfigError, match=r"not both: write ReActConfig\(parallel_tool_calls=False\)"):
        agent_of(parallel_tool_calls=False, react_config=ReActConfig())


def test_a_memory_of_another_type_is_refused_with_its_value():
    with pytest.raises(ConfigError, match=r"must be a MemoryBase, such as InMemoryMemory\(\), not <class"):
        agent_of(memory=Toolkit)


async def test_a_missing_super_init_of_a_react_agent_is_an_error():
    class Forgetful(ReActAgent):
        def __init__(self) -> None:
            pass

    with pytest.raises(UsageError, match=r"call it there first"):
        await Forgetful()(said("a"))


async def test_a_long_memory_costs_a_turn_no_more_than_a_short_one(monkeypatch: pytest.MonkeyPatch):
    copies = 0
    copy = Msg.copy

    def counted(msg: Msg) -> Msg:
        nonlocal copies
        copies += 1
        return copy(msg)

    monkeypatch.setattr(Msg, "copy", counted)
    agent = agent_of(*["answer"] * 30)
    counts = []
    for turn in range(30):
        before = copies
        await agent(said(str(turn)))
        counts.append(copies - before)
    assert set(counts[1:]) == {counts[1]}
    assert await agent.memory.size() == 60


async def test_a_copy_is_the_same_conversation_with_the_same_memory():
    agent = agent_of("one", "two")
    other = copy.copy(agent)
    await agent(said("a"))
    await other(said("b"))
    assert await remembered(agent) == await remembered(other) == ["a", "one", "b", "two"]


async def test_a_session_restores_the_name_and_the_system_prompt(tmp_path):
    agent, other = agent_of("one"), ReActAgent("nobody", "Be long.", ScriptedChatModel(["two"]))
    session = JSONSession(save_dir=str(tmp_path))
    await agent(said("a"))
    await session.save_session_state("today", agent=agent)
    await session.load_session_state("today", agent=other)
    assert (other.name, other.system_prompt, other.sys_prompt) == ("friday", "Be brief.", "Be brief.")
    other.disable_console_output()
    answer = await other(said("b"))
    assert answer.name == "friday"
    assert other.model.calls[0].messages[0].get_text_content() == "Be brief."


def test_a_session_that_was_saved_without_a_name_still_loads():
    agent = agent_of()
    state = agent.state_dict()
    del state["name"], state["system_prompt"]
    other = ReActAgent("nobody", "Be long.", ScriptedChatModel([]))
    other.load_state_dict(state)
    assert (other.name, other.system_prompt) == ("nobody", "Be long.")


def test_a_name_that_is_not_a_str_is_refused_and_loads_nothing():
    agent, state = agent_of(), agent_of().state_dict()
    with pytest.raises(TypeError, match="must be str, not 5"):
        agent.load_state_dict({**state, "system_prompt": 5, "name": "other"})
    assert agent.name == "friday"


@pytest.mark.parametrize(
    "method", ["_summarizing", "generate_response", "_retrieve_from_knowledge", "_retrieve_from_the_web"]
)
def test_a_1x_method_that_is_never_called_is_warned_of(method):
    async def overridden(self, *args, **kwargs):
        raise AssertionError

    with pytest.warns(UserWarning, match=rf"the runtime never calls Ported\.{method}\(\): ") as warned:
        type("Ported", (ReActAgent,), {method: overridden})("friday", "Be brief.", ScriptedChatModel([]))
    assert warned[0].filename == __file__


def test_a_formatter_is_warned_of_where_it_is_given():
    with pytest.warns(UserWarning, match=r"ReActAgent\(formatter=...\) is not used") as warned:
        ReActAgent("friday", "Be brief.", ScriptedChatModel([]), formatter=object())
    assert warned[0].filename == __file__
