"""The credentials for an HTTP API: headers, a key, or a signature of each request; all of them are secrets."""

import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import pydantic

from agentrt._runtime.hidden import NotPickled
from agentrt._runtime.representation import is_secret
from agentrt.errors import ModelError, Rejected, Transient
from agentrt.types import SignRequest

KeyOption = str | pydantic.SecretStr | Callable[[], str | Awaitable[str]]
"""A key, or a function that returns one before each request."""


class Credentials(NotPickled):
    """The credentials of each request to an API, which messages call `source`: `headers`, and a `key` or a signature.

    A key goes into `key_header`, as in `("authorization", "Bearer {}")`. Functions are called before each request, and
    their results are dropped when the request is over. Iterating yields all secrets in use, for
    masking them in messages.
    """

    # By function, as long as it lives: Python may reuse an id for another function, and two accounts
    # would share their limits and cached answers.
    _identities: ClassVar[WeakKeyDictionary[object, str]] = WeakKeyDictionary()

    def __init__(
        self,
        source: str,
        headers: Mapping[str, str] | None = None,
        *,
        key: KeyOption | None = None,
        key_header: tuple[str, str] = ("authorization", "Bearer {}"),
        sign: SignRequest | None = None,
    ) -> None:
        self.source = source
        # Wrapped, so that `vars()` does not show secrets.
        self._headers = {name: pydantic.SecretStr(value) for name, value in (headers or {}).items()}
        self._key = pydantic.SecretStr(key) if isinstance(key, str) else key
        self._key_header = key_header
        self._sign = sign
        # Weak, so that they disappear when the call is over.
        self._of_calls: WeakKeyDictionary[object, list[pydantic.SecretStr]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.source}>"

    def __bool__(self) -> bool:
        return bool(self._headers) or self._key is not None or self._sign is not None

    def __iter__(self) -> Iterator[str]:
        fixed = list(self._headers.values())
        if isinstance(self._key, pydantic.SecretStr):
            fixed.append(self._key)
        for secret in (*fixed, *(secret for secrets in list(self._of_calls.values()) for secret in secrets)):
            text = secret.get_secret_value()
            yield text
            words = text.split()  # of "Bearer abc", a server may repeat only the second
            yield from words if len(words) > 1 else ()

    @property
    def headers(self) -> dict[str, str]:
        return {name: value.get_secret_value() for name, value in self._headers.items()}

    @property
    def identity(self) -> str:
        """Text that credentials of the same account share, and that reveals no key."""
        function = self._sign or (self._key if callable(self._key) else None)
        if function is not None:
            return self._identity_of(function)
        key = self._key.get_secret_value() if isinstance(self._key, pydantic.SecretStr) else ""
        headers = sorted((name.lower(), value) for name, value in self.headers.items() if is_secret(name, value))
        return sha256(f"{key}{headers or ''}".encode()).hexdigest()[:16]

    async def key_headers(self, call: object) -> dict[str, str]:
        """Return the header with the key for one call; raises `Rejected` when its function fails."""
        if self._key is None:
            return {}
        key = self._key.get_secret_value() if isinstance(self._key, pydantic.SecretStr) else await self._ask_key(call)
        name, form = self._key_header
        return {name: form.format(key)}

    async def signature(self, call: object, method: str, url: str, body: bytes) -> dict[str, str]:
        """Return the headers that sign a request; raises `Rejected` when the function for that fails."""
        if self._sign is None:
            return {}
        headers = await self._result_of("auth", self._sign, method, url, body)
        if not isinstance(headers, Mapping) or not all(
            isinstance(name, str) and isinstance(value, str) for name, value in headers.items()
        ):
            raise self._rejection("auth", f"must return a dict of str, not {type(headers).__name__!r}")
        self._note(call, *headers.values())
        values = "".join(headers.values())
        if not all(map(is_key, headers)) or not (values.isascii() and values.isprintable()):
            raise self._rejection("auth", "returned a header with characters that no header can have")
        return dict(headers)

    async def _ask_key(self, call: object) -> str:
        key = await self._result_of("api_key", self._key)
        if not isinstance(key, str):
            raise self._rejection("api_key", f"must return a str, not {type(key).__name__!r}")
        self._note(call, key)
        if not is_key(key):
            raise self._rejection("api_key", "returned a key that is empty, or has characters that no key can have")
        return key

    async def _result_of(self, option: str, function: Any, *arguments: object) -> Any:
        try:
            result = function(*arguments)
            return await result if inspect.isawaitable(result) else result
        except (Rejected, Transient) as error:  # ours, which show no secret
            failure: ModelError = type(error)(f"{self.source}: {error}")
        except Exception as error:  # noqa: BLE001  # the boundary to the user's function
            failure = self._rejection(option, f"raised {type(error).__name__}, so nothing was sent")
        # Outside of the `except`, or the error, which may hold a secret, would become its context.
        raise failure

    @classmethod
    def _identity_of(cls, function: object) -> str:
        """Return text that belongs to one function: the same in each process for one that can be imported.

        A function may be an object with an `account`, a `str` that does the same.
        """
        account = getattr(function, "account", None)
        if isinstance(account, str):
            return account
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
        if module not in (None, "__main__") and getattr(sys.modules.get(module), name, None) is function:
            return f"{module}.{name}"
        # A bound method is a new object at each access.
        owner = getattr(function, "__self__", function)
        try:
            number = cls._identities.setdefault(owner, os.urandom(8).hex())
        except TypeError:  # not hashable, or without weak references
            number = os.urandom(8).hex()
        return f"{module}.{name}#{number}"

    def _rejection(self, option: str, problem: str) -> Rejected:
        return Rejected(f"{self.source}: the function {option}=... {problem}")

    def _note(self, call: object, *secrets: str) -> None:
        self._of_calls.setdefault(call, []).extend(map(pydantic.SecretStr, secrets))


def is_key(text: str) -> bool:
    """Say whether a header can hold the text as one word."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
