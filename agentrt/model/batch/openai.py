"""OpenAI's batch API, for chat completions and responses."""

import os
from collections.abc import Sequence
from typing import Any

from agentrt._runtime.block import JSONObject
from agentrt._runtime.model_interface.batch import BatchStatus, cancelled_error, expired_error
from agentrt.errors import ModelError
from agentrt.model.remote.batches import BatchEndpoint, GetAnswer
from agentrt.model.remote.sse import count_in, dict_in, list_in, text_in
from agentrt.types import ChatResponse

_ENDED: dict[str, Any] = {word: word for word in ("completed", "failed", "expired", "cancelled")}
_NAME_IN_METADATA = "agentrt_batch"  # of the metadata with the name of a batch


class OpenAIBatches(BatchEndpoint):
    """The requests are a file, and so are the results: one of answers, one of errors."""

    max_requests = 50_000
    max_size = 200_000_000

    def line(self, key: str, body: JSONObject) -> JSONObject:
        return {"custom_id": key, "method": "POST", "url": f"/v1{self.connection.path}", "body": body}

    async def submit(self, lines: Sequence[bytes], name: str | None) -> dict[str, Any]:
        boundary = os.urandom(16).hex()  # which the file does not contain
        head = (
            f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="batch.jsonl"\r\n'
            f"content-type: application/jsonl\r\n\r\n"
        )
        content = b"".join([head.encode(), b"\n".join(lines), f"\r\n--{boundary}--\r\n".encode()])
        file = await self.upload("/files", content, {"content-type": f"multipart/form-data; boundary={boundary}"})
        body: JSONObject = {
            "input_file_id": self.id_of(file),
            "endpoint": f"/v1{self.connection.path}",
            "completion_window": "24h",
        }
        if name is not None:
            body["metadata"] = {_NAME_IN_METADATA: name}
        return await self.call("POST", "/batches", body)

    def page_path(self, token: str) -> str:
        return f"/batches?limit=100{token and f'&after={token}'}"

    def read_page(self, page: dict[str, Any]) -> tuple[list[tuple[object, dict[str, Any]]], str]:
        batches = list_in(page, "data")
        named: list[tuple[object, dict[str, Any]]] = [
            (dict_in(batch, "metadata").get(_NAME_IN_METADATA), batch) for batch in batches
        ]
        return named, self.id_of(batches[-1]) if batches and page.get("has_more") else ""

    def path_of(self, id: str) -> str:
        return f"/batches/{id}"

    def read_status(self, record: dict[str, Any]) -> BatchStatus:
        counts = dict_in(record, "request_counts")
        return BatchStatus(
            _ENDED.get(text_in(record, "status"), "in_progress"),
            self.count(counts, "total"),
            self.count(counts, "completed"),
            self.count(counts, "failed"),
        )

    def result_paths(self, record: dict[str, Any]) -> list[str]:
        files = [record[name] for name in ("output_file_id", "error_file_id") if record.get(name)]
        if not files and self.read_status(record).state == "failed":
            errors = list_in(dict_in(record, "errors"), "data")
            raise self.connection.errors.error_for_status(400, {}, {"error": errors[0] if errors else {}})
        return [f"/files/{self.check_part(file, self.id_pattern)}/content" for file in files]

    def read_line(self, line: dict[str, Any]) -> tuple[str, GetAnswer]:
        return text_in(line, "custom_id"), lambda: self._answer(line)

    def _answer(self, line: dict[str, Any]) -> ChatResponse:
        response, error = dict_in(line, "response"), dict_in(line, "error")
        if error and not response:
            raise self._error(error)
        status, body = count_in(response, "status_code"), dict_in(response, "body")
        if status >= 400:
            raise self.connection.errors.error_for_status(status, {}, body)
        return self.connection.read(body)

    def _error(self, error: dict[str, object]) -> ModelError:
        match text_in(error, "code"):
            case "batch_expired":
                return expired_error(self.source)
            case "batch_cancelled":
                return cancelled_error(self.source)
            case _:
                return self.connection.errors.error_for_event({"error": error})
