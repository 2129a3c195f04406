"""An HTTP API that is reached without an SDK, by the HTTP client that the SDKs of other providers bring."""

from typing import Any, ClassVar

from agentrt.block import JSONObject
from agentrt.model.remote.connection import raise_for_status
from agentrt.model.remote.endpoint import RemoteEndpoint
from agentrt.model.remote.log_filter import keep_headers_out_of_logs

__all__ = ["HTTPEndpoint", "plain_name"]

_MAX_CONNECTIONS = 1_000  # as many as the SDKs allow
_IDLE_CONNECTIONS = 100


class HTTPEndpoint(RemoteEndpoint):
    """What models behind an HTTP API share for which no SDK is used.

    A subclass says which header has the key (`_key_header`), and where to post a body (`_path_for`).
    """

    _sdk = "httpx2"
    _key_header: ClassVar[str]

    def _path_for(self, body: JSONObject) -> str:
        """Return where to post the body to, below the base URL."""
        return self._path

    def _new_client(self) -> Any:
        keep_headers_out_of_logs()
        if self._http_client is not None:
            return _Client(self._http_client())
        http = self._import_sdk()
        limits = http.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_IDLE_CONNECTIONS)
        return _Client(http.AsyncClient(limits=limits))

    async def _post(self, sdk: Any, body: JSONObject) -> Any:
        headers = {self._key_header: self._key.get_secret_value(), **self._headers()}
        url = f"{self.base_url.rstrip('/')}{self._path_for(body)}"
        request = sdk.http.build_request("POST", url, json=body, headers=headers, timeout=self._http_timeout())
        response = await sdk.http.send(request, stream=True, follow_redirects=False)
        try:
            await raise_for_status(response)
        except BaseException:
            await response.aclose()
            raise
        return response


def plain_name(model: str) -> str:
    """Return the name of a model without the "models/" with which Google's API lists it."""
    name: object = model
    # What is not a str is refused where all options of a model are checked.
    return name.removeprefix("models/") if isinstance(name, str) else model


class _Client:
    """An HTTP client with the one method of the SDKs' that is used beside `post`."""

    def __init__(self, http: Any) -> None:
        self.http = http

    async def close(self) -> None:
        await self.http.aclose()
