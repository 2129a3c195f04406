"""How much of its model's context a conversation fills, known before each request without reading it all again."""

from pydantic_core import to_json

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
    Once a provider has counted the tokens of a request, only what came since is estimated.

    `must_shorten` says that the next request is to be shortened whatever the numbers say, `was_shortened` that it was.
    """

    # Defaults of the class: many conversations are never counted, and need no attributes of their own.
    must_shorten = was_shortened = False
    _headroom_ends = -1  # characters, up to which no closer look is needed
    _reply_id = _newest = ""
    _messages = _characters = _blocks = _block_characters = _schema_characters = _characters_measured = 0
    _tokens_measured: int | None = None
    _model: object = None
    _toolkit: Toolkit | None = None
    _groups: list[str] | None = None

    def record_overflow(self) -> bool:
        """Have the next request shortened, since this one was too long; returns whether that was not tried yet."""
        self.must_shorten = not self.was_shortened
        self._headroom_ends = -1
        return self.must_shorten

    def reset(self) -> None:
        """Count everything anew: the history has changed."""
        self._messages = self._characters = 0
        self._headroom_ends = -1
        self._tokens_measured = None
        self._reply_id = self._newest = ""

    def has_headroom(self, state: AgentState, reply: ReplyContext, model: object) -> bool:
        """Say whether there is so much room, as far as the totals of the reply tell, that no closer look is needed."""
        context = state.context
        if len(context) != self._messages or (context and context[-1].id != self._newest):
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
        context, reply = state.context, state.reply_context
        count = len(context)
        if count != self._messages or (count and context[-1].id != self._newest):
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
        # By identity: both are replaced and never changed, and comparing schemas costs as much as counting them.
        if toolkit is not self._toolkit or state.active_groups is not self._groups:
            self._toolkit, self._groups = toolkit, state.active_groups
            self._schema_characters = len(to_json(toolkit.get_json_schemas(state.active_groups)))
        return characters + self._schema_characters + len(state.summary) + len(prompt)

    def _count_messages(self, context: list[Msg]) -> None:
        counted = self._messages
        if len(context) < counted or (counted and context[counted - 1].id != self._newest):
            # The history was rewritten, so what a provider has said of it does not hold any more.
            self._characters = counted = 0
            self._tokens_measured = None
        for message in context[counted:]:
            content = message.content
            self._characters += len(content) if content.__class__ is str else sum(map(characters_of, content))
        self._messages = len(context)
        self._newest = context[-1].id if context else ""
