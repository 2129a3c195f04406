"""The echo of a terminal, which writes typed text at the cursor."""

import atexit
import os
import sys

if sys.platform != "win32":
    import termios


class Echo:
    """Turns the echo of standard input off and on again, if it is a terminal.

    Text typed meanwhile stays in the input, for the next read. The echo is restored at the end of the program.
    """

    def __init__(self) -> None:
        self._is_off = False

    def turn_off(self) -> None:
        """Stop showing typed text."""
        if not self._is_off and _set_echo(False):
            self._is_off = True
            atexit.register(self.turn_on)  # Ctrl-C twice leaves the program while a reply still runs

    def turn_on(self) -> None:
        """Show typed text again, if `turn_off` stopped it."""
        if self._is_off:
            self._is_off = False
            atexit.unregister(self.turn_on)
            _set_echo(True)


if sys.platform == "win32":

    def _set_echo(on: bool) -> bool:
        return False  # a console echoes only while a program reads from it

else:

    def _set_echo(on: bool) -> bool:
        try:
            descriptor = sys.stdin.fileno()
            # Changing a terminal from a background job would stop this process.
            if os.tcgetpgrp(descriptor) != os.getpgrp():
                return False
            settings = termios.tcgetattr(descriptor)
            before = settings[3]
            settings[3] = before | termios.ECHO if on else before & ~termios.ECHO
            if settings[3] == before:
                return False
            termios.tcsetattr(descriptor, termios.TCSANOW, settings)
        except (AttributeError, OSError, ValueError, termios.error):  # standard input is not a terminal, or is closed
            return False
        return True
