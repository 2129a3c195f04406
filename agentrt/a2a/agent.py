"""A remote agent, used like a local one."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from agentrt._runtime.conversation.turns import WhenBusy
from agentrt._runtime.http.options import check_headers, check_http_client, check_max_bytes, check_sign
from agentrt.a2a.connection import A2AConnection
from agentrt.a2a.model import RemoteAgentModel
from agentrt.a2a.task import ANSWER_TOOL
from agentrt.agent import Agent
from agentrt.errors import ConfigError
from agentrt.hooks import MiddlewareBase
from agentrt.model import ChatModelBase, Timeouts
from agentrt.model.remote.settings import check_option
from agentrt.state import AgentState, StateStore
from agentrt.tool import ToolBase
from agentrt.types import SignRequest

_MAX_RESPONSE_BYTES = 10_000_000


class _AnswerTool(ToolBase):
    """A question from the remote agent: an external call whose result is the answer."""

    name = ANSWER_TOOL
    description = "Answers what the remote agent asks."
    input_schema = {  # noqa: RUF012  # as tools declare it
        "type": "object",
        "properties": {"question": {"type": "string"}, "data": {"type": "array"}},
        "required": ["question"],
    }
    is_external_tool = True


class A2AAgent(Agent):
    """A remote agent, reached by A2A 1.0. `url` is the URL of its card, or of the server that has the card.

    It is an `Agent` whose model is the remote agent, so it has chains, a state and `as_tool`, and works in hubs,
    pipelines and runners. A conversation here is a context there, and a reply is a task. Messages that it has
    observed are sent with the next one. A question of the remote agent parks the reply: `waiting()` has a call of the
    tool "answer", whose result is sent as the next message of the task. Ending the reply cancels the task. System
    prompts and tools of middlewares stay here.

    `headers` go with every request, to the server of the URL alone, and are treated as secrets. `auth` is a function of
    method, URL and body, sync or async, that returns the headers which sign a request. `timeouts` hold for one message
    and its answer, `max_bytes` for each response. `http_client` makes the `httpx2.AsyncClient` to use.
    Raises `ConfigError` for a URL that is not one; a server that cannot be reached is a `ModelError` of the reply.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: SignRequest | None = None,
        middlewares: Sequence[MiddlewareBase] = (),
        state: AgentState | None = None,
        state_store: StateStore | None = None,
        timeouts: Timeouts | None = None,
        max_bytes: float = _MAX_RESPONSE_BYTES,
        http_client: Callable[[], object] | None = None,
        when_busy: WhenBusy = "raise",
    ) -> None:
        # Any type is accepted, since not every caller is type-checked. A password would appear in every message.
        text: object = url
        try:
            parts = urlsplit(text) if isinstance(text, str) else None
            _ = parts and parts.port
            has_password = parts is not None and parts.username is not None
        except ValueError:  # an invalid port may be a password
            parts, has_password = None, True
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or has_password:
            found = "" if has_password else f", not {url!r:.200}"
            raise ConfigError(
                f"A2AAgent(url) must be a full URL without a password, such as 'http://localhost:8000'{found}"
            )
        check_headers("A2AAgent(headers=...)", headers)
        check_sign("A2AAgent(auth=...)", auth)
        check_option(timeouts, Timeouts, "A2AAgent(timeouts=...)", "timeouts=Timeouts(total=120)")
        check_max_bytes("A2AAgent(max_bytes=...)", max_bytes)
        check_http_client("A2AAgent(http_client=...)", http_client)
        # The name is also the name of its tool, which allows fewer characters than a URL.
        default_name = re.sub(r"[^A-Za-z0-9_-]+", "_", f"{parts.netloc}{parts.path}").strip("_")[:64]
        self._connection = A2AConnection(url, headers, auth, timeouts or Timeouts(), max_bytes, http_client)
        super().__init__(
            default_name if name is None else name,
            "",
            RemoteAgentModel(self._connection),
            [_AnswerTool()],
            middlewares,
            state=state,
            state_store=state_store,
            when_busy=when_busy,
        )

    @property
    def model(self) -> ChatModelBase:
        """The remote agent, as the model of this conversation."""
        return RemoteAgentModel(self._connection, self)

    @model.setter
    def model(self, model: object) -> None:
        if not isinstance(model, RemoteAgentModel):
            raise ConfigError("the model of an A2AAgent is the agent at its URL: use an Agent for another one")
        self._connection = model.connection

    async def card(self) -> dict[str, Any]:
        """Return the card of the remote agent, as it was when it was first read."""
        return await self._connection.card(self._connection.new_timer())
