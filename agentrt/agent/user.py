"""UserAgent: the user among agents."""

from collections.abc import Sequence
from inspect import isawaitable
from typing import Any, ClassVar, get_args

import pydantic

from agentrt._runtime.block import ContentBlock, TextBlock
from agentrt._runtime.boundary import read_messages
from agentrt._runtime.conversation.inputs import MessagesInput
from agentrt._runtime.terminal.user_input import TerminalUserInput, UserInputBase, UserInputData
from agentrt.agent.base import AgentBase
from agentrt.agent.initialization import refuse_before_init
from agentrt.errors import InvalidInputError
from agentrt.hooks import MiddlewareBase
from agentrt.memory import InMemoryMemory, MemoryBase
from agentrt.message import Msg

_BLOCKS = get_args(get_args(ContentBlock)[0])


@refuse_before_init
class UserAgent(AgentBase):
    """An agent whose reply is what the user answers: in the terminal, unless another way of asking is set.

    `memory` keeps what it was asked, what it observed and what it answered.
    """

    _input_method: ClassVar[UserInputBase] = TerminalUserInput()

    memory: MemoryBase

    def __init__(self, name: str, *, middlewares: Sequence[MiddlewareBase] = ()) -> None:
        super().__init__(name=name, middlewares=middlewares)
        self.memory = InMemoryMemory()
        self._own_input_method: UserInputBase | None = None

    async def reply(
        self, msg: MessagesInput | None = None, structured_model: "type[pydantic.BaseModel] | None" = None
    ) -> Msg:
        """Ask the user, and return the answer; the values of `structured_model` are in its `metadata`."""
        await self.memory.add(read_messages(msg))  # before the user is asked, who may never answer
        ask = self._own_input_method or self._input_method
        question = ask(self.id, self.name, structured_model=structured_model)
        if not isawaitable(question):
            raise InvalidInputError(f"{type(ask).__name__}.__call__() must be a coroutine function: write `async def`")
        data = await question
        _check_data(ask, data)
        match data.blocks_input or []:
            case [TextBlock(text=text)]:
                content: str | list[ContentBlock] = text
            case blocks:
                content = list(blocks) or ""
        answer = Msg(self.name, content, "user", metadata=dict(data.structured_input or {}))
        await self.print(answer, True)
        await self.memory.add(answer)
        return answer

    async def observe(self, msg: MessagesInput | None) -> None:
        """Keep messages without asking."""
        await self.memory.add(read_messages(msg))

    async def handle_interrupt(self, *args: Any, **kwargs: Any) -> Msg:
        """Return a message that says that there was no answer; it is printed and kept as an answer is."""
        text, metadata = "I was interrupted before I answered.", {"_is_interrupted": True}
        # From "user", unlike the message of an interrupted `Agent`: it takes the place of the user's answer.
        answer = Msg(self.name, text, "user", metadata=metadata, finished_reason="interrupted")
        await self.print(answer, True)
        await self.memory.add(answer)
        return answer

    def override_instance_input_method(self, input_method: UserInputBase) -> None:
        """Have this agent ask in another way."""
        self._own_input_method = _require_input_method(input_method)

    @classmethod
    def override_class_input_method(cls, input_method: UserInputBase) -> None:
        """Have all agents of this class ask in another way, and those of its subclasses that set none of their own."""
        cls._input_method = _require_input_method(input_method)


def _require_input_method(input_method: object) -> UserInputBase:
    if isinstance(input_method, UserInputBase):
        return input_method
    raise InvalidInputError(
        f"an input method must be an instance of a subclass of UserInputBase, such as TerminalUserInput(), "
        f"not {input_method!r:.200}"
    )


def _check_data(ask: UserInputBase, data: object) -> None:
    # Messages name the types only: what the user answered may be a secret.
    name = type(ask).__name__
    if not isinstance(data, UserInputData):
        raise InvalidInputError(f"{name} must return a UserInputData, not one of type {type(data).__name__}")
    blocks: object = data.blocks_input
    values: object = data.structured_input
    if blocks is not None and not (isinstance(blocks, list) and all(isinstance(block, _BLOCKS) for block in blocks)):
        raise InvalidInputError(f"{name} must return a list of content blocks, such as TextBlock, as blocks_input")
    if values is not None and not isinstance(values, dict):
        raise InvalidInputError(
            f"{name} must return a dict as structured_input, not one of type {type(values).__name__}"
        )
