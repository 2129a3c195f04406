"""Google's batches of `generateContent` requests."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from agentrt._runtime.block import JSONObject
from agentrt._runtime.model_interface.batch import BatchStatus, cancelled_error, expired_error
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import Malformed, ModelError
from agentrt.model.remote.batches import BatchEndpoint, GetAnswer
from agentrt.model.remote.sse import dict_in, list_in, text_in
from agentrt.types import ChatResponse

_STATES_BY_WORD: dict[str, Any] = {
    "SUCCEEDED": "completed",
    "FAILED": "failed",
    "EXPIRED": "expired",
    "CANCELLED": "cancelled",
}
_NAME_PREFIX = "agentrt: "
_FILE = lazy_pattern(r"files/[\w-][\w.-]{0,199}", re.ASCII)
# Errors of single requests, and of a batch, have the codes of gRPC.
_STATUS_OF_CODE_OF_GRPC = {3: 400, 5: 404, 7: 403, 8: 429, 9: 400, 13: 500, 14: 503, 16: 401}


class GeminiBatches(BatchEndpoint):
    """The requests are an uploaded file, and so are the results; those sent in the request itself come back in one."""

    max_requests = 200_000  # the API names no limit
    max_size = 2_000_000_000
    id_pattern = lazy_pattern(r"batches/[\w-][\w.-]{0,199}", re.ASCII)
    id_field = "name"
    cancel_suffix = ":cancel"

    def line(self, key: str, body: JSONObject) -> JSONObject:
        return {"key": key, "request": body}

    async def submit(self, lines: Sequence[bytes], name: str | None) -> dict[str, Any]:
        # The API requires a name, so those of users have a prefix.
        batch = {
            "displayName": "agentrt" if name is None else f"{_NAME_PREFIX}{name}",
            "inputConfig": {"fileName": await self._upload(b"\n".join(lines))},
        }
        path = f"/models/{self.connection.model}:batchGenerateContent"
        return await self.call("POST", path, {"batch": batch})

    async def _upload(self, lines: bytes) -> str:
        """Upload a file as the provider's SDK does, in one piece, and return its name."""
        root, _, version = self.connection.url.rstrip("/").rpartition("/")
        start = {
            "content-type": "application/json",
            "x-goog-upload-protocol": "resumable",
            "x-goog-upload-command": "start",
            "x-goog-upload-header-content-length": str(len(lines)),
            "x-goog-upload-header-content-type": "application/jsonl",
        }
        response = await self.open("POST", f"{root}/upload/{version}/files", b'{"file":{}}', start)
        await response.aclose()
        # Only its path and query, since the key is sent to no other server than the model's.
        target, base = urlsplit(response.headers.get("x-goog-upload-url", "")), urlsplit(root)
        if not target.path:
            raise Malformed(f"{self.source}: it answered the upload of a batch without an address for the file")
        url = urlunsplit((base.scheme, base.netloc, target.path, target.query, ""))
        finish = {"x-goog-upload-command": "upload, finalize", "x-goog-upload-offset": "0"}
        file = await self.upload(url, lines, finish)
        return self.connection.errors.guard(lambda: self.check_part(dict_in(file, "file").get("name"), _FILE))

    def page_path(self, token: str) -> str:
        return f"/batches?pageSize=100&pageToken={quote(token, safe='')}"

    def read_page(self, page: dict[str, Any]) -> tuple[list[tuple[object, dict[str, Any]]], str]:
        records = list_in(page, "operations")
        names = [text_in(dict_in(record, "metadata"), "displayName") for record in records]
        users_names = [name.removeprefix(_NAME_PREFIX) if name.startswith(_NAME_PREFIX) else None for name in names]
        return [*zip(users_names, records, strict=True)], text_in(page, "nextPageToken")

    def path_of(self, id: str) -> str:
        return f"/{id}"

    def read_status(self, record: dict[str, Any]) -> BatchStatus:
        metadata = dict_in(record, "metadata")
        counts = dict_in(metadata, "batchStats")
        word = text_in(metadata, "state").rpartition("_")[2]  # "BATCH_STATE_SUCCEEDED"
        return BatchStatus(
            _STATES_BY_WORD.get(word, "failed" if record.get("error") else "in_progress"),
            self.count(counts, "requestCount"),
            self.count(counts, "successfulRequestCount"),
            self.count(counts, "failedRequestCount"),
        )

    def result_paths(self, record: dict[str, Any]) -> list[str]:
        if self.read_status(record).state == "failed":
            raise self._error(dict_in(record, "error"))
        output = dict_in(dict_in(record, "metadata"), "output") or dict_in(record, "response")
        file = output.get("responsesFile")
        return [f"/{self.check_part(file, _FILE)}:download?alt=media"] if file else []

    def read_line(self, line: dict[str, Any]) -> tuple[str, GetAnswer]:
        return text_in(line, "key"), lambda: self._answer(line)

    def _answer(self, line: dict[str, Any]) -> ChatResponse:
        if error := dict_in(line, "error"):
            raise self._error(error)
        return self.connection.read(dict_in(line, "response"))

    def _error(self, error: dict[str, object]) -> ModelError:
        match error.get("code"):
            case 1:
                return cancelled_error(self.source)
            case 4:
                return expired_error(self.source)
            case int(code):
                status = _STATUS_OF_CODE_OF_GRPC.get(code, 500)
            case _:
                status = 500
        return self.connection.errors.error_for_status(status, {}, {"error": error})
