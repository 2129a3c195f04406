"""An editor: the SDK's client, with files and a terminal in memory, and a user who answers as a test says."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import acp
import anyio
from acp._transport import memory_transport_pair
from acp.agent.connection import AgentSideConnection
from acp.exceptions import RequestError
from acp.schema import (
    AllowedOutcome,
    ClientCapabilities,
    CreateTerminalResponse,
    DeniedOutcome,
    FileSystemCapabilities,
    ReadTextFileResponse,
    RequestPermissionResponse,
    TerminalExitStatus,
    TerminalOutputResponse,
    WaitForTerminalExitResponse,
)

from agentrt import Agent
from agentrt.serving import acp_agent

CAN_ALL = ClientCapabilities(fs=FileSystemCapabilities(read_text_file=True, write_text_file=True), terminal=True)


class Editor:
    """Keeps what it is shown, as dicts of the protocol's own names."""

    def __init__(self, answer: Callable[[Any], str | None] = lambda _: "allow_once") -> None:
        self.updates: list[dict[str, Any]] = []
        self.asked: list[Any] = []
        self.unsaved: dict[str, str] = {}
        self.commands: list[list[str]] = []
        self.released: list[str] = []
        self.answer = answer
        self.has_commands = anyio.Event()

    def on_connect(self, conn: Any) -> None:
        pass

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update.model_dump(by_alias=True, exclude_none=True))
        if update.session_update == "available_commands_update":
            self.has_commands.set()

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_: Any) -> Any:
        self.asked.append((tool_call, [option.option_id for option in options]))
        chosen = self.answer(tool_call)
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen))

    async def read_text_file(self, path: str, session_id: str, **_: Any) -> ReadTextFileResponse:
        if path.endswith("refused.txt"):
            raise RequestError.internal_error({"details": "the content of the file"})
        return ReadTextFileResponse(content=self.unsaved.get(path) or Path(path).read_text())

    async def write_text_file(self, content: str, path: str, session_id: str, **_: Any) -> None:
        self.unsaved[path] = content

    async def create_terminal(self, command: str, session_id: str, args: Any = None, **_: Any) -> Any:
        self.commands.append([command, *args])
        return CreateTerminalResponse(terminal_id="t1")

    async def wait_for_terminal_exit(self, session_id: str, terminal_id: str, **_: Any) -> Any:
        return WaitForTerminalExitResponse(exit_code=3)

    async def terminal_output(self, session_id: str, terminal_id: str, **_: Any) -> Any:
        return TerminalOutputResponse(output="2 failed", truncated=False, exit_status=TerminalExitStatus(exit_code=3))

    async def kill_terminal(self, session_id: str, terminal_id: str, **_: Any) -> None:
        pass

    async def release_terminal(self, session_id: str, terminal_id: str, **_: Any) -> None:
        self.released.append(terminal_id)

    def shown(self, kind: str) -> list[dict[str, Any]]:
        return [update for update in self.updates if update["sessionUpdate"] == kind]

    @property
    def text(self) -> str:
        return "".join(update["content"]["text"] for update in self.shown("agent_message_chunk"))

    def states_of(self, call_id: str) -> list[str]:
        """Return the states of a call, in the order in which they were shown."""
        calls = [update for update in self.updates if update.get("toolCallId") == call_id]
        return [update["status"] for update in calls if "status" in update]


@asynccontextmanager
async def connected(agent: Agent, editor: Editor, **options: Any) -> AsyncIterator[Any]:
    """Yield the editor's side of a connection with the agent, after it was initialized."""
    ours, theirs = memory_transport_pair()
    async with acp_agent(agent, **options) as served:
        serving = AgentSideConnection(served, ours)
        connection = acp.connect_to_agent(editor, theirs)
        try:
            await connection.initialize(protocol_version=acp.PROTOCOL_VERSION, client_capabilities=CAN_ALL)
            yield connection
        finally:
            await connection.close()
            await serving.close()
