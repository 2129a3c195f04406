"""Pictures of the site: the chains of an agent as onions, in light and dark colours."""

import contextlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from agentrt import Agent

__all__ = ["agent_of_page", "draw_chains", "pictures"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"index.md": "chains.svg", "middlewares/index.md": "middlewares/onion.svg"}

WIDTH, MARGIN, HEADING = 700, 16, 28
TITLE, INSET, CORE = 36, 22, 44  # heights of a layer's title and of the core; a layer's margin around the next one
WAY_IN, WAY_OUT = 480, 590

# An image cannot know the colours of the page around it, so it has a background.
STYLE = """
text { font: 15px system-ui, sans-serif; fill: #1b2638 }
.small { font-size: 13px }
.name { font-weight: 600 }
.page { fill: #ffffff; stroke: #c5cede }
.layer { fill: #4a6fd1; fill-opacity: .14; stroke: #4a6fd1 }
.core { fill: #4a6fd1; stroke: #4a6fd1 }
.core-name { fill: #ffffff }
.way { fill: none; stroke: #b3471b; stroke-width: 2; marker-end: url(#tip) }
.tip { fill: #b3471b }
@media (prefers-color-scheme: dark) {
  text { fill: #e3e8f2 }
  .page { fill: #161b26; stroke: #3a465c }
  .layer { fill: #8fa8ee; stroke: #8fa8ee }
  .core { fill: #3a5cb8 }
  .way { stroke: #f0a37f }
  .tip { fill: #f0a37f }
}
"""


def pictures() -> dict[Path, str]:
    """Return each picture: the chains of the agent that its page makes and explains."""
    chains = {
        DOCS / picture: draw_chains(json.loads(agent_of_page(DOCS / page).explain("json")))
        for page, picture in PAGES.items()
    }
    return {**chains, DOCS / "tutorials" / "layers.svg": draw_layers(DOCS / "tutorials" / "evaluation.md")}


def draw_layers(page: Path) -> str:
    """Return the plot of the report that the first program of the page makes, on a background of its own."""
    names = _run_program(page, "report = ")
    plot: str = names["report"].plot_layers()
    return plot.replace("</title>", '</title><rect width="100%" height="100%" fill="#ffffff"/>', 1) + "\n"


def agent_of_page(page: Path) -> Agent:
    """Run the first program in the page that prints `agent.explain()`, and return its agent."""
    agent: Agent = _run_program(page, "print(agent.explain())")["agent"]
    return agent


def _run_program(page: Path, line: str) -> dict[str, Any]:
    """Run the first program in the page that has this line, and return its names."""
    programs = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    program = next(source for source in programs if line in source)
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(program, "chat.py", "exec"), names)
    return names


def draw_chains(description: Mapping[str, Any]) -> str:
    """Return an SVG of the chains that have layers, one below the other."""
    elements, top = [], MARGIN
    for hook in description["hooks"]:
        if hook["layers"]:
            names = [layer["class"] for layer in hook["layers"]]
            height = CORE + len(names) * (TITLE + INSET)
            elements += [_text(MARGIN, top + 14, hook["hook"], "name"), _text(160, top + 14, hook["wraps"], "small")]
            elements += _onion(names, top + HEADING, height)
            top += HEADING + height + MARGIN
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">',
        f"<style>{STYLE}</style>",
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" orient="auto">'
        '<path class="tip" d="M0 0 8 4 0 8z"/></marker>',
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{top - 1}" rx="10"/>',
    ]
    return "\n".join([*head, *elements, "</svg>\n"])


def _onion(names: Sequence[str], top: int, height: int) -> Iterator[str]:
    """Yield the layers, each around the next one, the core, and the two ways through them."""
    for depth, name in enumerate(names):
        yield _box(depth, top, height, "layer")
        yield _text(MARGIN * 2 + depth * INSET, top + depth * TITLE + 24, name, "name")
    core = top + len(names) * TITLE
    yield _box(len(names), top, height, "core")
    yield _text(MARGIN * 2 + len(names) * INSET, core + 28, "core", "name core-name")
    yield f'<path class="way" d="M{WAY_IN} {top - 10}V{core}"/>'
    yield f'<path class="way" d="M{WAY_OUT} {core}V{top - 10}"/>'
    yield _text(WAY_IN - 52, top + 23, "way in", "small")
    yield _text(WAY_OUT - 60, top + 23, "way out", "small")


def _box(depth: int, top: int, height: int, kind: str) -> str:
    left = MARGIN + depth * INSET
    size = f'width="{WIDTH - 2 * left}" height="{height - depth * (TITLE + INSET)}"'
    return f'<rect class="{kind}" x="{left}" y="{top + depth * TITLE}" {size} rx="8"/>'


def _text(x: int, y: int, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'
