"""Data in pieces, each encoded as base64 by itself."""

import base64


class DataPieces:
    """Splits the data of each block differently, so that joining thousands of pieces takes linear time.

    Joining a piece to data that ends within a group of base64 copies all data. So the last one or two bytes of
    most pieces move to the next piece, and `rest` returns the remainder after the last one. The first piece is returned
    completely, and so is another one whenever the data has doubled.
    """

    __slots__ = ("_given_sizes", "_rests", "_whole_sizes")

    def __init__(self) -> None:
        # By block: bytes returned so far, bytes at the last complete return, and bytes held back.
        self._given_sizes: dict[str, int] = {}
        self._whole_sizes: dict[str, int] = {}
        self._rests: dict[str, bytes] = {}

    def take(self, block_id: str, data: str) -> str:
        """Return the data to announce for this piece."""
        given_size = self._given_sizes.get(block_id, 0)
        rest = self._rests.pop(block_id, b"")
        if not rest and given_size % 3 == 0 and len(data) % 4 == 0 and not data.endswith("="):
            self._given_sizes[block_id] = given_size + len(data) // 4 * 3  # complete groups on both sides: unchanged
            return data
        raw = rest + base64.b64decode(data)
        size = given_size + len(raw)
        over = size % 3
        if over and size >= 2 * self._whole_sizes.get(block_id, 0):
            self._whole_sizes[block_id] = size
            over = 0
        end = max(len(raw) - over, 0)
        if end < len(raw):
            self._rests[block_id] = raw[end:]
        self._given_sizes[block_id] = given_size + end
        return base64.b64encode(raw[:end]).decode()

    def rest(self, block_id: str) -> str:
        """Return the held-back rest of the block, mostly empty."""
        return base64.b64encode(self._rests.pop(block_id, b"")).decode()
