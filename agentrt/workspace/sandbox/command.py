"""One command: what it is given, checked before anything starts, its output, and its result."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import repr_of, type_with_article
from agentrt.errors import InvalidInputError

MAX_SHOWN = 100_000
"""Characters of a stream that a result has; of a longer one it has the beginning and the end."""

_PART = 10_000  # characters, of the beginning and of the end
_TAIL_BYTES = 4 * _PART  # UTF-8 has up to four for a character
_NOTE_BYTES = 100  # for the note between them

_MAX_ARGV = 100_000  # bytes: Linux takes 131,072 in one argument
_MAX_STDIN = 10_000_000  # characters


@dataclass(frozen=True, slots=True, repr=False)
class Command:
    """A program with its arguments, as a sandbox gets it; everything in it has been checked."""

    argv: tuple[str, ...]
    cwd: str = ""
    """The folder that it starts in, relative to the namespace, which has been checked to exist."""
    stdin: str | None = None
    timeout: float = 60.0
    env: Mapping[str, str] = field(default_factory=dict)
    read_only: Mapping[str, str] = field(default_factory=dict)
    """Folders of this machine, by the paths at which the command finds them."""

    @never_raises
    def __repr__(self) -> str:
        # Neither the input nor the environment, which may hold a key.
        return f"Command({self.argv!r:.200}, cwd={self.cwd!r}, timeout={self.timeout})"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command that has run, or was ended by a limit.

    A command that a signal has ended has the `exit_code` of a shell, 128 and the signal's number: 137 after a timeout.
    Of a stream with more than 100,000 characters `stdout` or `stderr` has the beginning and the end, and all of it is
    in one of the `files`, which are paths in the workspace.
    """

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    files: tuple[str, ...] = ()


@dataclass(slots=True)
class Output:
    """One stream: its first `limit` bytes, and its last ones."""

    limit: int
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)
    _size: int = 0

    def add(self, data: bytes) -> None:
        """Take in what was written next."""
        self._size += len(data)
        room = max(0, self.limit - _TAIL_BYTES - _NOTE_BYTES - len(self._head))
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 4 * _TAIL_BYTES:  # seldom, since it moves the bytes
            del self._tail[:-_TAIL_BYTES]

    def content(self) -> bytes:
        """Return all of it, or all but a middle part, whose size is stated in its place."""
        left_out = self._size - len(self._head) - len(self._tail)
        if not left_out:
            return bytes(self._head + self._tail)
        del self._tail[:-_TAIL_BYTES]
        left_out = self._size - len(self._head) - len(self._tail)
        return bytes(self._head) + b"\n[... %d bytes were not kept ...]\n" % left_out + bytes(self._tail)


@dataclass(slots=True)
class Outcome:
    """How a command has ended, and what it has written."""

    exit_code: int
    stdout: Output
    stderr: Output
    timed_out: bool = False


def shorten(text: str, where: str) -> str:
    """Return the beginning and the end of text that is too long to be shown; `where` says where all of it is."""
    left_out = len(text) - 2 * _PART
    return f"{text[:_PART]}\n[... {left_out:,} characters are left out here: {where} ...]\n{text[-_PART:]}"


def check_command(
    argv: Sequence[str],
    cwd: str,
    stdin: str | None,
    timeout: float,
    env: Mapping[str, str] | None,
    read_only: Mapping[str, str] | None,
) -> Command:
    """Return the command; raises `InvalidInputError` for one that cannot be run as it is written."""
    if isinstance(argv, str):
        raise InvalidInputError(
            f"run() takes a list of arguments and no shell line, not {repr_of(argv)}: write ['git', 'status'], or "
            f"['sh', '-c', line] if it must be a shell"
        )
    listed: object = argv
    if not isinstance(listed, (list, tuple)) or not listed:
        raise InvalidInputError(f"run() takes a list with a program and its arguments, not {repr_of(listed)}")
    size = 0
    for argument in argv:
        size += len(_encode("an argument of run()", argument)) + 1
    if not argv[0]:
        raise InvalidInputError("run() takes the name of a program first, not ''")
    if size > _MAX_ARGV:
        raise InvalidInputError(
            f"the arguments of run() have {size:,} bytes, but at most {_MAX_ARGV:,} are allowed: give the rest as "
            f"stdin=, or write a file"
        )
    if stdin is not None:
        if not isinstance(stdin, str):
            raise InvalidInputError(f"run(stdin=...) takes a str, not {type_with_article(stdin)}")
        if len(stdin) > _MAX_STDIN:
            raise InvalidInputError(
                f"run(stdin=...) takes at most {_MAX_STDIN:,} characters, not {len(stdin):,}: write a file"
            )
        _encode("run(stdin=...)", stdin, with_nul=True)
    seconds: object = timeout
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds < math.inf:
        raise InvalidInputError(f"run(timeout=...) must be a finite number of seconds above 0, not {timeout!r:.100}")
    variables = dict(env or {})
    for name, value in variables.items():
        encoded = _encode("the name of a variable in run(env=...)", name)
        if not encoded or b"=" in encoded:
            raise InvalidInputError(f"{name!r:.100} in run(env=...) cannot be the name of a variable")
        # Never with the value, which may be a key.
        _encode(f"the variable {name:.100} in run(env=...)", value, is_secret=True)
    folders = {target: os.path.abspath(path) for target, path in (read_only or {}).items()}
    return Command(tuple(argv), cwd, stdin, float(timeout), variables, folders)


def _encode(what: str, text: object, *, with_nul: bool = False, is_secret: bool = False) -> bytes:
    if not isinstance(text, str):
        value = type_with_article(text) if is_secret else repr_of(text)
        raise InvalidInputError(f"{what} must be a str, not {value}")
    if "\0" in text and not with_nul:
        raise InvalidInputError(f"{what} has a NUL character, which no program can be given: leave it out")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{what} has half of a surrogate pair, which is not text: leave it out") from None
