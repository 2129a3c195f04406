"""One conversation with a middleware, and what must hold of it whatever the middleware does."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel

from agentrt.agent import Agent
from agentrt.chain.check import must_wrap, overrides
from agentrt.event import AgentEvent, ReplyStartEvent
from agentrt.hooks import MiddlewareBase, ReplyInput
from agentrt.message import AssistantMsg, Msg
from agentrt.model import ChatModelBase
from agentrt.state import AgentState
from agentrt.testing.harness.approve import approve
from agentrt.testing.harness.invariants import problems_of_events, problems_of_state
from agentrt.testing.harness.lint import Lint, kind_of_lint
from agentrt.testing.kit.kit_agents import agent_on_stage

__all__ = ["GivenUp", "Rehearsal", "Talk", "between_lints", "told"]

_MOST_ANSWERS = 5
_IGNORED_EXIT = "async generator ignored GeneratorExit"


class GivenUp(Exception):
    """Something is not over in time; what is tried next would most likely wait as long."""


@dataclass(slots=True)
class Rehearsal:
    """The trying of one middleware: what makes it, how long a conversation may take, and what was found so far.

    `beside` makes the other layers that it needs; `inputs` and `model` are for the author's conversation. `problems`
    maps what was done to what was wrong then, in words; `trials` counts the conversations.
    """

    factory: Callable[[], MiddlewareBase]
    patience: float
    beside: Sequence[Callable[[], MiddlewareBase]] = ()
    inputs: Sequence[str | ReplyInput] = ()
    model: Callable[[], ChatModelBase] | None = None
    name: str = "the middleware"
    trials: int = 0
    doing: str = ""
    problems: dict[str, list[str]] = field(default_factory=dict)

    def tell(self, *words: str) -> None:
        """Note what is wrong, where it was found first."""
        for each in words:
            if not any(each in found for found in self.problems.values()):
                self.problems.setdefault(self.doing, []).append(each)

    def tell_what_became_of(self, injected: Exception, error: BaseException | None) -> None:
        """Note it if the error that came from inside of the middleware has left as one of another type."""
        if error is not None and type(error) is not type(injected):
            self.tell(
                f"{type(injected).__name__} came from inside of it, and {type(error).__name__} out of it "
                f"({error}): let errors leave as they are, or deal with them"
            )

    def has(self, hook: str) -> bool:
        """Say whether the middleware has that hook."""
        return overrides(self.factory(), MiddlewareBase, hook)

    def talk(self, layers: Sequence[MiddlewareBase] | None = None, **options: Any) -> "Talk":
        """Return a conversation with these layers, or else with a new instance of the middleware alone."""
        self.trials += 1
        return Talk(self, self.agent(self.layers() if layers is None else layers, **options))

    def layers(
        self, outside: Sequence[MiddlewareBase] = (), inside: Sequence[MiddlewareBase] = ()
    ) -> list[MiddlewareBase]:
        """Return a new instance of the middleware between lint layers, with the given layers around it."""
        return between_lints([self.factory()], outside, inside)

    def agent(self, layers: Sequence[MiddlewareBase], **options: Any) -> Agent:
        """Return an agent with these layers and those that the middleware needs, where these may stand."""
        outer: list[MiddlewareBase] = []
        inner: list[MiddlewareBase] = []
        for make in self.beside:
            other = make()
            is_inside = layers[0].position == "outermost" or any(must_wrap(each, other) for each in layers)
            (inner if is_inside else outer).append(other)
        return agent_on_stage([*outer, *layers, *inner], **options)


def between_lints(
    layers: Sequence[MiddlewareBase], outside: Sequence[MiddlewareBase] = (), inside: Sequence[MiddlewareBase] = ()
) -> list[MiddlewareBase]:
    """Return the layers, each inside a `Lint`, between others that may stand outermost and innermost as these may."""
    for each in outside:
        each.position = "outermost" if layers[0].position == "outermost" else None
    kind = kind_of_lint(layers)
    core = kind("the core, or a layer of this check,")
    for each in (*inside, core):
        each.position = "innermost" if layers[-1].position == "innermost" else None
    return [*outside, *(each for layer in layers for each in (kind(layer), layer)), core, *inside]


class Talk:
    """One conversation; what is wrong in it is told to the rehearsal."""

    def __init__(self, rehearsal: Rehearsal, agent: Agent) -> None:
        self.rehearsal = rehearsal
        self.agent = agent
        self.error: BaseException | None = None
        self._items: list[Any] = []

    async def ask(self, inputs: str | ReplyInput, schema: Any = None, *, answers: int = _MOST_ANSWERS) -> str | None:
        """Say something, answer what is asked in return, check it all, and return the text of the final message.

        An error that leaves the reply is kept in `error`, and nothing is returned. Raises `GivenUp`.
        """
        self.error = None
        self._items = []
        with anyio.move_on_after(self.rehearsal.patience) as limit:
            try:
                await self.hear(inputs, schema)
                for _ in range(answers):
                    if self.agent.state.reply_context is None:
                        break
                    await self.hear(approve(self.agent.state))
            except Exception as error:  # noqa: BLE001  # judged by who asked
                self.error = error
        if limit.cancelled_caught:
            raise GivenUp(f"the reply was not over after {self.rehearsal.patience:g} seconds")
        self.rehearsal.tell(*self.lints(), *self._problems())
        return None if self.error is not None else self._text()

    async def do(self, what: str, work: Callable[..., Awaitable[None]], *values: Any) -> BaseException | None:
        """Have the agent do something else than reply, and return the error that leaves it. Raises `GivenUp`."""
        error: BaseException | None = None
        with anyio.move_on_after(self.rehearsal.patience) as limit:
            try:
                await work(*values)
            except Exception as raised:  # noqa: BLE001  # judged by who asked
                error = raised
        if limit.cancelled_caught:
            raise GivenUp(f"{what} was not over after {self.rehearsal.patience:g} seconds")
        self.rehearsal.tell(*self.lints())
        return error

    def tell_error(self, error: BaseException | None) -> None:
        """Tell of an error that ought not to be, unless a lint has told it already."""
        if error is not None and not any(self.lints()):
            self.rehearsal.tell(told(error))

    async def ask_without_errors(self, inputs: str | ReplyInput, schema: Any = None) -> str | None:
        """Do what `ask` does; an error that leaves the reply is told as well."""
        text = await self.ask(inputs, schema)
        self.tell_error(self.error)
        return text

    @property
    def message(self) -> Msg | None:
        """The final message."""
        return next((item for item in reversed(self._items) if isinstance(item, Msg)), None)

    async def hear(self, inputs: str | ReplyInput, schema: Any = None) -> None:
        """Read a reply to its end."""
        if isinstance(inputs, AgentEvent):
            self._items.append(inputs)
        async with self.agent.reply_stream(inputs, schema, yield_final_msg=True) as stream:
            async for item in stream:
                self._items.append(item)
                await anyio.lowlevel.checkpoint()

    @property
    def events(self) -> list[AgentEvent]:
        """The events since the last question."""
        return [item for item in self._items if isinstance(item, AgentEvent)]

    def saved_state(self) -> AgentState:
        """Return the state as another process would find it; reports a state that cannot be saved."""
        try:
            return AgentState.model_validate_json(self.agent.state.model_dump_json())
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what is wrong
            self.rehearsal.tell(f"the state cannot be saved: {told(error)}")
            return self.agent.state

    def _text(self) -> str | None:
        return None if self.message is None else self.message.get_text_content("")

    def lints(self) -> list[str]:
        """Return what the lints have told."""
        return [words for each in self.agent.chains.middlewares if isinstance(each, Lint) for words in each.problems]

    def _problems(self) -> Iterator[str]:
        state = self.agent.state
        events = self.events
        last = events[-1].reply_id if events else ""
        yield from problems_of_state(state)
        yield from problems_of_events(events, last, state)
        starts = [event.reply_id for event in events if isinstance(event, ReplyStartEvent)]
        if len(starts) > len(set(starts)):
            yield f"REPLY_START of the reply {starts[0]!r} was emitted more than once"
        try:
            AgentState.model_validate_json(state.model_dump_json())
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what is wrong
            yield f"the state cannot be saved: {told(error)}"
        if self.error is None and starts:
            yield from self._rebuilding(events, last)

    def _rebuilding(self, events: Sequence[AgentEvent], last: str) -> Iterator[str]:
        state = self.agent.state
        kept = next((message for message in state.context if message.id == last), None)
        if kept is None:
            if state.reply_context is not None or state.summary:
                return  # it is not over, or the summary stands for it
            kept = AssistantMsg("", [])
        message = AssistantMsg("", [], id=last)
        for event in events:
            message.append_event(event)
        if message.content != kept.content:
            yield (
                f"the events do not rebuild the message that is kept: they say {message.content!r:.300}, and kept is "
                f"{kept.content!r:.300}"
            )
        answer = self.message
        if answer is None or answer.finished_reason != "completed" or answer.structured_output is not None:
            return  # it is not part of the conversation, or the end of the reply holds it
        if not (kept.get_text_content("") or "").endswith(answer.get_text_content("") or ""):
            yield (
                f"the answer is {answer.get_text_content('')!r:.300}, but the message that is kept says "
                f"{kept.get_text_content('')!r:.300}"
            )


def told(error: BaseException) -> str:
    """Return in words what was raised."""
    if _IGNORED_EXIT in str(error):
        return "it yields after its reader has left, in a `finally` or an `except`: nothing may be yielded there"
    if str(error):
        return f"{type(error).__name__} was raised: {error}"
    return f"{type(error).__name__} was raised"
