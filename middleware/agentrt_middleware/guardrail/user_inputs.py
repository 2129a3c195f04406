"""The messages of users in a conversation, a guardrail's verdicts on them, and what the model sees in their place."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from agentrt.message import ContentBlock, DataBlock, Msg, TextBlock, URLSource

_WITHHELD = "[withheld by a guardrail]"
_MAX_OUTSIDE = 1_000  # verdicts kept for messages that have left the requests

# `True`: the message may pass; `False`: it is withheld; a str replaces its text.
_Verdicts = dict[str, bool | str]


class UserInputs:
    """The messages of users; `data` is what is saved of it with the conversation.

    Verdicts are kept by the digest of a message: of its id, text and data. The id alone is not enough, since a caller
    may send a new message with the id of one that has passed. `digests` caches the digests of this reply's messages, so
    that each message is read once.
    """

    def __init__(self, data: dict[str, Any], digests: dict[int, tuple[Msg, str]]) -> None:
        saved = data.get("verdicts")
        self._verdicts: _Verdicts = saved if isinstance(saved, dict) else {}
        data["verdicts"] = self._verdicts
        self._digests = digests

    def new_messages(self, messages: list[Msg]) -> list[Msg]:
        """Return the messages of users that have not been judged, the oldest first."""
        inputs = [*self._inputs(messages)]
        if len(self._verdicts) > len(inputs) + _MAX_OUTSIDE:
            present = {digest for _, digest in inputs}
            present |= {_digest_of_input(message.get_content_blocks()) for message, _ in inputs}
            for digest in [digest for digest in self._verdicts if digest not in present][:-_MAX_OUTSIDE]:
                del self._verdicts[digest]
        return [
            message
            for message, digest in inputs
            if digest not in self._verdicts and _digest_of_input(message.get_content_blocks()) not in self._verdicts
        ]

    def accept(self, message: Msg) -> None:
        """Remember that the message has been judged, and may pass."""
        self._verdicts[self._digest(message)] = True

    def accept_content(self, content: Sequence[TextBlock | DataBlock]) -> None:
        """Remember that a message with this content has been judged before it was kept."""
        self._verdicts[_digest_of_input(content)] = True

    def replace(self, message: Msg, text: str) -> None:
        """Let requests have this text in the place of the message's own."""
        self._verdicts[self._digest(message)] = text

    def withhold(self, message: Msg) -> None:
        """Let no request have the message any more."""
        self._verdicts[self._digest(message)] = False

    def apply(self, messages: list[Msg]) -> list[Msg]:
        """Return the messages as requests may have them."""
        if all(verdict is True for verdict in self._verdicts.values()):
            return messages
        changed: dict[int, Msg] = {}
        for message, digest in self._inputs(messages):
            verdict = self._verdicts.get(digest, True)
            if verdict is False:
                changed[id(message)] = replace(message, content=_WITHHELD)
            elif isinstance(verdict, str):
                others = [block for block in message.get_content_blocks() if not isinstance(block, TextBlock)]
                changed[id(message)] = replace(message, content=[TextBlock(verdict), *others])
        return [changed.get(id(message), message) for message in messages]

    def rewrite(self, context: list[Msg]) -> list[Msg]:
        """Return the conversation as requests may have it, with its new messages marked as judged."""
        rewritten = self.apply(context)
        new = [message for message, old in zip(rewritten, context, strict=True) if message is not old]
        for message in new:
            self.accept(message)
        return rewritten if new else context

    def _inputs(self, messages: list[Msg]) -> Iterator[tuple[Msg, str]]:
        known = self._digests
        for message in messages:
            if message.role == "user" and (id(message) in known or message.get_text_content()):
                yield message, self._digest(message)

    def _digest(self, message: Msg) -> str:
        known = self._digests.get(id(message))
        if known is not None:
            return known[1]
        # Holds the message too, so that no other object gets its `id()`.
        self._digests[id(message)] = message, _digest_of_input(message.get_content_blocks(), message.id)
        return self._digests[id(message)][1]


def _digest_of_input(blocks: Sequence[ContentBlock], message_id: str = "") -> str:
    digest = sha256(message_id.encode("utf-8", "backslashreplace"))
    for block in blocks:
        part: tuple[str, ...]
        if isinstance(block, TextBlock):
            part = block.type, block.text
        elif isinstance(block, DataBlock):
            source = block.source
            content = source.url if isinstance(source, URLSource) else source.data
            part = block.type, source.type, source.media_type or "", content
        else:  # a hint of the runtime, say
            continue
        for text in part:
            value = text.encode("utf-8", "backslashreplace")
            digest.update(b"%d:" % len(value))
            digest.update(value)
    return digest.hexdigest()[:32]
