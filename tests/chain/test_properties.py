"""Random chains, against a model that knows nothing of how chains are compiled.

The model is plain Python, and it pushes where the chain pulls: each layer calls the next one with a function that takes
the items. So a layer that stops reading unwinds what it reads, and the model cannot share a mistake about closing with
the chain. What the model says of items, outcome and openings holds exactly. When things are closed it does not say; the
laws about that are checked on what the chain did: each stream is closed once, before control returns, innermost first,
and only what a layer left behind by stopping may be closed after that layer, but before anything else happens.
"""

from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt._runtime.chain.compile import compile_chains
from agentrt._runtime.chain.spec import HookSpec
from agentrt.errors import ChainContractError
from agentrt.hooks import MiddlewareBase

LOOPS: dict[str, dict[str, Any]] = {"asyncio": {"backend": "asyncio"}, "trio": {"backend": "trio"}}
if find_spec("uvloop"):
    LOOPS["uvloop"] = {"backend": "asyncio", "backend_options": {"use_uvloop": True}}
ON_EACH_LOOP = pytest.mark.parametrize("loop", LOOPS)
check_many = settings(max_examples=100, deadline=None, database=None)


class Base(MiddlewareBase):
    def __init__(self, place: int, n: int = 1) -> None:
        self.place, self.n = place, n

    def on_items(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return next_handler(**input_kwargs)

    def on_ask(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return next_handler(**input_kwargs)

    async def on_text(self, agent: Any, text: str) -> str:
        return text


ITEMS = HookSpec("on_items", "stream", ("a", "b"), (str,), None, "items")
ASK = HookSpec("on_ask", "call", ("a",), (str,), str, "one answer, or a stream of its pieces")
TEXT = HookSpec("on_text", "transformer", ("agent", "text"), (str,), str, "a text")


class Boom(Exception):
    """The one error of these chains; `args[0]` says whose it is."""


# Streams: the chain


class Trace(list[tuple[Any, ...]]):
    """The agent: everything that happened, in order."""

    def __init__(self) -> None:
        self.frames = 0
        self.scope = anyio.CancelScope()

    @contextmanager
    def frame(self, place: int) -> Iterator[None]:
        """Write down that a layer, or the core, was started, and that it was left."""
        number, self.frames = self.frames, self.frames + 1
        self.append(("enter", place, number))
        try:
            yield
        finally:
            self.append(("exit", number))


class Pass(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            async for item in next_handler():
                yield item


class Super(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            async for item in super().on_items(agent, input_kwargs, next_handler):
                yield item


class Override(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            async for item in next_handler(a=self.place):
                yield item


class InPlace(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            input_kwargs["b"] += self.n
            async for item in next_handler():
                yield item


class Short(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            yield f"short {self.place}"


class Transform(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            async for item in next_handler():
                yield f"{self.place}({item})"


class Hold(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            for item in [item async for item in next_handler()]:
                yield item


class Extra(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            async for item in next_handler():
                yield item
            yield f"extra {self.place}"


class Retry(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            try:
                async for item in next_handler():
                    yield item
                return
            except Boom:
                pass
            async for item in next_handler():
                yield item


class Restart(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            left = self.n
            async for item in next_handler():
                yield item
                left -= 1
                if not left:
                    break
            async for item in next_handler():
                yield item


class Catch(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            try:
                async for item in next_handler():
                    yield item
                return
            except Boom:
                pass
            yield f"instead {self.place}"


class RaiseBefore(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            raise Boom(self.place)
            yield


class RaiseMid(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            left = self.n
            async for item in next_handler():
                yield item
                left -= 1
                if not left:
                    raise Boom(self.place)


class RaiseAfter(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            async for item in next_handler():
                yield item
            raise Boom(self.place)


class Leave(Base):
    async def on_items(self, agent, input_kwargs, next_handler):
        with agent.frame(self.place):
            left = self.n
            async for item in next_handler():
                yield item
                left -= 1
                if not left:
                    return


@dataclass(frozen=True)
class Core:
    """Yields `count` items; before item `fails_at` or at the end it raises, or its consumer is cancelled."""

    count: int
    fails_at: int | None
    cancels: bool


def stream_core(core: Core, place: int) -> Callable[..., Any]:
    async def items(agent: Trace, a: int, b: int) -> Any:
        with agent.frame(place):
            for number in range(core.count + 1):
                await anyio.lowlevel.checkpoint()
                if number == core.fails_at and core.cancels:
                    agent.scope.cancel()
                    await anyio.sleep_forever()
                if number == core.fails_at:
                    raise Boom("core")
                if number < core.count:
                    agent.append(("item", number))
                    yield f"{a}/{b}.{number}"

    return items


# Streams: the model

Deliver = Callable[[str], Any]


class Unwind(BaseException):
    """Leaves what a layer was reading: only the one that it is meant for may catch it."""


class Cancelled(BaseException):
    """The consumer was cancelled."""


@dataclass
class Model:
    layers: list[Base]
    core: Core
    trace: list[tuple[Any, ...]] = field(default_factory=list)
    parents: list[int | None] = field(default_factory=list)
    stopped: set[int] = field(default_factory=set)

    def enter(self, place: int, parent: int | None, values: tuple[int, int], deliver: Deliver) -> None:
        me = len(self.parents)
        self.parents.append(parent)
        self.trace.append(("enter", place, me))
        if place == len(self.layers):
            self.run_core(values, deliver)
        else:
            layer = self.layers[place]
            BEHAVIOUR[type(layer)](Frame(self, me, layer.place, layer.n, values), deliver)

    def run_core(self, values: tuple[int, int], deliver: Deliver) -> None:
        for number in range(self.core.count + 1):
            if number == self.core.fails_at:
                raise Cancelled if self.core.cancels else Boom("core")
            if number < self.core.count:
                self.trace.append(("item", number))
                deliver(f"{values[0]}/{values[1]}.{number}")


@dataclass
class Frame:
    """One run of a layer, in the model."""

    model: Model
    me: int
    place: int
    n: int
    values: tuple[int, int]

    def read(self, deliver: Deliver, values: tuple[int, int] | None = None) -> None:
        self.model.enter(self.place + 1, self.me, values or self.values, deliver)

    def read_some(self, deliver: Deliver) -> bool:
        """Read `n` items, and say whether there were as many."""
        left = self.n

        def take(item: str) -> None:
            nonlocal left
            deliver(item)
            left -= 1
            if not left:
                raise Unwind(self.me)

        try:
            self.read(take)
        except Unwind as unwind:
            if unwind.args != (self.me,):
                raise
            return True
        return False

    def stop(self) -> None:
        self.model.stopped.add(self.me)


def hold(frame: Frame, deliver: Deliver) -> None:
    held: list[str] = []
    frame.read(held.append)
    for item in held:
        deliver(item)


def extra(frame: Frame, deliver: Deliver) -> None:
    frame.read(deliver)
    deliver(f"extra {frame.place}")


def retry(frame: Frame, deliver: Deliver) -> None:
    try:
        frame.read(deliver)
    except Boom:
        frame.read(deliver)


def restart(frame: Frame, deliver: Deliver) -> None:
    frame.read_some(deliver)
    frame.read(deliver)


def catch(frame: Frame, deliver: Deliver) -> None:
    try:
        frame.read(deliver)
    except Boom:
        deliver(f"instead {frame.place}")


def raise_before(frame: Frame, deliver: Deliver) -> None:
    raise Boom(frame.place)


def raise_mid(frame: Frame, deliver: Deliver) -> None:
    if frame.read_some(deliver):
        frame.stop()
        raise Boom(frame.place)


def raise_after(frame: Frame, deliver: Deliver) -> None:
    frame.read(deliver)
    raise Boom(frame.place)


def leave(frame: Frame, deliver: Deliver) -> None:
    if frame.read_some(deliver):
        frame.stop()


BEHAVIOUR: dict[type[Base], Callable[[Frame, Deliver], None]] = {
    Pass: lambda frame, deliver: frame.read(deliver),
    Super: lambda frame, deliver: frame.read(deliver),
    Override: lambda frame, deliver: frame.read(deliver, (frame.place, frame.values[1])),
    InPlace: lambda frame, deliver: frame.read(deliver, (frame.values[0], frame.values[1] + frame.n)),
    Short: lambda frame, deliver: deliver(f"short {frame.place}"),
    Transform: lambda frame, deliver: frame.read(lambda item: deliver(f"{frame.place}({item})")),
    Hold: hold,
    Extra: extra,
    Retry: retry,
    Restart: restart,
    Catch: catch,
    RaiseBefore: raise_before,
    RaiseMid: raise_mid,
    RaiseAfter: raise_after,
    Leave: leave,
}


OFTEN = [Leave, Leave, RaiseMid, Extra, Catch, Restart]  # closing is where mistakes hide


@dataclass(frozen=True)
class Consumer:
    """Reads all, or leaves after `count` items, or is cancelled while it holds that item.

    It reads in an `async for`, or takes each step with `anext`, for which the entry into a chain has a way of its own.
    """

    how: str
    count: int
    takes_steps: bool = False

    def leaves(self, taken: int) -> bool:
        return self.how != "drain" and taken == self.count


def outcome_of_model(model: Model, consumer: Consumer) -> Any:
    """Return the outcome that the model sees."""
    taken = 0

    def deliver(item: str) -> None:
        nonlocal taken
        model.trace.append(("deliver", item))
        taken += 1
        if consumer.leaves(taken):
            raise Cancelled if consumer.how == "cancel" else Unwind

    try:
        model.enter(0, None, (0, 0), deliver)
    except Boom as boom:
        return boom.args[0]
    except Unwind:
        return "left"
    except Cancelled:
        return "cancelled"
    return "end"


async def outcome_of_chain(layers: list[Base], core: Core, consumer: Consumer) -> tuple[Any, Trace]:
    """Return the outcome that the chain has, and what was on the trace when control came back."""
    trace = Trace()
    chains = compile_chains(Base, [ITEMS], {"on_items": stream_core(core, len(layers))}, layers)
    outcome: Any = "end"
    with trace.scope:
        try:
            outcome = await consume(chains.on_items(trace, a=0, b=0), trace, consumer)
        except Boom as boom:
            outcome = boom.args[0]
        finally:
            ended = trace.copy()
    return "cancelled" if trace.scope.cancelled_caught else outcome, ended


class Stepping:
    """A stream whose steps are taken with `anext`."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.aclose = stream.aclose

    def __aiter__(self) -> "Stepping":
        return self

    def __anext__(self) -> Any:
        return anext(self.stream)


async def consume(stream: Any, trace: Trace, consumer: Consumer) -> str:
    stream = Stepping(stream) if consumer.takes_steps else stream
    if consumer.how == "drain":
        async for item in stream:
            trace.append(("deliver", item))
        return "end"
    async with aclosing(stream):
        taken = 0
        async for item in stream:
            trace.append(("deliver", item))
            taken += 1
            if consumer.leaves(taken):
                if consumer.how == "cancel":
                    trace.scope.cancel()
                    await anyio.lowlevel.checkpoint()
                return "left"
    return "end"


def check_closing(trace: list[tuple[Any, ...]], model: Model) -> None:
    left = [event[1] for event in trace if event[0] == "exit"]
    assert sorted(left) == list(range(len(model.parents))), "everything that was opened is closed, once"
    at = {event[1]: index for index, event in enumerate(trace) if event[0] == "exit"}
    for me, parent in enumerate(model.parents):
        if parent is None or at[me] < at[parent]:
            continue
        assert parent in model.stopped, "only what stopped by itself is closed before what it was reading"
        between = trace[at[parent] : at[me]]
        assert all(event[0] == "exit" for event in between), "what a layer left is closed before anything else happens"


def layers_of(kinds: list[type[Base]]) -> st.SearchStrategy[list[Base]]:
    some = st.lists(st.tuples(st.sampled_from(kinds), st.integers(1, 3)), min_size=1, max_size=8)
    return some.map(lambda chosen: [kind(place, n) for place, (kind, n) in enumerate(chosen)])


cores = st.builds(Core, st.integers(0, 4), st.none() | st.integers(0, 4), st.booleans())
consumers = st.builds(Consumer, st.sampled_from(["drain", "leave", "cancel"]), st.integers(1, 4), st.booleans())


@ON_EACH_LOOP
@check_many
@given(layers_of([*BEHAVIOUR, *OFTEN]), cores, consumers)
def test_stream_chain_behaves_as_the_model_does(loop: str, layers: list[Base], core: Core, consumer: Consumer) -> None:
    model = Model(layers, core)
    expected = outcome_of_model(model, consumer)
    outcome, trace = anyio.run(outcome_of_chain, layers, core, consumer, **LOOPS[loop])
    assert [event for event in trace if event[0] != "exit"] == model.trace
    assert outcome == expected
    check_closing(trace, model)


# Calls: the chain


class Source:
    """A stream that records its closing, even if it was never started."""

    def __init__(self, trace: Trace, pieces: list[str], error: Boom | None = None) -> None:
        self.trace, self.left, self.error = trace, pieces[::-1], error
        self.number, trace.frames = trace.frames, trace.frames + 1
        self.closed = False
        trace.append(("open", self.number, None))

    def __aiter__(self) -> "Source":
        return self

    async def __anext__(self) -> str:
        await anyio.lowlevel.checkpoint()
        if self.left:
            return self.left.pop()
        if self.error is not None:
            raise self.error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            self.trace.append(("close", self.number))


class Mapped(Source):
    """A stream of what another one gives, with a mark."""

    def __init__(self, trace: Trace, inner: Any, mark: int) -> None:
        super().__init__(trace, [])
        self.inner, self.mark = inner, mark
        trace[-1] = ("open", self.number, inner.number)

    async def __anext__(self) -> str:
        return f"{self.mark}({await anext(self.inner)})"


class PassAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        return await next_handler()


class OverrideAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        return await next_handler(a=input_kwargs["a"] + self.n)


class AnswerAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        return f"answer {self.place}"


class StreamAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        return Source(agent, [f"piece {self.place}"] * self.n)


class MapAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        result = await next_handler()
        return f"{self.place}({result})" if isinstance(result, str) else Mapped(agent, result, self.place)


class DrainAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        result = await next_handler()
        return result if isinstance(result, str) else "".join([piece async for piece in result])


class PeekAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        result = await next_handler()
        return result if isinstance(result, str) else await anext(result, "nothing")


class RetryAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        try:
            return await next_handler()
        except Boom:
            return await next_handler()


class TwiceAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        first, second = await next_handler(), await next_handler()
        return first if self.n == 1 else second


class CatchAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        try:
            return await next_handler()
        except Boom:
            return f"instead {self.place}"


class RaiseBeforeAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        raise Boom(self.place)


class RaiseAfterAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        await next_handler()
        raise Boom(self.place)


class WrongAsk(Base):
    async def on_ask(self, agent, input_kwargs, next_handler):
        await next_handler()
        return self.place


@dataclass(frozen=True)
class AskCore:
    """Answers, or streams `count` pieces; `fails` at once, or after the pieces."""

    streams: bool
    count: int
    fails: bool


def ask_core(core: AskCore) -> Callable[..., Any]:
    async def ask(agent: Trace, a: int) -> Any:
        await anyio.lowlevel.checkpoint()
        if core.streams:
            return Source(
                agent, [f"{a}.{number}" for number in range(core.count)], Boom("core") if core.fails else None
            )
        if core.fails:
            raise Boom("core")
        return f"{a}"

    return ask


# Calls: the model, in which a stream is what it will give, and the error that it will end with


@dataclass
class Pieces:
    number: int
    pieces: list[str]
    error: Any = None


@dataclass
class AskModel:
    layers: list[Base]
    core: AskCore
    opened: list[int | None] = field(default_factory=list)

    def open(self, pieces: list[str], error: Any = None, wraps: int | None = None) -> Pieces:
        self.opened.append(wraps)
        return Pieces(len(self.opened) - 1, pieces, error)

    def ask(self, place: int, a: int) -> str | Pieces:
        if place == len(self.layers):
            return self.ask_core(a)
        layer = self.layers[place]
        return ASK_BEHAVIOUR[type(layer)](self, layer, a, lambda a=a: self.ask(place + 1, a))

    def ask_core(self, a: int) -> str | Pieces:
        if self.core.streams:
            error = "core" if self.core.fails else None
            return self.open([f"{a}.{number}" for number in range(self.core.count)], error)
        if self.core.fails:
            raise Boom("core")
        return f"{a}"


Go = Callable[..., Any]


def map_ask(model: AskModel, layer: Base, a: int, go: Go) -> str | Pieces:
    result = go()
    if isinstance(result, str):
        return f"{layer.place}({result})"
    return model.open([f"{layer.place}({piece})" for piece in result.pieces], result.error, result.number)


def drain_ask(model: AskModel, layer: Base, a: int, go: Go) -> str:
    result = go()
    if isinstance(result, str):
        return result
    if result.error is not None:
        raise Boom(result.error)
    return "".join(result.pieces)


def peek_ask(model: AskModel, layer: Base, a: int, go: Go) -> str:
    result = go()
    if isinstance(result, str):
        return result
    if not result.pieces and result.error is not None:
        raise Boom(result.error)
    return result.pieces[0] if result.pieces else "nothing"


def retry_ask(model: AskModel, layer: Base, a: int, go: Go) -> str | Pieces:
    try:
        return go()
    except Boom:
        return go()


def twice_ask(model: AskModel, layer: Base, a: int, go: Go) -> str | Pieces:
    first, second = go(), go()
    return first if layer.n == 1 else second


def catch_ask(model: AskModel, layer: Base, a: int, go: Go) -> str | Pieces:
    try:
        return go()
    except Boom:
        return f"instead {layer.place}"


def raise_before_ask(model: AskModel, layer: Base, a: int, go: Go) -> str:
    raise Boom(layer.place)


def raise_after_ask(model: AskModel, layer: Base, a: int, go: Go) -> str:
    go()
    raise Boom(layer.place)


def wrong_ask(model: AskModel, layer: Base, a: int, go: Go) -> str:
    go()
    raise ChainContractError(layer.place)


ASK_BEHAVIOUR: dict[type[Base], Callable[[AskModel, Base, int, Go], str | Pieces]] = {
    PassAsk: lambda model, layer, a, go: go(),
    OverrideAsk: lambda model, layer, a, go: go(a + layer.n),
    AnswerAsk: lambda model, layer, a, go: f"answer {layer.place}",
    StreamAsk: lambda model, layer, a, go: model.open([f"piece {layer.place}"] * layer.n),
    MapAsk: map_ask,
    DrainAsk: drain_ask,
    PeekAsk: peek_ask,
    RetryAsk: retry_ask,
    TwiceAsk: twice_ask,
    CatchAsk: catch_ask,
    RaiseBeforeAsk: raise_before_ask,
    RaiseAfterAsk: raise_after_ask,
    WrongAsk: wrong_ask,
}


def answer_of_model(model: AskModel, consumer: Consumer) -> tuple[Any, list[str]]:
    """Return the outcome, and the pieces that the consumer gets."""
    try:
        result = model.ask(0, 0)
    except Boom as boom:
        return boom.args[0], []
    except ChainContractError:
        return "contract", []
    if isinstance(result, str):
        return "answer", [result]
    if consumer.how != "drain" and len(result.pieces) >= consumer.count:
        return ("cancelled" if consumer.how == "cancel" else "left"), result.pieces[: consumer.count]
    return "end" if result.error is None else result.error, result.pieces


async def answer_of_chain(layers: list[Base], core: AskCore, consumer: Consumer) -> tuple[Any, list[str], Trace]:
    trace = Trace()
    entry = compile_chains(Base, [ASK], {"on_ask": ask_core(core)}, layers).on_ask
    outcome: Any = "cancelled"
    got: list[str] = []
    with trace.scope:
        try:
            result = await entry(trace, a=0)
            outcome = await take(result, trace, consumer, got)
        except Boom as boom:
            outcome = boom.args[0]
        except ChainContractError:
            outcome = "contract"
        finally:
            ended = trace.copy()
    return outcome, got, ended


async def take(result: Any, trace: Trace, consumer: Consumer, got: list[str]) -> str:
    if isinstance(result, str):
        got.append(result)
        return "answer"
    result = Stepping(result) if consumer.takes_steps else result
    if consumer.how == "drain":  # closes nothing, so the end must
        async for piece in result:
            got.append(piece)
        return "end"
    async with aclosing(result):
        if not consumer.count:  # leaves before the first piece
            return await give_up(trace, consumer)
        async for piece in result:
            got.append(piece)
            if consumer.leaves(len(got)):
                return await give_up(trace, consumer)
    return "end"


async def give_up(trace: Trace, consumer: Consumer) -> str:
    if consumer.how == "cancel":
        trace.scope.cancel()
        await anyio.lowlevel.checkpoint()
    return "left"


ask_cores = st.builds(AskCore, st.booleans(), st.integers(0, 3), st.booleans())
ask_consumers = st.builds(Consumer, st.sampled_from(["drain", "leave", "cancel"]), st.integers(0, 3), st.booleans())


@ON_EACH_LOOP
@check_many
@given(layers_of(list(ASK_BEHAVIOUR)), ask_cores, ask_consumers)
def test_call_chain_behaves_as_the_model_does(loop: str, layers: list[Base], core: AskCore, consumer: Consumer) -> None:
    model = AskModel(layers, core)
    expected = answer_of_model(model, consumer)
    outcome, got, trace = anyio.run(answer_of_chain, layers, core, consumer, **LOOPS[loop])
    assert (outcome, got) == expected
    assert [event[2] for event in trace if event[0] == "open"] == model.opened
    closed = [event[1] for event in trace if event[0] == "close"]
    assert sorted(closed) == list(range(len(model.opened))), "everything that was opened is closed, once"
    for number, inner in enumerate(model.opened):
        assert inner is None or closed.index(inner) < closed.index(number), "what a stream wraps is closed before it"


# Transformers


class Append(Base):
    async def on_text(self, agent, text):
        return f"{text} {self.place}"


class Reverse(Base):
    async def on_text(self, agent, text):
        return text[::-1]


class RaiseText(Base):
    async def on_text(self, agent, text):
        raise Boom(self.place)


class NoText(Base):
    async def on_text(self, agent, text):
        return None


def text_of_model(layers: list[Base], text: str) -> Any:
    for layer in layers:
        if isinstance(layer, RaiseText):
            return layer.place
        if isinstance(layer, NoText):
            return "contract"
        text = f"{text} {layer.place}" if isinstance(layer, Append) else text[::-1]
    return text


async def text_of_chain(layers: list[Base], text: str) -> Any:
    async def core(agent: None, text: str) -> str:
        return text

    try:
        return await compile_chains(Base, [TEXT], {"on_text": core}, layers).on_text(None, text=text)
    except Boom as boom:
        return boom.args[0]
    except ChainContractError:
        return "contract"


@ON_EACH_LOOP
@settings(max_examples=100, deadline=None, database=None)
@given(layers_of([Append, Append, Append, Reverse, Reverse, RaiseText, NoText]), st.text(max_size=5))
def test_a_transformer_is_a_fold_from_left_to_right(loop: str, layers: list[Base], text: str) -> None:
    assert anyio.run(text_of_chain, layers, text, **LOOPS[loop]) == text_of_model(layers, text)
