"""The options that all models behind an HTTP API share."""

from functools import partial
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from agentrt import __version__
from agentrt.errors import ConfigError, Rejected
from agentrt.model import (
    AnthropicChatModel,
    ConnectionOptions,
    ModelOptions,
    OpenAIChatModel,
    RemoteChatModel,
    Timeouts,
)
from agentrt.model.remote.settings import option_names
from tests.model.wire_openai import HELLO, KEY, URL, Server, answer_of, completion, error, model_of

MODELS: list[type[Any]] = [OpenAIChatModel, AnthropicChatModel]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("timeout", "timeouts"),
        ("temprature", "temperature"),
        ("extra_header", "extra_headers"),
        ("base_uri", "base_url"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest(model: type[Any], wrong: str, near: str) -> None:
    with pytest.raises(TypeError) as caught:
        model("m", api_key=KEY, **{wrong: None})
    assert str(caught.value) == f"{model.__name__}() has no parameter {wrong!r}: did you mean {near!r}?"


@pytest.mark.parametrize("model", MODELS)
def test_an_option_like_no_other_is_answered_with_all_of_them(model: type[Any]) -> None:
    with pytest.raises(TypeError, match=r"has no parameter 'colour': it takes .*temperature.*http_client$"):
        model("m", api_key=KEY, colour="red")


def test_a_wrong_option_is_named_before_a_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(TypeError, match="apikey"):
        OpenAIChatModel("m", apikey=KEY)  # type: ignore[call-arg]


@pytest.mark.parametrize("model", MODELS)
def test_the_options_of_a_model_end_with_those_of_its_connection(model: type[Any]) -> None:
    names = option_names(model)
    common = [name for name in ModelOptions.__annotations__ if name not in ConnectionOptions.__annotations__]
    assert names[-len(ModelOptions.__annotations__) :] == [*common, *ConnectionOptions.__annotations__]
    assert len(names) == len(set(names))


def test_the_base_class_takes_the_common_options_and_no_other() -> None:
    assert set(option_names(RemoteChatModel)) == set(ModelOptions.__annotations__)


def test_a_model_of_the_users_own_has_its_options_found_as_well() -> None:
    class Own(OpenAIChatModel):
        def __init__(self, model: str, *, flavour: str = "", **options: Any) -> None:
            super().__init__(model, **options)

    assert Own("m", api_key=KEY, base_url=URL, flavour="mild").base_url == URL
    for wrong, near in (("flavor", "flavour"), ("temprature", "temperature"), ("api_kye", "api_key")):
        with pytest.raises(TypeError, match=rf"^Own\(\) has no parameter '{wrong}': did you mean '{near}'"):
            Own("m", **{wrong: KEY})


def test_the_environment_gives_the_url_of_each_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, model in (("OPENAI_BASE_URL", OpenAIChatModel), ("ANTHROPIC_BASE_URL", AnthropicChatModel)):
        monkeypatch.setenv(variable, "http://from-environment.invalid/v1")
        made: RemoteChatModel = model("m", api_key=KEY)
        assert made.base_url == "http://from-environment.invalid/v1"
        assert model("m", api_key=KEY, base_url=URL).base_url == URL


@pytest.mark.parametrize("size", [0, -1, None, "1 MB", float("nan")])
def test_a_wrong_max_bytes_is_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="max_bytes="):
        OpenAIChatModel("gpt-test", api_key=KEY, max_bytes=size)


@pytest.mark.parametrize("extra", ["user:canary@", ":canary@", "canary@", "?token=canary", "#canary"])
def test_a_url_with_a_secret_is_refused_without_showing_it(extra: str) -> None:
    user, rest = (extra, "") if "@" in extra else ("", extra)
    with pytest.raises(ConfigError, match=r"'https://host.invalid:8443/v1'.*api_key=.*extra_headers=") as caught:
        OpenAIChatModel("gpt-test", api_key=KEY, base_url=f"https://{user}host.invalid:8443/v1{rest}")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("given", [f" {KEY}\n", SecretStr(KEY)])
async def test_a_key_is_a_str_or_a_secret_and_is_stripped(given: Any) -> None:
    model, server = model_of(completion(content="ok"), api_key=given, stream=False)
    await answer_of(model)

    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_key_from_the_environment_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", KEY)
    model, server = model_of(completion(content="ok"), api_key=None, key_variable="OTHER_KEY", stream=False)
    await answer_of(model)

    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "url", ["localhost:8000/v1", "host.invalid", "http://", "http://[::1", "ftp://host/v1", "http://host:99999/v1"]
)
def test_a_url_that_leads_nowhere_is_refused_with_the_remedy(url: str) -> None:
    with pytest.raises(ConfigError, match="write it in full, as in 'http://localhost:8000/v1'") as caught:
        OpenAIChatModel("gpt-test", api_key=KEY, base_url=url)
    assert url in str(caught.value)


@pytest.mark.parametrize("url", [" http://host.invalid/v1\n", "  "])
def test_space_around_a_url_is_stripped(url: str) -> None:
    model = OpenAIChatModel("gpt-test", api_key=KEY, base_url=url)

    assert model.base_url == (url.strip() or "https://api.openai.com/v1")


@pytest.mark.parametrize("wrong", [{"connect": 0}, {"idle": -1}, {"total": None}, {"total": float("nan")}])
def test_a_wrong_time_limit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"Timeouts.{next(iter(wrong))}="):
        Timeouts(**wrong)


A_MAPPING = r"OpenAIChatModel\({}=...\) must be a dict, as in"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[({"api_key": key}, "characters") for key in ("canary key", "canary\x00key", "schlüssel-canary")],
        *[({"api_key": key}, "a SecretStr or a function that returns a str, not of type") for key in (b"canary", 5)],
        ({"base_url": "user:canary@host.invalid/v1?token=canary"}, "is 'host.invalid/v1', which is not a whole URL"),
        *[({"extra_headers": it}, A_MAPPING.format("extra_headers")) for it in ("canary", [("a", "canary")], 5)],
        *[({"extra_body": it}, A_MAPPING.format("extra_body")) for it in ("canary", [("a", "canary")], 5)],
        *[
            ({"timeouts": limits}, r"OpenAIChatModel\(timeouts=...\) must be a Timeouts, as in")
            for limits in (30, 0, False, {"total": 30}, httpx2.Timeout(5))
        ],
        ({"model": ""}, "name of a model"),
    ],
)
def test_a_wrong_setting_is_refused_without_what_is_secret(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        OpenAIChatModel(**{"model": "gpt-test", "api_key": KEY, **options})
    assert "canary" not in str(caught.value)


async def test_a_function_gives_the_key_of_each_request() -> None:
    keys = iter(["first-canary-key", "second-canary-key"])
    model, server = model_of(error(401, "no such key: second-canary-key"), api_key=lambda: next(keys), stream=False)
    for _ in range(2):
        with pytest.raises(Rejected) as caught:
            await answer_of(model)

    assert "no such key: ***" in str(caught.value)  # which was not known when the model was made
    assert [each.headers["authorization"] for each in server.requests] == [
        "Bearer first-canary-key",
        "Bearer second-canary-key",
    ]
    assert model.account.startswith(f"{URL}#{__name__}.test_a_function")


async def test_a_signature_needs_no_key_and_its_echo_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async def sign(method: str, url: str, body: bytes) -> dict[str, str]:
        return {"authorization": f"HMAC canary-of-{method}-{len(body)}"}

    model, server = model_of(lambda request: error(403, request.headers["authorization"]), api_key=None, auth=sign)
    with pytest.raises(Rejected, match="403") as caught:
        await answer_of(model)
    [request] = server.requests
    assert request.headers["authorization"] == f"HMAC canary-of-POST-{len(request.content)}"
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("options", [{"api_key": KEY, "auth": lambda *_: {}}, {"auth": KEY}, {"auth": {"a": KEY}}])
def test_a_key_beside_a_signature_and_a_wrong_one_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"auth=") as caught:
        OpenAIChatModel("gpt-test", **options)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("extra", [{}, {"openai-organization": "given", "X-A": "given"}])
async def test_the_environment_adds_the_headers_of_openai(
    extra: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-a: one: two\nno header\n X-B :three")
    model, server = model_of(completion(content="ok"), stream=False, extra_headers=extra)
    monkeypatch.delenv("OPENAI_ORG_ID")  # read when the model is made
    await answer_of(model)

    headers = server.requests[0].headers
    names = ("openai-organization", "openai-project", "x-a", "x-b")
    first, third = ("given", "given") if extra else ("org", "one: two")
    assert [headers.get_list(name) for name in names] == [[first], ["project"], [third], ["three"]]


async def test_the_environment_adds_the_headers_of_anthropic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x-gateway: canary-of-a-gateway")
    server = Server(error(400, "refused: canary-of-a-gateway"))
    client = partial(httpx2.AsyncClient, transport=server)
    model = AnthropicChatModel("claude-test", api_key=KEY, base_url=URL, http_client=client)
    with pytest.raises(Rejected) as caught:
        await model(HELLO)
    await model.aclose()

    headers = server.requests[0].headers
    assert (headers["x-gateway"], headers["x-api-key"]) == ("canary-of-a-gateway", KEY)
    assert (headers["anthropic-version"], headers["user-agent"]) == ("2023-06-01", f"agentrt/{__version__}")
    assert "authorization" not in headers
    assert "canary" not in str(caught.value)
