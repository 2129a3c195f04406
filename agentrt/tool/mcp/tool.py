"""One tool of an MCP server."""

import logging
from collections import Counter
from typing import Any, Protocol

import anyio
from mcp import MCPError
from mcp_types import (
    PARSE_ERROR,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types import Tool as ServerTool
from pydantic import ValidationError

from agentrt._runtime.block import ToolResultState
from agentrt._runtime.schema.parts import SchemaError
from agentrt._runtime.text import one_line
from agentrt.errors import ToolError
from agentrt.tool.arguments import ArgumentsError, parse_arguments
from agentrt.tool.base import ToolBase
from agentrt.tool.context import ToolContext
from agentrt.tool.invocation import CallPlan
from agentrt.tool.mcp.connection import ActiveCall, Connection, ConnectionLost
from agentrt.tool.mcp.elicitation import (
    asks_for_secret,
    describe_question,
    elicit_result_of,
    key_of,
    open_questions,
    params_of,
)
from agentrt.tool.mcp.notes import CallNotes
from agentrt.tool.mcp.oauth.needed import LoginNeeded
from agentrt.tool.mcp.oauth.question import ask_to_log_in, owner_of_call, read_login_answer
from agentrt.tool.mcp.results import tool_response
from agentrt.tool.mcp.text import clean_schema, clean_text, fingerprint_of, validator_of
from agentrt.tool.to_response import failure
from agentrt.types import JSONObject, ToolFlow, ToolResponse

_logger = logging.getLogger("agentrt")

_CONTEXT = "_context_of_this_call"
_MAX_TOOL_DESCRIPTION = 4_000
_MAX_ROUNDS = 10


class _StateExpired(Exception):
    """The server refuses the state of a call, since another process of the server gave it."""


class _ToolServer(Protocol):
    """The part of its toolset that a tool uses."""

    name: str

    def check_open(self) -> None: ...
    async def connection(self, owner: str) -> Connection: ...


class MCPTool(ToolBase):
    """A tool of an MCP server, as its toolset lists it. Its annotations grant nothing."""

    is_resumable = True
    error_detail = "message"

    def __init__(
        self,
        server: _ToolServer,
        tool: ServerTool,
        *,
        name: str,
        ask: bool,
        read_only: bool,
        timeout: float,
        flow: ToolFlow | None = None,
    ) -> None:
        self._server = server
        self._server_name = tool.name
        self.name = name
        self.description = clean_text(tool.description or tool.title or "", _MAX_TOOL_DESCRIPTION)
        self._schema = validator_of(tool.input_schema)
        self.input_schema = clean_schema({"type": "object", **tool.input_schema}, _MAX_TOOL_DESCRIPTION)
        self._output_schema = None if tool.output_schema is None else validator_of(tool.output_schema)
        self.fingerprint = fingerprint_of(tool.name, tool.description or tool.title, tool.input_schema)
        self.ask = ask
        self.is_read_only = read_only
        self.timeout = timeout
        self.flow = flow

    def _make_call_plan(self) -> CallPlan:
        properties = self.input_schema.get("properties")
        parts = properties.items() if isinstance(properties, dict) else ()
        return CallPlan(
            run=self.call,
            schema=self.input_schema,
            parse=self._parse,
            context_name=_CONTEXT,
            defaults={name: part["default"] for name, part in parts if isinstance(part, dict) and "default" in part},
            aliases={},
            is_streaming=False,
            in_thread=False,
            can_wait=True,
        )

    def _parse(self, text: str) -> JSONObject:
        arguments = parse_arguments(text)
        problem = "its input has an argument of a reserved name" if _CONTEXT in arguments else None
        problem = problem or self._schema.problem(arguments)
        if problem is not None:
            raise ArgumentsError(problem)
        return arguments

    # Positional only: the server chooses the names of the arguments, and one may be `self`.
    async def call(self, /, **arguments: Any) -> ToolResponse:
        """Have the server run the tool; if it asks the user something, the call waits for the answer."""
        context: ToolContext = arguments.pop(_CONTEXT)
        self._server.check_open()
        return await _Exchange(self, self._server, self._server_name, context, arguments).run()

    def respond(self, result: CallToolResult) -> ToolResponse:
        """Return the result of the server in the form that models get."""
        return tool_response(self.name, result, self._output_schema)


class _Exchange:
    """All messages to and from the server about one call, which is entered again after each question.

    `context.kept` lasts from one entry to the next. It says whether the call is at the server, which questions are
    open, and which are answered.
    """

    def __init__(
        self, tool: MCPTool, server: _ToolServer, server_name: str, context: ToolContext, arguments: JSONObject
    ) -> None:
        self._tool, self._server, self._server_name = tool, server, server_name
        self._context, self._arguments = context, arguments
        self._kept = context.kept
        self._notes = CallNotes(context, tool.name)
        self._times_asked: Counter[str] = Counter()  # how often this sending of the call has asked each question
        self._is_repeated = False  # from the beginning, since the server refused its own state

    async def run(self) -> ToolResponse:
        kept = self._kept
        # Still set when the call is entered again: the process ended while the call was at the server.
        if kept.get("is_sent") and not self._tool.is_read_only:
            return self._unknown("this program ended while the server was working on it")
        ended = read_login_answer(self._context, self._server.name, self._tool.name)
        if ended is not None:
            return ended
        answers = self._read_answers()
        if isinstance(answers, ToolResponse):
            return answers
        for attempt in range(_MAX_ROUNDS):
            try:
                outcome = await self._exchange(answers)
            except ConnectionLost as lost:
                if not lost.was_sent or (self._tool.is_read_only and attempt < 2):
                    continue
                return self._unknown("the connection with the server was lost while it was working on it")
            except _StateExpired:
                # The process that gave the state has ended. Known answers of the user are not asked for again.
                self._kept |= {"state": None, "has_state": False, "asked": {}}
                self._times_asked.clear()
                answers, self._is_repeated = {}, True
                continue
            except LoginNeeded as login:
                return await ask_to_log_in(self._context, self._server.name, self._tool.name, login)
            except ToolError as error:  # the server cannot be started again
                return failure(f"{self._tool.name} was not run: {error}.")
            if not isinstance(outcome, InputRequiredResult):
                return outcome
            next_step = self._take_questions(outcome)
            if isinstance(next_step, ToolResponse):
                return next_step
            answers = next_step
            if not outcome.input_requests:
                await anyio.sleep(min(0.05 * 2**attempt, 1.0))
        return failure(f"{self._tool.name} failed: its server asked {_MAX_ROUNDS} times and did not finish.")

    async def _exchange(self, answers: dict[str, ElicitResult]) -> ToolResponse | InputRequiredResult:
        """Send the call, or the answer that it waits for, and return the result or the next questions."""
        connection = await self._server.connection(owner_of_call(self._context))
        key = self._context.idempotency_key
        call = connection.parked.pop(key, None)
        is_begun = call is not None and call.question is not None and len(answers) == 1
        # If the call is not at the server, such as in another process, it is sent again. Questions that were answered
        # before are then answered without the user.
        if call is None or not is_begun:
            if call is not None:
                call.scope.cancel()
            if not self._is_repeated:
                self._times_asked.clear()
            call = ActiveCall(self._request(answers), self._known_answer)
        call.notes = self._notes
        # Saved first: if this process dies from here on, nobody knows whether the call took effect.
        self._kept["is_sent"] = True
        await self._context.save()
        if is_begun:
            call.answer(next(iter(answers.values())))
        try:
            await connection.run_call(call, is_begun=is_begun)
        except ConnectionLost:
            self._kept["is_sent"] = False
            raise
        if isinstance(call.outcome, ConnectionLost):
            connection.mark_dead()
            self._kept["is_sent"] = call.outcome.was_sent
            raise call.outcome
        self._kept["is_sent"] = False
        if isinstance(call.outcome, LoginNeeded):
            raise call.outcome
        connection.has_answered = True
        if call.outcome is None:
            assert call.question is not None
            question = self._ask({"": describe_question(self._server.name, self._tool.name, call.question)})
            if question.waits:
                connection.park(key, call)
            else:  # the server has asked too often
                call.scope.cancel()
            return question
        return self._take_outcome(call.outcome, connection)

    def _take_outcome(
        self, outcome: CallToolResult | InputRequiredResult | Exception, connection: Connection
    ) -> ToolResponse | InputRequiredResult:
        if isinstance(outcome, CallToolResult):
            return self._tool.respond(outcome)
        if isinstance(outcome, InputRequiredResult):
            return outcome
        name = self._tool.name
        if isinstance(outcome, MCPError):
            reason = outcome.data.get("reason") if isinstance(outcome.data, dict) else None
            refuses_state = reason == "invalid_request_state" or "requeststate" in outcome.message.lower()
            if refuses_state and self._kept.get("has_state"):
                raise _StateExpired
            if outcome.message == "Session terminated":  # the server behind the URL was restarted
                connection.mark_dead()
                raise ConnectionLost(was_sent=False)
            if outcome.code == PARSE_ERROR:  # which quotes the answer
                return failure(f"{name} failed: its server answered with something that is not MCP.")
            return failure(f"{name} failed: {one_line(clean_text(outcome.message), 2_000)}")
        if isinstance(outcome, ValidationError):
            return failure(f"{name} failed: its result is not what the protocol says.")
        _logger.warning("the MCP tool %r failed with %s", name, type(outcome).__name__)
        return failure(f"{name} failed: {type(outcome).__name__}.")

    def _request(self, answers: dict[str, ElicitResult]) -> CallToolRequestParams:
        responses: Any = {
            self._kept["asked"][question_id]["key"]: answer for question_id, answer in answers.items()
        } or None
        state = self._kept.get("state")
        is_resumed = self._kept.get("has_state", False)
        return CallToolRequestParams(
            name=self._server_name,
            arguments=self._arguments,
            input_responses=responses if is_resumed else None,
            request_state=state if is_resumed else None,
        )

    def _read_answers(self) -> dict[str, ElicitResult] | ToolResponse:
        """Return the answers to what was asked, or the questions again if an answer is missing or does not fit."""
        questions: JSONObject = self._kept.get("asked") or {}
        received = self._context.answers
        answers: dict[str, ElicitResult] = {}
        for question_id in list(questions):
            if question_id not in received:
                return ToolResponse(waits=open_questions(questions))
            question = questions[question_id]["shown"]
            answer = elicit_result_of(question, received[question_id])
            if isinstance(answer, str):
                entry = questions.pop(question_id)
                first = question.get("question", question["message"])
                entry["shown"] = question | {"question": first, "message": f"{first} (asked again: {answer[:500]})"}
                questions[f"{question_id}+"] = entry
                return ToolResponse(waits=open_questions(questions))
            answers[question_id] = answer
            known = question | {"message": question.get("question", question["message"])}
            self._kept.setdefault("known", {}).setdefault(key_of(known), []).append(answer.model_dump(mode="json"))
        return answers

    def _known_answer(self, params: ElicitRequestParams) -> ElicitResult | None:
        """Return what the user answered to this question before, perhaps in another process; `None` if it is new."""
        if asks_for_secret(params):
            return self._decline_secret()
        try:
            key = key_of(describe_question(self._server.name, self._tool.name, params))
        except SchemaError as refused:
            _logger.warning("the MCP server %r asked with a form that cannot be used: %s", self._server.name, refused)
            return ElicitResult(action="cancel")
        # In their order: a server may ask the same again because it did not accept the answer.
        known = self._kept.get("known", {}).get(key, [])
        number = self._times_asked[key]
        self._times_asked[key] += 1
        return ElicitResult.model_validate(known[number]) if number < len(known) else None

    def _decline_secret(self) -> ElicitResult:
        _logger.warning(
            "the MCP server %r asked the user for a secret in a form, which the protocol forbids: declined",
            self._server.name,
        )
        return ElicitResult(action="decline")

    def _take_questions(self, outcome: InputRequiredResult) -> dict[str, ElicitResult] | ToolResponse:
        """Return the questions for which the server has ended the call; without any, the call is sent again at once."""
        self._kept |= {"state": outcome.request_state, "has_state": True}
        questions: JSONObject = {}
        known: dict[str, ElicitResult] = {}
        for key, request in (outcome.input_requests or {}).items():
            params = params_of(request)
            if params is None:
                return failure(f"{self._tool.name} failed: its server asked for more than a user can answer.")
            if asks_for_secret(params):
                self._decline_secret()
                return failure(
                    f"{self._tool.name} failed: its server asked the user for a secret in a form, which is declined.",
                    ToolResultState.DENIED,
                )
            try:
                questions[key] = describe_question(self._server.name, self._tool.name, params)
                answer = self._known_answer(params) if self._is_repeated else None
                if answer is not None:
                    known[key] = answer
            except SchemaError as refused:
                return failure(
                    f"{self._tool.name} failed: its server asked with a form that cannot be used: {refused}."
                )
        if len(known) == len(questions):
            self._kept["asked"] = {key: {"key": key, "shown": question} for key, question in questions.items()}
            return known
        return self._ask(questions)

    def _ask(self, questions: JSONObject) -> ToolResponse:
        round_number = self._kept["round"] = self._kept.get("round", 0) + 1
        if round_number > _MAX_ROUNDS:
            return failure(f"{self._tool.name} failed: its server asked {_MAX_ROUNDS} times and did not finish.")
        # The ids have the round, since the server may ask the same again and mean something else.
        entries: JSONObject = {
            f"{round_number}-{number}": {"key": key, "shown": question}
            for number, (key, question) in enumerate(questions.items(), 1)
        }
        self._kept["asked"] = entries
        return ToolResponse(waits=open_questions(entries))

    def _unknown(self, why: str) -> ToolResponse:
        return failure(
            f"Nobody knows whether {self._tool.name} took effect: {why}. Check before you call it again.",
            ToolResultState.UNKNOWN,
        )
