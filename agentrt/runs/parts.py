"""The parts of a run, as readers see them."""

from dataclasses import dataclass, field
from typing import Any

from agentrt.message import Msg
from agentrt.types import ChatResponse, ChatUsage, JSONSchema, ToolChoice


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a layer made; `where` is a place such as "messages[2]", "tools" or "answer".

    `before` and `after` are a `Msg` or a `ChatResponse` if one was changed, otherwise JSON; `None` stands for a message
    that was added or removed.
    """

    layer: str
    where: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Step:
    """A point in a run where the state was complete: `number` counts steps, `seq` is the number of the last event.

    `kind` is "model" before a model is called, "answer" after its answer, "result" after tool results, and "question"
    where the run waits.
    """

    number: int
    kind: str
    seq: int


@dataclass(frozen=True, slots=True)
class LayerCallRecord:
    """One call of a layer (`None` is the core of the chain), with its decision on a tool call and the reason for it.

    `call` and `parent` are numbers in the process that made the run; `parent` is the call of the next outer layer.
    """

    hook: str
    layer: str | None
    place: int
    own_seconds: float
    total_seconds: float
    outcome: str | None
    decision: str | None = None
    reason: str = ""
    changes: list[Change] = field(default_factory=list)
    call: int = 0
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request to a model, one per attempt, and its answer.

    `error` is the type of the error, if the call failed. `changes` are the changes of layers to the system prompt, the
    tools, the request, and the answer.
    """

    call_id: str
    model: str
    purpose: str | None
    messages: list[Msg]
    tools: list[JSONSchema]
    tool_choice: ToolChoice | None
    answer: ChatResponse | None
    usage: ChatUsage | None
    cost: float | None
    error: str | None
    seconds: float | None
    changes: list[Change]
