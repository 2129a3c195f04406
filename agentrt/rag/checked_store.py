"""The base of the shipped stores: checks all arguments in one place."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.embedding import Vector
from agentrt.rag.search_terms import query_terms
from agentrt.rag.store import (
    MetadataFilter,
    StoreBase,
    StoredText,
    TextMatch,
    VectorSpace,
    check_filter,
    check_limit,
    check_text_name,
    check_text_names,
    check_texts,
    check_vector,
)
from agentrt.types import JSONObject

_SECONDS_PER_TEXT = 0.002  # ten times the time on an idle machine


@dataclass(frozen=True, slots=True)
class TextChange:
    """The changes of one `write`, in the order of its fields."""

    delete_sources: list[str]
    delete: list[str]
    retract: list[str]
    put: list[StoredText]

    @property
    def extra_seconds(self) -> float:
        """The extra time for it: a document is written as a whole, however many texts it has."""
        return len(self.put) * _SECONDS_PER_TEXT


@dataclass(frozen=True, slots=True)
class TextSelection:
    """A query: at most `limit` texts whose metadata have all values of `where`."""

    limit: int
    where: Mapping[str, str | int | float | bool | None]


class CheckedStore(StoreBase):
    """A store whose private methods get checked arguments, and no empty queries."""

    _space: VectorSpace | None = None

    async def write(
        self,
        owner: str,
        put: Sequence[StoredText] = (),
        *,
        retract: Sequence[str] = (),
        delete: Sequence[str] = (),
        delete_sources: Sequence[str] = (),
    ) -> None:
        owner = check_text_name("owner", owner)
        change = TextChange(
            put=check_texts(put, self._space),
            retract=check_text_names("retract", retract),
            delete=check_text_names("delete", delete),
            delete_sources=check_text_names("delete_sources", delete_sources),
        )
        await self._write(owner, change)

    async def get(self, owner: str, ids: Sequence[str]) -> list[StoredText]:
        owner, names = check_text_name("owner", owner), check_text_names("ids", ids)
        texts = {text.id: text for text in await self._get(owner, names)} if names else {}
        return [texts[name] for name in names if name in texts]

    async def history(self, owner: str, id: str) -> list[StoredText]:
        return await self._history(check_text_name("owner", owner), check_text_name("id", id))

    async def list_texts(
        self, owner: str, *, source: str | None = None, where: MetadataFilter | None = None, limit: int = 1_000
    ) -> list[StoredText]:
        owner, selection = check_text_name("owner", owner), _selection(limit, where)
        name = None if source is None else check_text_name("source", source, may_be_empty=True)
        return await self._list(owner, name, selection)

    async def list_sources(self, owner: str) -> dict[str, JSONObject]:
        return await self._list_sources(check_text_name("owner", owner))

    async def search_text(
        self, owner: str, query: str, limit: int = 5, *, where: MetadataFilter | None = None
    ) -> list[TextMatch]:
        owner, selection = check_text_name("owner", owner), _selection(limit, where)
        words: object = query  # a model may ask for anything
        terms = query_terms(words) if isinstance(words, str) else []
        return await self._search_terms(owner, terms, selection) if terms else []

    async def search_vectors(
        self, owner: str, vector: Vector, limit: int = 5, *, where: MetadataFilter | None = None
    ) -> list[TextMatch]:
        owner, selection = check_text_name("owner", owner), _selection(limit, where)
        numbers = check_vector("the vector", vector, self._space)
        return await self._search_vectors(owner, numbers, selection) if any(numbers) else []

    async def forget(self, owner: str) -> None:
        await self._forget(check_text_name("owner", owner))

    @abstractmethod
    async def _write(self, owner: str, change: TextChange) -> None: ...

    @abstractmethod
    async def _get(self, owner: str, ids: Sequence[str]) -> Sequence[StoredText]:
        """Return the current texts with these ids, in any order."""

    @abstractmethod
    async def _history(self, owner: str, id: str) -> list[StoredText]: ...

    @abstractmethod
    async def _list(self, owner: str, source: str | None, selection: TextSelection) -> list[StoredText]: ...

    @abstractmethod
    async def _list_sources(self, owner: str) -> dict[str, JSONObject]: ...

    @abstractmethod
    async def _search_terms(self, owner: str, terms: Sequence[str], selection: TextSelection) -> list[TextMatch]:
        """Return the texts with at least one of the terms, which come from `query_terms` and are not empty."""

    @abstractmethod
    async def _search_vectors(self, owner: str, vector: Sequence[float], selection: TextSelection) -> list[TextMatch]:
        """Return the texts with the nearest vectors; the vector fits this store's space, and is not zero."""

    @abstractmethod
    async def _forget(self, owner: str) -> None: ...


def _selection(limit: Any, where: Any) -> TextSelection:
    return TextSelection(check_limit("limit", limit), check_filter(where))
