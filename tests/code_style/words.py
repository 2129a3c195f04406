"""The words and shapes that no name and no sentence of this project may have, each with its replacement.

Run `python -m tests.code_style.words [FILE ...]` for the list of what is to be mended.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.syntax import nodes_of

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted([*ROOT.glob("agentrt/**/*.py"), *ROOT.glob("middleware/**/*.py")])
PROGRAMS = sorted(
    [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("examples/**/*.py"), *ROOT.glob("scripts/**/*.py"), ROOT / "dev.py"]
)
TESTS = sorted(ROOT.glob("tests/**/*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("middleware/**/*.md")])

MAX_TEST_NAME = 60

# A name that consists of one of these words says neither what is done nor what it is.
BARE_WORDS = frozenset(
    """
    admitted answered apart around asked aside asides awaited begun beside besides broken called came checked cleaned
    cleared closed completed copied counted cut demanded denied done drained dropped dumped else ended escaped exceeded
    explained extended failed filled formatted found given going granted guarded heard held hinted indented inlined
    inside joined kept knotted known left listed loaded locked lost made marked mended merged moved named narrowed
    nested offered once opened own owned padded parted passed printed quoted refused registered renamed required
    resolved resumed said saved seen sent settled shared shortened shown soon spoken stated suspended taken thrown told
    touched unanswered undelivered unfinished validated wanted watched weighed worked written
    """.split()
)
# Public since before this list.
PUBLIC_CLASSES = frozenset({"Refused"})
# Reads as a claim in a list of evaluators: `called("search", times=1)`.
PUBLIC_FUNCTIONS = frozenset({"called"})
# Locals that name nothing; `kept` is what a call keeps, in `ToolContext.kept`.
EMPTY_LOCALS = frozenset("asked came done each given made most said shown told wanted".split())

SENTENCES = {
    r"\bis no (?!longer|more|one\b|doubt|need|reason|room|such|way)": 'say "is not a" or "has no"',
    r"\bwhich is no\b": 'say "which is not a"',
    r"\ba text\b(?! block| of| file| that a)": 'say "a str" for the type, "text" for the thing',
    r"\bput to rest\b": 'say "closed"',
    r"\b(?:go|goes|going|went|gone) on\b": 'say "resumes", "continues" or "proceeds"',
    r"\b[Ww]hoever\b": 'say "the caller", "the reader" or who it is',
    r"\b[Aa] person\b|\bpersons?'s?\b": 'say "the user"',
    r"\bhands? over\b": 'say "passes" or "delegates"',
    r"\b[Ss]omebody\b|\b[Aa]nybody\b": 'say "the user", "the caller" or "someone else"',
    r"\bstands? at places\b": 'say "is listed twice (positions 0 and 1)"',
    r"\bbut for\b": 'say "except"',
    r"\bthat come of it\b|\bthat comes of it\b": "say what the result is",
    r"\bis told\b(?! to)": 'say "is notified", "sees" or "is raised"',
}

ANY_SENTENCE = re.compile("|".join(SENTENCES))
LONG_TEST_NAME = re.compile(rf"^\s*(?:async )?def (test_\w{{{MAX_TEST_NAME - 4},}})", re.MULTILINE)


def names(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and what is wrong with it."""
    if path.stem.strip("_") in BARE_WORDS:
        yield 1, path.stem, "a file is a noun of the field"
    text = path.read_text(encoding="utf-8")
    if _is_test(path):
        for match in LONG_TEST_NAME.finditer(text):
            yield text.count("\n", 0, match.start(1)) + 1, match[1], f"a claim has at most {MAX_TEST_NAME} characters"
        return
    for node in nodes_of(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.strip("_") in BARE_WORDS - PUBLIC_FUNCTIONS and not _is_property(node):
                yield node.lineno, node.name, "a function is a verb in the imperative or the thing it returns"
        elif isinstance(node, ast.ClassDef) and node.name not in PUBLIC_CLASSES:
            if node.name.strip("_").lower() in BARE_WORDS:
                yield node.lineno, node.name, "a class is what it is"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            if node.id in EMPTY_LOCALS:
                yield node.lineno, node.id, "a local names the thing"
            elif re.match(r"_?MOST_", node.id):
                yield node.lineno, node.id, "say _MAX_"


def sentences(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, words and what to say instead, for strings, comments and documents."""
    whole = path.read_text(encoding="utf-8")
    if not ANY_SENTENCE.search(whole):  # few files have one: the others need not be taken apart
        return
    for line, text in [(1, whole)] if path.suffix == ".md" else _texts(whole):
        for shape, remedy in SENTENCES.items():
            for match in re.finditer(shape, text):
                yield line + text.count("\n", 0, match.start()), match[0], remedy


def _is_test(path: Path) -> bool:
    return ROOT / "tests" in path.parents


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)


def _texts(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT) or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            yield token.start[0], token.string


def problems(paths: Iterable[Path]) -> list[str]:
    """Return "file:line: words: remedy" for everything to be mended."""
    found = []
    for path in paths:
        checks = [sentences] if path.suffix == ".md" else [names] if _is_test(path) else [names, sentences]
        for check in checks:
            found += [f"{path.relative_to(ROOT)}:{line}: {words}: {why}" for line, words, why in check(path)]
    return found


if __name__ == "__main__":
    given = [Path(argument).resolve() for argument in sys.argv[1:]]
    chosen = [*SHIPPED, *PROGRAMS, *DOCUMENTS, *TESTS]
    if given:
        chosen = [path for path in chosen if any(path == place or place in path.parents for place in given)]
    mine = Path(__file__).resolve()
    print(*problems(path for path in chosen if path != mine), sep="\n")
