"""A conversation in a file."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import anyio.to_thread
from pydantic import ValidationError

from agentrt.errors import StateError
from agentrt.state import AgentState

__all__ = ["SessionFile"]


class SessionFile:
    """Keeps one conversation, the last one saved, in one file; whoever reads the file finds it whole at any time.

    Raises `StateError` for a file that cannot be read or holds something else, and leaves it as it was.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser().resolve()
        if not self._path.parent.is_dir():
            raise StateError(f"the session file {path!r} cannot be kept: there is no folder {str(self._path.parent)!r}")

    def read(self) -> AgentState | None:
        """Return the conversation in the file, `None` when there is no file."""
        try:
            return AgentState.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"the session file {str(self._path)!r} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise StateError(
                f"the session file {str(self._path)!r} holds no conversation that this version reads "
                f"({place}: {first['msg']}): it is left as it is; name another file, or move this one away"
            ) from error

    async def load(self, session_id: str) -> AgentState | None:
        """Return the conversation in the file if it is that one."""
        state = await anyio.to_thread.run_sync(self.read)
        return state if state is not None and state.session_id == session_id else None

    async def save(self, state: AgentState) -> None:
        """Replace what the file holds."""
        await anyio.to_thread.run_sync(self._write, state.model_dump_json().encode())

    def _write(self, content: bytes) -> None:
        descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
