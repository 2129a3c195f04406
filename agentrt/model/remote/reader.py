"""Reading the answer of a provider to one call."""

from collections.abc import Sequence

from agentrt._runtime.block import ContentBlock
from agentrt._runtime.model_interface.estimate import TextLength, estimated_usage
from agentrt.errors import Transient
from agentrt.message import Msg
from agentrt.model.remote.accumulator import StreamAccumulator
from agentrt.types import ChatResponse, ChatUsage


class AnswerReader:
    """Makes one answer out of what a provider sends; one for each call.

    A subclass overrides `feed`, and what else its provider does in another way. `messages` are those of the request,
    and `accumulator` puts the answer together. `reason` is the provider's word for why the answer ended, "" until it
    has; `usage` and `id` are the provider's too. Where it has no usage, that is estimated, by `text_length` if given.

    A reader raises `Malformed` for what it cannot read. The model puts its own name into the message of any exception
    of a reader, and keeps its key out of it.
    """

    text_length: TextLength | None = None
    reason: str = ""
    usage: ChatUsage | None = None
    id: str | None = None

    def __init__(self, messages: Sequence[Msg]) -> None:
        self.messages = messages
        self.accumulator = StreamAccumulator()

    @property
    def is_complete(self) -> bool:
        """Whether the answer's end has been seen; a stream that ends or fails after that is not cut short."""
        return bool(self.reason)

    @property
    def has_ended(self) -> bool:
        """Whether no event can follow; "[DONE]" and the end of the response need no reader to be understood."""
        return False

    @property
    def has_progressed(self) -> bool:
        """Whether the last event brought anything of the answer that is not a piece yet."""
        return False

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        """Take one event of a stream, and return the new pieces: `self.accumulator.take_pieces()`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement `feed`")

    def read(self, body: dict[str, object]) -> None:
        """Take the whole answer at once, when it was not streamed; as if it were the only event, if not overridden."""
        self.feed(body)

    def answer(self) -> ChatResponse:
        """Return the whole answer; raises `Refused` when the model declined."""
        if not self.is_complete:
            raise Transient("its answer was cut: it ended without a reason")
        reason = "tool_calls" if self.reason == "stop" and self.accumulator.has_calls else self.reason
        return self.respond(self.accumulator.content(), reason, self.usage)

    def respond(self, content: list[ContentBlock], reason: str | None, usage: ChatUsage | None) -> ChatResponse:
        """Return the answer with this content, and with an estimate where the provider did not count its tokens."""
        if usage is None or (usage.estimated and self.text_length is not None):
            usage = estimated_usage(self.messages, content, self.text_length)
        return ChatResponse(content, True, usage, reason, self.id)
