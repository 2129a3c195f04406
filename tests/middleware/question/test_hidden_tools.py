"""Hidden tools: no model is offered one, calls one or sees one, whatever stands beside their calls."""

from typing import Any

import pytest

from agentrt import Agent, MiddlewareBase, Toolkit
from agentrt._runtime.block import HIDDEN_CALL
from agentrt.console.confirmation import next_confirmation
from agentrt.errors import InvalidInputError, MiddlewareConfigError, UsageError
from agentrt.message import TextBlock, ToolCallBlock, ToolResultState, UserMsg
from agentrt.middleware import CompressionMiddleware, GuardrailMiddleware, HumanApprovalMiddleware, Question
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.model.estimate import characters_of
from agentrt.permission import PermissionMode
from agentrt.testing import answer as expected_answer
from agentrt.testing import assert_trajectory, cassette, check_middleware
from agentrt.testing import call as expected_call
from agentrt.tool import ToolBase
from agentrt.types import PermissionBehavior, PermissionDecision
from tests.loop.helpers import add, call, elsewhere, saved_state
from tests.middleware.question.layers import (
    ADD,
    HOOKS,
    TEXT,
    Asking,
    answer_to,
    asking_agent,
    assert_no_model_saw,
    hidden_in,
    question_of,
)


class Note(ToolBase):
    name = "note"
    is_hidden = True

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def call(self, text: str) -> str:
        self.notes.append(text)
        return "noted"


class Noting(MiddlewareBase):
    """Adds a call of its hidden tool to what the model answers."""

    def __init__(self) -> None:
        self.note = Note()

    def list_tools(self):
        return [self.note]

    async def on_model_call(self, agent, input_kwargs, next_handler):
        answer = await next_handler()
        if any(isinstance(block, ToolCallBlock) for block in answer.content):
            noted = agent.run.hidden_call(self.note, '{"text": "seen"}')
            return ChatResponse([*answer.content, noted])
        return answer


def whole(*responses: Any) -> ScriptedChatModel:
    return ScriptedChatModel(list(responses), stream=False)


async def test_hidden_call_runs_beside_the_models_own() -> None:
    layer, model = Noting(), whole([TextBlock("Well."), ADD], "done", "again")
    agent = Agent("tester", model=model, tools=[add], middlewares=[layer])
    await agent.reply("go")
    await agent.reply("go")
    assert layer.note.notes == ["seen"]
    seen = [block.type for message in model.calls[1].messages for block in message.get_content_blocks()]
    assert seen == ["text", "text", "tool_call", "tool_result"]
    assert len(hidden_in(agent.state.context)) == 2
    assert not any(hidden_in(request.messages) for request in model.calls)


@pytest.mark.parametrize("call_id", ["1", "", f"{HIDDEN_CALL}1", f"{HIDDEN_CALL}" + "{reply}-1", "hidden"])
async def test_model_that_calls_a_hidden_tool_reads_that_there_is_none(call_id: str) -> None:
    layer = Asking("")

    def forge(messages: Any, tools: Any) -> list[Any]:
        return [ToolCallBlock(call_id.replace("{reply}", reply_id), "raise_budget", '{"tokens": 1000000}')]

    reply_id = "r"
    model = whole(forge, "done")
    agent = Agent("tester", model=model, tools=[add], middlewares=[layer])
    await agent.reply("go", reply_id=reply_id)
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert result.state is ToolResultState.ERROR
    assert result.text == "The tool 'raise_budget' does not exist. The tools are: add."
    assert not result.is_hidden
    assert agent.waiting() is None


async def test_model_cannot_repeat_the_id_of_a_hidden_call() -> None:
    layer = Asking("on_reasoning")
    forged: list[ToolCallBlock] = []
    model = whole(lambda messages, tools: forged, "done")
    agent = Agent("tester", model=model, tools=[add], middlewares=[layer])
    await agent.reply("go")
    [asked] = question_of(agent).tool_calls
    forged.append(ToolCallBlock(asked.id, "raise_budget", '{"tokens": 9}'))
    await agent.reply(answer_to(agent, True))
    results = agent.state.context[-1].get_content_blocks("tool_result")
    assert [result.state for result in results] == ["success", "error"]
    assert len(layer.answers) == 1


def test_toolkit_offers_no_hidden_tool() -> None:
    toolkit = Toolkit(tools=[add, Note()])
    assert toolkit.names() == ["add"]
    assert toolkit.with_tools([Question("ask", a=int)]).names() == ["add"]
    assert toolkit.get("note") is not None


async def test_layer_cannot_offer_a_hidden_tool_by_a_request() -> None:
    class Offering(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await next_handler(tools=[Note()])

    with pytest.raises(Exception, match="note is a hidden tool"):
        await asking_agent(Offering()).reply("go")


async def test_hidden_call_takes_a_hidden_tool_of_the_agent() -> None:
    class Calling(MiddlewareBase):
        def __init__(self, tool: Any) -> None:
            self.tool = tool

        async def on_model_call(self, agent, input_kwargs, next_handler):
            return ChatResponse([agent.run.hidden_call(self.tool)])

    for tool in (Note(), add, None, "note"):
        with pytest.raises(UsageError, match="hidden"):
            await asking_agent(Calling(tool)).reply("go")


def test_is_hidden_must_be_a_bool() -> None:
    tool = Note()
    tool.is_hidden = "yes"  # type: ignore[assignment]
    with pytest.raises(Exception, match="is_hidden"):
        Toolkit(tools=[tool])


def test_explain_says_which_tools_are_hidden() -> None:
    assert "Tools of Asking [raise_budget]: raise_budget (hidden)" in asking_agent(Asking("on_reasoning")).explain()


def test_two_questions_need_two_names() -> None:
    first, second = Asking("on_reasoning"), Asking("on_acting")
    second.key = "another"
    with pytest.raises(Exception, match="add a hidden tool called 'raise_budget'"):
        asking_agent(first, second)


async def test_reply_id_cannot_look_hidden() -> None:
    with pytest.raises(InvalidInputError, match="must not begin with 'hidden:'"):
        await asking_agent().reply("go", reply_id="hidden:1")


def test_hidden_blocks_have_no_characters() -> None:
    assert characters_of(ToolCallBlock("hidden:1", "ask", '{"a": 1}')) == 0
    assert characters_of(ToolCallBlock("1", "ask", '{"a": 1}')) == 11


@pytest.mark.parametrize("hook", HOOKS)
async def test_reply_goes_on_where_the_layer_is_gone(hook: str) -> None:
    agent = asking_agent(Asking(hook))
    await agent.reply("go")
    later = asking_agent(state=saved_state(agent))
    msg = await later.reply(answer_to(later, True))
    assert msg.get_text_content() == "done" or hook != "on_acting"
    assert later.waiting() is None
    assert_no_model_saw(later)


async def test_summary_says_nothing_of_a_question() -> None:
    model = ScriptedChatModel([[ADD], "word " * 2_000, "word " * 2_000, "the summary"])
    model.context_size = 6_000
    agent = Agent("tester", model=model, tools=[add], middlewares=[Asking("on_reasoning")])
    for _ in range(2):
        await agent.reply("go")
        await agent.reply(answer_to(agent, True))
    await agent.compress_context()
    assert agent.state.summary == "the summary"
    assert_no_model_saw(agent)


@pytest.mark.parametrize("how", ["trim", "window"])
async def test_history_that_a_layer_has_rewritten_hides_them_still(how: Any) -> None:
    agent = asking_agent(Asking("on_reasoning"), CompressionMiddleware(how), responses=[[ADD], *["done"] * 9])
    for _ in range(2):
        await agent.reply("go")
        await agent.reply(answer_to(agent, True))
        agent.state.context = [message.copy() for message in agent.state.context[:-1]] + agent.state.context[-1:]
        await agent.compress_context()
    await agent.reply("go")
    await agent.reply(answer_to(agent, True))
    assert_no_model_saw(agent)


async def test_ask_model_leaves_hidden_calls_out() -> None:
    class Summing(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            await agent.run.ask_model([*agent.state.context, UserMsg("u", "Sum up.")], purpose="sum_up")
            async for item in next_handler():
                yield item

    agent = asking_agent(Asking("on_reasoning"), responses=["done"] * 9)
    await agent.reply("go")
    await agent.reply(answer_to(agent, True))
    later = agent.with_middlewares([Summing()])
    await later.reply("go")
    assert_no_model_saw(later)


async def test_edit_of_a_message_reaches_the_next_request() -> None:
    agent = asking_agent(Asking("on_reasoning"), responses=["one", "two", "three"])
    for _ in range(2):
        await agent.reply("go")
        await agent.reply(answer_to(agent, True))
    agent.state.context[1].content = [*agent.state.context[1].content[:2], TextBlock("edited")]
    await agent.reply("go")
    await agent.reply(answer_to(agent, True))
    texts = [message.get_text_content() for message in agent.model.calls[-1].messages]
    assert "edited" in texts
    assert "one" not in texts


@pytest.mark.parametrize("hook", HOOKS[:2])
async def test_layer_that_passes_on_the_conversation_hides_them_still(hook: str) -> None:
    sent: list[Any] = []

    class Everything(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            context = agent.state.reply_context
            return await next_handler(messages=[*agent.state.context, context.message])

        def on_wire(self, agent, record):
            sent.extend(record.messages)

    agent = asking_agent(Asking(hook), Everything(), responses=[[ADD], *["done"] * 9])
    for inputs in ("go", "and on"):
        await agent.reply(inputs)
        await agent.reply(answer_to(agent, True))
    # In a later conversation, too, whose replies ask nothing.
    later = elsewhere(agent).with_middlewares([Everything()])
    await later.reply("once more")
    assert_no_model_saw(later)
    assert hidden_in(sent) == []


@pytest.mark.parametrize("hook", HOOKS)
async def test_yes_to_a_question_runs_no_visible_tool_of_its_name(hook: str) -> None:
    ran: list[int] = []

    def raise_budget(tokens: int) -> str:
        ran.append(tokens)
        return "raised"

    asked = asking_agent(Asking(hook))
    await asked.reply("go")
    model = ScriptedChatModel(["done"] if hook == "on_acting" else [[ADD], "done"])
    later = Agent("tester", model=model, tools=[add, raise_budget], state=saved_state(asked))
    assert (await later.reply(answer_to(asked, True))).get_text_content() == "done"
    assert ran == []


@pytest.mark.parametrize("hook", HOOKS)
async def test_question_is_no_step_of_a_trajectory(hook: str) -> None:
    agent = asking_agent(Asking(hook))
    await agent.reply("go")
    await agent.reply(answer_to(agent, True))
    assert_trajectory(agent, [expected_call("add", a=1, b=2), expected_answer("done")])


@pytest.mark.parametrize("hook", HOOKS)
async def test_question_is_in_no_cassette_and_no_key(hook: str, tmp_path: Any) -> None:
    path = tmp_path / "asked.json"
    with cassette(path, mode="once"):
        agent = asking_agent(Asking(hook))
        await agent.reply("go")
        await agent.reply(answer_to(agent, True, feedback="gladly"))
    for word in ("hidden:", "raise_budget", TEXT, "gladly"):
        assert word not in path.read_text()
    with cassette(path, mode="none"):  # every request has the key that it has where nobody asks
        await asking_agent().reply("go")


@pytest.mark.parametrize("layer", [GuardrailMiddleware(tool_call=[lambda call, agent: "no"]), None])
async def test_layers_about_tools_leave_questions_alone(layer: Any) -> None:
    asking = Asking("on_reasoning")
    other = layer or HumanApprovalMiddleware(["*"])
    agent = asking_agent(other, asking, responses=["done"])
    await agent.reply("go")
    assert next(iter(question_of(agent).questions.values())).message == TEXT
    await agent.reply(answer_to(agent, True))
    assert len(asking.answers) == 1


def supervisor_of(child: Agent, *layers: MiddlewareBase) -> Agent:
    model = ScriptedChatModel([[call("b1", child.name, query="go")], "all done"])
    return Agent("boss", model=model, tools=[child.as_tool("Adds.")], middlewares=list(layers))


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("is_inherited", [False, True])
@pytest.mark.parametrize("value", [120, 500])
async def test_question_inside_a_sub_agent(hook: str, is_inherited: bool, value: int) -> None:
    class Inherited(Asking):
        inherited = True

        def must_ask(self, agent):
            return super().must_ask(agent) and agent.run.depth > 0

        async def on_acting(self, agent, input_kwargs, next_handler):
            items = super().on_acting(agent, input_kwargs, next_handler) if agent.run.depth else next_handler()
            async for item in items:
                yield item

    layer = Inherited(hook)
    child = asking_agent(*([] if is_inherited else [layer]))
    boss = supervisor_of(child, *([layer] if is_inherited else []))
    await boss.reply("go")
    boss = elsewhere(boss)
    [asked] = question_of(boss).tool_calls
    assert (asked.name, asked.id.startswith("b1/")) == ("raise_budget", True)
    if value == 500 and not is_inherited:  # a tool that only the sub-agent has cannot be checked here
        with pytest.raises(Exception, match="send it back as it was asked"):
            await boss.reply(answer_to(boss, True, '{"tokens": 500}'))
        return
    msg = await boss.reply(answer_to(boss, True, f'{{"tokens":{value}}}'))
    assert msg.get_text_content() == "all done"
    assert [answer.input for answer in layer.answers] == [{"tokens": value}]
    assert_no_model_saw(boss)
    assert_no_model_saw(child)


@pytest.mark.parametrize("mode", [PermissionMode.DEFAULT, PermissionMode.BYPASS])
async def test_ask_of_a_layer_stands_in_every_mode(mode: PermissionMode) -> None:
    class Cautious(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            return PermissionDecision(PermissionBehavior.ASK, "Sure?")

    agent = asking_agent(Cautious())
    agent.state.permission_context.mode = mode
    await agent.reply("go")
    assert [decision.message for decision in question_of(agent).questions.values()] == ["Sure?"]


def test_error_of_a_question_is_one_of_configuration() -> None:
    with pytest.raises(MiddlewareConfigError):
        Question("no spaces", a=int)


@pytest.mark.parametrize("hook", HOOKS)
async def test_terminal_shows_what_a_layer_asks(hook: str) -> None:
    agent = asking_agent(Asking(hook, text="Spend\n\x1b[2J more?"))
    await agent.reply("go")
    confirmation = next_confirmation(agent.state)
    assert confirmation.text.startswith("Spend ")
    assert confirmation.text.endswith(' raise_budget {"tokens": 120}: y, n, or say why not')
    assert "\x1b" not in confirmation.text
    assert "\n" not in confirmation.text
    await agent.reply(confirmation.answer("y"))
    assert agent.waiting() is None


@pytest.mark.parametrize("hook", HOOKS[:2])
async def test_observers_see_a_question_among_events_alone(hook: str) -> None:
    class Audit(MiddlewareBase):
        def __init__(self) -> None:
            self.events: list[Any] = []
            self.sent: list[Any] = []

        def on_event(self, agent, event):
            self.events.append(event)

        def on_wire(self, agent, record):
            self.sent += record.messages

    audit = Audit()
    agent = asking_agent(audit, Asking(hook))
    await agent.reply("go")
    await agent.reply(answer_to(agent, True))
    types = [event.type for event in audit.events if str(getattr(event, "tool_call_id", "")).startswith(HIDDEN_CALL)]
    assert (types[0], types[-1]) == ("TOOL_CALL_START", "TOOL_RESULT_END")
    assert hidden_in(audit.sent) == []


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
async def test_layer_that_asks_keeps_the_contract(hook: str) -> None:
    await check_middleware(lambda: Asking(hook), faults=["cancel", "kill"], every=3)
