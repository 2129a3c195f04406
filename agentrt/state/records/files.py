"""The rows of runs in files: one of JSON lines for each run, and one of contents for each session."""

import os
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from agentrt.state.records.rows import RunKey, RunQuery, RunRow, RunRows, RunWrite

_ROW = b'{"row":'


class FileRunRows(RunRows):
    """Keeps each run in a file of its lines, each batch of which ends with the row of the run.

    What comes after the last row is of a write that a crash cut off, and is not read. Lists read the end of every file
    that has changed since.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[Path, tuple[tuple[int, int], RunRow]] = {}
        self._written: dict[Path, tuple[int, int]] = {}

    def write(self, writes: Sequence[RunWrite]) -> None:
        for write in writes:
            row = replace(write.row, number=write.row.begun_at)
            # Contents first: a line that is there never names one that is not.
            packed = [
                dumps({"hash": digest, "content": b64encode(content).decode()}).encode()
                for digest, content in write.contents.items()
            ]
            if packed:
                self._append(self._contents_path(row.root), packed)
            path = self._run_path(row.key)
            self._cut_torn_end(path)
            self._append(path, [*write.lines, _dump_row(row)])
            about = path.stat()
            self._written[path] = about.st_mtime_ns, about.st_size

    def find(self, session_id: str, reply_id: str) -> RunRow | None:
        return self._read_row(self._run_path((session_id, reply_id)))

    def of_session(self, session_id: str) -> list[RunRow]:
        return [row for row in self._rows() if row.session_id == session_id]

    def of_root(self, root: str) -> list[RunRow]:
        return [row for row in self._rows() if row.root == root]

    def lines(self, session_id: str, reply_id: str, after: int = 0) -> list[bytes]:
        path = self._run_path((session_id, reply_id))
        with suppress(FileNotFoundError):
            parts = path.read_bytes().split(b"\n")
            last = max((index for index, part in enumerate(parts) if part.startswith(_ROW)), default=0)
            return [part for part in parts[:last] if not part.startswith(_ROW)][after:]
        return []

    def contents(self, root: str, hashes: Collection[str]) -> dict[str, bytes]:
        chosen = set(hashes)
        return {digest: content for digest, content in self._contents(root) if digest in chosen}

    def page(self, query: RunQuery) -> list[RunRow]:
        return [row for row in reversed(self._rows()) if query.matches(row)][: query.limit + 1]

    def expired(self, now: int) -> list[RunRow]:
        return [row for row in self._rows() if row.expires_at <= now]

    def bury(self, row: RunRow) -> None:
        self._replace(self._run_path(row.key), [_dump_row(row)])

    def remove(self, row: RunRow) -> None:
        path = self._run_path(row.key)
        path.unlink(missing_ok=True)
        self._written.pop(path, None)

    def sweep(self, root: str, keep: Collection[str]) -> None:
        path, chosen = self._contents_path(root), set(keep)
        kept = {digest: content for digest, content in self._contents(root) if digest in chosen}
        if kept:
            texts = ({"hash": digest, "content": b64encode(content).decode()} for digest, content in kept.items())
            self._replace(path, [dumps(text).encode() for text in texts])
        else:
            path.unlink(missing_ok=True)

    def _rows(self) -> list[RunRow]:
        found = (self._read_row(path) for path in self._directory.glob("*.jsonl"))
        return sorted((row for row in found if row is not None), key=lambda row: row.number)

    def _read_row(self, path: Path) -> RunRow | None:
        try:
            about = path.stat()
            mark = about.st_mtime_ns, about.st_size
            known = self._known.get(path)
            if known is None or known[0] != mark:
                [*_, text] = [part for part in path.read_bytes().split(b"\n")[:-1] if part.startswith(_ROW)]
                values = from_json(text)["row"]
                about_run, parent = values.pop("about").encode(), values.pop("parent")
                known = self._known[path] = mark, RunRow(**values, about=about_run, parent=parent and tuple(parent))
        except (FileNotFoundError, ValueError):  # it is gone, or a crash came before its first row
            self._known.pop(path, None)
            return None
        return known[1]

    def _contents(self, root: str) -> Iterator[tuple[str, bytes]]:
        with suppress(FileNotFoundError):
            for line in self._contents_path(root).read_bytes().split(b"\n"):
                with suppress(ValueError, KeyError, TypeError):  # an end that a crash cut off
                    value = from_json(line)
                    yield value["hash"], b64decode(value["content"])

    def _run_path(self, key: RunKey) -> Path:
        # Ids may have any character; a null byte is in none of them.
        return self._directory / f"{sha256(chr(0).join(key).encode(errors='surrogatepass')).hexdigest()}.jsonl"

    def _contents_path(self, root: str) -> Path:
        return self._directory / f"{sha256(root.encode(errors='surrogatepass')).hexdigest()}.contents"

    def _cut_torn_end(self, path: Path) -> None:
        """Remove what comes after the last row, unless the file is as this process has left it."""
        with suppress(FileNotFoundError):
            about = path.stat()
            if self._written.get(path) != (about.st_mtime_ns, about.st_size):
                text = path.read_bytes()
                start = text.rfind(b"\n" + _ROW) + 1
                end = text.find(b"\n", start) + 1
                os.truncate(path, end if text.startswith(_ROW, start) else 0)

    def _append(self, path: Path, lines: Iterable[bytes]) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "r+b") as file:
            # A crash may have left half a line, which must not become the beginning of this one.
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            file.write((b"\n" if torn else b"") + b"".join(line + b"\n" for line in lines))

    def _replace(self, path: Path, lines: Iterable[bytes]) -> None:
        temporary = path.with_suffix(".new")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(b"".join(line + b"\n" for line in lines))
        os.replace(temporary, path)


def _dump_row(row: RunRow) -> bytes:
    values: dict[str, Any] = {**asdict(row), "about": row.about.decode()}
    return _ROW + dumps(values).encode() + b"}"
