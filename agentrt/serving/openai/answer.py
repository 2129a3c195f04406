"""The events of a reply as the text of one answer, and the answer in the form of OpenAI's API."""

from time import time
from typing import Any

from agentrt import Msg
from agentrt.event import (
    AnyEvent,
    BlocksWithdrawnEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    TextBlockDeltaEvent,
    TextBlockStartEvent,
    ThinkingBlockDeltaEvent,
)
from agentrt.serving.sse import public_error

_BETWEEN = "\n\n"
"""Between what an agent says before a tool call and after it."""
_CORRECTIONS = (ModelCallRetryEvent, BlocksWithdrawnEvent, ReplyResumedEvent)


class ReplyText:
    """The text of a reply, as it arrives. `status` is "" while it runs, "waiting", or its finish reason."""

    def __init__(self, reply_id: str, agent_name: str) -> None:
        self.status = ""
        # The class of what failed, without its words.
        self.error: str | None = None
        self._message = Msg(agent_name, [], "assistant", id=reply_id)
        self._question: RequireUserConfirmEvent | RequireExternalExecutionEvent | None = None
        # In pieces, since text that is joined for each word takes the square of its length.
        self._sent: list[str] = []
        # Whether what was sent has to be looked at again, and whether the next text begins a paragraph.
        self._is_behind = self._is_between = False

    @property
    def text(self) -> str:
        """All that is said, as it stands."""
        texts = (block.text for block in self._message.get_content_blocks("text"))
        return _BETWEEN.join(text for text in texts if text)

    @property
    def reasoning(self) -> str:
        return _BETWEEN.join(block.thinking for block in self._message.get_content_blocks("thinking"))

    @property
    def usage(self) -> dict[str, Any]:
        used = self._message.usage
        prompt, completion, cached = (
            (0, 0, 0) if used is None else (used.input_tokens, used.output_tokens, used.cache_input_tokens)
        )
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def read(self, event: AnyEvent) -> tuple[str, str]:
        """Take in an event of the reply, and return the text and the reasoning that it adds to what was sent."""
        if event.reply_id != self._message.id:
            return "", ""  # of a sub-agent
        self._message.append_event(event)
        if isinstance(event, ReplyEndEvent):
            self.status, self.error = event.finished_reason, public_error(event.finished_reason, event.error)
        elif isinstance(event, (RequireUserConfirmEvent, RequireExternalExecutionEvent)):
            self.status, self._question = "waiting", event
        elif isinstance(event, _CORRECTIONS):
            self._is_behind = True
        text = self._catch_up() if self._is_behind else self._new_text(event)
        return text, event.delta if isinstance(event, ThinkingBlockDeltaEvent) else ""

    def check(self) -> None:
        """Raise `ApiError` where a client would take what was sent for the answer, though it is not."""

    def question(self, url: str) -> str:
        """Return what the reply asks, in words: the protocol has no other form for it."""
        assert self._question is not None
        question = self._question
        asks = isinstance(question, RequireUserConfirmEvent)
        decisions = question.questions if isinstance(question, RequireUserConfirmEvent) else {}
        # With the reason, which has the values of a call that was written with handles.
        reasons = {call_id: f" ({decision.message})" for call_id, decision in decisions.items() if decision.message}
        calls = [f"- {call.name} {call.input}{reasons.get(call.id, '')}" for call in question.tool_calls]
        what = "This needs your approval:" if asks else "This needs the results of:"
        return "\n".join([what, *calls, f"Answer at {url}"])

    def _new_text(self, event: AnyEvent) -> str:
        # By the event alone, since the whole text would be joined again for each word.
        if isinstance(event, TextBlockStartEvent) and self._sent:
            self._is_between = True
        if not isinstance(event, TextBlockDeltaEvent) or not event.delta:
            return ""
        text = f"{_BETWEEN}{event.delta}" if self._is_between else event.delta
        self._is_between = False
        self._sent.append(text)
        return text

    def _catch_up(self) -> str:
        """Return what is to be sent after something that was sent no longer counts."""
        text, sent = self.text, "".join(self._sent)
        # Another attempt may say the same; at the end it has not.
        if sent.startswith(text) and not (self.status and text != sent):
            return ""
        self._is_behind = self._is_between = False
        self._sent = [text]
        # What was sent cannot be taken back, so what counts follows as a whole, in a paragraph of its own.
        return text[len(sent) :] if text.startswith(sent) else f"{_BETWEEN}{text}" if text else ""


class Completion:
    """The answer in the form of the API, whole and in chunks."""

    def __init__(self, reply_id: str, model: str) -> None:
        self._common = {"id": f"chatcmpl-{reply_id}", "created": int(time()), "model": model}

    def to_json(self, answer: ReplyText, content: str, refusal: str | None) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        choice = {"index": 0, "message": message, "finish_reason": finish_reason(answer.status), "logprobs": None}
        return {**self._common, "object": "chat.completion", "choices": [choice], "usage": answer.usage}

    def chunk(self, delta: dict[str, Any], status: str | None = None) -> dict[str, Any]:
        reason = None if status is None else finish_reason(status)
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return {**self._common, "object": "chat.completion.chunk", "choices": [choice]}

    def usage_chunk(self, answer: ReplyText) -> dict[str, Any]:
        return {**self._common, "object": "chat.completion.chunk", "choices": [], "usage": answer.usage}


def finish_reason(status: str) -> str:
    """Return the word of the API for how a reply ended."""
    # Every limit of a reply is one of length to this protocol.
    if status == "guardrail":
        return "content_filter"
    return "length" if status.startswith("exceed_") else "stop"
