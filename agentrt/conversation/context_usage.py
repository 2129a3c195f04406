"""How much of its model's context a conversation fills, known before each request without reading it all again."""

from agentrt.block import ContentBlock
from agentrt.event import ModelCallEndEvent
from agentrt.message import Msg
from agentrt.model.estimate import characters_of
from agentrt.state import AgentState, ReplyContext
from agentrt.tool import Toolkit

__all__ = ["CHARACTERS_PER_TOKEN", "ContextUsage", "MessageLengths", "characters_in"]

CHARACTERS_PER_TOKEN = 4


def characters_in(message: Msg) -> int:
    """Return how many characters of text the message holds."""
    content = message.content
    return len(content) if isinstance(content, str) else sum(map(characters_of, content))


class MessageLengths:
    """How many characters the messages of a list hold, `total` in all, where one list is most often the last one grown.

    Each message is counted once, when it has joined the list, and each block of a message that grows at the end of the
    list when it has joined that message. A message that is replaced while those after it keep their places counts as
    before, and so does one that is edited in place.
    """

    __slots__ = ("_last_block", "_last_blocks", "_last_characters", "_lengths", "messages", "total")

    def __init__(self) -> None:
        self.messages: list[Msg] = []  # as they were when they were last looked at
        self.total = 0
        self._lengths: list[int] = []  # of each of them
        self._last_block: ContentBlock | None = None  # of the last message that was counted
        self._last_blocks = self._last_characters = 0

    def update(self, messages: list[Msg]) -> bool:
        """Count what has joined the list; returns whether something of it is gone."""
        counted, lengths = self.messages, self._lengths
        # From the end: what was counted is nearly always still there, except what was taken back.
        common = min(len(messages), len(counted))
        while common and messages[common - 1] is not counted[common - 1]:
            common -= 1
        is_shorter = common < len(lengths)  # which are more than the messages where one could not be counted
        if is_shorter:
            self.total -= sum(lengths[common:])
            del counted[common:], lengths[common:]
        new_messages = messages[common:]
        for message in new_messages:
            content = message.content
            if content.__class__ is str:
                length = len(content)
            elif message is messages[-1]:
                length = self._count_last(content)  # type: ignore[arg-type]
            else:
                length = sum(map(characters_of, content))
            lengths.append(length)
            self.total += length
        counted += new_messages
        return is_shorter

    def _count_last(self, blocks: list[ContentBlock]) -> int:
        # A reply in progress is in each request with some blocks more, in a message of its own each time.
        known = self._last_blocks
        if known and len(blocks) >= known and blocks[known - 1] is self._last_block:
            length = self._last_characters + sum(map(characters_of, blocks[known:]))
        else:
            length = sum(map(characters_of, blocks))
        self._last_block, self._last_blocks, self._last_characters = blocks[-1] if blocks else None, len(blocks), length
        return length


class ContextUsage:
    """What one conversation holds, in characters and in tokens.

    Each message is counted once, when it has joined the history, and the blocks of the reply in progress as they come.
    What leaves the history is not counted any more, wherever it leaves, and what joins it is, wherever it joins. What
    is not seen to change (see `MessageLengths`) a provider that counts tokens puts right, and a request that is too
    long after all is shortened.
    Once a provider has counted the tokens of a request, only what came since is estimated.

    `must_shorten` says that the next request is to be shortened whatever the numbers say, `was_shortened` that it was.
    """

    # Defaults of the class: many conversations are never counted, and need no attributes of their own.
    must_shorten = was_shortened = False
    _headroom_ends = -1  # characters, up to which no closer look is needed
    _reply_id = ""
    _blocks = _block_characters = _characters_measured = 0
    _tokens_measured: int | None = None
    _model: object = None
    _history: MessageLengths | None = None
    _requests: MessageLengths | None = None

    def record_overflow(self) -> bool:
        """Have the next request shortened, since this one was too long; returns whether that was not tried yet."""
        self.must_shorten = not self.was_shortened
        self._headroom_ends = -1
        return self.must_shorten

    def reset(self) -> None:
        """Count everything anew: the history has changed."""
        self._history = None
        self._headroom_ends = -1
        self._tokens_measured = None
        self._reply_id = ""

    def has_headroom(self, state: AgentState, reply: ReplyContext, model: object) -> bool:
        """Say whether there is so much room, as far as the totals of the reply tell, that no closer look is needed."""
        context, history = state.context, self._history
        if (
            history is None
            or len(context) != len(history.messages)
            or (context and context[-1] is not history.messages[-1])
        ):
            history = self._count_messages(context)
        return history.total + reply.written + reply.received <= self._headroom_ends and model is self._model

    def tokens(self, state: AgentState, toolkit: Toolkit, prompt: str) -> int:
        """Return about how many tokens the next request has."""
        characters = self._count_all(state, toolkit, prompt)
        if self._tokens_measured is None:
            return characters // CHARACTERS_PER_TOKEN
        return self._tokens_measured + (characters - self._characters_measured) // CHARACTERS_PER_TOKEN

    def record_shortening(self) -> None:
        """Note that the request of this round is being shortened."""
        self.must_shorten, self.was_shortened = False, True
        self._headroom_ends = -1

    def set_headroom(self, model: object, tokens: int) -> None:
        """Note how many tokens may come before a closer look is needed."""
        self._model = model
        characters = 0 if self._history is None else self._history.total
        self._headroom_ends = characters + self._block_characters + tokens * CHARACTERS_PER_TOKEN

    def update(self, event: ModelCallEndEvent, state: AgentState, toolkit: Toolkit, prompt: str) -> None:
        """Take the provider's numbers of the request that was answered just now."""
        self._characters_measured = self._count_all(state, toolkit, prompt)
        self._tokens_measured = (event.input_tokens or 0) + (event.output_tokens or 0)
        self._headroom_ends = -1

    def characters_of_request(self, messages: list[Msg]) -> int:
        """Return about how many characters the messages of a request hold, in which most are those of the last one."""
        lengths = self._requests
        if lengths is None:
            lengths = self._requests = MessageLengths()
        lengths.update(messages)
        return lengths.total

    def _count_all(self, state: AgentState, toolkit: Toolkit, prompt: str) -> int:
        characters, reply = self._count_messages(state.context).total, state.reply_context
        if reply is not None:
            blocks = reply.message.content
            if reply.reply_id != self._reply_id or len(blocks) < self._blocks:
                self._reply_id = reply.reply_id
                self._blocks = reply.summarised
                self._block_characters = 0
            if len(blocks) > self._blocks:
                self._block_characters += sum(map(characters_of, blocks[self._blocks :]))
                self._blocks = len(blocks)
            characters += self._block_characters
        return characters + toolkit.schema_characters(state.active_groups) + len(state.summary) + len(prompt)

    def _count_messages(self, context: list[Msg]) -> MessageLengths:
        history = self._history
        if history is None:
            history = self._history = MessageLengths()
        if history.update(context):
            # The history was rewritten, so what a provider has said of it does not hold any more.
            self._tokens_measured = None
        return history
