"""Which tool fits a question, and the arguments for it, by the names that tools and parameters usually have."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agentrt.model.rules.rule import Facts, OfferedTool, PlannedCall, to_argument
from agentrt.model.rules.words import content_words, numbers_in, quotation_in, stem

__all__ = [
    "CALCULATE",
    "LIST_FILES",
    "READ_FILE",
    "RECENT_FILES",
    "SEARCH_FILES",
    "arguments_for",
    "call_by_name",
    "example_questions",
]


def _tool_taking(verbs: str, *names: str) -> Callable[[Facts, Sequence[OfferedTool]], PlannedCall | None]:
    """Choose the first tool named after one of the `verbs` that needs one parameter of these `names`, or none."""

    def choose(facts: Facts, tools: Sequence[OfferedTool]) -> PlannedCall | None:
        for tool in tools:
            name = next((name for name in names if name in tool.parameters), "")
            # A tool that requires anything else cannot be called with this alone.
            fits = bool(name) == bool(names) and set(tool.required) <= {name}
            if fits and (not verbs or _words_of(tool) & {*verbs.split()}):
                return tool.name, {name: to_argument(tool, name, facts[names[0]])} if name else {}
        return None

    return choose


CALCULATE = _tool_taking("", "expression", "expr", "formula", "equation")
SEARCH_FILES = _tool_taking("search find grep look query", "text", "query", "pattern", "keyword", "term", "word", "q")
READ_FILE = _tool_taking("read open show view cat get", "path", "file", "filename", "file_path", "file_name")
LIST_FILES = _tool_taking("list ls dir tree files")
RECENT_FILES = _tool_taking("recent changed modified latest newest", "days")

_EXAMPLES = {
    "List the files": LIST_FILES,
    "What changed today?": RECENT_FILES,
    "Which file contains the word zebra?": SEARCH_FILES,
    "Read README.md": READ_FILE,
    "What is 17 * 23?": CALCULATE,
}


def example_questions(tools: Sequence[OfferedTool]) -> str:
    """Return a line with questions that these tools can answer, "" where they can answer none."""
    facts = dict.fromkeys(("days", "text", "path", "expression"), "")
    questions = [f'"{question}"' for question, choose in _EXAMPLES.items() if choose(facts, tools)]
    return f"\n\nAsk me, for example: {', '.join(questions)}" if questions else ""


def call_by_name(facts: Facts, tools: Sequence[OfferedTool]) -> PlannedCall | None:
    """Choose the first tool that the question names, if the question has what the tool requires."""
    words = {stem(word.lower()) for word in content_words(facts["question"])}
    for tool in tools:
        is_named = not words.isdisjoint(stem(word) for word in _words_of(tool))
        arguments = arguments_for(tool, facts["question"])
        # Whatever the question is, its words are not an expression to calculate.
        if is_named and set(tool.required) <= set(arguments) and "expression" not in arguments:
            return tool.name, arguments
    return None


def _words_of(tool: OfferedTool) -> set[str]:
    """Return the words of the tool's name and the first of its description, which is often its verb."""
    name = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", tool.name)
    return {word.lower() for word in [*name, *(word.removesuffix("s") for word in tool.description.split()[:1])]}


def arguments_for(tool: OfferedTool, question: str, *, insist: bool = False) -> dict[str, Any]:
    """Fill the parameters with what the question says; the required ones with something, if the caller insists."""
    after = re.findall(r"\b(?:in|for|of|at|to|from|about|on)\s+((?:[A-Z][\w-]*\s?)+|\w[\w.-]*)", question)
    texts = [text.strip() for text in (quotation_in(question), *after, *content_words(question)) if text]
    numbers = iter(numbers_in(question))
    # Each number and each text is used once, in the order of the parameters.
    candidates: dict[str, Iterator[Any]] = {"string": iter(texts), "integer": numbers, "number": numbers}
    spare = {"string": question, "integer": 0, "number": 0, "boolean": True, "array": [], "object": {}}
    arguments: dict[str, Any] = {}
    for name in tool.required:
        schema = tool.parameters.get(name, {})
        kind, options = schema.get("type", "string"), schema.get("enum")
        if options is None:
            value = next(candidates.get(kind, iter(())), spare.get(kind) if insist else None)
        else:
            mentioned = (option for option in options if str(option) in question)
            value = next(mentioned, (options or [spare.get(kind)])[0] if insist else None)
        if value is not None or insist:
            arguments[name] = value
    return arguments
