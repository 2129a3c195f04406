"""Judging what a model answers, whole or piece by piece."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any

from agentrt.message import ContentBlock, TextBlock, ToolCallBlock
from agentrt.model import ChatResponse
from agentrt_middleware.agent_hooks.wire import (
    ProjectionError,
    calls_of,
    response_from_wire,
    text_of,
    thinking_of,
    usage_to_wire,
)
from agentrt_middleware.attempts import StreamedAnswer

UNSUPPORTED = "host_error:adapter_unsupported"
"""The standard's word for a change that has no form in this runtime."""

_UNCOVERED = "host_error:streaming_unsupported"


def answer_context(session: Any, model: str, response: ChatResponse, thinking: str | None = None) -> dict[str, Any]:
    """Return the context of post_model_call; what the model thinks is there to be read, not to be changed."""
    calls = calls_of(response.content)
    context: dict[str, Any] = session.build.post_model_call(
        model_id=model,
        content=text_of(response.content),
        tool_calls=calls,
        finish_reason=response.finished_reason or ("tool_calls" if calls else "stop"),
        usage=usage_to_wire(response.usage),
    )
    thinking = thinking_of(response.content) if thinking is None else thinking
    if thinking:
        context["target"]["thinking"] = thinking
    return context


def answer_from_wire(response: ChatResponse, after: Any, before: dict[str, Any]) -> ChatResponse:
    """Return the answer that interceptors have changed."""
    if not isinstance(after, dict) or after.get("thinking") != before.get("thinking"):
        raise ProjectionError("an answer was changed in what has no form here, such as what the model thinks")
    return response_from_wire(response, after.get("content"), after.get("tool_calls"))


@contextmanager
def projecting(session: Any, context: dict[str, Any]) -> Iterator[None]:
    """Deny a change that has no form in this runtime, where it is brought into that form."""
    try:
        yield
    except ProjectionError as error:
        raise session.refuse(context, UNSUPPORTED, str(error)) from error


class JudgedStream:
    """A streamed answer, of which each piece leaves once a verdict covers it.

    The last piece before the end is covered by the verdict on the whole, so that an answer in one piece is judged once.
    A call is not judged before it is whole, and keeps back what comes after its beginning.
    """

    def __init__(self, session: Any, model: str, *, is_buffered: bool) -> None:
        self._session = session
        self._model = model
        self._can_release = not is_buffered
        self._held: list[ChatResponse] = []
        self._text = ""  # as the interceptors have left it, with what is held
        self._released = ""
        self._thinking = ""
        self._is_changed = False
        self._answer = StreamedAnswer(with_content=True)

    async def pieces(self, stream: AsyncGenerator[ChatResponse, None]) -> AsyncGenerator[ChatResponse, None]:
        last: ChatResponse | None = None
        async with aclosing(stream):
            while last is None:
                try:
                    piece = await anext(stream, None)
                except Exception as error:
                    if self._held:  # no verdict covers all of it
                        self._session.refuse(self._context(None), _UNCOVERED, type(error).__name__)
                        for held in [] if self._session.is_enforced else self._held:
                            yield held
                    raise
                if piece is None:
                    break
                if piece.is_last:
                    last = piece
                elif self._held and self._can_release:
                    for released in await self._judge_held():
                        yield released
                self._add(piece)
            for released in await self._judge_whole(last):
                yield released
            if last is not None:
                async for _ in stream:  # layers further in may have work at its end
                    pass

    def _add(self, piece: ChatResponse) -> None:
        self._answer.add(piece)
        if piece.is_last:
            return
        self._held.append(piece)
        self._text += text_of(piece.content) or ""
        self._thinking += thinking_of(piece.content)
        if not all(block.type in ("text", "thinking") for block in piece.content):
            self._can_release = False

    def _context(self, whole: ChatResponse | None) -> dict[str, Any]:
        if whole is not None:
            return answer_context(self._session, self._model, whole)
        content: list[ContentBlock] = [TextBlock(self._text)] if self._text else []
        return answer_context(
            self._session,
            self._model,
            ChatResponse(content, is_last=False, finished_reason="incremental"),
            thinking=self._thinking,
        )

    async def _judge_held(self) -> list[ChatResponse]:
        context = self._context(None)
        before = dict(context["target"])
        after = await self._session.emit(context)
        pieces = self._held
        if after != before:
            with projecting(self._session, context):
                answer_from_wire(ChatResponse([TextBlock(self._text)]), after, before)  # refuses what has no form here
            pieces = self._changed_pieces(context, after["content"] or "")
        self._released, self._held = self._text, []
        return pieces

    async def _judge_whole(self, last: ChatResponse | None) -> list[ChatResponse]:
        whole = self._answer.response()
        if whole is None:
            return []
        if self._is_changed:
            with projecting(self._session, self._context(None)):
                whole = response_from_wire(whole, self._text or None, calls_of(whole.content))
        context = self._context(whole)
        before = dict(context["target"])
        after = await self._session.emit(context)
        if after == before and not self._is_changed:
            return self._held if last is None else [*self._held, last]
        with projecting(self._session, context):
            whole = answer_from_wire(whole, after, before)
        # The whole comes once more as the last response, so only the text must go before it.
        return [*self._changed_pieces(context, text_of(whole.content) or ""), replace(whole, is_last=True)]

    def _changed_pieces(self, context: dict[str, Any], text: str) -> list[ChatResponse]:
        """Return the pieces that bring what has left up to this text; what has left cannot be changed any more."""
        if not text.startswith(self._released):
            raise self._session.refuse(context, _UNCOVERED, "a part of the answer that has left was changed")
        self._text, self._is_changed = text, True
        rest = text[len(self._released) :]
        pieces = []
        for piece in self._held:
            others: list[ContentBlock] = [
                block for block in piece.content if not isinstance(block, (TextBlock, ToolCallBlock))
            ]
            if others:
                pieces.append(ChatResponse(others, is_last=False))
        return [*pieces, ChatResponse([TextBlock(rest)], is_last=False)] if rest else pieces
