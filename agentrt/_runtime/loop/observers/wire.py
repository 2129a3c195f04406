"""The calls that reach a model, as observers see them: around the core of on_model_call, inside of every layer."""

from collections.abc import AsyncIterator, Callable
from time import perf_counter
from typing import Any

from agentrt._runtime.chain.spec import Notify
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.decoding.internal_call import current_call, wrong_model
from agentrt._runtime.loop.reasoning import call_model
from agentrt._runtime.model_interface.base import ChatModelBase, ModelResult
from agentrt._runtime.model_interface.pieces import joined_response
from agentrt._runtime.model_interface.wire import WireRecord
from agentrt.message import Msg
from agentrt.types import ChatResponse, JSONSchema, ToolChoice

_MAX_KINDS = 16  # of purposes and models, of whose last requests a conversation keeps a reference


def observe_wire(notify: Notify) -> Any:
    """Return `call_model` with observers around what it sends and gets."""

    async def call_observed_model(
        agent: ReplyingAgent,
        messages: list[Msg],
        tools: list[JSONSchema],
        tool_choice: ToolChoice | None,
        current_model: ChatModelBase,
    ) -> ModelResult:
        # In the place of the model, since what that is called with is what is sent.
        async def send(messages: list[Msg], tools: list[JSONSchema], tool_choice: ToolChoice | None) -> ModelResult:
            run, internal = agent.live_conversation.reply, current_call.get()
            assert run is not None  # `run` itself is a property, whose call each round would pay for
            purpose = None if internal is None or internal.reply is not run else internal.purpose
            # An id of the reply, so that none is used twice when another process resumes it.
            request = WireRecord("request", run.new_id(), purpose, current_model, messages, tools, tool_choice)
            sent, kind = agent.live_conversation.sent, (purpose, current_model.model)
            earlier = request.earlier = sent.get(kind)
            if earlier is None and len(sent) == _MAX_KINDS:
                del sent[next(iter(sent))]
            sent[kind] = tools, messages
            notify(agent, request)
            # Not the time of day, which may be set back meanwhile.
            begun = perf_counter()

            def end(response: ChatResponse | None, pieces: int, error: BaseException | None = None) -> None:
                seconds = perf_counter() - begun
                # Written out, since `replace` would take longer than all the rest.
                values = (response, error, pieces, seconds, earlier)
                record = WireRecord(
                    "end", request.call_id, purpose, current_model, messages, tools, tool_choice, *values
                )
                notify(agent, record)

            try:
                answer: Any = current_model(messages, tools, tool_choice)
                if not hasattr(answer, "__await__"):
                    raise wrong_model(current_model, answer)
                result: Any = await answer
            except BaseException as error:
                end(None, 0, error)
                raise
            if result.__class__ is ChatResponse:
                end(result, 1)
            # Whatever can be read: a class of the user's may return an object.
            elif hasattr(result, "__anext__"):
                return _ObservedStream(result, end)  # type: ignore[return-value]  # it is read and closed like one
            else:  # it is refused a little later, by the code that reads it
                end(None, 1)
            return result  # type: ignore[no-any-return]  # of whatever type

        model: Any = send  # it is called, and asked for nothing else
        model.supports_allowed_tools = current_model.supports_allowed_tools
        return await call_model(agent, messages, tools, tool_choice, model)

    return call_observed_model


class _ObservedStream:
    """The stream that a model answers with; `end` is called once.

    An object rather than a generator, since Python runs no code of a generator that is closed before its first item.
    """

    def __init__(self, stream: Any, end: Callable[[ChatResponse | None, int, BaseException | None], None]) -> None:
        self._stream = stream
        self._end = end
        self._has_ended = False
        self._pieces: list[Any] = []

    @property
    def ag_running(self) -> bool:
        return bool(getattr(self._stream, "ag_running", False))

    def __aiter__(self) -> AsyncIterator[ChatResponse]:
        return self

    async def __anext__(self) -> ChatResponse:
        try:
            piece: ChatResponse = await self._stream.__anext__()
        except StopAsyncIteration:
            self._finish(is_whole=True)
            raise
        except BaseException as error:
            self._finish(error)
            raise
        self._pieces.append(piece)
        return piece

    async def aclose(self) -> None:
        try:
            if hasattr(self._stream, "aclose"):
                await self._stream.aclose()
        finally:
            self._finish()

    def _finish(self, error: BaseException | None = None, *, is_whole: bool = False) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        responses = [piece for piece in self._pieces if isinstance(piece, ChatResponse)]
        self._end(joined_response(responses, is_whole=is_whole), len(self._pieces), error)
