"""The calls that reach a model, as observers see them: around the core of on_model_call, inside of every layer."""

from collections.abc import AsyncIterator
from dataclasses import replace
from time import perf_counter
from typing import Any

from agentrt.chain import Notify
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.decoding.internal_call import current_purpose, wrong_model
from agentrt.loop.reasoning import call_model
from agentrt.message import Msg
from agentrt.model import ChatModelBase, ChatResponse, ModelResult
from agentrt.model.wire import WireRecord, joined_response
from agentrt.types import JSONSchema, ToolChoice

__all__ = ["observe_wire"]


def observe_wire(notify: Notify) -> Any:
    """Return `call_model` with observers around what it sends and gets."""

    async def call_observed_model(
        agent: ReplyingAgent,
        messages: list[Msg],
        tools: list[JSONSchema],
        tool_choice: ToolChoice | None,
        current_model: ChatModelBase,
    ) -> ModelResult:
        model: Any = _ObservedModel(agent, current_model, notify)  # it is called, and nothing else
        return await call_model(agent, messages, tools, tool_choice, model)

    return call_observed_model


class _ObservedModel:
    """A model, for one call of it: what it is called with is what is sent."""

    def __init__(self, agent: ReplyingAgent, model: ChatModelBase, notify: Notify) -> None:
        self._agent = agent
        self._model = model
        self._notify = notify

    async def __call__(
        self, messages: list[Msg], tools: list[JSONSchema], tool_choice: ToolChoice | None
    ) -> ModelResult:
        run, model = self._agent.live_conversation.run, self._model
        purpose = current_purpose(run)
        # An id of the reply, so that none is used twice when another process resumes it.
        request = WireRecord("request", run.new_id(), purpose, model, messages, tools, tool_choice)
        self._notify(self._agent, request)
        call = _ObservedCall(self._agent, self._notify, request)
        try:
            answer: Any = model(messages, tools, tool_choice)
            if not hasattr(answer, "__await__"):
                raise wrong_model(model, answer)
            result: Any = await answer
        except BaseException as error:
            call.end(error)
            raise
        # Whatever can be read: a class of the user's may return an object.
        if hasattr(result, "__anext__"):
            return _ObservedStream(result, call)  # type: ignore[return-value]  # it is read and closed like one
        call.pieces.append(result)
        call.end(is_whole=True)
        return result  # type: ignore[no-any-return]  # of whatever type: the runtime checks it


class _ObservedCall:
    """One call of a model that was begun, and that ends once."""

    def __init__(self, agent: ReplyingAgent, notify: Notify, request: WireRecord) -> None:
        self._agent = agent
        self._notify = notify
        self._request = request
        # Not the time of day, which may be set back meanwhile.
        self._begun = perf_counter()
        self._has_ended = False
        self.pieces: list[Any] = []

    def end(self, error: BaseException | None = None, *, is_whole: bool = False) -> None:
        """Notify the observers that the call is over, if they do not know it yet."""
        if self._has_ended:
            return
        self._has_ended = True
        # What is not a response is refused a little later, by the code that reads it.
        pieces = [piece for piece in self.pieces if isinstance(piece, ChatResponse)]
        self._notify(
            self._agent,
            replace(
                self._request,
                kind="end",
                response=joined_response(pieces, is_whole=is_whole),
                error=error,
                pieces=len(self.pieces),
                seconds=perf_counter() - self._begun,
            ),
        )


class _ObservedStream:
    """The stream that a model answers with.

    An object rather than a generator, since Python runs no code of a generator that is closed before its first item.
    """

    def __init__(self, stream: Any, call: _ObservedCall) -> None:
        self._stream = stream
        self._call = call

    @property
    def ag_running(self) -> bool:
        return bool(getattr(self._stream, "ag_running", False))

    def __aiter__(self) -> AsyncIterator[ChatResponse]:
        return self

    async def __anext__(self) -> ChatResponse:
        try:
            piece: ChatResponse = await self._stream.__anext__()
        except StopAsyncIteration:
            self._call.end(is_whole=True)
            raise
        except BaseException as error:
            self._call.end(error)
            raise
        self._call.pieces.append(piece)
        return piece

    async def aclose(self) -> None:
        try:
            if hasattr(self._stream, "aclose"):
                await self._stream.aclose()
        finally:
            self._call.end()
