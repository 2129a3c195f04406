"""A server with the batch APIs of three providers, without a socket; the providers' own clients check it as well."""

import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio.lowlevel
import httpx
import httpx2

from agentrt.errors import ModelError
from agentrt.message import Msg, UserMsg
from agentrt.model import (
    AnthropicChatModel,
    BatchResult,
    GeminiChatModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
    RemoteChatModel,
    TokenPrices,
)

JSONObject = dict[str, Any]
APIS = ("chat", "responses", "anthropic", "gemini")
KEY = "sk-canary-0123456789abcdef"
URLS = {
    "chat": "https://api.openai.test/v1",
    "responses": "https://api.openai.test/v1",
    "anthropic": "https://api.anthropic.test",
    "gemini": "https://google.test/v1beta",
}
PRICES = TokenPrices(2, 10)
_TIME = "2026-11-28T12:00:00Z"


@dataclass
class Stored:
    """One batch: its requests by key, and what becomes of it."""

    id: str
    api: str
    requests: dict[str, JSONObject]
    name: str | None = None
    polls: int = 0
    state: str = "in_progress"


@dataclass
class BatchServer:
    """Ends each batch at the second question for it, and answers its requests in reverse order.

    `outcomes` are those of requests by position, where they are not answered: "error", "expired" or "cancelled", or
    "nothing". `ends_as` is the state of batches at their end. `before` may answer a request in the server's place.
    """

    outcomes: dict[int, str] = field(default_factory=dict)
    ends_as: str = "completed"
    polls_to_end: int = 2
    other_host: str = "google.test"
    """The host of Google's addresses for uploads."""
    before: Callable[[str, str], tuple[int, bytes] | None] = lambda method, path: None
    batches: dict[str, Stored] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[JSONObject] = field(default_factory=list)
    open: set[object] = field(default_factory=set)

    def answer(self, method: str, url: str, headers: Any, content: bytes) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(url)
        self.asked.append((method, f"{parts.netloc}{parts.path}"))
        replaced = self.before(method, parts.path)
        if replaced is not None:
            return replaced[0], {"content-type": "application/json"}, replaced[1]
        path = parts.path.removeprefix("/v1beta").removeprefix("/upload/v1beta").removeprefix("/v1")
        if parts.netloc == "google.test":
            return self._google(method, path, parse_qs(parts.query), headers, content)
        if parts.netloc == "api.anthropic.test":
            return self._anthropic(method, path, content)
        return self._openai(method, path, parse_qs(parts.query), headers, content)

    # OpenAI

    def _openai(
        self, method: str, path: str, query: dict[str, list[str]], headers: Any, content: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        match method, path.split("/")[1:]:
            case "POST", ["files"]:
                return ok(self._openai_file(self.store(file_in_form(headers["content-type"], content))))
            case "GET", ["files", id, "content"]:
                return 200, {"content-type": "application/octet-stream"}, self.files[id]
            case "POST", ["batches"]:
                body = json.loads(content)
                lines = [json.loads(line) for line in self.files[body["input_file_id"]].splitlines()]
                assert all((line["method"], line["url"]) == ("POST", body["endpoint"]) for line in lines)
                requests = {line["custom_id"]: line["body"] for line in lines}
                name = (body.get("metadata") or {}).get("agentrt_batch")
                return ok(self._openai_batch(self.new("batch_", body["endpoint"], requests, name)))
            case "GET", ["batches"]:
                # Two a page, so that there are several.
                ids = list(reversed(self.batches))
                first = ids.index(query["after"][0]) + 1 if "after" in query else 0
                page = [self._openai_batch(self.batches[id]) for id in ids[first : first + 2]]
                return ok({"object": "list", "data": page, "has_more": first + 2 < len(ids)})
            case "GET", ["batches", id] if id in self.batches:
                return ok(self._openai_batch(self.polled(id)))
            case "POST", ["batches", id, "cancel"]:
                self.batches[id].state = "cancelled"
                return ok(self._openai_batch(self.batches[id]))
        return 404, {"content-type": "application/json"}, b'{"error": {"message": "no such batch"}}'

    def _openai_file(self, id: str) -> JSONObject:
        size = len(self.files[id])
        return {
            "id": id, "object": "file", "bytes": size, "created_at": 1, "filename": "f", "purpose": "batch",
            "status": "processed",
        }  # fmt: skip

    def _openai_batch(self, batch: Stored) -> JSONObject:
        record: JSONObject = {
            "id": batch.id, "object": "batch", "endpoint": batch.api, "input_file_id": "f", "completion_window": "24h",
            "created_at": 1, "status": batch.state, "metadata": batch.name and {"agentrt_batch": batch.name},
            "request_counts": {"total": len(batch.requests), "completed": 0, "failed": 0},
        }  # fmt: skip
        if batch.state == "failed":
            error = {"code": "invalid_json_line", "message": f"line 1 is not JSON ({KEY})", "line": 1}
            return {**record, "errors": {"object": "list", "data": [error]}}
        if batch.state == "in_progress":
            return record
        answers, errors = [], []
        for index, key, outcome in self.results_of(batch):
            line: JSONObject = {"id": f"batch_req_{index}", "custom_id": key, "response": None, "error": None}
            if outcome == "answer":
                answer = chat_answer(index) if batch.api.endswith("completions") else responses_answer(index)
                line["response"] = {"status_code": 200, "request_id": "r", "body": answer}
                answers.append(line)
            elif outcome == "error":
                error = {"message": f"bad request ({KEY})", "type": "invalid_request_error", "code": None}
                line["response"] = {"status_code": 400, "request_id": "r", "body": {"error": error}}
                errors.append(line)
            else:
                line["error"] = {"code": f"batch_{outcome}", "message": "too late"}
                errors.append(line)
        if answers:
            record["output_file_id"] = self.store(jsonl(answers))
        if errors:
            record["error_file_id"] = self.store(jsonl(errors))
        return record

    # Anthropic

    def _anthropic(self, method: str, path: str, content: bytes) -> tuple[int, dict[str, str], bytes]:
        match method, path.split("/")[1:]:
            case "POST", ["messages", "batches"]:
                requests = {request["custom_id"]: request["params"] for request in json.loads(content)["requests"]}
                return ok(self._anthropic_batch(self.new("msgbatch_", "anthropic", requests, None)))
            case "GET", ["messages", "batches", id] if id in self.batches:
                return ok(self._anthropic_batch(self.polled(id)))
            case "POST", ["messages", "batches", id, "cancel"]:
                self.batches[id].state = "cancelled"
                return ok(self._anthropic_batch(self.batches[id]))
            case "GET", ["messages", "batches", id, "results"]:
                kinds = {"error": "errored", "cancelled": "canceled", "expired": "expired"}
                lines: list[JSONObject] = []
                for index, key, outcome in self.results_of(self.batches[id]):
                    result: JSONObject = {"type": kinds.get(outcome, "succeeded")}
                    if outcome == "answer":
                        result["message"] = anthropic_answer(index)
                    elif outcome == "error":
                        error = {"type": "invalid_request_error", "message": f"bad request ({KEY})"}
                        result["error"] = {"type": "error", "error": error, "request_id": None}
                    lines.append({"custom_id": key, "result": result})
                return 200, {"content-type": "application/x-jsonl"}, jsonl(lines)
        error = {"type": "not_found_error", "message": "no such batch"}
        return 404, {"content-type": "application/json"}, json.dumps({"type": "error", "error": error}).encode()

    def _anthropic_batch(self, batch: Stored) -> JSONObject:
        is_over = batch.state != "in_progress"
        names = ("processing", "succeeded", "errored", "canceled", "expired")
        return {
            "id": batch.id, "type": "message_batch", "processing_status": "ended" if is_over else "in_progress",
            "request_counts": {**dict.fromkeys(names, 0), "processing": len(batch.requests)},
            "created_at": _TIME, "expires_at": _TIME, "ended_at": _TIME if is_over else None,
            "archived_at": None, "cancel_initiated_at": None,
            # Elsewhere, as if the server were not what it says: no key may go there.
            "results_url": f"https://elsewhere.test/{batch.id}" if is_over else None,
        }  # fmt: skip

    # Google

    def _google(
        self, method: str, path: str, query: dict[str, list[str]], headers: Any, content: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        match method, path.split("/")[1:]:
            case "POST", ["files"] if headers["x-goog-upload-command"] == "start":
                assert headers["x-goog-upload-protocol"] == "resumable"
                return 200, {"x-goog-upload-url": f"https://{self.other_host}/upload/v1beta/files?upload_id=1"}, b"{}"
            case "POST", ["files"]:
                assert headers["x-goog-upload-command"] == "upload, finalize"
                assert query == {"upload_id": ["1"]}
                name = self.store(content, "files/")
                return 200, {"x-goog-upload-status": "final"}, json.dumps({"file": {"name": name}}).encode()
            case "POST", ["models", call]:
                model, _, method = call.partition(":")
                assert (model, method) == ("gemini-test", "batchGenerateContent")
                batch = json.loads(content)["batch"]
                lines = [json.loads(line) for line in self.files[batch["inputConfig"]["fileName"]].splitlines()]
                requests = {line["key"]: line["request"] for line in lines}
                return ok(self._operation(self.new("batches/", "gemini", requests, batch.get("displayName"))))
            case "GET", ["batches"]:
                ids = list(reversed(self.batches))
                first = int(query.get("pageToken", ["0"])[0])
                page = [self._operation(self.batches[id]) for id in ids[first : first + 2]]
                return ok({"operations": page, **({"nextPageToken": str(first + 2)} if first + 2 < len(ids) else {})})
            case "GET", ["batches", id] if f"batches/{id}" in self.batches:
                return ok(self._operation(self.polled(f"batches/{id}")))
            case "POST", ["batches", call]:
                self.batches[f"batches/{call.removesuffix(':cancel')}"].state = "cancelled"
                return ok({})
            case "GET", ["files", call]:
                assert query == {"alt": ["media"]}
                return 200, {}, self.files[f"files/{call.removesuffix(':download')}"]
        return 404, {"content-type": "application/json"}, b'{"error": {"code": 404, "message": "no such batch"}}'

    def _operation(self, batch: Stored) -> JSONObject:
        word = {"in_progress": "RUNNING", "completed": "SUCCEEDED"}.get(batch.state, batch.state.upper())
        metadata: JSONObject = {
            "state": f"BATCH_STATE_{word}", "displayName": batch.name, "createTime": _TIME,
            "batchStats": {"requestCount": str(len(batch.requests))},
        }  # fmt: skip
        operation: JSONObject = {"name": batch.id, "metadata": metadata, "done": batch.state != "in_progress"}
        if batch.state == "failed":
            return {**operation, "error": {"code": 3, "message": f"line 1 is not JSON ({KEY})"}}
        if operation["done"]:
            lines: list[JSONObject] = []
            codes = {"error": (3, f"bad request ({KEY})"), "expired": (4, "too late"), "cancelled": (1, "cancelled")}
            for index, key, outcome in self.results_of(batch):
                if outcome == "answer":
                    lines.append({"key": key, "response": gemini_answer(index)})
                else:
                    lines.append({"key": key, "error": dict(zip(("code", "message"), codes[outcome], strict=True))})
            metadata["output"] = {"responsesFile": self.store(jsonl(lines), "files/")}
        return operation

    # Common to all.

    def store(self, content: bytes, prefix: str = "file-") -> str:
        id = f"{prefix}{len(self.files)}"
        self.files[id] = content
        return id

    def new(self, prefix: str, api: str, requests: dict[str, JSONObject], name: str | None) -> Stored:
        batch = Stored(f"{prefix}{len(self.batches)}", api, requests, name)
        self.batches[batch.id] = batch
        self.bodies += requests.values()
        return batch

    def polled(self, id: str) -> Stored:
        batch = self.batches[id]
        batch.polls += 1
        if batch.polls >= self.polls_to_end and batch.state == "in_progress":
            batch.state = self.ends_as
        return batch

    def results_of(self, batch: Stored) -> list[tuple[int, str, str]]:
        results = [(index, key, self.outcomes.get(index, "answer")) for index, key in enumerate(batch.requests)]
        return [result for result in reversed(results) if result[2] != "nothing"]


def ok(body: JSONObject) -> tuple[int, dict[str, str], bytes]:
    return 200, {"content-type": "application/json"}, json.dumps(body).encode()


def jsonl(lines: list[JSONObject]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def file_in_form(content_type: str, content: bytes) -> bytes:
    """Return the file of a form, read by the standard library."""
    form = BytesParser(policy=HTTP).parsebytes(b"content-type: " + content_type.encode() + b"\r\n\r\n" + content)
    parts = {part.get_param("name", header="content-disposition"): part for part in form.iter_parts()}  # type: ignore[attr-defined]
    assert parts["purpose"].get_payload(decode=True).strip() == b"batch"
    file: bytes = parts["file"].get_payload(decode=True)
    return file


def chat_answer(index: int) -> JSONObject:
    message = {"role": "assistant", "content": f"answer {index}", "refusal": None}
    return {
        "id": f"c{index}", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
    }  # fmt: skip


def responses_answer(index: int) -> JSONObject:
    text = {"type": "output_text", "text": f"answer {index}", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    return {
        "id": f"r{index}", "object": "response", "created_at": 1, "model": "m", "status": "completed",
        "output": [message], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "usage": {
            "input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }  # fmt: skip


def anthropic_answer(index: int) -> JSONObject:
    return {
        "id": f"m{index}", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": f"answer {index}"}],
        "usage": {"input_tokens": 1000, "output_tokens": 100},
    }  # fmt: skip


def gemini_answer(index: int) -> JSONObject:
    content = {"role": "model", "parts": [{"text": f"answer {index}"}]}
    usage = {"promptTokenCount": 1000, "candidatesTokenCount": 100, "totalTokenCount": 1100}
    return {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}


class Transport(httpx2.AsyncBaseTransport):
    """Carries the requests of a client of httpx2 to the server; bodies come in pieces of `size` bytes."""

    def __init__(self, server: BatchServer, size: int = 50) -> None:
        self._server = server
        self._size = size

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        content = await request.aread()
        await anyio.lowlevel.checkpoint()
        status, headers, body = self._server.answer(request.method, str(request.url), request.headers, content)
        stream = _Pieces(self._server, body, self._size)
        return httpx2.Response(status, headers=headers, stream=stream)


class _Pieces(httpx2.AsyncByteStream):
    def __init__(self, server: BatchServer, body: bytes, size: int) -> None:
        self._server, self._body, self._size = server, body, size
        server.open.add(self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body, cut, _ = self._body.partition(b"<cut>")
        for start in range(0, len(body), self._size):
            await anyio.lowlevel.checkpoint()
            yield body[start : start + self._size]
        if cut:
            raise httpx2.ReadError("connection reset")

    async def aclose(self) -> None:
        self._server.open.discard(self)


def sync_transport(server: BatchServer) -> httpx.MockTransport:
    """Return what carries the requests of Google's client."""

    def handle(request: httpx.Request) -> httpx.Response:
        answer = server.answer(request.method, str(request.url), request.headers, request.read())
        return httpx.Response(answer[0], headers=answer[1], content=answer[2])

    return httpx.MockTransport(handle)


def model_of(api: str, server: BatchServer, **options: Any) -> RemoteChatModel:
    settings: dict[str, Any] = {
        "api_key": KEY,
        "base_url": URLS[api],
        "http_client": lambda: httpx2.AsyncClient(transport=Transport(server)),
        "prices": PRICES,
        **options,
    }
    match api:
        case "chat":
            return OpenAIChatModel("gpt-test", **settings)
        case "responses":
            return OpenAIResponsesModel("gpt-test", **settings)
        case "anthropic":
            return AnthropicChatModel("claude-test", **settings)
        case _:
            return GeminiChatModel("gemini-test", **settings)


def questions(count: int) -> list[list[Msg]]:
    return [[UserMsg("user", f"question {index}")] for index in range(count)]


def texts_of(results: list[BatchResult]) -> list[str | type[ModelError]]:
    return [
        re.sub(r"\s+", " ", "".join(getattr(block, "text", "") for block in result.response.content))
        if result.response is not None
        else type(result.error)
        for result in results
    ]
