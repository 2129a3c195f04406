"""Long-term memories outlive a conversation, and are separate for each owner."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple, Protocol, Self

from agentrt._runtime.text import repr_of, repr_with_module
from agentrt.errors import ConfigError, UsageError
from agentrt.memory.extractor import FactExtractor, ModelAsker
from agentrt.message import Msg, TextBlock
from agentrt.module import StateModule
from agentrt.tool import ToolResponse

_MAX_RECORDED = 20_000  # characters of one exchange, or of one fact
_MAX_KEYWORDS = 20
_KNOWN_FACTS = 20  # passed to the extractor with an exchange


class TextStore(Protocol):
    """The methods of a store that a long-term memory uses; a `StoreBase` has them."""

    async def write(self, owner: str, put: Sequence[Any] = (), *, retract: Sequence[str] = ()) -> None: ...
    async def get(self, owner: str, ids: Sequence[str]) -> list[Any]: ...
    async def search_text(self, owner: str, query: str, limit: int = 5) -> list[Any]: ...
    async def forget(self, owner: str) -> None: ...


class TextEmbedding(Protocol):
    """The part of an embedding model that a long-term memory uses; an `EmbeddingModelBase` has it."""

    model: str
    dimensions: int

    async def __call__(self, texts: Sequence[str]) -> Any: ...


class LongTermMemoryBase(StateModule):
    """Records conversations, or the facts in them, for an owner, and finds them again; no other owner ever gets them.

    A subclass overrides `record` and `retrieve`, and the two tools if a model is to use it. Methods of 1.x, with
    `**kwargs`, will do: the owner is one of these.
    """

    record_seconds: float = 5.0
    """The maximum time that a reply waits for `record`."""

    asks_model: bool = False
    """Whether `record` calls the reply's model: an exchange is then recorded at the start of the next reply."""

    async def record(
        self, msgs: list[Msg], *, owner: str, key: str | None = None, run: ModelAsker | None = None
    ) -> object:
        """Record an exchange, unless one with the same `key` was recorded before.

        `run` is the reply in progress, if any, whose model can be called.
        """
        raise NotImplementedError

    async def retrieve(self, msg: Msg | list[Msg] | None, limit: int = 5, *, owner: str) -> str:
        """Return up to `limit` memories that fit the messages, as text; "" for none."""
        raise NotImplementedError

    async def record_to_memory(self, thinking: str, content: list[str], *, owner: str) -> ToolResponse:
        """Save facts, called by a model."""
        raise NotImplementedError

    async def retrieve_from_memory(self, keywords: list[str], limit: int = 5, *, owner: str) -> ToolResponse:
        """Return up to `limit` memories for each keyword, called by a model."""
        raise NotImplementedError

    async def forget(self, owner: str) -> None:
        """Delete all memories of the owner."""
        raise NotImplementedError


class LongTermMemory(LongTermMemoryBase):
    """Keeps memories as texts in a store, such as an `agentrt.rag.SQLiteTextStore`.

    Exchanges are stored word for word; with an `extractor`, such as `ModelExtractor()`, only the facts in them. A
    fact that is replaced, or no longer holds, stays in the store with the time at which it ended.

    Memories are found by their words, and with an `embedding` by meaning as well. If the embedding fails, nothing is
    recorded, and memories are found by words alone.
    """

    def __init__(
        self, store: TextStore, *, embedding: TextEmbedding | None = None, extractor: FactExtractor | None = None
    ) -> None:
        super().__init__()
        missing = [name for name in ("write", "get", "search_text", "forget") if not hasattr(store, name)]
        if missing or isinstance(store, type):
            raise ConfigError(
                f"LongTermMemory(store=...) must be a StoreBase, such as agentrt.rag.SQLiteTextStore('memory.db'), "
                f"not {repr_with_module(store)}"
            )
        if extractor is not None and (isinstance(extractor, type) or not hasattr(extractor, "extract")):
            raise ConfigError(
                f"LongTermMemory(extractor=...) must have a method extract, as ModelExtractor() has, not "
                f"{repr_of(extractor)}"
            )
        if embedding is not None:
            from agentrt.rag.hybrid import use_embedding

            use_embedding("LongTermMemory(embedding=...)", embedding, store)
        self.store = store
        self.embedding: Any = embedding  # checked above, so of the store's type
        self.extractor = extractor
        # An extractor calls a model, which takes longer than a store.
        self.asks_model = extractor is not None
        self.record_seconds = 60.0 if self.asks_model else 5.0

    async def record(
        self, msgs: list[Msg], *, owner: str, key: str | None = None, run: ModelAsker | None = None
    ) -> None:
        """Record an exchange, or the facts in it, unless one with the same `key` was recorded before."""
        name: object = key
        if name is not None and not isinstance(name, str):
            raise UsageError(f"record(key=...) must be a str, or None, not {repr_of(key)}: what names the exchange")
        text = exchange_text(_spoken_messages(msgs))
        if not text:
            return
        # The id is derived from the key, so that an exchange is stored once, however often it is recorded.
        exchange_id = f"exchange:{_digest_of_text(key or text)}"
        if self.extractor is None:
            await self._write(owner, {exchange_id: text})
            return
        # Another model call would word the same facts differently, and they would be stored twice.
        if await self.store.get(_place_of_owner(owner), [exchange_id]):
            return
        known = (await self._search(owner, text, _KNOWN_FACTS)).texts
        changes = await self.extractor.extract(text, {memory.id: memory.text for memory in known}, run)
        # Only facts that it was shown may change: any other id is invented.
        ids = {memory.id for memory in known}
        added = {f"fact:{_digest_of_text(fact)}": fact for fact in changes.add}
        replaced = {fact_id: fact for fact_id, fact in changes.update.items() if fact_id in ids}
        retracted = [fact_id for fact_id in changes.retract if fact_id in ids and fact_id not in replaced]
        facts = {fact_id: fact for fact_id, fact in {**added, **replaced}.items() if fact.strip()}
        # In one write, with a marker text without words that no search finds: all is recorded, or nothing.
        await self._write(owner, {**facts, exchange_id: ""}, retracted)

    async def retrieve(self, msg: Msg | list[Msg] | None, limit: int = 5, *, owner: str) -> str:
        """Return up to `limit` memories that fit the messages, best first, as a `RetrievedText`."""
        query = "\n".join(filter(None, (message.get_text_content() for message in _spoken_messages(msg))))
        found = await self._search(owner, query, limit)
        return RetrievedText("\n\n".join(memory.text for memory in found.texts), found.failure)

    async def record_to_memory(self, thinking: str, content: list[str], *, owner: str) -> ToolResponse:
        """Save facts; a known one is not stored twice."""
        facts = {f"fact:{_digest_of_text(fact)}": fact for fact in _text_list("content", content) if fact.strip()}
        await self._write(owner, facts)
        return ToolResponse([TextBlock(f"{len(facts)} recorded.")])

    async def retrieve_from_memory(self, keywords: list[str], limit: int = 5, *, owner: str) -> ToolResponse:
        """Return up to `limit` memories for each keyword, each once."""
        # By id, since one memory may fit several keywords.
        found: dict[str, str] = {}
        for keyword in _text_list("keywords", keywords)[:_MAX_KEYWORDS]:
            found |= {memory.id: memory.text for memory in (await self._search(owner, keyword, limit)).texts}
        return ToolResponse([TextBlock("\n\n".join(found.values()) or "Nothing was found.")])

    async def forget(self, owner: str) -> None:
        """Delete all memories of the owner, replaced ones too."""
        await self.store.forget(_place_of_owner(owner))

    async def _write(self, owner: str, memories: dict[str, str], retract: Sequence[str] = ()) -> None:
        from agentrt.rag import StoredText  # here, since most agents have no long-term memory
        from agentrt.rag.hybrid import add_vectors

        texts = [StoredText(id, text[:_MAX_RECORDED]) for id, text in memories.items()]
        await self.store.write(_place_of_owner(owner), await add_vectors(self.embedding, texts), retract=retract)

    async def _search(self, owner: str, query: str, limit: int) -> "_FoundMemories":
        from agentrt.rag.hybrid import search_texts

        found = await search_texts(self.store, self.embedding, _place_of_owner(owner), query, limit)
        return _FoundMemories([match.text for match in found.matches], found.failure)


def _place_of_owner(owner: str) -> str:
    """Return the name under which a store keeps the memories of an owner."""
    from agentrt.rag.store import check_text_name

    # A prefix, so that no knowledge base in the same store has this name, whatever users call themselves.
    return f"memory/{check_text_name('an owner', owner)}"


class RetrievedText(str):
    """Memories as text; a `failure` says why the embedding failed, so that words alone found them; else it is empty."""

    failure: str

    def __new__(cls, text: str, failure: str = "") -> Self:
        retrieved = super().__new__(cls, text)
        retrieved.failure = failure
        return retrieved


class _FoundMemories(NamedTuple):
    texts: list[Any]
    failure: str


def exchange_text(msgs: Sequence[Msg]) -> str:
    """Return the text of the messages, one paragraph each, without thoughts, tool calls and notes."""
    spoken = ((msg.role, msg.get_text_content()) for msg in msgs)
    text = "\n".join(f"{role}: {words}" for role, words in spoken if words)
    return text[:_MAX_RECORDED]


def _spoken_messages(msgs: Any) -> list[Msg]:
    messages = [] if msgs is None else [msgs] if isinstance(msgs, Msg) else msgs
    if not isinstance(messages, (list, tuple)) or not all(isinstance(message, Msg) for message in messages):
        raise UsageError(
            f"a long-term memory takes a Msg, a list of them or None, not {repr_of(msgs)}: write UserMsg('user', '...')"
        )
    return list(messages)


def _text_list(parameter: str, texts: Any) -> list[str]:
    # A plain `str` would pass for a list of its letters.
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{parameter} must be a list of str, such as ['tea'], not {repr_of(texts)}")
    return list(texts)


def _digest_of_text(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()[:32]
