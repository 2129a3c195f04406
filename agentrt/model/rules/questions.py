"""What a question asks for: each function returns what it has found, or `None` when it does not apply."""

import re

from agentrt.model.rules.rule import Facts
from agentrt.model.rules.search_result import best_hits, hits_in
from agentrt.model.rules.words import STOP_WORDS, content_words, file_in, quotation_in, search, stem
from agentrt.text import lazy_pattern

__all__ = [
    "asks_about_a_word",
    "asks_for_a_number",
    "asks_what_changed",
    "asks_what_it_says",
    "asks_which_file",
    "has_failed",
    "is_in_the_system_prompt",
    "is_listed_elsewhere",
    "names_a_file",
]

_FILES = r"\b(?:files?|documents?|notes?|where|find|search|look|anything)\b.{0,60}?\b"
_WHICH_FILE = (
    _FILES + r"the (?P<exact>words?|text|term|phrase|string)\s+(?P<text>.+)",
    _FILES + r"(?:(?:contain|mention|hold|include|define|say|use)(?:s|ing)?|has|have|(?:is|are) about)\s+(?P<text>.+)",
    r"\b(?:where|in (?:which|what) files?) (?:is|are|does|do|can i find)\s+(?P<text>.+)",
    r"哪[个些]?文件.*?(?:包含|提到|含有|有)\s*(?P<text>[^\s？?。]+)",
)
_WHEN = r"(?:\s+(?:here|since|lately|recently|today|yesterday|in|the|this|last|past|few|folder|days|week|month))*\W*$"
_CHANGES = (
    rf"^\W*(?:what|which|show|list|has|did)\b.{{0,40}}\b(?:changed?|modified|edited|updated){_WHEN}",
    r"\b(?:new|newest|recent|latest|changed|modified) (?:files|changes)\b|^\W*what(?:'s| is) new\W*$",
    r"(?:今天|昨天|最近|本周|什么|哪些).*(?:修改|改动|变化|更改|改了)",
)
_DAYS = {r"\byesterday\b|昨天": "2", r"\bweek\b|星期|周": "7", r"\bmonth\b|月": "31"}
_LABEL = lazy_pattern(r"^(?:(?:the|a|an|words?|text|name|class|function|method)\s+)+", re.IGNORECASE)
_AFTERTHOUGHT = lazy_pattern(
    r"\s+(?:in (?:it|(?:the|this|these|all|any)\b.*)|anywhere|mentioned|used|defined)$", re.IGNORECASE
)
_OPERATORS = {"plus": "+", "minus": "-", "times|multiplied by|x": "*", "divided by": "/"}
_READS = (
    r"^(?:please )?(?:read|open|show|print|cat) (?:me )?(?:the )?(?:file )?(?P<path>[^\s?!]+)[.?!]*$",
    r"\bwhat(?: does|'s in| is in) (?:the )?(?:file )?(?P<path>[^\s?!]+)(?: say\b|\?*$)",
)


def asks_which_file(facts: Facts) -> Facts | None:
    """Find the `text` to search for, unless a file is named or the text is unlikely to be found in one piece."""
    question = facts["question"].rstrip(" .?!")
    groups = search(question, *_WHICH_FILE)
    if groups is None or file_in(question.removesuffix(groups["text"])):
        return None  # the question is about the file that it names
    quotation = quotation_in(groups["text"])
    text = _LABEL.sub("", _AFTERTHOUGHT.sub("", groups["text"])).strip(" ,;:'\"")
    # Several words that are not quoted are unlikely to be found together; another rule looks for the rarest of them.
    is_exact = quotation or groups.get("exact") or " " not in text
    return {"text": quotation or text} if is_exact and re.search(r"\w", text) else None


def asks_about_a_word(facts: Facts) -> Facts | None:
    """Find the `text` to search for: what is quoted, or else the word that says most.

    The question may have been about anything, so `hint` says which ones the rules understand.
    """
    words = [quotation_in(facts["question"]), *map(stem, content_words(facts["question"]))]
    return next(({"text": word, "hint": facts["examples"]} for word in words if word), None)


def asks_for_a_number(facts: Facts) -> Facts | None:
    """Find the `expression` to calculate, in digits or with operators in words; but no date and no version."""
    question = facts["question"]
    for words, operator in _OPERATORS.items():
        question = re.sub(rf"\b(?:{words})\b", operator, question, flags=re.IGNORECASE)
    # A run of digits and operators must hold a sum; one like 2024-05-01 or 1.2.3 is a date or a version.
    runs = re.findall(r"(?<![0-9A-Za-z_./-])[-(\d.][-+*/%().\d\s]*[\d)](?![0-9A-Za-z_])", question)
    sums = [run for run in runs if re.search(r"\d[\s)]*[-+*/%][-+*/%\s(.]*\d", run)]
    longest = max((run for run in sums if not re.fullmatch(r"\d+(?:[-/.]\d+){2,}", run)), key=len, default="")
    asks = re.search(
        r"\b(?:what(?:'s| is)|calculate|compute|evaluate|how much)\b|=|等于|多少|计算", question, re.IGNORECASE
    )
    return {"expression": longest} if longest and (asks or 2 * len(longest) > len(question)) else None


def asks_what_changed(facts: Facts) -> Facts | None:
    """Find the number of `days` whose changes are asked for, 1 for today."""
    question = facts["question"]
    if search(question, *_CHANGES) is None:
        return None
    return {"days": next((days for words, days in _DAYS.items() if search(question, words) is not None), "1")}


def names_a_file(facts: Facts) -> Facts | None:
    """Find the `path` of the file that the question is about."""
    path = file_in(facts["question"]) or (search(facts["question"], *_READS) or {"path": ""})["path"]
    return {"path": path} if path and path.lower() not in STOP_WORDS else None


def has_failed(facts: Facts) -> Facts | None:
    """Apply after a call that failed."""
    return {} if "error" in facts else None


def is_listed_elsewhere(facts: Facts) -> Facts | None:
    """After a list: the file whose name, with or without its ending, is the one that could not be read."""
    missing = facts["path"].rpartition("/")[2].lower()
    names = {path: path.rpartition("/")[2].lower() for path in facts["result"].splitlines() if path != facts["path"]}
    return next(({"path": path} for path, name in names.items() if missing in (name, name.partition(".")[0])), None)


def asks_what_it_says(facts: Facts) -> Facts | None:
    """After a search: find the `path` of the file to read, if the question asks what is said and not where."""
    asks = re.search(r"\b(?:says?|explain|describe|tell me)\b", facts["question"], re.IGNORECASE)
    best, _ = best_hits(hits_in(facts["result"]), content_words(facts["question"]))
    return {"path": best[0].path} if asks and best else None


def is_in_the_system_prompt(facts: Facts) -> Facts | None:
    """Find the `fact` in a line of the system prompt, such as "Time: 12:00"."""
    asked_for = search(facts["question"], r"\bwhat (?P<what>time|date|day) is it\b")
    return asked_for and search(facts["system"], rf"(?m)^(?P<fact>{asked_for['what']}: .*)")
