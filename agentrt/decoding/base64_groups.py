"""Data that comes in pieces, each of which is base64 by itself."""

import base64

__all__ = ["DataPieces"]


class DataPieces:
    """Divides the data of each block anew, so that joining thousands of pieces takes time in proportion to their size.

    Joining a piece to data that ends within a group of base64 copies all of the data. So the last one or two bytes of
    most pieces go with the next piece instead, and `rest` returns what is left after the last. The first piece is given
    to its last byte, and so is another one each time that the data has doubled.
    """

    __slots__ = ("_rests", "_told", "_whole")

    def __init__(self) -> None:
        self._told: dict[str, int] = {}
        self._whole: dict[str, int] = {}
        self._rests: dict[str, bytes] = {}

    def take(self, block_id: str, data: str) -> str:
        """Return the data to announce when this piece comes."""
        told = self._told.get(block_id, 0)
        rest = self._rests.pop(block_id, b"")
        if not rest and told % 3 == 0 and len(data) % 4 == 0 and not data.endswith("="):
            self._told[block_id] = told + len(data) // 4 * 3
            return data
        raw = rest + base64.b64decode(data)
        size = told + len(raw)
        over = size % 3
        if over and size >= 2 * self._whole.get(block_id, 0):
            self._whole[block_id] = size
            over = 0
        end = max(len(raw) - over, 0)
        if end < len(raw):
            self._rests[block_id] = raw[end:]
        self._told[block_id] = told + end
        return base64.b64encode(raw[:end]).decode()

    def rest(self, block_id: str) -> str:
        """Return what was held back of the block, mostly nothing."""
        return base64.b64encode(self._rests.pop(block_id, b"")).decode()
