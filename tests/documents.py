"""The pages of the documentation, and what the tests need of them: programs, headings, links."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Every Markdown file of the repository that a user reads, except those that tools read (`tests`, dot folders).
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("middleware/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
    ]
)

CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
SITE = re.findall(r"^site_url: (.*)$", CONFIG, re.MULTILINE)[0]
REPOSITORY = "https://github.com/agentrt/agentrt"
NAVIGATION = [ROOT / "docs" / name for name in re.findall(r"[\w/.-]+\.md$", CONFIG, re.MULTILINE)]

# A block of Python, and the block of text right after it, if any: what the program prints.
_PROGRAM = re.compile(
    r"^(?P<indent> *)```python[^\n]*\n(?P<source>.*?)^(?P=indent)```$"
    r"(?:\n\n(?P=indent)```text\n(?P<output>.*?)^(?P=indent)```$)?",
    re.DOTALL | re.MULTILINE,
)
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """A block of Python in a page: a whole program, which a reader can copy and run."""

    page: Path
    line: int  # of the block's first line of code, in the page
    source: str
    output: str | None  # what the page says that it prints; a line "..." stands for any number of lines

    @property
    def name(self) -> str:
        """The page and the line, as an editor opens it."""
        return f"{name_of(self.page)}:{self.line}"


def programs_of(page: Path) -> list[Program]:
    """Return all blocks of Python in a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Program(
            page,
            text.count("\n", 0, match.start("source")) + 1,
            textwrap.dedent(match["source"]),
            textwrap.dedent(match["output"]) if match["output"] else None,
        )
        for match in _PROGRAM.finditer(text)
    ]


def all_programs() -> list[Program]:
    """Return all blocks of Python in all pages."""
    return [program for page in PAGES for program in programs_of(page)]


def name_of(page: Path) -> str:
    """Return the path of a page in the repository."""
    return page.relative_to(ROOT).as_posix()


def anchors_of(page: Path) -> set[str]:
    """Return what a link to a heading of this page may end with, after the `#`."""
    text = _without_blocks(page)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    described = re.findall(r"^::: (.*)$", text, re.MULTILINE)  # by mkdocstrings, under the full name
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles} | set(described)


def links_of(page: Path) -> list[tuple[Path, str]]:
    """Return the file and the anchor of each relative link."""
    links = []
    for target in re.findall(r"\]\(([^()\s]*)\)", _without_blocks(page)):
        path, _, anchor = target.partition("#")
        if ":" not in path:
            links.append((page.parent / path if path else page, anchor))
    return links


def _without_blocks(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))
