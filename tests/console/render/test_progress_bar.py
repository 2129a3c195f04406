"""The bar of an indexing, on a terminal and elsewhere."""

import io

import pytest

from agentrt.console import ProgressBar
from agentrt.rag import IndexProgress


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_drawn_on_a_terminal_alone(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    file = _Screen() if is_terminal else io.StringIO()

    with ProgressBar(file) as bar:
        bar(IndexProgress("docs/[red]\x1b.md", 3, 7, 5, 20))

    text = file.getvalue()
    if is_terminal:
        assert "3/7 documents, 5/20 chunks" in text
        assert "docs/[red]\\x1b.md" in text
    else:
        assert text == ""
