"""No log of the libraries that send requests holds a header."""

import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import anyio
import httpx2
import pytest

from agentrt._runtime.http import log_filter
from agentrt._runtime.http.log_filter import keep_headers_out_of_logs
from agentrt.errors import Rejected
from agentrt.model import AnthropicChatModel, OpenAIChatModel
from tests.model.wire_openai import HELLO, KEY


class _Echo(BaseHTTPRequestHandler):
    """Answers with a cookie, and with the key that it was sent in a header."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(
            {
                "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
                "content": [{"type": "text", "text": "hi"}],
                "stop_reason": "end_turn",
            }
        ).encode()
        self.send_response(200)
        self.send_header("set-cookie", "session=canary-of-a-cookie")
        self.send_header("x-echo", self.headers.get("authorization") or self.headers["x-api-key"])
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def echo_url() -> Iterator[str]:
    # For one test each, since the thread may close its side of a connection only after the client has.
    with HTTPServer(("127.0.0.1", 0), _Echo) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def no_client_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filters stay for the whole process, so that those of other tests would do the work."""
    for name in log_filter._LOGGERS:
        monkeypatch.setattr(logging.getLogger(name), "filters", [])


@pytest.mark.usefixtures("no_client_was_made")
@pytest.mark.parametrize("cls", [OpenAIChatModel, AnthropicChatModel])
async def test_no_log_of_a_client_library_holds_headers(
    cls: type[Any], echo_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    model = cls("m", api_key=KEY, base_url=echo_url, stream=False, extra_headers={"x-secret": "canary-of-a-header"})
    await model(HELLO)
    await model.aclose()

    assert "receive_response_headers.complete" in caplog.text  # what was said goes on being said
    assert f"{echo_url}" in caplog.text
    for secret in (KEY, "canary-of-a-cookie", "canary-of-a-header", "set-cookie", "x-echo"):
        assert secret not in caplog.text


@pytest.mark.usefixtures("no_client_was_made")
@pytest.mark.parametrize("cls", [OpenAIChatModel, AnthropicChatModel])
async def test_no_log_holds_a_header_that_cannot_be_sent(
    cls: type[Any], echo_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    model = cls("m", api_key=KEY, base_url=echo_url, extra_headers={"x-secret": "canary-of-a-header\n"})
    with anyio.fail_after(10), pytest.raises(Rejected):
        await model(HELLO)
    await model.aclose()

    assert "send_request_headers.failed" in caplog.text
    assert "canary" not in caplog.text


def test_logged_header_tables_lose_their_headers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keep_headers_out_of_logs()
    keep_headers_out_of_logs()
    client = logging.getLogger("httpx2")
    client.debug("%s", httpx2.Headers({"authorization": KEY}))
    logging.getLogger("hpack.hpack").debug("Adding %s", (b"authorization", KEY.encode()))

    assert "(headers left out)" in caplog.text
    assert KEY not in caplog.text
    assert len(client.filters) == len({type(each) for each in client.filters})
