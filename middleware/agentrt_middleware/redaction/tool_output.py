"""Redaction of what a tool gives."""

from dataclasses import replace

from agentrt.types import OpenQuestion, ToolResponse
from agentrt_middleware.redaction.content import ChangeText, change_block, change_value

__all__ = ["redact_response"]


def redact_response(response: ToolResponse, change: ChangeText) -> ToolResponse:
    """Return the result as it may leave, with what it asks."""
    content = response.content
    # A layer may give anything; the runtime refuses by name what is not content.
    if isinstance(content, (list, tuple)):
        content = [change_block(block, change) for block in content]
    else:
        content = change_value(content, change)
    response = replace(response, content=content, metadata=change_value(response.metadata, change))
    if isinstance(response.waits, (list, tuple)) and response.waits:
        # As it may be kept: the answer is compared with that. The runtime refuses by name what is not a question.
        response.waits = [
            replace(
                question,
                tool_call=change_block(question.tool_call, change),
                message=change_value(question.message, change),
            )
            if isinstance(question, OpenQuestion)
            else question
            for question in response.waits
        ]
    return response
