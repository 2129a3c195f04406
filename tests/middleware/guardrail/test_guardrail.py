"""Guardrails: what a guard objects to is not said, not run, not shown to the model, and not kept."""

import functools
import pickle
from collections.abc import Callable
from itertools import repeat
from typing import Any

import anyio.lowlevel
import pytest

from agentrt import Agent, AgentState, Msg, Toolkit
from agentrt.agent import ContextConfig, ReActAgentBase
from agentrt.errors import GuardrailTripped, MiddlewareConfigError, Rejected, Transient
from agentrt.event import AgentEvent, CustomEvent, ToolResultEndEvent
from agentrt.message import Base64Source, DataBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.middleware import (
    GuardedCall,
    GuardrailMiddleware,
    HumanApprovalMiddleware,
    Judge,
    MiddlewareBase,
    RedactionMiddleware,
    Replace,
    RetryMiddleware,
)
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionContext, PermissionMode
from agentrt.testing import check_middleware
from agentrt.tool import FunctionTool
from agentrt.types import ToolChunk
from tests.loop.helpers import call, elsewhere, items_of

SECRET = "canary-7"
BOTH = pytest.mark.parametrize("parallel", [True, False])


def no_secret(value: Any, agent: Any) -> str | None:
    return "no secrets" if SECRET in str(value) else None


async def hide_secret(value: str, agent: Any) -> Replace | None:
    return Replace(value.replace(SECRET, "***")) if SECRET in value else None


class Log(list[int]):
    def tool(self) -> FunctionTool:
        async def pay(amount: int) -> str:
            self.append(amount)
            return f"{SECRET} paid {amount}"

        return FunctionTool(pay)


def agent_with(script: list[Any], *layers: MiddlewareBase, log: Log | None = None, **options: Any) -> Agent:
    toolkit = Toolkit(tools=[] if log is None else [log.tool()])
    permissions = PermissionContext(mode=PermissionMode.BYPASS)
    model = ScriptedChatModel(script, **options)
    return Agent("a", "", model, toolkit, list(layers), state=AgentState(permission_context=permissions))


def guardrail_events(items: list[AgentEvent | Msg]) -> list[Any]:
    return [tuple(item.value.values()) for item in items if isinstance(item, CustomEvent) and item.name == "guardrail"]


def written(agent: Agent, items: list[AgentEvent | Msg]) -> str:
    return agent.state.model_dump_json() + "".join(item.to_json() for item in items)


def last(items: list[AgentEvent | Msg]) -> Msg:
    message = items[-1]
    assert isinstance(message, Msg)
    return message


ROUNDS: dict[str, list[Any]] = {
    "text": [TextBlock(f"it is {SECRET}")],
    "text and call": [TextBlock(f"it is {SECRET}"), call("1", "pay", amount=1)],
    "thinking": [ThinkingBlock(f"secretly {SECRET}"), TextBlock(f"it is {SECRET}"), call("1", "pay", amount=1)],
}


@pytest.mark.parametrize("stream", [True, None])
@pytest.mark.parametrize("blocks", ROUNDS.values(), ids=ROUNDS)
async def test_an_answer_that_trips_is_withheld(blocks: list[Any], stream: bool | None) -> None:
    log = Log()
    layer = GuardrailMiddleware(output=[no_secret], message="Not that.")
    agent = agent_with([blocks, "Hello."], layer, log=log, stream=stream)
    items = await items_of(agent)
    assert guardrail_events(items) == [("no_secret", "output", "answer")]
    assert (last(items).get_text_content(), last(items).finished_reason) == ("Not that.", "guardrail")
    assert SECRET not in written(agent, items)
    assert log == []
    assert (await agent.reply("and now?")).get_text_content() == "Hello."


@pytest.mark.parametrize("blocks", ROUNDS.values(), ids=ROUNDS)
async def test_an_answer_that_trips_raises(blocks: list[Any]) -> None:
    log, items = Log(), []
    agent = agent_with(
        [blocks, "Hello."], OuterLayer(), GuardrailMiddleware(output=no_secret, on_trip="raise"), log=log
    )
    with pytest.raises(GuardrailTripped) as raised:
        async for item in agent.reply_stream("go"):
            items.append(item)
    assert (raised.value.guard, raised.value.stage) == ("no_secret", "output")
    assert SECRET not in written(agent, items) + str(raised.value) + repr(getattr(raised.value, "__notes__", []))
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.guard, copy.stage) == (str(raised.value), "no_secret", "output")
    assert log == []
    assert (await agent.reply("and now?")).get_text_content() == "Hello."


class OuterLayer(MiddlewareBase):
    """Sees what leaves, before the reader does."""

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            assert SECRET not in item.to_json()
            yield item


async def test_the_model_is_asked_again_and_told_the_reason() -> None:
    log = Log()
    agent = agent_with([ROUNDS["thinking"], "Fine."], GuardrailMiddleware(output=no_secret, on_trip="again"), log=log)
    items = await items_of(agent)
    assert guardrail_events(items) == [("no_secret", "output", "again")]
    assert (last(items).get_text_content(), last(items).finished_reason) == ("Fine.", "completed")
    assert isinstance(agent.model, ScriptedChatModel)
    request = "".join(message.to_json() for message in agent.model.calls[1].messages)
    assert "no secrets" in request
    assert SECRET not in request + written(agent, items)
    assert log == []


@pytest.mark.parametrize("attempts", [1, 2, 4])
async def test_the_attempts_of_a_reply_are_limited(attempts: int) -> None:
    layer = GuardrailMiddleware(output=no_secret, on_trip="again", attempts=attempts)
    agent = agent_with([SECRET] * 20, layer)
    assert isinstance(agent.model, ScriptedChatModel)
    for replies in (1, 2):  # each reply has as many
        assert (await agent.reply("go")).finished_reason == "guardrail"
        assert len(agent.model.calls) == replies * (attempts + 1)


@pytest.mark.parametrize("stream", [True, None])
async def test_a_replacement_is_shown_kept_and_returned(stream: bool | None) -> None:
    log = Log()
    layer = GuardrailMiddleware(output=[hide_secret], tool_result=[hide_secret])
    agent = agent_with([ROUNDS["text and call"], f"Done, {SECRET}."], layer, log=log, stream=stream)
    items = await items_of(agent)
    assert last(items).get_text_content() == "Done, ***."
    assert SECRET not in written(agent, items)
    assert log == [1]
    assert [action for _, _, action in guardrail_events(items)] == ["replace"] * 3


async def test_structured_output_is_judged_as_output() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    answer = [ToolCallBlock("1", "GenerateStructuredOutput", f'{{"name": "{SECRET}"}}')]
    agent = agent_with([answer], GuardrailMiddleware(output=no_secret))
    message = await agent.reply("go", structured_schema=schema)
    assert (message.finished_reason, message.structured_output) == ("guardrail", None)
    agent = agent_with([answer], GuardrailMiddleware(output=hide_secret))
    message = await agent.reply("go", structured_schema=schema)
    assert message.structured_output == {"name": "***"}
    assert SECRET not in agent.state.model_dump_json()


@BOTH
@pytest.mark.parametrize("stream", [True, None])
async def test_an_input_that_trips_gets_no_answer(parallel: bool, stream: bool | None) -> None:
    layer = GuardrailMiddleware(input=[no_secret], parallel=parallel)
    agent = agent_with([f"{SECRET} you say", "Hello.", "Hello."], layer, stream=stream)
    items = await items_of(agent, f"tell {SECRET}")
    assert guardrail_events(items) == [("no_secret", "input", "answer")]
    assert last(items).finished_reason == "guardrail"
    assert SECRET not in "".join(item.to_json() for item in items)
    # What it refers to is not shown to the model later on, either.
    assert (await agent.reply("answer what I have asked")).get_text_content() is not None
    assert isinstance(agent.model, ScriptedChatModel)
    assert SECRET not in "".join(message.to_json() for message in agent.model.calls[-1].messages)


@BOTH
async def test_an_input_that_trips_raises(parallel: bool) -> None:
    layer = GuardrailMiddleware(input=[no_secret], parallel=parallel, on_trip="raise")
    agent = agent_with(["Hello."], layer)
    with pytest.raises(GuardrailTripped, match="no_secret objects to the input"):
        await agent.reply(SECRET)


@BOTH
async def test_a_replaced_input_is_all_that_a_model_sees(parallel: bool) -> None:
    layer = GuardrailMiddleware(input=[hide_secret], parallel=parallel)
    agent = agent_with(["one", "two", "three"], layer)
    await agent.reply(f"tell {SECRET}")
    again = elsewhere(agent)
    await again.reply("and now?")
    assert isinstance(agent.model, ScriptedChatModel)
    first = agent.model.calls[-1].messages[0].get_text_content()
    assert first == "tell ***"


async def test_each_message_of_a_user_is_judged_once() -> None:
    seen: list[str] = []

    def note(value: str, agent: Any) -> None:
        seen.append(value)

    script = [[call("1", "pay", amount=1)], "one", "two"]
    agent = agent_with(script, GuardrailMiddleware(input=note), log=Log())
    await agent.reply([Msg("user", "first", "user"), Msg("user", "second", "user")])
    await agent.reply("third")
    assert seen == ["first", "second", "third"]


@BOTH
async def test_an_id_that_was_judged_stands_for_no_other_message(parallel: bool) -> None:
    agent = agent_with(repeat("Well."), GuardrailMiddleware(input=no_secret, parallel=parallel))
    judged = Msg("user", "hi", "user", id="known")
    withheld = Msg("user", SECRET, "user", id="bad")
    assert (await agent.reply(judged)).finished_reason == "completed"
    assert (await agent.reply(withheld)).finished_reason == "guardrail"
    inputs: list[Any] = [
        Msg("user", SECRET, "user", id="known"),
        [Msg("user", SECRET, "user"), Msg("user", "hi", "user", id="known")],
        Msg("user", f"again {SECRET}", "user", id="bad"),
    ]
    for value in inputs:
        agent = elsewhere(agent)
        assert (await agent.reply(value)).finished_reason == "guardrail"
    assert isinstance(agent.model, ScriptedChatModel)
    await agent.reply(Msg("user", "a fine word", "user", id="bad"))
    assert "a fine word" in repr(agent.model.calls[-1].messages)
    assert SECRET not in repr(agent.model.calls[-1].messages)


async def test_text_is_not_taken_for_data_that_was_let_pass() -> None:
    agent = agent_with(repeat("Well."), GuardrailMiddleware(input=lambda text, _: "no" if "abcd" in text else None))
    data = DataBlock(Base64Source("abcd", "text"))
    assert (await agent.reply(Msg("user", [TextBlock("hi"), data], "user", id="one"))).finished_reason == "completed"
    text = Msg("user", [TextBlock("hi"), TextBlock("abcd")], "user", id="one")
    assert (await agent.reply(text)).finished_reason == "guardrail"


async def test_a_replacement_stands_for_its_own_message_alone() -> None:
    agent = agent_with(repeat("Well."), GuardrailMiddleware(input=hide_secret))
    await agent.reply(Msg("user", f"tell {SECRET}", "user", id="one"))
    await agent.reply(Msg("user", "and now?", "user", id="one"))
    assert isinstance(agent.model, ScriptedChatModel)
    assert [message.get_text_content() for message in agent.model.calls[-1].messages][::2] == ["tell ***", "and now?"]


class Request(MiddlewareBase):
    """Stands for a provider that does not answer before it may."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.begun, self.may_answer, self.was_cancelled = anyio.Event(), anyio.Event(), False
        self.error = error

    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.begun.set()
        try:
            if self.error is not None:
                raise self.error
            await self.may_answer.wait()
        except anyio.get_cancelled_exc_class():
            self.was_cancelled = True
            raise
        return await next_handler()


async def test_guards_judge_beside_the_request() -> None:
    request = Request()

    async def wait(value: str, agent: Any) -> None:
        await request.begun.wait()
        request.may_answer.set()

    agent = agent_with(["Hello."], GuardrailMiddleware(input=wait), request)
    assert (await agent.reply("go")).get_text_content() == "Hello."


async def test_without_parallel_the_request_waits_for_the_guards() -> None:
    request = Request()

    def look(value: str, agent: Any) -> None:
        assert not request.begun.is_set()
        request.may_answer.set()

    agent = agent_with(["Hello."], GuardrailMiddleware(input=look, parallel=False, on_error="closed"), request)
    assert (await agent.reply("go")).get_text_content() == "Hello."


async def test_a_trip_cancels_the_request() -> None:
    request = Request()

    async def trip(value: str, agent: Any) -> str:
        await request.begun.wait()
        return "no"

    agent = agent_with(["Hello."], GuardrailMiddleware(input=trip), request)
    assert (await agent.reply("go")).finished_reason == "guardrail"
    assert request.was_cancelled


async def test_an_error_of_the_request_leaves_unchanged() -> None:
    error = Rejected("bad key")

    async def wait(value: str, agent: Any) -> None:
        await anyio.sleep_forever()

    agent = agent_with([], GuardrailMiddleware(input=wait, timeout=60), Request(error))
    with pytest.raises(Rejected) as raised:
        await agent.reply("go")
    assert raised.value is error


async def test_a_stop_of_an_inner_layer_beside_guards_counts() -> None:
    class Stop(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            agent.run.stop("exceed_budget", "Enough.")

    agent = agent_with([], GuardrailMiddleware(input=no_secret), Stop())
    assert (await agent.reply("go")).finished_reason == "exceed_budget"


async def test_a_cancellation_ends_guards_and_request() -> None:
    request = Request()
    ended: list[str] = []

    async def wait(value: str, agent: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(value)

    agent = agent_with(["Hello."], GuardrailMiddleware(input=wait, timeout=60), request)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                await request.begun.wait()
                scope.cancel()

            group.start_soon(cancel)
            await agent.reply("go")
    assert scope.cancelled_caught
    assert request.was_cancelled
    assert ended in (["go"], [])  # it may not have begun


@pytest.mark.parametrize("mode", list(PermissionMode))
async def test_a_call_that_trips_is_denied_in_every_mode(mode: PermissionMode) -> None:
    seen: list[GuardedCall] = []

    def small(value: GuardedCall, agent: Any) -> str | None:
        seen.append(value)
        return "at most 3" if value.arguments["amount"] > 3 else None

    log = Log()
    agent = agent_with(
        [[call("1", "pay", amount=5)], "done"], GuardrailMiddleware(tool_call=small, on_trip="raise"), log=log
    )
    agent.state.permission_context.mode = mode
    items = await items_of(agent)
    [end] = [item for item in items if isinstance(item, ToolResultEndEvent)]
    assert end.state == "denied"
    assert log == []
    if seen:
        assert seen[0] == GuardedCall("pay", {"amount": 5})
        assert guardrail_events(items) == [("small", "tool_call", "deny")]


async def test_nobody_is_asked_about_a_call_that_trips() -> None:
    layers = [GuardrailMiddleware(tool_call=lambda value, agent: "no"), HumanApprovalMiddleware(["pay"])]
    log = Log()
    agent = agent_with([[call("1", "pay", amount=5)], "done"], *layers, log=log)
    await agent.reply("go")
    assert agent.waiting() is None
    assert log == []


@pytest.mark.parametrize("on_trip", ["answer", "raise", "again"])
async def test_a_result_that_trips_is_withheld(on_trip: str) -> None:
    log, items = Log(), []
    agent = agent_with(
        [[call("1", "pay", amount=5)], "done"], GuardrailMiddleware(tool_result=no_secret, on_trip=on_trip), log=log
    )
    error: Exception | None = None
    try:
        async for item in agent.reply_stream("go"):
            items.append(item)
    except GuardrailTripped as tripped:
        error = tripped
    assert (error is not None) == (on_trip == "raise")
    assert guardrail_events(items) == [("no_secret", "tool_result", on_trip)]
    assert SECRET not in written(agent, items)
    assert log == [5]


async def test_pieces_of_a_result_do_not_leave_before_it() -> None:
    async def stream():
        yield ToolChunk([TextBlock(SECRET)])
        yield ToolChunk([TextBlock(" and more")])

    model = ScriptedChatModel([[call("1", "stream")], "done"])
    agent = Agent("a", model=model, tools=[stream], middlewares=[GuardrailMiddleware(tool_result=no_secret)])
    items = await items_of(agent)
    assert guardrail_events(items) == [("no_secret", "tool_result", "answer")]
    assert SECRET not in written(agent, items)


def raises(value: Any, agent: Any) -> None:
    raise LookupError(SECRET)


async def hangs(value: Any, agent: Any) -> None:
    await anyio.sleep_forever()


FAILING: dict[str, Any] = {
    "raises": raises,
    "hangs": hangs,
    "true": lambda value, agent: True,
    "empty": lambda value, agent: "",
    "number": lambda value, agent: 7,
    "odd replacement": lambda value, agent: Replace(7),  # type: ignore[arg-type]
    "judge": lambda value, agent: Judge(ScriptedChatModel(["perhaps"] * 9), "Is it rude?")(value, agent),
    "failing judge": lambda value, agent: Judge(ScriptedChatModel([Rejected(SECRET)]), "Rude?")(value, agent),
}


@pytest.mark.parametrize("stage", ["input", "output", "tool_call", "tool_result"])
@pytest.mark.parametrize("guard", FAILING.values(), ids=FAILING)
async def test_a_guard_that_fails_trips_unless_it_may(guard: Any, stage: str, caplog: pytest.LogCaptureFixture) -> None:
    for on_error in ("closed", "open"):
        log = Log()
        layer = GuardrailMiddleware(**{stage: [guard]}, on_error=on_error, timeout=0.05)
        script = [[TextBlock("I pay."), call("1", "pay", amount=1)], "done"]
        agent = agent_with(script, layer, log=log)
        items = await items_of(agent)
        assert bool(guardrail_events(items)) == (on_error == "closed")
        assert log == ([1] if on_error == "open" or stage == "tool_result" else [])
    assert SECRET not in caplog.text
    assert f"of {stage}" in caplog.text


@pytest.mark.parametrize("stage", ["input", "output", "tool_call", "tool_result"])
@pytest.mark.parametrize("is_yes", [True, False])
async def test_a_judge_is_asked_once_and_its_question_counts(stage: str, is_yes: bool) -> None:
    verdict = [ToolCallBlock("1", "GenerateStructuredOutput", f'{{"is_yes": {str(is_yes).lower()}}}')]
    judge = ScriptedChatModel([verdict] * 2, model="judge")
    layer = GuardrailMiddleware(**{stage: Judge(judge, "Is it rude?")})  # type: ignore[arg-type]  # any of its stages
    agent = agent_with([[call("1", "pay", amount=1)], "Hello."], layer, RedactionMiddleware(), log=Log())
    items = await items_of(agent, "I am me@example.com.")
    assert bool(guardrail_events(items)) == is_yes
    assert len(judge.calls) == 1
    request = judge.calls[0].messages
    assert "Is it rude?" in (request[0].get_text_content() or "")
    assert "me@example.com" not in (request[1].get_text_content() or "")


async def test_withdrawn_pieces_are_not_judged() -> None:
    layers = [GuardrailMiddleware(output=no_secret), RetryMiddleware(initial_delay=0)]
    items = await items_of(agent_with([[SECRET, Transient("cut")], "Hello."], *layers))
    assert last(items).get_text_content() == "Hello."
    assert guardrail_events(items) == []


async def test_withdrawn_pieces_stay_withdrawn_while_a_guard_judges() -> None:
    async def slow_guard(text: str, agent: Any) -> None:
        for _ in range(50):  # in which a stream that is read ahead would reach its second attempt
            await anyio.lowlevel.checkpoint()

    layers = [GuardrailMiddleware(input=slow_guard), RetryMiddleware(initial_delay=0)]
    agent = agent_with([["half ", Transient("cut")], "Hello."], *layers)
    assert last(await items_of(agent)).get_text_content() == "Hello."


async def test_guards_see_what_those_before_them_have_made() -> None:
    guard = GuardrailMiddleware(output=[hide_secret, no_secret])
    assert (await agent_with([SECRET], guard).reply("go")).get_text_content() == "***"
    guard = GuardrailMiddleware(output=[no_secret, hide_secret])
    assert (await agent_with([SECRET], guard).reply("go")).finished_reason == "guardrail"


async def test_a_sub_agent_has_the_guards_of_its_agent() -> None:
    child = Agent("child", model=ScriptedChatModel([f"it is {SECRET}"]))
    model = ScriptedChatModel([[call("1", "child", query="x")], "done"])
    tool = child.as_tool(description="Ask the child.")
    agent = Agent("a", model=model, tools=[tool], middlewares=[GuardrailMiddleware(output=no_secret)])
    items = await items_of(agent)
    assert SECRET not in written(agent, items)
    assert [stage for _, stage, _ in guardrail_events(items)] == ["output"]


class OwnReply(ReActAgentBase):
    """Writes its own reply, which has no rounds of the runtime."""

    async def reply(self, msg: Msg) -> Msg:
        return await self._reasoning()

    async def _reasoning(self) -> Msg:
        return Msg("own", f"it is {SECRET}", "assistant")

    async def _acting(self, order: object) -> None: ...


@pytest.mark.parametrize("on_trip", ["answer", "raise", "again"])
async def test_in_agents_with_an_own_reply_a_trip_raises(on_trip: str) -> None:
    agent = OwnReply(name="own", middlewares=[GuardrailMiddleware(output=no_secret, on_trip=on_trip)])
    with pytest.raises(GuardrailTripped):
        await agent(Msg("user", "go", "user"))
    agent = OwnReply(name="own", middlewares=[GuardrailMiddleware(output=hide_secret, on_trip=on_trip)])
    assert (await agent(Msg("user", "go", "user"))).content == "it is ***"


class Passing:
    def __call__(self, value: Any, agent: Any) -> None: ...


def test_a_guard_may_be_any_callable_of_two() -> None:
    def three(value: Any, agent: Any, more: int) -> None: ...

    GuardrailMiddleware(output=[Passing(), functools.partial(three, more=1), Passing().__call__])


def yields(value: Any, agent: Any) -> Any:
    yield "no"


BAD: list[tuple[Callable[[], Any], str]] = [
    (GuardrailMiddleware, "has no guards, so it would stop nothing: write"),
    (lambda: GuardrailMiddleware(output="rude"), r"output=\.\.\.\) must be a list of guards"),  # type: ignore[arg-type]
    (lambda: GuardrailMiddleware(input=[7]), r"input=\.\.\.\) has 7, which is not callable: write a function"),  # type: ignore[list-item]
    (lambda: GuardrailMiddleware(tool_call=[lambda value: None]), r"which must be a function \(value, agent\)"),  # type: ignore[list-item]
    (lambda: GuardrailMiddleware(output=[yields]), "has the generator function yields: let it return"),
    (lambda: GuardrailMiddleware(output=Passing), "has the class Passing: make an instance"),  # type: ignore[arg-type]
    (lambda: GuardrailMiddleware(output=no_secret, on_trip="agian"), 'did you mean "again"'),
    (lambda: GuardrailMiddleware(output=no_secret, on_error="close"), 'did you mean "closed"'),
    (lambda: GuardrailMiddleware(output=no_secret, parallel=1), "must be True or False, not 1"),  # type: ignore[arg-type]
    (lambda: GuardrailMiddleware(output=no_secret, message=""), "must be a str for the user"),
    (
        lambda: GuardrailMiddleware(output=no_secret, attempts=0),
        r"attempts=\.\.\.\) must be a whole number of at least 1",
    ),
    (lambda: GuardrailMiddleware(output=no_secret, attempts=1.5), "must be a whole number"),  # type: ignore[arg-type]
    (lambda: GuardrailMiddleware(output=no_secret, timeout=0), r"timeout=\.\.\.\) must be a number above 0"),
    (lambda: GuardrailMiddleware(output=no_secret, timeout=float("inf")), "must be finite"),
    (lambda: Judge(7, "Is it rude?"), r"Judge\(model=\.\.\.\) must be a chat model"),  # type: ignore[arg-type]
    (lambda: Judge("rules", ""), r"Judge\(question=\.\.\.\) must be a question"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_a_wrong_option_is_refused_with_its_remedy(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as refused:
        make()
    assert type(refused.value).__name__ == "MiddlewareConfigError"


def test_it_stands_outside_of_what_its_judges_need() -> None:
    layers = [RedactionMiddleware(), GuardrailMiddleware(output=no_secret)]
    with pytest.raises(MiddlewareConfigError, match="put "):
        agent_with([], *layers)


OPTIONS: dict[str, Callable[[], MiddlewareBase]] = {
    "before, raise": lambda: GuardrailMiddleware(input=passes, output=passes, parallel=False, on_trip="raise"),
    "again": lambda: GuardrailMiddleware(output=passes, tool_result=passes, on_trip="again"),
    "open": lambda: GuardrailMiddleware(
        input=raises, output=raises, tool_call=raises, tool_result=raises, on_error="open"
    ),
}


async def passes(value: Any, agent: Any) -> None:
    await anyio.lowlevel.checkpoint()


@pytest.mark.slow
@pytest.mark.parametrize("make", OPTIONS.values(), ids=OPTIONS)
async def test_every_option_keeps_the_contract(make: Callable[[], MiddlewareBase]) -> None:
    await check_middleware(make, faults=["cancel"], every=3)


@pytest.mark.parametrize("guard", [no_secret, hide_secret])
async def test_a_summary_holds_nothing_that_requests_may_not_have(guard: Any) -> None:
    model = ScriptedChatModel(repeat("Well."))
    model.context_size = 1_000
    config = ContextConfig(trigger_ratio=0.9, reserve_ratio=0.1)
    agent = Agent("a", model=model, middlewares=[GuardrailMiddleware(input=guard)], context_config=config)
    for text in (f"Tell {SECRET}.", "words " * 60, "words " * 60, f"And {SECRET}?", "And?"):
        await agent.reply(text)
    sent = list(agent.state.context)
    await agent.compress_context()
    assert agent.state.summary == "Well."
    # `parallel` may have sent the message itself, but no later request has it.
    assert SECRET not in repr(model.calls[-1].messages)
    # Nor has the conversation.
    assert SECRET not in repr(agent.state.context)
    assert all(any(message is other for other in sent) for message in agent.state.context)


async def test_an_answer_in_a_form_is_no_call_to_guards() -> None:
    seen: list[Any] = []
    form = [ToolCallBlock("1", "GenerateStructuredOutput", '{"n": 1}')]
    layer = GuardrailMiddleware(
        tool_call=[lambda value, agent: "never"], output=[lambda value, agent: seen.append(value)]
    )
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    message = await agent_with([form], layer).reply("go", structured_schema=schema)
    assert (message.structured_output, seen) == ({"n": 1}, ['{"n": 1}'])
