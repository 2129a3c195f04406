"""What a store of texts does, whichever database it keeps them in."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from sys import float_info
from typing import Any, NamedTuple, Self

from pydantic_core import from_json, to_json

from agentrt.boundary import json_problem
from agentrt.embedding import Vector
from agentrt.errors import ConfigError, StoreError
from agentrt.representation import repr_by_settings
from agentrt.text import repr_of, whole_characters
from agentrt.types import JSONObject

__all__ = [
    "MetadataFilter",
    "StoreBase",
    "StoredText",
    "TextMatch",
    "VectorSpace",
    "check_filter",
    "check_limit",
    "check_text_name",
    "check_text_names",
    "check_texts",
    "check_vector",
]

MetadataFilter = Mapping[str, str | int | float | bool | None]
"""Which texts a search may find: those whose metadata have all of these values."""

_MAX_STORED_NAME = 1_000  # characters of an owner, an id or a source
_MAX_TEXT_LENGTH = 1_000_000  # characters
_MAX_METADATA_BYTES = 100_000  # bytes, as JSON
_MAX_MATCHES = 10_000


@dataclass(frozen=True, slots=True)
class StoredText:
    """What a store keeps under an id. `source` is what it is a part of: a document, a conversation.

    A search finds it by the words of `keywords` too, and by its `vector`, which are not read back. The times are
    nanoseconds since the epoch, and the store's to set: `ended_at` is when the text was replaced or retracted.
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
    """A text that a search has found. Scores are higher for better matches, and compare within one search only."""

    text: StoredText
    score: float


class VectorSpace(NamedTuple):
    """Which embedding model made the vectors of a store, and how many numbers they have."""

    model: str
    dimensions: int

    def __str__(self) -> str:
        return f"{self.model!r:.200} with {self.dimensions} numbers"

    def check_same(self, kept: "VectorSpace", place: str) -> None:
        """Raise `StoreError`, naming both, if the vectors kept at that place are of another model."""
        if kept != self:
            raise StoreError(
                f"{place} has vectors of the embedding model {kept}, and was opened for {self}, which do not compare: "
                f"give the embedding that it was made with, or another place, and index anew"
            )


class StoreBase(ABC):
    """Keeps texts of several owners, none of whom ever gets a text of another, and searches them.

    Every method is given the owner. Methods raise `StoreError` for bad arguments and for a database that fails, which
    takes a bounded time. One store may serve many tasks, threads and event loops at once.
    """

    __repr__ = repr_by_settings

    def __deepcopy__(self, memo: object) -> Self:
        # A copy of an agent looks into the same store, as it would into the same server.
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
        """Return the current texts with these ids, in that order, without those that do not exist."""

    @abstractmethod
    async def history(self, owner: str, id: str) -> list[StoredText]:
        """Return every version of what has this id, the oldest first: those that were replaced or retracted too."""

    @abstractmethod
    async def list_texts(
        self, owner: str, *, source: str | None = None, where: MetadataFilter | None = None, limit: int = 1_000
    ) -> list[StoredText]:
        """Return current texts, the newest first, and of those written at once the first one first."""

    @abstractmethod
    async def list_sources(self, owner: str) -> dict[str, JSONObject]:
        """Return the sources of which there are current texts, each with the metadata of its first text."""

    @abstractmethod
    async def search_text(
        self, owner: str, query: str, limit: int = 5, *, where: MetadataFilter | None = None
    ) -> list[TextMatch]:
        """Return the current texts that share words with the query, the best first, by BM25.

        Any query will do: nothing in it is an operator, and one without words finds nothing.
        """

    def use_vectors(self, model: str, dimensions: int) -> None:
        """Keep vectors from now on, of that embedding model and with that many numbers.

        Raises `ConfigError` where a package is missing, and `StoreError`, naming both, where the store has vectors of
        another model: at once where that is known, and else when the database is opened.
        """
        raise ConfigError(f"{type(self).__name__} keeps no vectors: leave the embedding out, or give another store")

    async def search_vectors(
        self, owner: str, vector: Vector, limit: int = 5, *, where: MetadataFilter | None = None
    ) -> list[TextMatch]:
        """Return the current texts whose vectors are most like this one, the best first, scored from -1 to 1.

        The scores are cosines, so that those of two searches compare.
        """
        raise StoreError(f"{type(self).__name__} keeps no vectors")

    @abstractmethod
    async def forget(self, owner: str) -> None:
        """Delete all that is the owner's: what was replaced or retracted too."""


def check_text_name(what: str, name: object, *, may_be_empty: bool = False) -> str:
    """Return the name of an owner, the id of its text or a source; raises `StoreError` for what cannot be one."""
    if not isinstance(name, str) or not (name or may_be_empty) or len(name) > _MAX_STORED_NAME or "\0" in name:
        lengths = f"{0 if may_be_empty else 1} to {_MAX_STORED_NAME:,}"
        raise StoreError(
            f"{what} must be a str of {lengths} characters without a null character, not {repr_of(name, 100)}"
        )
    # Not repaired, as texts are: two owners, or two documents, would become one.
    if whole_characters(name) != name:
        raise StoreError(f"{what} has half of a character in it, which cannot be kept: {repr_of(name, 100)}")
    return name


def check_text_names(what: str, names: object) -> list[str]:
    """Return each name once, in their order; raises `StoreError` for what cannot be one."""
    if not isinstance(names, (list, tuple, set, frozenset)):  # the letters of a str would pass for names
        raise StoreError(f"{what} must be a list of str, not {repr_of(names, 100)}")
    return list(dict.fromkeys(check_text_name(f"each of {what}", name, may_be_empty=True) for name in names))


def check_limit(what: str, limit: object) -> int:
    """Return the number; raises `StoreError` for what cannot be how many texts to return."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= _MAX_MATCHES:
        raise StoreError(f"{what} must be a whole number from 1 to {_MAX_MATCHES:,}, not {repr_of(limit, 100)}")
    return int(limit)


def check_filter(where: object) -> dict[str, str | int | float | bool | None]:
    """Return a copy of a filter by metadata, empty for none; raises `StoreError` for what cannot be one."""
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
    """Return the numbers; raises `StoreError` for what is not a vector of that space."""
    if space is None:
        raise StoreError(f"{what} cannot be used before use_vectors(model, dimensions) has said of what model it is")
    try:
        numbers = [float(number) for number in vector]  # type: ignore[attr-defined]  # checked by trying
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != space.dimensions or not all(map(isfinite, numbers)):
        raise StoreError(f"{what} must be {space.dimensions} finite numbers, not {repr_of(vector, 100)}")
    return numbers


def check_texts(texts: Sequence[StoredText], space: VectorSpace | None = None) -> list[StoredText]:
    """Return the texts as they can be kept; raises `StoreError`, naming the text, for what cannot be."""
    checked: dict[str, StoredText] = {}
    for text in texts:
        if not isinstance(text, StoredText):
            raise StoreError(f"put takes StoredText objects, as in StoredText('1', 'Hello.'), not {text!r:.100}")
        # Of two with one id, only chance would say which is kept.
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
    kept: JSONObject = from_json(data)  # as it will be read: a copy, whose tuples are lists
    return kept
