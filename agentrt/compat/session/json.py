"""Sessions in files of JSON, which people can read."""

import json
from contextlib import suppress
from functools import partial
from os import PathLike

from anyio.lowlevel import checkpoint_if_cancelled

from agentrt._runtime.text import lazy_pattern
from agentrt.compat.session.base import SessionBase
from agentrt.errors import ConfigError, SessionCorrupt, UsageError
from agentrt.module import StateModule, load_states, save_states
from agentrt.state import check_session_id
from agentrt.state.file import AtomicFile, FileKeeper, hash_name, read_file
from agentrt.types import JSONObject

# A name that a file may have as it is. A hash is refused, so that no id can be chosen to be the file name of another.
_SAFE_FILE_NAME = lazy_pattern(r"(?![0-9a-fA-F]{64}\Z)[\w@+=,~-][\w@+=,~. -]*")
_MAX_FILE_NAME = 200  # bytes: file systems take 255


class JSONSession(FileKeeper, SessionBase):
    """Keeps each session in a file of `save_dir`, which is made at the first save: `{name of a module: its state}`.

    The file is `{session_id}.json`, or `{user_id}_{session_id}.json`: the same for user "a_b" with session "c" as for
    user "a" with session "b_c", so where users must not see each other's, no user's id should have an underscore. Where
    that is not a safe name for a file (too long, begins with a dot, has a sign like / or :), its SHA-256 is the name.

    A save is on the disk when it returns, and a crash leaves the old file or the new one; of two writers, the last one
    wins. Raises `SessionIOError` when the disk fails or takes more than ten seconds, `SessionCorrupt` for a damaged
    file, which is kept, and `SessionUnserializable` for a state that JSON cannot hold (a number that is not
    finite, say) or that could not be loaded again.
    """

    def __init__(self, save_dir: str | PathLike[str] = ".") -> None:
        if not isinstance(save_dir, (str, PathLike)):
            raise ConfigError(f"JSONSession(save_dir=...) must be the path of a folder, not {save_dir!r:.200}")
        super().__init__(save_dir)

    async def save_session_state(self, session_id: str, user_id: str = "", **modules: StateModule) -> None:
        """Keep the states of these modules as they are now, in place of what the session held before."""
        await checkpoint_if_cancelled()  # from here on, a cancellation waits for the write
        file = self._file(session_id, user_id)
        _check_modules(modules)
        states = save_states(modules)  # now, not in the thread: the modules may change meanwhile

        def write(deadline: float) -> None:
            # With surrogates: what a model wrote must load as it was, even if it is not valid Unicode.
            data = json.dumps(states, ensure_ascii=False).encode("utf-8", "surrogatepass")
            with file.lock(deadline):
                file.replace(data)
                file.sync()

        await self._change(file, "save", write)

    async def load_session_state(
        self, session_id: str, user_id: str = "", allow_not_exist: bool = True, **modules: StateModule
    ) -> None:
        """Give these modules the states that were saved under their names: all of them, or none when one is wrong.

        A module whose name is not in the session stays as it is; so do all, unless `allow_not_exist` is false, when
        there is no such session. Raises `KeyError` for a state that lacks what its module has.
        """
        file = self._file(session_id, user_id)
        _check_modules(modules)
        states = await self._read(file, partial(_load_states, file))
        if states is None:
            if allow_not_exist:
                return
            raise ValueError(f"session {session_id!r:.100} does not exist: {str(file.path)!r} was not found")
        saved = {name: module for name, module in modules.items() if name in states}
        for name in saved:
            if not isinstance(states[name], dict):
                raise SessionCorrupt(f"{_describe_file(file)} holds no state under {name!r:.100}; it is kept as it is")
        try:
            load_states(saved, states)
        except Exception as exc:
            exc.add_note(
                f"agentrt: raised when session {session_id!r:.100} was to be loaded from {_describe_file(file)}"
            )
            raise

    def _file(self, session_id: str, user_id: str) -> AtomicFile:
        check_session_id(session_id)
        if not isinstance(user_id, str):
            raise UsageError(
                f"a user id must be a str, not {user_id!r:.100}; modules are given by their names, as in agent=agent"
            )
        name = f"{user_id}_{session_id}" if user_id else session_id
        if not (_SAFE_FILE_NAME.fullmatch(name) and len(name.encode()) <= _MAX_FILE_NAME):
            name = hash_name(name)
        # Always a hash, by which the leftovers of processes that died are recognised.
        temporary = f"{hash_name(f'{name}.json')}.tmp"
        return AtomicFile(session_id, self._directory / f"{name}.json", self._directory / temporary)


def _load_states(file: AtomicFile, deadline: float) -> JSONObject | None:
    try:
        data = read_file(file.path)
    except FileNotFoundError:
        return None
    with suppress(ValueError, RecursionError):
        states = json.loads(data.decode("utf-8", "surrogatepass"))
        if isinstance(states, dict):
            return states
    # Raised here, since the errors above, which hold what they refused, would become the context of this one.
    raise SessionCorrupt(f"{_describe_file(file)} is damaged, or is not a session; it is kept as it is")


def _describe_file(file: AtomicFile) -> str:
    return f"the file {str(file.path)!r}"


def _check_modules(modules: dict[str, StateModule]) -> None:
    for name, module in modules.items():
        if not isinstance(module, StateModule):
            raise TypeError(f"{name}=... must be a StateModule, whose state can be saved, not {module!r:.100}")
