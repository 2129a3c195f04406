"""Tool errors: custom texts for the model when a tool fails."""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import ActingValues, MiddlewareBase, NextActing
from agentrt.message import TextBlock, ToolCallBlock, ToolResultState
from agentrt.permission.glob import matches
from agentrt.types import ToolChunk, ToolResponse
from agentrt_middleware.reply_info import call_of
from agentrt_middleware.validation import check_function, check_patterns

ErrorText = str | Callable[[ToolCallBlock, str], str]

_logger = logging.getLogger("agentrt")
_FAILED_STATES = (ToolResultState.ERROR, ToolResultState.TIMEOUT)


class ToolErrorMiddleware(MiddlewareBase):
    """Replaces the runtime's text by `text` when a tool named by `on` fails, or exceeds its time.

    `on` are names and patterns of tools. `text` is a str, or a function of the call and of the runtime's own text; if
    that function fails, the runtime's text stays. The result keeps its state. Denied and interrupted calls are
    unchanged.
    """

    inherited = False
    wraps: ClassVar = {
        "ToolRetryMiddleware": "only the last failure is put into words",
        "ToolEmulatorMiddleware": "a failure to make up a result is put into words too",
    }

    def __init__(self, on: str | Sequence[str], text: ErrorText) -> None:
        self.on = check_patterns("ToolErrorMiddleware(on=...)", on, least=1)
        if not (isinstance(text, str) and text) and not callable(text):
            raise MiddlewareConfigError(
                f"ToolErrorMiddleware(text=...) must be a str for the model, or a function of a call and some text, "
                f"not {text!r:.200}"
            )
        if not isinstance(text, str):
            check_function("ToolErrorMiddleware(text=...)", text, "call", "text", plain=True)
        self.text = text

    async def on_acting(
        self, agent: AgentBase, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        call = call_of(input_kwargs)
        is_covered = any(matches(pattern, call.name) for pattern in self.on)
        # Streamed output was already shown; the result, which the model reads, is replaced.
        async for item in next_handler(**input_kwargs):
            if is_covered and isinstance(item, ToolResponse) and item.state in _FAILED_STATES:
                yield replace(item, content=[TextBlock(self._text_for(call, item.text))])
            else:
                yield item

    def _text_for(self, call: ToolCallBlock, text: str) -> str:
        if isinstance(self.text, str):
            return self.text
        try:
            own_text: object = self.text(call, text)
        except Exception as error:  # noqa: BLE001  # a function of the user's own; the call has failed already
            _logger.warning("the function of ToolErrorMiddleware(text=...) failed: %s", type(error).__name__)
            return text
        return own_text if isinstance(own_text, str) else text
