"""A conversation with an agent, line by line."""

import sys
from contextlib import suppress
from functools import partial

from anyio.from_thread import BlockingPortal

from agentrt.agent import Agent
from agentrt.console.confirmation import question_of
from agentrt.console.prompt import Prompt
from agentrt.console.render.call_description import full_input
from agentrt.console.render.plain import PlainView
from agentrt.console.render.show import show
from agentrt.console.reply_runner import Turn
from agentrt.state import AgentState
from agentrt.text import escape_controls, one_line

__all__ = ["Chat"]

_HELP = """/new      begin a new conversation
/explain  print the compiled chains, outermost first
/input    print the whole input of the call that is asked about
/help     print this
/quit     leave; so does Ctrl-D
Ctrl-C stops a reply. A question of the agent's is answered by the next line: y, n, or what to do instead. What was
typed before the question is dropped. Everything else is said to the agent, and several lines that are pasted are one
message."""


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
        self._prompt = Prompt()
        self._commands = {"/new": self._new, "/explain": self._explain, "/input": self._input, "/help": self._help}

    def run(self) -> bool:
        """Talk until the end, and return whether the last reply was a whole one.

        Raises `OSError` when standard output can no longer be written.
        """
        self._ask()
        for line in self._prompt:
            if line == "/quit":
                break
            try:
                self._take(line)
            except Exception as error:  # noqa: BLE001  # whatever failed, the conversation goes on
                self._failed = True
                if isinstance(error, OSError):
                    print(flush=True)  # raises again if it is our output that failed
                _tell_error(one_line(f"{type(error).__name__}: {error}"))
            except KeyboardInterrupt:
                _tell("leaving", "once what still runs has stopped; Ctrl-C again leaves at once")
                raise
        return not self._failed

    def _take(self, line: str) -> None:
        if line.startswith("/") and "\n" not in line:  # pasted text may begin with the path of a file
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
            _tell("question", question.text)
            self._prompt.discard_input()  # nobody can have meant it for this question

    def _new(self) -> None:
        agent = self._agent.with_state(AgentState())
        self._portal.call(agent.save)
        self._agent = agent  # only now: a save that failed leaves the conversation as it was
        _tell("new", "a new conversation begins")

    def _explain(self) -> None:
        print(escape_controls(self._agent.explain()))

    def _input(self) -> None:
        question = question_of(self._agent.state)
        if question is None:
            _tell_error("no call is asked about")
        else:
            _tell("input", full_input(question.call))

    def _help(self) -> None:
        print(_HELP)

    def _unknown(self, line: str) -> None:
        _tell_error(f"there is no command {line.split()[0]!r}: /help lists those that there are")


def _tell(label: str, text: str) -> None:
    PlainView(sys.stdout).line(label, text)


def _tell_error(text: str) -> None:
    with suppress(OSError):  # the conversation needs no standard error
        PlainView(sys.stderr).line("error", text)
