"""A reply in a terminal, drawn with rich."""

import sys
from typing import Any, Self, TextIO

from agentrt._runtime.text import escape_controls
from agentrt.console.render.echo import Echo
from agentrt.console.render.paragraphs import Paragraphs
from agentrt.console.render.plain import INDENT, Kind, PlainView

_REDRAWN_PER_SECOND = 10
_STYLES = {"error": "bold red", "retry": "yellow", "call": "cyan", "stopped": "yellow"}


class RichView(PlainView):
    """Redraws the unfinished paragraph, and prints finished ones above it, as Markdown.

    So a piece of a long answer costs no more than one of a short answer. Typed text is not echoed meanwhile, since it
    would move the cursor away from the paragraph to redraw. Without `markdown` the answer is shown unchanged. Raises
    `ImportError` if rich is not installed.
    """

    def __init__(self, file: TextIO, *, markdown: bool = True) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(file)
        self._markdown = markdown
        self._open: Kind | None = None
        self._echo = Echo()
        self._paragraphs = Paragraphs()
        self._waiting: Any = ""
        self._console = Console(file=file, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console,
            get_renderable=self._draw_unfinished,
            refresh_per_second=_REDRAWN_PER_SECOND,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:
            # Even if printing has failed: otherwise the cursor stays hidden, and rich's thread keeps running.
            self._waiting = ""
            self._live.stop()
            self._echo.turn_on()

    def stream(self, kind: Kind, piece: str) -> None:
        """Add to the open text, and print the finished paragraphs."""
        if self._open != kind:
            self.end()
            self._open = kind
            self._echo.turn_off()
        for finished in self._paragraphs.feed(escape_controls(piece)):
            self._print(self._format(finished))
            self._print("")

    def end(self) -> None:
        """Print the rest of the open text."""
        rest = self._paragraphs.take_rest()
        if rest.strip():
            self._print(self._format(rest))
        self._open = None

    def line(self, label: str, text: str, depth: int = 0) -> None:
        """Print a separate line, indented by depth."""
        from rich.text import Text

        self.end()
        style = _STYLES.get(label, "dim")
        line = Text.assemble((f"{label} ", style), (escape_controls(text), "" if label == "call" else style))
        line.pad_left(len(INDENT) * depth)
        self._print(line)

    def wait(self, reason: str, *, for_tool: bool = False) -> None:
        """Show a spinner with the reason until something is printed or streamed."""
        from rich.spinner import Spinner
        from rich.text import Text

        if for_tool:
            self._echo.turn_on()  # which may ask the user
        else:
            self._echo.turn_off()
        self._waiting = Spinner("dots", Text(escape_controls(reason), style="dim"), style="dim")

    def _print(self, renderable: Any) -> None:
        self._live.refresh()  # without the text about to be printed, which would appear twice
        self._console.print(renderable)

    def _draw_unfinished(self) -> Any:
        # Runs in rich's own thread, ten times a second.
        rest = self._paragraphs.rest
        if not rest.strip():
            return self._waiting
        lines = rest.split("\n")
        room = self._console.height - 2
        if len(lines) <= room:
            return self._format(rest)
        # As plain text, since half a table is not Markdown; only the end, which the user reads.
        return self._as_plain("\n".join(lines[-room:]))

    def _format(self, text: str) -> Any:
        from rich.markdown import Markdown

        if self._open == "thinking" or not self._markdown:
            return self._as_plain(text.strip("\n"))
        return Markdown(text, hyperlinks=False)  # the target of a link stays readable

    def _as_plain(self, text: str) -> Any:
        from rich.text import Text

        return Text(text, style="dim italic" if self._open == "thinking" else "")
