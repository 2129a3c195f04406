"""The questions of a waiting reply to the user, one call at a time, and the event for a typed answer."""

from dataclasses import dataclass, replace

from agentrt._runtime.block import HIDDEN_CALL
from agentrt._runtime.conversation.open_calls import asked_calls
from agentrt._runtime.text import escape_controls
from agentrt.console.render.call_description import describe_call
from agentrt.event import ConfirmResult, ExternalExecutionResultEvent, UserConfirmResultEvent
from agentrt.message import ToolCallBlock, ToolResultBlock
from agentrt.state import AgentState

LOGIN_CALL = "mcp_login"
"""The name of the question that asks the user to log in at an MCP server; its reason has the URL."""

_YES, _NO = ("y", "yes"), ("n", "no")


@dataclass(frozen=True, slots=True)
class Confirmation:
    """One call that waits for approval, or for its result from elsewhere; `inside` names its agents.

    `question` is a layer's question, if the call is the layer's and not the model's; else `reason` is why it is asked
    about, with the values of a call that was written with handles.
    """

    reply_id: str
    call: ToolCallBlock
    is_external: bool
    inside: tuple[str, ...] = ()
    question: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        """The question, in one line."""
        description = describe_call(self.call)
        if self.is_external:
            return f"what is the result of {description}?"
        if self.call.name == LOGIN_CALL and "/" in self.call.id:
            return f"{escape_controls(self.reason)}: y or n"
        if self.question:
            # A layer's own words, which may quote the model: escaped, so that they cannot move the cursor or start a
            # line.
            words = escape_controls(" ".join(self.question.split()))
            return f"{' > '.join((*self.inside, words))} {description}: y, n, or say why not"
        # It may quote text from outside, as the call does.
        reason = escape_controls(" ".join(self.reason.split()))
        why = f" ({reason})" if reason else ""
        return f"may {' > '.join(self.inside) or 'it'} run {description}{why}? y, n, or say why not"

    def answer(self, line: str) -> UserConfirmResultEvent | ExternalExecutionResultEvent:
        """Return the event for the line; anything but yes and no is a denial with a reason."""
        if self.is_external:
            return ExternalExecutionResultEvent(self.reply_id, [ToolResultBlock(self.call.id, self.call.name, line)])
        # Only a clear yes runs the call: all other words are advice for the model.
        word = line.lower()
        feedback = None if word in (*_YES, *_NO) else line
        return UserConfirmResultEvent(
            # A copy, since the answer may be edited, and the call belongs to the state.
            self.reply_id,
            [ConfirmResult(word in _YES, replace(self.call), feedback=feedback)],
        )


def next_confirmation(state: AgentState) -> Confirmation | None:
    """Return the next question of the reply in progress or `None`."""
    context = state.reply_context
    if context is None:
        return None
    # In the order of the calls, so that a user with several questions keeps track.
    for call, decision, inside in asked_calls(context):
        is_question = call.id.rpartition("/")[2].startswith(HIDDEN_CALL)
        question, reason = (decision.message, "") if is_question else ("", decision.message)
        return Confirmation(context.reply_id, call, decision.waits_for == "external", tuple(inside), question, reason)
    return None
