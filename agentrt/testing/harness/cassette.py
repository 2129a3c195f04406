"""Cassettes: the answers of models, recorded into a file once and replayed from it in every later run."""

import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio
import pydantic

from agentrt import errors
from agentrt.errors import AgentRTError, ConfigError, ModelError, Transient, UsageError
from agentrt.message import Msg, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model import ChatModelBase, ChatResponse, ModelResult
from agentrt.model.request_key import describe_request, key_of_description
from agentrt.text import repr_of
from agentrt.types import JSONObject, JSONSchema, ToolChoice

__all__ = ["Cassette", "CassetteError", "CassetteMiss", "cassette"]

CassetteMode = Literal["once", "none", "new", "rewrite"]


class DetectorLike(Protocol):
    """What is known here of a `Detector` of the redaction, whose module is loaded only for those who give one."""

    name: str

    @property
    def parts(self) -> Sequence[object]:
        """The forms of what it finds."""


Redactor = str | re.Pattern[str] | Callable[[str], str] | DetectorLike

_CASSETTE_MODES = ("once", "none", "new", "rewrite")
_CASSETTE_FORMAT: Literal[1] = 1
_REDACTED = "[REDACTED]"
_UNFINISHED_WAIT = 1.0  # seconds that an answer which nobody read to its end gives its reader to leave again
_TEXT_FIELD_OF: dict[type, str] = {TextBlock: "text", ThinkingBlock: "thinking", ToolCallBlock: "input"}


class CassetteError(AgentRTError, AssertionError):
    """A cassette cannot be read, or has answers that nothing asked for."""


class CassetteMiss(CassetteError):
    """A model was asked for something that the cassette does not have; the message says what differs."""


@dataclass(slots=True)
class _Call:
    """One recorded call: what was asked, and how it was answered; `error` is the type of what was raised at the end.

    A call is unfinished until it has ended by itself, and stays so if it was cancelled or its reader left.
    """

    key: str
    request: JSONObject
    streams: bool = False
    pieces: list[ChatResponse] = field(default_factory=list)
    error: str | None = None
    retry_after: float | None = None
    is_unfinished: bool = False

    def __post_init__(self) -> None:
        # What was read from a file may be damaged.
        if not isinstance(self.request.get("messages"), list):
            raise ValueError("not a request")
        if not (self.pieces or self.error or self.is_unfinished):
            raise ValueError("no answer")

    async def record(self, stream: AsyncGenerator[ChatResponse, None]) -> AsyncGenerator[ChatResponse, None]:
        """Pass the pieces of a stream on, and remember them."""
        try:
            async for piece in stream:
                self.pieces.append(piece)
                # At once, since a reader may leave after the last piece without asking for more.
                self.is_unfinished = not piece.is_last
                yield piece
            self.is_unfinished = False
        except ModelError as error:
            self.note_error(error)
            raise
        finally:
            await stream.aclose()

    def note_error(self, error: ModelError) -> None:
        """Remember how the call failed."""
        # By its type alone: the text is the provider's, and may hold a secret.
        self.error, self.retry_after, self.is_unfinished = type(error).__name__, error.retry_after, False

    async def replay(self) -> ModelResult:
        """Return the answer as it came, or raise the error."""
        if self.streams:
            return self._replay_pieces()
        if not self.pieces:
            await self._end()
        return self.pieces[0]

    async def _replay_pieces(self) -> AsyncGenerator[ChatResponse, None]:
        for piece in self.pieces:
            yield piece
        await self._end()

    async def _end(self) -> None:
        """Fail as the call did, if it did."""
        if self.is_unfinished:
            # What left this answer when it was recorded, such as a guard or a time limit, is to leave it again, since
            # its pieces are only a part of the answer.
            await anyio.sleep(_UNFINISHED_WAIT)
            raise Transient("recorded by a cassette: nobody has read this answer to its end")
        if self.error is not None:
            kind = getattr(errors, self.error, None)
            is_known = isinstance(kind, type) and issubclass(kind, ModelError)
            error: ModelError = kind("recorded by a cassette") if is_known else ModelError("recorded by a cassette")  # type: ignore[misc]  # a class
            error.retry_after = self.retry_after
            raise error


@dataclass(slots=True)
class _File:
    format: Literal[1]
    calls: list[_Call]


class Cassette:
    """The answers that are being replayed and recorded."""

    def __init__(self, path: Path, mode: CassetteMode, redact: Sequence[Callable[[str], str]]) -> None:
        self.path = path
        self._redact = redact
        is_there = path.exists()
        if mode == "none" and not is_there:
            raise CassetteError(f"the cassette {str(path)!r} does not exist: record it with mode='once'")
        self._kept = self._read() if is_there and mode != "rewrite" else []
        self._records = mode in ("new", "rewrite") or not is_there
        self._must_use_all = not self._records
        self._left: dict[str, list[_Call]] = {}
        for call in self._kept:
            self._left.setdefault(call.key, []).append(call)
        self._new: list[_Call] = []

    def _read(self) -> list[_Call]:
        try:
            content = json.loads(self.path.read_bytes())
            version = content["format"]
            if isinstance(version, int) and version > _CASSETTE_FORMAT:
                problem = f"has the format {version} of a newer version of agentrt: update it"
            else:
                return _file_adapter().validate_python(content).calls
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            problem = f"is damaged ({type(error).__name__}): record anew with mode='rewrite'"
        # Raised here, since the error above may quote what is in the file.
        raise CassetteError(f"the cassette {str(self.path)!r} {problem}")

    async def answer(
        self,
        model: ChatModelBase,
        ask: Callable[..., Any],
        messages: list[Msg],
        tools: list[JSONSchema] | None,
        tool_choice: ToolChoice | None,
    ) -> ModelResult:
        """Return what is recorded for the request; ask the model and record it where that is allowed."""
        description = self._redacted(describe_request(messages, tools, tool_choice, model))
        key = key_of_description(description)
        recorded = self._left.get(key)
        if recorded:
            return await recorded.pop(0).replay()
        if not self._records:
            raise CassetteMiss(
                f"the cassette {str(self.path)!r} has no {'further ' if recorded is not None else ''}answer to this "
                f"request{self._describe_nearest(description)}; record anew with mode='rewrite', or add to it with "
                f"mode='new'"
            )
        call = _Call(key, description, is_unfinished=True)
        self._new.append(call)
        try:
            result: ModelResult = await ask(model, messages, tools, tool_choice)
        except ModelError as error:
            call.note_error(error)
            raise
        if isinstance(result, ChatResponse):
            call.pieces.append(result)
            call.is_unfinished = False
            return result
        call.streams = True
        return call.record(result)

    def close(self) -> None:
        """Write what is new; raises `CassetteError` for recorded answers that nothing asked for."""
        # One that was left unfinished may be left before it is asked.
        left = [call for calls in self._left.values() for call in calls if not call.is_unfinished]
        # An answer that is not used any more would stay in the file for ever, and hide that the agent has changed.
        if self._must_use_all and left:
            raise CassetteError(
                f"{len(left)} of the {len(self._kept)} answers of the cassette {str(self.path)!r} were not asked for; "
                f"the first is the one to {repr_of(left[0].request['messages'][-1:])}: record anew with mode='rewrite'"
            )
        calls = [*self._kept, *self._new]
        if self._records:
            for call in self._new:
                call.pieces = self._without_cut_secrets(call.pieces)
            content = _file_adapter().dump_python(_File(_CASSETTE_FORMAT, calls), mode="json")
            text = json.dumps(self._redacted(content), indent=1)
            # By way of another file, so that a run that is killed here leaves the old cassette whole.
            temporary = self.path.with_name(f"{self.path.name}.new")
            temporary.write_text(text + "\n", encoding="utf-8")
            temporary.replace(self.path)

    def _redacted(self, value: Any) -> Any:
        """Return the value with every text in it redacted; keys of dicts stay."""
        if not self._redact:
            return value
        if isinstance(value, str):
            for redact in self._redact:
                value = redact(value)
            return value
        if isinstance(value, dict):
            return {key: self._redacted(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._redacted(part) for part in value]
        return value

    def _without_cut_secrets(self, pieces: list[ChatResponse]) -> list[ChatResponse]:
        """Return the pieces; a text of which only the whole shows what is to be redacted is in one of them."""
        texts: dict[object, list[tuple[int, int, str]]] = {}  # of each part of the answer: piece, place in it, text
        part: object = None
        for number, piece in enumerate(pieces):
            for place, delta in enumerate(() if piece.is_last else piece.content):
                name = _TEXT_FIELD_OF.get(type(delta))
                if isinstance(delta, ToolCallBlock):
                    part = delta.id  # the pieces of calls may alternate
                elif not (isinstance(part, tuple) and part[0] is type(delta)):
                    part = type(delta), number, place
                if name is not None:
                    texts.setdefault(part, []).append((number, place, getattr(delta, name)))
        joined = [replace(piece, content=list(piece.content)) for piece in pieces]
        for deltas in texts.values():
            whole = "".join(text for _, _, text in deltas)
            if self._redacted(whole) == "".join(self._redacted(text) for _, _, text in deltas):
                continue
            for number, place, _ in deltas:
                content = joined[number].content
                block: Any = content[place]
                content[place] = replace(block, **{_TEXT_FIELD_OF[type(block)]: whole})
                whole = ""
        return joined

    def _describe_nearest(self, request: JSONObject) -> str:
        """Say in what the request differs from the recorded one that is most like it."""
        request = json.loads(json.dumps(request, default=repr))  # as it would have come from the file

        def likeness(call: _Call) -> tuple[int, int]:
            parts = sum(call.request.get(name) == value for name, value in request.items())
            pairs = zip(call.request.get("messages", ()), request["messages"], strict=False)
            return parts, sum(message == recorded for recorded, message in pairs)

        nearest = max(self._kept, key=likeness, default=None)
        difference = None if nearest is None else _difference(nearest.request, request)
        return "" if difference is None else f": the nearest one differs in {difference}"


@contextmanager
def cassette(
    path: str | PathLike[str], *, mode: CassetteMode = "once", redact: Redactor | Sequence[Redactor] = ()
) -> Iterator[Cassette]:
    """Answer every call of a model in this block from a file, and record the answers that it does not have yet.

    `mode` says when models are really asked: "once" if the file does not exist, "none" never, "new" for what the file
    does not have, "rewrite" always. Answers are found by what is asked (`agentrt.model.request_key`), in their order
    where the same is asked again, and come in the pieces in which they came. An unknown request raises `CassetteMiss`,
    and answers that nothing asked for raise `CassetteError` at the end. Nothing is written if the block raises.

    `redact` are strings, patterns, functions of text and detectors of `RedactionMiddleware`: what they cover is in no
    file, and counts in no comparison. All models of the process are covered, so one cassette at a time can be open.
    """
    if mode not in _CASSETTE_MODES:
        nearest = get_close_matches(str(mode), _CASSETTE_MODES, 1)
        hint = f": did you mean {nearest[0]!r}?" if nearest else ""
        raise ConfigError(
            f"cassette(mode=...) must be one of {', '.join(map(repr, _CASSETTE_MODES))}, not {mode!r:.100}{hint}"
        )
    file = _checked_path(path)
    # The letters of a plain `str` would pass for texts, and one value needs no list.
    values = redact if isinstance(redact, (list, tuple, set, frozenset)) else [redact]
    ask = ChatModelBase.__call__
    # Found by a mark on the method, since a variable beside it could say something else than what models do.
    if getattr(ask, "is_of_a_cassette", False):
        raise UsageError("another cassette is open, and it covers all models: close it first")
    tape = Cassette(file, mode, [_redactor(value) for value in values])

    def call(
        self: ChatModelBase,
        messages: list[Msg],
        tools: list[JSONSchema] | None = None,
        tool_choice: ToolChoice | str | None = None,
    ) -> Any:
        choice = ToolChoice(tool_choice) if isinstance(tool_choice, str) else tool_choice
        return tape.answer(self, ask, messages, tools, choice)

    call.is_of_a_cassette = True  # type: ignore[attr-defined]  # by which a second one finds the first
    ChatModelBase.__call__ = call  # type: ignore[method-assign]  # the one way to reach models that are called by hand
    try:
        yield tape
    finally:
        ChatModelBase.__call__ = ask  # type: ignore[method-assign]
    tape.close()


def _checked_path(path: object) -> Path:
    if not isinstance(path, (str, PathLike)) or not str(path):
        raise ConfigError(f"cassette(path=...) must be the path of a file, not {path!r:.200}")
    file = Path(path)
    if file.is_dir() or not file.parent.is_dir():
        problem = "a folder" if file.is_dir() else "in a folder that does not exist"
        raise ConfigError(
            f"cassette(path=...) is {str(file)!r:.200}, {problem}: give the path of a file, as in 'a.json'"
        )
    return file


def _redactor(value: object) -> Callable[[str], str]:
    if isinstance(value, str) and value:
        return lambda text: text.replace(value, _REDACTED)
    if isinstance(value, re.Pattern):
        return lambda text: value.sub(_REDACTED, text)
    if callable(value) and not isinstance(value, type):
        return value
    # Here, since the middlewares load what a test without detectors does not need.
    from agentrt.middleware import Detector, RedactionMiddleware

    if isinstance(value, Detector):
        return RedactionMiddleware([value], action="redact").text
    # Not shown, since it may be the secret itself.
    raise ConfigError(
        f"cassette(redact=...) takes texts, patterns, detectors and functions of text, not a {type(value).__name__}: "
        f"write redact=[api_key], redact=[re.compile('sk-.*')], redact=[API_KEY] or redact=[function]"
    )


@cache
def _file_adapter() -> "pydantic.TypeAdapter[_File]":
    return pydantic.TypeAdapter(_File)


def _difference(recorded: JSONObject, request: JSONObject) -> str | None:
    for name in ("model", "settings", "tools", "tool_choice"):
        if recorded.get(name) != request[name]:
            return f"{name}: {repr_of(request[name])} was asked, {repr_of(recorded.get(name))} is recorded"
    messages, recorded_messages = request["messages"], recorded.get("messages", [])
    for place, (message, recorded_message) in enumerate(zip(messages, recorded_messages, strict=False)):
        if message != recorded_message:
            return f"messages[{place}]: {repr_of(message)} was asked, {repr_of(recorded_message)} is recorded"
    if len(messages) != len(recorded_messages):
        return f"the number of messages: {len(messages)} were asked, {len(recorded_messages)} are recorded"
    return None  # the same request, and all of its answers have been used
