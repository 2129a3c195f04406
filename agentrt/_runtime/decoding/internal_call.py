"""Model calls outside the rounds: through on_model_call, but not in the stream of the reply."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from pydantic_core import ValidationError

from agentrt._runtime.concurrency.event_loop import RESPONSES_PER_CHECKPOINT, checkpoint
from agentrt._runtime.decoding.answer_form import AnswerForm, describe_misfit
from agentrt._runtime.decoding.decoder import Decoder
from agentrt._runtime.model_interface.base import ChatModelBase, ModelResult
from agentrt._runtime.model_interface.visible import visible_messages
from agentrt._runtime.text import repr_of
from agentrt.errors import ChainContractError, Malformed, UsageError
from agentrt.event import AgentEvent
from agentrt.hooks import AgentChains, NextModelCall
from agentrt.message import APPLY, AssistantMsg, HintBlock, Msg, TextBlock, ToolCallBlock, ToolResultBlock, UserMsg
from agentrt.message import ToolResultState as State
from agentrt.state.state import WRAPPER
from agentrt.tool.arguments import ArgumentsError, Parse, parser_by_schema
from agentrt.tool.table import OfferedTools
from agentrt.types import STRUCTURED_OUTPUT, STRUCTURED_OUTPUT_HINT, ChatResponse, JSONSchema, ReActConfig, ToolChoice

_MAX_NESTED_CALLS = 3
_AnswerT = TypeVar("_AnswerT", bound=ModelResult)


class _InternalCall(NamedTuple):
    """The internal call of the current task, with its `reply`, since the called model may be another agent."""

    reply: object
    depth: int
    purpose: str
    asking: "_Asking"


current_call: ContextVar[_InternalCall | None] = ContextVar("agentrt_internal_call", default=None)
"""The internal call that the current task works for."""


class _AskingAgent(Protocol):
    name: str
    model: ChatModelBase
    react_config: ReActConfig

    @property
    def chains(self) -> AgentChains: ...


class _AskingReply(Protocol):
    id: str
    agent: Any

    def new_id(self) -> str: ...


def is_internal(reply: object) -> bool:
    """Say whether the current task works for an internal call of the reply."""
    call = current_call.get()
    return call is not None and call.reply is reply


def current_purpose(reply: object) -> str | None:
    """Return the purpose of the reply's internal call for which the current task works, `None` outside one."""
    call = current_call.get()
    return None if call is None or call.reply is not reply else call.purpose


def forget_internal_attempt(reply: object) -> bool:
    """Discard the text read by the current internal call of the reply; returns whether there is such a call."""
    call = current_call.get()
    if call is None or call.reply is not reply:
        return False
    call.asking.forget_attempt()
    return True


def check_question(messages: object, purpose: object, model: object, through: object) -> None:
    """Raise `UsageError` for invalid arguments of `ask_model`."""
    if not isinstance(messages, (list, tuple)) or not messages or not all(isinstance(one, Msg) for one in messages):
        raise UsageError(
            f"ask_model() takes a list of messages, and at least one, not {repr_of(messages)}: write [UserMsg(text)]"
        )
    if not isinstance(purpose, str) or not purpose:
        raise UsageError(
            f"ask_model(purpose=...) must say in a word or two what the call is for, not {repr_of(purpose)}: write "
            f"purpose='summary'"
        )
    if model is not None and not isinstance(model, ChatModelBase):
        raise UsageError(
            f"ask_model(model=...) must be a chat model, not {repr_of(model)}: make it once, with chat_model(...)"
        )
    if through is not None and not callable(through):
        raise UsageError(
            f"ask_model(through=...) must be the next_handler of on_model_call, not {repr_of(through)}: write "
            f"through=next_handler"
        )


def wrong_model(model: object, answer: object) -> ChainContractError:
    """Return the error for a model whose call returns nothing awaitable."""
    return ChainContractError(
        f"{type(model).__name__}._call must be a coroutine function (`async def` without `yield`) that "
        f"returns a ChatResponse or an async generator of them, but calling it gave {answer!r:.100}"
    )


def check_model_answer(model: ChatModelBase, answer: _AnswerT) -> _AnswerT:
    """Return the answer; raises `ChainContractError` if it is neither whole nor a stream."""
    if not isinstance(answer, ChatResponse) and not (hasattr(answer, "__aiter__") and hasattr(answer, "aclose")):
        raise ChainContractError(
            f"model {model.model!r} returned {answer!r:.200}: return a ChatResponse, or an async generator of them"
        )
    return answer


async def ask_internally(
    reply: _AskingReply,
    messages: Sequence[Msg],
    purpose: str,
    form: AnswerForm | None,
    model: ChatModelBase | None,
    through: NextModelCall | None = None,
) -> Msg:
    """Ask the model of the reply's agent, or another one; returns its answer, with the instance of the form."""
    outer = current_call.get()
    depth = outer.depth + 1 if outer is not None and outer.reply is reply else 1
    if depth > _MAX_NESTED_CALLS:
        raise UsageError(
            f"ask_model(purpose={purpose!r:.100}) was called inside {_MAX_NESTED_CALLS} other calls of it: does a "
            f"layer of on_model_call ask the model each time? Let it pass calls on where agent.run.is_internal is true"
        )
    asking = _Asking(reply, model, through)
    token = current_call.set(_InternalCall(reply, depth, purpose, asking))
    try:
        if form is None:
            return await asking.ask(messages)
        return await asking.ask_for(form, messages, purpose)
    finally:
        current_call.reset(token)


class _Asking:
    """One question to the model, with as many attempts as its form needs."""

    def __init__(self, reply: _AskingReply, model: ChatModelBase | None, through: NextModelCall | None) -> None:
        self._reply = reply
        self._agent: _AskingAgent = reply.agent
        self._model = model or self._agent.model
        # A layer's own `next_handler` keeps its model, unless another one is asked.
        self._enter: Any = through or partial(self._agent.chains.on_model_call, self._agent)
        self._values = {} if through is not None and model is None else {"current_model": self._model}
        self._attempt: tuple[Decoder, Msg] | None = None  # the answer being read

    def forget_attempt(self) -> None:
        """Discard the text read so far: another attempt follows."""
        if self._attempt is not None:
            decoder, message = self._attempt
            dropped = set(decoder.discard())
            message.content = [block for block in message.get_content_blocks() if block.id not in dropped]

    async def ask_for(self, form: AnswerForm, messages: Sequence[Msg], purpose: str) -> Msg:
        """Ask until the answer fits the form; raises `Malformed` when the attempts are used up."""
        attempts = self._agent.react_config.max_form_attempts
        text = "Give the answer in this form."
        function = {"name": STRUCTURED_OUTPUT, "description": text, "parameters": form.schema}
        tool: JSONSchema = {"type": "function", "function": function}
        parse = parser_by_schema(form.schema, frozenset(), None)
        earlier: Msg | None = None
        problem = ""
        for _ in range(attempts):
            message = await self.ask(messages, [tool], ToolChoice(STRUCTURED_OUTPUT))
            if earlier is not None and earlier.usage is not None and message.usage is not None:
                message.usage += earlier.usage
            earlier = message
            call = next(
                (call for call in message.get_content_blocks("tool_call") if call.name == STRUCTURED_OUTPUT), None
            )
            # Some models answer in words despite the tool choice.
            if call is None:
                problem = "it is in words"
                messages = [*messages, message, UserMsg("runtime", [HintBlock(STRUCTURED_OUTPUT_HINT)])]
                continue
            try:
                message.structured_output = _fill_in(form, parse, call)
            except ArgumentsError as error:
                problem = str(error)
                result = ToolResultBlock(
                    call.id, call.name, [TextBlock(f"the answer does not fit: {problem}")], State.ERROR
                )
                answer = message.copy()
                answer.content = [*answer.get_content_blocks(), result]
                messages = [*messages, answer]
            else:
                return message
        raise Malformed(
            f"model {self._model.model!r} gave no answer for {purpose!r:.100} that fits its schema, in {attempts} "
            f"attempts: {problem:.500}"
        )

    async def ask(
        self, messages: Sequence[Msg], tools: Sequence[JSONSchema] = (), tool_choice: ToolChoice | None = None
    ) -> Msg:
        """Ask once; returns the answer as a message."""
        await checkpoint()  # a model that never waits must not block the event loop
        answer: ModelResult = await self._enter(
            messages=visible_messages(messages), tools=OfferedTools(tools), tool_choice=tool_choice, **self._values
        )
        check_model_answer(self._model, answer)
        # Decoded like an answer of a round, so that it is checked in the same way.
        message = AssistantMsg(self._agent.name, [])
        decoder = Decoder(
            self._reply.id, self._reply.new_id, {}, self._model.model, limit=self._agent.react_config.max_output
        )
        if isinstance(answer, ChatResponse):
            _apply_all(message, decoder.decode_answer(answer))
        else:
            self._attempt = decoder, message
            left = RESPONSES_PER_CHECKPOINT
            async with aclosing(answer):
                async for piece in answer:
                    _apply_all(message, decoder.feed(piece))
                    if decoder.written > decoder.limit:
                        break
                    left -= 1
                    if not left:
                        left = RESPONSES_PER_CHECKPOINT
                        await checkpoint()
                else:  # inside the block, since this raises for an empty stream, which must be closed too
                    _apply_all(message, decoder.end())
            self._attempt = None
        if decoder.written > decoder.limit:
            message.finished_reason = "exceed_max_output"
        return message


def _apply_all(message: Msg, events: Iterable[AgentEvent]) -> None:
    for event in events:
        apply = cast(Callable[[Msg, AgentEvent], None] | None, APPLY.get(event.__class__))
        if apply is not None:
            apply(message, event)


def _fill_in(form: AnswerForm, parse: Parse, call: ToolCallBlock) -> Any:
    """Return the instance for the model's object; raises `ArgumentsError` if it does not fit."""
    try:
        output = form.fill_in(parse(call.input))
        return form.load(output[WRAPPER] if form.is_wrapped else output)
    except ValidationError as error:
        problem = describe_misfit(error, form.path)
    raise ArgumentsError(problem)  # here, so that the error above does not become the context of this one
