"""A reply as a stream."""

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ClassVar, Generic, NoReturn, Self

from typing_extensions import TypeVar

from agentrt._runtime.concurrency.coroutine_reader import CoroutineReader, close_with_event_loop, with_own_code
from agentrt._runtime.conversation.turns import Claim
from agentrt._runtime.decoding.partial_answer import PartialAnswer
from agentrt._runtime.keywords.attributes import suggest_attributes
from agentrt._runtime.representation import never_raises
from agentrt.errors import UsageError
from agentrt.event import AgentEvent, AnyEvent, TextBlockDeltaEvent
from agentrt.message import Msg

_Item = TypeVar("_Item", bound=AnyEvent | Msg, default=AnyEvent, covariant=True)
_Output = TypeVar("_Output", default=Any)


@suggest_attributes(
    **dict.fromkeys(("final_message", "final_output", "get_final_message", "output", "result"), "write stream.message"),
    **dict.fromkeys(("stream_text", "text_stream"), "write `async for text in stream.text()`"),
    **dict.fromkeys(("partials", "stream_output"), "write `async for answer in stream.partial()`"),
    **dict.fromkeys(("events", "stream_events"), "write `async for event in stream`"),
    close="write `await stream.aclose()`",
    usage="write stream.message.usage",
)
class ReplyStream(CoroutineReader[_Item], Generic[_Item, _Output]):
    """A reply as it happens: an async iterator over events, and an async context manager that closes it.

    `ReplyStream[AnyEvent]` has events alone, `ReplyStream[AnyEvent | Msg]` the final message after them. Where a type
    was asked for, it is the second parameter: the `message` of a `ReplyStream[AnyEvent, T]` is a `Msg[T]`.

    The reply starts, and takes the conversation, when the first item is asked for. Everything it opened is closed, in
    the closing task, when it ends, fails, or leaves the `async with` block. A stream that is merely dropped, by a plain
    `break` for example, is closed at once in a task of its own, and the next reply of the conversation waits for that.
    """

    __slots__ = ("_claim",)

    __anext__ = with_own_code(CoroutineReader.__anext__)  # inside of layers it reads another reader

    def __init__(
        self, make: Callable[[], Coroutine[Any, Any, Msg | None]], claim: Claim, yield_final_msg: bool = False
    ) -> None:
        super().__init__(make, gives_result=False)
        claim.tells_message = yield_final_msg
        self._claim = claim

    def _start(self) -> Coroutine[Any, Any, Any]:
        close_with_event_loop(self)
        return super()._start()

    @never_raises
    def __repr__(self) -> str:
        stage = "closed" if not self.is_open else "not started" if self._claim.lock is None else "in progress"
        return f"<{type(self).__name__} of the reply {self._claim.reply_id!r}, {stage}>"

    async def hand_over(self) -> None:
        """Stop the reply and leave it in progress, so that `reply(None)` resumes it, here or in another process.

        Any task may call it, also while another one reads the stream, which then ends. What the model was saying is
        forgotten, and a call that was running counts as one whose process died. All else is saved. A reply that waits
        for an answer, or is over, stays as it is. `aclose` ends a reply as interrupted instead.
        """
        self._claim.is_handed_over = True
        if self._claim.part is not None:  # of several agents, whose replies follow one another
            await self._claim.part.hand_over()
        elif self.is_running:
            await self._claim.leave_from_outside()
        if not self.is_running:
            await self.aclose()

    @property
    def closing_events(self) -> list[AgentEvent]:
        """The events that closed an abandoned or cancelled reply; the reader of the stream did not receive them."""
        return list(self._claim.closing_events)

    @property
    def message(self) -> Msg[_Output]:
        """The final message, once the stream has been read to its end.

        It is there whether or not the stream yields it, also if the reply waits for an answer or was interrupted.
        Raises `UsageError` before the end of the reply, and after one that failed or was closed early.
        """
        message = self._claim.final
        if message is not None:
            return message
        if self.is_open:
            raise UsageError(
                "stream.message was read before the end of the reply, which comes after its last event: read all "
                "events without a `break`, or `await stream.drain()`"
            )
        raise UsageError(
            "stream.message: this reply has no final message, for it failed or its stream was closed before the end, "
            "as by a `break` at its last event; what it had said by then, if anything, is at the end of "
            "agent.state.context"
        )

    def text(self) -> "TextStream":
        """Return the text of the answer as it comes: `async for text in stream.text()`.

        It is the text of this reply alone, not that of other agents whose events are among its own. Blocks of text
        follow one another with nothing in between. What a reader has been given cannot be taken back: where an attempt
        at the model was given up, or a layer replaced what was said, the new text comes after the old one.
        `stream.message` has the answer that counts, and the events tell what was withdrawn.
        """
        return TextStream(self, self._claim)

    def partial(self) -> "PartialStream[_Output]":
        """Return the structured output as the model writes it: `async for answer in stream.partial()`.

        Each is a valid instance of the type that was asked for: the first comes when all required fields have started.
        Its last `str`, number or list may still grow, and it replaces the one before it. If the model starts again,
        because an attempt was given up or an answer did not fit, so do the partial answers. The last one is
        `stream.message.structured_output`; there is none if the reply ends without an answer. For a JSON schema they
        are plain JSON, which is not checked before the end.

        Raises `UsageError` for a reply without a `structured_schema`.
        """
        if self._claim.form is None:
            raise UsageError(
                "stream.partial() has the structured output of a reply that asks for one: write "
                "agent.reply_stream(inputs, MyType).partial()"
            )
        return PartialStream(self, self._claim, PartialAnswer(self._claim.form))

    async def drain(self) -> _Item | None:
        """Read the reply to its end and return its last item."""
        item: _Item | None = None
        try:
            async for item in self:  # noqa: B007  # the last one is returned
                pass
        finally:
            await self.aclose()
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    # `object`, so that a type checker refuses these too; what follows a `NoReturn` is not even looked at.

    def __iter__(self) -> object:
        raise TypeError(
            "a reply stream is asynchronous: write `async for event in agent.reply_stream(...)` in an `async def`, "
            "or call `agent.run_sync(...)` for the final message alone"
        )

    def __await__(self) -> object:
        raise TypeError(
            "a reply stream is not awaited: write `async for event in agent.reply_stream(...)`, "
            "or `await agent.reply(...)` for the final message alone"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled, no more than an async_generator can")

    def __del__(self) -> None:
        # Nothing but scheduling here: this may run in any thread, and after the loop is gone.
        # A copy that failed has nothing.
        if getattr(self, "_work", None) is not None and self.is_open:
            self._claim.dropped = True
            if self._claim.reaper is not None:
                self._claim.reaper.reap(self)  # which keeps it until it is closed; this is not called twice


_Part = TypeVar("_Part", covariant=True)


class _ReplyView(Generic[_Part]):
    """A part of a reply as it comes, read from the `ReplyStream` that it refers to.

    It reads and closes that stream, and one that is merely dropped lets go of it: so it is closed as that stream is.
    """

    __slots__ = ("_claim", "_stream")

    _usage: ClassVar[tuple[str, str, str]]
    """Its name, how it is read, and what to await for the whole instead."""

    def __init__(self, stream: ReplyStream[Any, Any], claim: Claim) -> None:
        self._stream = stream
        self._claim = claim

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._stream!r}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Part:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Stop the reply and wait until everything it opened is closed."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()

    def __iter__(self) -> object:
        name, reading, _ = self._usage
        raise TypeError(f"{name} of a reply is asynchronous: write `{reading}` in an `async def`")

    def __await__(self) -> object:
        name, reading, whole = self._usage
        raise TypeError(f"{name} of a reply is not awaited: write `{reading}`, or {whole} alone")


class TextStream(_ReplyView[str]):
    """The text of a reply as it comes: an async iterator over the `ReplyStream` that it refers to.

    It reads and closes that stream, and one that is merely dropped lets go of it: so it is closed as that stream is.
    """

    __slots__ = ()

    _usage = (
        "the text",
        "async for text in stream.text()",
        "`(await agent.reply(...)).get_text_content()` for the whole text",
    )

    async def __anext__(self) -> str:
        async for item in self._stream:
            # The claim's id is that of the reply which resumes, if one does, so it is known only now.
            if item.__class__ is TextBlockDeltaEvent and item.reply_id == self._claim.reply_id:
                return item.delta
        raise StopAsyncIteration


class PartialStream(_ReplyView[_Output]):
    """The structured output of a reply as it comes: an async iterator over the `ReplyStream` that it refers to.

    It reads and closes that stream, and one that is merely dropped lets go of it: so it is closed as that stream is.
    """

    __slots__ = ("_answer", "_is_over")

    _usage = (
        "the partial output",
        "async for answer in stream.partial()",
        "`(await agent.reply(...)).structured_output` for the whole answer",
    )

    def __init__(self, stream: ReplyStream[Any, _Output], claim: Claim, answer: PartialAnswer) -> None:
        super().__init__(stream, claim)
        self._answer = answer
        self._is_over = False

    async def __anext__(self) -> _Output:
        async for item in self._stream:
            if not isinstance(item, Msg) and item.reply_id == self._claim.reply_id and self._answer.read(item):
                return self._answer.value  # type: ignore[no-any-return]  # of the type of the form
        # The last one is the answer itself: the model has not written its defaults, and a layer may have changed it.
        final = self._claim.final
        if self._is_over or final is None or final.structured_output is None:
            raise StopAsyncIteration
        self._is_over = True
        return final.structured_output  # type: ignore[no-any-return]  # likewise
