"""The methods of the Agent Client Protocol, for one editor."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import acp
import anyio
from acp.exceptions import RequestError
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    AvailableCommand,
    AvailableCommandInput,
    AvailableCommandsUpdate,
    ClientCapabilities,
    HttpMcpServer,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    McpCapabilities,
    McpServerStdio,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    SessionCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionMode,
    SessionModeState,
    SetSessionModeResponse,
    SseMcpServer,
    UnstructuredCommandInput,
)

import agentrt
from agentrt.agent import Agent
from agentrt.errors import ConfigError, UsageError
from agentrt.serving.acp.command import COMPACT, STOP, EditorCommand
from agentrt.serving.acp.prompt import PromptBlock, read_prompt
from agentrt.serving.acp.session import EditorSession
from agentrt.serving.acp.workspace import ClientWorkspace
from agentrt.state import AgentState
from agentrt.tool import MCPToolset
from agentrt.types import PermissionMode

_logger = logging.getLogger("agentrt")

_FOLDER_LABEL = "editor.folder"
"""The label of the sessions of editors: the folder that the editor works in."""
_MAX_FOLDER = 500  # characters of a label
_COMMANDS_DELAY = 0.1
"""Seconds after which commands are offered: an editor knows a new session once it has read the response."""
_MAX_WITH_SERVERS = 50
_MODE_WORDS = {
    PermissionMode.DEFAULT: ("Ask", "Asks before tools change anything"),
    PermissionMode.ACCEPT_EDITS: ("Accept edits", "Asks, except for what tools count as edits"),
    PermissionMode.EXPLORE: ("Read only", "Denies whatever is not read-only"),
    PermissionMode.BYPASS: ("Bypass", "Allows everything that no rule denies or asks about"),
    PermissionMode.DONT_ASK: ("Never ask", "Denies whatever would be asked"),
}


class EditorAgent:
    """Serves one editor while it is open, by `async with`; the SDK calls its methods, of one session also side by side.

    An agent that has a workspace keeps it; others work in the folder of the session, by the means of the editor.
    """

    def __init__(self, agent: Agent, commands: Sequence[EditorCommand], modes: tuple[PermissionMode, ...]) -> None:
        self._agent = agent
        self._commands = {command.name: command for command in (COMPACT, STOP, *commands)}
        self._modes = modes
        self._capabilities = ClientCapabilities()
        self._sessions: dict[str, EditorSession] = {}
        self._stack: AsyncExitStack | None = None
        self._group: anyio.abc.TaskGroup | None = None
        self._client: Any = None
        self._loading = anyio.Lock()
        self._with_servers = 0  # sessions

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            store: object = self._agent.state_store
            if isinstance(store, AbstractAsyncContextManager):
                await stack.enter_async_context(store)
            await stack.enter_async_context(self._agent)
            await _listen_for_logins(self._agent, stack)
            self._group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(self._group.cancel_scope.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        assert self._stack is not None
        stack, self._stack = self._stack, None
        await stack.__aexit__(error_type, error, traceback)

    def on_connect(self, conn: Client) -> None:
        """Take the editor's side of the connection."""
        self._client = conn

    async def initialize(
        self, protocol_version: int, client_capabilities: ClientCapabilities | None = None, **_: Any
    ) -> InitializeResponse:
        """Tell what this agent can do."""
        self._capabilities = client_capabilities or ClientCapabilities()
        store = self._agent.state_store
        capabilities = self._agent.model.capabilities
        return InitializeResponse(
            protocol_version=acp.PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(
                load_session=store is not None,
                prompt_capabilities=PromptCapabilities(
                    image=not capabilities.lacks("image"), audio=not capabilities.lacks("audio"), embedded_context=True
                ),
                mcp_capabilities=McpCapabilities(http=True, sse=True),
                session_capabilities=SessionCapabilities(list=SessionListCapabilities())
                if hasattr(store, "list")
                else SessionCapabilities(),
            ),
            auth_methods=[],
            agent_info=Implementation(name=self._agent.name, version=agentrt.__version__),
        )

    async def new_session(
        self, cwd: str, additional_directories: list[str] | None = None, mcp_servers: Any = None, **_: Any
    ) -> NewSessionResponse:
        """Begin a conversation, with the permissions of the agent; its user may allow a tool always."""
        _check_folder(cwd)
        permissions = deepcopy(self._agent.state.permission_context)
        # The user of the editor has started this program, and may do what its rules allow.
        permissions.allow_new_rules = True
        state = AgentState(labels={_FOLDER_LABEL: cwd}, permission_context=permissions)
        with _as_protocol_errors():
            session = await self._open(state, cwd, mcp_servers or [])
        return NewSessionResponse(session_id=session.id, modes=self._mode_state(session))

    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: Any = None,
        additional_directories: list[str] | None = None,
        **_: Any,
    ) -> LoadSessionResponse:
        """Go on with a conversation, after it has been shown again."""
        _check_folder(cwd)
        with _as_protocol_errors():
            async with self._loading:  # or the same session could be opened twice
                session = self._sessions.get(session_id) or await self._load(session_id, cwd, mcp_servers or [])
            await session.show_history()
        return LoadSessionResponse(modes=self._mode_state(session))

    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> ListSessionsResponse:
        """List the sessions of editors, those in a folder if one is given."""
        store: Any = self._agent.state_store
        if not hasattr(store, "list"):
            raise RequestError.method_not_found("session/list")
        with _as_protocol_errors():
            page = await store.list(labels=None if cwd is None else {_FOLDER_LABEL: cwd}, cursor=cursor)
        sessions = [
            SessionInfo(
                session_id=info.session_id,
                cwd=info.labels[_FOLDER_LABEL],
                updated_at=datetime.fromtimestamp(info.updated_at / 1e9, UTC).isoformat(),
            )
            for info in page.sessions
            if _FOLDER_LABEL in info.labels
        ]
        return ListSessionsResponse(sessions=sessions, next_cursor=page.cursor)

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> SetSessionModeResponse:
        """Change the permission mode of the session, from the next decision on."""
        session = self._session(session_id)
        offered = [mode.value for mode in self._offered_modes(session)]
        if mode_id not in offered:
            raise RequestError.invalid_params({"details": f"the modes are {', '.join(offered)}, not {mode_id!r:.100}"})
        session.agent.state.permission_context.mode = PermissionMode(mode_id)
        if self._agent.state_store is not None:
            with _as_protocol_errors():
                await session.agent.save()
        return SetSessionModeResponse()

    async def prompt(self, session_id: str, prompt: list[PromptBlock], **_: Any) -> PromptResponse:
        """Reply to the user."""
        session, message = self._session(session_id), read_prompt(prompt)
        with _as_protocol_errors():
            return PromptResponse(stop_reason=await session.prompt(message))

    async def cancel(self, session_id: str, **_: Any) -> None:
        """End the turn of the session, if there is one: a notification gets no error."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.cancel()

    def _session(self, session_id: str) -> EditorSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise RequestError.resource_not_found(session_id)
        return session

    async def _load(self, session_id: str, folder: str, servers: Sequence[Any]) -> EditorSession:
        store = self._agent.state_store
        state = None if store is None else await store.load(session_id)
        # Other programs may use the store, and their sessions are not for editors.
        if state is None or _FOLDER_LABEL not in state.labels:
            raise RequestError.resource_not_found(session_id)
        return await self._open(state, folder, servers)

    async def _open(self, state: AgentState, folder: str, servers: Sequence[Any]) -> EditorSession:
        if self._stack is None or self._group is None:
            raise UsageError("acp_agent() is not open: write `async with acp_agent(agent) as editor:` around run_agent")
        agent = self._agent.with_state(state)
        files, has_terminal = self._capabilities.fs, self._capabilities.terminal
        if agent.workspace is None and (has_terminal or (files and (files.read_text_file or files.write_text_file))):
            agent.workspace = ClientWorkspace(folder, self._client, state.session_id, self._capabilities)
        toolsets: list[MCPToolset] = []
        for server in servers:
            toolsets.append(_toolset_of(server, {toolset.name for toolset in (*agent.toolkit.toolsets, *toolsets)}))
        if toolsets:
            # They run until the connection ends: an editor does not say when it needs a session no more.
            if self._with_servers >= _MAX_WITH_SERVERS:
                details = (
                    f"{_MAX_WITH_SERVERS} sessions of this connection have MCP servers: restart the agent to end these"
                )
                raise RequestError.invalid_request({"details": details})
            self._with_servers += 1
            agent.toolkit = agent.toolkit.with_tools(toolsets)
            await self._stack.enter_async_context(agent)
        session = self._sessions[state.session_id] = EditorSession(agent, self._client, folder, self._commands)
        self._group.start_soon(self._offer_commands, session)
        return session

    async def _offer_commands(self, session: EditorSession) -> None:
        await anyio.sleep(_COMMANDS_DELAY)
        commands = [
            AvailableCommand(
                name=command.name,
                description=command.description,
                input=AvailableCommandInput(UnstructuredCommandInput(hint=command.hint)) if command.hint else None,
            )
            for command in self._commands.values()
        ]
        update = AvailableCommandsUpdate(session_update="available_commands_update", available_commands=commands)
        with suppress(ConnectionError):  # the editor has left
            await self._client.session_update(session_id=session.id, update=update)

    def _offered_modes(self, session: EditorSession) -> tuple[PermissionMode, ...]:
        current = PermissionMode(session.agent.state.permission_context.mode)
        return self._modes if current in self._modes else (*self._modes, current)

    def _mode_state(self, session: EditorSession) -> SessionModeState:
        modes = [
            SessionMode(id=mode.value, name=_MODE_WORDS[mode][0], description=_MODE_WORDS[mode][1])
            for mode in self._offered_modes(session)
        ]
        current = PermissionMode(session.agent.state.permission_context.mode)
        return SessionModeState(current_mode_id=current.value, available_modes=modes)


async def _listen_for_logins(agent: Agent, stack: AsyncExitStack) -> None:
    """Finish the logins at the agent's MCP servers, since the user's browser is on this machine."""
    toolsets = [toolset for toolkit in agent.toolkit.toolkits_to_open(set()) for toolset in toolkit.toolsets]
    for login in {toolset.login for toolset in toolsets if isinstance(toolset, MCPToolset)}:
        if login is not None:
            try:
                await stack.enter_async_context(login.listen())
            except ConfigError as error:  # sessions work without, until the user must log in
                _logger.warning("%s", error)


def _check_folder(folder: str) -> None:
    if not Path(folder).is_absolute() or len(folder) > _MAX_FOLDER:
        details = f"'cwd' must be an absolute path of at most {_MAX_FOLDER} characters, not {folder!r:.100}"
        raise RequestError.invalid_params({"details": details})


@contextmanager
def _as_protocol_errors() -> Iterator[None]:
    """Raise `RequestError` for other errors: the SDK would send their words, which may hold a secret."""
    try:
        yield
    except RequestError:
        raise
    except (ConfigError, UsageError) as error:  # whose words are for those who gave a wrong value
        raise RequestError.invalid_params({"details": str(error)}) from None
    except Exception as error:
        _logger.warning("a request of the editor failed", exc_info=True)
        raise RequestError.internal_error({"details": type(error).__name__}) from None


def _toolset_of(server: Any, taken: set[str]) -> MCPToolset:
    """Return the tools of a server that the editor's user has configured; one that cannot be used is left out."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in server.name)[:60] or "server"
    names = (plain, *(f"{plain}_{number}" for number in range(2, len(taken) + 2)))
    name = next(name for name in names if name not in taken)
    if isinstance(server, McpServerStdio):
        env = {variable.name: variable.value for variable in server.env}
        return MCPToolset(name, command=[server.command, *server.args], env=env, on_failure="skip")
    if isinstance(server, HttpMcpServer | SseMcpServer):
        headers = {header.name: header.value for header in server.headers}
        protocol: Literal["auto", "sse"] = "sse" if isinstance(server, SseMcpServer) else "auto"
        return MCPToolset(name, url=server.url, headers=headers, protocol=protocol, on_failure="skip")
    raise RequestError.invalid_params({"details": f"the MCP server {server.name!r:.100} must be on stdio, http or sse"})
