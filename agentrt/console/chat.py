"""A conversation with an agent, line by line."""

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from anyio.from_thread import BlockingPortal

from agentrt._runtime.text import escape_controls, one_line
from agentrt.agent import Agent
from agentrt.console.confirmation import next_confirmation
from agentrt.console.prompt import Prompt
from agentrt.console.render.call_description import full_input
from agentrt.console.render.plain import PlainView
from agentrt.console.render.show import show
from agentrt.console.reply_runner import ReplyRunner
from agentrt.errors import ConfigError
from agentrt.model import RulesChatModel
from agentrt.state import AgentState
from agentrt.tool import MCPToolset

_HELP = """/new      start a new conversation
/explain  print the compiled chains, outermost first
/input    print the whole input of the call that is asked about
/help     print this
/quit     leave; so does Ctrl-D
Ctrl-C stops a reply. The next line answers a question of the agent: y, n, or what to do instead. What was typed
before the question is dropped. Everything else goes to the agent, and several lines that are pasted are one
message."""


class Chat:
    """Sends the lines of standard input to the agent and shows the replies, until `/quit` or the end of input.

    The agent lives in the event loop of `portal`, which keeps running while a line is being typed; the main thread
    reads, so that a terminal's line editing and Ctrl-C work as they do everywhere.
    """

    def __init__(self, agent: Agent, portal: BlockingPortal, *, color: bool) -> None:
        self._agent = agent
        self._portal = portal
        self._color = color
        self._writes_markdown = not isinstance(agent.model, RulesChatModel)
        self._failed = False
        self._prompt = Prompt()
        self._commands: dict[str, Callable[[], None]] = {
            "/new": self._begin_anew,
            "/explain": self._explain,
            "/input": self._show_input,
            "/help": partial(print, _HELP),
        }

    def run(self) -> bool:
        """Run the conversation to its end, and return whether the last reply was complete.

        Raises `OSError` when standard output can no longer be written.
        """
        holding = [type(layer).__name__ for layer in self._agent.middlewares if layer.holds_answers]
        if holding and sys.stdout.isatty():
            _print_line("held", f"{', '.join(holding)} holds each answer until it is whole, so none comes word by word")
        self._show_question()
        for line in self._prompt:
            if line == "/quit":
                break
            try:
                self._handle(line)
            except Exception as error:  # noqa: BLE001  # whatever failed, the conversation continues
                self._failed = True
                if isinstance(error, OSError):
                    print(flush=True)  # raises again if our output has failed
                _print_error(one_line(f"{type(error).__name__}: {error}"))
            except KeyboardInterrupt:
                _print_line("leaving", "once what still runs has stopped; Ctrl-C again leaves at once")
                raise
        return not self._failed

    def _handle(self, line: str) -> None:
        if line.startswith("/") and "\n" not in line:  # pasted text may begin with the path of a file
            self._commands.get(line, partial(self._refuse_command, line))()
        elif line:
            confirmation = next_confirmation(self._agent.state)
            inputs = confirmation.answer(line) if confirmation else line
            stream = self._agent.reply_stream(inputs, yield_final_msg=True)
            ReplyRunner(self._portal, partial(show, stream, color=self._color, markdown=self._writes_markdown)).run()
            self._failed = False
            self._show_question()

    def _show_question(self) -> None:
        confirmation = next_confirmation(self._agent.state)
        if confirmation is not None:
            _print_line("question", confirmation.text)
            self._prompt.discard_input()  # earlier input cannot be meant for this question

    def _begin_anew(self) -> None:
        agent = self._agent.with_state(AgentState())
        self._portal.call(agent.save)
        self._agent = agent  # only now: a save that failed leaves the conversation as it was
        _print_line("new", "a new conversation starts")

    def _explain(self) -> None:
        print(escape_controls(self._agent.explain()))

    def _show_input(self) -> None:
        confirmation = next_confirmation(self._agent.state)
        if confirmation is None:
            _print_error("no call is asked about")
        else:
            _print_line("input", full_input(confirmation.call))

    def _refuse_command(self, line: str) -> None:
        _print_error(f"{line.split()[0]!r} is not a command: /help lists all commands")


def listen_for_logins(agent: Agent, portal: BlockingPortal, stack: ExitStack) -> None:
    """Finish the logins at the agent's MCP servers until the stack is closed."""
    toolsets = [toolset for toolkit in agent.toolkit.toolkits_to_open(set()) for toolset in toolkit.toolsets]
    for login in {toolset.login for toolset in toolsets if isinstance(toolset, MCPToolset)}:
        if login is not None:
            try:
                stack.enter_context(portal.wrap_async_context_manager(login.listen()))
            except ConfigError as error:  # the conversation works without, until the user must log in
                _print_error(str(error))


def _print_line(label: str, text: str) -> None:
    PlainView(sys.stdout).line(label, text)


def _print_error(text: str) -> None:
    with suppress(OSError):  # the conversation does not need standard error
        PlainView(sys.stderr).line("error", text)
