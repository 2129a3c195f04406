"""Checks that recorded runs are as they were written."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from pydantic_core import from_json

from agentrt.state.records.rows import RunRow, RunRows

_HASH = 64  # characters
_TAIL = len('","hash":""}') - 1 + _HASH


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings of `verify`; `first_wrong` is the number of the first line that is not as it was written.

    A run without an end is not ok, with the reason "no end" and without a `first_wrong`. `is_signed` says that every
    end is signed and, if a key was given, that the signatures are right. `reply_id` is the run with the first problem.
    """

    ok: bool
    lines: int
    first_wrong: int | None = None
    reason: str = ""
    is_signed: bool = False
    reply_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Problem(Exception):  # it leaves this module as a result
    reason: str
    line: int | None = None


def verify_session(rows: RunRows, session_id: str, reply_id: str | None, key: bytes | None) -> Verification:
    """Check one run, or all runs of a session and its sub-agents, and that no run is missing."""
    found = _verify_one(rows, session_id, reply_id, key)
    if reply_id is not None or not found.ok:
        return found
    below = {row.session_id: None for row in rows.of_root(session_id) if row.session_id != session_id}
    for child in below:
        of_child = _verify_one(rows, child, None, key)
        found = replace(of_child, lines=found.lines + of_child.lines, is_signed=found.is_signed and of_child.is_signed)
        if not found.ok:
            return found
    return found


def _verify_one(rows: RunRows, session_id: str, reply_id: str | None, key: bytes | None) -> Verification:
    # Deleted runs too, since the next run names their hashes.
    count, signed, before = 0, [], None
    chosen = rows.of_session(session_id)
    for row in chosen:
        is_chosen = reply_id in (None, row.reply_id)
        lines = [] if row.is_deleted or not (is_chosen or reply_id is None) else rows.lines(*row.key)
        try:
            if is_chosen and not row.is_deleted:
                signed.append(_check_run(row, lines, key))
                count += len(lines)
                if reply_id is None:
                    _check_previous(row, lines, before, rows)
        except _Problem as problem:
            return Verification(False, count, problem.line, problem.reason, all(signed) and bool(signed), row.reply_id)
        before = row
    if reply_id is not None and not any(row.reply_id == reply_id and not row.is_deleted for row in chosen):
        return Verification(False, 0, None, "no such run", False, reply_id)
    return Verification(True, count, None, "", all(signed) and bool(signed))


def _check_run(row: RunRow, lines: Sequence[bytes], key: bytes | None) -> bool:
    """Check the chain of a run; returns whether it is signed."""
    digest, ends, is_signed, last_kind = "", 0, True, ""
    for number, line in enumerate(lines, 1):
        # The hash is the last part of a line, and covers the rest of it together with the previous line's hash.
        body, found = line[:-_TAIL] + b"}", line[-_HASH - 2 : -2].decode(errors="replace")
        expected = sha256(digest.encode() + body).hexdigest()
        if line[-_TAIL : -_HASH - 2] != b',"hash":"' or found != expected:
            raise _Problem("the line is not the one that was written here", number)
        value = from_json(body)
        # If the hashes are right, all of them were recomputed.
        if value["n"] != number:
            raise _Problem("a line is missing before it", number)
        if value["kind"] == "verdict":  # added when the run has ended
            digest = expected
            continue
        last_kind = value["kind"]
        if last_kind == "end":
            ends += 1
            is_signed = is_signed and "mac" in value
            # Compared in constant time, as any secret is.
            if key is not None:
                signed = f"{row.session_id}\n{row.reply_id}\n{number}\n{digest}\n{value['reason']}".encode()
                mac = hmac.new(key, signed, sha256).hexdigest()
                if not hmac.compare_digest(mac, str(value.get("mac"))):
                    raise _Problem("the signature is not of this key", number)
        digest = expected
    # The chain alone does not show a missing end; the run's row does, and so does the `end` line.
    if len(lines) != row.lines or digest != row.hash:
        raise _Problem("lines are missing at the end", min(len(lines), row.lines) + 1)
    if last_kind != "end":
        raise _Problem("no end")
    return is_signed and bool(ends)


def _check_previous(row: RunRow, lines: Sequence[bytes], before: RunRow | None, rows: RunRows) -> None:
    """Check that the previous run of the session is the one that was there when this run started."""
    previous = from_json(lines[0]).get("previous")
    # The first run of a session names none, unless earlier runs were removed.
    if before is None:
        if previous is not None:
            raise _Problem(f"the run {previous[0]!r:.100} before it is missing", 1)
        return
    if previous is None or previous[0] != before.reply_id:
        raise _Problem("the run before it is missing, or was added later", 1)
    if previous[1] == before.hash:
        return
    hashes = [line[-_HASH - 2 : -2].decode() for line in ([] if before.is_deleted else rows.lines(*before.key))]
    if previous[1] not in hashes:  # a run that waited may have resumed since then
        raise _Problem("the run before it is not the one that was there", 1)
