"""The tools by which agents hand a conversation to each other, and the view of other agents' work."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from agentrt._runtime.model_interface.base import ModelResult
from agentrt._runtime.options import check_whole
from agentrt._runtime.text import repr_of
from agentrt.errors import ConfigError
from agentrt.event import CustomEvent
from agentrt.hooks import MiddlewareBase, NextModelCall
from agentrt.message import ContentBlock, HintBlock, Msg, TextBlock, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.state import AgentState
from agentrt.tool import ToolBase, ToolContext, ToolFlow, ToolResponse
from agentrt.tool.base import check_name
from agentrt.types import JSONObject

HANDOFF_KEY = "handoffs"
"""The key of the handoffs in a state's data.

`active` has the conversation, and `next` gets it when the reply in progress is over. Each agent that speaks in one
answer does so in a reply of its own: `count` is how many transfers the answer has made, `part` how many of them are
done, by which their ids differ, and `reply_id` is the id that the caller gave the answer.
"""

HandoffHistory = Literal["text", "calls"]
_PREFIX = "transfer_to_"


def check_active(state: AgentState, start: str, names: Collection[str]) -> None:
    """Raise `ConfigError` for a state whose active or next agent is not one of these."""
    data: object = state.middleware_data.get(HANDOFF_KEY, {})
    if not isinstance(data, dict) or not all(type(data.get(key, 0)) is int for key in ("count", "part")):
        raise ConfigError(
            f"the state keeps {repr_of(data)} as {HANDOFF_KEY!r}, which no Handoffs has made: begin with another state"
        )
    has_it = data.get("active", start)
    gets_it = data.get("next") or has_it  # the same agent, unless a transfer is pending
    for name, what in ((has_it, "has the conversation"), (gets_it, "gets the conversation next")):
        if not isinstance(name, str) or name not in names:
            raise ConfigError(
                f"the state says that {name!r:.100} {what}, which is not one of {', '.join(names)}: add that "
                f"agent, or begin with another state"
            )


class HandoffMiddleware(MiddlewareBase):
    """Gives an agent a tool for each of its `peers`, a dict of names and descriptions, that transfers the conversation.

    `Handoffs` makes one for each agent, and continues with the chosen agent. With the history as "text", the
    speaker reads calls of tools that it does not have as notes; with "calls" it reads the calls themselves.
    """

    inherited = False
    key = HANDOFF_KEY

    def __init__(self, peers: Mapping[str, str], *, history: HandoffHistory = "text", max_handoffs: int = 8) -> None:
        if not isinstance(peers, Mapping):
            raise ConfigError(f"HandoffMiddleware(peers=...) must be a dict of names and texts, not {repr_of(peers)}")
        choice: object = history
        if choice not in ("text", "calls"):
            raise ConfigError(f'history must be "text" or "calls", not {repr_of(history)}')
        self.peers = dict(peers)
        self.history = history
        self.max_handoffs = check_whole("max_handoffs", max_handoffs)

    def list_tools(self) -> list[ToolBase]:
        """Return a tool for each peer."""
        return [_TransferTool(self, name, description) for name, description in self.peers.items()]

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: NextModelCall) -> ModelResult:
        """Describe calls of tools that this agent does not have in words."""
        if self.history == "calls":
            return await next_handler()
        # Kept for the reply: earlier messages do not change, and are rewritten once.
        rewritten: dict[int, tuple[Msg, Msg]] = agent.run.scratch(self).setdefault("rewritten", {})
        toolkit = agent.run.toolkit
        messages = []
        for msg in input_kwargs["messages"]:
            if msg.name != agent.name and id(msg) not in rewritten:
                rewritten[id(msg)] = msg, put_into_words(msg, lambda name: toolkit.get(name) is not None)
            messages.append(rewritten[id(msg)][1] if id(msg) in rewritten else msg)
        return await next_handler(messages=messages)

    def place_among(self, middlewares: Iterable[MiddlewareBase]) -> list[MiddlewareBase]:
        """Return the list with this layer as far out as the list allows."""
        # The agent may come from another `Handoffs`, whose tools lead to other agents.
        others = [middleware for middleware in middlewares if not isinstance(middleware, HandoffMiddleware)]
        # Outside the rest, so that these see the same as the model.
        place = 1 if others and others[0].position == "outermost" else 0
        return [*others[:place], self, *others[place:]]

    def transfer(self, data: JSONObject, target: str) -> str | None:
        """Record a transfer in the data of a conversation; returns the reason if it is refused."""
        if data.get("next") is not None:
            return f"not transferred to {target}: the conversation already goes to {data['next']}"
        if data.get("count", 0) >= self.max_handoffs:
            return (
                f"not transferred to {target}: the conversation was transferred {self.max_handoffs} times for this "
                f"answer, which is the limit; answer yourself"
            )
        # The speaker keeps it until its reply is over, which may first have to wait for an answer.
        data.update(next=target, count=data.get("count", 0) + 1)
        return None


class _TransferTool(ToolBase):
    """Transfers the conversation to another agent."""

    # Transfers of one conversation run one after the other; they change nothing else.
    is_concurrency_safe = False
    is_read_only = changes_conversation = True
    flow = ToolFlow(trusted_output=True)
    keeps_handles = True

    def __init__(self, middleware: HandoffMiddleware, target: str, description: str) -> None:
        self.name = f"{_PREFIX}{target}"
        check_name("tool", self.name)  # checked here, where the agent's name is known
        self.description = f"Transfer the conversation to {target}, who answers in your place. {description}".rstrip()
        self._middleware = middleware
        self._target = target

    async def call(self, context: ToolContext, reason: str = "") -> ToolResponse:
        """Transfer the conversation.

        Args:
            reason: What the other one needs to know, beyond the conversation.
        """
        agent = context.agent
        if context.run is None:
            refusal: str | None = "not transferred: no reply is in progress"
        else:
            refusal = self._middleware.transfer(agent.state_of(self._middleware), self._target)
        if refusal is not None:
            return ToolResponse([TextBlock(refusal)], ToolResultState.DENIED)
        context.emit(CustomEvent("handoff", {"from": agent.name, "to": self._target}))
        # An empty answer ends the speaker's reply.
        silence = Msg(agent.name, [], "assistant")
        return ToolResponse([TextBlock(f"Transferred to {self._target}.")], metadata={"response_msg": silence})


def put_into_words(msg: Msg, has_tool: Callable[[str], bool]) -> Msg:
    """Return the message with notes in place of calls of unavailable tools, and of their results."""
    calls = {block.id: block for block in msg.get_content_blocks("tool_call") if not has_tool(block.name)}
    if not calls:
        return msg
    content: list[ContentBlock] = []
    for block in msg.get_content_blocks():
        if isinstance(block, ToolResultBlock) and block.id in calls:
            call = calls[block.id]
            words = f"{msg.name} called {call.name} with {call.input}, which returned: {block.text or 'no text'}"
            # A note, so that no model imitates the text instead of calling tools.
            content.append(HintBlock(words, "handoff"))
        elif not (isinstance(block, ToolCallBlock) and block.id in calls):
            content.append(block)
    return replace(msg, content=content)
