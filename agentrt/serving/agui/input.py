"""The input of an AG-UI run: new messages, decisions, or results of calls that the client has run itself."""

from hashlib import sha256
from json import dumps
from typing import Any, NamedTuple, Self

from agentrt import AgentState, Msg
from agentrt.event import (
    ConfirmResult,
    ExternalExecutionResultEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    UserConfirmResultEvent,
)
from agentrt.message import ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.serving.bodies import read_response_format, read_user_message
from agentrt.serving.budget import take_in
from agentrt.serving.failure import ApiError
from agentrt.serving.owners.sessions import check_new_id
from agentrt.types import JSONSchema

_CLIENT_ID = "client_id"
"""In the metadata of a user's message: the id that the client gave it and a digest of its content, by which it is known
when it comes again. By the id alone, one that says something else would be lost."""
_MAX_CLIENT_ID = 500


class RunInput(NamedTuple):
    """The body of a run, as far as it is used here."""

    thread_id: str
    run_id: str
    messages: list[dict[str, Any]]
    resume: list[dict[str, Any]]
    state: dict[str, Any]
    schema: JSONSchema | None

    @classmethod
    def read(cls, body: dict[str, Any]) -> Self:
        """Return the input; raises `ApiError` that names the field. The protocol grows, so others are left alone."""
        run_id, messages = body.get("runId"), body.get("messages")
        if not isinstance(run_id, str):
            raise ApiError(400, "invalid_body", "'runId' must be text")
        resume, state = body.get("resume") or [], body.get("state")
        for name, value in (("messages", messages), ("resume", resume)):
            if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
                raise ApiError(400, "invalid_body", f"{name!r} must be a list of objects")
        thread_id = check_new_id(body.get("threadId"), "'threadId'")
        # The protocol has no field for the form of an answer, and leaves these properties to client and server.
        forwarded = body.get("forwardedProps")
        response_format = forwarded.get("response_format") if isinstance(forwarded, dict) else None
        schema = read_response_format(response_format, "forwardedProps.response_format")
        return cls(thread_id, run_id, messages or [], resume, state if isinstance(state, dict) else {}, schema)

    def answer_to(
        self, question: object, reply: Msg | None
    ) -> UserConfirmResultEvent | ExternalExecutionResultEvent | None:
        """Return the answer to what the session waits for, `None` where the client sends none.

        A run that is sent again may answer an earlier question of `reply`, the latest one.
        """
        if self.resume:
            return self._decisions(question, reply)
        # A message while the user is asked is refused later, as everywhere.
        return self._results(question) if isinstance(question, RequireExternalExecutionEvent) else None

    async def new_messages(self, state: AgentState | None) -> list[Msg]:
        """Return what the user has said last: a client sends all that it has, and the session has the rest.

        It is empty for a run that is sent again after its connection was cut.
        """
        known = set() if state is None else {message.metadata.get(_CLIENT_ID) for message in state.context}
        first = len(self.messages)
        while first and self.messages[first - 1].get("role") == "user":
            first -= 1

        def take(number: int, message: dict[str, Any]) -> Msg | None:
            client_id = message.get("id")
            digest = sha256(dumps(message.get("content"), sort_keys=True).encode()).hexdigest()[:16]
            mark = f"{client_id[:_MAX_CLIENT_ID]}:{digest}" if isinstance(client_id, str) else None
            # A run that failed leaves a message in the session that the client sends again with the next one.
            if mark is not None and mark in known:
                return None
            place = f"messages[{first + number}]"
            content = message.get("content")
            if isinstance(content, list):
                content = [self._part(part, place) for part in content]
            item: dict[str, Any] = {"role": "user", "content": content}
            if message.get("name") is not None:
                item["name"] = message["name"]
            taken = read_user_message(item, place)
            if mark is not None:
                taken.metadata[_CLIENT_ID] = mark
            return taken

        return [message for message in await take_in(self.messages[first:], take) if message is not None]

    def _part(self, part: Any, place: str) -> Any:
        """Return a part of a message in OpenAI's form, which agents take."""
        values = part if isinstance(part, dict) else {}
        source = values.get("source")
        if values.get("type") == "text":
            return {"type": "text", "text": values.get("text")}
        if values.get("type") != "image" or not isinstance(source, dict):
            raise ApiError(400, "invalid_input", f"'{place}.content' must have parts of the types 'text' and 'image'")
        url = source.get("value")
        if source.get("type") == "data":
            url = f"data:{source.get('mimeType')};base64,{url}"
        # A file is known by its id at some provider, which the model may not be of.
        elif source.get("type") != "url":
            raise ApiError(400, "invalid_input", f"'{place}.content' must have images with a source of 'data' or 'url'")
        return {"type": "image_url", "image_url": {"url": url}}

    def answered_calls(self, reply_id: str) -> frozenset[str]:
        """Return the ids of the calls that the client has answered, by decisions of this run or by results."""
        decided = {str(entry.get("interruptId")).removeprefix(approval_id(reply_id, "")) for entry in self.resume}
        return frozenset(decided | {str(message.get("toolCallId")) for message in self.messages})

    def has_result_for(self, reply: Msg) -> bool:
        """Say whether the client's last message is the result of a call of that reply."""
        last = self.messages[-1] if self.messages else {}
        calls = {call.id for call in reply.get_content_blocks("tool_call")}
        return last.get("role") == "tool" and str(last.get("toolCallId")) in calls

    def _decisions(self, question: object, reply: Msg | None) -> UserConfirmResultEvent:
        questions = [] if reply is None else [(reply.id, reply.get_content_blocks("tool_call"))]
        if isinstance(question, RequireUserConfirmEvent):
            questions.append((question.reply_id, question.tool_calls))
        if not questions:
            raise ApiError(409, "not_waiting", "the session is not waiting for the user's approval")
        # By the reply's id too, so that an answer to an older question does not fit.
        calls = {approval_id(reply_id, call.id): call for reply_id, tool_calls in questions for call in tool_calls}
        results = []
        for number, entry in enumerate(self.resume):
            call = calls.get(str(entry.get("interruptId")))
            if call is None:
                raise ApiError(409, "unknown_call", f"'resume[{number}].interruptId' is not what the session waits for")
            results.append(self._decision(call, entry, f"resume[{number}]"))
        return UserConfirmResultEvent(questions[-1][0], results)

    def _decision(self, call: ToolCallBlock, entry: dict[str, Any], place: str) -> ConfirmResult:
        if entry.get("status") == "cancelled":
            return ConfirmResult(False, call)
        payload = entry.get("payload")
        values = {"approved": payload} if isinstance(payload, bool) else payload
        if entry.get("status") != "resolved" or not isinstance(values, dict):
            raise ApiError(
                400, "invalid_answer", f"{place!r} must have the status 'cancelled', or 'resolved' with a 'payload'"
            )
        approved, feedback, arguments = values.get("approved"), values.get("feedback"), values.get("arguments")
        # No "yes" or 1: an approval is taken as nothing but what it is.
        if not isinstance(approved, bool):
            raise ApiError(400, "invalid_answer", f"'{place}.payload.approved' must be true or false")
        if not isinstance(feedback, (str, type(None))) or not isinstance(arguments, (dict, type(None))):
            raise ApiError(
                400, "invalid_answer", f"'{place}.payload' takes 'feedback', text, and 'arguments', an object"
            )
        # Whether other arguments are taken is for the session to say.
        if arguments is not None:
            call = ToolCallBlock(call.id, call.name, dumps(arguments))
        return ConfirmResult(approved, call, feedback=feedback)

    def _results(self, question: RequireExternalExecutionEvent) -> ExternalExecutionResultEvent | None:
        calls = {call.id: call for call in question.tool_calls}
        results = []
        for number, message in enumerate(self.messages):
            call = calls.get(str(message.get("toolCallId"))) if message.get("role") == "tool" else None
            if call is None:
                continue  # a result of an earlier call, which the session has
            content = message.get("content")
            if not isinstance(content, str):
                raise ApiError(400, "invalid_answer", f"'messages[{number}].content' must be text")
            state = ToolResultState.SUCCESS if message.get("error") is None else ToolResultState.ERROR
            results.append(ToolResultBlock(call.id, call.name, content, state))
        return ExternalExecutionResultEvent(question.reply_id, results) if results else None


def no_new_message() -> ApiError:
    """Return the error for a run that says nothing new."""
    return ApiError(400, "invalid_input", "'messages' must end with a message of the user that was not sent before")


def approval_id(reply_id: str, call_id: str) -> str:
    """Return the id of the interrupt that asks about a call."""
    return f"{reply_id}:{call_id}"
