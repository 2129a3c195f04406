"""What layers that change requests need to know of them: where the conversation begins, and where it may be cut."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from agentrt.message import ContentBlock, HintBlock, Msg, ToolCallBlock, ToolResultBlock
from agentrt_middleware.attempts import ATTEMPT_LAYERS

__all__ = [
    "CONTEXT_LAYERS",
    "INSIDE_OF_ADDITIONS",
    "INSIDE_OF_CONTEXT",
    "REMOVED",
    "conversation_start",
    "drop_outputs",
    "exchange_starts",
    "hint_message",
    "question_place",
]

_SHAPING_LAYERS = (
    "KeepLastMiddleware",
    "TrimToolResultsMiddleware",
    "ToolSelectorMiddleware",
    "CompressionMiddleware",
    "ModelRouterMiddleware",
)

CONTEXT_LAYERS = (
    "PlanNotebook",
    "TodoMiddleware",
    "LongTermMemoryMiddleware",
    "RAGMiddleware",
    "DynamicContextMiddleware",
    *_SHAPING_LAYERS,
    "ToolResultLimitMiddleware",
)
"""The layers that add to requests or shape them."""

INSIDE_OF_CONTEXT = {
    "GuardrailMiddleware": "guards judge what is sent",
    "BudgetMiddleware": "a budget reckons with what is sent",
    "RedactionMiddleware": "all that is sent is redacted",
    "CacheMiddleware": "an answer is kept for the request as it is sent",
    **dict.fromkeys(ATTEMPT_LAYERS, "a request is shaped once, and not for each attempt"),
}
"""What must see a request as it is sent, and why."""

INSIDE_OF_ADDITIONS = {
    **INSIDE_OF_CONTEXT,
    **dict.fromkeys(_SHAPING_LAYERS, "what is added to a request counts when it is shaped"),
}
"""What stands inside of layers that add messages to a request, and why."""

REMOVED = "(This result was removed to save room. Call the tool again if you need it.)"
"""What a model reads in the place of a result."""


def conversation_start(messages: list[Msg]) -> int:
    """Return the number of messages at the beginning that are not of the conversation: the prompt and a summary."""
    start = 0
    while start < len(messages) and messages[start].role == "system":
        start += 1
    # A summary of the runtime, or what layers have put before the only question; either way it stays.
    if start < len(messages) and _is_runtime_hint(messages[start]):
        start += 1
    return start


def hint_message(text: str, source: str) -> Msg:
    """Return the text as a message for the model, of the kind that the runtime adds to requests itself."""
    return Msg("runtime", [HintBlock(text, source)], "user")


def question_place(messages: Sequence[Msg]) -> int:
    """Return the place of the newest message of the user's own, neither a hint nor results; if none, their number."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if _is_question(message) and not message.has_content_blocks("tool_result"):
            return place
    return len(messages)


def exchange_starts(messages: list[Msg], start: int) -> list[int]:
    """Return where a message of the user begins an exchange, with no tool call open before it."""
    starts: list[int] = []
    open_calls: set[str] = set()
    follows_hint = False
    for place, message in enumerate(messages[start:], start):
        # Results come back in the user's name in the histories of other programs. What layers have put before a
        # question goes with it.
        if (
            message.role == "user"
            and not open_calls
            and not follows_hint
            and not message.has_content_blocks("tool_result")
        ):
            starts.append(place)
        follows_hint = _is_runtime_hint(message)
        if not isinstance(message.content, str):
            for block in message.content:
                if isinstance(block, ToolCallBlock):
                    open_calls.add(block.id)
                elif isinstance(block, ToolResultBlock):
                    open_calls.discard(block.id)
    # The runtime adds hints in the user's name to the end of a request; they begin nothing.
    while starts and not any(map(_is_question, messages[starts[-1] :])):
        starts.pop()
    return starts


def _is_question(message: Msg) -> bool:
    return message.role == "user" and not _is_runtime_hint(message)


def _is_runtime_hint(message: Msg) -> bool:
    return message.name == "runtime" and message.has_content_blocks("hint")


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
