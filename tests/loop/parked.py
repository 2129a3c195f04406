"""What the tests of parked replies share: tools that ask or run elsewhere, and the answers to their questions."""

from dataclasses import dataclass, field
from typing import Any

from agentrt import Agent, AgentState, MiddlewareBase, Msg
from agentrt.event import AgentEvent, ConfirmResult, ExternalExecutionResultEvent, UserConfirmResultEvent
from agentrt.message import AssistantMsg, ToolCallBlock, ToolResultBlock, copy_block
from agentrt.state import InMemoryStateStore
from agentrt.tool import ToolBase
from tests.loop.helpers import elsewhere, items_of

Log = list[tuple[str, str]]


class PathTool(ToolBase):
    """Do something to a path, and note that in the log."""

    input_schema = {  # noqa: RUF012
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    }

    def __init__(
        self,
        name: str,
        log: Log,
        *,
        ask: bool = False,
        is_external_tool: bool = False,
        is_concurrency_safe: bool = True,
    ) -> None:
        self.name, self.log, self.ask = name, log, ask
        self.is_external_tool, self.is_concurrency_safe = is_external_tool, is_concurrency_safe

    async def call(self, path: str) -> str:
        self.log.append((self.name, path))
        return f"{self.name} {path}"


def waiting(agent: Agent) -> list[ToolCallBlock]:
    """Return copies of the calls that somebody is asked about."""
    context = agent.state.reply_context
    decisions = context.decisions
    calls = context.message.get_content_blocks("tool_call")
    return [copy_block(each) for each in calls if each.id in decisions and decisions[each.id].waits_for]


def asked(agent: Agent, kind: str = "user") -> list[str]:
    decisions = agent.state.reply_context.decisions
    return [each.id for each in waiting(agent) if decisions[each.id].waits_for == kind]


def confirm(agent: Agent, confirmed: bool, *ids: str, **fields: Any) -> UserConfirmResultEvent:
    """Answer the questions about these calls, or about all, also where other calls are running."""
    calls = [each for each in waiting(agent) if each.id in (ids or asked(agent))]
    results = [ConfirmResult(confirmed, each, **fields) for each in calls]
    return UserConfirmResultEvent(agent.state.reply_context.reply_id, results)


def yes(agent: Agent, *ids: str, **fields: Any) -> UserConfirmResultEvent:
    return confirm(agent, True, *ids, **fields)


def no(agent: Agent, *ids: str, **fields: Any) -> UserConfirmResultEvent:
    return confirm(agent, False, *ids, **fields)


def edited(agent: Agent, **inputs: str) -> UserConfirmResultEvent:
    """Say yes to calls with other arguments."""
    answer = yes(agent, *inputs)
    for result in answer.confirm_results:
        result.tool_call.input = inputs[result.tool_call.id]
    return answer


def done(agent: Agent, *ids: str, output: Any = "done outside", **fields: Any) -> ExternalExecutionResultEvent:
    """Give the results of calls that ran elsewhere."""
    calls = [each for each in waiting(agent) if each.id in (ids or asked(agent, "external"))]
    results = [ToolResultBlock(each.id, each.name, output, **fields) for each in calls]
    return ExternalExecutionResultEvent(agent.state.reply_context.reply_id, results)


def results_of(agent: Agent) -> dict[str, ToolResultBlock]:
    """Return the results of the last reply, by the ids of their calls."""
    found = agent.state.context[-1].get_content_blocks("tool_result")
    assert len({each.id for each in found}) == len(found)
    return {each.id: each for each in found}


@dataclass
class Told:
    """What a listener saw of one reply, over all of its parts."""

    agent: Agent
    parts: list[list[AgentEvent | Msg]] = field(default_factory=list)
    message: Msg = field(default_factory=lambda: AssistantMsg("", []))

    async def part(self, inputs: Any = "go") -> list[AgentEvent | Msg]:
        """Hear the next part, in another process than the one before."""
        self.agent = elsewhere(self.agent)
        items = await items_of(self.agent, inputs)
        if isinstance(inputs, UserConfirmResultEvent):
            self.message.append_event(inputs)
        for item in items:
            if isinstance(item, AgentEvent):
                self.message.append_event(item)
        self.parts.append(items)
        return items

    @property
    def numbers(self) -> list[int]:
        return [item.seq for part in self.parts for item in part if isinstance(item, AgentEvent)]


class Answering(MiddlewareBase):
    """A layer that decides on each call as it is told."""

    def __init__(self, decide: Any) -> None:
        self.decide = decide

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        said = self.decide(**input_kwargs)
        return await next_handler() if said is None else said


class Full(InMemoryStateStore):
    is_full = False

    async def save(self, state: AgentState) -> None:
        if self.is_full:
            raise OSError("disk full")
        await super().save(state)
