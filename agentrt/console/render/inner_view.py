"""The view of a sub-agent's reply, among the lines of its caller."""

from agentrt._runtime.text import escape_controls, one_line
from agentrt.console.render.plain import Kind, View


class InnerView:
    """Shows the reply of a sub-agent as indented lines; its text has its name.

    Text is shown in complete lines, since several sub-agents may speak at once.
    """

    def __init__(self, outer: View, name: str) -> None:
        self._outer = outer
        self._name = escape_controls(one_line(name))
        self._kind: Kind = "text"
        self._pieces: list[str] = []  # of the incomplete line

    def stream(self, kind: Kind, piece: str) -> None:
        """Add to the open text, and show the completed lines."""
        if kind != self._kind:
            self.end()
            self._kind = kind
        *lines, rest = piece.split("\n")
        for line in lines:
            self._show(line)
        self._pieces.append(rest)

    def end(self) -> None:
        """Show the rest of the open text."""
        self._show("")

    def line(self, label: str, text: str, depth: int = 0) -> None:
        """End the open text, and show one event."""
        self.end()
        self._outer.line(label, text, depth + 1)

    def wait(self, reason: str, *, for_tool: bool = False) -> None:
        """Show the reason for waiting."""
        self._outer.wait(f"{self._name}: {reason}", for_tool=for_tool)

    def _show(self, end: str) -> None:
        line = "".join([*self._pieces, end])
        self._pieces = []
        if line.strip():
            label = self._name if self._kind == "text" else f"{self._name} is thinking"
            self._outer.line(label, line, 1)
