"""Cassettes: the answers of models, recorded into a file once and replayed from it in every later run."""

import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol

import pydantic

from agentrt import errors
from agentrt.errors import AgentRTError, ConfigError, ModelError, UsageError
from agentrt.message import Msg
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
_CASSETTE_FORMAT = 1
_REDACTED = "[REDACTED]"


class CassetteError(AgentRTError, AssertionError):
    """A cassette cannot be read, or has answers that nothing asked for."""


class CassetteMiss(CassetteError):
    """A model was asked for something that the cassette does not have; the message says what differs."""


@dataclass(slots=True)
class _Call:
    """One recorded call: what was asked, and how it was answered; `error` is the type of what was raised at the end."""

    key: str
    request: JSONObject
    streams: bool = False
    pieces: list[ChatResponse] = field(default_factory=list)
    error: str | None = None
    retry_after: float | None = None

    async def record(self, stream: AsyncGenerator[ChatResponse, None]) -> AsyncGenerator[ChatResponse, None]:
        """Pass the pieces of a stream on, and remember them."""
        try:
            async for piece in stream:
                self.pieces.append(piece)
                yield piece
        except ModelError as error:
            self.note_error(error)
            raise
        finally:
            await stream.aclose()

    def note_error(self, error: ModelError) -> None:
        """Remember how the call failed."""
        # By its type alone: the text is the provider's, and may hold a secret.
        self.error, self.retry_after = type(error).__name__, error.retry_after

    def replay(self) -> ModelResult:
        """Return the answer as it came, or raise the error."""
        if not self.streams:
            self._raise_error()
            return self.pieces[0]
        return self._replay_pieces()

    async def _replay_pieces(self) -> AsyncGenerator[ChatResponse, None]:
        for piece in self.pieces:
            yield piece
        self._raise_error()

    def _raise_error(self) -> None:
        if self.error is not None:
            kind = getattr(errors, self.error, None)
            is_known = isinstance(kind, type) and issubclass(kind, ModelError)
            error: ModelError = kind("recorded by a cassette") if is_known else ModelError("recorded by a cassette")  # type: ignore[misc]  # a class
            error.retry_after = self.retry_after
            raise error


@dataclass(slots=True)
class _File:
    format: int
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
            return recorded.pop(0).replay()
        if not self._records:
            raise CassetteMiss(
                f"the cassette {str(self.path)!r} has no {'further ' if recorded is not None else ''}answer to this "
                f"request{self._describe_nearest(description)}; record anew with mode='rewrite', or add to it with "
                f"mode='new'"
            )
        call = _Call(key, description)
        self._new.append(call)
        try:
            result: ModelResult = await ask(model, messages, tools, tool_choice)
        except ModelError as error:
            call.note_error(error)
            raise
        if isinstance(result, ChatResponse):
            call.pieces.append(result)
            return result
        call.streams = True
        return call.record(result)

    def close(self) -> None:
        """Write what is new; raises `CassetteError` for recorded answers that nothing asked for."""
        left = [call for calls in self._left.values() for call in calls]
        # An answer that is not used any more would stay in the file for ever, and hide that the agent has changed.
        if self._must_use_all and left:
            raise CassetteError(
                f"{len(left)} of the {len(self._kept)} answers of the cassette {str(self.path)!r} were not asked for; "
                f"the first is the one to {repr_of(left[0].request['messages'][-1:])}: record anew with mode='rewrite'"
            )
        # A call that was cancelled before any answer came would be replayed as an empty one.
        calls = [*self._kept, *(call for call in self._new if call.pieces or call.error)]
        if self._records:
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
    path: str | PathLike[str], *, mode: CassetteMode = "once", redact: Sequence[Redactor] = ()
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
        raise ConfigError(
            f"cassette(mode=...) must be one of {', '.join(map(repr, _CASSETTE_MODES))}, not {mode!r:.100}"
        )
    ask = ChatModelBase.__call__
    # Found by a mark on the method, since a variable beside it could say something else than what models do.
    if getattr(ask, "is_of_a_cassette", False):
        raise UsageError("another cassette is open, and it covers all models: close it first")
    tape = Cassette(Path(path), mode, [_redactor(value) for value in redact])

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


def _redactor(value: object) -> Callable[[str], str]:
    if isinstance(value, str) and value:
        return lambda text: text.replace(value, _REDACTED)
    if isinstance(value, re.Pattern):
        return lambda text: value.sub(_REDACTED, text)
    if callable(value):
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
