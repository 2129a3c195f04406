"""How an agent asks a person: in a terminal, line by line, or in any other way that a subclass knows."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel

from agentrt.errors import InputEnded
from agentrt.message import ContentBlock, TextBlock
from agentrt.terminal.form import Form, check_form
from agentrt.terminal.line_reader import Lines
from agentrt.terminal.stdio import echo_off, stdin_lines, write_stdout
from agentrt.text import escape_controls

__all__ = ["TerminalUserInput", "UserInputBase", "UserInputData"]

_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class UserInputData:
    """What a person answered: content for a message, and the values of a form where one was to be filled in."""

    blocks_input: list[ContentBlock] | None = None
    structured_input: dict[str, Any] | None = None


class UserInputBase(ABC):
    """A way of asking a person; one instance may serve several agents at once."""

    @abstractmethod
    async def __call__(
        self,
        agent_id: str,
        agent_name: str,
        *args: Any,
        structured_model: type[BaseModel] | None = None,
        **kwargs: Any,
    ) -> UserInputData:
        """Ask on behalf of the agent and wait for the answer; must leave at once when it is cancelled."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a copy of an agent asks the same person, at the same terminal


class TerminalUserInput(UserInputBase):
    """Asks on standard input and output; questions that are asked at the same time wait for each other.

    A form is asked field by field after the text: an empty line takes the default or leaves out what may be left out,
    and what does not fit is told and asked for again. Lists, objects and nested models are typed as JSON. Secrets are
    not echoed where the terminal allows it, and stay `SecretStr` objects in the answer; other values are as in JSON.
    Bytes that the input's encoding does not know become U+FFFD. The end of the input raises `InputEnded`.

    `read_line` works as the `readline` of a text stream does and is called in a thread; `write` is given the prompts.
    """

    def __init__(
        self,
        input_hint: str = "User Input: ",
        *,
        read_line: Callable[[], str] | None = None,
        write: Callable[[str], None] | None = None,
    ) -> None:
        self.input_hint = input_hint
        self._write = write or write_stdout
        self._own_lines = None if read_line is None else Lines(read_line)

    async def __call__(
        self,
        agent_id: str,
        agent_name: str,
        *args: Any,
        structured_model: type[BaseModel] | None = None,
        **kwargs: Any,
    ) -> UserInputData:
        """Ask for one line of text, and for the fields of `structured_model` where it is given."""
        check_form(structured_model)
        lines = self._own_lines or stdin_lines
        async with lines.turns:
            text = await self._ask(lines, self.input_hint, False)
            if structured_model is None:
                return UserInputData([TextBlock(text)])
            form = Form(
                structured_model,
                ask=lambda prompt, unseen: self._ask(lines, escape_controls(prompt), unseen),
                tell=lambda told: self._write(f"{escape_controls(told)}\n"),
            )
            return UserInputData([TextBlock(text)], await form.fill())

    async def _ask(self, lines: Lines, prompt: str, unseen: bool) -> str:
        line = ""
        with echo_off() if unseen and lines is stdin_lines else nullcontext():
            self._write(prompt)
            try:
                line = await lines.next(unseen)
            finally:
                if unseen or not line:  # nobody's newline has ended the line of the prompt
                    with suppress(OSError, ValueError):  # which must not hide why the question is left
                        self._write("\n")
        if not line:
            raise InputEnded(f"the input ended before {prompt.strip()!r} was answered: there is nobody to ask")
        return _SURROGATES.sub("\ufffd", line.removesuffix("\n").removesuffix("\r"))
