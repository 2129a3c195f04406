"""The signal that a request must wait for a login."""

from collections.abc import Awaitable, Callable

from agentrt.types import JSONObject


class LoginNeeded(BaseException):
    """The user must agree in a browser; control flow, so not an `Exception`, which the SDK would log as a failure.

    `host` is the server that the user logs in at. `begin` takes the question that the user gets, and returns the URL to
    open, which is good for one login of this owner, for this question.
    """

    def __init__(self, host: str, begin: Callable[[JSONObject], Awaitable[str]]) -> None:
        super().__init__("the user must log in")
        self.host, self.begin = host, begin
