"""User input for agents: in a terminal, line by line, or in the way of a subclass."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Self

import pydantic

from agentrt._runtime.terminal.line_reader import LineReader
from agentrt._runtime.terminal.stdio import echo_off, stdin_reader, write_stdout
from agentrt._runtime.text import escape_controls, lazy_pattern
from agentrt.errors import InputEnded
from agentrt.message import ContentBlock, TextBlock

_SURROGATES = lazy_pattern("[\ud800-\udfff]")


@dataclass(slots=True)
class UserInputData:
    """The user's answer: content for a message, and the values of a form, if one was asked for."""

    blocks_input: list[ContentBlock] | None = None
    structured_input: dict[str, Any] | None = None


class UserInputBase(ABC):
    """A way of asking the user; one instance may serve several agents at once."""

    @abstractmethod
    async def __call__(
        self,
        agent_id: str,
        agent_name: str,
        *args: Any,
        structured_model: "type[pydantic.BaseModel] | None" = None,
        **kwargs: Any,
    ) -> UserInputData:
        """Ask on behalf of the agent and wait for the answer; must end at once when it is cancelled."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a copy of an agent asks the same user, at the same terminal


class TerminalUserInput(UserInputBase):
    """Asks on standard input and output; concurrent questions wait for each other.

    After the text come the fields of a form, one by one. An empty line takes the default, or skips an optional
    field; an invalid answer is explained, and asked for again. Lists, objects and nested models
    are typed as JSON. Secrets are not echoed where the terminal allows it, and stay `SecretStr` objects in the answer;
    other values are as in JSON. Bytes that are invalid in the input's encoding become U+FFFD. The end of the input
    raises `InputEnded`.

    `read_line` works like `readline` of a `TextIO` and is called in a thread; `write` gets the prompts.
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
        self._own_reader = None if read_line is None else LineReader(read_line)

    async def __call__(
        self,
        agent_id: str,
        agent_name: str,
        *args: object,
        structured_model: "type[pydantic.BaseModel] | None" = None,
        **kwargs: object,
    ) -> UserInputData:
        """Ask for one line of text, and for the fields of `structured_model`, if given."""
        form = None
        if structured_model is not None:
            from agentrt._runtime.terminal.form import Form  # here, since it loads all of pydantic

            form = Form(  # before any question, since it refuses anything but a model
                structured_model,
                ask=lambda prompt, hidden: self._ask(escape_controls(prompt), hidden),
                tell=lambda problem: self._write(f"{escape_controls(problem)}\n"),
            )
        async with self._reader.lock:  # for all questions of a form, which must not be interrupted by others
            text = await self._ask(self.input_hint, False)
            return UserInputData([TextBlock(text)], await form.fill() if form else None)

    @property
    def _reader(self) -> LineReader:
        return self._own_reader or stdin_reader  # not stored, so that a pickled copy reads the same input

    async def _ask(self, prompt: str, hidden: bool) -> str:
        line = ""
        with echo_off() if hidden and self._reader is stdin_reader else nullcontext():
            self._write(prompt)
            try:
                line = await self._reader.next_line(hidden)
            finally:
                if hidden or not line:  # the echo has no newline that ends the line of the prompt
                    with suppress(OSError, ValueError):  # an error here must not hide the cause
                        self._write("\n")
        if not line:
            raise InputEnded(f"the input ended before {prompt.strip()!r} was answered: there is nobody to ask")
        return _SURROGATES.sub("\ufffd", line.removesuffix("\n").removesuffix("\r"))
