"""What a waiting reply asks the user, one call at a time, and the event that a typed line answers with."""

from dataclasses import dataclass, replace

from agentrt.block import HIDDEN_CALL
from agentrt.console.render.call_description import describe_call
from agentrt.conversation.open_calls import asked_calls
from agentrt.event import ConfirmResult, ExternalExecutionResultEvent, UserConfirmResultEvent
from agentrt.message import ToolCallBlock, ToolResultBlock
from agentrt.state import AgentState
from agentrt.text import escape_controls

__all__ = ["Confirmation", "next_confirmation"]

_YES, _NO = ("y", "yes"), ("n", "no")


@dataclass(frozen=True, slots=True)
class Confirmation:
    """One call that waits for the yes of the user, or for its result from elsewhere; `inside` names whose it is.

    `question` is what a layer asks, where the call is the layer's and not the model's.
    """

    reply_id: str
    call: ToolCallBlock
    is_external: bool
    inside: tuple[str, ...] = ()
    question: str = ""

    @property
    def text(self) -> str:
        """What to ask, in one line."""
        description = describe_call(self.call)
        if self.is_external:
            return f"what is the result of {description}?"
        if self.question:
            # Of a layer's own, but it may quote the model: nothing in it moves the cursor or starts a line.
            words = escape_controls(" ".join(self.question.split()))
            return f"{' > '.join((*self.inside, words))} {description}: y, n, or say why not"
        return f"may {' > '.join(self.inside) or 'it'} run {description}? y, n, or say why not"

    def answer(self, line: str) -> UserConfirmResultEvent | ExternalExecutionResultEvent:
        """Return the event that the line means; what is neither yes nor no is a no that says why."""
        if self.is_external:
            return ExternalExecutionResultEvent(self.reply_id, [ToolResultBlock(self.call.id, self.call.name, line)])
        # Only a clear yes runs the call: any other words are advice for the model.
        word = line.lower()
        feedback = None if word in (*_YES, *_NO) else line
        return UserConfirmResultEvent(
            # A copy, since the answer may be edited, and the call belongs to the state.
            self.reply_id,
            [ConfirmResult(word in _YES, replace(self.call), feedback=feedback)],
        )


def next_confirmation(state: AgentState) -> Confirmation | None:
    """Return what the reply in progress asks about next, `None` when it asks nothing."""
    context = state.reply_context
    if context is None:
        return None
    # In the order of the calls, so that a user who is asked about several knows where they are.
    for call, decision, inside in asked_calls(context):
        is_question = call.id.rpartition("/")[2].startswith(HIDDEN_CALL)
        question = decision.message if is_question else ""
        return Confirmation(context.reply_id, call, decision.waits_for == "external", tuple(inside), question)
    return None
