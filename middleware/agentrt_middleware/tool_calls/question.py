"""Question: a layer's question to the user, from any hook."""

from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

from pydantic_core import to_json

from agentrt._runtime.block import HIDDEN_CALL
from agentrt.agent import Agent
from agentrt.errors import MiddlewareConfigError, ToolConfigError, UsageError
from agentrt.message import AssistantMsg, Msg, ToolCallBlock, ToolCallState, ToolResultState
from agentrt.model import ChatResponse
from agentrt.state import ReplyContext
from agentrt.tool import FunctionTool
from agentrt.tool.base import check_name
from agentrt.types import (
    JSONObject,
    OpenQuestion,
    PermissionBehavior,
    PermissionContext,
    PermissionDecision,
    ToolResponse,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question: whether the user said yes, the values, and further feedback.

    `input` has the values of the question, perhaps changed by the user, in the types of the question's
    fields. If nobody was asked, the answer is no, and `feedback` says why.
    """

    confirmed: bool
    input: JSONObject
    feedback: str = ""


class _QuestionValues:
    """The values of a question, as a function with these parameters; module-level, so that it can be pickled."""

    __name__ = "question"

    def __init__(self, fields: dict[str, Any]) -> None:
        parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in fields.items()]
        self.__signature__ = Signature(parameters)

    async def __call__(self, **values: Any) -> str:
        return "The user agrees."


class Question(FunctionTool):
    """A layer's question to the user, with values of the given types that the user may change: `tokens=int`.

    The layer returns it from `list_tools()` and asks in its hooks; the reply is parked until the user has answered. No
    model sees the question or the answer, while the conversation and its events have both. It is asked in every
    permission mode except DONT_ASK, which is a no, and so is a deny rule for its name. A no is not asked again in the
    same reply. Two questions of one agent need two names.
    """

    def __init__(self, name: str, /, **fields: Any) -> None:
        try:
            check_name("question", name)
            super().__init__(
                _QuestionValues(fields), name=name, description="A question of a layer.", ask=True, is_read_only=True
            )
        except (ToolConfigError, ValueError, TypeError) as error:
            raise MiddlewareConfigError(
                f"Question({name!r:.100}) cannot be asked: {error}; give its name, and a type for each value, as in "
                f"Question('raise_budget', tokens=int)"
            ) from error
        # Resumable, since its call changes nothing: after a crash it is asked again, and not in doubt.
        self.is_hidden = self.is_resumable = True
        self.fields = fields

    def check_permissions(self, tool_input: JSONObject, context: PermissionContext) -> PermissionDecision:
        """Express no opinion: a hidden tool that asks always reaches the user."""
        return PermissionDecision(PermissionBehavior.ALLOW, "", f"question {self.name}")

    def message(self, agent: Agent, text: str, /, **values: Any) -> Msg:
        """Return the message by which a layer of `on_reasoning` asks; it replaces the round's answer."""
        return AssistantMsg(agent.name, [self._call(agent, text, values)])

    def response(self, agent: Agent, text: str, /, **values: Any) -> ChatResponse:
        """Return the response by which a layer of `on_model_call` asks; it replaces the model's."""
        # An outer cache would return it to other replies too.
        return ChatResponse([self._call(agent, text, values)], metadata={"no_store": True})

    def open(self, agent: Agent, text: str, /, **values: Any) -> OpenQuestion:
        """Return the question for the `waits` by which a layer of `on_acting` asks before the call runs.

        The layer is called again with the answer.
        """
        call = ToolCallBlock(self._id, self.name, self._input(agent, text, values))
        return OpenQuestion(call, message=text)

    def answer(self, agent: Agent, tool_call: ToolCallBlock | None = None, /) -> Answer | None:
        """Return the answer, `None` if the question was not asked or its answer was already taken.

        It can be taken once, in the next round or later in that reply. A layer of `on_acting` passes the call that is
        about to run: a question asked before that call returns its answer each time the call is entered. Without the
        call, it returns the answer if only one call has one, and otherwise raises `UsageError`.
        """
        context = agent.state.reply_context
        if context is None:
            return None
        if tool_call is not None:
            return self._answer_at(agent, context, f"{tool_call.id}/{self._id}")
        # Parallel calls may each have one, which must not be mixed up.
        calls = [path for path in context.inner if path.endswith(f"/{self._id}")]
        answers = [answer for path in calls if (answer := self._answer_at(agent, context, path)) is not None]
        if len(answers) > 1:
            raise UsageError(
                f"{len(answers)} tool calls have an answer to the question {self.name!r}: say which one is meant, with "
                f"answer(agent, input_kwargs['tool_call'])"
            )
        return self._take_answer(agent, context) or next(iter(answers), None)

    @property
    def _id(self) -> str:
        return f"{HIDDEN_CALL}{self.name}"

    def _take_answer(self, agent: Agent, context: ReplyContext) -> Answer | None:
        hidden_calls = context.hidden_calls or {}
        results = {block.id: block for block in context.message.get_content_blocks("tool_result")}
        # Newest first, since earlier questions are settled.
        for call in reversed(context.message.get_content_blocks("tool_call")):
            hidden, result = hidden_calls.get(call.id), results.get(call.id)
            if hidden is None or hidden.name != self.name or result is None or call.state is not ToolCallState.FINISHED:
                continue
            if hidden.is_taken:
                return None
            # In the state, together with the layer's reaction: a later process finds both or neither.
            hidden.is_taken = True
            decision = context.decisions.get(call.id)
            # A result that is not the tool's own means that a layer or a rule stopped the call after the yes.
            confirmed = result.state is ToolResultState.SUCCESS
            feedback = result.text if decision is None else decision.message
            return self._make_answer(agent, call, confirmed, feedback)
        return None

    def _answer_at(self, agent: Agent, context: ReplyContext, path: str) -> Answer | None:
        inner = context.inner.get(path)
        if inner is None or inner.answer is None:
            return None
        result = inner.answer
        return self._make_answer(agent, result.tool_call, result.confirmed, result.feedback or "")

    def _make_answer(self, agent: Agent, call: ToolCallBlock, confirmed: bool, feedback: str) -> Answer:
        prepared = agent.run.toolkit.prepare(call)
        if isinstance(prepared, ToolResponse):  # it was asked by a process with different fields
            return Answer(False, {}, prepared.text)
        return Answer(confirmed, prepared.arguments, feedback)

    def _call(self, agent: Agent, text: str, values: JSONObject) -> ToolCallBlock:
        return agent.run.hidden_call(self, self._input(agent, text, values), text)

    def _input(self, agent: Agent, text: str, values: JSONObject) -> str:
        """Return the values as JSON; raises `UsageError` for an invalid question."""
        if agent.run.toolkit.get(self.name) is not self:
            raise UsageError(
                f"the question {self.name!r} is not one of the tools of {agent.name!r}: return it from list_tools() of "
                f"the layer that asks it"
            )
        value: object = text
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"the question {self.name!r} needs words that the user reads, not {value!r:.200}")
        problem = ""
        try:
            values_as_json = to_json(values, inf_nan_mode="constants").decode()
        except ValueError as error:
            problem = f"its values have no JSON form: {error}"
        else:
            prepared = agent.run.toolkit.prepare(ToolCallBlock(self._id, self.name, values_as_json))
            if not isinstance(prepared, ToolResponse):
                return values_as_json
            problem = prepared.text
        raise UsageError(f"the question {self.name!r} cannot be asked with these values: {problem:.500}")
