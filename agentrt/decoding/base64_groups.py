"""Data that comes in pieces that are each base64 by themselves."""

import base64

__all__ = ["DataPieces"]


class DataPieces:
    """Divides the data of each block anew, so that joining thousands of pieces takes time in proportion to their size.

    Joining a piece to data that ends within a group of base64 copies all of the data. So the last one or two bytes of
    most pieces go with the next piece instead, and `rest` returns what is left after the last. The first piece is given
    to its last byte, and so is another one each time that the data has doubled.
    """

    __slots__ = ("_given_sizes", "_rests", "_whole_sizes")

    def __init__(self) -> None:
        # By block: bytes given so far, bytes when they were last given to the last one, and bytes held back.
        self._given_sizes: dict[str, int] = {}
        self._whole_sizes: dict[str, int] = {}
        self._rests: dict[str, bytes] = {}

    def take(self, block_id: str, data: str) -> str:
        """Return the data to announce when this piece comes."""
        given_size = self._given_sizes.get(block_id, 0)
        rest = self._rests.pop(block_id, b"")
        if not rest and given_size % 3 == 0 and len(data) % 4 == 0 and not data.endswith("="):
            self._given_sizes[block_id] = given_size + len(data) // 4 * 3  # whole groups on both sides: as it came
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
        """Return what was held back of the block, mostly nothing."""
        return base64.b64encode(self._rests.pop(block_id, b"")).decode()
