"""The reply in progress, as middlewares and tools see it."""

from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any, NoReturn, TypeVar, get_args, overload

import anyio
import anyio.from_thread

from agentrt._runtime.block import HIDDEN_CALL
from agentrt._runtime.conversation.context_usage import ContextUsage
from agentrt._runtime.conversation.inputs import receive
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt._runtime.decoding.internal_call import (
    ask_internally,
    check_question,
    current_call,
    current_purpose,
    forget_internal_attempt,
)
from agentrt._runtime.model_interface.base import ChatModelBase
from agentrt._runtime.model_interface.estimate import CHARACTERS_PER_TOKEN
from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import repr_of, whole_characters
from agentrt.errors import UsageError
from agentrt.event import AgentEvent, ModelCallRetryEvent, ReplyEndEvent, ReplyResumedEvent, ReplyStartEvent
from agentrt.hooks import MiddlewareBase, NextModelCall
from agentrt.message import Msg, ToolCallBlock
from agentrt.state import AgentState, HiddenCall
from agentrt.tool import ToolBase, Toolkit
from agentrt.types import FinishedReason, IncomingContent, JSONSchema

# The others say how a reply ends by itself, or fails.
_REASONS_TO_STOP = tuple(reason for reason in get_args(FinishedReason) if reason not in ("completed", "error"))

_AskedType = TypeVar("_AskedType")


class Run:
    """One reply in progress: `agent.run` in a hook, and behind `ToolContext` in a tool."""

    # Properties, since what the loop keeps of a reply changes all the time, and hooks must not reach the rest of it.
    __slots__ = ("_reply",)

    def __init__(self, reply: ReplyRun) -> None:
        self._reply = reply

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the reply {self.id!r}{', ended' if self.ended else ''}>"

    # `parent` makes a new object each time, which must not look like another reply.
    def __eq__(self, other: object) -> bool:
        return self.id == other.id and self.agent is other.agent if isinstance(other, Run) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        """The reply's id."""
        return self._reply.id

    @property
    def agent(self) -> Any:
        """The agent that replies; `run.parent.agent` is the one that asked."""
        return self._reply.agent

    @property
    def parent(self) -> "Run | None":
        """The reply in whose tool call this one was asked for, `None` for one that no other reply asked for."""
        parent = self._reply.parent
        return None if parent is None else Run(parent)

    @property
    def depth(self) -> int:
        """How many replies this one is inside of: 0 for one that no other reply asked for."""
        return 0 if self._reply.parent is None else 1 + Run(self._reply.parent).depth

    @property
    def root(self) -> "Run":
        """The outermost of the replies that this one is inside; this one, without an outer reply."""
        return self if self._reply.parent is None else Run(self._reply.parent).root

    @property
    def task(self) -> str | None:
        """The id of the background call that this reply makes, which is its own; `None` for any other reply."""
        task = self.agent.state.task if self.agent.runs_reply_loop else None
        return self.id if task is not None and task.id == self.id else None

    @property
    def deps(self) -> Any:
        """The `deps` given by the caller of the reply; a layer of `on_reply` may set them for the rest of the reply.

        It is the caller's own object, never saved, copied or shown.
        """
        return self._reply.deps

    @deps.setter
    def deps(self, deps: Any) -> None:
        self._reply.deps = deps

    @property
    def toolkit(self) -> Toolkit:
        """The tools of the current round."""
        return self._reply.toolkit

    def tool_of(self, call: ToolCallBlock) -> ToolBase | None:
        """Return the tool that a call is for, or `None`.

        It is one of the current round, or, for a call that a tool makes, one of those that this tool may call: another
        tool of the same name may be in the round.
        """
        return self._reply.toolkit_of(call.id).get(call.name)

    @property
    def is_internal(self) -> bool:
        """Whether the current task asks the model by `ask_model`, for a summary say, and not for a round."""
        call = current_call.get()  # as `is_internal` does, which is a call more in every call of a model
        return call is not None and call.reply is self._reply

    @property
    def is_seen(self) -> bool:
        """Whether the events of this reply have a reader: where they have none, a tool need not make any."""
        outlet = self._reply.outlet
        return outlet is None or bool(outlet.wants_events)

    @property
    def purpose(self) -> str | None:
        """The `purpose` of the current task's `ask_model`; `None` in a round."""
        return current_purpose(self._reply)

    @property
    def is_replay(self) -> bool:
        """Whether a record alone answers the models and tools: calls cost nothing, and say nothing of a provider."""
        return self._reply.is_replay

    @property
    def ended(self) -> bool:
        """Whether nothing can be emitted any more."""
        return self._reply.ended

    @property
    def is_handed_over(self) -> bool:
        """Whether this reply, or one that it is inside of, stops here to be resumed in another process.

        What continues outside of this program for it, such as the task of a remote agent, is to be left as it is then.
        """
        reply: ReplyRun | None = self._reply
        while reply is not None and not reply.claim.is_handed_over:
            reply = reply.parent
        return reply is not None

    @property
    def deadline(self) -> float:
        """The caller's deadline, on the clock of `anyio.current_time`; infinity without one."""
        return anyio.current_effective_deadline()

    def now(self) -> int:
        """Return the time in nanoseconds since the epoch."""
        return self._reply.now()

    def begin_child(self, call_id: str, state: AgentState) -> str:
        """Return the id of the reply of a sub-agent that this call asks, in its new conversation.

        It is a new one, and in a replay the recorded one; the handles in the conversation are then the recorded ones.
        """
        return self._reply.begin_child(call_id, state)

    def new_id(self) -> str:
        """Return an id that nothing else in this reply has."""
        return self._reply.new_id()

    def hidden_call(self, tool: ToolBase, input: str = "{}", question: str = "") -> ToolCallBlock:
        """Return a call of a hidden tool: a layer of `on_reasoning` or `on_model_call` gives it in the model's place.

        `input` is the arguments as JSON text. `question` is what the user is asked, where the tool asks. `Question` in
        `agentrt.middleware` is such a tool. Raises `UsageError` for a tool that is not hidden, or that the agent does
        not have, and before the reply has started.
        """
        context = self.agent.state.reply_context if self.agent.runs_reply_loop else None
        if self.ended or context is None or context.reply_id != self.id:
            raise UsageError(
                f"hidden_call() was called outside of the rounds of the reply {self.id!r}: call it in on_reasoning or "
                f"on_model_call of an Agent"
            )
        value: object = tool
        if not isinstance(value, ToolBase) or not value.is_hidden:
            raise UsageError(f"hidden_call() takes a ToolBase with is_hidden = True, not {repr_of(tool)}")
        if self.toolkit.get(tool.name) is not tool:
            raise UsageError(
                f"the agent {self.agent.name!r} does not have the hidden tool {tool.name!r}: return it from "
                f"list_tools() of the layer that calls it"
            )
        call = ToolCallBlock(f"{HIDDEN_CALL}{self.new_id()}", tool.name, input)
        # What is in no message yet is known by this, and what a model makes up is not.
        self._reply.progress.call_ids[call.id] = False
        if context.hidden_calls is None:
            context.hidden_calls = {}
        context.hidden_calls[call.id] = HiddenCall(tool.name, whole_characters(question))
        return call

    def next_seq(self) -> int:
        """Take the next sequence number of the conversation."""
        progress = self._reply.progress
        progress.sequence += 1
        return progress.sequence

    def scratch(self, middleware: object) -> dict[str, Any]:
        """Return the middleware's own data of this reply: empty at its start, gone at its end, and never saved."""
        return self._reply.scratch.setdefault(id(middleware), {})

    def state_of(self, middleware: object) -> dict[str, Any]:
        """Return the middleware's own data of this reply that is saved with it, as JSON.

        It is empty at the start of the reply and deleted at its end. A reply that resumes in another process has it
        again. Use it instead of comparing reply ids: callers choose these, and may use one for several replies.
        """
        return self._reply.middleware_data.setdefault(self.agent.chains.key_of(middleware), {})

    def identity(self, middleware: MiddlewareBase) -> Mapping[str, str]:
        """Return the user or owner of this reply, as the middleware's `identify` returned it at the start.

        It does not change before the end of the reply, even if another user answers its question in another process.
        For a layer that a sub-agent inherits, it is that of the supervisor's reply. Raises what `identify` raises, and
        `UsageError` in a resumed reply if `identify` failed at the beginning.
        """
        return self._reply.identity(middleware)

    def call_name(self, call_id: str) -> str:
        """Return the name of the tool that the call is for."""
        context = self.agent.state.reply_context if "/" in call_id and self.agent.runs_reply_loop else None
        if context is not None and call_id in context.inner:
            return str(context.inner[call_id].question.tool_call.name)
        return self._reply.progress.call_names().get(call_id, "")

    def estimate_tokens(
        self, messages: list[Msg], tools: Sequence[JSONSchema] = (), *, model: ChatModelBase | None = None
    ) -> int:
        """Return about how many tokens a request with these messages and tools has for the model, or else the agent's.

        By the length of their text, unless the model has a `count_tokens`. What an earlier request of the conversation
        had is not read again, so this takes no longer in a long one.
        """
        usage: ContextUsage = self.agent.live_conversation.context_usage
        usage.measure_by(getattr(model or getattr(self.agent, "model", None), "text_length", None))
        characters = usage.characters_of_request(messages) + self._reply.toolkit.characters_of(tools)
        return characters // CHARACTERS_PER_TOKEN + 1

    def emit(self, event: AgentEvent) -> None:
        """Send an event into the reply's stream, from any layer, tool or worker thread.

        It is seen at once, also while the layer or tool that emits it waits; a layer of `on_reply` or `on_reasoning`
        yields its events instead. `seq` and a missing `reply_id` are filled in, and so are the `block_ids` of a
        `ModelCallRetryEvent`.
        """
        reply = self._reply
        if get_ident() != reply.thread:
            anyio.from_thread.run_sync(self.emit, event)
            return
        if reply.ended:
            raise UsageError(f"{event.type} was emitted after the reply {self.id!r} had ended")
        if event.__class__ is ModelCallRetryEvent and forget_internal_attempt(reply):
            return  # nobody has seen anything of that attempt, and what the round has said stays
        event.reply_id = event.reply_id or self.id
        if event.reply_id == self.id and isinstance(event, (ReplyStartEvent, ReplyResumedEvent, ReplyEndEvent)):
            raise UsageError(f"{event.type} cannot be emitted: the runtime begins and ends a reply")
        if reply.mailbox.is_read:
            reply.mailbox.post(event)  # its reader does the rest, in the order of what it holds
            return
        self.agent.live_conversation.has_late_events = True
        reply.progress.discard_attempt(event)
        reply.mailbox.post(event)

    async def relay(self, event: AgentEvent) -> None:
        """Send an event of another reply into this reply's stream as soon as there is room; see `ToolContext.relay`."""
        reply = self._reply
        if not event.reply_id or event.reply_id == reply.id:
            raise UsageError(
                f"relay() takes an event of another reply, and this {event.type} has the reply_id {event.reply_id!r}: "
                f"use emit() for events of this reply"
            )
        if reply.ended:
            raise UsageError(f"{event.type} was relayed after the reply {reply.id!r} had ended")
        if reply.mailbox.is_read:
            await reply.mailbox.put(event)
        else:  # the tool runs in the reader's own task, which cannot make room before the tool is done
            reply.mailbox.post(event)

    @overload
    async def ask_model(
        self,
        messages: Sequence[Msg],
        *,
        purpose: str,
        schema: type[_AskedType],
        model: ChatModelBase | None = None,
        through: NextModelCall | None = None,
    ) -> Msg[_AskedType]: ...

    # `object` is for JSON schemas and for types that are not classes to a checker, such as `A | B`.
    @overload
    async def ask_model(
        self,
        messages: Sequence[Msg],
        *,
        purpose: str,
        schema: object = None,
        model: ChatModelBase | None = None,
        through: NextModelCall | None = None,
    ) -> Msg: ...

    async def ask_model(
        self,
        messages: Sequence[Msg],
        *,
        purpose: str,
        schema: object = None,
        model: ChatModelBase | None = None,
        through: NextModelCall | None = None,
    ) -> Msg:
        """Ask the agent's model, or another one, something beside the conversation; returns its answer.

        The call goes through `on_model_call`, with `is_internal` set and without tools, so that layers guard, limit and
        count it. No event tells of it. `purpose` says in a word what it is for. With a `schema`, as a reply takes it,
        the answer's `structured_output` is an instance of it; an answer that does not fit is asked for again, up to
        `ReActConfig.max_form_attempts` times, and then this raises `Malformed`. An answer longer than
        `ReActConfig.max_output` is cut, and its `finished_reason` says so. A layer of `on_model_call` gives its own
        `next_handler` as `through`, before it calls that for the round: only the layers inside of it see the call, and
        the model is the one that reached it. Raises what the model or a layer raises, and
        `UsageError` for what cannot be asked, and inside three other such calls.
        """
        check_question(messages, purpose, model, through)
        if self.ended:
            raise UsageError(f"ask_model() came after the end of the reply {self.id!r}: ask before REPLY_END passes")
        form = None if schema is None else AnswerForm(schema)
        return await ask_internally(self._reply, messages, purpose, form, model, through)

    async def receive(self, content: IncomingContent) -> IncomingContent:
        """Return the content as `on_content` leaves it, for a layer that puts it into requests by itself.

        What a layer finds for the model, such as passages and memories, is to pass here before it is kept or sent.
        """
        return await receive(self.agent, content) if self.agent.runs_reply_loop else content

    def stop(self, reason: FinishedReason, message: str | None = None) -> NoReturn:
        """End the reply here, for that reason: its open calls get results, and its last message says `message`.

        For tools, and for layers of `on_reasoning`, `on_model_call`, `on_acting` and `on_content`. What it raises is
        not an `Exception`, so no retry takes it: let it leave. An `interrupt()` that came before counts. Raises
        `UsageError` for a reason that only the runtime knows, and outside of a step of the reply, as in `on_reply`:
        there, yield a message of your own.
        """
        if reason not in _REASONS_TO_STOP:
            known = ", ".join(map(repr, _REASONS_TO_STOP))
            raise UsageError(f"stop() takes one of the reasons {known}, not {reason!r:.100}")
        if message is not None and not isinstance(message, str):
            raise UsageError(f"stop(message=...) must be a str, which the reply then says, not {message!r:.200}")
        is_in_step = self._reply.interruption.is_in_step and not self._reply.progress.is_new
        if self.ended or not (is_in_step or self._reply.receiving):
            raise UsageError(
                f"stop({reason!r}) was called outside of a step of the reply {self.id!r}: call it in on_reasoning, "
                f"on_model_call, on_acting, on_content or a tool; a layer of on_reply yields a message of its own"
            )
        self._reply.stop(reason, None if message is None else whole_characters(message))

    def continue_with(self, hint: str) -> None:
        """Ask for another round, with `hint` for the model, where the reply would otherwise be complete.

        It counts as a round, and none is granted beyond `max_iters`. Raises `UsageError` once the reply has ended.
        """
        if self.ended:
            raise UsageError("continue_with() came after the end of the reply: call it before REPLY_END passes")
        if not isinstance(hint, str):
            raise UsageError(f"continue_with() takes a str for the model, not {hint!r:.200}")
        progress = self._reply.progress
        progress.continuations = (*progress.continuations, whole_characters(hint))
