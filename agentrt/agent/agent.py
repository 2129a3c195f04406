"""The agent: a model, tools and compiled chains, holding one conversation."""

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from inspect import isawaitable, iscoroutine
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, TypeVar, cast, overload

import anyio

from agentrt._runtime.boundary import read_message, read_messages
from agentrt._runtime.chain.explain import ChildDescription, ToolDescriptions, ToolsetDescription
from agentrt._runtime.chain.layer_record import OBSERVED_LAYERS
from agentrt._runtime.chain.spec import ObservableCore, StreamCore
from agentrt._runtime.chain.terms.entries import layers_in, split_entries
from agentrt._runtime.concurrency.coroutine_reader import CoroutineReader, as_stream, tell_changed
from agentrt._runtime.concurrency.event_loop import in_event_loop
from agentrt._runtime.concurrency.interrupt import InterruptResult
from agentrt._runtime.concurrency.lifespan import open_for_reply, open_layers
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.final_message import check_final_message
from agentrt._runtime.conversation.inputs import (
    ANSWERS,
    AgentInput,
    MessagesInput,
    as_input,
    as_observed,
    incoming_content,
    receive_messages,
)
from agentrt._runtime.conversation.question import open_question
from agentrt._runtime.conversation.reply_stream import ReplyStream
from agentrt._runtime.conversation.run import Run
from agentrt._runtime.conversation.turns import Claim, WhenBusy, lock_of, saves_of
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt._runtime.flow.events import ToldEvents, replace_in_event
from agentrt._runtime.flow.handles import holds
from agentrt._runtime.keywords.attributes import suggest_attributes
from agentrt._runtime.keywords.old_keywords import accept_old_keywords
from agentrt._runtime.keywords.suggestions import hide_unknown, suggest_arguments, suggest_keywords, wrong_call
from agentrt._runtime.loop.compression import compress, compress_now
from agentrt._runtime.loop.driver import relate_to_earlier, run_reply
from agentrt._runtime.loop.observers.events import observe_events
from agentrt._runtime.loop.observers.wire import observe_wire
from agentrt._runtime.loop.opening import check_has_something
from agentrt._runtime.loop.outcome import abandon_unfinished_reply
from agentrt._runtime.loop.reasoning import call_model, reason, system_prompt
from agentrt._runtime.loop.repeat import check_reply_id, check_sequence_number
from agentrt._runtime.loop.reply import reply
from agentrt._runtime.loop.tool_calls.acting import act
from agentrt._runtime.loop.tool_calls.approval import check_permission
from agentrt._runtime.loop.tool_calls.round_tools import current_tools
from agentrt._runtime.model_interface.base import ChatModelBase
from agentrt._runtime.output.reply_printing import print_reply
from agentrt._runtime.text import repr_of
from agentrt.agent.base import AgentBase, ReActAgentBase, interrupted_msg, no_reply_error
from agentrt.agent.delegation.agent_tool import (
    AgentTool,
    PromptFunction,
    SharedContext,
    bind_tools,
    children_of,
    descendants_of,
    toolkits_of,
)
from agentrt.agent.delegation.lineage import Lineage
from agentrt.agent.health import Health, check_health
from agentrt.agent.initialization import refuse_before_init
from agentrt.agent.overrides.overridden_method import OverriddenCall, hook_method
from agentrt.agent.overrides.reply_override import OverriddenLoopReply, reply_by_loop
from agentrt.agent.peer_words import AGENT_ATTRIBUTES, AGENT_KEYWORDS, REPLY_KEYWORDS
from agentrt.agent.validation import (
    as_state_store,
    check_assigned,
    check_is_list,
    check_options,
    check_parts,
    check_state,
    make_toolkit,
)
from agentrt.errors import ConfigError, MiddlewareConfigError, SessionConflict, SessionIOError, UsageError
from agentrt.event import AnyEvent, RequireExternalExecutionEvent, RequireUserConfirmEvent
from agentrt.hooks import AgentChains, LayerEntry, MiddlewareBase, ReplyInput
from agentrt.message import Msg
from agentrt.state import AgentState, StateStore
from agentrt.tool import ToolBase, ToolGroup, Toolkit
from agentrt.tool.signature.callables import function_name
from agentrt.tool.toolkit import ToolLike
from agentrt.types import ContextConfig, ReActConfig
from agentrt.workspace import FileSystemBase

_SchemaType = TypeVar("_SchemaType")

_SAVE_SECONDS = 15.0  # longer than the file store's own limit


async def _keep_observed(agent: ReplyingAgent, msg: MessagesInput | None) -> None:
    """The core of on_observe: the messages join the conversation, or wait for the end of its reply in progress."""
    if agent.chains.on_content is incoming_content:
        observed = [message.copy() for message in as_observed(msg)]
    else:
        received = await receive_messages(agent, "observed", as_observed(msg))
        observed = [message for message in received if message.content]  # a layer may leave nothing of one
    context = agent.state.reply_context
    # During a reply they come after it, as a model expects the results of its calls right after these.
    messages = agent.state.context if context is None else context.observed
    messages.extend(observed)
    try:
        await agent.save()
    except Exception:  # raised again: they are taken out, so that the caller can give them again
        ids = set(map(id, observed))
        messages[:] = [message for message in messages if id(message) not in ids]
        raise


@suggest_keywords(**AGENT_KEYWORDS)
@suggest_attributes(**AGENT_ATTRIBUTES)
@refuse_before_init
class Agent(ReActAgentBase):
    """An agent: asks its model, runs the tools that the model calls, until there is an answer.

    The middlewares are compiled into chains here, once; the first in the list is outermost. An agent holds one
    conversation, its `state`, and answers one message at a time; `with_state` gives another conversation over the same
    chains. With a `state_store` the state is saved after the input, before tools run, after each result and at the end.
    Raises a `ConfigError` for parts that do not fit.

    The model is a `ChatModelBase`, or what `chat_model` takes, such as "openai:gpt-5-mini". The tools are functions and
    `ToolBase`s, in a list or in a `Toolkit`; those in `tools` come after those in `toolkit`. They find the `workspace`
    in their `ToolContext`. The `description` tells others what the agent is for, where it is their tool or has a card;
    its own model does not see it.

    It prints its replies when `set_console_output_enabled` or `set_msg_queue_enabled` says so, or when a hook or a
    layer of `on_print` is there to see it. The `reply` that a subclass writes is the core of its `on_reply`, streamed
    or not, and `super().reply()` runs the loop.
    """

    _cores: ClassVar[dict[str, Any]] = {
        **ReActAgentBase._cores,
        "on_reply": StreamCore(reply, as_stream(reply)),
        "on_content": incoming_content,
        "on_reasoning": StreamCore(reason, as_stream(reason)),
        "on_system_prompt": system_prompt,
        "on_tools": current_tools,
        "on_model_call": call_model,
        "on_check_permission": check_permission,
        "on_acting": StreamCore(act, as_stream(act)),
        "on_compress_context": compress,
        "on_observe": _keep_observed,
        "on_event": ObservableCore(run_reply, observe_events),
        "on_wire": ObservableCore(call_model, observe_wire),
        "on_layer": OBSERVED_LAYERS,
    }
    _shows_by_itself = False
    can_speak_first = False
    """Whether it replies without an input while its conversation is empty."""
    runs_reply_loop = True

    system_prompt: str
    model: ChatModelBase
    toolkit: Toolkit
    react_config: ReActConfig
    context_config: ContextConfig
    when_busy: WhenBusy
    state_store: StateStore | None
    config: Any = None
    """The `AgentConfig` that it was built from, `None` for an agent that a program has put together."""

    # The runtime sets attributes in each reply, and the check for modules that are assigned too early would make that
    # a fifth slower.
    __setattr__ = object.__setattr__  # type: ignore[assignment]  # which takes any object for a name

    def __init__(
        self,
        name: str,
        system_prompt: str = "",
        model: ChatModelBase | str | None = None,
        toolkit: Toolkit | Sequence[ToolLike] | None = None,
        middlewares: Sequence[LayerEntry] = (),
        *,
        tools: Sequence[ToolLike] | None = None,
        state: AgentState | None = None,
        state_store: StateStore | str | None = None,
        react_config: ReActConfig | None = None,
        context_config: ContextConfig | None = None,
        when_busy: WhenBusy = "raise",
        workspace: FileSystemBase | None = None,
        description: str = "",
    ) -> None:
        check_parts(name, system_prompt, model, when_busy, description)
        check_options(state, react_config, context_config, workspace)
        self._refuse_steps()
        super().__init__(name=name, middlewares=middlewares)
        self.system_prompt = system_prompt
        self.model = _as_chat_model(cast(ChatModelBase | str, model))
        contributed = tuple(_list_tools(middleware) for middleware in self.middlewares)
        self._compiled = self._compiled._replace(tools=contributed)  # `explain` says whose they are
        self.toolkit = make_toolkit(toolkit, tools).with_tools(_flat(contributed))
        self.react_config = react_config or ReActConfig()
        self.context_config = context_config or ContextConfig()
        self.when_busy = when_busy
        self.state_store = as_state_store("Agent", state_store)
        if workspace is not None:
            self.workspace = workspace
        if description := description.strip():
            self.description = description
        if state is not None:
            self.state = state
        # By named functions, since agents can be pickled, with what they have registered.
        self.register_state("state", _state_to_json, _state_from_json)
        if self.toolkit.binds:
            bind_tools(self)  # last: tools may look at all of this agent

    @property
    def run(self) -> Run:
        """The reply in progress, for middlewares and tools; raises `NoReplyError` between replies."""
        run = self.live_conversation.hook_run
        if run is None:
            raise no_reply_error(self.name)
        return run

    @property
    def middleware_tools(self) -> frozenset[str]:
        """The names of the tools that its middlewares bring, those in groups among them."""
        return _contributed_names(_flat(self._compiled.tools))

    def withheld_tools(self) -> frozenset[str]:
        """Return the names of tools whose middlewares have a condition that does not hold in this reply.

        Of middlewares that bring tools, or observe, the conditions are asked now, if they have not been asked before.
        """
        chains, withheld = self.chains, frozenset[str]()
        observers = [layer for spec in chains.table if spec.shape == "observer" for layer in chains.layers[spec.name]]
        for observer in observers:  # what asks it later is logged, and would not end the reply
            chains.terms.holds(self, observer.middleware)
        for middleware, tools in zip(self._compiled.middlewares, self._compiled.tools, strict=True):
            if tools and not chains.terms.holds(self, middleware):
                withheld |= _contributed_names(tools)
        return withheld

    @property
    def reply_id(self) -> str | None:
        """The id of the reply in progress, of the one that waits, or else of the last one; `None` before the first."""
        run = self.live_conversation.reply
        if run is not None:
            return run.id
        context, last = self.state.reply_context, self.state.last_reply
        return context.reply_id if context is not None else last.reply_id if last is not None else None

    # `object` is for JSON schemas and for types that are not classes to a checker, such as `A | B` and `Literal`.
    @overload
    def reply_stream(
        self,
        inputs: AgentInput = None,
        *,
        structured_schema: type[_SchemaType],
        yield_final_msg: Literal[False] = False,
        reply_id: str | None = None,
        after: int = 0,
        deps: Any = None,
    ) -> ReplyStream[AnyEvent, _SchemaType]: ...

    @overload
    def reply_stream(
        self,
        inputs: AgentInput,
        structured_schema: type[_SchemaType],
        *,
        yield_final_msg: Literal[False] = False,
        reply_id: str | None = None,
        after: int = 0,
        deps: Any = None,
    ) -> ReplyStream[AnyEvent, _SchemaType]: ...

    @overload
    def reply_stream(
        self,
        inputs: AgentInput = None,
        *,
        structured_schema: type[_SchemaType],
        yield_final_msg: Literal[True],
        reply_id: str | None = None,
        after: int = 0,
        deps: Any = None,
    ) -> ReplyStream[AnyEvent | Msg[_SchemaType], _SchemaType]: ...

    @overload
    def reply_stream(
        self,
        inputs: AgentInput,
        structured_schema: type[_SchemaType],
        *,
        yield_final_msg: Literal[True],
        reply_id: str | None = None,
        after: int = 0,
        deps: Any = None,
    ) -> ReplyStream[AnyEvent | Msg[_SchemaType], _SchemaType]: ...

    @overload
    def reply_stream(
        self,
        inputs: AgentInput = None,
        structured_schema: object = None,
        *,
        yield_final_msg: Literal[False] = False,
        reply_id: str | None = None,
        after: int = 0,
        deps: Any = None,
    ) -> ReplyStream[AnyEvent]: ...

    @overload
    def reply_stream(
        self,
        inputs: AgentInput = None,
        structured_schema: object = None,
        *,
        yield_final_msg: bool = False,
        reply_id: str | None = None,
        after: int = 0,
        deps: Any = None,
    ) -> ReplyStream[AnyEvent | Msg]: ...

    @hide_unknown
    def reply_stream(
        self,
        inputs: AgentInput = None,
        structured_schema: object = None,
        *,
        yield_final_msg: bool = False,
        reply_id: str | None = None,
        after: int = 0,
        deps: Any = None,
        **unknown: object,  # that no overload has: a call in front of this one would cost every reply more
    ) -> ReplyStream[AnyEvent | Msg]:
        """Answer, as a stream of events, with the final message after them when asked for.

        The input is a `str`, a `Msg`, a dict such as `{"role": "user", "content": "Hi"}`, or a list of these.

        Nothing happens before the first item is asked for. With a `structured_schema` the final message carries an
        answer that fits it in `structured_output`: an instance of the type, where that is a type such as a pydantic
        model class, a dataclass, a TypedDict, an enum, `list[X]` or `A | B`, and JSON where it is a JSON schema. Events
        and saved states hold JSON.

        A reply that needs an answer from outside stops with `REQUIRE_USER_CONFIRM` or `REQUIRE_EXTERNAL_EXECUTION` and
        a message that carries the calls. Given the answering event as `inputs`, it resumes, here or in another process
        that has the state. Without `inputs` the agent answers what the conversation holds already, such as what it
        observed.

        Raises `InvalidInputError` for what no agent takes, an empty message included, and, before the model is asked,
        for no input in an empty conversation. Raises `ResumeError`, in the first step, for an answer that does not fit
        and for a message while an answer is due; neither changes anything.

        `reply_id` (1 to 128 letters, digits, ".", "_", ":" and "-") names the reply, which never runs twice. The id of
        the last reply gives its message again, without events; that of the one in progress resumes it, or repeats its
        question; the input is not read then. Events are numbered above `after`, the last number that a listener has.

        `deps` is what this reply's tools and hooks need of the caller: the user who asks, a database. They find it as
        `ToolContext.deps` and `agent.run.deps`. It is of any type, and is never saved: a reply that resumes has the
        `deps` of the call that resumes it. A reply that a tool asks another agent for has those given there.
        """
        if unknown:
            raise wrong_call(Agent.reply_stream, unknown, REPLY_KEYWORDS)
        claim, taken, form = self._take_request(inputs, structured_schema, reply_id, after)
        claim.form = form
        run = partial(self.chains.on_event, self, claim, taken, form, deps, True)
        if self.chains.on_content is not incoming_content or holds(self.state):
            run = partial(self._tell_replaced, run)
        if self._prints_replies():  # a reader more for each event, so it is there only where it has something to do
            run = partial(print_reply, self, CoroutineReader(run, gives_result=False))
        return ReplyStream(run, claim, yield_final_msg)

    async def _tell_replaced(self, run: Callable[[], Coroutine[Any, Any, Msg | None]]) -> Msg | None:
        """Run a reply with values, or the handles of a supervisor, in the place of handles in what it tells."""
        events = ToldEvents(self.state, self.live_conversation.replacement)
        return await tell_changed(run(), events.take, events.end)  # type: ignore[no-any-return]  # what the reply returns

    def _take_request(
        self, inputs: AgentInput, structured_schema: object, reply_id: str | None, after: int
    ) -> tuple[Claim, ReplyInput, AnswerForm | None]:
        """Check all that can be checked without the state, so that an error is raised where the call is."""
        if reply_id is not None:
            check_reply_id(reply_id)
        if after != 0:
            check_sequence_number(after)
        check_assigned(self.name, self.model, self.toolkit)
        claim = Claim(reply_id, after)
        taken = as_input(inputs)
        return claim, taken, None if structured_schema is None else AnswerForm(structured_schema)

    def _prints_replies(self) -> bool:
        audience = self.live_conversation.audience
        if audience.shows or audience.queue is not None:
            return True
        return self.current_chains().on_print is not self._cores["on_print"] and not audience.is_silent

    # A type by keyword, or after the input: it has no default, and so cannot follow a parameter that has one.
    @overload
    async def reply(
        self,
        inputs: AgentInput = None,
        *,
        structured_schema: type[_SchemaType],
        reply_id: str | None = None,
        deps: Any = None,
    ) -> Msg[_SchemaType]: ...

    @overload
    async def reply(
        self, inputs: AgentInput, structured_schema: type[_SchemaType], *, reply_id: str | None = None, deps: Any = None
    ) -> Msg[_SchemaType]: ...

    @overload
    async def reply(
        self,
        inputs: AgentInput = None,
        structured_schema: object = None,
        *,
        reply_id: str | None = None,
        deps: Any = None,
    ) -> Msg: ...

    @hook_method("on_reply", OverriddenLoopReply)
    @hide_unknown
    async def reply(
        self,
        inputs: AgentInput = None,
        structured_schema: object = None,
        *,
        reply_id: str | None = None,
        deps: Any = None,
        **unknown: object,
    ) -> Msg:
        """Answer with the final message; see `reply_stream`.

        Raises `StructuredOutputError` if no answer fits the `structured_schema`.

        To `super().reply()` in a subclass, other `deps` than those of the reply may be given, for its tools and hooks.
        """
        if unknown:
            raise wrong_call(Agent.reply, unknown, REPLY_KEYWORDS)
        if "reply" in vars(self):  # an entry hides this method, which only `super()` reaches
            return await reply_by_loop(self, as_input(inputs), structured_schema, deps)
        if self._prints_replies() or getattr(self.reply_stream, "__func__", None) is not Agent.reply_stream:
            stream = self.reply_stream(inputs, structured_schema, yield_final_msg=True, reply_id=reply_id, deps=deps)
            message: Any = await stream.drain()  # the last item
        else:
            claim, taken, form = self._take_request(inputs, structured_schema, reply_id, 0)
            message = await self.chains.on_event(self, claim, taken, form, deps)
        return check_final_message(message, self.react_config)

    async def __call__(self, *args: Any, **kwargs: Any) -> Msg:
        """Answer with the final message, as `reply` does, and let those who subscribed to this agent observe it.

        The message of a reply that waits for an answer is for the one who answers: subscribers do not observe it.
        """
        answer = await self.reply(*args, **kwargs)  # no scope around it: the loop sees interrupts by itself
        if self.live_conversation.subscribers and self.state.reply_context is None:
            await self._broadcast(answer)
        return answer

    @accept_old_keywords(msg="reason")
    def interrupt(self, reason: str | Msg | None = None) -> InterruptResult:
        """End the reply of this conversation tidily: its open tool calls get results, its listener sees the end.

        Callable from any task or thread. A reply in progress stops where it is, and its message is what
        `handle_interrupt` gives. One that waits for an answer is closed at once, which the next save records
        (`UserInterruptEvent` does the same, with events, and saves it). Returns whether there was a reply to end.
        """
        # Of the state, not of this agent: another agent over the same state may be the one that replies.
        current = lock_of(self.state).run
        if current is not None:
            text = reason.get_text_content() if isinstance(reason, Msg) else reason
            current.interruption.request("interrupted", text)
            return InterruptResult(True)
        waiting = self.state.reply_context is not None
        abandon_unfinished_reply(self)
        return InterruptResult(waiting)

    async def handle_interrupt(self, inputs: ReplyInput = None, *, reason: str | None = None) -> Msg:
        """Return the message of an interrupted reply; made to be overridden. It does not join the conversation."""
        return interrupted_msg(self.name, reason)

    def waiting(self) -> RequireUserConfirmEvent | RequireExternalExecutionEvent | None:
        """Return the event that asks for what the reply waits for, `None` if it waits for nothing.

        It is the event that was sent, made again from the state alone: of a conversation that was loaded, in another
        process, it tells what to show. It holds the calls that have no answer yet; where both the user and a program
        are asked, first those for the user. The answer goes to `reply` or `reply_stream`.
        """
        question = open_question(self.state.reply_context)
        if question is None or not holds(self.state):
            return question
        changed: RequireUserConfirmEvent | RequireExternalExecutionEvent = replace_in_event(
            self.state, question, self.live_conversation.replacement
        )
        return changed

    def check_input(self, inputs: AgentInput = None, *, reply_id: str | None = None) -> ReplyInput:
        """Return the input as `reply` takes it: messages, an answer or `None`. Nothing is run, and nothing changes.

        Raises what `reply` would raise for it at this moment: `InvalidInputError` for what no agent takes, and
        `ResumeError` for an answer that does not fit the question, and for a message while an answer is due.
        """
        claim, taken, _ = self._take_request(inputs, None, reply_id, 0)
        context, message = self.state.reply_context, None
        if context is not None or claim.is_named or isinstance(taken, ANSWERS):
            _, _, message = relate_to_earlier(self, claim, taken)
        if context is None and message is None and not taken:
            check_has_something(self)
        return taken

    @overload
    def run_sync(
        self, inputs: AgentInput = None, *, structured_schema: type[_SchemaType], deps: Any = None
    ) -> Msg[_SchemaType]: ...

    @overload
    def run_sync(
        self, inputs: AgentInput, structured_schema: type[_SchemaType], *, deps: Any = None
    ) -> Msg[_SchemaType]: ...

    @overload
    def run_sync(self, inputs: AgentInput = None, structured_schema: object = None, *, deps: Any = None) -> Msg: ...

    @suggest_arguments(**REPLY_KEYWORDS)
    def run_sync(self, inputs: AgentInput = None, structured_schema: object = None, *, deps: Any = None) -> Msg:
        """Answer with the final message, from a program that has no event loop. Raises `UsageError` where one runs."""
        if in_event_loop():
            raise UsageError(
                "run_sync() was called inside a running event loop, which it would block: "
                "write `await agent.reply(...)` there"
            )
        return anyio.run(self._reply_and_close, inputs, structured_schema, deps)

    async def _reply_and_close(self, inputs: AgentInput, structured_schema: object, deps: Any) -> Msg:
        async with self:  # what the model keeps open belongs to the event loop that ends here
            return await self.reply(inputs, structured_schema, deps=deps)

    async def aclose(self) -> None:
        """Close what the model holds open in this event loop; a further reply opens it again."""
        await self.model.aclose()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.model.aclose)
            await open_layers(stack, self.current_chains())
            await stack.enter_async_context(self.toolkit)
            if self.workspace is not None:
                await self.workspace.check_sandbox()
            for child in descendants_of(self):
                await open_layers(stack, child.current_chains())
            self.live_conversation.open_parts.append(stack.pop_all())
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.live_conversation.open_parts.pop().__aexit__(error_type, error, traceback)

    async def health(self, timeout: float = 5.0) -> Health:  # noqa: ASYNC109  # each part has it, not the caller
        """Ask the middlewares, the toolsets and the store how they are, side by side; no model is asked.

        The middlewares of agents that are tools of this one are asked too, as "agent/middleware".

        What raises, or takes longer than the `timeout` in seconds, has a problem of that type.
        """
        return await check_health(self, timeout)

    @hook_method("on_observe", OverriddenCall)
    @accept_old_keywords(msgs="msg")
    async def observe(self, msg: MessagesInput | None) -> None:
        """Take in messages without answering them; during a reply, or while one waits, they come after it.

        A message from a "system" counts as one from a user, for the system prompt is this agent's own. One without
        content is left out.
        """
        if "observe" in vars(self):  # an entry hides this method, which only `super()` reaches
            await _keep_observed(self, msg)
            return
        read = read_messages(msg) if isinstance(msg, (list, tuple)) else None if msg is None else read_message(msg)
        chains = self.current_chains()
        if not chains.lifespans:
            await chains.on_observe(self, msg=read)
            return
        async with AsyncExitStack() as stack:
            await open_for_reply(stack, chains)
            await chains.on_observe(self, msg=read)

    async def compress_context(self, instructions: str | None = None, *, deps: Any = None) -> None:
        """Have the model summarise the older part of the conversation now, however little of its context it fills.

        The runtime does so by itself when `context_config` says so; what that reserves is kept here too. This takes the
        conversation as a reply does: it raises `AgentBusyError` during one, but not while one waits for an answer.
        `instructions` are for the model that writes the summary, `deps` for the hooks. An interrupt leaves everything
        as it was.
        """
        check_assigned(self.name, self.model, self.toolkit)
        await compress_now(self, instructions, deps)

    def with_state(self, state: AgentState) -> Self:
        """Return another conversation over the same model, tools and chains, for the price of an object.

        Agents over one state object share its conversation, and reply one at a time.
        """
        check_state(state)
        # Not by `__init__`, which would check and compile what all conversations of an agent have in common.
        other = object.__new__(type(self))
        other.__dict__ = vars(self).copy()  # in half the time of an update
        other.id, other.state = self.id, state  # read, since an id is made at its first read
        other.live_conversation = self.live_conversation.another()
        if self._compiled.overrides:
            other._install()
        return other

    def with_middlewares(self, middlewares: Sequence[LayerEntry], *, parent: AgentBase | None = None) -> Self:
        """Return an agent with other middlewares, compiled and checked as those of any agent.

        Everything else is this agent's: its conversation, which is the same `state`, its store, model, system prompt,
        configurations and pre/post hooks, its toolkit without the tools of its present middlewares, and where it
        prints. `with_state` gives it a conversation of its own. Both agents can be used, and reply one at a time as
        long as they share a state. A middleware of this agent, or of the parent, keeps the terms that it has there.
        Raises a `ConfigError` for middlewares and tools that do not fit.

        `parent` is an agent that this one works for, as a tool: middlewares that come from it, and are not this
        agent's own, bring no tools here but hidden ones, and `explain()` says whose they are.
        """
        check_is_list(type(self), middlewares)
        before = self._compiled
        stated: Mapping[int, Any] = self.chains.terms.entries
        if parent is not None:
            stated = {**parent.chains.terms.entries, **stated}
        entries = tuple(split_entries([stated.get(id(entry), entry) for entry in middlewares]))
        chosen = tuple(layers_in(entries))
        lineage = before.lineage if parent is None else Lineage.of_child(parent, before.middlewares, chosen)
        contributed = tuple(
            _list_tools(middleware, only_hidden=lineage.is_inherited(middleware)) for middleware in chosen
        )
        # As `AgentBase` copies agents: a class of the user's may leave out what cannot be saved.
        attributes = AgentBase.__getstate__(self)
        *_, shows, last_reply_id = cast(tuple[Any, ...], attributes["_made_of"])
        attributes["_made_of"] = (entries, contributed, lineage, shows, last_reply_id)
        attributes["toolkit"] = self.toolkit.without_tools(_flat(before.tools)).with_tools(_flat(contributed))
        other = object.__new__(type(self))
        AgentBase.__setstate__(other, attributes)
        other.live_conversation.audience = self.live_conversation.audience
        other.config = None  # which has the middlewares from before
        bind_tools(other)
        return other

    def without(self, *layers: type[MiddlewareBase] | str) -> Self:
        """Return an agent without these of its middlewares, by classes or keys; all else is as in `with_middlewares`.

        A class stands for all middlewares of it and of its subclasses. The keys are those of `explain()`. Raises
        `ConfigError` for one that is not there, and where another middleware requires one that is left out.
        """
        keys = {self.chains.name_of(middleware): middleware for middleware in self.middlewares}
        left_out: set[int] = set()
        for layer in layers:
            named = [
                middleware
                for key, middleware in keys.items()
                if (isinstance(middleware, layer) if isinstance(layer, type) else key == layer)
            ]
            if not named:
                title = layer.__name__ if isinstance(layer, type) else repr_of(layer)
                raise MiddlewareConfigError(
                    f"without({title}): {self.name} has no such middleware: give classes or keys of its middlewares, "
                    f"which are {', '.join(keys) or 'none'}"
                )
            left_out |= set(map(id, named))
        return self.with_middlewares([layer for layer in self.middlewares if id(layer) not in left_out])

    def as_tool(
        self,
        description: str | None = None,
        *,
        name: str | None = None,
        input: Any = None,  # the word for what goes in, as `output` is for what comes out
        prompt: PromptFunction | None = None,
        output: Any = None,
        context: SharedContext = "task",
        inherit: bool | Sequence[type[MiddlewareBase]] = True,
        stream: bool = True,
        timeout: float | None = None,
        max_concurrency: int = 8,
        workspace: FileSystemBase | None = None,
        background: bool = False,
    ) -> AgentTool:
        """Return this agent as a tool of another one: each call of it is a conversation of its own.

        Its `description` is the agent's, unless another is given. The tool takes a `query`, or what `input` describes,
        a type or a JSON schema; `prompt` makes the message of it. The result is the answer as text, or as JSON where
        `output` gives it a form. With `context="summary"` the agent also learns the newest events of its supervisor's
        conversation, or else what a function given there returns. With `stream` its events are seen among the
        supervisor's. `timeout` is for one entry of a call, in seconds. `max_concurrency` calls run at a time. `inherit`
        says which of the supervisor's middlewares that reach into sub-agents hold for this one. Its files are those in
        "subagents/<name>" of the supervisor's, or those of `workspace`. With `background` a call is let go at once
        where a runner runs the supervisor, and the answer comes in a later reply of that.

        What it asks the user is asked in the supervisor's reply, and answered there. The conversation is saved inside
        the supervisor's, and continues there after a process was killed.
        """
        return AgentTool(
            self,
            description,
            name=name,
            input=input,
            prompt=prompt,
            output=output,
            context=context,
            inherit=inherit,
            stream=stream,
            timeout=timeout,
            max_concurrency=max_concurrency,
            workspace=workspace,
            background=background,
        )

    async def save(self) -> None:
        """Save the state now, if there is a store; the runtime does so by itself at every point that matters.

        One save of a conversation runs at a time; those asked for meanwhile become one further save. Raises
        `StateError`: `SessionConflict` when another process has saved this session meanwhile. This conversation is out
        of date then: continue with `agent.with_state(await store.load(session_id))`.
        """
        store = self.state_store
        if store is None or not self._note_progress():
            return
        # A store that hangs must not block the conversation, even where a shield holds cancellations back.
        with anyio.move_on_after(_SAVE_SECONDS) as scope:
            await saves_of(self.state).run(partial(self._write, store))
        if scope.cancelled_caught:
            raise SessionIOError(f"{type(store).__name__} took longer than {_SAVE_SECONDS:g} seconds to save the state")

    def _note_progress(self) -> bool:
        """Note in the state how far the reply in progress has come; says whether the state may still be saved."""
        run = self.live_conversation.reply
        if run is not None:
            # Another process that loads this state must not give numbers and ids again that are in use.
            self.state.sequence = run.progress.highest_seq
            if self.state.reply_context is not None:
                self.state.reply_context.ids = run.progress.ids
        return run is None or not run.progress.is_out_of_date

    async def _write(self, store: StateStore) -> None:
        run = self.live_conversation.reply
        if not self._note_progress():  # once more, since it may have had to wait for the save before it
            return
        try:
            saving: object = store.save(self.state)
            if not isawaitable(saving):  # of a class of the user's own
                raise UsageError(f"{type(store).__name__}.save() returned {repr_of(saving)}: write `async def save`")
            await saving
        except SessionConflict:
            if run is not None:  # further saves of this reply would overwrite what the other process has saved
                run.progress.is_out_of_date = True
            raise

    def current_chains(self) -> AgentChains:
        """Return the chains, with the inner layers that there are now; during a reply those that it began with."""
        if self.live_conversation.reply is None:
            self._compile_if_stale()
        return self.chains

    def _compile_chains(self, inner: tuple[MiddlewareBase, ...]) -> None:
        super()._compile_chains(inner)
        # Their events can only be seen at once where another task than the reader's does the waiting.
        self.live_conversation.emitting_hooks = frozenset(
            hook for hook, layers in self.chains.layers.items() for layer in layers if layer.middleware.emits
        )

    @classmethod
    def _refuse_steps(cls) -> None:
        """Raise `ConfigError` for a `_reasoning` or `_acting` that the loop of an `Agent` does not call."""
        for step in ("_reasoning", "_acting"):
            # A `ReActAgent` has steps of its own that can be overridden.
            overridden = cls._hook_methods[step].function
            if overridden is getattr(ReActAgentBase, step) and getattr(cls, step) is not overridden:
                raise ConfigError(
                    f"{cls.__name__}.{step}() would never be called: an Agent's rounds and tool calls are the "
                    f"runtime's; write a middleware with on{step}, derive from ReActAgent, or derive from "
                    f"ReActAgentBase and write `reply` as well"
                )

    def _describe_tools(self) -> ToolDescriptions:
        contributed = zip(self._compiled.middlewares, self._compiled.tools, strict=True)
        names = {
            id(middleware): [name for tool in tools for name in _tool_names(tool)] for middleware, tools in contributed
        }
        toolkits = toolkits_of(self)
        inner_tools = {tool: toolkit.names() for tool, toolkit in toolkits.items() if tool}
        toolsets: list[ToolsetDescription] = [
            {"toolset": toolset.name, "status": toolset.status, "tools": toolkit.names_of(toolset)}
            for toolkit in toolkits.values()
            for toolset in toolkit.toolsets
        ]
        children: list[ChildDescription] = [
            {"tool": tool.name, "chains": json.loads(tool.agent.explain("json")), "isolation": tool.isolation}
            for tool in children_of(self)
        ]
        entries = self.toolkit.table.entries
        background = [name for name, entry in entries.items() if entry.tool.is_background]
        return ToolDescriptions(names, toolsets, children, inner_tools, background)

    def __copy__(self) -> Self:
        return self.with_state(self.state)  # it is the same conversation


def _as_chat_model(model: ChatModelBase | str) -> ChatModelBase:
    if isinstance(model, ChatModelBase):
        return model
    from agentrt.model import chat_model  # which loads all providers: an agent over a model of the user's needs none

    return chat_model(model)


def _state_to_json(state: AgentState) -> object:
    return json.loads(state.model_dump_json())


def _state_from_json(value: object) -> AgentState:
    return AgentState.model_validate_json(json.dumps(value))


def _tool_names(tool: Any) -> list[str]:
    if isinstance(tool, ToolGroup):
        return [f"{name} (group {tool.name!r})" for grouped in tool.tools for name in _tool_names(grouped)]
    name = str(getattr(tool, "name", None) or getattr(tool, "__name__", tool))
    return [f"{name} (hidden)" if isinstance(tool, ToolBase) and tool.is_hidden else name]


def _contributed_names(tools: Iterable[ToolLike | ToolGroup]) -> frozenset[str]:
    single = [tool for tool in tools if not isinstance(tool, ToolGroup)]
    grouped = [tool for group in tools if isinstance(group, ToolGroup) for tool in group.tools]
    return frozenset(tool.name if isinstance(tool, ToolBase) else function_name(tool) for tool in single + grouped)


def _flat(contributed: Sequence[Sequence[ToolLike | ToolGroup]]) -> list[ToolLike | ToolGroup]:
    return [tool for tools in contributed for tool in tools]


def _list_tools(middleware: object, only_hidden: bool = False) -> tuple[Any, ...]:
    list_tools = getattr(middleware, "list_tools", None)
    if list_tools is None or isinstance(middleware, type):  # the compiler refuses it, and says why
        return ()
    tools: object = list_tools()
    if not isinstance(tools, (list, tuple)):
        remedy = ": write `def`, without `async`" if iscoroutine(tools) else ""
        raise MiddlewareConfigError(
            f"{type(middleware).__name__}.list_tools() must return a list, not {repr_of(tools)}{remedy}"
        )
    if not only_hidden:
        return tuple(tools)
    # An inherited layer needs what it calls itself, and gives the models of other agents nothing.
    return tuple(tool for tool in tools if isinstance(tool, ToolBase) and tool.is_hidden)
