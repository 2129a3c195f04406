"""One conversation with a middleware, and its invariants."""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Unpack

import anyio
import anyio.lowlevel

from agentrt._runtime.chain.check import overrides
from agentrt._runtime.chain.order import must_wrap
from agentrt.agent import Agent
from agentrt.errors import ConfigError
from agentrt.event import AgentEvent, ReplyStartEvent
from agentrt.hooks import MiddlewareBase, ReplyInput
from agentrt.message import AssistantMsg, Msg
from agentrt.model import ChatModelBase
from agentrt.state import AgentState
from agentrt.testing.harness.approve import approve
from agentrt.testing.harness.invariants import problems_of_events, problems_of_state
from agentrt.testing.harness.lint import Lint, lint_class_for
from agentrt.testing.kit.kit_agents import AgentOptions, KitModel, make_kit_agent
from agentrt.types import JSONSchema

_MAX_ANSWERS = 5  # per question: a layer may make the reply wait repeatedly
# Python's error for a generator that yields while it is being closed.
_IGNORED_EXIT = "async generator ignored GeneratorExit"


class TimedOut(Exception):
    """An activity did not end in time; the next one would most likely wait as long."""


@dataclass(slots=True)
class KitRun:
    """One check of a middleware: its factory, the time limit of a conversation, and the findings so far.

    `beside` has the factories of the other layers that it needs; `inputs` and `model` are for the author's
    conversation. `activity` names the current activity, `problems` maps each activity to its problems,
    in words; `conversations` counts the conversations.
    """

    factory: Callable[[], MiddlewareBase]
    patience: float
    beside: Sequence[Callable[[], MiddlewareBase]] = ()
    inputs: Sequence[str | ReplyInput] = ()
    model: Callable[[], ChatModelBase] | None = None
    name: str = "the middleware"
    conversations: int = 0
    activity: str = ""
    problems: dict[str, list[str]] = field(default_factory=dict)

    def check_factory(self) -> None:
        """Learn the middleware's name; raises `ConfigError` unless the factory returns new middlewares."""
        if isinstance(self.factory, MiddlewareBase):
            name = type(self.factory).__name__
            raise ConfigError(
                f"check_middleware takes a factory, and was given an instance of {name}: write "
                f"check_middleware({name}), or check_middleware(lambda: {name}(...)) where it has settings"
            )
        try:
            first, second = self.factory(), self.factory()
        except TypeError as error:
            raise ConfigError(
                f"the factory {self.factory!r:.100} cannot be called without arguments ({error}): "
                "write lambda: ...(...)"
            ) from error
        if inspect.isawaitable(first) or not isinstance(first, MiddlewareBase):
            raise ConfigError(f"the factory must return a middleware, such as MyMiddleware(), not {first!r:.200}")
        if first is second:
            raise ConfigError(
                f"the factory returned one {type(first).__name__} twice: make a new one each time, as in "
                f"check_middleware({type(first).__name__}) or check_middleware(lambda: {type(first).__name__}(...))"
            )
        self.name = type(first).__name__

    def report(self, *problems: str) -> None:
        """Record a problem, under the activity that found it first."""
        for problem in problems:
            # Once, since a problem that shows everywhere would hide the others.
            if not any(problem in earlier for earlier in self.problems.values()):
                self.problems.setdefault(self.activity, []).append(problem)

    def check_error(self, injected: Exception, error: BaseException | None) -> None:
        """Report an error that left the middleware with another type than the inner error."""
        if error is not None and type(error) is not type(injected):
            self.report(
                f"{type(injected).__name__} came from inside of it, and {type(error).__name__} out of it "
                f"({error}): let errors leave as they are, or deal with them"
            )

    def has_hook(self, hook: str) -> bool:
        """Say whether the middleware has that hook."""
        return overrides(self.factory(), MiddlewareBase, hook)

    def start(
        self, layers: Sequence[MiddlewareBase] | None = None, **options: Unpack[AgentOptions]
    ) -> "KitConversation":
        """Return a conversation with these layers, or else with a new instance of the middleware."""
        self.conversations += 1
        return KitConversation(self, self.make_agent(self.layers() if layers is None else layers, **options))

    def layers(
        self, outside: Sequence[MiddlewareBase] = (), inside: Sequence[MiddlewareBase] = ()
    ) -> list[MiddlewareBase]:
        """Return a new instance of the middleware between lint layers, with the given layers around it."""
        return add_lints([self.factory()], outside, inside)

    def make_agent(self, layers: Sequence[MiddlewareBase], **options: Unpack[AgentOptions]) -> Agent:
        """Return an agent with these layers and the middleware's companions, in a valid order."""
        # By the constraints of the classes, which the compiler checks but never repairs.
        outer: list[MiddlewareBase] = []
        inner: list[MiddlewareBase] = []
        for make in self.beside:
            needed = make()
            is_inside = layers[0].position == "outermost" or any(must_wrap(layer, needed) for layer in layers)
            (inner if is_inside else outer).append(needed)
        return make_kit_agent([*outer, *layers, *inner], **options)


def add_lints(
    layers: Sequence[MiddlewareBase], outside: Sequence[MiddlewareBase] = (), inside: Sequence[MiddlewareBase] = ()
) -> list[MiddlewareBase]:
    """Return the layers, each inside a `Lint`, between an outermost and an innermost one, as far as these allow it."""
    # Only layers that are outermost too may stand around an outermost middleware.
    for layer in outside:
        layer.position = "outermost" if layers[0].position == "outermost" else None
    lint_class = lint_class_for(layers)
    core = lint_class("the core, or a layer of this check,")
    for layer in (*inside, core):
        layer.position = "innermost" if layers[-1].position == "innermost" else None
    return [*outside, *(item for layer in layers for item in (lint_class(layer), layer)), core, *inside]


class KitConversation:
    """One conversation; its problems are reported to the run."""

    def __init__(self, run: KitRun, agent: Agent) -> None:
        self.run = run
        self.agent = agent
        self.error: BaseException | None = None
        self._items: list[AgentEvent | Msg] = []

    async def ask(
        self, inputs: str | ReplyInput, schema: JSONSchema | None = None, *, answers: int = _MAX_ANSWERS
    ) -> str | None:
        """Send an input, answer the questions that follow, check everything, and return the text of the final message.

        An error of the reply is kept in `error`, and nothing is returned. Raises `TimedOut`.
        """
        self._items = []
        self.error = await self._try_in_time("the reply", lambda: self._hear(inputs, schema, answers))
        self.run.report(*self.lint_problems(), *self._find_problems())
        message = self._final_message()
        return None if self.error is not None or message is None else message.get_text_content("")

    async def ask_without_errors(self, inputs: str | ReplyInput, schema: JSONSchema | None = None) -> str | None:
        """Like `ask`, but an error of the reply is reported."""
        text = await self.ask(inputs, schema)
        self.report_error(self.error)
        return text

    async def perform(self, what: str, work: Callable[[], Awaitable[object]]) -> BaseException | None:
        """Run something other than a reply, and return its error, if any. Raises `TimedOut`."""
        error = await self._try_in_time(what, work)
        self.run.report(*self.lint_problems())
        return error

    async def read_items(
        self, inputs: str | ReplyInput, limit: int | None = None, on_item: Callable[[], object] | None = None
    ) -> bool:
        """Read a reply, leave it after `count` items, and return whether it ended before. Errors are reported.

        Raises `TimedOut`.
        """
        with self._time_limit("closing the reply took longer than {:g} seconds"):
            try:
                async with self.agent.reply_stream(inputs) as stream:
                    count = 0
                    async for _ in stream:
                        count += 1
                        if on_item is not None:
                            on_item()
                        if count == limit:
                            return False
            except Exception as error:  # noqa: BLE001  # whatever it is, it is what is wrong
                self.run.report(describe_error(error))
                return False
        return True

    def resume_elsewhere(self, **options: Unpack[AgentOptions]) -> "KitConversation":
        """Return the conversation as another process would continue it from the saved state."""
        copy = self.run.start(**options)
        copy.agent = copy.agent.with_state(self._load_saved_state())
        return copy

    def report_error(self, error: BaseException | None) -> None:
        """Report an unexpected error, unless a lint has reported it already."""
        if error is not None and not any(self.lint_problems()):
            self.run.report(describe_error(error))

    def lint_problems(self) -> list[str]:
        """Return the problems found by the lints."""
        lints = [layer for layer in self.agent.chains.middlewares if isinstance(layer, Lint)]
        return [problem for layer in lints for problem in layer.problems]

    @property
    def events(self) -> list[AgentEvent]:
        """The events since the last question."""
        return [item for item in self._items if isinstance(item, AgentEvent)]

    @property
    def requests(self) -> list[list[str]]:
        """The requests to the model so far, in words; none for the author's model."""
        model = self.agent.model
        return model.requests if isinstance(model, KitModel) else []

    @contextmanager
    def _time_limit(self, message: str) -> Iterator[None]:
        with anyio.move_on_after(self.run.patience) as limit:
            yield  # this generator is a context manager's: nothing else runs while the scope is open
        if limit.cancelled_caught:
            raise TimedOut(message.format(self.run.patience))

    async def _try_in_time(self, what: str, work: Callable[[], Awaitable[object]]) -> BaseException | None:
        with self._time_limit(f"{what} was not over after {{:g}} seconds"):
            try:
                await work()
            except Exception as error:  # noqa: BLE001  # judged by the caller
                return error
        return None

    async def _hear(self, inputs: str | ReplyInput, schema: JSONSchema | None, answers: int) -> None:
        for _ in range(answers + 1):
            if isinstance(inputs, AgentEvent):
                self._items.append(inputs)  # the message is built from answers too
            async with self.agent.reply_stream(inputs, schema, yield_final_msg=True) as stream:
                async for item in stream:
                    self._items.append(item)
                    await anyio.lowlevel.checkpoint()  # like a reader that writes to a socket
            if self.agent.state.reply_context is None or not answers:
                break
            inputs, schema, answers = approve(self.agent.state), None, answers - 1

    def _final_message(self) -> Msg | None:
        return next((item for item in reversed(self._items) if isinstance(item, Msg)), None)

    def _load_saved_state(self) -> AgentState:
        try:
            return AgentState.model_validate_json(self.agent.state.model_dump_json())
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what is wrong
            self.run.report(f"the state cannot be saved: {describe_error(error)}")
            return self.agent.state

    def _find_problems(self) -> Iterator[str]:
        state = self.agent.state
        events = self.events
        last = events[-1].reply_id if events else ""
        yield from problems_of_state(state)
        yield from problems_of_events(events, last, state)
        starts = [event.reply_id for event in events if isinstance(event, ReplyStartEvent)]
        if len(starts) > len(set(starts)):
            yield f"REPLY_START of the reply {starts[0]!r} was emitted more than once"
        self._load_saved_state()
        if self.error is None and starts:
            yield from self._compare_with_events(events, last)

    def _compare_with_events(self, events: Sequence[AgentEvent], last: str) -> Iterator[str]:
        """Yield the differences between the events, the message in the context and the answer."""
        state = self.agent.state
        message = next((message for message in state.context if message.id == last), None)
        if message is None:
            if state.reply_context is not None or state.summary:
                return  # the reply is not over, or is summarised
            message = AssistantMsg("", [])
        # Like a client that sees only the events.
        rebuilt = AssistantMsg("", [], id=last)
        for event in events:
            rebuilt.append_event(event)
        if rebuilt.content != self.agent.released(message, "output").content:
            yield (
                f"the events do not rebuild the message that is kept: they say {rebuilt.content!r:.300}, and kept is "
                f"{message.content!r:.300}"
            )
        answer = self._final_message()
        if answer is None or answer.finished_reason != "completed" or answer.structured_output is not None:
            return  # it is not in the context, or the end of the reply holds it
        if not (message.get_text_content() or "").endswith(answer.get_text_content() or ""):
            yield (
                f"the answer is {answer.get_text_content('')!r:.300}, but the message that is kept says "
                f"{message.get_text_content('')!r:.300}"
            )


def differs_from_both(disturbed: object, before: object, after: object) -> bool:
    """Say whether a disturbed result differs from two undisturbed ones that agree.

    Two, because a difference proves nothing if the middleware answers differently each time.
    """
    return before == after != disturbed


@contextmanager
def blame_what_came_before(what: str) -> Iterator[None]:
    """Add to a `TimedOut` the activity before it, which most likely never released something."""
    try:
        yield
    except TimedOut as error:
        raise TimedOut(f"{error}: it came after {what}, so give back in a `finally` what you take") from None


def describe_error(error: BaseException) -> str:
    """Describe an error."""
    if _IGNORED_EXIT in str(error):
        return "it yields after its reader has left, in a `finally` or an `except`: nothing may be yielded there"
    if str(error):
        return f"{type(error).__name__} was raised: {error}"
    return f"{type(error).__name__} was raised"
