"""The words of texts and queries, in a form for full-text indexes."""

import re
import unicodedata

_MAX_QUERY = 4_000  # characters; a question is clear by then
_MAX_TERMS = 64
# Han, kana and Hangul, which are written without spaces, or with endings unknown to an English stemmer.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(rf"([{_UNSPACED}]+)|([^\W_{_UNSPACED}]+)")
_CAMEL_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Words in nearly every sentence say nothing about its subject, and would make an index visit nearly every text.
_STOP_WORDS = frozenset(
    """
    a about an and any are as at be been but by can could did do does for from had has have how i if in into is it its
    me my no not of on or our should so that the their them then there these they this those to was we were what when
    where which who why will with would you your
    """.split()  # noqa: SIM905  # a list of words reads best as a sentence
)


def index_terms(text: str) -> str:
    """Return the words of the text to index, separated by spaces.

    Runs without spaces become pairs of characters, so that a word inside them is found. For names like `TextReader`
    the parts are indexed too.
    """
    terms: list[str] = []
    for run, word in _RUN.findall(unicodedata.normalize("NFKC", text)):
        terms += _pairs(run, is_query=False) if run else _word_and_parts(word)
    return " ".join(terms)


def query_terms(query: str) -> list[str]:
    """Return the words of a query, each once: indexed words, and prefixes, which end with `*`.

    Stop words are left out, unless there are no others. Only the beginning of a long query counts.
    """
    terms: dict[str, None] = {}  # an ordered set
    for run, word in _RUN.findall(unicodedata.normalize("NFKC", query[:_MAX_QUERY])):
        terms.update(dict.fromkeys(_pairs(run, is_query=True) if run else map(str.lower, _word_and_parts(word))))
    telling = [term for term in terms if term not in _STOP_WORDS]
    return (telling or list(terms))[:_MAX_TERMS]


def _pairs(run: str, *, is_query: bool) -> list[str]:
    pairs = [run[place : place + 2] for place in range(len(run) - 1)]
    if not is_query:
        # The last character alone, so that a query of one character finds it: every other starts a pair.
        return [*pairs, run[-1]]
    return pairs or [f"{run}*"]


def _word_and_parts(word: str) -> list[str]:
    parts = _CAMEL_PART.findall(word)
    return [word, *parts] if len(parts) > 1 else [word]
