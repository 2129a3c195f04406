"""Layers that the kit puts around a middleware, and inside of it."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import anyio.lowlevel

from agentrt.hooks import MiddlewareBase
from agentrt.message import AssistantMsg, Msg

__all__ = ["Answers", "Fails", "HoldsBack", "Outcomes", "OutcomesAside", "Rewrites"]

_NOTHING: Any = object()


class _Around(MiddlewareBase):
    """Does one thing around each hook: `items` has the stream of what lies inside, `result` is to call it."""

    def items(self, hook: str, stream: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        raise NotImplementedError

    async def result(self, hook: str, next_handler: Any, values: Any) -> Any:
        return await next_handler(**values)

    async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        items = self.items("on_reply", next_handler(**input_kwargs))
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    async def on_reasoning(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        items = self.items("on_reasoning", next_handler(**input_kwargs))
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        items = self.items("on_acting", next_handler(**input_kwargs))
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        result = await self.result("on_model_call", next_handler, input_kwargs)
        return self.items("on_model_call", aiter(result)) if hasattr(result, "__anext__") else result

    async def on_check_permission(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return await self.result("on_check_permission", next_handler, input_kwargs)


class Outcomes(_Around):
    """Notes how each hook inside of it ends once `is_struck`: with an error, or with none where it simply goes on.

    With `core`, which is the same at the other side of a middleware, going on counts where a cancellation came out of
    that hook there: what was on its way already may still come.
    """

    def __init__(self, core: "Outcomes | None" = None) -> None:
        self.is_struck = False
        self.seen: list[tuple[str, BaseException | None]] = []
        self._core = core

    def strike(self) -> None:
        self.is_struck = True
        if self._core is not None:
            self._core.strike()

    def _note(self, hook: str, error: BaseException | None) -> None:
        if self.is_struck and (error is not None or self._core is None or self._core.was_cancelled_in(hook)):
            self.seen.append((hook, error))

    def was_cancelled_in(self, hook: str) -> bool:
        cancelled = anyio.get_cancelled_exc_class()
        return any(each == hook and isinstance(error, cancelled) for each, error in self.seen)

    async def items(self, hook: str, stream: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        try:
            async for item in stream:
                self._note(hook, None)
                yield item
        except BaseException as error:
            self._note(hook, error)
            raise
        self._note(hook, None)

    async def result(self, hook: str, next_handler: Any, values: Any) -> Any:
        try:
            result = await next_handler(**values)
        except BaseException as error:
            self._note(hook, error)
            raise
        self._note(hook, None)
        return result


class OutcomesAside(Outcomes):
    """Notes it of observing and printing too; apart, since an agent prints for whoever looks."""

    async def on_observe(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return await self.result("on_observe", next_handler, input_kwargs)

    async def on_print(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return await self.result("on_print", next_handler, input_kwargs)


class HoldsBack(_Around):
    """Keeps each item back until the next one comes, or nothing more does."""

    async def items(self, hook: str, stream: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        held = _NOTHING
        async for item in stream:
            if held is not _NOTHING:
                yield held
            await anyio.lowlevel.checkpoint()
            held = item
        if held is not _NOTHING:
            yield held


class Fails(_Around):
    """Raises an error in one hook, once: before it calls what lies inside, or after the first item of that."""

    def __init__(self, hook: str, error: Exception, *, midway: bool) -> None:
        self._hook = hook
        self._error: Exception | None = error
        self._midway = midway

    def _fail(self, hook: str, midway: bool) -> None:
        error = self._error
        if error is not None and hook == self._hook and midway == self._midway:
            self._error = None
            raise error

    async def items(self, hook: str, stream: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        if hook != "on_model_call":
            self._fail(hook, False)
        async for item in stream:
            yield item
            self._fail(hook, True)

    async def result(self, hook: str, next_handler: Any, values: Any) -> Any:
        self._fail(hook, False)
        result = await next_handler(**values)
        if not hasattr(result, "__anext__"):
            self._fail(hook, True)
        return result


class Answers(MiddlewareBase):
    """Answers every message itself, and passes on the answers to questions."""

    async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        if agent.state.reply_context is None:
            yield AssistantMsg("layer", "A layer answers this.")
            return
        async for item in next_handler():
            yield item


class Rewrites(MiddlewareBase):
    """Replaces the last message, unless the reply waits for an answer."""

    async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        async for item in next_handler():
            is_answer = isinstance(item, Msg) and agent.state.reply_context is None
            yield AssistantMsg("layer", "A layer has rewritten this.") if is_answer else item
