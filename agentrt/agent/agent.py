"""The agent: a model, tools and compiled chains, holding one conversation."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self, cast

import anyio
import shortuuid

from agentrt.agent.accept import as_input, as_messages
from agentrt.agent.acting import act
from agentrt.agent.announce import hooks_that_emit
from agentrt.agent.approval import check_permission
from agentrt.agent.compress import compress, compress_now
from agentrt.agent.config import ContextConfig, ReActConfig
from agentrt.agent.drive import drive
from agentrt.agent.ending import close_unfinished
from agentrt.agent.fill import Fill
from agentrt.agent.host import in_event_loop
from agentrt.agent.reasoning import Prompts, call_model, reason, system_prompt
from agentrt.agent.reply import reply
from agentrt.agent.run import Run
from agentrt.agent.stream import ReplyStream, Ticket, Turns, WhenBusy
from agentrt.agent.structured import check_form
from agentrt.block import new_id
from agentrt.chain import Chains, compile_chains, explain
from agentrt.chain.explain import ExplainFormat
from agentrt.errors import ConfigError, MiddlewareConfigError, SessionConflict, SessionIOError, UsageError
from agentrt.hooks import HOOKS, MiddlewareBase, ReplyInput
from agentrt.message import Msg
from agentrt.model import ChatModelBase
from agentrt.state import AgentState, StateStore
from agentrt.tool import Toolkit

__all__ = ["Agent"]

_CORES: dict[str, Callable[..., Any]] = {
    "on_reply": reply,
    "on_reasoning": reason,
    "on_system_prompt": system_prompt,
    "on_model_call": call_model,
    "on_check_permission": check_permission,
    "on_acting": act,
    "on_compress_context": compress,
}
# What a subclass that forgets `super().__init__()` goes without.
_SET_BY_INIT = {"_announcing", "_contributed", "_model_calls", "_prompts", "_run", "_turns", "chains", "id", "model"}
_SET_BY_INIT |= {"context_config", "name", "react_config", "state", "state_store", "system_prompt", "toolkit"}
_SET_BY_INIT |= {"_fill", "when_busy"}


_SAVE_SECONDS = 15.0  # the file store gives up by itself before that


class Agent:
    """An agent: asks its model, runs the tools that the model calls, until there is an answer.

    The middlewares are compiled into chains here, once; the first in the list is outermost. An agent holds one
    conversation, its `state`, and answers one message at a time; `with_state` gives another conversation over the same
    chains. With a `state_store` the state is saved after the input, before tools run, after each result and at the end.
    Raises a `ConfigError` for parts that do not fit.
    """

    def __init__(
        self,
        name: str,
        system_prompt: str = "",
        model: ChatModelBase | None = None,
        toolkit: Toolkit | None = None,
        middlewares: Sequence[MiddlewareBase] = (),
        *,
        state: AgentState | None = None,
        state_store: StateStore | None = None,
        react_config: ReActConfig | None = None,
        context_config: ContextConfig | None = None,
        when_busy: WhenBusy = "raise",
    ) -> None:
        _check_parts(name, system_prompt, model, toolkit, when_busy)
        _check_options(middlewares, state, state_store, react_config, context_config)
        self.id = shortuuid.uuid()
        self.name = name
        self.system_prompt = system_prompt
        self.model = cast(ChatModelBase, model)
        self.chains: Chains = compile_chains(MiddlewareBase, HOOKS, _CORES, middlewares)
        self._contributed = {id(each): _tools_of(each) for each in self.chains.middlewares}
        own = toolkit if toolkit is not None else Toolkit()
        self.toolkit = own.extended([tool for tools in self._contributed.values() for tool in tools])
        self.react_config = react_config or ReActConfig()
        self.context_config = context_config or ContextConfig()
        self.when_busy: WhenBusy = when_busy
        self.state_store = state_store
        self.state = state if state is not None else AgentState()
        self._announcing = hooks_that_emit(self.chains)
        self._prompts = Prompts()
        self._fill = Fill()
        self._turns = Turns()
        self._model_calls = 0
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """The reply in progress, for middlewares and tools; raises `UsageError` between replies."""
        if self._run is None:
            raise UsageError(f"agent {self.name!r} has no reply in progress: agent.run is there for hooks and tools")
        return self._run

    def reply_stream(
        self, inputs: str | ReplyInput = None, structured_schema: Any = None, *, yield_final_msg: bool = False
    ) -> ReplyStream:
        """Answer, as a stream of events, with the final message after them when asked for.

        Nothing happens before the first item is asked for. With a `structured_schema`, a pydantic model class or a JSON
        schema, the final message carries an answer of that form in `structured_output`.

        A reply that needs somebody's answer stops with `REQUIRE_USER_CONFIRM` or `REQUIRE_EXTERNAL_EXECUTION` and a
        message that carries the calls; the answering event as `inputs` goes on with it, here or in another process that
        has the state. Raises `InvalidInputError` for what no agent takes, and `ResumeError`, in the first step, for an
        answer that does not fit or a message while an answer is due; neither changes anything.
        """
        ticket = Ticket(new_id())
        inputs = as_input(inputs)
        check_form(structured_schema)
        return ReplyStream(drive(self, ticket, inputs, structured_schema, yield_final_msg), ticket)

    async def reply(self, inputs: str | ReplyInput = None, structured_schema: Any = None) -> Msg:
        """Answer with the final message; see `reply_stream`."""
        return cast(Msg, await self.reply_stream(inputs, structured_schema, yield_final_msg=True).drain())

    async def __call__(self, inputs: str | ReplyInput = None, structured_schema: Any = None) -> Msg:
        """Answer with the final message; see `reply_stream`."""
        return await self.reply(inputs, structured_schema)

    def interrupt(self, reason: str | None = None) -> bool:
        """End the reply of this conversation tidily: its open tool calls get results, its listener sees the end.

        Callable from any task or thread. A reply in progress stops where it is, and its message is what
        `handle_interrupt` gives; one that waits for an answer is put to rest at once, which the next save puts on
        record (`UserInterruptEvent` does the same with its events, and saved). Returns whether there was one.
        """
        if self._run is not None:
            self._run.interruption.request("interrupted", reason)
            return True
        waiting = self.state.reply_context is not None
        close_unfinished(self)
        return waiting

    async def handle_interrupt(self, inputs: ReplyInput = None, *, reason: str | None = None) -> Msg:
        """Return the message of an interrupted reply; made to be overridden. It does not join the conversation."""
        told = f" ({reason})" if reason else ""
        return Msg(self.name, f"I was interrupted{told}. What would you like me to do instead?", "assistant")

    def run_sync(self, inputs: str | ReplyInput = None) -> Msg:
        """Answer with the final message, from a program that has no event loop. Raises `UsageError` where one runs."""
        if in_event_loop():
            raise UsageError(
                "run_sync() was called inside a running event loop, which it would block: "
                "write `await agent.reply(...)` there"
            )
        return anyio.run(self._reply_and_close, inputs)

    async def _reply_and_close(self, inputs: str | ReplyInput) -> Msg:
        async with self:  # what the model keeps open belongs to the event loop that ends here
            return await self.reply(inputs)

    async def aclose(self) -> None:
        """Close what the model holds open in this event loop; a further reply opens it again."""
        await self.model.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def observe(self, msgs: str | Msg | list[Msg] | None) -> None:
        """Take in messages without answering them; during a reply, or while one waits, they come after it."""
        current = self.state.reply_context
        taken = self.state.context if current is None else current.observed
        messages = [message.copy() for message in as_messages(as_input(msgs))]
        taken.extend(messages)
        try:
            await self.save()
        except Exception:  # raised again: they are not taken in, so that they can be given again
            taken[:] = [message for message in taken if not any(message is each for each in messages)]
            raise

    async def compress_context(self, instructions: str | None = None) -> None:
        """Have the older part of the conversation summarised now, however little of the model's context it fills.

        The runtime does so by itself when `context_config` says so; what that reserves is kept here too. Takes the
        conversation's turn as a reply does: raises `AgentBusyError` during one, but not while one waits for an answer.
        `instructions` are for the model that writes the summary. An interrupt leaves everything as it was.
        """
        await compress_now(self, instructions)

    def with_state(self, state: AgentState) -> "Agent":
        """Return another conversation over the same model, tools and chains, for the price of an object."""
        _check_state(state)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.state = state
        other._turns = Turns()
        other._fill = Fill()
        other._model_calls = 0
        other._begin(None)
        return other

    def state_of(self, middleware: MiddlewareBase) -> dict[str, Any]:
        """Return the middleware's own data of this conversation; it is saved with the state, as JSON."""
        return self.state.middleware_data.setdefault(self.chains.key_of(middleware), {})

    def explain(self, format: ExplainFormat = "text") -> str:
        """Return the compiled chains, outermost layer first, as "text", "json" or "mermaid"."""
        tools = {key: [_tool_name(tool) for tool in tools] for key, tools in self._contributed.items()}
        return explain(self.chains, self.name, _CORES, tools, format)

    async def save(self) -> None:
        """Save the state now, if there is a store; the runtime does so by itself at every point that matters.

        Raises `StateError`: `SessionConflict` when another process has saved this session meanwhile, and then this
        conversation is out of date: `agent.with_state(await store.load(session_id))` is the one to go on with.
        """
        run, store = self._run, self.state_store
        if store is None or (run is not None and run.is_out_of_date):
            return
        if run is not None:
            self.state.sequence = run.last_number
            if self.state.reply_context is not None:
                self.state.reply_context.ids = run.ids
        with anyio.move_on_after(_SAVE_SECONDS) as scope:
            try:
                await store.save(self.state)
            except SessionConflict:
                if run is not None:
                    run.is_out_of_date = True
                raise
        if scope.cancelled_caught:
            raise SessionIOError(f"{type(store).__name__} took longer than {_SAVE_SECONDS:g} seconds to save the state")

    def _begin(self, run: Run | None) -> None:
        """Note which reply is in progress; called by that reply alone."""
        self._run = run

    def __getattr__(self, name: str) -> NoReturn:
        cls = type(self).__name__
        if name in _SET_BY_INIT:
            raise UsageError(
                f"{cls}.__init__() did not call super().__init__(): call it there, with name=... and model=..."
            )
        raise AttributeError(f"{cls!r} object has no attribute {name!r}")


def _tools_of(middleware: MiddlewareBase) -> tuple[Any, ...]:
    tools = middleware.list_tools()
    if not isinstance(tools, (list, tuple)):
        raise MiddlewareConfigError(f"{type(middleware).__name__}.list_tools() must return a list, not {tools!r:.200}")
    return tuple(tools)


def _tool_name(tool: Any) -> str:
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", tool))


def _check_options(
    middlewares: object, state: object, state_store: object, react_config: object, context_config: object
) -> None:
    if not isinstance(middlewares, (list, tuple)):
        raise ConfigError(f"Agent(middlewares=...) must be a list of middlewares, not {middlewares!r:.200}")
    if state is not None:
        _check_state(state)
    if state_store is not None and not (hasattr(state_store, "save") and hasattr(state_store, "load")):
        raise ConfigError(f"Agent(state_store=...) must have `save` and `load`, which {state_store!r:.200} has not")
    if react_config is not None and not isinstance(react_config, ReActConfig):
        raise ConfigError(f"Agent(react_config=...) must be a ReActConfig, not {react_config!r:.200}")
    if context_config is not None and not isinstance(context_config, ContextConfig):
        raise ConfigError(f"Agent(context_config=...) must be a ContextConfig, not {context_config!r:.200}")


def _check_state(state: object) -> None:
    if not isinstance(state, AgentState):
        raise ConfigError(
            f"a conversation's state must be an AgentState, not {state!r:.200}: "
            f"make one with AgentState() or AgentState.model_validate_json(text)"
        )


def _check_parts(name: object, system_prompt: object, model: object, toolkit: object, when_busy: object) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"Agent(name=...) must be a text, not {name!r}")
    if not isinstance(system_prompt, str):
        raise ConfigError(f"Agent(system_prompt=...) must be a text, not {system_prompt!r:.200}")
    if not isinstance(model, ChatModelBase):
        raise ConfigError(f"Agent(model=...) must be a chat model, such as RulesChatModel(), not {model!r:.200}")
    if toolkit is not None and not isinstance(toolkit, Toolkit):
        raise ConfigError(f"Agent(toolkit=...) must be a Toolkit, not {toolkit!r:.200}: write Toolkit(tools=[...])")
    if when_busy not in ("raise", "wait"):
        raise ConfigError(f"Agent(when_busy=...) must be 'raise' or 'wait', not {when_busy!r}")
