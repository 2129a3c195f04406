"""What layers that shorten requests need to know of them: where the conversation begins, and where it may be cut."""

from collections.abc import Callable
from dataclasses import replace

from agentrt.message import ContentBlock, Msg, ToolCallBlock, ToolResultBlock

__all__ = ["INSIDE_OF_CONTEXT", "REMOVED", "conversation_start", "drop_outputs", "exchange_starts"]

INSIDE_OF_CONTEXT = (
    "GuardrailMiddleware",
    "BudgetMiddleware",
    "RedactionMiddleware",
    "CacheMiddleware",
    "ModelFallbackMiddleware",
    "RetryMiddleware",
    "CircuitBreakerMiddleware",
    "RateLimitMiddleware",
    "TimeoutMiddleware",
)
"""What must see a request as it is sent: these stand inside of layers that shorten it."""

REMOVED = "(This result was removed to save room. Call the tool again if you need it.)"
"""What a model reads in the place of a result."""


def conversation_start(messages: list[Msg]) -> int:
    """Return the number of messages at the beginning that are not of the conversation: the prompt and a summary."""
    start = 0
    while start < len(messages) and messages[start].role == "system":
        start += 1
    # The runtime's summary is the only message of hints there.
    if start < len(messages) and messages[start].name == "runtime" and messages[start].has_content_blocks("hint"):
        start += 1
    return start


def exchange_starts(messages: list[Msg], start: int) -> list[int]:
    """Return where a message of the user begins an exchange, with no tool call open before it."""
    starts: list[int] = []
    open_calls: set[str] = set()
    for place, message in enumerate(messages[start:], start):
        # Results come back in the user's name in the histories of other programs.
        if message.role == "user" and not open_calls and not message.has_content_blocks("tool_result"):
            starts.append(place)
        if not isinstance(message.content, str):
            for block in message.content:
                if isinstance(block, ToolCallBlock):
                    open_calls.add(block.id)
                elif isinstance(block, ToolResultBlock):
                    open_calls.discard(block.id)
    # The runtime adds hints in the user's name to the end of a request; they begin nothing.
    while starts and messages[starts[-1]].name == "runtime" and messages[starts[-1]].has_content_blocks("hint"):
        starts.pop()
    return starts


def drop_outputs(message: Msg, is_dropped: Callable[[ToolResultBlock], bool]) -> Msg:
    """Return the message with a note in the place of such results; the message itself if it has none of them."""
    if isinstance(message.content, str):
        return message
    content: list[ContentBlock] = []
    for block in message.content:
        if isinstance(block, ToolResultBlock) and is_dropped(block):
            content.append(replace(block, output=REMOVED))
        else:
            content.append(block)
    if all(block is before for block, before in zip(content, message.content, strict=True)):
        return message
    # A message of its own: this one is shared, and stores find what has changed by the identity of messages.
    message = message.snapshot()
    message.content = content
    return message
