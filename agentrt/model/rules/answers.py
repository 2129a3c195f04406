"""Answers about a result: the places that a search has found, the lines of a file, the files of a list."""

import re
from collections.abc import Sequence

from agentrt.model.rules.rule import Facts
from agentrt.model.rules.search_result import SearchHit, best_hits, hits_in
from agentrt.model.rules.words import content_words

__all__ = ["describe_changes", "describe_file", "describe_list", "describe_matching_files", "describe_matching_lines"]

_MAX_HITS = 10
_MAX_FILE_LINES = 20
_MAX_PATHS = 100


def describe_matching_files(facts: Facts) -> str:
    """Say which files contain the text that was searched for."""
    text, hits, verb = facts["text"], hits_in(facts["result"]), "contain"
    # Most tools search for parts of words; whole words are better, and a definition is best if it is asked for.
    better = {"contain": rf"(?<!\w){re.escape(text)}(?!\w)"}
    if re.search(r"\bdefine[sd]?\b", facts["question"], re.IGNORECASE):
        better["define"] = rf"^(?:async )?(?:class|def|function) {re.escape(text)}\b|^{re.escape(text)} = "
    for better_verb, pattern in better.items():
        if better_hits := [hit for hit in hits if re.search(pattern, hit.text, re.IGNORECASE)]:
            hits, verb = better_hits, better_verb
    # The first place of each file, in the order of the files.
    files = list({hit.path: hit for hit in reversed(hits)}.values())[::-1]
    if not files:
        return describe_matching_lines(facts)
    if len(files) == 1:
        path, line, excerpt = files[0]
        return f"{path} {verb}s {text!r} on line {line}: {excerpt[:160]}"
    least = "At least " if "\n... " in facts["result"] else ""
    return f"{least}{len(files)} files {verb} {text!r}:\n{_list_places(files)}"


def describe_matching_lines(facts: Facts) -> str:
    """Say which lines hold the most of what the question is about."""
    words = content_words(facts["question"])
    best, count = best_hits(hits_in(facts["result"]), words)
    if best:
        places = _list_places(best)
        return places if count == len(words) else f"No line says all of that. The nearest:\n{places}"
    nothing = re.match(r"\W*(?:no\b|none|nothing|0\b|$)", facts["result"], re.IGNORECASE)
    hint = facts.get("hint", "")
    return f"I searched, and found no file here that contains {facts['text']!r}.{hint}" if nothing else facts["result"]


def describe_file(facts: Facts) -> str:
    """Say what the file says about the subject of the question, or how it begins."""
    path, lines = facts["path"], facts["result"].splitlines()
    question = re.sub(r"^\W*(?:please )?(?:cat|display|print|view)\b", "", facts["question"], flags=re.IGNORECASE)
    topic = [word for word in content_words(question) if word.lower() not in path.lower()]
    if topic:
        best, _ = best_hits((SearchHit(path, number, line) for number, line in enumerate(lines, 1)), topic)
        return _list_places(best) or f"{path} says nothing about {' or '.join(map(repr, topic))}."
    beginning = ", beginning" if len(lines) > _MAX_FILE_LINES else ""
    return "\n".join([f"{path} has {len(lines)} line{'s' * (len(lines) != 1)}{beginning}:", *lines[:_MAX_FILE_LINES]])


def describe_list(facts: Facts) -> str:
    """Say how many files there are, and which."""
    paths = [path for path in facts["result"].splitlines() if path and not re.match(r"no |\.\.\. ", path)]
    least = "at least " if "\n... " in facts["result"] else ""
    count = f"There {'is 1 file' if len(paths) == 1 else f'are {least}{len(paths)} files'}"
    if not paths or re.search(r"\bhow many\b", facts["question"], re.IGNORECASE):
        return f"{count}."
    more = ["..."] if len(paths) > _MAX_PATHS else []
    return "\n".join([f"{count}:", *paths[:_MAX_PATHS], *more])


def describe_changes(facts: Facts) -> str:
    """Say which files have changed in the days that were asked for."""
    days = "today" if facts["days"] == "1" else f"in the last {facts['days']} days"
    if facts["result"].startswith("no "):
        return f"No file here has changed {days}."
    return f"Changed {days}, the newest first:\n{facts['result']}"


def _list_places(hits: Sequence[SearchHit]) -> str:
    lines = [f"{path}, line {line}: {text.strip()[:160]}" for path, line, text in hits[:_MAX_HITS]]
    more = [f"... and {len(hits) - _MAX_HITS} more"] if len(hits) > _MAX_HITS else []
    return "\n".join(lines + more)
