"""RemoteUserInput: a `UserAgent` asks over HTTP, in this process or from another one."""

import json
from functools import partial
from http.client import HTTPException
from threading import Thread
from typing import Any, NoReturn
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import anyio
from pydantic import BaseModel
from starlette.applications import Starlette

from agentrt._runtime.representation import never_raises
from agentrt._runtime.terminal.form import FormModel
from agentrt.agent import UserInputBase, UserInputData
from agentrt.errors import ConfigError, InputEnded, InvalidInputError
from agentrt.message import TextBlock
from agentrt.serving.inputs.board import InputAnswer, InputBoard, UserQuestion

_ANSWER_WAIT = 20
_REQUEST_SECONDS = 30.0  # of one request
_MAX_SILENCE = 60.0  # with a server that does not answer
_RETRY_PAUSE = 1.0
_MAX_ANSWER = 16_000_000  # bytes


class RemoteUserInput(UserInputBase):
    """Asks over HTTP: the question is seen at `/api/inputs` and in the studio, and answered there.

    `server` is the application that `create_app` returned, in this process, or the URL of a running server, which gets
    the `token`. In an application with `auth`, `owner` says who sees the questions; over a URL it is the owner of the
    token.

    A server that was started again is asked again. `InputEnded` is raised for one that cannot be reached for a minute.
    """

    def __init__(self, server: Starlette | str, *, owner: str | None = None, token: str | None = None) -> None:
        board = getattr(getattr(server, "state", None), "inputs", None)
        if isinstance(server, str):
            if owner is not None:
                raise ConfigError("RemoteUserInput(url) takes no owner=...: the token identifies the owner")
            self._channel: _LocalBoard | _RemoteBoard = _RemoteBoard(server, token)
        elif isinstance(board, InputBoard):
            if token is not None:
                raise ConfigError("RemoteUserInput(app) takes no token=...: give owner=..., or neither")
            if (owner is not None) != board.owners.are_known:
                raise ConfigError(
                    "RemoteUserInput(app): write owner=..., since the app was made with auth"
                    if board.owners.are_known
                    else "RemoteUserInput(app): leave owner out, since the app was made without auth"
                )
            self._channel = _LocalBoard(board, owner)
        else:
            raise ConfigError(
                f"RemoteUserInput takes the application that create_app returned, or the URL of a server, such as "
                f"'http://localhost:8000', not {server!r:.200}"
            )

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._channel.name}>"

    async def __call__(
        self,
        agent_id: str,
        agent_name: str,
        *args: object,
        structured_model: type[BaseModel] | None = None,
        **kwargs: object,
    ) -> UserInputData:
        """Ask, and wait for the answer."""
        form = None if structured_model is None else FormModel(structured_model)
        answer = await self._channel.ask(agent_id, agent_name, form)
        blocks = [TextBlock(answer["text"])]
        return UserInputData(blocks, None if form is None else form.dump(form.validate(answer["values"])))  # type: ignore[arg-type]  # a list of one kind of block


StudioUserInput = RemoteUserInput
"""Another name of `RemoteUserInput`: the studio is where its questions are seen."""


class _LocalBoard:
    """Asks on the board of an application in this process."""

    name = "an application of this process"

    def __init__(self, board: InputBoard, owner: str | None) -> None:
        self._board = board
        self._owner = owner

    async def ask(self, agent_id: str, agent_name: str, form: FormModel | None) -> InputAnswer:
        question = UserQuestion(
            self._owner,
            agent_id,
            agent_name,
            None if form is None else form.json_schema(),
            (lambda _: []) if form is None else form.problems,
        )
        self._board.ask(question)
        try:
            answer = await self._board.wait(question)
        finally:
            self._board.withdraw(question)
        assert answer is not None
        return answer


class _NoRedirect(HTTPRedirectHandler):
    """Leaves redirects alone: they would take the token to another server."""

    def redirect_request(self, *_: object) -> None:
        return None


class _RemoteBoard:
    """Asks a server by its URL."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.username or parts.query:
            raise ConfigError(
                f"RemoteUserInput takes the URL of a server, such as 'http://localhost:8000', not {url!r:.200}"
            )
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ConfigError("RemoteUserInput(token=...) must be ASCII text")
        self.name = url.rstrip("/")
        self._token = token
        self._opener = build_opener(_NoRedirect)

    async def ask(self, agent_id: str, agent_name: str, form: FormModel | None) -> InputAnswer:
        body: dict[str, Any] = {"agent_id": agent_id, "agent_name": agent_name}
        if form is not None:
            body["schema"] = form.json_schema()
        while True:
            answer = await self._ask_once(body)
            # The server knows the schema alone, and the model may want more.
            problems = [] if form is None else await anyio.to_thread.run_sync(form.problems, answer["values"])
            if not problems:
                return answer
            body["problems"] = problems[:100]

    async def _ask_once(self, body: dict[str, Any]) -> InputAnswer:
        input_id: str | None = None
        try:
            while True:
                if input_id is None:
                    input_id = (await self._send("POST", "", body))["input_id"]
                found = await self._send("GET", f"/{input_id}/answer?wait={_ANSWER_WAIT}")
                # It was started again meanwhile, and knows nothing of the question.
                if found is None:
                    input_id = None
                elif found["answer"] is not None:
                    break
            await anyio.to_thread.run_sync(self._withdraw, input_id, abandon_on_cancel=True)
        except BaseException:
            # Not awaited, since a cancelled question must end at once.
            if input_id is not None:
                Thread(target=self._withdraw, args=(input_id,), daemon=True).start()
            raise
        answer: InputAnswer = found["answer"]
        return answer

    def _withdraw(self, input_id: str) -> None:
        try:
            self._request("DELETE", f"/{input_id}", None)
        except HTTPError as error:
            error.close()
        except (OSError, HTTPException, ValueError):
            pass  # the server forgets by itself what nobody waits for

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request until there is an answer; `None` is for what the server does not have."""
        # The default limit of threads would be taken up by those who wait.
        limiter = anyio.CapacityLimiter(1)
        until = anyio.current_time() + _MAX_SILENCE
        while True:
            try:
                request = partial(self._request, method, path, body)
                return await anyio.to_thread.run_sync(request, abandon_on_cancel=True, limiter=limiter)
            except HTTPError as error:
                error.close()
                if error.code == 404 and method == "GET":
                    return None
                if error.code < 500 and error.code != 429:  # it may have room again
                    self._refuse(error.code)
            except (OSError, HTTPException, ValueError):
                pass  # it may be starting
            if anyio.current_time() > until:
                raise InputEnded(f"{self.name} does not answer, so there is nobody to ask")
            await anyio.sleep(_RETRY_PAUSE)

    def _refuse(self, status: int) -> NoReturn:
        if status in (401, 403):
            raise ConfigError(f"{self.name} does not let RemoteUserInput ask: give the token= of an owner")
        raise InvalidInputError(f"{self.name} refused the question, with status {status}")

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.name}/api/inputs{path}", data, headers, method=method)
        with self._opener.open(request, timeout=_REQUEST_SECONDS) as response:
            content = response.read(_MAX_ANSWER)
        return json.loads(content) if content else None
