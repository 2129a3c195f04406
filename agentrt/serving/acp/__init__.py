"""Agents in editors, by the Agent Client Protocol (ACP).

The SDK takes a second to import, and needs the extra `acp`, so it is imported when it is first used.
"""

from collections.abc import Sequence
from typing import Any

from agentrt.agent import Agent
from agentrt.errors import ConfigError
from agentrt.serving.acp.command import EditorCommand
from agentrt.types import PermissionMode

_MODES = (PermissionMode.DEFAULT, PermissionMode.ACCEPT_EDITS, PermissionMode.EXPLORE, PermissionMode.DONT_ASK)


def acp_agent(
    agent: Agent, *, commands: Sequence[EditorCommand] = (), modes: Sequence[PermissionMode | str] = _MODES
) -> Any:
    """Return an `acp.Agent` that serves the agent's conversations to one editor, for `acp.run_agent`.

    Sessions are kept in the agent's `state_store`; without one they end with the connection. `commands` are offered
    beside `/compact`, and `modes` are the permission modes that the user may choose. Needs the extra `acp`, and
    asyncio.
    """
    candidate: object = agent
    if not isinstance(candidate, Agent):
        raise ConfigError(f"acp_agent() takes an Agent, not {candidate!r:.200}")
    for command in commands:
        if not isinstance(command, EditorCommand):
            raise ConfigError(f"acp_agent(commands=...) takes EditorCommands, not {command!r:.200}")
    try:
        chosen = tuple(PermissionMode(mode) for mode in modes)
    except ValueError:
        known = ", ".join(mode.value for mode in PermissionMode)
        raise ConfigError(f"acp_agent(modes=...) takes permission modes ({known}), not {modes!r:.200}") from None
    try:
        from agentrt.serving.acp.editor_agent import EditorAgent
    except ModuleNotFoundError as error:
        if error.name != "acp":
            raise
        raise ConfigError("acp_agent() needs the extra 'acp': pip install \"agentrt[acp]\"") from error
    return EditorAgent(agent, commands, chosen)
