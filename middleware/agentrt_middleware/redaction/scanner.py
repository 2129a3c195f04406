"""Where one form of what a detector finds stands in text that comes in pieces."""

from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from agentrt.errors import RedactionBlocked
from agentrt_middleware.redaction.detectors import Detector, MatchValidator, Part
from agentrt_middleware.redaction.re2_patterns import compile_for_re2


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A place of the text, in bytes, and the number of the detector that found it."""

    start: int
    end: int
    detector: int


class CompiledPart:
    """A part of a detector as RE2 runs it."""

    __slots__ = ("beginning", "detector", "index", "match", "part", "stop", "stop_beginning")

    def __init__(self, detector: Detector, index: int, part: Part) -> None:
        self.detector = detector
        self.index = index
        self.part = part
        self.match = compile_for_re2(part.head.match)
        self.beginning = compile_for_re2(part.head.beginning, at_end=True)
        self.stop = None if part.stop is None else compile_for_re2(part.stop.match)
        self.stop_beginning = None if part.stop is None else compile_for_re2(part.stop.beginning, at_end=True)

    def count(self, text: bytes) -> int:
        """Return how many bytes of a match count."""
        validate = self.part.validate
        if validate is None:
            return len(text)
        characters = text.decode(errors="surrogatepass")
        counted, problem = self._call(validate, characters)
        if counted is None and not problem:
            return 0
        if not isinstance(counted, int) or isinstance(counted, bool) or not 0 < counted <= len(characters):
            problem = problem or "gave something else than a number of characters"
            raise RedactionBlocked(
                f"text was blocked: the detector {self.detector.name} {problem}", detector=self.detector.name
            )
        return len(characters[:counted].encode(errors="surrogatepass"))

    def _call(self, validate: MatchValidator, text: str) -> tuple[object, str]:
        """Return what the validator gives, and what is wrong with that, if anything."""
        timeout = self.part.timeout
        if timeout is None:
            return validate(text), ""
        results: SimpleQueue[tuple[object, str]] = SimpleQueue()

        def work() -> None:
            try:
                results.put((validate(text), ""))
            except BaseException as error:  # noqa: BLE001  # by its type alone: its text may quote what it was given
                results.put((None, f"failed: {type(error).__name__}"))

        # In a thread, the only way to leave one that hangs; it is a daemon, so that it keeps no program from ending.
        Thread(target=work, name="agentrt detector", daemon=True).start()
        try:
            return results.get(timeout=timeout)
        except Empty:
            return None, f"gave no answer within {timeout:g} s"


class Scanner:
    """Looks for one part, from `at` on.

    What begins before `frontier` is known: no text that is still to come changes it. That is where the beginning of a
    match reaches the end of what has come, or where something begins that has not ended yet.
    """

    __slots__ = ("_compiled", "at", "open_from")

    def __init__(self, compiled: CompiledPart) -> None:
        self._compiled = compiled
        self.at = 0
        self.open_from: int | None = None

    @property
    def frontier(self) -> int:
        return self.at if self.open_from is None else self.open_from

    def scan(self, window: bytes, base: int, is_end: bool) -> list[Span]:
        """Return what is known now; `window` holds the text from `base` on, with the byte before `at` if there is one.

        `is_end` says that no more text comes.
        """
        compiled = self._compiled
        spans: list[Span] = []
        settled = -1  # up to here the window is decided for what is looked for now
        while True:
            if self.open_from is not None:
                end = self._find_end(window, base, is_end)
                if end is None:
                    return spans
                spans.append(Span(self.open_from, end, compiled.index))
                self.open_from, self.at, settled = None, end, -1
            position = self.at - base
            # Looked for once and not after each match: what may still grow stays where it is.
            if settled < position:
                settled = _decided_end(compiled.beginning, window, position, is_end)
            match = compiled.match.search(window, position)
            # A match from there on may become longer, or another one.
            if match is None or match.start() >= settled:
                self.at = base + settled
                return spans
            start, end = match.span()
            counted = compiled.count(window[start:end])
            if not counted:
                # One character later; the bytes that continue a character begin with 10.
                start += 1
                while start < len(window) and window[start] & 0xC0 == 0x80:
                    start += 1
                self.at = base + start
            elif compiled.stop is not None and start + counted == end:
                self.open_from, self.at = base + start, base + end
            else:
                self.at = base + start + counted
                spans.append(Span(base + start, self.at, compiled.index))

    def _find_end(self, window: bytes, base: int, is_end: bool) -> int | None:
        """Return the end of the open part, `None` if it is not there yet."""
        compiled = self._compiled
        position = self.at - base
        has_tail = compiled.part.has_tail  # whose end is a single character, which is known at once
        settled = len(window) if has_tail else _decided_end(compiled.stop_beginning, window, position, is_end)
        assert compiled.stop is not None  # nothing else stays open
        match = compiled.stop.search(window, position)
        if match is not None and match.start() < settled:
            start, end = match.span()
            return base + int(start if has_tail else end)
        self.at = base + settled
        return self.at if is_end else None


def _decided_end(beginning: Any, window: bytes, position: int, is_end: bool) -> int:
    """Return the first place from `position` on whose text may grow into a match."""
    if is_end:
        return len(window)
    growing = beginning.search(window, position)
    return len(window) if growing is None else growing.start()
