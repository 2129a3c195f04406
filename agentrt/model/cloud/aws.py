"""Signed requests to AWS."""

import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from threading import Lock
from urllib.parse import urlsplit

import anyio.to_thread

from agentrt._runtime.hidden import NotPickled
from agentrt._runtime.options import import_extra
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import ConfigError, Rejected, Transient

AWSKeys = Sequence[str | None]
"""The access key, the secret key and, for credentials that expire, the session token."""
_SIGNED = ("Authorization", "X-Amz-Date", "X-Amz-Security-Token")
_REGION_IN_HOST = lazy_pattern(r"\.([a-z]{2,4}(?:-[a-z]+)+-\d)\.")


class AWSAuth(NotPickled):
    """Signs requests to AWS (SigV4), as `auth=` of a model; needs the extra `bedrock`.

    The credentials are those that AWS's own SDKs find: in the environment, of the `profile`, of a role or a login. Or
    `credentials` is a function, sync or async, that is asked before each request and returns the access key, the secret
    key and, if there is one, the session token. Unless it is given, the region is that of the URL, or else of
    AWS_REGION, AWS_DEFAULT_REGION or the profile. Raises `ConfigError` without the extra, and for a profile that does
    not exist.
    """

    def __init__(
        self,
        *,
        profile: str | None = None,
        region: str | None = None,
        credentials: Callable[[], AWSKeys | Awaitable[AWSKeys]] | None = None,
        service: str = "bedrock",
    ) -> None:
        self._botocore = import_extra("AWSAuth", "bedrock", "botocore", "auth", "awsrequest", "credentials", "session")
        if credentials is not None and not callable(credentials):  # not shown: it may be the keys themselves
            raise ConfigError(
                f"AWSAuth(credentials=...) must be a function that returns the keys, not of type "
                f"{type(credentials).__name__!r}"
            )
        self._credentials = credentials
        self._session = self._botocore.session.Session(profile=profile)
        self._lock = Lock()
        self.service = service
        problem = ""
        try:
            found = os.environ.get("AWS_REGION") or self._session.get_config_variable("region")
        except self._botocore.exceptions.ProfileNotFound:
            known = ", ".join(self._session.available_profiles) or "them first"
            problem = f"AWSAuth(profile={profile!r}) names no profile in the files of AWS: write one of {known}"
        except self._botocore.exceptions.ConfigParseError as error:
            problem = f"AWSAuth() cannot read {error.kwargs['path']!r}, a file of AWS: correct it"
        if problem:  # outside of the `except`, or an error that may quote a secret would become the context
            raise ConfigError(problem)
        self._given_region = region
        self.region: str | None = region or found
        names = (os.environ.get("AWS_ACCESS_KEY_ID"), profile or os.environ.get("AWS_PROFILE"))
        self.account = None if credentials else sha256(repr(names).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"AWSAuth(region={self.region!r})"

    async def __call__(self, method: str, url: str, body: bytes) -> dict[str, str]:
        """Return the headers that sign the request."""
        host = _REGION_IN_HOST.search(urlsplit(url).hostname or "")
        region = self._given_region or (host[1] if host else self.region)
        if not region:
            raise Rejected("no region of AWS is known: set AWS_REGION or give region=...")
        if self._credentials is None:
            # In a thread: this may read files, run a program, or ask a server.
            keys = await anyio.to_thread.run_sync(self._find_keys, abandon_on_cancel=True)
        else:
            keys = await self._ask_for_keys(self._credentials)
        return self._sign(method, url, body, keys, region)

    async def _ask_for_keys(self, ask: Callable[[], AWSKeys | Awaitable[AWSKeys]]) -> AWSKeys:
        result = ask()
        keys: object = await result if inspect.isawaitable(result) else result
        values = [*keys][:3] if isinstance(keys, Sequence) and not isinstance(keys, str) else []
        if len(values) < 2 or not all(isinstance(value, str) and value for value in values[:2]):
            raise Rejected(
                "the function credentials=... must return the access key, the secret key and the session token"
            )
        return values

    def _find_keys(self) -> AWSKeys:
        errors = self._botocore.exceptions
        failure: Rejected | Transient | None = None
        try:
            with self._lock:  # a session is not for several threads
                credentials = self._session.get_credentials()
            frozen = None if credentials is None else credentials.get_frozen_credentials()
        except (errors.HTTPClientError, errors.ConnectionError) as error:
            failure = Transient(f"the server of AWS's credentials could not be reached ({type(error).__name__})")
        except (errors.BotoCoreError, errors.ClientError) as error:
            # A server's refusal has a code, such as "ExpiredToken".
            why = error.response["Error"]["Code"] if isinstance(error, errors.ClientError) else type(error).__name__
            failure = Rejected(f"the credentials of AWS cannot be used ({why}): log in again, or check them")
        if failure:  # outside of the `except`, or an error that may hold a secret would become the context
            raise failure
        if frozen is None:
            raise Rejected(
                "no credentials of AWS were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or "
                "a key of Bedrock in AWS_BEARER_TOKEN_BEDROCK"
            )
        return (frozen.access_key, frozen.secret_key, frozen.token)

    def _sign(self, method: str, url: str, body: bytes, keys: AWSKeys, region: str) -> dict[str, str]:
        request = self._botocore.awsrequest.AWSRequest(method, url, data=body)
        signer = self._botocore.auth.SigV4Auth(self._botocore.credentials.Credentials(*keys), self.service, region)
        signer.add_auth(request)
        return {name.lower(): request.headers[name] for name in _SIGNED if name in request.headers}
