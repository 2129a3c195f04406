"""The commands that an editor offers its user after a slash."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentrt.agent import Agent
from agentrt.errors import ConfigError

_COMMAND_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class EditorCommand:
    """A command `/name` of an editor; `hint` says what the user may write after it, if anything.

    `run` gets the agent of the session and what follows the name. The text that it returns is what the agent then
    replies to, in place of the user's; after `None` the turn is over.
    """

    name: str
    description: str
    run: Callable[[Agent, str], Awaitable[str | None]]
    hint: str = ""

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not _COMMAND_NAME.fullmatch(name):
            raise ConfigError(
                f"EditorCommand(name={name!r:.100}) must begin with a letter, and have up to 64 of a-z, 0-9, `_` "
                f"and `-`"
            )
        if not callable(self.run):
            raise ConfigError(f"EditorCommand({self.name!r}, run=...) must be an async function, not {self.run!r:.100}")


async def _compact(agent: Agent, words: str) -> None:
    await agent.compress_context(words or None)


async def _stop(agent: Agent, words: str) -> None:
    pass  # the session has ended what waits before it runs a command


STOP = EditorCommand("stop", "End a reply that waits for another program", _stop)
COMPACT = EditorCommand("compact", "Replace older messages by a summary", _compact, "what the summary is to keep")


def split_command(text: str) -> tuple[str, str]:
    """Return the name of the command that the text begins with, "" for none, and the rest."""
    if not text.startswith("/"):
        return "", text
    name, *rest = re.split(r"\s", text[1:], maxsplit=1)
    return name, "".join(rest).strip()
