"""The texts of one conversation, at one of the places where they are redacted."""

from dataclasses import replace
from functools import lru_cache

from agentrt.model import ChatResponse, ModelResult
from agentrt_middleware.attempts import StreamedAnswer, close, is_readable
from agentrt_middleware.redaction.actions import Actions
from agentrt_middleware.redaction.content import change_block
from agentrt_middleware.redaction.detectors import Detector
from agentrt_middleware.redaction.events import GrowingText
from agentrt_middleware.redaction.text_redactor import Engine, ReplaceMatch, TextRedactor
from agentrt_middleware.redaction.tokens import Tokens

_MAX_REMEMBERED = 20_000  # characters of one
_REMEMBERED_TEXTS = 2_048


class SharedRedactor:
    """The detectors of a middleware and what it does with their finds; the same for all conversations.

    A request holds the whole conversation, so the texts that hold nothing are remembered.
    """

    def __init__(self, detectors: list[Detector], actions: Actions) -> None:
        self._detectors = detectors
        self.engine = Engine(detectors)
        self.actions = actions
        self._is_clean = lru_cache(_REMEMBERED_TEXTS)(self._find_nothing)

    def __reduce__(self) -> tuple[type["SharedRedactor"], tuple[list[Detector], Actions]]:
        # Rebuilt elsewhere: compiled patterns and remembered texts stay in their process.
        return SharedRedactor, (self._detectors, self.actions)

    def _find_nothing(self, text: str) -> bool:
        return not self.engine.may_hold(text)

    def change(self, text: str, replace_find: ReplaceMatch) -> str:
        """Return the text with its finds replaced."""
        is_clean = self._is_clean(text) if len(text) <= _MAX_REMEMBERED else self._find_nothing(text)
        return text if is_clean else TextRedactor(self.engine, replace_find).end(text)


class ConversationText:
    """Changes texts that belong to one conversation; `place` names the place in errors."""

    def __init__(self, redactor: SharedRedactor, place: str, tokens: Tokens | None) -> None:
        self._redactor = redactor
        self._tokens = tokens
        self._restores = tokens is not None and tokens.restores_output
        # Where there are none, no detector makes any.
        self._replace = redactor.actions.replacer(place, (lambda name, _: name) if tokens is None else tokens.token)

    def change(self, text: str) -> str:
        """Return the text as it is kept and sent."""
        return self._redactor.change(text, self._replace)

    def show(self, text: str) -> str:
        """Return the text as the user sees it."""
        changed = self.change(text)  # first, since a token may stand for something new
        return changed if self._tokens is None or not self._restores else self._tokens.restore(changed)

    def restore_arguments(self, text: str) -> str:
        """Return text in a call's arguments with the values of its tokens."""
        return text if self._tokens is None else self._tokens.restore_arguments(text)

    def begin(self) -> GrowingText:
        """Return the same as `change` for what comes in pieces."""
        return TextRedactor(self._redactor.engine, self._replace)

    def begin_shown(self) -> GrowingText:
        """Return the same as `show` for what comes in pieces."""
        if not self._restores or self._tokens is None:
            return self.begin()
        return _RestoredText(self.begin(), self._tokens.restoring())

    async def change_answer(self, result: ModelResult) -> ChatResponse:
        """Return the answer to a request of the runtime's own, redacted: whole, since nobody reads its pieces."""
        if isinstance(result, ChatResponse):
            response: ChatResponse | None = result
        else:
            answer = StreamedAnswer(with_content=True)
            try:
                async for piece in result:
                    if is_readable(piece):
                        answer.add(piece)
            finally:
                await close(result)
            response = answer.response()
        if response is None or not is_readable(response):
            return ChatResponse([])
        return replace(response, content=[change_block(block, self.change) for block in response.content], is_last=True)


class _RestoredText:
    """A text that is redacted and restored while it comes."""

    def __init__(self, redacted: GrowingText, restored: GrowingText) -> None:
        self._redacted = redacted
        self._restored = restored
        self._taken: list[str] = []
        self._given: list[str] = []

    @property
    def has_replaced(self) -> bool:
        """Whether what left is something else than what came."""
        return "".join(self._taken) != "".join(self._given)

    def feed(self, piece: str) -> str:
        return self._note(piece, self._restored.feed(self._redacted.feed(piece)))

    def end(self, piece: str = "") -> str:
        return self._note(piece, self._restored.end(self._redacted.end(piece)))

    def _note(self, taken: str, given: str) -> str:
        self._taken.append(taken)
        self._given.append(given)
        return given
