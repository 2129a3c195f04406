"""An estimate of the tokens of a file, from its media type, its size, and its first and last bytes."""

import base64
import binascii
import re

from agentrt._runtime.model_interface.image_size import image_tokens
from agentrt._runtime.text import lazy_pattern
from agentrt.message import Base64Source, URLSource

_WINDOW = 65_536  # characters of base64 at the beginning and at the end, where most files store their length
# Claude gets each page as text and as a picture; Gemini gets a picture for each second of video.
_TOKENS_PER_PAGE, _TOKENS_PER_SECOND, _TOKENS_PER_SECOND_OF_VIDEO = 2_000, 32, 300
_CHARACTERS_PER_TOKEN = 4
_BYTES_PER_PAGE = 50_000  # if the pages cannot be counted
_MAX_PAGES, _MAX_SECONDS = 3_000, 36_000  # more than any API takes: a file may claim anything
_UNKNOWN_PAGES, _UNKNOWN_SECONDS = 5, 60  # of a remote file
_BYTES_PER_SECOND = {"flac": 60_000, "l16": 32_000, "pcm": 48_000, "wav": 48_000, "x-wav": 48_000}
_USUAL_BYTES_PER_SECOND, _VIDEO_BYTES_PER_SECOND = 16_000, 250_000
_PDF_COUNT = lazy_pattern(rb"/Count\s{1,9}(\d{1,6})")
_REACH = 2_000  # bytes from a `/Count` to either end of its dictionary
_PDF_PAGE = lazy_pattern(rb"/Type\s{0,9}/Page\b")
_SAMPLE_RATE = lazy_pattern(r"rate=(\d{1,6})", re.ASCII)


def data_tokens(source: Base64Source | URLSource) -> int:
    """Return an estimate of the tokens of the file, 0 for a kind of file that models do not take."""
    kind, _, subtype = source.media_type.strip().lower().partition("/")
    match kind:
        case "image":
            return image_tokens(source)
        case "audio":
            return _seconds_in(source, subtype, is_video=False) * _TOKENS_PER_SECOND
        case "video":
            return _seconds_in(source, subtype, is_video=True) * _TOKENS_PER_SECOND_OF_VIDEO
        case "text" if isinstance(source, Base64Source):
            return _byte_count(source) // _CHARACTERS_PER_TOKEN
        case _:
            return _pages_in(source) * _TOKENS_PER_PAGE if subtype.startswith("pdf") else 0


def _pages_in(source: Base64Source | URLSource) -> int:
    if not isinstance(source, Base64Source):
        return _UNKNOWN_PAGES
    content = _ends(source)
    pages = len(_PDF_PAGE.findall(content))  # those of a compressed document cannot be counted
    for match in _PDF_COUNT.finditer(content):
        start = content.rfind(b"<<", max(match.start() - _REACH, 0), match.start())
        end = content.find(b">>", match.end(), match.end() + _REACH)
        entries = content[max(start, match.start() - _REACH, 0) : end if end >= 0 else match.end() + _REACH]
        if b"/Pages" in entries:  # bookmarks have a `/Count` too
            pages = max(pages, int(match[1]))
    return min(max(pages or _byte_count(source) // _BYTES_PER_PAGE, 1), _MAX_PAGES)


def _byte_count(source: Base64Source) -> int:
    return len(source.data) * 3 // 4


def _ends(source: Base64Source) -> bytes:
    """Return the beginning and the end of the file, all of a short one, or nothing if it is not base64."""
    data = source.data
    try:
        if len(data) <= 2 * _WINDOW:
            return base64.b64decode(data)
        return base64.b64decode(data[:_WINDOW]) + base64.b64decode(data[-_WINDOW - len(data) % 4 :])
    except (binascii.Error, ValueError):
        return b""


def _seconds_in(source: Base64Source | URLSource, subtype: str, *, is_video: bool) -> int:
    if not isinstance(source, Base64Source):
        return _UNKNOWN_SECONDS
    content = _ends(source)
    seconds = _seconds_of_mp4(content)
    if seconds is None:
        is_wave = content[:4] == b"RIFF" and content[8:16] == b"WAVEfmt "
        rate_in_header = int.from_bytes(content[28:32], "little") if is_wave else 0
        samples = _SAMPLE_RATE.search(subtype)  # as in "pcm;rate=24000", of two bytes each
        rate = rate_in_header or (int(samples[1]) * 2 if samples is not None else 0)
        usual = _BYTES_PER_SECOND.get(subtype.partition(";")[0], _USUAL_BYTES_PER_SECOND)
        seconds = _byte_count(source) // (_VIDEO_BYTES_PER_SECOND if is_video else rate or usual)
    return min(max(seconds, 1), _MAX_SECONDS)


def _seconds_of_mp4(content: bytes) -> int | None:
    """Return the length in the header of an MP4, M4A or MOV; `None` for other files."""
    place = content.find(b"mvhd")
    if place < 0:
        return None
    header = content[place + 4 :]
    start, size = (20, 8) if header[:1] == b"\1" else (12, 4)  # its second version has longer times
    scale, length = (int.from_bytes(part) for part in (header[start : start + 4], header[start + 4 : start + 4 + size]))
    return length // scale if scale else None
