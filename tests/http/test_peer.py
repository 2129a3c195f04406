"""One HTTP peer: who it says it is, what it refuses, how long it waits, and how it ends."""

import logging
import ssl
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from agentrt import __version__
from agentrt._runtime.http.credentials import Credentials
from agentrt._runtime.http.limits import CallTimer, Timeouts
from agentrt._runtime.http.peer import HTTPPeer
from agentrt.errors import Malformed, ModelError, Rejected, Timeout, Transient
from tests.http.raw_server import HANG, bomb, head, raw_server

KEY = "sk-canary-0123456789abcdef"
SHORT = 0.05  # seconds, for time limits that are meant to pass


class Recorder(httpx2.AsyncBaseTransport):
    def __init__(self, answer: Callable[[httpx2.Request], httpx2.Response] | None = None) -> None:
        self.requests: list[httpx2.Request] = []
        self._answer = answer or (lambda _: httpx2.Response(200, content=b"ok"))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return self._answer(request)


async def ask(peer: HTTPPeer, url: str = "http://test.invalid/v1?a=1", **limits: float) -> bytes:
    """Return the whole body of the answer to one request, and close the peer."""
    timer = CallTimer(Timeouts(**limits), peer.source)
    body = b""
    try:
        response = await peer.send("POST", url, b'{"a": 1}', {"content-type": "application/json"}, timer, 1_000)
        try:
            while (piece := await response.read()) is not None:
                body += piece
        finally:
            await response.aclose()
    finally:
        await peer.aclose()
    return body


def recorded(**options: Any) -> tuple[HTTPPeer, Recorder]:
    recorder = Recorder()
    credentials = Credentials("the server", **options)
    return HTTPPeer("its URL", credentials, lambda: httpx2.AsyncClient(transport=recorder)), recorder


async def test_a_request_names_us_and_asks_for_what_we_can_bound() -> None:
    peer, recorder = recorded(key=KEY)

    assert await ask(peer) == b"ok"
    headers = recorder.requests[0].headers
    assert headers["user-agent"] == f"agentrt/{__version__}"
    assert (headers["accept-encoding"], headers["authorization"]) == ("gzip, deflate", f"Bearer {KEY}")


async def later(value: Any) -> Any:
    await anyio.lowlevel.checkpoint()
    return value


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_function_is_asked_for_the_key_before_each_request(is_async: bool) -> None:
    keys = iter(["first-key", "second-key"])
    peer, recorder = recorded(key=(lambda: later(next(keys))) if is_async else (lambda: next(keys)))

    for _ in range(2):
        await ask(peer)
    assert [each.headers["authorization"] for each in recorder.requests] == ["Bearer first-key", "Bearer second-key"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_function_signs_what_is_sent_and_wins(is_async: bool) -> None:
    seen = []

    def sign(method: str, url: str, body: bytes) -> Any:
        seen.append((method, url, body))
        headers = {"X-Signature": f"of {len(body)} bytes", "content-type": "text/signed"}
        return later(headers) if is_async else headers

    peer, recorder = recorded(sign=sign)
    await ask(peer)

    [request] = recorder.requests
    assert seen == [("POST", str(request.url), request.content)]
    assert request.headers["x-signature"] == "of 8 bytes"
    assert request.headers.get_list("content-type") == ["text/signed"]
    assert "authorization" not in request.headers


def raises() -> Any:
    raise ValueError(f"no token for {KEY}")


async def raises_later() -> Any:
    raise ValueError(f"no token for {KEY}")


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (raises, "raised ValueError, so nothing was sent"),
        (raises_later, "raised ValueError, so nothing was sent"),
        (lambda: None, "must return a str, not 'NoneType'"),
        (lambda: later(KEY.encode()), "must return a str, not 'bytes'"),
        (lambda: f"{KEY}\n", "characters that no key can have"),
        (lambda: later(f"{KEY}\r\nx: y"), "characters that no key can have"),
        (lambda: "", "empty"),
    ],
)
async def test_a_key_that_cannot_be_had_sends_nothing(give: Any, words: str) -> None:
    peer, recorder = recorded(key=give)

    with pytest.raises(Rejected, match=f"the server: the function api_key=... .*{words}") as caught:
        await ask(peer)
    assert_hidden(caught.value, recorder)


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda *_: raises(), "raised ValueError, so nothing was sent"),
        (lambda *_: raises_later(), "raised ValueError, so nothing was sent"),
        (lambda *_: KEY, "must return a dict of str, not 'str'"),
        (lambda *_: {"authorization": KEY.encode()}, "must return a dict of str"),
        (lambda *_: {"authorization": f"{KEY}\n"}, "characters that no header can have"),
        (lambda *_: {f"a {KEY}": "b"}, "characters that no header can have"),
    ],
)
async def test_a_signature_that_cannot_be_had_sends_nothing(give: Any, words: str) -> None:
    peer, recorder = recorded(sign=give)

    with pytest.raises(Rejected, match=f"the server: the function auth=... .*{words}") as caught:
        await ask(peer)
    assert_hidden(caught.value, recorder)


def assert_hidden(error: BaseException, recorder: Recorder) -> None:
    assert recorder.requests == []
    assert KEY not in "".join(traceback.format_exception(error))
    assert error.__cause__ is error.__context__ is None


async def test_a_function_that_never_answers_is_named() -> None:
    peer, recorder = recorded(key=anyio.sleep_forever)

    with pytest.raises(Timeout, match=r"the function api_key=... for the server .*\(idle\)"):
        await ask(peer, idle=SHORT)
    assert recorder.requests == []


async def test_secrets_of_a_call_are_known_while_it_lasts() -> None:
    peer, _ = recorded(headers={"x-fixed": "Fixed fixed-secret"}, key=lambda: KEY)
    timer = CallTimer(Timeouts(), peer.source)
    response = await peer.send("GET", "http://test.invalid", None, {}, timer)

    assert {KEY, "fixed-secret"} <= set(peer.credentials)
    await response.aclose()
    await peer.aclose()
    del response, timer
    assert KEY not in set(peer.credentials)
    assert "fixed-secret" not in str(vars(peer.credentials))


class Tokens:
    def one(self) -> str:
        return "one"


def test_an_account_is_that_of_its_key_or_of_its_function() -> None:
    mine, other = Tokens(), Tokens()

    def identity(key: Any) -> str:
        return Credentials("the server", key=key).identity

    assert identity(KEY) == identity(KEY) != identity("other")
    assert KEY not in identity(KEY)
    assert identity(mine.one) == identity(mine.one) != identity(other.one)
    assert identity(raises) == f"{__name__}.raises"  # in any process
    # An object that takes the place of one that is gone is another account.
    assert len({identity(partial(raises)) for _ in range(20)}) == 20
    assert len({identity(lambda: "x") for _ in range(20)}) == 20


def redirect() -> Iterable[Any]:
    return [head("location: http://127.0.0.1:1/elsewhere", status="307 Temporary Redirect")]


async def test_a_redirect_is_returned_and_not_followed() -> None:
    peer = HTTPPeer("its URL", Credentials("the server", key=KEY))
    async with raw_server(redirect) as server:
        response = await peer.send("GET", server.url, None, {}, CallTimer(Timeouts(), peer.source))
        assert (response.status, response.is_success, len(server.requests)) == (307, False, 1)
        await response.aclose()
        await peer.aclose()


def endless_headers() -> Iterable[Any]:
    yield b"HTTP/1.1 200 OK\r\n"
    yield from repeat(b"x-header: " + b"x" * 10_000 + b"\r\n")


@pytest.mark.parametrize(
    ("answer", "limits", "kind"),
    [
        (endless_headers, {}, Transient),
        (lambda: [b"SSH-2.0-OpenSSH_9.6\r\n"], {}, Transient),
        (list, {}, Transient),
        (lambda: [HANG], {"total": SHORT}, Timeout),
        (lambda: [head(), b"a", HANG], {"idle": SHORT}, Timeout),
        (lambda: [head("content-encoding: gzip"), bomb()], {}, Malformed),
        (lambda: [head(), *repeat(b"x" * 500, 10)], {}, Malformed),
    ],
    ids=["endless headers", "not HTTP", "closes", "silent", "slow", "bomb", "long"],
)
async def test_a_hostile_server_is_left_with_an_error_that_names_it(
    answer: Any, limits: dict[str, float], kind: type[ModelError], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    peer = HTTPPeer("its URL", Credentials("the server", {"x-secret": f"{KEY}-header"}, key=lambda: KEY))
    async with raw_server(answer) as server:
        with anyio.fail_after(20), pytest.raises(kind, match="the server") as caught:
            await ask(peer, server.url, **limits)
        assert kind is Timeout or KEY.encode() in server.requests[0]
    assert KEY not in caplog.text + "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is caught.value.__context__ is None


async def test_a_refused_connection_is_put_in_the_words_of_the_system(free_tcp_port: int) -> None:
    peer = HTTPPeer("its URL", Credentials("the server", key=KEY))

    with pytest.raises(Transient, match=r"could not be reached \(ConnectError: Connection refused\).*is its URL right"):
        await ask(peer, f"http://127.0.0.1:{free_tcp_port}")


class ReadsRefusal(httpx2.Auth):
    """Signs in after a 401, whose body it reads."""

    requires_response_body = True

    def auth_flow(self, request: httpx2.Request) -> Any:
        response = yield request
        if response.status_code == 401:
            request.headers["authorization"] = "Basic 1"
            yield request


async def test_what_reads_a_body_in_the_users_own_client_is_bounded() -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(401, headers={"content-encoding": "gzip"}, stream=httpx2.ByteStream(bomb(80)))

    recorder = Recorder(refuse)
    client = partial(httpx2.AsyncClient, transport=recorder, auth=ReadsRefusal(), headers={"user-agent": "mine"})
    peer = HTTPPeer("its URL", Credentials("the server"), client)

    with pytest.raises(Malformed, match="the server: the answer has more than 67,108,864 bytes"):
        await ask(peer)
    assert recorder.requests[0].headers["user-agent"] == "mine"


async def test_certificates_are_loaded_once_for_all_clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda _, *files: loaded.append(files[0]))
    files = [str(tmp_path / name) for name in ("first.pem", "second.pem")]
    for file in files:  # an environment that changes is obeyed
        monkeypatch.setenv("SSL_CERT_FILE", file)
        for _ in range(2):
            await HTTPPeer("its URL", Credentials("the server")).make_client().aclose()
    assert loaded == files


async def test_a_client_that_cannot_be_made_is_named_by_its_error() -> None:
    peer = HTTPPeer("its URL", Credentials("the server"), raises)

    with pytest.raises(Rejected, match="no HTTP client can be made for the server: ValueError") as caught:
        await ask(peer)
    assert KEY not in "".join(traceback.format_exception(caught.value))
