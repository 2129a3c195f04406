"""Value types that cross a hook and are neither message nor event, and the unions that are named once."""

from dataclasses import dataclass, field
from typing import Any, Literal

from agentrt.block import ContentBlock, DataBlock, Strict, TextBlock, ToolResultState

__all__ = [
    "AgentHookTypes",
    "ChatResponse",
    "ChatUsage",
    "FinishedReason",
    "JSONSchema",
    "ReActAgentHookTypes",
    "Role",
    "ToolChoice",
    "ToolChunk",
    "ToolOutput",
    "ToolResponse",
]

Role = Literal["user", "assistant", "system"]
FinishedReason = Literal["completed", "interrupted", "exceed_max_iters", "error"]
JSONSchema = dict[str, Any]
ToolOutput = list[TextBlock | DataBlock]

AgentHookTypes = Literal["pre_reply", "post_reply", "pre_print", "post_print", "pre_observe", "post_observe"]
ReActAgentHookTypes = AgentHookTypes | Literal["pre_reasoning", "post_reasoning", "pre_acting", "post_acting"]


@dataclass(slots=True)
class ChatUsage(Strict):
    """Tokens of one model call, or of several added up; `estimated` when the provider did not say.

    `input_tokens` includes the cached ones.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    estimated: bool = False

    def __add__(self, other: "ChatUsage") -> "ChatUsage":
        return ChatUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_input_tokens + other.cache_input_tokens,
            self.cache_creation_input_tokens + other.cache_creation_input_tokens,
            self.estimated or other.estimated,
        )


@dataclass(slots=True)
class ChatResponse:
    """A model's whole answer, or one piece of it.

    A stream is any number of pieces with `is_last=False`, each holding only what is new, and then one with
    `is_last=True` that holds the whole content, the usage and the reason for stopping. Pieces of one tool call share
    its `id`, and their `input`s are to be joined. A signature of thinking comes with a piece of it.
    """

    content: list[ContentBlock]
    is_last: bool = True
    usage: ChatUsage | None = None
    finished_reason: str | None = None
    id: str | None = None
    metadata: dict[str, Any] | None = None


@dataclass(slots=True)
class ToolChoice:
    """Which tools the model may or must call.

    `mode` is "auto", "none", "required" or the name of the one tool to call; `tools` narrows the tools that the model
    is shown.
    """

    mode: str = "auto"
    tools: list[str] | None = None


@dataclass(slots=True)
class ToolChunk:
    """One piece of a tool's output: only what is new since the piece before it."""

    content: ToolOutput = field(default_factory=list)
    state: ToolResultState = ToolResultState.RUNNING
    is_last: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ToolResponse:
    """A tool's whole result.

    `metadata["response_msg"]`, a `Msg`, ends the reply with that message.
    """

    content: ToolOutput = field(default_factory=list)
    state: ToolResultState = ToolResultState.SUCCESS
    metadata: dict[str, Any] = field(default_factory=dict)
    is_last: bool = True
