"""What can be read off a question without understanding it: words, numbers, quotations, names of files."""

import re

__all__ = ["STOP_WORDS", "content_words", "file_in", "numbers_in", "quotation_in", "search", "stem"]

_STOP_WORD_LIST = """a about all am an and any anything are as at be been by can contain contains could define defined
defines do document documents does explain describe file files find folder for from give had has have he her here his
hold holds how i if in include includes into is it its know let line lines list look many may me mean mention mentioned
mentions much my no not of on open or our out please read say says search she should show so some tell text than that
the their them then there these they this to use used uses was we were what when where which who why will with word
words you"""
STOP_WORDS = frozenset(_STOP_WORD_LIST.split())
"""Words that may occur in any question and say nothing about its subject."""


def content_words(text: str) -> list[str]:
    """Return the words that say what the text is about, the rarest kind first: odd ones, names, long ones."""
    words = [re.sub(r"'s?$", "", word) for word in re.findall(r"\w+(?:[-'.]\w+)*", text)]
    subjects = dict.fromkeys(word for word in words if word.lower() not in STOP_WORDS and len(word) > 1)
    return sorted(subjects, key=lambda word: (word[1:].isalpha() and word[1:].islower(), word.islower(), -len(word)))


def stem(word: str) -> str:
    """Return the word without the endings that come and go in English; short words have none."""
    return word if len(word) < 5 else re.sub(r"(?:ing|ies|(?<!s)s)$", "", word, flags=re.IGNORECASE)


def search(text: str, *patterns: str) -> dict[str, str] | None:
    """Return the groups of the first of the patterns that is in the text, or `None`."""
    match = next(filter(None, (re.search(pattern, text, re.IGNORECASE) for pattern in patterns)), None)
    return None if match is None else {name: text or "" for name, text in match.groupdict().items()}


def numbers_in(text: str) -> list[int | float]:
    """Return the numbers in the text."""
    numbers = re.findall(r"-?\d{1,15}(?:\.\d{1,15})?", text)
    return [float(number) if "." in number else int(number) for number in numbers]


def quotation_in(text: str) -> str:
    """Return the text in the first quotation marks, "" when there are none."""
    match = re.search(r"""["“`]([^"”`]+)["”`]|(?<!\w)'([^']+)'(?!\w)""", text)
    return (match[1] or match[2]) if match else ""


def file_in(text: str) -> str | None:
    """Return the first word that looks like the path of a file."""
    tokens = (token.strip(",;:?!()[]'\"`*").rstrip(".") for token in text.split())
    return next((token for token in tokens if re.fullmatch(r"[\w./-]*\w\.[A-Za-z]\w{0,9}", token)), None)
