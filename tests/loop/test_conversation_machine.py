"""One conversation, and whatever may be done to it in whatever order, held against a plain account of what is owed.

The account knows nothing of the runtime: it says which calls run, which wait for whom, what each comes to, and in which
order messages are kept. After each step the record must say the same, be saved, and be fit to be sent to a model.
"""

import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pydantic import BaseModel

from agentrt import Agent, AgentState, Msg, Toolkit
from agentrt.errors import ResumeError, ToolError, UsageError
from agentrt.event import (
    AgentEvent,
    ConfirmResult,
    ExternalExecutionResultEvent,
    ReplyEndEvent,
    UserConfirmResultEvent,
    UserInterruptEvent,
)
from agentrt.message import AssistantMsg, TextBlock, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.model import ScriptedChatModel
from agentrt.state import FileStateStore, InMemoryStateStore
from agentrt.tool import FunctionTool, ToolBase
from agentrt.types import PermissionBehavior, PermissionContext, PermissionRule

pytestmark = pytest.mark.time_limit(600)  # hundreds of conversations: a busy machine takes a minute

FORM_TOOL = "GenerateStructuredOutput"
ALONE = {"alone", FORM_TOOL}
KINDS = ["run", "alone", "fail", "ask", "external", "ask_external"]
NEW, USER, EXTERNAL, ALLOWED, REFUSED = "new", "waits for the user", "waits for a result", "allowed", "refused"
EDITED_BY = 1_000_000
FORGED = ["reply", "call", "tool", "session", "input", "rule", "kind", "twice", "nothing"]
MEANWHILE = ["observe", "load", "speak", "interrupt", "interrupt by an event"]


class Form(BaseModel):
    n: int


@dataclass
class Call:
    """What is owed to one tool call. `n` is the only argument, and no two calls share it."""

    id: str
    tool: str
    n: Any
    state: str = NEW
    answer: Any = None

    @property
    def block(self) -> ToolCallBlock:
        return ToolCallBlock(self.id, self.tool, json.dumps({"n": self.n}))

    @property
    def waits(self) -> bool:
        return self.state in (USER, EXTERNAL)

    @property
    def is_open(self) -> bool:
        return self.waits or self.state in (NEW, ALLOWED, REFUSED)

    @property
    def outcome(self) -> str:
        return "error" if self.tool == "fail" or isinstance(self.n, str) else "success"

    @property
    def may_run(self) -> bool:
        return self.tool in ("run", "alone", "fail", FORM_TOOL) or (self.tool == "ask" and self.state == ALLOWED)

    def take_up(self) -> None:
        if self.state == REFUSED:
            self.state = "denied"
        elif self.tool in ("ask", "ask_external") and self.state == NEW:
            self.state = USER
        elif self.tool in ("external", "ask_external"):
            self.state = EXTERNAL
        else:
            self.state = self.outcome


@dataclass
class Account:
    """What should be on record of the conversation."""

    calls: list[Call] = field(default_factory=list)
    rounds: list[list[Call]] = field(default_factory=list)
    reply_calls: list[Call] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    reply_id: str = ""
    reason: str | None = None
    is_parked: bool = False

    @property
    def waiting(self) -> list[Call]:
        return [call for call in self.reply_calls if call.waits]

    @property
    def answered(self) -> list[Call]:
        return [call for call in self.reply_calls if call.answer is not None]

    def begin(self, text: str, rounds: list[list[Call]]) -> None:
        self.kept.append(text)
        self.rounds = list(rounds)
        self.reply_calls = []
        self.is_parked = True

    def play(self) -> None:
        """Let everything happen that needs nobody's answer."""
        while True:
            self._act()
            if self.waiting:
                return
            if not self.rounds:
                self.end("completed")
                return
            self._take(self.rounds.pop(0))

    def end(self, reason: str) -> None:
        self.reason = reason
        self.is_parked = False
        self.kept += [self.reply_id, *self.observed]
        self.observed = []

    def stop(self, results: dict[str, str]) -> None:
        """Take what became of a reply that was stopped somewhere, as far as it may have become that."""
        for call in chain.from_iterable(self.rounds):
            if call.id in results:
                self._take([call])
        for call in self.reply_calls:
            if call.is_open:
                found = results[call.id]
                assert (
                    found == "interrupted"
                    or (call.may_run and found == call.outcome)
                    or (call.state == REFUSED and found == "denied")
                ), f"{call} came to {found}"
                call.state = found
        self.rounds = []
        self.end("interrupted")

    def _take(self, calls: list[Call]) -> None:
        self.calls += calls
        self.reply_calls += calls

    def _act(self) -> None:
        while still_open := [call for call in self.reply_calls if call.is_open]:
            decided = [call for call in still_open if not call.waits and call.state != NEW]
            acting = decided if self.waiting else still_open
            if not acting:
                return
            for batch in _batches(acting):
                for call in batch:
                    call.take_up()
                if any(call.waits for call in batch):
                    break


def _batches(calls: list[Call]) -> Iterator[list[Call]]:
    for alone, group in groupby(calls, lambda call: call.tool in ALONE):
        if alone:
            yield from ([call] for call in group)
        else:
            yield list(group)


class External(ToolBase):
    is_external_tool = True
    input_schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}  # noqa: RUF012

    def __init__(self, name: str, *, ask: bool = False) -> None:
        self.name = name
        self.ask = ask


class Conversation(RuleBasedStateMachine):
    """Keeps its states in memory."""

    fired: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.account = Account()
        self.begun: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.script: deque[Any] = deque()
        self.model = ScriptedChatModel(self._responses())
        self.numbers = iter(range(1, EDITED_BY))
        self.steps = 0
        self.ends: Counter[str] = Counter()
        self.last_number = 0
        self.rebuilt: Msg | None = None

    # What the agent is made of

    def _responses(self) -> Iterator[Any]:
        while True:
            yield self.script.popleft()

    def _tool(self, name: str) -> Callable[..., Any]:
        async def tool(n: int) -> str:
            self.begun[n] += 1
            await anyio.lowlevel.checkpoint()
            if name == "fail":
                raise ToolError(name)
            await anyio.lowlevel.checkpoint()
            self.done[n] += 1
            return f"did {n}"

        tool.__name__ = name
        return tool

    def _agent(self, state: AgentState) -> Agent:
        tools = [
            self._tool("run"),
            self._tool("fail"),
            FunctionTool(self._tool("alone"), is_concurrency_safe=False),
            FunctionTool(self._tool("ask"), ask=True),
            External("external"),
            External("ask_external", ask=True),
        ]
        return Agent("a", "You are tested.", self.model, Toolkit(tools=tools), state=state, state_store=self.store)

    def new_store(self) -> Any:
        return InMemoryStateStore()

    def another_store(self) -> Any:
        return self.store

    @initialize(allow_edited_input=st.booleans())
    def start(self, allow_edited_input: bool) -> None:
        self.store = self.new_store()
        permissions = PermissionContext(allow_edited_input=allow_edited_input)
        self.agent = self._agent(AgentState(session_id="s", permission_context=permissions))
        self.run(self.agent.save)

    # How it is driven

    def run(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        self.steps += 1
        return anyio.run(function, *args, backend=("asyncio", "trio")[self.steps % 2])

    def did(self, what: str) -> None:
        self.fired[what] += 1
        event(what)

    def read(self, inputs: Any, form: Any = None, how: str = "", after: int = -1) -> bool:
        """Read a reply, and do `how` after that many items; returns whether every event of it was heard."""
        return bool(self.run(self._read, inputs, form, how, after))

    async def _read(self, inputs: Any, form: Any, how: str, after: int) -> bool:
        stream: Any = self.agent.reply_stream(inputs, form, yield_final_msg=True)
        seen = 0
        with anyio.CancelScope() as scope:
            if after == 0 and how == "cancel":
                scope.cancel()
            async for item in stream:
                self._hear(item)
                seen += 1
                if seen == after:
                    if how == "cancel":
                        scope.cancel()
                    elif how == "drop":
                        break
                    elif how == "interrupt":
                        self.agent.interrupt("enough")
                    elif how == "observe":
                        await self.agent.observe(self._observed())
        del stream
        assert not (how == "interrupt" and 0 < after <= seen and self.agent.state.reply_context), (
            "it was not interrupted"
        )
        while self._is_busy():  # there is no event to wait for: nobody holds the stream any more
            await anyio.lowlevel.checkpoint()
        return not (scope.cancelled_caught or (how == "drop" and seen == after))

    def _is_busy(self) -> bool:
        try:
            return bool(self.agent.run)
        except UsageError:
            return False

    def _hear(self, item: AgentEvent | Msg) -> None:
        if isinstance(item, Msg):
            return
        assert item.seq > self.last_number, "the numbers of the events must rise"
        self.last_number = item.seq
        if isinstance(item, ReplyEndEvent):
            self.ends[item.reply_id] += 1
        if self.rebuilt is not None:
            self.rebuilt.append_event(item)

    def _observed(self) -> str:
        text = f"observed {next(self.numbers)}"
        (self.account.observed if self.account.is_parked else self.account.kept).append(text)
        return text

    def settle(self, *, heard: bool) -> None:
        """Bring the account up to date after a reply, or a part of one, that went as far as it went."""
        state = self.agent.state
        if not heard:
            self.rebuilt = None
        outcome = state.last_reply
        if state.reply_context is None and outcome and outcome.finished_reason == "interrupted":
            self.account.reply_id = outcome.reply_id
            if not self.ends[outcome.reply_id]:  # nobody heard of it
                self.rebuilt = None
            self.account.stop(_results(state))
            if not any(message.id == outcome.reply_id for message in state.context):
                self.account.kept.remove(outcome.reply_id)  # it had said nothing yet
            self.script.clear()
            return
        self.account.reply_id = outcome.reply_id if state.reply_context is None else state.reply_context.reply_id
        self.account.play()

    def begin(self, kinds: list[list[str]], form: str, how: str = "", after: int = -1) -> None:
        text = f"message {next(self.numbers)}"
        rounds = [[self._call(kind) for kind in each] for each in kinds]
        if form:
            rounds += [[self._call(FORM_TOOL, "x")]] if form == "second" else []
            rounds += [[self._call(FORM_TOOL)]]
        self.script.extend([TextBlock("well"), *(call.block for call in each)] for each in rounds)
        self.script.extend([] if form else ["that is all"])
        self.rebuilt = AssistantMsg("", [])
        self.account.begin(text, rounds)
        heard = self.read(text, Form if form else None, how, after)
        if any(message.get_text_content() == text for message in self.agent.state.context):
            self.settle(heard=heard)
        else:  # it was stopped before it was taken in
            assert how == "cancel"
            self.account.kept.remove(text)
            self.account.rounds, self.account.is_parked, self.account.reason = [], False, None
            self.script.clear()

    def _call(self, kind: str, n: Any = None) -> Call:
        number = next(self.numbers)
        return Call(f"c{number}", kind, number if n is None else n)

    def refused(self, inputs: Any, *codes: str) -> None:
        """Check that the input is refused, and that nothing has changed."""
        before = self.agent.state.model_dump_json()
        with pytest.raises(ResumeError) as caught:
            self.read(inputs)
        assert caught.value.code in codes, caught.value
        assert self.agent.state.model_dump_json() == before

    @property
    def is_parked(self) -> bool:
        return self.account.is_parked

    # What may be done

    @precondition(lambda self: not self.is_parked)
    @rule(
        kinds=st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3), max_size=2),
        form=st.sampled_from(["", "first", "second"]),
    )
    def reply(self, kinds: list[list[str]], form: str) -> None:
        self.did("a structured reply" if form else "a reply")
        self.begin(kinds, form)

    @precondition(lambda self: not self.is_parked)
    @rule(
        kinds=st.lists(st.sampled_from(KINDS), max_size=3),
        how=st.sampled_from(["cancel", "drop", "interrupt", "observe"]),
        after=st.integers(0, 40),
    )
    def disturbed_reply(self, kinds: list[str], how: str, after: int) -> None:
        self.did(f"{how} in a reply")
        self.begin([kinds] if kinds else [], "", how, after)

    @precondition(lambda self: any(call.state == USER for call in self.account.waiting))
    @rule(
        choices=st.lists(st.sampled_from(["yes", "edit", "no", "yes", "edit", "later"]), min_size=3, max_size=3),
        how=st.sampled_from(["", "cancel", "drop", "interrupt", "observe"]),
        after=st.integers(0, 30),
    )
    def confirm(self, choices: list[str], how: str, after: int) -> None:
        asked = [call for call in self.account.waiting if call.state == USER]
        chosen = [(call, choice) for call, choice in zip(asked, choices, strict=False) if choice != "later"]
        if chosen:
            self.did("a partial confirmation" if len(chosen) < len(asked) else "a whole confirmation")
            self.did(f"{how} after a confirmation" if how else "an undisturbed confirmation")
            results = [self._confirmation(call, choice) for call, choice in chosen]
            self._answer(
                [call for call, _ in chosen], UserConfirmResultEvent(self.account.reply_id, results), how, after
            )

    def _confirmation(self, call: Call, choice: str) -> ConfirmResult:
        edits = choice == "edit" and self.agent.state.permission_context.allow_edited_input
        self.did(f"answer {'edit' if edits else 'no' if choice == 'no' else 'yes'}")
        if edits:
            call.n += EDITED_BY
        call.answer = ConfirmResult(choice != "no", call.block)
        return call.answer

    @precondition(lambda self: any(call.state == EXTERNAL for call in self.account.waiting))
    @rule(
        success=st.booleans(),
        every=st.booleans(),
        how=st.sampled_from(["", "cancel", "drop", "interrupt", "observe"]),
        after=st.integers(0, 30),
    )
    def answer_externally(self, success: bool, every: bool, how: str, after: int) -> None:
        submitted = [call for call in self.account.waiting if call.state == EXTERNAL]
        chosen = submitted if every else submitted[:1]
        self.did(f"{how} after an external result" if how else "an undisturbed external result")
        state = ToolResultState.SUCCESS if success else ToolResultState.ERROR
        for call in chosen:
            call.answer = ToolResultBlock(call.id, call.tool, [TextBlock(f"did {call.n}")], state)
        results = [call.answer for call in chosen]
        self._answer(chosen, ExternalExecutionResultEvent(self.account.reply_id, results), how, after)

    def _answer(self, calls: list[Call], answer: Any, how: str, after: int) -> None:
        if self.rebuilt is not None:
            self.rebuilt.append_event(answer)
        heard = self.read(answer, None, how, after)
        context = self.agent.state.reply_context
        waits_for = {USER: "user", EXTERNAL: "external"}[calls[0].state]
        if context is not None and context.decisions[calls[0].id].waits_for == waits_for:
            assert how == "cancel", "the answer was not taken"
            for call in calls:
                call.answer = None
                call.n = call.n - EDITED_BY if call.n > EDITED_BY else call.n
            self.rebuilt = None
            return
        for call in calls:
            given = call.answer
            call.state = (ALLOWED if given.confirmed else REFUSED) if call.state == USER else str(given.state)
        self.settle(heard=heard)

    @precondition(lambda self: self.account.answered)
    @rule(last=st.booleans())
    def answer_again(self, last: bool) -> None:
        self.did("an answer again, while waiting" if self.is_parked else "an answer again, after the end")
        call = self.account.answered[-1 if last else 0]
        was_parked = self.is_parked
        before = self.agent.state.model_dump_json()
        self.read(self._event_of(call.answer))
        if not was_parked:
            assert self.agent.state.model_dump_json() == before

    @precondition(lambda self: any(isinstance(call.answer, ConfirmResult) for call in self.account.answered))
    @rule()
    def answer_otherwise(self) -> None:
        self.did("another answer")
        given = next(call.answer for call in self.account.answered if isinstance(call.answer, ConfirmResult))
        other = ConfirmResult(not given.confirmed, given.tool_call)
        self.refused(self._event_of(other), "conflict", "not_waiting")

    def _event_of(self, answer: Any, reply_id: str = "") -> Any:
        kind = UserConfirmResultEvent if isinstance(answer, ConfirmResult) else ExternalExecutionResultEvent
        return kind(reply_id or self.account.reply_id, [answer])

    @precondition(lambda self: self.account.waiting)
    @rule(what=st.sampled_from(FORGED))
    def forge(self, what: str) -> None:
        call = self.account.waiting[0]
        if call.answer is not None:
            return  # what would be forged may be the answer that it had before
        self.did(f"a forged {what}")
        block = call.block
        block.id = "c0" if what == "call" else block.id
        block.name = "run" if what == "tool" else block.name
        block.input = '{"n": "x"}' if what == "input" else block.input
        rules = [PermissionRule(call.tool, None, PermissionBehavior.ALLOW)] if what == "rule" else []
        by_user = (call.state == USER) is (what not in ("kind",))
        if what in ("input", "rule") and not by_user:
            return  # a result brings neither
        answer: Any = ConfirmResult(True, block, rules) if by_user else ToolResultBlock(block.id, block.name, "x")
        forged = self._event_of(answer, "another" if what == "reply" else "")
        forged.session_id = "another" if what == "session" else None
        if what in ("twice", "nothing"):
            (forged.confirm_results if by_user else forged.execution_results)[:] = [answer] * 2 * (what == "twice")
        self.refused(forged, "mismatch", "unknown_call", "not_waiting", "invalid", "conflict")

    @rule(what=st.sampled_from(MEANWHILE))
    def meanwhile(self, what: str) -> None:
        self.did(f"{what}, {'while waiting' if self.is_parked else 'idle'}")
        if what == "observe":
            self.run(self.agent.observe, self._observed())
        elif what == "load":
            self.store = self.another_store()
            self.agent = self._agent(self.run(self.store.load, "s"))
        elif what == "speak":
            if self.is_parked:
                self.refused("hello?", "pending")
        elif self.is_parked:
            self._interrupt_what_waits(by_event=what != "interrupt")
        else:
            before = self.agent.state.model_dump_json()
            if what == "interrupt":
                assert not self.agent.interrupt()
            else:
                self.read(UserInterruptEvent("none"))
            assert self.agent.state.model_dump_json() == before

    def _interrupt_what_waits(self, *, by_event: bool) -> None:
        if by_event:
            self.read(UserInterruptEvent(self.account.reply_id))
        else:
            assert self.agent.interrupt()
            self.run(self.agent.save)
        self.settle(heard=by_event)
        assert not self.is_parked

    # What must hold

    @invariant()
    def all_is_well(self) -> None:
        self.the_record_is_what_is_owed()
        self.what_ran_is_what_is_recorded()
        self.every_request_is_one_that_a_provider_takes()
        self.each_reply_ends_once_at_most()
        self.the_events_rebuild_the_message()
        self.what_is_saved_is_what_is()

    def the_record_is_what_is_owed(self) -> None:
        state, account = self.agent.state, self.account
        assert _kept(state) == account.kept
        owed = {call.id: call.state for call in account.calls}
        recorded = _results(state)
        assert recorded == {
            call_id: "running" if each == EXTERNAL else each
            for call_id, each in owed.items()
            if each not in (NEW, USER)
        }
        assert (state.reply_context is not None) is account.is_parked
        if account.is_parked:
            assert state.reply_context.parked
            assert state.reply_context.reply_id == account.reply_id
            assert [_said(message) for message in state.reply_context.observed] == account.observed
        elif account.reason:
            assert (state.last_reply.reply_id, state.last_reply.finished_reason) == (account.reply_id, account.reason)

    def what_ran_is_what_is_recorded(self) -> None:
        for call in self.account.calls:
            begun, done = self.begun[call.n], self.done[call.n]
            if call.tool not in ("run", "alone", "fail", "ask") or call.is_open or call.state == "denied":
                assert begun == 0, f"{call} ran"
            elif call.state == "success":
                assert (begun, done) == (1, 1), call
            else:
                assert begun <= 1, f"{call} ran again"
                assert call.tool != "fail" or not done
        assert not set(self.begun) - {call.n for call in self.account.calls}

    def every_request_is_one_that_a_provider_takes(self) -> None:
        for asked in self.model.calls:
            for message in asked.messages:
                _check_calls(message)
        self.model.calls.clear()

    def each_reply_ends_once_at_most(self) -> None:
        assert all(count == 1 for count in self.ends.values())
        assert not self.is_parked or self.account.reply_id not in self.ends

    def the_events_rebuild_the_message(self) -> None:
        if self.rebuilt is not None and self.rebuilt.content:
            context = self.agent.state.reply_context
            kept = (
                context.message
                if context
                else next(message for message in self.agent.state.context if message.id == self.account.reply_id)
            )
            assert self.rebuilt == kept

    def what_is_saved_is_what_is(self) -> None:
        state = self.agent.state
        assert AgentState.model_validate_json(state.model_dump_json()) == state
        assert self.run(self.store.load, "s") == state


class ConversationInFiles(Conversation):
    """Keeps its states in files, and loads them as another process would."""

    fired: ClassVar[Counter[str]] = Counter()
    directory: Path

    def new_store(self) -> FileStateStore:
        directory = self.directory / str(len([*self.directory.iterdir()]))
        self.another_store = partial(FileStateStore, directory)  # type: ignore[method-assign]
        return FileStateStore(directory)


def _blocks(state: AgentState) -> list[Any]:
    messages = [*state.context, *([state.reply_context.message] if state.reply_context else [])]
    return [block for message in messages for block in message.get_content_blocks()]


def _results(state: AgentState) -> dict[str, str]:
    blocks = _blocks(state)
    calls = [block.id for block in blocks if isinstance(block, ToolCallBlock)]
    results = [(block.id, str(block.state)) for block in blocks if isinstance(block, ToolResultBlock)]
    assert len(set(calls)) == len(calls), "a call is kept twice"
    assert len(dict(results)) == len(results), "a call has two results"
    assert not dict(results).keys() - set(calls), "a result without its call"
    return dict(results)


def _kept(state: AgentState) -> list[str]:
    return [_said(message) for message in state.context]


def _said(message: Msg) -> str:
    return message.id if message.role == "assistant" else message.get_text_content() or ""


def _check_calls(message: Msg) -> None:
    """Check that each call is followed by its one final result, before the model says anything more."""
    blocks = message.get_content_blocks()
    owed: list[str] = []
    for block in blocks:
        if isinstance(block, ToolCallBlock):
            owed.append(block.id)
        elif isinstance(block, ToolResultBlock):
            assert block.state is not ToolResultState.RUNNING
            owed.remove(block.id)
        else:
            assert not owed, f"{block} comes before the results of {owed}"
    assert not owed, f"a model was asked without the results of {owed}"


DISTURBED = ["cancel", "drop", "interrupt", "observe"]
HAPPENS = {
    "a reply",
    "a structured reply",
    *(f"{how} in a reply" for how in DISTURBED),
    "a whole confirmation",
    "a partial confirmation",
    *(f"answer {choice}" for choice in ("yes", "no", "edit")),
    *(f"{how} after {what}" for how in DISTURBED for what in ("a confirmation", "an external result")),
    "an undisturbed confirmation",
    "an undisturbed external result",
    *(f"an answer again, {when}" for when in ("while waiting", "after the end")),
    "another answer",
    *(f"a forged {what}" for what in FORGED),
    *(f"{what}, {when}" for what in MEANWHILE for when in ("idle", "while waiting")),
}


def play(machine: type[Conversation], examples: int) -> None:
    """Play that many conversations and say what happened in them how often."""
    machine.fired.clear()
    plays = settings(max_examples=examples, stateful_step_count=25)
    run_state_machine_as_test(machine, settings=plays)  # type: ignore[no-untyped-call]
    sys.stdout.writelines(f"{count:5} {what}\n" for what, count in sorted(machine.fired.items()))


@pytest.mark.slow
def test_a_conversation_stays_whole_in_whatever_can_happen():
    play(Conversation, 200)
    never = HAPPENS - {*Conversation.fired}
    assert not never


@pytest.mark.slow
def test_a_saved_conversation_stays_whole_whatever_is_done_to_it(tmp_path):
    ConversationInFiles.directory = tmp_path
    play(ConversationInFiles, 25)
    assert {"load, idle", "a whole confirmation"} <= {*ConversationInFiles.fired}
