"""The size of an image, by the first bytes of its file."""

import base64
import binascii

from agentrt.message import Base64Source, URLSource

_UNKNOWN_SIZE = 1_000  # tokens, about those of an image of 870 by 870
_FEWEST, _MOST = 85, 1_600  # providers scale down larger images
_PIXELS_PER_TOKEN = 750  # of Claude; for others, an image has between a fifth and all of that
_HEAD = 65_536  # characters of base64: the size of a photograph comes within these
_NO_SIZE_IN = {0xC4, 0xC8, 0xCC}  # exceptions among the segments with the size of a JPEG


def image_tokens(source: Base64Source | URLSource) -> int:
    """Return about how many tokens an image has for a model."""
    size = _image_size(source.data[:_HEAD]) if isinstance(source, Base64Source) else None
    if size is None:
        return _UNKNOWN_SIZE
    return min(max(size[0] * size[1] // _PIXELS_PER_TOKEN, _FEWEST), _MOST)


def _image_size(data: str) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF, JPEG or WebP in base64; `None` if they cannot be found."""
    try:
        head = base64.b64decode(data[: len(data) // 4 * 4])
    except (binascii.Error, ValueError):
        return None
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    if head[:4] == b"GIF8" and len(head) >= 10:
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    if head[:4] == b"RIFF" and head[12:16] == b"VP8X" and len(head) >= 30:
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if head[:4] == b"RIFF" and head[12:16] == b"VP8 " and len(head) >= 30:
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    place = 2 if head[:2] == b"\xff\xd8" else len(head)  # of the first segment of a JPEG
    while place + 9 <= len(head) and head[place] == 0xFF:
        marker, length = head[place + 1], int.from_bytes(head[place + 2 : place + 4])
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE_IN:
            return int.from_bytes(head[place + 7 : place + 9]), int.from_bytes(head[place + 5 : place + 7])
        place += 2 + length
    return None
