"""The routes under `/api/inputs`: what `UserAgent`s ask, and the answers."""

from functools import partial
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agentrt._runtime.schema.parts import SchemaError
from agentrt._runtime.schema.validator import Validator
from agentrt.serving.bodies import read_query_number
from agentrt.serving.budget import read_json
from agentrt.serving.failure import ApiError
from agentrt.serving.gate import Gate, RouteHandler
from agentrt.serving.inputs.board import InputBoard, UserQuestion
from agentrt.serving.owners.sessions import OwnerSessions
from agentrt.serving.responses import AwaitedResponse, JsonResponse

_MAX_WAIT = 25  # seconds: less than what a proxy takes for a dead connection
_MAX_AGENT_NAME = 500
_MAX_REFUSED = 100


class InputRoutes:
    """Answers the requests about the questions on a board."""

    def __init__(self, gate: Gate, board: InputBoard) -> None:
        self._gate = gate
        self._limits = gate.limits
        self._board = board

    def routes(self) -> list[Route]:
        table: list[tuple[str, str, RouteHandler]] = [
            ("GET", "/api/inputs", self._list),
            ("POST", "/api/inputs", self._ask),
            ("POST", "/api/inputs/{input_id}", self._answer),
            ("GET", "/api/inputs/{input_id}/answer", self._wait),
            ("DELETE", "/api/inputs/{input_id}", self._withdraw),
        ]
        return [Route(path, self._gate.endpoint(handler), methods=[method]) for method, path, handler in table]

    async def _list(self, _: Request, sessions: OwnerSessions) -> Response:
        return JsonResponse(
            {"inputs": [question.describe() for question in self._board.list_open(sessions.owner.name)]}
        )

    async def _ask(self, request: Request, sessions: OwnerSessions) -> Response:
        fields = ("agent_id", "agent_name", "schema", "problems")
        body = await read_json(request, self._limits, fields, items=("problems",))
        for name in ("agent_id", "agent_name"):
            if not isinstance(body.get(name), str) or not 1 <= len(body[name]) <= _MAX_AGENT_NAME:
                raise ApiError(400, "invalid_body", f"'{name}' must be text of 1 to {_MAX_AGENT_NAME} characters")
        refused = body.get("problems", [])
        if (
            not isinstance(refused, list)
            or len(refused) > _MAX_REFUSED
            or not all(isinstance(problem, str) for problem in refused)
        ):
            raise ApiError(400, "invalid_body", f"'problems' must be a list of at most {_MAX_REFUSED} texts")
        # In a thread, since a large schema takes long to compile.
        form = await anyio.to_thread.run_sync(_SchemaForm, body.get("schema"))
        question = UserQuestion(
            sessions.owner.name,
            body["agent_id"],
            body["agent_name"],
            form.schema,
            form.problems,
            refused=refused,
            is_remote=True,
        )
        self._board.ask(question)
        return JsonResponse({"input_id": question.id}, 201)

    async def _answer(self, request: Request, sessions: OwnerSessions) -> Response:
        question = self._find(request, sessions)
        body = await read_json(request, self._limits, ("text", "values"), items=())
        text, values = body.get("text", ""), body.get("values")
        if not isinstance(text, str):
            raise ApiError(400, "invalid_answer", "'text' must be text")
        if question.schema is None:
            if values is not None:
                raise ApiError(400, "invalid_answer", "this question has no form: send 'text' alone")
        elif not isinstance(values, dict):
            raise ApiError(400, "invalid_answer", "'values' must be an object with the values of the form")
        # In a thread, since validators are the user's, and may take their time.
        elif problems := await anyio.to_thread.run_sync(question.problems, values):
            details = {"problems": problems[:_MAX_REFUSED]}
            raise ApiError(400, "invalid_answer", "the values do not fit the form", details=details)
        self._board.give(question, {"text": text, "values": values})
        return JsonResponse({"input_id": question.id, "answered": True})

    async def _wait(self, request: Request, sessions: OwnerSessions) -> ASGIApp:
        question = self._find(request, sessions)
        seconds = read_query_number(request, "wait", 0, _MAX_WAIT)
        # A client that leaves gives its place back.
        return AwaitedResponse(partial(self._respond_with_answer, question, seconds))

    async def _respond_with_answer(self, question: UserQuestion, seconds: int) -> Response:
        return JsonResponse({"answer": await self._board.wait(question, seconds)})

    async def _withdraw(self, request: Request, sessions: OwnerSessions) -> Response:
        self._board.withdraw(self._find(request, sessions))
        return Response(status_code=204)

    def _find(self, request: Request, sessions: OwnerSessions) -> UserQuestion:
        return self._board.find(sessions.owner.name, request.path_params["input_id"])


class _SchemaForm:
    """A form of another process: a JSON schema is all that is known of it here."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        if schema is None:
            return
        try:
            Validator(schema)
        except SchemaError as error:
            raise ApiError(400, "invalid_body", f"'schema' cannot be checked: {error}") from None
        if not isinstance(schema, dict):
            raise ApiError(400, "invalid_body", "'schema' must be the JSON schema of an object")

    def problems(self, values: dict[str, Any]) -> list[str]:
        # Compiled for each answer: while a question is open, this may take 300 times the memory of its schema.
        problem = Validator(self.schema).problem(values)
        return [] if problem is None else [problem]
