"""What the tests of budgets share."""

from typing import Any

from agentrt import Agent
from agentrt.event import CustomEvent
from agentrt.message import TextBlock
from agentrt.model import ChatResponse, ChatUsage
from tests.loop.helpers import call


def answer(input_tokens: int, output_tokens: int = 0, cached: int = 0, content: Any = None) -> ChatResponse:
    """An answer that reports so many tokens."""
    return ChatResponse(content or [TextBlock("Hello.")], usage=ChatUsage(input_tokens, output_tokens, cached))


def calling(tokens: int, *numbers: int, tool: str = "add") -> ChatResponse:
    """An answer of so many tokens that calls a tool once for each number."""
    return answer(tokens, content=[call(str(number), tool, a=number, b=1) for number in numbers])


def warnings_in(items: list[Any]) -> list[dict[str, Any]]:
    return [item.value for item in items if isinstance(item, CustomEvent) and item.name == "budget_warning"]


def requests(agent: Agent) -> int:
    """How often the agent's scripted model was asked."""
    return len(agent.model.calls)  # type: ignore[attr-defined]  # it is scripted


def result_states(agent: Agent) -> list[str]:
    """The states of the results of the last reply."""
    return [str(block.state) for block in agent.state.context[-1].get_content_blocks("tool_result")]
