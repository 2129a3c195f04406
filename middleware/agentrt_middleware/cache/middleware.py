"""Cache: answers equal requests with the answer that is known, and asks once for those that come together."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from time import time
from typing import ClassVar, Literal

from agentrt.agent import AgentBase, Run
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import ActingValues, MiddlewareBase, ModelCallValues, NextActing, NextModelCall
from agentrt.keywords import suggest_keywords
from agentrt.model import ChatResponse, ModelResult, request_key
from agentrt.text import repr_of
from agentrt.tool import ToolBase
from agentrt.types import ToolChunk, ToolResponse
from agentrt_middleware.attempts import ATTEMPT_LAYERS, close, is_readable, only_if
from agentrt_middleware.cache.entries import Entry, read_entry, replay_answer, whole_answer, write_entry
from agentrt_middleware.cache.flights import Flights, Lead
from agentrt_middleware.cache.stores import CacheStore, MemoryCacheStore
from agentrt_middleware.cache.tools import ToolKeys, check_tools
from agentrt_middleware.redaction.middleware import RedactionMiddleware
from agentrt_middleware.reply_info import call_of
from agentrt_middleware.stores.guard import StoreGuard
from agentrt_middleware.validation import check_choice, check_function, check_number, check_store_option

__all__ = ["CacheMiddleware", "CacheScope", "CacheWhen"]

CacheScope = Literal["global", "conversation"] | Callable[[AgentBase], str]
CacheWhen = Callable[[AgentBase, ModelCallValues], bool]
_Mode = Literal["bypass", "refresh"]

_logger = logging.getLogger("agentrt")
_WHILE_DOWN = {"open": "nothing is cached", "local": "each process caches by itself"}
_MAX_IN_MEMORY = 1_000  # entries
_modes: ContextVar[Mapping["CacheMiddleware", _Mode] | None] = ContextVar("agentrt_cache_modes", default=None)


@suggest_keywords(max_size="max_entries", size="max_entries", timeout="flight_wait", expire="ttl", namespace="scope")
class CacheMiddleware(MiddlewareBase):
    """Answers a request that was asked before with the answer of then, for `ttl` seconds.

    Two requests are the same if their `agentrt.model.request_key` is: it covers the model with its settings, the
    messages, the tools and the tool choice, without ids and times. What `agent.run.ask_model` asks is kept apart by its
    purpose. An answer that was cut off or filtered, or whose `metadata` has "no_store", is not kept. A kept answer
    comes in the pieces in which it came first, and its usage is `replayed`: known, and in no sum. While one request is
    being asked, equal ones wait for its answer; if it fails or is left, one of them asks next, and after `flight_wait`
    seconds each asks for itself.

    A model of a custom class shares answers only with itself, unless the class states `known_by_settings = True`.

    `scope` says who shares answers: "global", each "conversation" for itself, or those for whom a function of the agent
    returns the same str. `when(agent, values)` says whether a call of the model is to be cached. `tools` names
    read-only tools whose results are kept as well, with the seconds for each: `{"search": 600}`.

    `store` keeps the answers: a `SQLiteCacheStore` or `RedisCacheStore`, which processes share, or else memory, the
    last `max_entries` (1,000). While it fails, nothing is cached, or with `on_store_error="local"` each process caches
    by itself. `clock` is in seconds since the epoch.
    """

    wraps: ClassVar = {
        **dict.fromkeys(ATTEMPT_LAYERS, "a known answer needs no attempt and waits for no limit"),
        "ToolRetryMiddleware": "a known result needs no run",
        "ToolEmulatorMiddleware": "a made-up result is kept like any other",
    }

    def __init__(
        self,
        store: CacheStore | None = None,
        *,
        ttl: float = 3_600,
        scope: CacheScope = "global",
        tools: Mapping[str, float] | None = None,
        when: CacheWhen | None = None,
        max_entries: int | None = None,
        flight_wait: float = 60,
        on_store_error: Literal["open", "local"] = "open",
        clock: Callable[[], float] = time,
    ) -> None:
        check_number("CacheMiddleware(ttl=...)", ttl, finite=True)
        if max_entries is None:
            max_entries = _MAX_IN_MEMORY
        elif store is not None and on_store_error == "open":
            raise MiddlewareConfigError(
                f"CacheMiddleware(max_entries={max_entries!r:.100}) is for what is kept in memory, which is nothing "
                f"beside a store: give it to the store, as in SQLiteCacheStore(path, max_entries=1000), or leave it out"
            )
        check_number("CacheMiddleware(max_entries=...)", max_entries, whole=True)
        check_number("CacheMiddleware(flight_wait=...)", flight_wait, least=0, finite=True)
        check_choice("CacheMiddleware(on_store_error=...)", on_store_error, ("open", "local"))
        stores = "a SQLiteCacheStore or a RedisCacheStore, or have their get and put"
        check_store_option("CacheMiddleware(store=...)", store, CacheStore, stores)
        if callable(scope):
            check_function("CacheMiddleware(scope=...)", scope, "agent", plain=True)
        else:
            check_choice("CacheMiddleware(scope=...)", scope, ("global", "conversation"))
        if when is not None:
            check_function("CacheMiddleware(when=...)", when, "agent", "values", plain=True)
        check_function("CacheMiddleware(clock=...)", clock, plain=True)
        self.ttl, self.scope, self.when = ttl, scope, when
        self.tools = check_tools(tools)
        self.flight_wait = flight_wait
        self.store = store or MemoryCacheStore(max_entries)
        self._spare = MemoryCacheStore(max_entries) if store is not None and on_store_error == "local" else None
        self._guard = StoreGuard(f"the {type(self.store).__name__} of a cache", _WHILE_DOWN[on_store_error])
        self._flights = Flights()
        self._keys = ToolKeys()
        self._clock = clock
        self._warned: set[str] = set()

    @contextmanager
    def bypass(self) -> Iterator[None]:
        """Inside of this, calls are asked as if there were no cache."""
        with self._in_mode("bypass"):
            yield

    @contextmanager
    def refresh(self) -> Iterator[None]:
        """Inside of this, calls are asked anew, and their answers replace those that are kept."""
        with self._in_mode("refresh"):
            yield

    @contextmanager
    def _in_mode(self, mode: _Mode) -> Iterator[None]:
        token = _modes.set({**(_modes.get() or {}), self: mode})
        try:
            yield
        finally:
            _modes.reset(token)

    def identify(self, agent: AgentBase) -> dict[str, str]:
        if not callable(self.scope):
            return {}
        scope: object = self.scope(agent)
        if not isinstance(scope, str):
            raise TypeError(f"CacheMiddleware(scope=...) must return a str, not {repr_of(scope)}")
        return {"scope": scope}

    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        self._check_tools(agent)
        call = self._call(agent, self.ttl, "when", lambda: self._model_key(agent, input_kwargs))
        if call is None:
            return await next_handler(**input_kwargs)
        try:
            entry = await call.find()
            if entry is not None and entry.pieces:
                return replay_answer(entry.pieces, input_kwargs["current_model"])
            result = await next_handler(**input_kwargs)
            if isinstance(result, ChatResponse):
                await call.keep_answer([result])
                return result
        except BaseException:
            call.leave()
            raise
        return _RecordedStream(result, call)  # type: ignore[return-value]  # as good as an async generator

    @only_if(lambda cache: cache.tools)
    async def on_acting(
        self, agent: AgentBase, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        tool_call = call_of(input_kwargs)
        ttl = self.tools.get(tool_call.name)
        tool = None if ttl is None else self._tool(agent, tool_call.name)
        call = None
        if ttl is not None and tool is not None:
            call = self._call(agent, ttl, "tools", lambda: self._keys.key(tool, tool_call, agent, self._caller(agent)))
        if call is None:
            async for item in next_handler(**input_kwargs):
                yield item
            return
        try:
            entry = await call.find()
            if entry is not None and entry.result is not None:
                yield entry.result
                return
            async for item in next_handler(**input_kwargs):
                if isinstance(item, ToolResponse):
                    await call.keep_result(item)
                yield item
        finally:
            call.leave()

    def _call(self, agent: AgentBase, ttl: float, option: str, key: Callable[[], str | None]) -> "_CachedCall | None":
        """Return what to do for this call, `None` if it is not to be cached."""
        mode = (_modes.get() or {}).get(self)
        if mode == "bypass":
            return None
        text = self._safely(option, key)
        scope = None if text is None else self._safely("scope", lambda: self._scope_of(agent))
        if scope is None:
            return None
        digest = sha256(f"{text} {scope}".encode("utf-8", "backslashreplace")).hexdigest()
        return _CachedCall(self, agent, digest, ttl, mode)

    def _model_key(self, agent: AgentBase, values: ModelCallValues) -> str | None:
        if self.when is not None and not self.when(agent, values):
            return None
        # The words of a summary's or a judge's request may also stand in a conversation, which expects an answer.
        purpose = agent.run.purpose or ""
        model = values["current_model"]
        key = request_key(values["messages"], values["tools"], values["tool_choice"], model)
        cls = type(model)
        # The answers of a custom class may depend on any of its attributes.
        is_known = cls.__module__.partition(".")[0] == "agentrt" or vars(cls).get("known_by_settings")
        return f"{purpose} {key}" if is_known else f"{purpose} {key} {self._keys.mark(model)}"

    def _caller(self, agent: AgentBase) -> object:
        """Return what identifies the current caller: the reply may have resumed with the deps of another one."""
        return self.identify(agent) if callable(self.scope) else agent.run.deps

    def _scope_of(self, agent: AgentBase) -> str:
        if self.scope == "global":
            return "global"
        if self.scope == "conversation":
            return f"conversation {agent.state.session_id}"
        return f"scope {agent.run.identity(self)['scope']}"

    def _safely(self, option: str, function: Callable[[], str | None]) -> str | None:
        """Return what the function returns; where it raises, nothing is cached."""
        try:
            return function()
        except Exception as error:  # noqa: BLE001  # a function or a tool of the user's own, which may raise anything
            self.warn_once(option, f"CacheMiddleware({option}=...) failed ({type(error).__name__})")
            return None

    def warn_once(self, subject: str, problem: str) -> None:
        """Log a problem the first time that it occurs; the call is asked as if it were not cached."""
        if subject not in self._warned:
            self._warned.add(subject)
            _logger.warning("%s: such a call is not cached", problem)

    def _check_tools(self, agent: AgentBase) -> None:
        for name in self.tools:
            self._tool(agent, name)

    def _tool(self, agent: AgentBase, name: str) -> ToolBase | None:
        tool = agent.run.toolkit.get(name)
        if tool is not None and not tool.is_read_only:
            raise MiddlewareConfigError(
                f"CacheMiddleware(tools=...) names {name!r}, which is not read-only, so that a kept result would stand "
                f"for a change that was not made: leave it out, or write FunctionTool(..., is_read_only=True)"
            )
        return tool

    async def join(self, key: str, run: Run) -> Lead | str | None:
        """Wait for an equal call in progress, if there is one: see `Flights.join`."""
        return await self._flights.join(key, self.flight_wait, run)

    async def find(self, key: str, ttl: float) -> tuple[str, Entry] | None:
        """Return what is kept under the key, as text and checked."""
        answer = await self._guard.ask(lambda: self.store.get(key))
        if answer is None and self._spare is not None:
            answer = (await self._spare.get(key),)
        if answer is None or answer[0] is None:
            return None
        entry = self.read(answer[0], key, ttl)
        return None if entry is None else (answer[0], entry)

    def read(self, text: object, key: str, ttl: float) -> Entry | None:
        """Return the entry that the text holds; what is not one is logged once."""
        try:
            return read_entry(text, key, self._clock(), ttl=ttl)
        except ValueError:
            self.warn_once("entry", f"{type(self.store).__name__} holds something that this cache has not written")
            return None

    def write(self, key: str, pieces: list[ChatResponse] | None, result: ToolResponse | None) -> str | None:
        """Return an answer or a result as text, `None` if it cannot be kept."""
        return write_entry(Entry(key, self._clock(), pieces, result))

    async def put(self, key: str, text: str, ttl: float) -> None:
        """Keep the text in the store."""
        if await self._guard.ask(lambda: self.store.put(key, text, ttl)) is None and self._spare is not None:
            await self._spare.put(key, text, ttl)


class _CachedCall:
    """One call, from the look into the cache to the end of its answer."""

    __slots__ = ("_cache", "_key", "_lead", "_mode", "_redactions", "_run", "_ttl")

    def __init__(self, cache: CacheMiddleware, agent: AgentBase, key: str, ttl: float, mode: _Mode | None) -> None:
        self._cache = cache
        self._run = agent.run
        self._redactions = [layer for layer in agent.middlewares if isinstance(layer, RedactionMiddleware)]
        self._key = key
        self._ttl = ttl
        self._mode = mode
        self._lead: Lead | None = None

    async def find(self) -> Entry | None:
        """Return what is known, also from an equal call that is waited for; `None`: ask."""
        # A refreshed call leads no flight: those that wait want what is known, and it may take longer.
        if self._mode == "refresh":
            return None
        outcome = await self._cache.join(self._key, self._run)
        if isinstance(outcome, str):
            return self._cache.read(outcome, self._key, self._ttl)
        self._lead = outcome
        known = await self._cache.find(self._key, self._ttl)
        if known is None:
            return None
        # The text and not the entry, so that each call has blocks of its own.
        text, entry = known
        if self._lead is not None:
            self._lead.share(text)
        return entry

    async def keep_answer(self, pieces: list[ChatResponse]) -> None:
        """Share a whole answer with the calls that wait, and keep it, where it is one to keep."""
        # An answer of another model, such as a fallback's, serves those that wait, and is not kept for later.
        is_own = not any("model" in (piece.metadata or {}) for piece in pieces)
        text = self._cache.write(self._key, pieces, None)
        hides = [redaction for redaction in self._redactions if redaction.output]
        await self._keep(text, whole_answer(pieces) if text else None, hides, is_own=is_own)

    async def keep_result(self, result: ToolResponse) -> None:
        """The same for the result of a tool."""
        text = self._cache.write(self._key, None, result)
        await self._keep(text, result, [redaction for redaction in self._redactions if redaction.tools])

    async def _keep(
        self,
        text: str | None,
        response: ChatResponse | ToolResponse | None,
        redactions: Sequence[RedactionMiddleware],
        *,
        is_own: bool = True,
    ) -> None:
        # Before the store, which may be slow: those that wait need not wait for it too.
        if self._lead is not None:
            if text is None:
                self._lead.dissolve()
            else:
                self._lead.share(text)
        if text is None or response is None or not is_own:
            return
        # They stand outside and redact what leaves here, so what they look for would be kept as it came.
        if not any(redaction.finds_in(response.content, response.metadata) for redaction in redactions):
            await self._cache.put(self._key, text, self._ttl)

    def leave(self) -> None:
        """Note that the call is over; if it has brought no answer, an equal one that waits asks next."""
        if self._lead is not None:
            self._lead.leave()


class _RecordedStream:
    """A stream whose pieces are kept when it is whole.

    A class, since a generator that is closed before its first item runs none of its code.
    """

    __slots__ = ("_call", "_pieces", "_stream")

    def __init__(self, stream: AsyncIterator[ChatResponse], call: _CachedCall) -> None:
        self._stream = stream
        self._call = call
        self._pieces: list[ChatResponse] | None = []

    def __aiter__(self) -> "_RecordedStream":
        return self

    async def __anext__(self) -> ChatResponse:
        try:
            piece = await anext(self._stream)
            pieces = self._pieces
            if pieces is not None:
                if is_readable(piece):
                    pieces.append(piece)
                else:  # the runtime refuses it by name when it gets there
                    self._pieces = None
                # At once, since a reader may leave after the last piece without asking for more.
                if piece.is_last:
                    await self._end()
        except StopAsyncIteration:
            if self._pieces:
                await self._end()
            self._call.leave()
            raise
        except BaseException:
            self._call.leave()
            raise
        return piece

    async def aclose(self) -> None:
        try:
            await close(self._stream)
        finally:
            self._call.leave()

    async def _end(self) -> None:
        pieces, self._pieces = self._pieces, None
        if pieces:
            await self._call.keep_answer(pieces)
