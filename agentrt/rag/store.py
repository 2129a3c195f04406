"""The base class of text stores."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from sys import float_info
from typing import Any, NamedTuple, Self

from pydantic_core import from_json, to_json

from agentrt._runtime.boundary import json_problem
from agentrt._runtime.options import check_whole
from agentrt._runtime.representation import repr_by_settings
from agentrt._runtime.text import repr_of, whole_characters
from agentrt.embedding import Vector
from agentrt.errors import ConfigError, StoreError
from agentrt.types import JSONObject

MetadataFilter = Mapping[str, str | int | float | bool | None]
"""A filter for a search: the values that the metadata must have."""

_MAX_STORED_NAME = 1_000  # characters of an owner, an id or a source
_MAX_TEXT_LENGTH = 1_000_000  # characters
_MAX_METADATA_BYTES = 100_000  # bytes, as JSON
_MAX_MATCHES = 10_000


@dataclass(frozen=True, slots=True)
class StoredText:
    """A stored text with an id. `source` is its origin: a document, a conversation.

    A search also finds it by the words of `keywords`, and by its `vector`, which are not read back. The times are
    nanoseconds since the epoch, set by the store: `ended_at` is when the text was replaced or retracted.
    """

    id: str
    text: str
    source: str = ""
    metadata: JSONObject = field(default_factory=dict)
    keywords: str = field(default="", repr=False)
    vector: Vector | None = field(default=None, repr=False)
    created_at: int = 0
    ended_at: int | None = None


@dataclass(frozen=True, slots=True)
class TextMatch:
    """A text found by a search. Scores are higher for better matches, and comparable only within one search."""

    text: StoredText
    score: float


class VectorSpace(NamedTuple):
    """The embedding model and the length of a store's vectors."""

    model: str
    dimensions: int

    def __str__(self) -> str:
        return f"{self.model!r:.200} with {self.dimensions} numbers"

    def check_same(self, kept: "VectorSpace", place: str) -> None:
        """Raise `StoreError`, naming both models, if the vectors at that place are of another one."""
        if kept != self:
            raise StoreError(
                f"{place} has vectors of the embedding model {kept}, and was opened for {self}, which do not compare: "
                f"give the embedding that it was made with, or another place, and index again"
            )


class StoreBase(ABC):
    """Stores and searches the texts of several owners; no owner ever sees a text of another.

    Every method takes the owner. Methods raise `StoreError` for invalid arguments and for a failing database, which
    takes a bounded time. One store may serve many tasks, threads and event loops at once.
    """

    __repr__ = repr_by_settings

    def __deepcopy__(self, memo: object) -> Self:
        # A copy of an agent uses the same store, like a server.
        return self

    @abstractmethod
    async def write(
        self,
        owner: str,
        put: Sequence[StoredText] = (),
        *,
        retract: Sequence[str] = (),
        delete: Sequence[str] = (),
        delete_sources: Sequence[str] = (),
    ) -> None:
        """Delete what is of these sources or has these ids, retract these ids, then put these texts: all or nothing.

        What has an id that the owner has already replaces that one, which stays with its `ended_at`, as one that is
        retracted does; one that is the same as before changes nothing. What is deleted is gone, with what it replaced.
        Ids and sources that do not exist are passed over.
        """

    @abstractmethod
    async def get(self, owner: str, ids: Sequence[str]) -> list[StoredText]:
        """Return the current texts with these ids, in that order; unknown ids are skipped."""

    @abstractmethod
    async def history(self, owner: str, id: str) -> list[StoredText]:
        """Return all versions of the text with this id, oldest first, including replaced and retracted ones."""

    @abstractmethod
    async def list_texts(
        self, owner: str, *, source: str | None = None, where: MetadataFilter | None = None, limit: int = 1_000
    ) -> list[StoredText]:
        """Return current texts, newest first; those of one write keep their order."""

    @abstractmethod
    async def list_sources(self, owner: str) -> dict[str, JSONObject]:
        """Return the sources with current texts, each with the metadata of its first text."""

    @abstractmethod
    async def search_text(
        self, owner: str, query: str, limit: int = 5, *, where: MetadataFilter | None = None
    ) -> list[TextMatch]:
        """Return the current texts that share words with the query, best first, by BM25.

        Any query is valid: it has no operators, and one without words finds nothing.
        """

    def use_vectors(self, model: str, dimensions: int) -> None:
        """Store vectors of that embedding model and length from now on.

        Raises `ConfigError` if a package is missing, and `StoreError`, naming both, if the store has vectors of
        another model: at once if that is known, otherwise when the database is opened.
        """
        raise ConfigError(f"{type(self).__name__} keeps no vectors: leave the embedding out, or give another store")

    async def search_vectors(
        self, owner: str, vector: Vector, limit: int = 5, *, where: MetadataFilter | None = None
    ) -> list[TextMatch]:
        """Return the current texts with the most similar vectors, best first, scored from -1 to 1.

        The scores are cosines, so those of two searches are comparable.
        """
        raise StoreError(f"{type(self).__name__} keeps no vectors")

    @abstractmethod
    async def forget(self, owner: str) -> None:
        """Delete all texts of the owner, including replaced and retracted ones."""


def check_text_name(what: str, name: object, *, may_be_empty: bool = False) -> str:
    """Return the name of an owner, the id of its text or a source; raises `StoreError` for an invalid one."""
    if not isinstance(name, str) or not (name or may_be_empty) or len(name) > _MAX_STORED_NAME or "\0" in name:
        lengths = f"{0 if may_be_empty else 1} to {_MAX_STORED_NAME:,}"
        raise StoreError(
            f"{what} must be a str of {lengths} characters without a null character, not {repr_of(name, 100)}"
        )
    # Not repaired like texts: two owners, or two documents, could become one.
    if whole_characters(name) != name:
        raise StoreError(f"{what} has half of a character in it, which cannot be kept: {repr_of(name, 100)}")
    return name


def check_text_names(what: str, names: object) -> list[str]:
    """Return each name once, in order; raises `StoreError` for an invalid one."""
    if not isinstance(names, (list, tuple, set, frozenset)):  # a str would pass for a list of letters
        raise StoreError(f"{what} must be a list of str, not {repr_of(names, 100)}")
    return list(dict.fromkeys(check_text_name(f"each of {what}", name, may_be_empty=True) for name in names))


def check_limit(what: str, limit: object) -> int:
    """Return the limit; raises `StoreError` for an invalid one."""
    return check_whole(what, limit, most=_MAX_MATCHES, error=StoreError)


def check_filter(where: object) -> dict[str, str | int | float | bool | None]:
    """Return a copy of a filter by metadata, empty for none; raises `StoreError` for an invalid one."""
    if where is None:
        return {}
    if not isinstance(where, Mapping):
        raise StoreError(f"where must be a dict of metadata, as in {{'lang': 'en'}}, not {repr_of(where, 100)}")
    for key, value in where.items():
        is_number = isinstance(value, (int, float)) and abs(value) <= float_info.max
        if not isinstance(key, str) or not (value is None or isinstance(value, str) or is_number):
            raise StoreError(
                f"where must compare metadata to strings, numbers, booleans or None, not {repr_of({key: value}, 100)}"
            )
    return {whole_characters(k): whole_characters(v) if isinstance(v, str) else v for k, v in where.items()}


def check_vector(what: str, vector: object, space: VectorSpace | None) -> list[float]:
    """Return the numbers; raises `StoreError` unless it is a vector of that space."""
    if space is None:
        raise StoreError(f"{what} cannot be used before use_vectors(model, dimensions): call that first")
    try:
        numbers = [float(number) for number in vector]  # type: ignore[attr-defined]  # checked by trying
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != space.dimensions or not all(map(isfinite, numbers)):
        raise StoreError(f"{what} must be {space.dimensions} finite numbers, not {repr_of(vector, 100)}")
    return numbers


def check_texts(texts: Sequence[StoredText], space: VectorSpace | None = None) -> list[StoredText]:
    """Return the texts in storable form; raises `StoreError`, naming the text, for an invalid one."""
    checked: dict[str, StoredText] = {}
    for text in texts:
        if not isinstance(text, StoredText):
            raise StoreError(f"put takes StoredText objects, as in StoredText('1', 'Hello.'), not {text!r:.100}")
        # Of two with the same id, the stored one would be arbitrary.
        id = check_text_name("the id of each text", text.id)
        if id in checked:
            raise StoreError(f"the id {id!r:.100} is in one write twice: each needs its own")
        words: object = text.text
        if not isinstance(words, str) or len(words) > _MAX_TEXT_LENGTH:
            limit = f"a str of at most {_MAX_TEXT_LENGTH:,} characters"
            raise StoreError(f"the text {id!r:.100} must be {limit}, not {repr_of(words, 50)}: split it")
        checked[id] = replace(
            text,
            id=id,
            text=whole_characters(words),
            keywords=whole_characters(str(text.keywords)),
            source=check_text_name(f"the source of the text {id!r:.100}", text.source, may_be_empty=True),
            metadata=_check_metadata(id, text.metadata),
            vector=None if text.vector is None else check_vector(f"the vector of {id!r:.100}", text.vector, space),
        )
    return list(checked.values())


def _check_metadata(id: str, metadata: Any) -> JSONObject:
    problem = json_problem(metadata) if isinstance(metadata, dict) else "it is not a dict"
    data = b"" if problem else to_json(metadata)
    if len(data) > _MAX_METADATA_BYTES:
        problem = f"it has more than {_MAX_METADATA_BYTES:,} bytes"
    if problem is not None:
        raise StoreError(f"the metadata of the text {id!r:.100} cannot be kept: {problem}")
    kept: JSONObject = from_json(data)  # as it will be read back: a copy, with lists instead of tuples
    return kept
