"""Helpers for layers that change requests: the start of the conversation, and its possible cuts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape

from agentrt._runtime.text import lazy_pattern
from agentrt.message import ContentBlock, HintBlock, Msg, ToolCallBlock, ToolResultBlock
from agentrt_middleware.attempts import ATTEMPT_LAYERS

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
    "SkillsMiddleware",
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
"""The layers that must see a request as it is sent, and the reasons."""

INSIDE_OF_ADDITIONS = {
    **INSIDE_OF_CONTEXT,
    **dict.fromkeys(_SHAPING_LAYERS, "what is added to a request counts when it is shaped"),
}
"""The layers inside those that add messages to a request, and the reasons."""

_ESCAPED_HANDLE = lazy_pattern(r"&lt;([A-Za-z][A-Za-z0-9_]{0,63}_[1-9][0-9]{0,8}_[0-9a-f]{8})&gt;")

REMOVED = "(This result was removed to save room. Call the tool again if you need it.)"
"""The note in place of a removed result."""


def conversation_start(messages: list[Msg]) -> int:
    """Return the number of messages before the conversation: the prompt and a summary."""
    start = 0
    while start < len(messages) and messages[start].role == "system":
        start += 1
    # A summary of the runtime, or messages of layers before the only question; both stay.
    if start < len(messages) and _is_runtime_hint(messages[start]):
        start += 1
    return start


def hint_message(text: str, source: str) -> Msg:
    """Return the text as a message for the model, like the hints of the runtime."""
    return Msg("runtime", [HintBlock(text, source)], "user")


def escape_markup(text: str, *, quote: bool = False) -> str:
    """Return the text with nothing that could end the block it stands in; handles of held values stay readable."""
    return _ESCAPED_HANDLE.sub(r"<\1>", escape(text, quote=quote))


def question_place(messages: Sequence[Msg]) -> int:
    """Return the index of the user's newest own message, neither hint nor results; without one, their number."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if _is_question(message) and not message.has_content_blocks("tool_result"):
            return place
    return len(messages)


def exchange_starts(messages: list[Msg], start: int) -> list[int]:
    """Return the indexes where a message of the user starts an exchange, with no tool call open before it."""
    starts: list[int] = []
    open_calls: set[str] = set()
    follows_hint = False
    for place, message in enumerate(messages[start:], start):
        # In histories of other programs, results have the user's role. Messages of layers before a
        # question belong to it.
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
    # The runtime adds hints with the user's role to the end of a request; they start no exchange.
    while starts and not any(map(_is_question, messages[starts[-1] :])):
        starts.pop()
    return starts


def _is_question(message: Msg) -> bool:
    return message.role == "user" and not _is_runtime_hint(message)


def _is_runtime_hint(message: Msg) -> bool:
    return message.name == "runtime" and message.has_content_blocks("hint")


def drop_outputs(message: Msg, is_dropped: Callable[[ToolResultBlock], bool]) -> Msg:
    """Return the message with a note in place of these results, or the message itself if it has none."""
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
    # A new message: this one is shared, and stores detect changes by the identity of messages.
    message = message.snapshot()
    message.content = content
    return message
