"""How much of its model's context a conversation fills, known before each request without reading it all again."""

from agentrt._runtime.block import ContentBlock
from agentrt._runtime.model_interface.estimate import CHARACTERS_PER_TOKEN, TextLength, characters_of, text_length
from agentrt._runtime.model_interface.visible import VisibleMessages, has_hidden_calls
from agentrt.event import ModelCallEndEvent
from agentrt.message import Msg
from agentrt.state import AgentState, ReplyContext
from agentrt.tool import Toolkit

_MAX_WEIGHT = 4  # characters of English that one of an answer may be worth, as those of Chinese are


def characters_in(message: Msg, length: TextLength | None = None) -> int:
    """Return how long the message is, in characters of English; `length` measures text in another way."""
    content = message.content
    if isinstance(content, str):
        return (length or text_length)(content)
    return sum(characters_of(block, length) for block in content)


class MessageLengths:
    """How many characters the messages of a list hold, `total` in all, where one list is most often the last one grown.

    Each message is counted once, when it has joined the list, and each block of a message that grows at the end of the
    list when it has joined that message. A message that is replaced while those after it keep their places counts as
    before, and so does one that is edited in place. `has_hidden`: a message of a history held a hidden call; in
    other lists nobody looks for them.
    """

    __slots__ = (
        "_is_history",
        "_last_block",
        "_last_blocks",
        "_last_characters",
        "_lengths",
        "has_hidden",
        "length",
        "messages",
        "total",
    )

    def __init__(self, *, is_history: bool, length: TextLength | None = None) -> None:
        self._is_history = is_history
        self.length = length
        self.has_hidden = False
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
                text: str = content
                length = len(text) if self.length is None and text.isascii() else (self.length or text_length)(text)
            else:
                blocks: list[ContentBlock] = content  # type: ignore[assignment]  # it is not a str
                length = self._count_last(blocks) if message is messages[-1] else self._count(blocks)
                if self._is_history and not self.has_hidden:
                    self.has_hidden = has_hidden_calls(blocks)
            lengths.append(length)
            self.total += length
        counted += new_messages
        return is_shorter

    def _count_last(self, blocks: list[ContentBlock]) -> int:
        # A reply in progress is in each request with some blocks more, in a message of its own each time.
        known = self._last_blocks
        if known and len(blocks) >= known and blocks[known - 1] is self._last_block:
            length = self._last_characters + self._count(blocks[known:])
        else:
            length = self._count(blocks)
        self._last_block, self._last_blocks, self._last_characters = blocks[-1] if blocks else None, len(blocks), length
        return length

    def _count(self, blocks: list[ContentBlock]) -> int:
        if self.length is None:
            return sum(map(characters_of, blocks))
        return sum(characters_of(block, self.length) for block in blocks)


class ContextUsage:
    """The size of one conversation, in characters of English and in tokens.

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
    _reply: ReplyContext | None = None
    _blocks = _block_characters = _characters_measured = 0
    _tokens_measured: int | None = None
    _model: object = None
    _history: MessageLengths | None = None
    _requests: MessageLengths | None = None
    _visible: VisibleMessages | None = None
    length: TextLength | None = None  # by which all of it was measured
    _measured_text: tuple[str, int] = ("", 0)

    def record_overflow(self) -> bool:
        """Have the next request shortened, since this one was too long; returns whether that was not tried yet."""
        self.must_shorten = not self.was_shortened
        self._headroom_ends = -1
        return self.must_shorten

    def reset(self) -> None:
        """Count everything again: the history has changed."""
        self._history = None
        self._headroom_ends = -1
        self._tokens_measured = None
        self._reply = None

    def has_headroom(self, state: AgentState, reply: ReplyContext, model: object) -> bool:
        """Say whether there is so much room, as far as the totals of the reply tell, that no closer look is needed."""
        history = self._known_history(state.context)
        # What was written is counted in characters of any script.
        seen = history.total + reply.written * _MAX_WEIGHT + reply.received
        return seen <= self._headroom_ends and model is self._model

    def has_hidden_calls(self, state: AgentState) -> bool:
        """Say whether the history or the reply in progress has, or had, calls that no model may see."""
        reply = state.reply_context
        return (reply is not None and reply.hidden_calls is not None) or self._known_history(state.context).has_hidden

    def visible_messages(self, context: list[Msg]) -> list[Msg]:
        """Return the messages of the history that a model may see: the list itself, where that is all of them."""
        if not self._known_history(context).has_hidden:
            return context
        if self._visible is None:
            self._visible = VisibleMessages()
        return self._visible.of(context)

    def _known_history(self, context: list[Msg]) -> MessageLengths:
        history = self._history
        if (
            history is None
            or len(context) != len(history.messages)
            or (context and context[-1] is not history.messages[-1])
        ):
            return self._count_messages(context)
        return history

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

    def measure_by(self, length: TextLength | None) -> None:
        """Measure text in this way from now on; text measured differently is measured again."""
        if length is not self.length:
            self.reset()
            self._requests, self.length, self._measured_text = None, length, ("", 0)

    def characters_of_request(self, messages: list[Msg]) -> int:
        """Return about how many characters the messages of a request hold, in which most are those of the last one."""
        lengths = self._requests
        if lengths is None:
            lengths = self._requests = MessageLengths(is_history=False, length=self.length)
        lengths.update(messages)
        return lengths.total

    def _count_all(self, state: AgentState, toolkit: Toolkit, prompt: str) -> int:
        characters, reply = self._count_messages(state.context).total, state.reply_context
        if reply is not None:
            blocks = reply.message.content
            if reply is not self._reply or len(blocks) < self._blocks:
                self._reply = reply  # not its id, which another reply may have had
                self._blocks = reply.summarised
                self._block_characters = 0
            if len(blocks) > self._blocks:
                new_blocks = blocks[self._blocks :]
                if self.length is None:
                    self._block_characters += sum(map(characters_of, new_blocks))
                else:
                    self._block_characters += sum(characters_of(block, self.length) for block in new_blocks)
                self._blocks = len(blocks)
            characters += self._block_characters
        characters += toolkit.schema_characters(state.active_groups)
        if self.length is None:
            text = state.summary + prompt if state.summary else prompt
            return characters + (len(text) if text.isascii() else text_length(text))
        text = state.summary + prompt  # mostly the same as the last time
        if text != self._measured_text[0]:
            self._measured_text = text, self.length(text)
        return characters + self._measured_text[1]

    def _count_messages(self, context: list[Msg]) -> MessageLengths:
        history = self._history
        if history is None:
            history = self._history = MessageLengths(is_history=True, length=self.length)
        if history.update(context):
            # The history was rewritten, so what a provider has said of it does not hold any more.
            self._tokens_measured = None
        return history
