"""Anthropic's message batches."""

from collections.abc import Sequence
from typing import Any

from agentrt._runtime.block import JSONObject
from agentrt._runtime.model_interface.batch import BatchStatus, cancelled_error, expired_error
from agentrt.model.remote.batches import BatchEndpoint, GetAnswer
from agentrt.model.remote.sse import dict_in, text_in
from agentrt.types import ChatResponse

_COUNTED_STATES = ("processing", "succeeded", "errored", "canceled", "expired")


class AnthropicBatches(BatchEndpoint):
    """The requests are one body, and the results a file that also names the requests that expired or were canceled."""

    max_requests = 100_000
    max_size = 256_000_000

    def line(self, key: str, body: JSONObject) -> JSONObject:
        return {"custom_id": key, "params": body}

    async def submit(self, lines: Sequence[bytes], name: str | None) -> dict[str, Any]:
        content = b'{"requests":[%b]}' % b",".join(lines)
        return await self.upload(self._path, content, {"content-type": "application/json"})

    @property
    def _path(self) -> str:
        return f"{self.connection.path}/batches"

    def path_of(self, id: str) -> str:
        return f"{self._path}/{id}"

    def read_status(self, record: dict[str, Any]) -> BatchStatus:
        counts = dict_in(record, "request_counts")
        return BatchStatus(
            "completed" if text_in(record, "processing_status") == "ended" else "in_progress",
            self.count(counts, *_COUNTED_STATES),
            self.count(counts, "succeeded"),
            self.count(counts, "errored", "canceled", "expired"),
        )

    def result_paths(self, record: dict[str, Any]) -> list[str]:
        # Not its `results_url`: the key is sent to no other server than the model's.
        return [f"{self.path_of(self.id_of(record))}/results"]

    def read_line(self, line: dict[str, Any]) -> tuple[str, GetAnswer]:
        return text_in(line, "custom_id"), lambda: self._answer(dict_in(line, "result"))

    def _answer(self, result: dict[str, object]) -> ChatResponse:
        match text_in(result, "type"):
            case "succeeded":
                return self.connection.read(dict_in(result, "message"))
            case "expired":
                raise expired_error(self.source)
            case "canceled":
                raise cancelled_error(self.source)
            case _:
                raise self.connection.errors.error_for_event(dict_in(result, "error"))
