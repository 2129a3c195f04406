"""BM25: ranks short texts by the words that they share with a query."""

import re
from collections import Counter
from collections.abc import Mapping
from math import log

_WORD = re.compile(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]*|\d+|[^\W\dA-Za-z_]+")  # the parts of snake_case and camelCase
_SATURATION = 1.2  # how soon further mentions of a word stop counting; the usual value
_LENGTH_WEIGHT = 0.75  # how much a long text counts against itself; the usual value


def rank(query: str, texts: Mapping[str, str], *, matching: bool = False) -> list[str]:
    """Return the names of the texts, best first, ties in their order; with `matching`, only those that fit."""
    documents = {name: Counter(_terms(text)) for name, text in texts.items()}
    mean_length = sum(map(Counter.total, documents.values())) / max(1, len(documents)) or 1.0
    # Each word once: repetitions in a question add no meaning.
    words = set(_terms(query))
    weights = {}
    for word in words:
        holders = sum(word in document for document in documents.values())
        weights[word] = log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))

    def score(name: str) -> float:
        document = documents[name]
        # Longer texts contain more words by chance, and each further mention says less.
        norm = _SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * document.total() / mean_length)
        return sum(weights[word] * document[word] * (_SATURATION + 1) / (document[word] + norm) for word in words)

    scores = {name: score(name) for name in documents}
    ranking = sorted(scores, key=lambda name: -scores[name])
    return [name for name in ranking if scores[name] > 0] if matching else ranking


def _terms(text: str) -> list[str]:
    # Without a plural's "s", which is enough grammar for names of tools.
    return [word.lower().removesuffix("s") for word in _WORD.findall(text)]
