"""The stream that leaves a chain, with all that was opened for it: its items are checked, and the rest is closed."""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from types import AsyncGeneratorType, CodeType
from typing import NoReturn, Self

from agentrt._runtime.chain.attribution import Origins, code_that_reads, name_the_layer
from agentrt._runtime.chain.chains import Layer
from agentrt._runtime.chain.layer_record import ObservedStream
from agentrt._runtime.chain.owner import Owner, StreamStep
from agentrt._runtime.chain.spec import HookSpec
from agentrt._runtime.chain.violations import missing_terminal, wrong_item


class StreamContract:
    """The promises of a chain about its streams, and the way to open one; the same for all entries.

    `terminal` is what a stream must end with (`None`: nothing fixed). `step` opens the outermost layer's stream; one
    that a call returned is open already.
    """

    __slots__ = ("item_classes", "layers", "origins", "spec", "step", "terminal")

    def __init__(
        self,
        spec: HookSpec,
        layers: Sequence[Layer],
        origins: Origins,
        terminal: type | None = None,
        step: StreamStep | None = None,
    ) -> None:
        self.spec = spec
        self.layers = layers
        self.origins = origins
        self.terminal = terminal
        self.step = step
        self.item_classes: set[type] = set()  # which have passed the check, for a cheaper look at each item

    def stream_of(self, owner: Owner) -> AsyncIterator[object]:
        """Return the stream of the outermost layer, which is opened by the first step."""
        if owner.stream is None:
            assert self.step is not None
            # A copy: the outermost layer may change its dict.
            owner.stream = stream = self.step({**owner.given}, owner)
            owner.opened.append(stream)
        return owner.stream

    def check_item(self, item: object) -> None:
        """Check an item of a class that has not passed yet."""
        if not isinstance(item, self.spec.item_types):
            raise wrong_item(self.spec, self.layers, item)
        self.item_classes.add(item.__class__)

    def check_end(self, last: object) -> None:
        """Check the last item of a stream."""
        if self.terminal is not None and not isinstance(last, self.terminal):
            raise missing_terminal(self.spec, self.layers, last)

    def name_the_layer(self, error: Exception, owner: Owner) -> None:
        """Add a note to the error that names the layer which raised it."""
        origins = self.origins | owner.origin_by_code
        if owner.core is not None:
            origins[code_that_reads(owner.core)] = None
        name_the_layer(error, self.spec, origins, self.layers, _READERS | {owner.reader})


class OwnedStream:
    """A stream with everything that was opened for it: closing it, or reading it to its end, closes all of that.

    It is read as any other one. Another function may read what `open` returns, in its own frame: it calls `check`
    before anything else is done with an item, unless the item is an event and nothing is `abandoned`, and awaits `end`
    after the last one, or `fail`.
    """

    __slots__ = ("_contract", "_last", "_owner", "_steps")

    def __init__(self, contract: StreamContract, owner: Owner) -> None:
        self._contract = contract
        self._owner = owner
        self._steps: AsyncIterator[object] | None = None
        self._last: object = None

    def __aiter__(self) -> Self:
        return self

    # Not a generator: an event loop has to be told of each one that begins.
    async def __anext__(self) -> object:
        contract, owner, steps = self._contract, self._owner, self._steps
        if owner.is_closed:
            raise StopAsyncIteration
        try:
            if steps is None:
                steps = self._steps = aiter(contract.stream_of(owner))
            try:
                item = self._last = await steps.__anext__()
            except StopAsyncIteration:
                contract.check_end(self._last)
            else:
                if item.__class__ not in contract.item_classes:
                    contract.check_item(item)
                if owner.abandoned:  # by a layer that stopped early, while one further out still yields
                    await owner.close_abandoned()
                return item
        except GeneratorExit:  # nothing can be awaited any more
            raise
        except BaseException as error:  # named and raised again
            await self.fail(error)
            raise
        for stream in owner.opened:
            if getattr(stream, "ag_frame", stream) is not None:  # not a generator that has ended, as nearly all have
                await owner.close()
                break
        owner.is_closed = True
        raise StopAsyncIteration

    @property
    def abandoned(self) -> Sequence[object]:
        """The streams of layers that stopped early, while one further out still yields; the list stays the same."""
        return self._owner.abandoned

    def open(self, reader: CodeType) -> AsyncIterator[object]:
        """Return the stream of the outermost layer; in a traceback, another chain lies below the code of `reader`.

        Its steps can be iterated: those of a stream that is neither a generator nor observed are taken by our own.
        """
        self._owner.reader = reader
        try:
            stream: AsyncIterator[object] = self._contract.stream_of(self._owner)
        except Exception as error:
            self._contract.name_the_layer(error, self._owner)
            raise
        if isinstance(stream, AsyncGeneratorType):
            return stream
        return aiter(stream if isinstance(stream, ObservedStream) else self)

    async def check(self, item: object) -> None:
        """Check an item, and close what is abandoned."""
        try:
            if item.__class__ not in self._contract.item_classes:
                self._contract.check_item(item)
            await self._owner.close_abandoned()
        except BaseException as error:
            await self.fail(error)
            raise

    async def fail(self, error: BaseException) -> None:
        """Name the layer that has raised the error, which the caller raises again, and close everything."""
        if isinstance(error, Exception):
            self._contract.name_the_layer(error, self._owner)
        await self._owner.close(error)

    async def end(self, last: object) -> None:
        """Check the last item, and close everything."""
        try:
            self._contract.check_end(last)
        except Exception as error:
            await self.fail(error)
            raise
        await self._owner.close()

    async def athrow(self, error: BaseException | type[BaseException]) -> NoReturn:
        """Close everything and raise the error, as a generator does that has no use for it."""
        await self.aclose()
        raise error

    async def aclose(self) -> None:
        if not self._owner.is_closed:
            await self._owner.close()


def own_stream(stream: AsyncIterable[object]) -> OwnedStream:
    """Return the stream of an entry; that of a core which no layer surrounds gets an owner of its own."""
    if isinstance(stream, OwnedStream):
        return stream
    owner = Owner(None, {})
    owner.stream = aiter(stream)
    owner.opened.append(stream)
    return OwnedStream(_OF_A_CORE, owner)


_OF_A_CORE = StreamContract(HookSpec("", "stream", (), (object,), None, ""), (), {})
_READERS: frozenset[CodeType | None] = frozenset((OwnedStream.__anext__.__code__,))
"""The code of an entry into a chain, in a traceback."""
