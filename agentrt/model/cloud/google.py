"""Requests to Google Cloud with the token of an account."""

import inspect
import os
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import anyio.to_thread
import pydantic

from agentrt._runtime.hidden import NotPickled
from agentrt._runtime.options import import_extra
from agentrt.errors import ConfigError, Rejected, Transient

GoogleToken = str | pydantic.SecretStr
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class GoogleAuth(NotPickled):
    """Gives requests to Google Cloud a token, as `auth=` of a model.

    Without options, the credentials are the application's default ones, which Google's own SDKs use; `file` is the key
    file of a service account. Both need the extra `vertex`. Or `token` is a function, sync or async, that returns a
    token before each request, and needs no package. Raises `ConfigError` without the extra, and for both options.
    """

    def __init__(
        self, *, file: str | Path | None = None, token: Callable[[], GoogleToken | Awaitable[GoogleToken]] | None = None
    ) -> None:
        if file is not None and token is not None:
            raise ConfigError("GoogleAuth was given both file= and token=: give one of them")
        if token is not None and not callable(token):  # not shown: it may be a token
            raise ConfigError(
                f"GoogleAuth(token=...) must be a function that returns a token, not of type {type(token).__name__!r}"
            )
        self._token = token
        self._file = file
        self._credentials: Any = None
        self._lock = Lock()
        source = file or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        self.account = None if token else sha256(str(source).encode()).hexdigest()[:16]
        if token is None:
            self._google = import_extra("GoogleAuth", "vertex", "google.auth", "transport.requests", "exceptions")
            self._oauth = import_extra("GoogleAuth", "vertex", "google.oauth2", "service_account")

    def __repr__(self) -> str:
        return f"GoogleAuth(file={str(self._file)!r})" if self._file else "GoogleAuth()"

    async def __call__(self, method: str, url: str, body: bytes) -> dict[str, str]:
        """Return the header with the token."""
        if self._token is None:
            # In a thread: this may read files, or ask a server.
            return await anyio.to_thread.run_sync(self._find_headers, abandon_on_cancel=True)
        result = self._token()
        token = await result if inspect.isawaitable(result) else result
        text: object = token.get_secret_value() if isinstance(token, pydantic.SecretStr) else token
        if not isinstance(text, str) or not text:
            raise Rejected(f"the function token=... must return a str, not {type(text).__name__!r}")
        return {"authorization": f"Bearer {text}"}

    def _find_headers(self) -> dict[str, str]:
        google = self._google
        failure: Rejected | Transient
        try:
            with self._lock:  # its credentials are not for several threads
                if self._credentials is None:
                    self._credentials = self._load()
                headers: dict[str, str] = {}
                self._credentials.before_request(google.transport.requests.Request(), "POST", "", headers)
                return headers
        except google.exceptions.TransportError as error:
            failure = Transient(f"the server of Google's tokens could not be reached ({type(error).__name__})")
        except (google.exceptions.GoogleAuthError, OSError, ValueError) as error:
            if getattr(error, "retryable", False):
                failure = Transient(f"the server of Google's tokens gave none ({type(error).__name__})")
            else:
                failure = Rejected(
                    f"no credentials of Google can be used ({type(error).__name__}): give file=... or token=..., set "
                    f"GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login"
                )
        raise failure  # outside of the `except`, or an error that may hold a secret would become the context

    def _load(self) -> Any:
        if self._file is None:
            return self._google.default(scopes=[_SCOPE])[0]
        return self._oauth.service_account.Credentials.from_service_account_file(str(self._file), scopes=[_SCOPE])
