"""What all models behind an HTTP API share: the key, the client of each event loop, the time limits, the errors."""

import importlib
import json
import os
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import ModuleType
from typing import Any, ClassVar, NoReturn, Protocol, Self, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import current_token
from pydantic import SecretStr

from agentrt.block import ContentBlock
from agentrt.errors import ConfigError, Malformed, ModelError, Rejected, Timeout, Transient, UsageError
from agentrt.message import Msg
from agentrt.model.base import ChatModelBase, ModelResult
from agentrt.model.estimate import characters_of
from agentrt.model.remote.connection import CLOSE, SharedClient, Unsuccessful, raise_for_status
from agentrt.model.remote.log_filter import keep_headers_out_of_logs
from agentrt.model.remote.provider_errors import Provider
from agentrt.model.remote.sse import EventReader, ServerSentEvent, parse_object
from agentrt.types import ChatResponse, JSONSchema, ToolChoice

__all__ = ["MAX_BYTES", "AnswerReader", "RemoteChatModel", "Timeouts", "check_option"]

_T = TypeVar("_T")

MAX_BYTES = 64 * 2**20
"""The most bytes of one answer: the longest ones are well below that, at some 300 bytes for each streamed token."""

_DRAIN = 0.1  # seconds for the end of an HTTP response, without which its connection cannot be used again
_BLANK = b"\xef\xbb\xbf \t\r\n"
_NOT_SENT = {"InvalidURL", "LocalProtocolError", "UnsupportedProtocol"}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The longest that a model may take, in seconds; `math.inf` for no limit.

    `connect` is for reaching the server. `idle` is for the wait for each next piece of a streamed answer, the first
    included; what carries no content, such as a ping, does not count. `total` is for one whole call, without the time
    in which its reader does something else: a slow reader does not use it up, and a server that never stops sending
    does.
    """

    connect: float = 10
    idle: float = 60
    total: float = 600

    def __post_init__(self) -> None:
        for name in ("connect", "idle", "total"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(f"Timeouts({name}=...) is a number of seconds above 0, not {value!r}")


class AnswerReader(Protocol):
    """Makes one answer out of what one provider sends; made anew for each call.

    Raises `Malformed` for what does not fit. Whatever it raises, the model names itself in the message and keeps its
    key out of it.
    """

    @property
    def is_complete(self) -> bool:
        """Whether the answer's end has been seen; a stream that ends or fails after that is not cut short."""

    @property
    def has_ended(self) -> bool:
        """Whether the last event had no pieces and none can follow; "[DONE]" needs no reader to be understood."""

    @property
    def has_progressed(self) -> bool:
        """Whether the last event brought anything of the answer, even if no piece of it is ready yet."""

    def feed(self, event: dict[str, Any]) -> list[ContentBlock]:
        """Take one event of a stream, and return the new pieces."""

    def read(self, body: dict[str, Any]) -> None:
        """Take the whole answer at once, when it was not streamed."""

    def answer(self) -> ChatResponse:
        """Return the whole answer; raises `Refused` when the model declined."""


class RemoteChatModel(ChatModelBase):
    """A model behind an HTTP API, reached through its provider's SDK.

    A subclass says what to send (`_body`), where (`_path`) and how to read the answer (`_reader`). One model may be
    used by any number of conversations at once, and in one event loop after the other: it keeps one client per event
    loop, which `aclose` closes; a model that is used again opens a new one, and a copy has clients of its own. Nothing
    is ever tried again, and no redirect is followed: that is a middleware's affair.

    The key is `api_key`, or else the environment variable `key_variable`. `http_client` is a function that makes the
    `httpx2.AsyncClient` to use, called once in each event loop; the model closes what it returns. `extra_headers` and
    `extra_body` go with every request, and win. An answer with more than `max_bytes` bytes, uncompressed and with
    everything around its text, is `Malformed`; `math.inf` for no limit. Raises `ConfigError` when the SDK or the key is
    missing, and for a `base_url` with a password or a query in it.
    """

    _sdk: ClassVar[str]
    """The package of the SDK, which is the name of our extra as well."""
    _client_class: ClassVar[str]
    """The SDK's asynchronous client."""
    _path: ClassVar[str]
    """Where to post to, below the base URL."""
    _default_url: ClassVar[str]
    _client_options: ClassVar[Mapping[str, Any]] = {}
    """What the SDK's client is told besides."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str | SecretStr | None = None,
        key_variable: str | None = None,
        base_url: str | None = None,
        stream: bool = True,
        context_size: int = 128_000,
        timeouts: Timeouts | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        max_bytes: float = MAX_BYTES,
        http_client: Callable[[], Any] | None = None,
    ) -> None:
        _check_name(model, type(self).__name__)
        super().__init__(model=model, stream=stream, context_size=context_size)
        self.base_url = str(base_url or "").strip() or self._default_url
        _check_url(self.base_url, type(self).__name__)
        check_option(timeouts, Timeouts, f"{type(self).__name__}(timeouts=...)", "timeouts=Timeouts(total=120)")
        _check_mapping(extra_headers, f"{type(self).__name__}(extra_headers=...)", '{"x-team": "blue"}')
        _check_mapping(extra_body, f"{type(self).__name__}(extra_body=...)", '{"top_k": 40}')
        self.timeouts = timeouts or Timeouts()
        self.max_bytes = max_bytes
        _check_size(max_bytes, type(self).__name__)
        _import(self._sdk, type(self).__name__)
        self._key = _key(api_key, key_variable, type(self).__name__)
        self._extra_headers = {name: SecretStr(value) for name, value in (extra_headers or {}).items()}
        self._extra_body = dict(extra_body or {})
        self._http_client = http_client
        self._clients: WeakKeyDictionary[object, SharedClient] = WeakKeyDictionary()
        headers = (value.get_secret_value() for value in self._extra_headers.values())
        secrets = (self._key.get_secret_value(), *map(str, headers))
        self._provider = Provider(model, self.base_url, key_variable, secrets)
        self.account = f"{self._provider.shown_url()}#{sha256(secrets[0].encode()).hexdigest()[:16]}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, base_url={self._provider.shown_url()!r})"

    def __copy__(self) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__ = {**self.__dict__, "_clients": WeakKeyDictionary()}
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()  # all but the clients is settings, which nobody changes

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"{self!r} holds a key and open connections, and cannot be pickled: keep its spec, and make it anew with "
            f"chat_model(spec) where it is used"
        )

    async def aclose(self) -> None:
        """Close the connections of this event loop, those in use as soon as their calls and streams have ended.

        The next call opens new ones.
        """
        client = self._clients.pop(current_token().native_token, None)
        if client is not None:
            await client.give_up()

    def _body(
        self, messages: Sequence[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> dict[str, Any]:
        """Return the body of a request, with everything that makes the answer stream if `self.stream` is true."""
        raise NotImplementedError

    def _reader(self, messages: Sequence[Msg]) -> AnswerReader:
        """Return a reader for the answer; `messages` are there to estimate the usage by."""
        raise NotImplementedError

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        body = {**self._body(messages, tools, tool_choice), **self._extra_body}
        reader = self._reader(messages)
        client = self._client()  # which takes a while the first time, and is no waiting for the provider
        clock = _Clock(self.timeouts, self._provider, streams=self.stream)
        client.enter(clock)
        try:
            response = await self._sent(client, body, clock)
        except BaseException:
            await client.leave(clock)
            raise
        stream = _Stream(response, reader, clock, self._provider, self.max_bytes, partial(client.leave, clock))
        return stream if self.stream else await stream.whole()  # type: ignore[return-value]  # as good as a generator

    async def _sent(self, client: SharedClient, body: dict[str, Any], clock: "_Clock") -> Any:
        try:
            return await clock.wait(self._post(client.sdk, body))
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary to the SDK
            failure = self._failure(error)
        finally:
            clock.pause()
        raise failure

    async def _post(self, client: Any, body: dict[str, Any]) -> Any:
        import httpx2

        # The other limits are ours: httpx2 would take a ping for an answer.
        timeout = httpx2.Timeout(None, connect=_finite(self.timeouts.connect))
        return await client.post(
            self._path,
            cast_to=httpx2.Response,
            body=body,
            options={"timeout": timeout, "follow_redirects": False},
            stream=True,  # or the SDK reads the body, however long it is
            stream_cls=_import(self._sdk, type(self).__name__).AsyncStream,
        )

    def _client(self) -> SharedClient:
        loop = current_token().native_token
        client = self._clients.get(loop)
        if client is None:
            try:
                client = self._clients[loop] = SharedClient(self._new_client())
                return client
            except Exception as error:  # noqa: BLE001  # the boundary to the SDK, and to the user's own client
                why = f"{_why(self._provider, error)}{_ask_proxy(self.base_url)}"
                failure = Rejected(f"no HTTP client can be made for {self._provider}: {why}")
                failure.__cause__ = self._provider.safe_cause(error)
            raise failure
        return client

    def _new_client(self) -> Any:
        keep_headers_out_of_logs()
        module = _import(self._sdk, type(self).__name__)
        http = (self._http_client or module.DefaultAsyncHttpxClient)()
        if http.auth is None:  # which may want to see a 401 first
            http.event_hooks["response"].append(raise_for_status)
        client = getattr(module, self._client_class)(
            api_key=self._key.get_secret_value(),
            base_url=self.base_url,
            max_retries=0,
            default_headers=self._headers(),  # those of a single request would be logged
            http_client=http,
            **self._client_options,
        )
        client._platform = "Unknown"  # or its first request starts a thread to find out, for a header
        return client

    def _headers(self) -> dict[str, str]:
        """Return the headers that go with every request."""
        return {name: value.get_secret_value() for name, value in self._extra_headers.items()}

    def _failure(self, error: Exception) -> ModelError:
        answered = next((each for each in (error, error.__cause__) if isinstance(each, Unsuccessful)), None)
        if answered is not None:
            return self._provider.failure(
                answered.status, answered.headers, _json_or_text(answered.body.decode(errors="replace"))
            )
        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            # Its text is the body's, which the message repeats: the error itself has nothing to add.
            response: Any = error.response  # type: ignore[attr-defined]  # as every error with a status has
            return self._provider.failure(status, response.headers, _json_or_text(response.text))
        failure = self._unanswered(error)
        failure.__cause__ = self._provider.safe_cause(error)
        return failure

    def _unanswered(self, error: Exception) -> ModelError:
        provider, reason = self._provider, error.__cause__ or error
        name, why = type(reason).__name__, _why(provider, reason)
        where = f"base_url={provider.shown_url()!r}"
        proxy = _ask_proxy(self.base_url)
        if name == "ConnectTimeout":
            return Timeout(
                f"{provider} could not be reached within {self.timeouts.connect:g} s (connect): is {where} right? "
                f"To wait longer, give timeouts=Timeouts(connect=...){proxy}"
            )
        if name.endswith("Timeout"):
            return Timeout(f"{provider} was too slow for its HTTP client ({why})")
        if name == "ConnectError":
            return Transient(
                f"{provider} could not be reached ({why}): is the server running, is {where} right?{proxy}"
            )
        if name == "ProxyError":
            return Rejected(f"{provider} could not be reached through the proxy ({why}){proxy}")
        if name == "DecodingError":
            return Malformed(f"{provider} answered with what cannot be decoded ({why})")
        if name in _NOT_SENT or isinstance(reason, (TypeError, ValueError)):
            return Rejected(f"a request to {provider} could not be sent ({why}): {where}")
        return Transient(f"{provider} did not answer ({why})")


class _Clock:
    """The waiting of one call, with the limits on it.

    The time that is left is counted down here and not by one scope around everything, since a scope may not be open
    while a stream is in its reader's hands. It runs from a wait to the next pause.
    """

    def __init__(self, limits: Timeouts, provider: Provider, *, streams: bool) -> None:
        self._limits = limits
        self._provider = provider
        self._total = limits.total
        self._streams = streams
        self._idle = limits.idle
        self._since: float | None = None

    def check(self) -> None:
        """Raise `Timeout` if no time is left; the time since the last wait counts, unless there was a pause."""
        self._count()
        if self._left() <= 0:
            raise self._over()

    def pause(self) -> None:
        """Do not count the time until the next wait."""
        self._since = None

    def progress(self) -> None:
        """Note that a piece has come."""
        self._idle = self._limits.idle

    async def wait(self, work: Awaitable[_T]) -> _T:
        """Return what the work gives, unless it takes longer than is left."""
        if self._since is None:
            self._since = anyio.current_time()
        with anyio.move_on_after(self._left()):
            result = await work
            self._count()
            return result
        raise self._over()

    def _left(self) -> float:
        return min(self._idle, self._total) if self._streams else self._total

    def _count(self) -> None:
        now = anyio.current_time()
        if self._since is not None:
            self._idle -= now - self._since
            self._total -= now - self._since
        self._since = now

    def _over(self) -> Timeout:
        if self._streams and self._idle <= self._total:
            name, limit, what = "idle", self._limits.idle, "sent nothing new for"
        else:
            name, limit, what = "total", self._limits.total, "kept us waiting for more than"
        return Timeout(
            f"{self._provider} {what} {limit:g} s ({name}): to wait longer, give timeouts=Timeouts({name}=...)"
        )


class _Stream:
    """The streamed answer: iterates like an async generator, but closes its HTTP response even if never iterated."""

    def __init__(
        self,
        response: Any,
        reader: AnswerReader,
        clock: _Clock,
        provider: Provider,
        max_bytes: float,
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        self._response = response
        self._chunks: AsyncGenerator[bytes, None] = response.aiter_bytes()
        self._reader = reader
        self._clock = clock
        self._provider = provider
        self._max_bytes = max_bytes
        self._leave = leave
        self._events = EventReader()
        self._waiting: deque[ServerSentEvent] = deque()
        self._unstreamed = bytearray()
        self._bytes = self._count = self._characters = 0
        self._is_first = True
        self._is_closed = self._is_reading = False

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> ChatResponse:
        self._check_idle("read")
        self._is_reading = True
        try:
            while not self._is_closed:
                response = await self._next()
                if response is not None:
                    return response
        except BaseException:
            await self._close()
            raise
        finally:
            self._clock.pause()
            self._is_reading = False
        raise StopAsyncIteration

    ag_code = __anext__.__code__  # by which chains see that an error is the model's and not a layer's

    async def aclose(self) -> None:
        """Close the response; more than once does no harm. Raises `UsageError` while another task reads it."""
        self._check_idle("closed")
        await self._close()

    async def whole(self) -> ChatResponse:
        """Return the answer, which is no stream, and close the response."""
        try:
            while (chunk := await self._chunk()) is not None:
                self._unstreamed += chunk
        finally:
            await self._close()
        return _guarded(self._provider, self._read_whole)

    def _check_idle(self, what: str) -> None:
        if self._is_reading:
            raise UsageError(
                f"the stream of {self._provider} cannot be {what} while another task waits for its next piece: "
                f"leave it to that task, and cancel that"
            )

    async def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with anyio.move_on_after(CLOSE, shield=True):
            try:
                await self._stop_reading()
            finally:
                await self._response.aclose()
        await self._leave()

    async def _stop_reading(self) -> None:
        # Closing httpx2's generator leaves those inside it suspended, for the garbage collector to find; a read that is
        # cancelled ends them all.
        with anyio.CancelScope() as scope:
            scope.cancel()
            with suppress(Exception):
                async for _ in self._chunks:
                    pass
        await self._chunks.aclose()

    async def _next(self) -> ChatResponse | None:
        if self._waiting:
            event = self._waiting.popleft()
            response = _guarded(self._provider, lambda: self._read(event))
        else:
            chunk = await self._chunk()
            if chunk is not None:
                self._take(chunk)
                return None
            response = _guarded(self._provider, self._end)
        if response is not None and response.is_last:
            await self._drain()
            await self._close()
        return response

    def _take(self, chunk: bytes) -> None:
        # No event begins with a brace: the server does not stream, or has an error to tell.
        if self._unstreamed or (self._is_first and chunk.lstrip(_BLANK).startswith(b"{")):
            self._unstreamed += chunk
        else:
            self._waiting.extend(self._events.feed(chunk))
        self._is_first = self._is_first and not chunk.strip(_BLANK)

    async def _chunk(self) -> bytes | None:
        try:
            self._clock.check()
            return self._counted(await self._clock.wait(anext(self._chunks)))
        except StopAsyncIteration:
            return None
        except (Malformed, Timeout):
            if self._reader.is_complete:
                return None
            raise
        except Exception as error:  # noqa: BLE001  # the boundary to httpx2
            if self._reader.is_complete:
                return None
            failure = self._broken(error)
        raise failure

    def _counted(self, chunk: bytes) -> bytes:
        self._bytes += len(chunk)
        if self._bytes > self._max_bytes:
            raise Malformed(
                f"{self._provider} answered with more than {self._max_bytes:,} bytes: to take more, give max_bytes=..."
            )
        return chunk

    def _read(self, sent: ServerSentEvent) -> ChatResponse | None:
        if sent.data.startswith(b"[DONE]"):
            return self._reader.answer()
        if sent.name == "error":
            raise self._provider.failure_in_stream(_json_or_text(sent.data.decode(errors="replace")))
        event = parse_object(sent.data)
        if event.get("error"):
            raise self._provider.failure_in_stream(event)
        pieces = self._reader.feed(event)
        if self._reader.has_ended:
            return self._reader.answer()
        if pieces or self._reader.has_progressed:
            self._clock.progress()
        if not pieces:
            return None
        self._count += len(pieces)
        self._characters += sum(map(characters_of, pieces))
        return ChatResponse(pieces, False)

    def _end(self) -> ChatResponse:
        if self._unstreamed:
            return self._read_whole()
        self._events.end()
        if self._reader.is_complete:
            return self._reader.answer()
        if self._events.stray and not self._count:
            stray = self._events.stray.decode(errors="replace")
            raise Malformed(f"it answered with {stray!r} in place of a stream: does base_url end in its API's path?")
        raise self._cut("it ended before the answer did")

    def _read_whole(self) -> ChatResponse:
        body = parse_object(bytes(self._unstreamed))
        if body.get("error"):
            raise self._provider.failure_in_stream(body)
        self._reader.read(body)
        return self._reader.answer()

    def _broken(self, error: Exception) -> ModelError:
        why = _why(self._provider, error)
        undecodable = type(error).__name__ == "DecodingError"
        failure = Malformed(f"{self._provider} sent what cannot be decoded ({why})") if undecodable else self._cut(why)
        failure.__cause__ = self._provider.safe_cause(error)
        return failure

    def _cut(self, why: str) -> Transient:
        pieces = f"{self._count} pieces with {self._characters} characters"
        return Transient(
            f"{self._provider}: its answer was cut after {pieces if self._count else f'{self._bytes} bytes'}: {why}"
        )

    async def _drain(self) -> None:
        # The answer is whole by now: a failure here costs the connection and nothing else.
        with anyio.move_on_after(_DRAIN), suppress(Exception):
            async for _ in self._chunks:
                pass


def _guarded(provider: Provider, read: Callable[[], _T]) -> _T:
    """Return what reading an answer gives; whatever it raises names the provider, keeps its key and is of the tree."""
    try:
        return read()
    except ModelError as error:
        if str(error).startswith(str(provider)):  # one of ours, without secrets
            raise
        failure: ModelError = type(error)(f"{provider}: {provider.told(str(error))}")
    except Exception as error:  # noqa: BLE001  # an answer of another shape than anyone thought of
        failure = Malformed(f"{provider}: its answer cannot be read ({_why(provider, error)})")
        failure.__cause__ = provider.safe_cause(error)
    raise failure


def _why(provider: Provider, error: BaseException) -> str:
    return provider.clean(f"{type(error).__name__}: {error}")[:300]


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _ask_proxy(url: str) -> str:
    names = (name for word in (urlsplit(url).scheme, "all") for name in (f"{word}_proxy".upper(), f"{word}_proxy"))
    found = [name for name in names if os.environ.get(name)]
    return f"; is the proxy in the environment's {' and '.join(found)} right?" if found else ""


def _finite(seconds: float) -> float | None:
    return seconds if seconds != float("inf") else None


def _check_name(model: object, cls: str) -> None:
    if not isinstance(model, str) or not model:
        raise ConfigError(f"{cls}(model=...) is the name of a model, not {model!r:.100}")


def check_option(value: object, kind: type, place: str, example: str) -> None:
    """Raise `ConfigError` for an option that is neither left out nor of the type that it has to be."""
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{place} is a {kind.__name__}, as in {example}, not {value!r:.100}")


def _check_mapping(value: object, place: str, example: str) -> None:
    if value is not None and not isinstance(value, Mapping):  # which may hold secrets
        raise ConfigError(f"{place} is a dict, as in {example}, and not of type {type(value).__name__!r}")


def _check_size(size: object, cls: str) -> None:
    if not isinstance(size, (int, float)) or not size > 0:
        raise ConfigError(f"{cls}(max_bytes=...) is a number of bytes above 0, or math.inf, not {size!r:.100}")


def _check_url(url: str, cls: str) -> None:
    place = _place(url)
    try:
        parts = urlsplit(url)
        leads_somewhere = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        leads_somewhere = False
    if not leads_somewhere:
        raise ConfigError(f"{cls}'s base_url is {place!r}: write it in full, as in 'http://localhost:8000/v1'")
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(
            f"{cls}'s base_url has more than a place, {place!r}, in it: give a key or a password as api_key=... or in "
            f"extra_headers={{...}}, and parameters with http_client=lambda: httpx2.AsyncClient(params={{...}})"
        )


def _place(url: str) -> str:
    """Return the URL without what may be secret in it."""
    place, *more = re.split("[?#]", url)
    if any("@" in each for each in more):  # a password with such a character in it
        return "..."
    return re.sub(r"^([^/]*://)?.*@", r"\1", place, flags=re.DOTALL)


def _import(sdk: str, cls: str) -> ModuleType:
    try:
        return importlib.import_module(sdk)
    except ImportError as error:
        raise ConfigError(f'{cls} needs the package {sdk!r}: pip install "agentrt[{sdk}]"') from error


def _key(given: str | SecretStr | None, variable: str | None, cls: str) -> SecretStr:
    key = given if given is not None else os.environ.get(variable or "", "")
    if not isinstance(key, (str, SecretStr)):
        raise ConfigError(f"{cls}(api_key=...) is text or a SecretStr, not of type {type(key).__name__!r}")
    text = (key.get_secret_value() if isinstance(key, SecretStr) else key).strip()
    where = f"set {variable} or give api_key=..." if variable else "give api_key=..."
    if not text:
        raise ConfigError(f"{cls} has no API key: {where} (any word will do for a server that asks for none)")
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ConfigError(f"{cls}'s API key has characters that no key can have: {where} again")
    return SecretStr(text)
