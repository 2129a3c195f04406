"""Cassettes: the answers of models, recorded into a file once and replayed from it in every later run."""

import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import anyio
import pydantic

from agentrt import errors
from agentrt._runtime.text import repr_of
from agentrt.errors import AgentRTError, ConfigError, ModelError, Transient, UsageError
from agentrt.message import Msg, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model import ChatModelBase, ChatResponse, ModelResult
from agentrt.model.request_key import describe_request, key_of_description
from agentrt.runs.redaction import Redactor, redactors_of
from agentrt.types import JSONObject, JSONSchema, ToolChoice

CassetteMode = Literal["once", "none", "new", "rewrite"]


_CASSETTE_MODES = ("once", "none", "new", "rewrite")
_CASSETTE_FORMAT: Literal[1] = 1
_scope: ContextVar[str] = ContextVar("cassette_scope", default="")
_UNFINISHED_WAIT = 1.0  # seconds in which the reader of an unfinished answer has to leave again
_TEXT_FIELD_OF: dict[type, str] = {TextBlock: "text", ThinkingBlock: "thinking", ToolCallBlock: "input"}


class CassetteError(AgentRTError, AssertionError):
    """A cassette is unreadable, or has unused answers."""


class CassetteMiss(CassetteError):
    """A request to a model is not in the cassette; the message names the difference."""


@dataclass(slots=True)
class _Call:
    """One recorded call: the request and the answer; `error` is the type of the exception at its end, if any.

    A call is unfinished until it ends by itself, and stays so if it was cancelled or its reader left.
    """

    key: str
    request: JSONObject
    streams: bool = False
    pieces: list[ChatResponse] = field(default_factory=list)
    error: str | None = None
    retry_after: float | None = None
    is_unfinished: bool = False
    scope: str = ""

    def __post_init__(self) -> None:
        # The file may be damaged.
        if not isinstance(self.request.get("messages"), list):
            raise ValueError("not a request")
        if not (self.pieces or self.error or self.is_unfinished):
            raise ValueError("no answer")

    async def record(self, stream: AsyncGenerator[ChatResponse, None]) -> AsyncGenerator[ChatResponse, None]:
        """Pass on the pieces of a stream, and record them."""
        try:
            async for piece in stream:
                self.pieces.append(piece)
                # Recorded at once, since a reader may leave after the last piece without asking for more.
                self.is_unfinished = not piece.is_last
                yield piece
            self.is_unfinished = False
        except ModelError as error:
            self.note_error(error)
            raise
        finally:
            await stream.aclose()

    def note_error(self, error: ModelError) -> None:
        """Record how the call failed."""
        # Only the type: the text is the provider's, and may hold a secret.
        self.error, self.retry_after, self.is_unfinished = type(error).__name__, error.retry_after, False

    async def replay(self) -> ModelResult:
        """Return the recorded answer, or raise the recorded error."""
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
            # The reader that left this answer in the recording, such as a guard or a time limit, has to leave it again,
            # since its pieces are only a part of the answer.
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
    """The replayed and the recorded answers."""

    def __init__(self, path: Path, mode: CassetteMode, redact: Sequence[Callable[[str], str]]) -> None:
        self.path = path
        self._redact = redact
        is_there = path.exists()
        if mode == "none" and not is_there:
            raise CassetteError(f"the cassette {str(path)!r} does not exist: record it with mode='once'")
        self._kept = self._read() if is_there and mode != "rewrite" else []
        self._records = mode in ("new", "rewrite") or not is_there
        self._must_use_all = not self._records
        self._left: dict[tuple[str, str], list[_Call]] = {}
        for call in self._kept:
            self._left.setdefault((call.scope, call.key), []).append(call)
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
            problem = f"is damaged ({type(error).__name__}): record it again with mode='rewrite'"
        # Raised here, since the error above may quote the file.
        raise CassetteError(f"the cassette {str(self.path)!r} {problem}")

    async def answer(
        self,
        model: ChatModelBase,
        ask: Callable[..., Any],
        messages: list[Msg],
        tools: list[JSONSchema] | None,
        tool_choice: ToolChoice | None,
    ) -> ModelResult:
        """Return the recorded answer to the request; where the mode allows it, ask the model and record its answer."""
        description = self._redacted(describe_request(messages, tools, tool_choice, model))
        del description["account"]  # a key of another developer, or none where it is only replayed
        key = key_of_description(description)
        scope = _scope.get()
        recorded = self._left.get((scope, key))
        if recorded:
            return await recorded.pop(0).replay()
        if not self._records:
            raise CassetteMiss(
                f"the cassette {str(self.path)!r} has no {'further ' if recorded is not None else ''}answer to this "
                f"request{self._describe_nearest(description)}; record again with mode='rewrite', or add to it with "
                f"mode='new'"
            )
        call = _Call(key, description, is_unfinished=True, scope=scope)
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

    def close(self, *, is_interrupted: bool = False) -> None:
        """Write new answers; raises `CassetteError` for unused recorded ones.

        Of an interrupted block only those that have ended are written, and it may leave answers unused.
        """
        if is_interrupted:
            self._new, self._must_use_all = [call for call in self._new if not call.is_unfinished], False
        # The reader of an unfinished answer may leave even before it asks.
        left = [call for calls in self._left.values() for call in calls if not call.is_unfinished]
        # An unused answer would stay in the file for ever, and hide that the agent has changed.
        if self._must_use_all and left:
            raise CassetteError(
                f"{len(left)} of the {len(self._kept)} answers of the cassette {str(self.path)!r} were not asked for; "
                f"the first is the one to {repr_of(left[0].request['messages'][-1:])}: record again with mode='rewrite'"
            )
        calls = [*self._kept, *self._new]
        if self._records:
            for call in self._new:
                call.pieces = self._without_cut_secrets(call.pieces)
            content = _file_adapter().dump_python(_File(_CASSETTE_FORMAT, calls), mode="json")
            text = json.dumps(self._redacted(content), indent=1)
            # Through another file, so that a run that is killed here leaves the old cassette intact.
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
        """Return the pieces, with each text whose redaction shows only in the whole merged into one piece."""
        texts: dict[object, list[tuple[int, int, str]]] = {}  # for each part of the answer: piece, position in it, text
        part: object = None
        for number, piece in enumerate(pieces):
            for place, delta in enumerate(() if piece.is_last else piece.content):
                name = _TEXT_FIELD_OF.get(type(delta))
                if isinstance(delta, ToolCallBlock):
                    part = delta.id  # pieces of different calls may alternate
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
        """Say how the request differs from the most similar recorded one."""
        request = json.loads(json.dumps(request, default=repr))  # as it would be read from the file

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
    """Answer every model call in this block from a file, and record missing answers.

    `mode` says when models are really called: "once" if the file does not exist, "none" never, "new" for requests that
    the file does not have, "rewrite" always. Answers are found by the request (`agentrt.model.request_key`), in their
    order for repeated requests, and are streamed in the recorded pieces. An unknown request raises `CassetteMiss`, and
    unused answers raise `CassetteError` at the end. Nothing is written if the block raises.

    `redact` are strings, patterns, functions of text and detectors of `RedactionMiddleware`: the text that they cover
    is in no file, and in no comparison. A cassette covers all models of the process, so only one can be open at a time.
    """
    if mode not in _CASSETTE_MODES:
        nearest = get_close_matches(str(mode), _CASSETTE_MODES, 1)
        hint = f": did you mean {nearest[0]!r}?" if nearest else ""
        raise ConfigError(
            f"cassette(mode=...) must be one of {', '.join(map(repr, _CASSETTE_MODES))}, not {mode!r:.100}{hint}"
        )
    file = _checked_path(path)
    # A plain `str` would pass for a list of its letters, and a single value needs no list.
    ask = ChatModelBase.__call__
    # Recognised by a mark on the method, since a separate variable could disagree with it.
    if getattr(ask, "is_of_a_cassette", False):
        raise UsageError("another cassette is open, and it covers all models: close it first")
    tape = Cassette(file, mode, redactors_of("cassette(redact=...)", redact))

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


@contextmanager
def cassette_scope(name: str) -> Iterator[None]:
    """Give the model calls of this block answers of their own in a cassette.

    Without scopes, equal requests of concurrent conversations get their answers in the order in which they ask. The
    scope reaches into tasks that start in the block.
    """
    token = _scope.set(name)
    try:
        yield
    finally:
        _scope.reset(token)


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
    return None  # the same request, but all of its answers are used
