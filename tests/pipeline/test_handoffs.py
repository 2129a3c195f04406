"""One conversation of several agents: who has it, what each one reads, and how another process continues it."""

import copy
import json
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from agentrt import Agent, AgentBase, AgentState, MiddlewareBase, Msg, UserMsg
from agentrt.errors import AgentBusyError, ConfigError, InvalidInputError, ResumeError
from agentrt.formatter.anthropic import format_anthropic
from agentrt.formatter.openai import format_openai
from agentrt.message import HintBlock, TextBlock, ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionContext, PermissionRule
from agentrt.pipeline import HandoffMiddleware, Handoffs, sequential_pipeline
from agentrt.state import FileStateStore, InMemoryStateStore
from agentrt.tool import FunctionTool
from agentrt.types import PermissionBehavior, PermissionMode
from tests.loop.helpers import call, confirmation_of, saved_state


async def look_up(order: str) -> str:
    return f"order {order} was paid twice"


async def refund(order: str) -> str:
    return f"refunded {order}"


def transfer(to: str, call_id: str = "t", **arguments: str) -> ToolCallBlock:
    return call(call_id, f"transfer_to_{to}", **arguments)


def agent(name: str, *responses: Any, tools: Any = (), **options: Any) -> Agent:
    return Agent(name, f"You are {name}.", ScriptedChatModel([*responses]), tools=[*tools], **options)


def shop(**options: Any) -> Handoffs:
    """Return a team of which the first looks an order up and the second refunds it."""
    triage = agent(
        "triage", [call("1", "look_up", order="7")], [transfer("refunds", reason="paid twice")], "hello again"
    )
    refunds = agent("refunds", [call("2", "refund", order="7")], "Refunded.", "What else?", tools=[refund])
    triage.toolkit.register_tool_function(look_up)
    return Handoffs([triage, refunds], **options)


def requests_of(team: Handoffs, name: str) -> list[list[Msg]]:
    model = team.agents[name].model
    assert isinstance(model, ScriptedChatModel)
    return [one.messages for one in model.calls]


def speakers(state: AgentState) -> list[str]:
    return [msg.name for msg in state.context]


# Who has the conversation.


@pytest.fixture
def team() -> Handoffs:
    return shop()


async def test_the_agent_that_is_chosen_answers(team: Handoffs) -> None:
    answer = await team.reply("I paid twice.")
    assert (answer.name, answer.get_text_content()) == ("refunds", "Refunded.")
    assert speakers(team.state) == ["user", "triage", "refunds"]
    assert team.active.name == "refunds"


async def test_the_one_that_answered_last_answers_next(team: Handoffs) -> None:
    await team("I paid twice.")
    answer = await team("Thanks.")
    assert answer.get_text_content() == "What else?"


@pytest.mark.parametrize("by_name", [True, False])
async def test_start_says_who_begins(by_name: bool) -> None:
    one, two = agent("one", "from one"), agent("two", "from two")
    team = Handoffs([one, two], start="two" if by_name else two)
    assert (await team.reply("go")).get_text_content() == "from two"


async def test_agents_themselves_stay_as_they_are() -> None:
    one, two = agent("one", [transfer("two")], "mine"), agent("two", "from two")
    before = one.toolkit.names()
    await Handoffs([one, two]).reply("go")
    assert one.toolkit.names() == before == []
    assert one.state.context == []
    assert (await one.reply("go")).get_text_content() == "mine"


async def test_each_agent_has_its_own_prompt_tools_and_layers() -> None:
    seen: list[str] = []

    class Noting(MiddlewareBase):
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            seen.append(agent.name)
            async for item in next_handler():
                yield item

    one = agent("one", [transfer("two")], middlewares=[Noting()])
    team = Handoffs([one, agent("two", "done", tools=[refund])])
    await team.reply("go")
    assert seen == ["one"]
    [request] = team.agents["two"].model.calls  # type: ignore[attr-defined]
    assert [schema["function"]["name"] for schema in request.tools] == ["refund", "transfer_to_one"]
    assert request.messages[0].get_text_content() == "You are two."
    assert "You are one." in str(request.tools[-1]["function"]["description"])


async def test_one_agent_alone_is_a_team() -> None:
    assert (await Handoffs([agent("one", "done")]).reply("go")).get_text_content() == "done"


async def test_second_transfer_of_one_answer_is_refused() -> None:
    one = agent("one", [transfer("two", "t1"), transfer("three", "t2")])
    team = Handoffs([one, agent("two", "from two"), agent("three", "from three")])
    assert (await team.reply("go")).get_text_content() == "from two"
    results = team.state.context[1].get_content_blocks("tool_result")
    assert [result.state for result in results] == ["success", "denied"]
    assert "already goes to two" in results[1].text


async def test_transfers_are_bounded_and_there_is_an_answer() -> None:
    one = agent("one", *[[transfer("two", f"t{n}")] for n in range(20)])
    two = agent("two", *[[transfer("one", f"t{n}")] for n in range(2)], [transfer("one", "t3")], "I answer.")
    team = Handoffs([one, two], max_handoffs=5)
    answer = await team.reply("go")
    assert answer.get_text_content() == "I answer."
    assert speakers(team.state) == ["user", "one", "two", "one", "two", "one", "two"]
    assert "5 times" in team.state.context[-1].get_content_blocks("tool_result")[0].text


async def test_each_answer_counts_its_own_transfers() -> None:
    one = agent("one", *[[transfer("two", f"t{n}")] for n in range(3)])
    team = Handoffs([one, agent("two", "first", [transfer("one")], "second")], max_handoffs=2)
    await team.reply("go")
    assert (await team.reply("again")).get_text_content() == "second"


async def test_rule_against_a_transfer_holds() -> None:
    rules = [PermissionRule("transfer_to_two", None, PermissionBehavior.DENY)]
    one = agent("one", [transfer("two")], "I stay.")
    team = Handoffs([one, agent("two")], state=AgentState(permission_context=PermissionContext(rules=rules)))
    assert (await team.reply("go")).get_text_content() == "I stay."


# What each one reads.


async def test_calls_of_tools_that_one_lacks_are_notes(team: Handoffs) -> None:
    await team.reply("I paid twice.")
    first = requests_of(team, "refunds")[0]
    assert not [block for msg in first for block in msg.get_content_blocks("tool_call")]
    notes = [block.hint for msg in first for block in msg.get_content_blocks() if isinstance(block, HintBlock)]
    assert notes == [
        'triage called look_up with {"order": "7"}, which returned: order 7 was paid twice',
        'triage called transfer_to_refunds with {"reason": "paid twice"}, which returned: Transferred to refunds.',
    ]
    # What is kept is as it was.
    assert len(team.state.context[1].get_content_blocks("tool_call")) == 2


@pytest.mark.parametrize("formatter", [format_openai, format_anthropic])
async def test_request_after_a_transfer_ends_with_the_user(formatter: Any, team: Handoffs) -> None:
    await team.reply("I paid twice.")
    payload = formatter(requests_of(team, "refunds")[0])
    messages = payload["messages"] if isinstance(payload, dict) else payload
    assert messages[-1]["role"] == "user"
    assert "Transferred to refunds" in json.dumps(messages[-1])


async def test_calls_stay_calls_when_the_history_says_so() -> None:
    team = shop(history="calls")
    await team.reply("I paid twice.")
    calls = [block.name for msg in requests_of(team, "refunds")[0] for block in msg.get_content_blocks("tool_call")]
    assert calls == ["look_up", "transfer_to_refunds"]


async def test_calls_of_tools_that_both_have_stay_calls() -> None:
    one = agent("one", [call("1", "look_up", order="7")], [transfer("two")], tools=[look_up])
    team = Handoffs([one, agent("two", "done", tools=[look_up])])
    await team.reply("go")
    calls = [block.name for msg in requests_of(team, "two")[0] for block in msg.get_content_blocks("tool_call")]
    assert calls == ["look_up"]


async def test_own_calls_stay_calls_when_the_conversation_returns() -> None:
    one = agent("one", [call("1", "look_up", order="7")], [transfer("two")], "done", tools=[look_up])
    team = Handoffs([one, agent("two", [transfer("one")])])
    await team.reply("go")
    calls = [block.name for msg in requests_of(team, "one")[-1] for block in msg.get_content_blocks("tool_call")]
    assert calls == ["look_up", "transfer_to_two"]


# As a stream.


async def test_stream_has_all_events_and_the_answer_last(team: Handoffs) -> None:
    async with team.reply_stream("I paid twice.", yield_final_msg=True) as stream:
        items = [item async for item in stream]
    *events, answer = items
    assert isinstance(answer, Msg)
    assert answer.get_text_content() == "Refunded."
    assert stream.message is answer
    numbers = [event.seq for event in events]
    assert numbers == sorted(set(numbers))
    assert [event.type for event in events].count("REPLY_START") == 2
    [handoff] = [event for event in events if event.type == "CUSTOM"]
    assert (handoff.name, handoff.value) == ("handoff", {"from": "triage", "to": "refunds"})
    for msg in team.state.context[1:]:
        rebuilt = Msg(msg.name, [], "assistant", id=msg.id)
        for event in events:
            if event.reply_id == msg.id:
                rebuilt.append_event(event)
        assert [block.type for block in rebuilt.content] == [block.type for block in msg.content]


async def test_text_of_the_stream_is_that_of_all_speakers() -> None:
    one = agent("one", [TextBlock("Wait. "), transfer("two")])
    team = Handoffs([one, agent("two", "Here I am.")])
    async with team.reply_stream("go").text() as text:
        assert "".join([piece async for piece in text]) == "Wait. Here I am."


async def test_dropped_stream_lets_the_next_reply_answer() -> None:
    one = agent("one", [transfer("two")], "unused")
    team = Handoffs([one, agent("two", "interrupted by a break", "done")])
    async for event in team.reply_stream("go"):
        if event.type == "TEXT_BLOCK_DELTA":
            break
    del event
    assert (await team.reply("again")).get_text_content() == "done"
    async for _event in team.reply_stream("go"):
        break
    with anyio.fail_after(30), pytest.raises(Exception, match="script"):
        await team.reply("again")


async def test_stream_that_is_closed_early_is_closed_whole(team: Handoffs) -> None:
    async with team.reply_stream("I paid twice.") as stream:
        async for event in stream:
            if event.type == "TOOL_CALL_START":
                break
    assert (await team.reply("Go on.")).name in ("triage", "refunds")


async def test_second_reply_at_the_same_time_is_refused() -> None:
    async def slow() -> str:
        with pytest.raises(AgentBusyError):
            await team.reply("meanwhile")
        return "refused"

    team = Handoffs([agent("one", [transfer("two")]), agent("two", [call("1", "slow")], "done", tools=[slow])])
    assert (await team.reply("go")).get_text_content() == "done"
    assert team.active.name == "two"


# Waiting, saving, resuming.


def asking(**options: Any) -> Handoffs:
    one = agent("one", [transfer("two")], "one again")
    two = agent(
        "two", [call("1", "refund", order="7")], [transfer("one", "t2")], tools=[FunctionTool(refund, ask=True)]
    )
    return Handoffs([one, two], **options)


async def test_question_of_any_speaker_waits_and_is_answered() -> None:
    team = asking()
    answer = await team.reply("go")
    assert answer.name == "two"
    with pytest.raises(ResumeError):
        await team.reply("something else")
    yes = confirmation_of(team)
    answer = await team.reply(yes)
    assert (answer.name, answer.get_text_content()) == ("one", "one again")
    assert speakers(team.state) == ["user", "one", "two", "one"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_wrong_input_is_refused_at_the_call_and_changes_nothing(streamed: bool, team: Handoffs) -> None:
    await team.reply("I paid twice.")
    before = team.state.model_dump_json()
    with pytest.raises(InvalidInputError, match="or a list of these, not 7"):
        if streamed:
            team.reply_stream(7)  # type: ignore[arg-type]
        else:
            await team.reply(7)  # type: ignore[call-overload]
    assert team.state.model_dump_json() == before


@pytest.mark.parametrize("streamed", [False, True])
async def test_conversation_resumes_in_another_process(streamed: bool, tmp_path: Any) -> None:
    store = FileStateStore(tmp_path)
    team = asking(state=AgentState(session_id="s"), state_store=store)
    await team.reply("go")
    # Elsewhere: agents that have answered nothing yet, of which the second speaks and then the first.
    loaded = await store.load("s")
    assert loaded is not None
    one, two = agent("one", "one again"), agent("two", [transfer("one", "t2")], tools=[FunctionTool(refund, ask=True)])
    other = Handoffs([one, two], state=loaded, state_store=store)
    assert other.active.name == "two"
    yes = confirmation_of(other)
    if streamed:
        answer: Any = await other.reply_stream(yes, yield_final_msg=True).drain()
    else:
        answer = await other.reply(yes)
    assert answer.get_text_content() == "one again"
    saved = await store.load("s")
    assert saved is not None
    assert speakers(saved) == ["user", "one", "two", "one"]
    assert other.active.name == "one"


async def test_speaker_keeps_the_conversation_while_its_reply_waits() -> None:
    calls = [transfer("two"), call("1", "refund", order="7")]
    one = agent("one", calls, tools=[FunctionTool(refund, ask=True)])
    team = Handoffs([one, agent("two", "from two")])
    await team.reply("go")
    assert team.active.name == "one"
    yes = confirmation_of(team)
    assert (await team.reply(yes)).get_text_content() == "from two"


async def test_conversation_that_ended_between_two_speakers_continues() -> None:
    """A process that dies after the first one's reply, and before the second one's, loses nothing."""

    class Dying(InMemoryStateStore):
        saved: str = ""

        async def save(self, state: AgentState) -> None:
            await super().save(state)
            if state.last_reply is not None and state.reply_context is None and not self.saved:
                type(self).saved = state.model_dump_json()

    Dying.saved = ""
    team = Handoffs([agent("one", [transfer("two")]), agent("two", "done")], state_store=Dying())
    await team.reply("go", reply_id="r")
    for inputs, reply_id in ((None, None), ("go", "r")):
        state = AgentState.model_validate_json(Dying.saved)
        assert speakers(state) == ["user", "one"]
        other = Handoffs([agent("one"), agent("two", "done")], state=state)
        answer = await other.reply(inputs, reply_id=reply_id)
        assert answer.get_text_content() == "done"
        assert speakers(state) == ["user", "one", "two"]


async def test_reply_with_an_id_is_given_once(team: Handoffs) -> None:
    first = await team.reply("I paid twice.", reply_id="r1")
    again = await team.reply("I paid twice.", reply_id="r1")
    assert again.get_text_content() == first.get_text_content() == "Refunded."
    assert speakers(team.state) == ["user", "triage", "refunds"]
    assert (await team.reply("Thanks.", reply_id="r2")).get_text_content() == "What else?"


async def test_interrupt_ends_whichever_reply_there_is() -> None:
    async def wait() -> str:
        team.interrupt()
        await anyio.sleep_forever()
        return ""

    team = Handoffs([agent("one", [transfer("two")]), agent("two", [call("1", "wait")], "done", tools=[wait])])
    answer = await team.reply("go")
    assert answer.finished_reason == "interrupted"
    assert (await team.reply("again")).get_text_content() == "done"


async def test_failing_model_leaves_the_conversation_usable() -> None:
    team = Handoffs([agent("one", [transfer("two")]), agent("two", RuntimeError("down"), "back")])
    with pytest.raises(RuntimeError, match="down"):
        await team.reply("go")
    assert (await team.reply("again")).get_text_content() == "back"


async def test_answer_has_the_form_that_was_asked_for() -> None:
    class Sum(BaseModel):
        value: int

    one = agent("one", [transfer("two")])
    team = Handoffs([one, agent("two", [call("1", "GenerateStructuredOutput", value=5)])])
    answer = await team.reply("go", Sum)
    assert answer.structured_output == Sum(value=5)


async def test_other_states_are_other_conversations(team: Handoffs) -> None:
    await team.reply("I paid twice.")
    other = team.with_state(AgentState())
    assert other.active.name == "triage"
    assert (await other.reply("Hi.")).get_text_content() == "hello again"
    assert speakers(team.state) == ["user", "triage", "refunds"]


async def test_state_that_is_assigned_is_that_of_all_agents() -> None:
    team = Handoffs([agent("one", [transfer("two")], "again"), agent("two", "done")])
    await team.reply("go")
    first = team.state
    team.state = AgentState()
    assert all(one.state is team.state for one in team.agents.values())
    assert (await team.reply("anew")).get_text_content() == "again"
    assert speakers(team.state) == ["user", "one"]
    assert speakers(first) == ["user", "one", "two"]
    with pytest.raises(ConfigError, match="'z'"):
        team.state = AgentState(middleware_data={"handoffs": {"active": "z"}})
    with pytest.raises(ConfigError, match="AgentState"):
        team.state = {}  # type: ignore[assignment]
    assert speakers(team.state) == ["user", "one"]


@pytest.mark.parametrize("streams", [True, False])
async def test_copy_of_a_team_is_another_conversation(streams: bool) -> None:
    team = Handoffs([agent("one", [transfer("two")]), agent("two", "done", "more")])
    if streams:
        async with team.reply_stream("go") as events:
            async for _ in events:
                pass
    else:
        await team.reply("go")
    copied = copy.deepcopy(team)
    assert all(one.state is copied.state for one in copied.agents.values())
    assert (await copied.reply("and?")).get_text_content() == "more"
    assert speakers(team.state) == ["user", "one", "two"]
    assert speakers(copied.state) == ["user", "one", "two", "user", "two"]


async def test_observed_messages_are_read_by_the_next_speaker() -> None:
    team = Handoffs([agent("one", "done"), agent("two")])
    await team.observe(UserMsg("ann", "psst"))
    await team.reply("go")
    assert "psst" in str([msg.get_text_content() for msg in requests_of(team, "one")[0]])


async def test_team_is_a_stage_of_a_pipeline() -> None:
    answer = await sequential_pipeline([shop(), agent("last", "bye")], "I paid twice.")
    assert answer.get_text_content() == "bye"


def test_team_answers_without_an_event_loop() -> None:
    assert shop().run_sync("I paid twice.").get_text_content() == "Refunded."


async def test_deps_reach_every_speaker() -> None:
    seen: list[Any] = []

    class Noting(MiddlewareBase):
        async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
            seen.append((agent.name, agent.run.deps))
            return current_prompt

    layer = Noting()
    one, two = agent("one", [transfer("two")], middlewares=[layer]), agent("two", "done", middlewares=[layer])
    await Handoffs([one, two]).reply("go", deps=5)
    assert seen == [("one", 5), ("two", 5)]


def test_explain_shows_the_chains_of_every_agent() -> None:
    text = shop().explain()
    assert "'triage'" in text
    assert "'refunds'" in text
    assert "HandoffMiddleware" in text
    assert "transfer_to_refunds" in text
    assert repr(shop()) == "<Handoffs of triage, refunds; triage has the conversation>"


# Permissions and stores.


def test_strictest_permissions_of_all_agents_hold() -> None:
    one, two = agent("one"), agent("two")
    deny = PermissionRule("refund", None, PermissionBehavior.DENY)
    allow = PermissionRule("look_up", None, PermissionBehavior.ALLOW)
    one.state.permission_context = PermissionContext(PermissionMode.BYPASS, [deny, allow])
    two.state.permission_context = PermissionContext(PermissionMode.DONT_ASK)
    context = Handoffs([one, two]).state.permission_context
    assert (context.mode, context.rules) == (PermissionMode.DONT_ASK, [deny])
    two.state.permission_context = PermissionContext(PermissionMode.BYPASS, [deny, allow])
    context = Handoffs([one, two]).state.permission_context
    assert context == one.state.permission_context
    assert context is not one.state.permission_context


def test_store_of_the_agents_is_that_of_the_team() -> None:
    store = InMemoryStateStore()
    team = Handoffs([agent("one", state_store=store), agent("two")])
    assert all(member.state_store is store for member in team.agents.values())
    with pytest.raises(ConfigError, match="state_store"):
        Handoffs([agent("one", state_store=store), agent("two", state_store=InMemoryStateStore())])


def test_layer_of_an_outermost_middleware_stays_outermost() -> None:
    class Outermost(MiddlewareBase):
        position = "outermost"

        async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
            return current_prompt

    team = Handoffs([agent("one", middlewares=[Outermost()]), agent("two")])
    assert [type(layer).__name__ for layer in team.agents["one"].middlewares] == ["Outermost", "HandoffMiddleware"]
    again = Handoffs([*team.agents.values()])
    assert len(again.agents["one"].middlewares) == 2


class NotAnAgent(AgentBase):
    pass


STATE_OF_OTHERS = AgentState(middleware_data={"handoffs": {"active": "z"}})
NAMESAKE = FunctionTool(refund, name="transfer_to_b")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Handoffs([]), "at least one agent"),
        (lambda: Handoffs([agent("a"), agent("a")]), "two agents that are called 'a'"),
        (lambda: Handoffs(agent("a")), "a list of agents"),
        (lambda: Handoffs("a"), "a list of agents, not 'a'"),
        (lambda: Handoffs(None), "a list of agents, not None"),
        (lambda: Handoffs([Agent]), "instances of Agent"),
        (lambda: Handoffs([NotAnAgent()]), "instances of Agent"),
        (lambda: Handoffs([agent("a b"), agent("c")]), "'transfer_to_a b' cannot be the name of a tool"),
        (lambda: Handoffs([agent("a")], start="b"), "start=.*must be one of a, not 'b'"),
        (lambda: Handoffs([agent("a")], start=agent("b")), "start="),
        (lambda: Handoffs([agent("a")], start=1), "start=.*not 1"),
        (lambda: Handoffs([agent("a")], history="none"), "history must be \"text\" or \"calls\", not 'none'"),
        (lambda: Handoffs([agent("a")], max_handoffs=0), "max_handoffs.*not 0"),
        (lambda: Handoffs([agent("a")], max_handoffs=True), "max_handoffs.*not True"),
        (lambda: Handoffs([agent("a")], state={}), "AgentState"),
        (lambda: Handoffs([agent("a")], state=STATE_OF_OTHERS), "'z'.*one of a"),
        (lambda: Handoffs([agent("a")], state_store=5), "Handoffs.state_store=.*which 5 lacks"),
        (lambda: Handoffs([agent("a")], state_store=InMemoryStateStore), "Handoffs.state_store=.*InMemoryStateStore"),
        (lambda: Handoffs([agent("a", tools=[NAMESAKE]), agent("b")]), "transfer_to_b"),
        (lambda: HandoffMiddleware(["a"]), "dict of names"),
    ],
)  # fmt: skip
def test_wrong_team_is_refused_with_its_remedy(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"active": "a", "next": "z"}, "'z' gets the conversation next.*one of a, b"),
        ({"active": "a", "next": 1}, "1 gets the conversation next"),
        ({"active": "a", "next": ["b"]}, "gets the conversation next"),
        ({"active": ["a"]}, "has the conversation"),
        ({"active": None}, "None has the conversation"),
        ({"active": "a", "count": "1"}, "another state"),
        ({"active": "a", "part": None}, "another state"),
        ([], "another state"),
        (None, "another state"),
        ("a", "another state"),
    ],
)
def test_state_that_fits_no_team_is_refused(data: Any, words: str) -> None:
    state = AgentState(middleware_data={"handoffs": data})
    with pytest.raises(ConfigError, match=words):
        Handoffs([agent("a"), agent("b")], state=state)
    with pytest.raises(ConfigError, match=words):
        Handoffs([agent("a"), agent("b")]).with_state(state)


async def test_question_of_a_sub_agent_of_a_speaker_waits_too() -> None:
    asks = FunctionTool(refund, ask=True)
    clerk = agent("clerk", [call("1", "refund", order="7")], "It is done.", tools=[asks])
    two = agent("two", [call("c", "clerk", query="refund 7")], "All done.", tools=[clerk.as_tool("Refunds.")])
    team = Handoffs([agent("one", [transfer("two")]), two])
    await team.reply("go")
    question = team.waiting()
    assert [one.id for one in question.tool_calls] == ["c/1"]
    state = saved_state(team)
    yes = confirmation_of(team)
    answer = await team.with_state(state).reply(yes)
    assert answer.get_text_content() == "All done."
    assert speakers(state) == ["user", "one", "two"]
