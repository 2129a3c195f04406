"""Pieces of Markdown."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator

__all__ = ["GENERATED", "block", "first_sentence", "source_fields", "table", "whole_docstring"]

GENERATED = "<!-- Made by `python -m scripts.reference` from the code: change the docstrings there. -->\n"


def table(*rows: Iterable[str]) -> str:
    """Return a table whose first row is its head."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    columns = lines[0].replace("\\|", "").count("|") - 1
    return "\n".join([lines[0], "|" + "---|" * columns, *lines[1:]]) + "\n"


def block(language: str, text: str) -> str:
    """Return a fenced block."""
    return f"```{language}\n{text.rstrip()}\n```\n"


def whole_docstring(thing: object) -> str:
    """Return the docstring as it was written, without its indentation; empty for one that was inherited."""
    documented = vars(thing).get("__doc__") if isinstance(thing, type) else getattr(thing, "__doc__", None)
    return inspect.cleandoc(documented or "")


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, in one line."""
    line = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=\.)\s(?=[A-Z`])", line, maxsplit=1)[0]


def source_fields(thing: type) -> Iterator[tuple[str, str]]:
    """Yield the name and the type of each field in the body of a class, as the source spells them."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    for node in ast.iter_child_nodes(definition):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, ast.unparse(node.annotation)
