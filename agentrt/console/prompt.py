"""The user's typed or pasted lines."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import suppress

if sys.platform == "win32":
    import msvcrt
else:
    import termios

_PAUSE = 0.05  # seconds; the lines of a paste come faster, and no user types a line in this time
_MAX_PIECES = 1000  # of a paste in progress: a terminal delivers some kilobytes at a time


class Prompt:
    """Messages from standard input, with a prompt if it and standard output are a terminal.

    A message is one line, or all lines of a paste.
    """

    def __init__(self) -> None:
        self._is_shown = sys.stdin.isatty() and sys.stdout.isatty()
        self._knows_pastes = self._is_shown and _enable_bracketed_paste()

    def __iter__(self) -> Iterator[str]:
        """Yield messages until the end of input or two Ctrl-C in a row."""
        interrupted = False
        while True:
            try:
                yield self._read().strip()
                interrupted = False
            except EOFError:
                if self._is_shown:
                    print()
                return
            except KeyboardInterrupt:
                print()
                if interrupted:
                    return
                interrupted = True
                print("Ctrl-C again leaves, and so do Ctrl-D and /quit.")

    def discard_input(self) -> None:
        """Discard unread input of a terminal; input through a pipe stays."""
        if not sys.stdin.isatty():
            return
        for _ in range(_MAX_PIECES):
            _discard_pending()
            if not _has_pending(2 * _PAUSE):
                return

    def _read(self) -> str:
        if not self._is_shown:
            return input()
        was_typed_ahead = _has_pending(0)  # then its lines were typed one by one
        lines = [input("> ")]
        if was_typed_ahead and sys.modules.get("readline") is None:
            print(lines[0])  # it was typed without an echo, or the echo is far up
        if not self._knows_pastes and not was_typed_ahead:
            with suppress(EOFError):
                while _has_pending(_PAUSE):
                    lines.append(input())
        return "\n".join(lines)


def _enable_bracketed_paste() -> bool:
    """Give `input` line editing, and return whether it reads a paste of several lines as one."""
    try:
        import readline
    except ImportError:  # Windows has its own
        return False
    if "libedit" in (readline.__doc__ or "") or os.environ.get("TERM", "dumb") == "dumb":  # not supported there
        return False
    readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off
    return True


if sys.platform == "win32":

    def _has_pending(seconds: float) -> bool:
        return bool(msvcrt.kbhit())

    def _discard_pending() -> None:
        while msvcrt.kbhit():
            msvcrt.getwch()

else:

    def _has_pending(seconds: float) -> bool:
        return bool(select.select([sys.stdin], [], [], seconds)[0])

    def _discard_pending() -> None:
        with suppress(termios.error):  # the terminal is gone
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
