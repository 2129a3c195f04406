"""Requests to AWS and Google Cloud carry what their servers check, and no message shows it."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from agentrt.errors import ConfigError, Rejected, Transient
from agentrt.model import (
    AnthropicChatModel,
    AWSAuth,
    BedrockChatModel,
    GeminiChatModel,
    GoogleAuth,
    OpenAIChatModel,
    chat_model,
)
from tests.model import wire_bedrock
from tests.model.wire_openai import HELLO, Answer, Server, json_of, says

ACCESS, SECRET, SESSION = "AKIDEXAMPLE0123", "wJalrXUtnFEMI/K7MDENG+bPxRfiCY", "session/token+0123456789"
MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_BEARER_TOKEN_BEDROCK",
    "AWS_DEFAULT_REGION",
    "AWS_PROFILE",
    "AWS_REGION",
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in (*AWS_VARIABLES, "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_LOCATION"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    (tmp_path / "config").write_text("[profile dev]\nregion = eu-south-2\n")
    (tmp_path / "credentials").write_text(f"[dev]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n")


def answer() -> Answer:
    return wire_bedrock.stream_of(wire_bedrock.events_frames(*wire_bedrock.message(wire_bedrock.text(0, "A"))))


async def request_of(model: Any, server: Server) -> httpx2.Request:
    result = await model(HELLO)
    if hasattr(result, "__aiter__"):
        async for _ in result:
            pass
    await model.aclose()
    return server.requests[-1]


def bedrock(*answers: Any, **options: Any) -> tuple[BedrockChatModel, Server]:
    server = Server(*(answers or (answer(),)))
    return BedrockChatModel(MODEL, http_client=lambda: httpx2.AsyncClient(transport=server), **options), server


def check_signature(request: httpx2.Request, region: str, session: str | None = None) -> None:
    """Sign what has arrived again, as AWS does, and compare."""
    target = request.url.raw_path.decode()
    received = AWSRequest(request.method, f"https://{request.headers['host']}{target}", data=request.content)
    received.context["timestamp"] = request.headers["x-amz-date"]
    received.headers["X-Amz-Date"] = request.headers["x-amz-date"]
    if session:
        received.headers["X-Amz-Security-Token"] = request.headers["x-amz-security-token"]
    signer = SigV4Auth(Credentials(ACCESS, SECRET, session), "bedrock", region)
    signature = signer.signature(signer.string_to_sign(received, signer.canonical_request(received)), received)
    sent = request.headers["authorization"]
    assert f"Credential={ACCESS}/{request.headers['x-amz-date'][:8]}/{region}/bedrock/aws4_request" in sent
    assert sent.endswith(f"Signature={signature}")


async def test_the_environments_credentials_sign_what_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    model, server = bedrock()
    request = await request_of(model, server)

    assert request.url.host == "bedrock-runtime.ap-south-1.amazonaws.com"
    assert "%3A" in request.url.raw_path.decode(), "the path of the request is that of the signature"
    assert request.headers["x-amz-security-token"] == SESSION
    check_signature(request, "ap-south-1", SESSION)


async def test_a_profile_gives_credentials_and_region() -> None:
    model, server = bedrock(auth=AWSAuth(profile="dev"))
    check_signature(await request_of(model, server), "eu-south-2")


async def test_a_function_is_asked_for_credentials_before_each_request() -> None:
    asked: list[int] = []

    async def credentials() -> tuple[str, str, str]:
        await anyio.lowlevel.checkpoint()
        asked.append(len(asked))
        return ACCESS, SECRET, f"{SESSION}{len(asked)}"

    model, server = bedrock(auth=AWSAuth(credentials=credentials), region="eu-west-1")
    for number in (1, 2):
        request = await request_of(model, server)
        check_signature(request, "eu-west-1", f"{SESSION}{number}")
    assert len(asked) == 2


async def test_no_message_shows_a_credential_that_a_server_repeats(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    auth = AWSAuth(credentials=lambda: (ACCESS, SECRET, SESSION), region="eu-west-1")

    def repeat(request: httpx2.Request) -> Answer:
        return json_of({"message": f"{request.headers['authorization']} {SESSION} is wrong."}, 403)

    model, _ = bedrock(repeat, auth=auth)
    with pytest.raises(Rejected) as caught:
        await model(HELLO)
    await model.aclose()
    shown = f"{caught.value} {caught.value!r} {auth!r} {model!r} {caught.value.__context__!r} {caplog.text}"
    assert not re.search(rf"Signature=\w|{re.escape(SECRET)}|{re.escape(SESSION)}", shown)


@pytest.mark.slow
async def test_a_role_is_assumed_once_and_no_log_shows_its_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, free_tcp_port: int
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{free_tcp_port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    role = "\n[profile role]\nrole_arn = arn:aws:iam::123456789012:role/me\nsource_profile = dev\nregion = eu-west-1\n"
    (tmp_path / "config").write_text((tmp_path / "config").read_text() + role)
    keys = f"<AccessKeyId>{ACCESS}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey>"
    session = f"<SessionToken>{SESSION}</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>"
    user = "<AssumedRoleUser><Arn>a</Arn><AssumedRoleId>b</AssumedRoleId></AssumedRoleUser>"
    result = f"<AssumeRoleResult>{user}<Credentials>{keys}{session}</Credentials></AssumeRoleResult>"
    answers = {
        200: f"<AssumeRoleResponse>{result}</AssumeRoleResponse>",
        403: "<ErrorResponse><Error><Code>ExpiredToken</Code></Error></ErrorResponse>",
    }
    asked: list[int] = []

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            asked.append(403 if asked else 200)
            body = answers[asked[-1]]
            head = f"HTTP/1.1 {asked[-1]} OK\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            await stream.send(f"{head}{body}".encode())

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=free_tcp_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        model, server = bedrock(auth=AWSAuth(profile="role"))
        async with anyio.create_task_group() as calls:
            for _ in range(4):
                calls.start_soon(request_of, model, server)
        again, _ = bedrock(auth=AWSAuth(profile="role"))
        with pytest.raises(Rejected, match=r"cannot be used \(ExpiredToken\): log in again"):
            await again(HELLO)
        await again.aclose()
        tasks.cancel_scope.cancel()
    assert asked == [200, 403]
    assert len(server.requests) == 4
    check_signature(server.requests[-1], "eu-west-1", SESSION)
    assert not re.search(f"{re.escape(SECRET)}|{re.escape(SESSION)}", caplog.text)
    with pytest.raises(Transient, match="could not be reached"):
        await AWSAuth(profile="role")("POST", "https://a.example", b"")


async def test_missing_credentials_are_named_with_the_remedy() -> None:
    model, server = bedrock(region="eu-west-1")
    with pytest.raises(Rejected, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as caught:
        await model(HELLO)
    await model.aclose()
    assert str(caught.value).startswith(f"model '{MODEL}'")
    assert not server.requests


@pytest.mark.parametrize("keys", [None, (), ("a",), (ACCESS, ""), "abc", (ACCESS, 7)])
async def test_a_function_that_returns_other_things_sends_nothing(keys: Any) -> None:
    model, server = bedrock(auth=AWSAuth(credentials=lambda: keys), region="eu-west-1")
    with pytest.raises(Rejected, match="must return the access key, the secret key"):
        await model(HELLO)
    await model.aclose()
    assert not server.requests


def test_a_wrong_option_of_a_cloud_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'prod'.*write one of dev"):
        AWSAuth(profile="prod")
    with pytest.raises(ConfigError, match="must be a function") as caught:
        AWSAuth(credentials=(ACCESS, SECRET))  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)
    (tmp_path / "config").write_text("[profile")
    with pytest.raises(ConfigError, match="config', a file of AWS: correct it"):
        AWSAuth()
    with pytest.raises(ConfigError, match="both file= and token="):
        GoogleAuth(file="a.json", token=lambda: "t")


@pytest.mark.parametrize(("package", "extra"), [("botocore", "bedrock"), ("google.auth", "vertex")])
def test_a_missing_package_names_its_extra(package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "mine")
    spec = f"bedrock:{MODEL}" if extra == "bedrock" else "vertex:gemini-3-flash"
    with pytest.raises(ConfigError, match=rf'pip install "agentrt\[{extra}\]"'):
        chat_model(spec)


def test_equal_settings_are_one_account_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def account(**options: Any) -> str | None:
        return bedrock(auth=AWSAuth(**options), region="eu-west-1")[0].account

    assert account() == account()
    assert account() != account(profile="dev")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    other = account()
    assert ACCESS not in str(other)
    assert account(credentials=lambda: (ACCESS, SECRET)) != account(credentials=lambda: (ACCESS, SECRET))


GEMINI_ANSWER = {"candidates": [{"content": {"parts": [{"text": "A"}]}, "finishReason": "STOP"}]}
CLAUDE_ANSWER = {"id": "m", "content": [{"type": "text", "text": "A"}], "stop_reason": "end_turn"}


async def test_gemini_on_vertex_asks_for_a_token_before_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "mine")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "europe-west1")
    tokens = iter(["ya29.first", "ya29.second"])
    server = Server(json_of(GEMINI_ANSWER))
    options: dict[str, Any] = {"http_client": lambda: httpx2.AsyncClient(transport=server), "stream": False}
    model = chat_model("vertex:gemini-3-flash", auth=GoogleAuth(token=lambda: next(tokens)), **options)
    for token in ("ya29.first", "ya29.second"):
        request = await request_of(model, server)
        assert request.headers["authorization"] == f"Bearer {token}"
        assert "x-goog-api-key" not in request.headers
    assert str(request.url) == (
        "https://europe-west1-aiplatform.googleapis.com/v1/projects/mine/locations/europe-west1/publishers/google"
        "/models/gemini-3-flash:generateContent"
    )


@pytest.mark.parametrize("stream", [True, False])
async def test_claude_on_vertex_is_sent_what_anthropics_client_sends(stream: bool) -> None:
    server = Server(json_of(CLAUDE_ANSWER))
    url = "https://aiplatform.googleapis.com/v1/projects/mine/locations/global/publishers/anthropic"
    model = AnthropicChatModel(
        "claude-sonnet-4-5@20250929",
        base_url=url,
        auth=GoogleAuth(token=lambda: "ya29.token"),
        stream=stream,
        max_tokens=9,
        cache="off",
        http_client=lambda: httpx2.AsyncClient(transport=server),
    )
    ours = await request_of(model, server)
    sent: list[httpx2.Request] = []

    def receive(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200, json=CLAUDE_ANSWER)

    from anthropic import AnthropicVertex

    client = AnthropicVertex(
        region="global",
        project_id="mine",
        access_token="ya29.token",
        http_client=httpx2.Client(transport=httpx2.MockTransport(receive)),
    )
    messages: Any = json.loads(ours.content)["messages"]
    client.messages.create(model="claude-sonnet-4-5@20250929", max_tokens=9, messages=messages, stream=stream)
    (theirs,) = sent

    assert str(ours.url) == str(theirs.url)
    # The version alone differs: Anthropic's pages demand this one, and its client 2.14 sends "2026-10-21".
    version = {"anthropic_version": "vertex-2023-10-16"}
    assert json.loads(ours.content) == {"stream": stream, **json.loads(theirs.content), **version}
    assert ours.headers["authorization"] == theirs.headers["authorization"]


@pytest.mark.slow  # Google's library waits between its attempts
async def test_a_service_account_gets_a_token_from_googles_server(tmp_path: Path, free_tcp_port: int) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    file = tmp_path / "account.json"
    account = {
        "type": "service_account",
        "client_email": "me@mine.iam.gserviceaccount.com",
        "private_key": pem,
        "private_key_id": "1",
        "token_uri": f"http://127.0.0.1:{free_tcp_port}/token",
    }
    file.write_text(json.dumps(account))
    auth = GoogleAuth(file=file)
    with pytest.raises(Transient, match="could not be reached"):
        await auth("POST", "https://a.example", b"")

    asked: list[bytes] = []

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            asked.append(await stream.receive())
            status = 503 if is_down else 200
            body = json.dumps({"access_token": "ya29.token", "expires_in": 3600}).encode()
            head = f"HTTP/1.1 {status} OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            await stream.send(head.encode() + body)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=free_tcp_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        is_down = True
        with pytest.raises(Transient, match="gave none"):
            await auth("POST", "https://a.example", b"")
        is_down = False
        asked.clear()
        for _ in range(2):
            assert (await auth("POST", "https://a.example", b""))["authorization"] == "Bearer ya29.token"
        tasks.cancel_scope.cancel()
    assert len(asked) == 1, "until it expires"


async def test_a_broken_file_of_google_is_named_without_its_content(tmp_path: Path) -> None:
    file = tmp_path / "account.json"
    file.write_text('{"type": "service_account", "private_key": "s3cret-0123456789"}')
    server = Server(json_of(GEMINI_ANSWER))
    model = GeminiChatModel("m", auth=GoogleAuth(file=file), http_client=lambda: httpx2.AsyncClient(transport=server))
    with pytest.raises(Rejected, match="no credentials of Google can be used") as caught:
        await model(HELLO)
    await model.aclose()
    assert "s3cret" not in f"{caught.value!r} {caught.value.__context__!r} {caught.value.__cause__!r}"
    assert not server.requests


async def test_a_token_of_entra_is_asked_for_again_when_it_expires() -> None:
    now = expires = issued = 0

    async def token() -> str:  # as DefaultAzureCredential: it keeps a token until it expires
        nonlocal issued, expires
        if now >= expires:
            issued, expires = issued + 1, now + 3600
        return f"entra-{issued}"

    server = Server(says("A"))
    model = OpenAIChatModel(
        "my-deployment",
        base_url="https://me.openai.azure.com/openai/v1",
        api_key=token,
        http_client=lambda: httpx2.AsyncClient(transport=server),
    )
    seen = []
    for seconds in (0, 10, 3600):
        now = seconds
        seen.append((await request_of(model, server)).headers["authorization"])
    assert seen == ["Bearer entra-1", "Bearer entra-1", "Bearer entra-2"]
