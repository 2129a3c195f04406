"""The answer of a reply that asks for structured output, as the JSON text of one answer."""

from json import dumps, loads
from typing import Any

from agentrt._runtime.decoding.answer_form import add_defaults
from agentrt.event import AnyEvent, ModelCallStartEvent, ReplyEndEvent, ToolCallDeltaEvent, ToolCallStartEvent
from agentrt.serving.failure import ApiError
from agentrt.serving.openai.answer import ReplyText, finish_reason
from agentrt.types import STRUCTURED_OUTPUT, JSONSchema


class TypedText(ReplyText):
    """The JSON text of the answer as the model writes it, without what it says in words.

    What was sent is a beginning of the answer, or `check` fails: the API cannot take it back. So only the first attempt
    that has any text is sent as it comes, and what counts in the end continues from there, if it can. An answer that a
    layer asks for, and that is not an object, is sent at the end, since the model writes it inside of one.
    """

    def __init__(self, reply_id: str, agent_name: str, schema: JSONSchema) -> None:
        super().__init__(reply_id, agent_name)
        self._schema = schema
        self._call_id = ""
        self._written: list[str] = []  # of the latest attempt
        self._is_wrapped = False
        self._is_live = True
        self._answer: Any = None

    @property
    def text(self) -> str:
        """The whole answer: as the model wrote it, unless a layer has changed it."""
        if self._answer is None:
            return ""
        written = "".join(self._written)
        return written if self._is_answer(written) else dumps(self._answer, ensure_ascii=False)

    def check(self) -> None:
        """Raise `ApiError` where a client would take what was sent for the answer, though it is not."""
        if self.status == "waiting" or finish_reason(self.status) != "stop" or "".join(self._sent) in ("", self.text):
            return
        raise ApiError(
            500,
            "answer_withdrawn",
            "what was sent of the answer no longer counts, since the model began it again: ask again, or without "
            "'stream', where only the final answer is sent",
        )

    def _new_text(self, event: AnyEvent) -> str:
        if isinstance(event, ToolCallStartEvent) and event.tool_call_name == STRUCTURED_OUTPUT:
            self._begin(event.tool_call_id)
        elif isinstance(event, ToolCallDeltaEvent) and event.tool_call_id == self._call_id:
            self._written.append(event.delta)
            if self._is_live:
                self._sent.append(event.delta)
                return event.delta
        elif isinstance(event, ModelCallStartEvent):
            self._is_wrapped = event.is_answer_wrapped
        elif isinstance(event, ReplyEndEvent):
            self._answer = event.structured_output
            sent, text = "".join(self._sent), self.text
            if text.startswith(sent):
                self._sent = [text]
                return text[len(sent) :]
        return ""

    def _catch_up(self) -> str:
        self._is_behind = False
        if self._call_id not in {call.id for call in self._message.get_content_blocks("tool_call")}:
            self._begin("")
        return ""

    def _begin(self, call_id: str) -> None:
        self._call_id = call_id
        self._written.clear()
        self._is_live = not self._sent and not self._is_wrapped

    def _is_answer(self, text: str) -> bool:
        try:
            return bool(add_defaults(loads(text), self._schema, self._schema) == self._answer)
        except (ValueError, RecursionError):
            return False
