"""An MCP server as a toolset, with its tools, prompts and resources.

Nothing of the SDK is loaded before the server is started.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import anyio

from agentrt._runtime.block import DataBlock, TextBlock
from agentrt._runtime.hidden import HiddenDict, HiddenStr
from agentrt._runtime.options import check_seconds
from agentrt._runtime.representation import never_raises, repr_as_call
from agentrt._runtime.text import lazy_pattern, mask, repr_of
from agentrt.errors import ConfigError, ToolConfigError, ToolError
from agentrt.message import Msg
from agentrt.tool.base import ToolBase
from agentrt.tool.mcp.command import hide_secrets
from agentrt.tool.mcp.keeper import ConnectionKeeper
from agentrt.tool.mcp.oauth.needed import LoginNeeded
from agentrt.tool.mcp.oauth.settings import OAuth
from agentrt.tool.mcp.offers import MCPPrompt, MCPResource, offered_prompts, offered_resources
from agentrt.tool.toolset import Toolset
from agentrt.types import SignRequest, ToolFlow

MCPListKind = Literal["tools", "prompts", "resources"]
MCPLogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

_logger = logging.getLogger("agentrt")
_MAX_OWNER_CONNECTIONS = 100  # of owners who have logged in
_SECONDS_TO_KEEP_LIST = 365 * 24 * 3600.0
_MAX_PARTS = 1_000
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

    `headers` go with each request to a `url`; `auth` is `OAuth(...)` for a login, or a function of method, URL and
    body, sync or async, that returns the headers which sign one. The environment of a `command` has PATH, HOME, LANG,
    and `env`. `timeout` holds for the start, for each list and for each call. With `on_failure="skip"` a server
    that cannot be used gives a warning, and the agent does without its tools. Needs the extra `mcp`.

    The version of the protocol is negotiated. `protocol="handshake"` is for servers that fail at the question of the
    newest clients, and `"sse"` for a `url` that speaks HTTP as in 2024. With a `log_level`, what the server logs during
    a call becomes events. `on_change` is called with "tools", "prompts" or "resources" when the server says that its
    list of them has changed.
    """

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] | str | None = None,
        url: str | None = None,
        server: Any = None,
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        auth: OAuth | SignRequest | None = None,
        directory: str | os.PathLike[str] | None = None,
        tools: Sequence[str] | None = None,
        prefix: str = "mcp__{name}__",
        ask: bool | Sequence[str] = True,
        read_only: bool | Sequence[str] = False,
        timeout: float = 60.0,
        on_failure: Literal["raise", "skip"] = "raise",
        flows: Mapping[str, ToolFlow] | None = None,
        protocol: Literal["auto", "handshake", "sse"] = "auto",
        log_level: MCPLogLevel | None = None,
        on_change: Callable[[MCPListKind], object] | None = None,
    ) -> None:
        given_name: Any = name
        if not isinstance(given_name, str) or not _SERVER_NAME.fullmatch(given_name):
            raise ConfigError(
                f"MCPToolset({given_name!r:.100}): the name must be 1 to 64 of A-Z, a-z, 0-9, `_` and `-`"
            )
        self.name = name
        self._check_kind(name, command, url, server)
        self._command = _checked_command(name, command)
        self._url = url if url is None or url == url_without_secrets(url) else HiddenStr(url)
        self._object = server
        self._env = _checked_texts(name, "env", env, command is not None, "a server that is started by command=")
        self._headers = _checked_texts(name, "headers", headers, url is not None, "a server behind a url=")
        self._oauth, self._sign = _checked_auth(name, auth, url)
        self._directory = None if directory is None else os.fspath(directory)
        self._chosen = None if tools is None else _checked_patterns(name, "tools", tools)
        self._asks = _checked_choice(name, "ask", ask)
        self._read_only = _checked_choice(name, "read_only", read_only)
        self._flows = _checked_flows(name, flows)
        self._prefix = _checked_prefix(name, prefix)
        self._timeout = check_seconds(f"MCPToolset({name!r}, timeout=...)", timeout)
        self._on_failure = _checked_word(name, "on_failure", on_failure, ("raise", "skip"))
        self._protocol = _checked_word(name, "protocol", protocol, ("auto", "handshake", "sse"))
        if protocol == "sse" and (url is None or self._oauth is not None):
            raise ConfigError(f'MCPToolset({name!r}, protocol="sse") is for a url=, with headers= and not with OAuth()')
        levels = () if log_level is None else get_args(MCPLogLevel)
        self._log_level = None if log_level is None else _checked_word(name, "log_level", log_level, levels)
        self._told_of_changes = _checked_listener(name, on_change)
        self._known: tuple[ToolBase, ...] | None = None
        # While it is open, by owner; those without a login share one.
        self._keepers: dict[str, ConnectionKeeper] | None = None
        self._list_owner = ""  # whose connection the list of tools is read over
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

    @property
    def login(self) -> OAuth | None:
        """How its users log in, `None` if they need not."""
        is_by_user = self._oauth is not None and self._oauth.grant == "authorization_code"
        return self._oauth if is_by_user else None

    @property
    def server_url(self) -> str | None:
        """The URL of the server, without what may be a secret: a password, or a query; `None` for other servers."""
        return None if self._url is None else url_without_secrets(self._url)

    async def open(self) -> None:
        """Start the server and read its list; with `on_failure="skip"` a failure is a warning."""
        self.problem, self._known, self._keepers = None, None, {}
        try:
            self._known = await self._read_list(is_first=True)
        except LoginNeeded:
            self._known = await self._tools_before_login()
        except BaseException as error:
            await self.close()
            # A wrong option is an error of the caller, and `on_failure` is about servers that fail.
            if not isinstance(error, ToolError) or self._on_failure == "raise":
                raise
            self.problem, self._known = str(error), ()
            _logger.warning("%s: the agent works without its tools", error)

    async def close(self) -> None:
        """End the server, with all processes that it has started."""
        keepers, self._keepers = self._keepers or {}, None
        async with anyio.create_task_group() as group:
            for keeper in keepers.values():
                group.start_soon(keeper.close)

    async def list_tools(self) -> Sequence[ToolBase]:
        """Return the tools of the server; those of its last list, if it does not answer."""
        known, self._known = self._known, None
        if known is not None:  # which `open` has read
            return known
        try:
            return await self._read_list(is_first=False)
        except ToolError as error:
            _logger.warning("%s: the tools of its last list are kept", error)
        except LoginNeeded:
            _logger.info("the MCP server %r wants a new login: the tools of its last list are kept", self.name)
        return self._tools

    async def connection(self, owner: str) -> Any:
        """Return the owner's connection with the server, which is started again if it has ended; for its tools.

        Without a login by users, all owners share one. Raises `ToolError` for a server that cannot be started.
        """
        keepers = self._keepers
        if keepers is None:
            raise ToolError(self.problem or f"the toolset {self.name!r} was closed")
        key = "" if self.login is None else owner
        keeper = keepers.pop(key, None)
        if keeper is None:
            if len(keepers) >= _MAX_OWNER_CONNECTIONS:
                await self._close_unused(keepers)
            new, note_change = partial(self._new_connection, key), partial(self._note_change, "tools")
            keeper = ConnectionKeeper(new, self._timeout, note_change)
        keepers[key] = keeper  # at the end, so that the one that was not used for longest comes first
        return await keeper.connection()

    async def list_for(self, owner: str) -> None:
        """Read the list of tools over the connection of this owner, from now on; raises `LoginNeeded`."""
        self._known = await self._read_list(is_first=False, owner=owner)
        self._list_owner, self.changed = owner, True

    async def resources(self, *, owner: str = "") -> list[MCPResource]:
        """Return the resources of the server, and then the templates of resources, at most 1,000 of each.

        `owner` is the user whose login is used, as in the methods below, where the users of an application log in.
        These methods raise `ToolError` for what the server refuses, and while the user has to log in.
        """
        listed, templates = await self._list(owner, "resources"), await self._list(owner, "resource_templates")
        return offered_resources(self.name, listed, templates)

    async def read_resource(
        self, uri: str, values: Mapping[str, str] | None = None, *, owner: str = ""
    ) -> list[TextBlock | DataBlock]:
        """Return a resource of the server; for a template, `values` has those of the names in its braces.

        It is text from outside: `agent.observe` takes it as that, and `agent.reply` as words of the user.
        """
        from agentrt.tool.mcp.results import content_blocks

        address = uri if values is None else self._filled_in(uri, values)
        result = await self._ask(owner, "read_resource", address)
        return content_blocks(self._few(result.contents))

    async def prompts(self, *, owner: str = "") -> list[MCPPrompt]:
        """Return the prompts of the server, at most 1,000."""
        return offered_prompts(self.name, await self._list(owner, "prompts"))

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None, *, owner: str = "") -> list[Msg]:
        """Return a prompt of the server as messages, which have the name of the toolset.

        It is text from outside: `agent.observe` takes it as that, and `agent.reply` as words of the user.
        """
        from agentrt.tool.mcp.results import content_blocks

        result = await self._ask(owner, "get_prompt", name, dict(arguments or {}))
        return [
            Msg(self.name, [*content_blocks([message.content])], message.role) for message in self._few(result.messages)
        ]

    @never_raises
    def __repr__(self) -> str:
        return repr_as_call("MCPToolset", {"name": repr(self.name)})

    def __getstate__(self) -> dict[str, object]:
        # A copy is not open: a server cannot be copied.
        return {**super().__getstate__(), "_keepers": None, "_known": None}

    async def _ask(self, owner: str, method: str, *arguments: Any) -> Any:
        """Return what the server answers within the limit of time; raises `ToolError`."""
        try:
            connection = await self._open_connection(owner)
            with anyio.fail_after(self._timeout):
                return await connection.ask(method, *arguments)
        except TimeoutError:
            raise ToolError(connection.describe(f"did not answer within {self._timeout:g} seconds")) from None
        except LoginNeeded:
            raise self._no_login() from None

    async def _list(self, owner: str, kind: str) -> list[Any]:
        try:
            connection = await self._open_connection(owner)
            listed: list[Any] = await connection.list_all(kind, self._timeout)
            return listed
        except LoginNeeded:
            raise self._no_login() from None

    async def _open_connection(self, owner: str) -> Any:
        self.check_open()
        return await self.connection(owner)

    def _no_login(self) -> ToolError:
        return ToolError(f"the MCP server {self.name!r} wants a login: call one of its tools first")

    def _filled_in(self, template: str, values: Mapping[str, str]) -> str:
        from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

        try:
            parsed = UriTemplate.parse(template)
            if set(parsed.variable_names) != set(values):
                raise ToolError(f"{template!r:.500} needs values for {parsed.variable_names}, not {list(values)}")
            return parsed.expand(values)
        except (InvalidUriTemplate, TypeError, ValueError) as error:
            raise ToolError(f"{template!r:.500} is not a template that can be filled in: {error}") from None

    def _few(self, parts: Sequence[Any]) -> Sequence[Any]:
        if len(parts) > _MAX_PARTS:
            raise ToolError(f"the MCP server {self.name!r} sent {len(parts):,} parts, and may send {_MAX_PARTS:,}")
        return parts

    async def _read_list(self, *, is_first: bool, owner: str | None = None) -> tuple[ToolBase, ...]:
        """Ask for the list of tools, and return those that can be used."""
        from agentrt.tool.mcp.listing import make_tools

        connection = await self.connection(self._list_owner if owner is None else owner)
        listed = await connection.list_all("tools", self._timeout)
        if is_first:
            self._warn_of_patterns([tool.name for tool in listed])
        if self.login is not None:  # for users who have not logged in, who are not to see the tools of a client
            entry = {"tools": [tool.model_dump(mode="json", by_alias=True) for tool in listed]}
            await self.login.store.put("tools", self.server_url or "", entry=entry, seconds=_SECONDS_TO_KEEP_LIST)
        return make_tools(self, listed, is_first=is_first)

    async def _tools_before_login(self) -> tuple[ToolBase, ...]:
        """Return the tools of the list that a user's login gave last, or else a tool to log in with."""
        from mcp_types import Tool

        from agentrt.tool.mcp.listing import make_tools
        from agentrt.tool.mcp.oauth.login_tool import LoginTool

        assert self._oauth is not None
        # A reply that waits may resume in a process that nobody has logged in at.
        entry = await self._oauth.store.get("tools", self.server_url or "")
        if entry is None:
            return (LoginTool(self, f"{self._prefix}log_in"),)
        return make_tools(self, [Tool.model_validate(tool) for tool in entry["tools"]], is_first=False)

    async def _close_unused(self, keepers: dict[str, ConnectionKeeper]) -> None:
        for owner, keeper in list(keepers.items()):
            if keeper.is_idle:
                del keepers[owner]
                await keeper.close()
                return
        raise ToolError(
            f"the MCP server {self.name!r} has {_MAX_OWNER_CONNECTIONS} connections in use: try again later"
        )

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

    def _new_connection(self, owner: str) -> Any:
        try:
            from agentrt.tool.mcp.connection import Connection
            from agentrt.tool.mcp.oauth.transport import Authorization
            from agentrt.tool.mcp.transport.http import ServerURL
            from agentrt.tool.mcp.transport.stdio import ServerProcess
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "httpx2"):
                raise
            raise ConfigError('MCPToolset needs the package mcp: pip install "agentrt[mcp]"') from error
        target = self._object
        if self._command is not None:
            target = ServerProcess(self._command, self._env, self._directory)
        elif self._url is not None:
            is_sse = self._protocol == "sse"
            target = ServerURL(self._url, self._headers, self._sign, self._timeout, is_sse=is_sse)
            if self._oauth is not None:
                target.authorization = Authorization(self._oauth, owner, self.server_url or "")
        return Connection(
            self.name,
            target,
            self._note_change,
            begins_with_handshake=self._protocol != "auto",
            log_level=self._log_level,
        )

    def _note_change(self, kind: MCPListKind) -> None:
        if kind == "tools":
            self._known, self.changed = None, True
        if self._told_of_changes is None:
            return
        try:
            self._told_of_changes(kind)
        except Exception:  # the connection must not end with it
            _logger.exception("MCPToolset(%r, on_change=...) failed", self.name)

    @staticmethod
    def _check_kind(name: str, command: Any, url: Any, server: Any) -> None:
        kinds = [word for word, value in (("command", command), ("url", url), ("server", server)) if value is not None]
        if len(kinds) != 1:
            what = " and ".join(f"{word}=" for word in kinds) or "neither command=, url= nor server="
            raise ConfigError(
                f"MCPToolset({name!r}) was given {what}: give one of them, such as command=[program, argument], or "
                f'url="https://..."'
            )
        if url is not None and not (isinstance(url, str) and url.startswith(("http://", "https://"))):
            raise ConfigError(
                f'MCPToolset({name!r}, url=...) must begin with "https://" or "http://", not {mask(repr_of(url))}'
            )

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


def url_without_secrets(url: str) -> str:
    """Return the URL without a password and a query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


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
    return hide_secrets(parts)


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
    return HiddenDict(given)


def _checked_auth(
    name: str, auth: OAuth | SignRequest | None, url: str | None
) -> tuple[OAuth | None, SignRequest | None]:
    if isinstance(auth, OAuth):
        auth.check_url(name, url)
        return auth, None
    if auth is not None:
        from agentrt._runtime.http.options import check_sign  # here, since most servers need no signature

        check_sign(f"MCPToolset({name!r}, auth=...)", auth)
        if url is None:
            raise ConfigError(f"MCPToolset({name!r}, auth=...) is for a server behind a url=")
    return None, auth


def _checked_word(name: str, word: str, value: Any, choices: Sequence[str]) -> Any:
    if value not in choices:
        words = ", ".join(f'"{choice}"' for choice in choices)
        raise ConfigError(f"MCPToolset({name!r}, {word}=...) must be one of {words}, not {value!r:.100}")
    return value


def _checked_patterns(name: str, word: str, patterns: Any) -> list[str]:
    if isinstance(patterns, str) or not isinstance(patterns, Sequence) or not all(isinstance(p, str) for p in patterns):
        raise ConfigError(
            f'MCPToolset({name!r}, {word}=...) must be a list of names or patterns, such as ["read_*"], not '
            f"{repr_of(patterns)}"
        )
    return list(patterns)


def _checked_choice(name: str, word: str, choice: Any) -> bool | list[str]:
    return choice if isinstance(choice, bool) else _checked_patterns(name, word, choice)


def _checked_listener(name: str, on_change: Any) -> Callable[[MCPListKind], object] | None:
    if on_change is not None and (not callable(on_change) or iscoroutinefunction(on_change)):
        raise ConfigError(
            f"MCPToolset({name!r}, on_change=...) must be a function that is not async and takes the kind of the list, "
            f"not {repr_of(on_change)}"
        )
    listener: Callable[[MCPListKind], object] | None = on_change
    return listener


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
