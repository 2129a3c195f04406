"""The tools of an MCP server as a toolset. Nothing of the SDK is loaded before the server is started."""

import logging
import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import anyio

from agentrt._runtime.block import DataBlock, TextBlock
from agentrt._runtime.options import check_seconds
from agentrt._runtime.representation import never_raises, repr_as_call
from agentrt._runtime.text import lazy_pattern, mask, one_line, repr_of
from agentrt.errors import ConfigError, ToolConfigError, ToolError
from agentrt.message import Msg
from agentrt.tool.base import ToolBase
from agentrt.tool.toolset import Toolset
from agentrt.types import SignRequest, ToolFlow

__all__ = ["MCPToolset"]

_logger = logging.getLogger("agentrt")
_FIRST_RESTART_PAUSE = 1.0
_MAX_RESTART_PAUSE = 60.0
_MAX_TOOLS = 1_000
_MAX_PAGES = 100
_LONGEST_TOOL_NAME = 64
_SERVER_NAME = lazy_pattern(r"[A-Za-z0-9_-]{1,64}")
_REFUSED_IN_NAMES = lazy_pattern(r"[^A-Za-z0-9_-]")


class MCPToolset(Toolset):
    """The tools of an MCP server: of a `command` that is started, of a `url`, or of a `server` object in memory.

    Nothing that a server says is trusted. The user is asked about each call, unless `ask` is `False`, or a list of
    patterns of the tools to ask about, such as `["write_*"]`. `tools` are patterns of the tools to offer. `read_only`
    says which tools you know to change nothing: they run again if the connection is lost in the middle of a call, and
    what the server says about that is ignored. `flows` says what the outputs of tools may be taken for, by patterns, of
    which the first that fits holds. Patterns are matched with the server's own names. Arguments are checked here before
    the server sees them.

    `headers` go with each request to a `url`; `auth` is a function of method, URL and body, sync or async, that returns
    the headers which sign one. The environment of a `command` has PATH, HOME, LANG, and `env`. `timeout` holds for the
    start, for the list of tools and for each call. With `on_failure="skip"` a server that cannot be used gives a
    warning, and the agent does without its tools. Needs the extra `mcp`.
    """

    _start_scope: anyio.CancelScope | None = None  # of a start in progress, which closing ends
    _is_closed = True

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] | str | None = None,
        url: str | None = None,
        server: Any = None,
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        auth: SignRequest | None = None,
        directory: str | os.PathLike[str] | None = None,
        tools: Sequence[str] | None = None,
        prefix: str = "mcp__{name}__",
        ask: bool | Sequence[str] = True,
        read_only: bool | Sequence[str] = False,
        timeout: float = 60.0,
        on_failure: Literal["raise", "skip"] = "raise",
        flows: Mapping[str, ToolFlow] | None = None,
    ) -> None:
        given_name: Any = name
        if not isinstance(given_name, str) or not _SERVER_NAME.fullmatch(given_name):
            raise ConfigError(
                f"MCPToolset({given_name!r:.100}): the name must be 1 to 64 of A-Z, a-z, 0-9, `_` and `-`"
            )
        self.name = name
        kinds = [word for word, value in (("command", command), ("url", url), ("server", server)) if value is not None]
        if len(kinds) != 1:
            what = " and ".join(f"{word}=" for word in kinds) or "neither command=, url= nor server="
            raise ConfigError(
                f"MCPToolset({name!r}) was given {what}: give one of them, such as command=[program, argument], or "
                f'url="https://..."'
            )
        self._command = _checked_command(name, command)
        address: Any = url
        if url is not None and not (isinstance(address, str) and address.startswith(("http://", "https://"))):
            raise ConfigError(
                f'MCPToolset({name!r}, url=...) must begin with "https://" or "http://", not {mask(repr_of(url))}'
            )
        self._url, self._object = url, server
        self._env = _checked_texts(name, "env", env, command is not None, "a server that is started by command=")
        self._headers = _checked_texts(name, "headers", headers, url is not None, "a server behind a url=")
        self._auth = _checked_auth(name, auth, url)
        self._directory = None if directory is None else os.fspath(directory)
        self._chosen = None if tools is None else _checked_patterns(name, "tools", tools)
        self._asks = _checked_choice(name, "ask", ask)
        self._read_only = _checked_choice(name, "read_only", read_only)
        self._flows = _checked_flows(name, flows)
        self._prefix = _checked_prefix(name, prefix)
        self._timeout = check_seconds(f"MCPToolset({name!r}, timeout=...)", timeout)
        if on_failure not in ("raise", "skip"):
            raise ConfigError(
                f'MCPToolset({name!r}, on_failure=...) must be "raise" or "skip", not {on_failure!r:.100}'
            )
        self._on_failure: str = on_failure
        self._connection: Any = None  # this, and what follows, while the toolset is open
        self._known: tuple[ToolBase, ...] | None = None
        self._failures, self._failed_at = 0, 0.0
        self._opening: anyio.Lock | None = None
        self.problem: str | None = None

    @classmethod
    def from_config(cls, path: str | os.PathLike[str], **options: Any) -> "list[MCPToolset]":
        """Return a toolset for each server of a file with `{"mcpServers": {...}}`, as other programs have it.

        `options` hold for all of them. `${NAME}` and `${NAME:-default}` in the file are variables of the environment.
        Raises `ConfigError` for a file that cannot be read, and for a wrong entry, with its place.
        """
        from agentrt.tool.mcp.config import read_servers  # here, since most programs have no such file

        return [cls(name, **{**settings, **options}) for name, settings in read_servers(Path(path)).items()]

    @property
    def status(self) -> str:
        """Its status in `explain()`."""
        return f"skipped: {self.problem}" if self.problem else super().status

    async def open(self) -> None:
        """Start the server and read its list; with `on_failure="skip"` a failure is a warning."""
        self.problem, self._known, self._failures = None, None, 0
        self._opening, self._is_closed = anyio.Lock(fast_acquire=True), False
        try:
            await self.connection()
            self._known = await self._read_list(is_first=True)
        except BaseException as error:
            await self.close()
            # A wrong option is an error of the caller, and `on_failure` is about servers that fail.
            if not isinstance(error, ToolError) or self._on_failure == "raise":
                raise
            self.problem, self._known = str(error), ()
            _logger.warning("%s: the agent works without its tools", error)

    async def close(self) -> None:
        """End the server, with all processes that it has started."""
        self._is_closed = True
        # A call in progress may be starting the server again, and must not leave it behind.
        if self._start_scope is not None:
            self._start_scope.cancel()
        assert self._opening is not None
        async with self._opening:
            connection, self._connection = self._connection, None
        # A call that is in progress gets the result "unknown": its connection has ended.
        if connection is not None:
            await connection.close()

    async def list_tools(self) -> Sequence[ToolBase]:
        """Return the tools of the server; those of its last list, if it does not answer."""
        known, self._known = self._known, None
        if known is not None:  # which `open` has read
            return known
        try:
            return await self._read_list(is_first=False)
        except ToolError as error:
            _logger.warning("%s: the tools of its last list are kept", error)
            return self._tools

    async def connection(self) -> Any:
        """Return the connection with the server, which is started again if it has ended; for its tools.

        Raises `ToolError` for a server that cannot be started.
        """
        assert self._opening is not None
        # One at a time: calls side by side must not start a server each.
        async with self._opening:
            connection = self._connection
            if connection is not None and not connection.is_dead:
                return connection
            if connection is not None:
                # Before it is closed, which takes time: no other caller may find the dead connection.
                self._connection = None
                self._note_failure()
                self._note_change()  # it may have other tools when it comes back
                await connection.close()
            new = self._new_connection()
            try:
                with anyio.CancelScope() as self._start_scope:
                    if not self._is_closed:
                        await self._pause()
                        await new.open(self._timeout)
                        self._connection = new
                        return new
            except ToolError:
                self._note_failure()
                raise
            finally:
                self._start_scope = None
            raise ToolError(self.problem or f"the toolset {self.name!r} was closed")

    def note_answer(self) -> None:
        """Note that the server works, so that the next pause is a short one."""
        self._failures = 0

    async def prompt(self, name: str, /, **arguments: str) -> list[Msg]:
        """Return a prompt of the server as messages; raises `ToolError` for one that it does not have."""
        from agentrt.tool.mcp.results import content_blocks

        result = await self._ask_client("get_prompt", name, arguments)
        return [Msg(message.role, [*content_blocks([message.content])], message.role) for message in result.messages]

    async def resource(self, uri: str) -> list[TextBlock | DataBlock]:
        """Return a resource of the server; raises `ToolError` for one that it does not have."""
        from agentrt.tool.mcp.results import content_blocks

        result = await self._ask_client("read_resource", uri)
        return content_blocks(result.contents)

    @never_raises
    def __repr__(self) -> str:
        return repr_as_call("MCPToolset", {"name": repr(self.name)})

    def __getstate__(self) -> dict[str, object]:
        # A copy is not open: a server cannot be copied.
        closed = {"_connection": None, "_known": None, "_opening": None, "_start_scope": None, "_is_closed": True}
        return {**super().__getstate__(), **closed}

    async def _ask_client(self, method: str, *arguments: Any) -> Any:
        from agentrt.tool.mcp.connection import ConnectionLost
        from agentrt.tool.mcp.text import clean_text

        self.check_open()
        connection = await self.connection()
        try:
            with anyio.fail_after(self._timeout):
                return await getattr(connection.client, method)(*arguments)
        except TimeoutError:
            raise ToolError(connection.describe(f"did not answer within {self._timeout:g} seconds")) from None
        except ConnectionLost:
            raise ToolError(connection.describe("has ended")) from None
        except Exception as error:  # noqa: BLE001  # whatever the SDK raises for what a server says
            raise ToolError(connection.describe(f"refused {method}: {one_line(clean_text(str(error)), 300)}")) from None

    async def _read_list(self, *, is_first: bool) -> tuple[ToolBase, ...]:
        """Ask for the list of tools, and return those that can be used."""
        from agentrt.tool.mcp.listing import make_tools

        listed: list[Any] = []
        cursor: str | None = None
        connection = await self.connection()
        # One limit for all pages together, since a server may send any number of them.
        with anyio.move_on_after(self._timeout) as scope:
            for _ in range(_MAX_PAGES):
                page = await self._list_page(connection, cursor)
                listed += page.tools
                cursor = page.next_cursor
                if cursor is None or len(listed) >= _MAX_TOOLS:
                    break
        if scope.cancelled_caught:
            raise ToolError(connection.describe(f"did not list its tools within {self._timeout:g} seconds"))
        if len(listed) > _MAX_TOOLS or cursor is not None:
            _logger.warning("the MCP server %r has more than %d tools: the others are left out", self.name, _MAX_TOOLS)
        if is_first:
            self._warn_of_patterns([tool.name for tool in listed])
        return make_tools(self, listed[:_MAX_TOOLS], is_first=is_first)

    def _warn_of_patterns(self, names: list[str]) -> None:
        """Warn of patterns that fit none of the tools: one that is misspelt in `ask` would let a call run unasked."""
        options = ("tools", self._chosen), ("ask", self._asks), ("read_only", self._read_only), ("flows", self._flows)
        for option, patterns in options:
            for pattern in () if patterns is None or isinstance(patterns, bool) else patterns:
                if not any(fnmatchcase(name, pattern) for name in names):
                    _logger.warning(
                        "MCPToolset(%r, %s=...) has the pattern %.100r, which fits none of the tools of the server",
                        self.name,
                        option,
                        pattern,
                    )

    async def _list_page(self, connection: Any, cursor: str | None) -> Any:
        try:
            return await connection.client.list_tools(cursor=cursor)
        except Exception as error:  # noqa: BLE001  # whatever the SDK raises for what a server says
            raise ToolError(connection.describe(f"did not list its tools ({type(error).__name__})")) from None

    def _new_connection(self) -> Any:
        try:
            from agentrt.tool.mcp.connection import Connection
            from agentrt.tool.mcp.http import ServerURL
            from agentrt.tool.mcp.stdio import ServerProcess
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "httpx2"):
                raise
            raise ConfigError('MCPToolset needs the package mcp: pip install "agentrt[mcp]"') from error
        target = self._object
        if self._command is not None:
            target = ServerProcess(self._command, self._env, self._directory)
        elif self._url is not None:
            target = ServerURL(self._url, self._headers, self._auth, self._timeout)
        return Connection(self.name, target, self._note_change)

    def _note_change(self) -> None:
        self._known, self.changed = None, True

    def _note_failure(self) -> None:
        self._failures += 1
        self._failed_at = anyio.current_time()

    async def _pause(self) -> None:
        # Counted from the failure: a call that comes later need not wait.
        if self._failures:
            pause = min(_MAX_RESTART_PAUSE, _FIRST_RESTART_PAUSE * 2.0 ** (self._failures - 1))
            await anyio.sleep_until(self._failed_at + pause)

    # The rest is for `make_tools`, which is in a file of its own because it loads the SDK.

    def is_chosen(self, name: str) -> bool:
        """Say whether to offer a tool of the server."""
        return self._chosen is None or any(fnmatchcase(name, pattern) for pattern in self._chosen)

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the arguments of `MCPTool` that the options of the user give for a tool of the server."""
        return {
            "name": self._prefix + _REFUSED_IN_NAMES.sub("_", name),
            "ask": _applies_to(self._asks, name),
            "read_only": _applies_to(self._read_only, name),
            "timeout": self._timeout,
            "flow": next((flow for pattern, flow in self._flows.items() if fnmatchcase(name, pattern)), None),
        }

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the plain names in the option `tools` that the server does not have."""
        plain = [pattern for pattern in self._chosen or () if not set(pattern) & set("*?[")]
        return [name for name in plain if name not in names]


def _applies_to(choice: bool | list[str], name: str) -> bool:
    return choice if isinstance(choice, bool) else any(fnmatchcase(name, pattern) for pattern in choice)


def _checked_command(name: str, command: Any) -> list[str] | None:
    if command is None:
        return None
    if isinstance(command, str):
        from shlex import split  # here, since most commands are lists

        try:
            command = split(command)
        except ValueError as error:
            raise ConfigError(
                f"MCPToolset({name!r}, command={mask(repr_of(command))}) cannot be read: {error}"
            ) from None
    parts = list(command) if isinstance(command, Sequence) else []
    if not parts or not all(isinstance(part, str) and "\0" not in part for part in parts):
        raise ConfigError(
            f'MCPToolset({name!r}, command=...) must be a list of str, such as ["npx", "-y", "server"], not '
            f"{mask(repr_of(command))}"
        )
    return parts


def _checked_texts(name: str, word: str, given: Any, fits: bool, owner: str) -> dict[str, str]:
    if given is None:
        return {}
    if not fits:
        raise ConfigError(f"MCPToolset({name!r}, {word}=...) is for {owner}")
    if not isinstance(given, Mapping):
        raise ConfigError(f"MCPToolset({name!r}, {word}=...) must be a dict of str, not {repr_of(given)}")
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            # Without the value, which may be a secret.
            raise ConfigError(
                f"MCPToolset({name!r}, {word}=...): {key!r:.100} must be a str, not {type(value).__name__}; is the "
                f"variable set that it is read from?"
            )
    return dict(given)


def _checked_auth(name: str, auth: SignRequest | None, url: str | None) -> SignRequest | None:
    if auth is not None:
        from agentrt._runtime.http import check_sign  # here, since most servers need no signature

        check_sign(f"MCPToolset({name!r}, auth=...)", auth)
        if url is None:
            raise ConfigError(f"MCPToolset({name!r}, auth=...) is for a server behind a url=")
    return auth


def _checked_patterns(name: str, word: str, patterns: Any) -> list[str]:
    if isinstance(patterns, str) or not isinstance(patterns, Sequence) or not all(isinstance(p, str) for p in patterns):
        raise ConfigError(
            f'MCPToolset({name!r}, {word}=...) must be a list of names or patterns, such as ["read_*"], not '
            f"{repr_of(patterns)}"
        )
    return list(patterns)


def _checked_choice(name: str, word: str, choice: Any) -> bool | list[str]:
    return choice if isinstance(choice, bool) else _checked_patterns(name, word, choice)


def _checked_flows(name: str, flows: Any) -> dict[str, ToolFlow]:
    if flows is None:
        return {}
    if not isinstance(flows, Mapping) or not all(isinstance(flow, ToolFlow) for flow in flows.values()):
        raise ConfigError(
            f"MCPToolset({name!r}, flows=...) must be a dict of patterns and ToolFlows, not {flows!r:.200}"
        )
    patterns = _checked_patterns(name, "flows", list(flows))
    return dict(zip(patterns, flows.values(), strict=True))


def _checked_prefix(name: str, prefix: Any) -> str:
    text = prefix.replace("{name}", name) if isinstance(prefix, str) else None
    if text is None or (text and not _SERVER_NAME.fullmatch(text)):
        raise ConfigError(
            f"MCPToolset({name!r}, prefix={prefix!r:.100}) must be a str of A-Z, a-z, 0-9, `_` and `-`, shorter than "
            f'{_LONGEST_TOOL_NAME} characters, such as "mcp__{{name}}__"'
        )
    if len(text) >= _LONGEST_TOOL_NAME:
        raise ToolConfigError(
            f"MCPToolset({name!r}, prefix={prefix!r:.100}) leaves no room for names of tools: give a shorter one"
        )
    return text
