"""Cache: answers repeated requests with the known answer, and concurrent ones with a single call."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from time import time
from typing import ClassVar, Literal

from agentrt._runtime.text import repr_of
from agentrt.agent import AgentBase, Run
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import ActingValues, MiddlewareBase, ModelCallValues, NextActing, NextModelCall
from agentrt.message import Msg
from agentrt.model import ChatResponse, ModelResult, request_key
from agentrt.tool import ToolBase
from agentrt.types import ToolChunk, ToolResponse
from agentrt_middleware.attempts import ATTEMPT_LAYERS, close, is_readable, only_if
from agentrt_middleware.cache.entries import (
    Entry,
    read_entry,
    replay_answer,
    whole_answer,
    with_handles,
    without_handles,
    write_entry,
)
from agentrt_middleware.cache.flights import Flights, Lead
from agentrt_middleware.cache.stores import CacheStore, MemoryCacheStore
from agentrt_middleware.cache.tools import ToolKeys, check_tools
from agentrt_middleware.redaction.middleware import RedactionMiddleware
from agentrt_middleware.reply_info import call_of
from agentrt_middleware.stores.guard import StoreGuard
from agentrt_middleware.validation import check_choice, check_function, check_number, check_store_option

CacheScope = Literal["global", "conversation"] | Callable[[AgentBase], str]
CacheWhen = Callable[[AgentBase, ModelCallValues], bool]
_Mode = Literal["bypass", "refresh"]

_logger = logging.getLogger("agentrt")
_WHILE_DOWN = {"open": "nothing is cached", "local": "each process caches by itself"}
_MAX_IN_MEMORY = 1_000  # entries
_modes: ContextVar[Mapping["CacheMiddleware", _Mode] | None] = ContextVar("agentrt_cache_modes", default=None)


class CacheMiddleware(MiddlewareBase):
    """Answers a repeated request with the earlier answer, for `ttl` seconds.

    Two requests are the same if their `agentrt.model.request_key` is: it covers the model with its settings, the
    messages, the tools and the tool choice, without ids and times. Requests of `agent.run.ask_model` are separated by
    purpose. An answer that was cut off or filtered, or whose `metadata` has "no_store", is not cached. A cached answer
    comes in its original pieces, and its usage is `replayed`: known, but in no sum. While one request is
    running, equal ones wait for its answer; if it fails or is left, one of them runs next, and after `flight_wait`
    seconds each runs alone.

    A model of a custom class shares answers only with itself, unless the class states `known_by_settings = True`.

    `scope` says who shares answers: "global", each "conversation" for itself, or those for whom a function of the agent
    returns the same str. `when(agent, values)` says whether a call of the model is cached. `tools` names
    read-only tools whose results are cached too, with the seconds for each: `{"search": 600}`.

    `store` keeps the answers: a `SQLiteCacheStore` or `RedisCacheStore`, which processes share, or else memory, the
    last `max_entries` (1,000). While it fails, nothing is cached, or with `on_store_error="local"` each process caches
    by itself. `clock` is in seconds since the epoch.
    """

    inherited = False
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
        """Inside this block, calls ignore the cache."""
        with self._in_mode("bypass"):
            yield

    @contextmanager
    def refresh(self) -> Iterator[None]:
        """Inside this block, calls are repeated, and their answers replace the cached ones."""
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
        for name in self.tools:
            self._read_only_tool(agent.run.toolkit.get(name), name)
        call = self._call(agent, self.ttl, "when", lambda: self._model_key(agent, input_kwargs))
        if call is None:
            return await next_handler(**input_kwargs)
        call.messages = input_kwargs["messages"]
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

    @only_if(lambda cache, _: cache.tools)
    async def on_acting(
        self, agent: AgentBase, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        tool_call = call_of(input_kwargs)
        ttl = self.tools.get(tool_call.name)
        tool = None if ttl is None else self._read_only_tool(agent.run.tool_of(tool_call), tool_call.name)
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
        """Return the handling of this call, `None` if it is not cached."""
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
        # A conversation may contain the same words as the request for a summary or of a judge, but expects an answer.
        purpose = agent.run.purpose or ""
        model = values["current_model"]
        key = request_key(values["messages"], values["tools"], values["tool_choice"], model)
        cls = type(model)
        # Answers of a custom class may depend on any of its attributes.
        is_known = cls.__module__.partition(".")[0] == "agentrt" or vars(cls).get("known_by_settings")
        return f"{purpose} {key}" if is_known else f"{purpose} {key} {self._keys.mark(model)}"

    def _caller(self, agent: AgentBase) -> object:
        """Return the identity of the current caller: the reply may have been resumed with other deps."""
        return self.identify(agent) if callable(self.scope) else agent.run.deps

    def _scope_of(self, agent: AgentBase) -> str:
        if self.scope == "global":
            return "global"
        if self.scope == "conversation":
            return f"conversation {agent.state.session_id}"
        return f"scope {agent.run.identity(self)['scope']}"

    def _safely(self, option: str, function: Callable[[], str | None]) -> str | None:
        """Return the function's result; if it raises, the call is not cached."""
        try:
            return function()
        except Exception as error:  # noqa: BLE001  # a function or a tool of the user's own, which may raise anything
            self.warn_once(option, f"CacheMiddleware({option}=...) failed ({type(error).__name__})")
            return None

    def warn_once(self, subject: str, problem: str) -> None:
        """Log a problem when it first occurs; the call is not cached."""
        if subject not in self._warned:
            self._warned.add(subject)
            _logger.warning("%s: such a call is not cached", problem)

    @staticmethod
    def _read_only_tool(tool: ToolBase | None, name: str) -> ToolBase | None:
        if tool is not None and not tool.is_read_only:
            raise MiddlewareConfigError(
                f"CacheMiddleware(tools=...) names {name!r}, which is not read-only, so that a kept result would stand "
                f"for a change that was not made: leave it out, or write FunctionTool(..., is_read_only=True)"
            )
        if tool is not None and tool.is_resumable:
            raise MiddlewareConfigError(
                f"CacheMiddleware(tools=...) names {name!r}, which may ask and call other tools, and a kept result "
                f"would pass over the decisions on these calls: name the tools that it calls instead"
            )
        return tool

    async def join(self, key: str, run: Run) -> Lead | str | None:
        """Wait for an equal call in progress, if any: see `Flights.join`."""
        return await self._flights.join(key, self.flight_wait, run)

    async def find(self, key: str, ttl: float) -> tuple[str, Entry] | None:
        """Return the stored text for the key, checked."""
        answer = await self._guard.ask(lambda: self.store.get(key))
        if answer is None and self._spare is not None:
            answer = (await self._spare.get(key),)
        if answer is None or answer[0] is None:
            return None
        entry = self.read(answer[0], key, ttl)
        return None if entry is None else (answer[0], entry)

    def read(self, text: object, key: str, ttl: float) -> Entry | None:
        """Return the entry in the text; an invalid one is logged once."""
        try:
            return read_entry(text, key, self._clock(), ttl=ttl)
        except ValueError:
            self.warn_once("entry", f"{type(self.store).__name__} holds something that this cache has not written")
            return None

    def write(self, key: str, pieces: list[ChatResponse] | None, result: ToolResponse | None) -> str | None:
        """Return an answer or a result as text, `None` if it is not cacheable."""
        return write_entry(Entry(key, self._clock(), pieces, result))

    async def put(self, key: str, text: str, ttl: float) -> None:
        """Save the text in the store."""
        if await self._guard.ask(lambda: self.store.put(key, text, ttl)) is None and self._spare is not None:
            await self._spare.put(key, text, ttl)


class _CachedCall:
    """One call, from the cache look-up to the end of its answer."""

    __slots__ = ("_cache", "_key", "_lead", "_mode", "_redactions", "_run", "_ttl", "messages")

    def __init__(self, cache: CacheMiddleware, agent: AgentBase, key: str, ttl: float, mode: _Mode | None) -> None:
        self._cache = cache
        self._run = agent.run
        self._redactions = [layer for layer in agent.middlewares if isinstance(layer, RedactionMiddleware)]
        self._key = key
        self._ttl = ttl
        self._mode = mode
        self._lead: Lead | None = None
        self.messages: Sequence[Msg] = ()  # of a request to a model

    async def find(self) -> Entry | None:
        """Return the known entry, perhaps that of an equal call in progress; `None`: call."""
        entry = await self._find()
        return entry if entry is None or entry.pieces is None else with_handles(entry, self.messages)

    async def _find(self) -> Entry | None:
        # A refreshed call never leads: others want the known answer, and it may take longer.
        if self._mode == "refresh":
            return None
        outcome = await self._cache.join(self._key, self._run)
        if isinstance(outcome, str):
            return self._cache.read(outcome, self._key, self._ttl)
        self._lead = outcome
        known = await self._cache.find(self._key, self._ttl)
        if known is None:
            return None
        # The text, not the entry, so that each call has its own blocks.
        text, entry = known
        if self._lead is not None:
            self._lead.share(text)
        return entry

    async def keep_answer(self, pieces: list[ChatResponse]) -> None:
        """Share a complete answer with the waiting calls, and save it, if it is cacheable."""
        # An answer of another model, such as a fallback's, is shared with waiting calls, but not saved.
        is_own = not any("model" in (piece.metadata or {}) for piece in pieces)
        # Another conversation has handles of its own in the places of these.
        kept = without_handles(pieces, self.messages)
        text = None if kept is None else self._cache.write(self._key, kept, None)
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
        # Before the store, which may be slow: waiting calls need not wait for it too.
        if self._lead is not None:
            if text is None:
                self._lead.dissolve()
            else:
                self._lead.share(text)
        if text is None or response is None or not is_own:
            return
        # Outer redaction runs after this layer, so the text would be stored unredacted.
        if not any(redaction.finds_in(response.content, response.metadata) for redaction in redactions):
            await self._cache.put(self._key, text, self._ttl)

    def leave(self) -> None:
        """Record the end of the call; without an answer, a waiting equal call runs next."""
        if self._lead is not None:
            self._lead.leave()


class _RecordedStream:
    """A stream whose pieces are saved when it is complete.

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
                # At once, since a reader may leave after the last piece.
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
