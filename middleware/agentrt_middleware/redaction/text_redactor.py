"""Redaction of text that comes in pieces: whatever they are, what leaves is the redacted whole."""

from collections.abc import Callable, Collection, Sequence

from agentrt_middleware.redaction.detectors import Detector
from agentrt_middleware.redaction.re2_patterns import compile_for_re2
from agentrt_middleware.redaction.scanner import CompiledPart, Scanner, Span

_Find = tuple[int, int, set[int]]  # where it begins and ends, and the detectors that have found it
ReplaceMatch = Callable[[str, Collection[int]], str]
"""Returns what is to stand in the place of what was found, by the numbers of the detectors that found it."""


class Engine:
    """Some detectors, compiled; each looks by itself, and where their finds overlap they become one."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self.detectors = detectors
        parts = [(number, part) for number, detector in enumerate(detectors) for part in detector.parts]
        self.parts = [CompiledPart(detectors[number], number, part) for number, part in parts]
        # All of them in one, for the text that holds nothing, as most does.
        self.any_match = compile_for_re2(*(part.head.match for _, part in parts))
        self.any_beginning = compile_for_re2(*(part.head.beginning for _, part in parts), at_end=True)

    def may_hold(self, text: str) -> bool:
        """Say whether anything in the text looks like a find; it may turn out not to be one."""
        return self.any_match.search(_to_bytes(text)) is not None


class TextRedactor:
    """One text, from its first piece to its last; `has_replaced` says whether anything is changed so far."""

    __slots__ = (
        "_any_beginning",
        "_any_match",
        "_at",
        "_base",
        "_engine",
        "_held",
        "_replace",
        "_scanners",
        "_sent",
        "_waiting",
        "_window",
        "has_replaced",
    )

    def __init__(self, engine: Engine, replace: ReplaceMatch) -> None:
        self._engine = engine
        self._any_match = engine.any_match.search
        self._any_beginning = engine.any_beginning.search
        self._replace = replace
        self._window = b""  # what is looked at, and the byte before it
        self._base = 0  # the place of the window in the text
        self._sent = 0  # up to here the text has left
        self._held: list[bytes] = []  # what has left the window but not us
        # While nothing has been found, all scanners stand at one place, and need not be there.
        self._at = 0
        self._scanners: list[Scanner] | None = None
        self._waiting: list[_Find] = []  # found and not sent, in order; those that overlap are one
        self.has_replaced = False

    def feed(self, piece: str) -> str:
        """Take in the next piece; returns what may leave."""
        data = _to_bytes(piece)
        window = self._window = self._window + data
        if self._scanners is None:
            position = self._at - self._base
            match = self._any_match(window, position)
            growing = self._any_beginning(window, position)
            settled = len(window) if growing is None else growing.start()
            if match is None or match.start() >= settled:
                if settled > max(position, 1):  # one byte before it stays, which tells whether a word begins there
                    self._window = window[settled - 1 :]
                    self._base += settled - 1
                self._at = self._sent = self._at + settled - position
                return _to_text(window[position:settled])
        return self._scan(data, is_end=False)

    def end(self, piece: str = "") -> str:
        """Take in the last piece; returns all that is left."""
        data = _to_bytes(piece)
        window = self._window = self._window + data
        position = self._at - self._base
        if self._scanners is None and self._any_match(window, position) is None:
            return _to_text(window[position:])
        return self._scan(data, is_end=True)

    def _scan(self, piece: bytes, *, is_end: bool) -> str:
        """Let each scanner look; returns what may leave."""
        if self._scanners is None:
            self._scanners = [Scanner(part) for part in self._engine.parts]
            for scanner in self._scanners:
                scanner.at = self._at
            self._held = [self._window[self._at - self._base :]]
        else:
            self._held.append(piece)
        scanners = self._scanners
        found: list[Span] = []
        for scanner in scanners:
            found += scanner.scan(self._window, self._base, is_end)
        for span in sorted(found):  # so that each is added near the end
            self._add(span)
        frontier = min(scanner.frontier for scanner in scanners)
        output = self._take_settled(frontier)
        # The byte before the place of the last scanner stays: it says whether a word begins there.
        scanned = min(scanner.at for scanner in scanners) - 1
        if scanned > self._base:
            self._window, self._base = self._window[scanned - self._base :], scanned
        if self._sent == frontier and all(scanner.open_from is None for scanner in scanners):
            self._at, self._scanners, self._held = frontier, None, []
        return output

    def _take_settled(self, frontier: int) -> str:
        """Return the text before the frontier, up to the first find that may still grow."""
        # Whatever is found later begins at the frontier or after it, and overlaps none that ends before.
        waiting = self._waiting
        count = 0
        while count < len(waiting) and waiting[count][1] <= frontier:
            count += 1
        finds, self._waiting = waiting[:count], waiting[count:] if count else waiting
        limit = min([frontier, *(start for start, _, _ in self._waiting[:1])])
        if limit == self._sent:
            return ""
        text, begin = b"".join(self._held), self._sent
        output, at = [], 0
        for start, end, detectors in finds:
            output.append(_to_text(text[at : start - begin]))
            at = end - begin
            found = _to_text(text[start - begin : at])
            replacement = self._replace(found, detectors)
            self.has_replaced = self.has_replaced or replacement != found
            output.append(replacement)
        output.append(_to_text(text[at : limit - begin]))
        self._sent, self._held = limit, [text[limit - begin :]]
        return "".join(output)

    def _add(self, span: Span) -> None:
        """Add a find to those that wait, and make one of those that overlap.

        At once, since a chain of finds may have no end, and is not to be gone through for each piece.
        """
        waiting = self._waiting
        start, end, detectors = span.start, span.end, {span.detector}
        index = len(waiting)
        while index and waiting[index - 1][1] > start:
            index -= 1
        last = index
        while last < len(waiting) and waiting[last][0] < end:
            start, end = min(start, waiting[last][0]), max(end, waiting[last][1])
            detectors |= waiting[last][2]
            last += 1
        waiting[index:last] = [(start, end, detectors)]


def _to_bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _to_text(text: bytes) -> str:
    return text.decode(errors="surrogatepass")
