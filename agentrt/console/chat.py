"""A conversation with an agent, line by line."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TextIO

from anyio.from_thread import BlockingPortal

from agentrt.agent import Agent
from agentrt.console.plain import PlainView
from agentrt.console.question import question_of
from agentrt.console.show import show
from agentrt.console.turn import Turn
from agentrt.state import AgentState
from agentrt.text import escaped, one_line

__all__ = ["Chat"]

_HELP = """/new      begin a new conversation
/explain  print the compiled chains, outermost first
/help     print this
/quit     leave; so does Ctrl-D
Ctrl-C stops a reply. A question of the agent's is answered by the next line: y, n, or what to do instead. Everything
else is said to the agent."""


class Chat:
    """Reads lines from standard input, says them to the agent and shows the replies, until `/quit` or the end of input.

    The agent lives in the event loop of `portal`, which goes on while a line is being typed; the main thread reads, so
    that a terminal's line editing and Ctrl-C work as they do everywhere.
    """

    def __init__(self, agent: Agent, portal: BlockingPortal, *, color: bool) -> None:
        self._agent = agent
        self._portal = portal
        self._color = color
        self._failed = False
        self._commands = {"/new": self._new, "/explain": self._explain, "/help": self._help}

    def run(self) -> bool:
        """Talk until the end, and return whether the last reply was a whole one."""
        self._ask()
        for line in _lines():
            if line == "/quit":
                break
            try:
                self._take(line)
            except Exception as error:  # noqa: BLE001  # whatever failed, the conversation goes on
                self._failed = True
                if isinstance(error, BrokenPipeError):
                    print(flush=True)  # which raises again if it is our reader who has left
                _tell("error", one_line(f"{type(error).__name__}: {error}"), sys.stderr)
            except KeyboardInterrupt:
                _tell("leaving", "once what still runs has stopped; Ctrl-C again leaves at once")
                raise
        return not self._failed

    def _take(self, line: str) -> None:
        if line.startswith("/"):
            self._commands.get(line, partial(self._unknown, line))()
        elif line:
            question = question_of(self._agent.state)
            stream = self._agent.reply_stream(question.answer(line) if question else line, yield_final_msg=True)
            Turn(self._portal, partial(show, stream, color=self._color)).run()
            self._failed = False
            self._ask()

    def _ask(self) -> None:
        question = question_of(self._agent.state)
        if question is not None:
            _tell("question", question.text)  # whole: what is cut off could be what matters

    def _new(self) -> None:
        self._agent = self._agent.with_state(AgentState())
        self._portal.call(self._agent.save)
        _tell("new", "a new conversation begins")

    def _explain(self) -> None:
        print(escaped(self._agent.explain()))

    def _help(self) -> None:
        print(_HELP)

    def _unknown(self, line: str) -> None:
        _tell("error", f"there is no command {line.split()[0]!r}: /help lists those that there are", sys.stderr)


def _tell(label: str, text: str, file: TextIO | None = None) -> None:
    PlainView(file or sys.stdout).line(label, text)


def _lines() -> Iterator[str]:
    """Yield what is typed, with a prompt where somebody sees it, until the end of input or two Ctrl-C in a row."""
    prompt = ""
    if sys.stdin.isatty() and sys.stdout.isatty():
        prompt = "> "
        with suppress(ImportError):  # Windows has its own
            import readline  # noqa: F401  # gives `input` line editing by being imported
    interrupted = False
    while True:
        try:
            yield input(prompt).strip()
            interrupted = False
        except EOFError:
            if prompt:
                print()
            return
        except KeyboardInterrupt:
            print()
            if interrupted:
                return
            interrupted = True
            print("Ctrl-C again leaves, and so do Ctrl-D and /quit.")
