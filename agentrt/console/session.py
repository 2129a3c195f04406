"""A conversation in a file."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import anyio.to_thread

from agentrt._runtime.database.file_lock import lock_until
from agentrt.errors import SessionConflict, SessionIOError, StateError
from agentrt.state import AgentState
from agentrt.state.state import state_to_json
from agentrt.state.store import next_revision

_LOCK_SECONDS = 5.0  # for another process to finish its save


class SessionFile:
    """Keeps one conversation, the last one saved, in one file; readers of the file always find it complete.

    Raises `StateError` for a file that cannot be read or holds something else, and leaves it as it was.
    """

    def __init__(self, path: str) -> None:
        if not path:
            raise StateError("the session file needs a name: write --session FILE")
        self._path = Path(path).expanduser().resolve()
        # The session in the file and its revision, as known to this process.
        self._known: tuple[str, int] | None = None
        if not self._path.parent.is_dir():
            raise StateError(
                f"the session file {path!r} cannot be saved: the folder {str(self._path.parent)!r} does not exist; "
                f"create it, or name another file"
            )

    def read(self) -> AgentState | None:
        """Return the conversation in the file, `None` if the file does not exist."""
        state = self._read()
        self._known = _revision_of(state)
        return state

    async def load(self, session_id: str) -> AgentState | None:
        """Return the conversation in the file if it has that id."""
        state = await anyio.to_thread.run_sync(self.read)
        return state if state is not None and state.session_id == session_id else None

    async def save(self, state: AgentState) -> None:
        """Replace the file's content, and set the state's `revision`.

        Raises `SessionConflict`, and leaves the file as it is, when another process has replaced it in the meantime.
        """
        await anyio.to_thread.run_sync(self._save, state, state_to_json(state))

    def _read(self) -> AgentState | None:
        try:
            return AgentState.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._io_error("read", error) from error
        except StateError as error:
            raise type(error)(
                f"the session file {str(self._path)!r} holds no conversation that this version can read ({error}): it "
                f"is left as it is; name another file, or move this one away"
            ) from error

    def _save(self, state: AgentState, text: bytes) -> None:
        with self._lock_folder():
            self._check_is_current(state)  # under the lock, or another program could save in between
            revision = next_revision(state.revision)
            try:
                self._replace(b'{"revision": %d,%s' % (revision, text.removeprefix(b"{")))
            except OSError as error:
                raise self._io_error("saved", error) from error
            state.revision = revision
            self._known = _revision_of(state)

    def _check_is_current(self, state: AgentState) -> None:
        stored = _revision_of(self._read())
        if stored is None:  # the file is gone, so nothing can be overwritten
            return
        is_outdated = stored[0] == state.session_id and stored[1] != state.revision
        if is_outdated or stored != self._known:
            raise SessionConflict(
                f"the session file {str(self._path)!r} was saved by another program, such as a second terminal, "
                f"and is left as it is: start again to continue it, or name another file"
            )

    def _replace(self, content: bytes) -> None:
        # In the same folder, since an atomic replacement works only within a file system.
        descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # before the rename, which must not overtake the data
            os.replace(temporary, self._path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    @contextmanager
    def _lock_folder(self) -> Iterator[None]:
        """Keep other processes from saving meanwhile, if the folder can be locked (not on Windows, nor on some NFS)."""
        if sys.platform == "win32":
            yield
            return
        try:
            descriptor = os.open(self._path.parent, os.O_RDONLY)
        except OSError as error:
            raise self._io_error("saved", error) from error
        try:
            with ExitStack() as locks:
                try:
                    locks.enter_context(lock_until(descriptor, time.monotonic() + _LOCK_SECONDS))
                except TimeoutError as error:
                    raise self._io_error("saved", error) from error
                except OSError:  # this file system has no such locks
                    pass
                yield
        finally:
            os.close(descriptor)

    def _io_error(self, action: str, error: OSError) -> SessionIOError:
        return SessionIOError(f"the session file {str(self._path)!r} cannot be {action}: {error.strerror or error}")


def _revision_of(state: AgentState | None) -> tuple[str, int] | None:
    return None if state is None else (state.session_id, state.revision)
