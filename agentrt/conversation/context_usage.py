"""How much of its model's context a conversation fills, known before each request without reading it all again."""

from agentrt.event import ModelCallEndEvent
from agentrt.message import Msg
from agentrt.model.estimate import characters_of
from agentrt.state import AgentState, ReplyContext
from agentrt.tool import Toolkit

__all__ = ["CHARACTERS_PER_TOKEN", "ContextUsage", "characters_in"]

CHARACTERS_PER_TOKEN = 4


def characters_in(message: Msg) -> int:
    """Return how many characters of text the message holds."""
    content = message.content
    return len(content) if isinstance(content, str) else sum(map(characters_of, content))


class ContextUsage:
    """What one conversation holds, in characters and in tokens.

    Each message is counted once, when it has joined the history, and the blocks of the reply in progress as they come.
    What leaves the history is not counted any more, wherever it leaves, and what joins it is, wherever it joins. A
    message that is changed, or replaced while the messages after it keep their places, counts as it did before: a
    provider that counts tokens puts that right, and a request that is too long after all is shortened.
    Once a provider has counted the tokens of a request, only what came since is estimated.

    `must_shorten` says that the next request is to be shortened whatever the numbers say, `was_shortened` that it was.
    """

    # Defaults of the class: many conversations are never counted, and need no attributes of their own.
    must_shorten = was_shortened = False
    _headroom_ends = -1  # characters, up to which no closer look is needed
    _reply_id = ""
    _characters = _blocks = _block_characters = _characters_measured = 0
    _tokens_measured: int | None = None
    _model: object = None
    _counted: list[Msg] | None = None  # the messages in the history when it was last looked at
    _lengths: list[int] | None = None  # how many characters each of them holds

    def record_overflow(self) -> bool:
        """Have the next request shortened, since this one was too long; returns whether that was not tried yet."""
        self.must_shorten = not self.was_shortened
        self._headroom_ends = -1
        return self.must_shorten

    def reset(self) -> None:
        """Count everything anew: the history has changed."""
        self._counted = self._lengths = None
        self._characters = 0
        self._headroom_ends = -1
        self._tokens_measured = None
        self._reply_id = ""

    def has_headroom(self, state: AgentState, reply: ReplyContext, model: object) -> bool:
        """Say whether there is so much room, as far as the totals of the reply tell, that no closer look is needed."""
        context, counted = state.context, self._counted
        if counted is None or len(context) != len(counted) or (context and context[-1] is not counted[-1]):
            self._count_messages(context)
        return self._characters + reply.written + reply.received <= self._headroom_ends and model is self._model

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
        self._headroom_ends = self._characters + self._block_characters + tokens * CHARACTERS_PER_TOKEN

    def update(self, event: ModelCallEndEvent, state: AgentState, toolkit: Toolkit, prompt: str) -> None:
        """Take the provider's numbers of the request that was answered just now."""
        self._characters_measured = self._count_all(state, toolkit, prompt)
        self._tokens_measured = (event.input_tokens or 0) + (event.output_tokens or 0)
        self._headroom_ends = -1

    def _count_all(self, state: AgentState, toolkit: Toolkit, prompt: str) -> int:
        context, reply, counted = state.context, state.reply_context, self._counted
        if counted is None or len(context) != len(counted) or (context and context[-1] is not counted[-1]):
            self._count_messages(context)
        characters = self._characters
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

    def _count_messages(self, context: list[Msg]) -> None:
        counted, lengths = self._counted, self._lengths
        if counted is None or lengths is None:
            counted, lengths = self._counted, self._lengths = [], []
        # From the end: what was counted is nearly always still there, except what was taken back.
        common = min(len(context), len(counted))
        while common and context[common - 1] is not counted[common - 1]:
            common -= 1
        if common < len(counted):
            # The history was rewritten, so what a provider has said of it does not hold any more.
            self._tokens_measured = None
            self._characters -= sum(lengths[common:])
            del counted[common:], lengths[common:]
        new_messages = context[common:]
        counted += new_messages
        for message in new_messages:
            content = message.content
            length = len(content) if content.__class__ is str else sum(map(characters_of, content))
            lengths.append(length)
            self._characters += length
