"""What holds for each API: connections, refusals, limits, keys."""

from typing import Any

import anyio
import pytest

from agentrt.errors import ConfigError, RateLimited, Rejected
from agentrt.model import chat_model
from agentrt.model.presets import PRESETS
from tests.model.apis.all_apis import NAMES_OF_APIS, new_api
from tests.model.wire_openai import HANG, HELLO, KEY, Answer, error, json_of


@pytest.mark.parametrize("name", NAMES_OF_APIS)
async def test_cancelling_in_mid_stream_closes_the_connection(name: str) -> None:
    api = new_api(name)
    body = api.body()
    api.server._answers = [Answer([body[: len(body) // 2], HANG], headers=api.headers)]

    async def read() -> None:
        async for _ in await api.model(HELLO):
            pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await api.server.hanging.wait()
        assert api.server.open
        tasks.cancel_scope.cancel()
    assert not api.server.open
    await api.model.aclose()


@pytest.mark.parametrize("name", NAMES_OF_APIS)
async def test_a_tool_that_the_account_may_not_use_says_so(name: str) -> None:
    words = f"Web search is not enabled for your organization. Key: {KEY}"
    for status in (400, 403):
        api = new_api(name, error(status, words, type="permission_error"))
        with pytest.raises(Rejected, match="Web search is not enabled for your organization") as caught:
            await api.model(HELLO)
        await api.model.aclose()
        assert caught.value.status_code == status
        assert KEY not in str(caught.value)


RESETS: list[tuple[str, dict[str, str], str, float]] = [
    ("chat", {"retry-after-ms": "1500", "retry-after": "2"}, "no", 1.5),
    ("chat", {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, "no", 360),
    ("chat", {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, "no", 0.02),
    (
        "chat",
        {"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "6m0s"},
        "Try again in 1h2m3.5s.",
        3723.5,
    ),
    ("responses", {"retry-after": "2"}, "no", 2),
    ("responses", {}, "Rate limit reached for gpt-5. Please try again in 11.054s. Visit ...", 11.054),
    ("anthropic", {"retry-after": "30", "anthropic-ratelimit-tokens-remaining": "0"}, "no", 30),
    (
        "anthropic",
        {"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "2020-01-01T00:00:00Z"},
        "no",
        0,
    ),
]


@pytest.mark.parametrize(("name", "headers", "words", "seconds"), RESETS)
async def test_a_limit_says_when_it_is_over(name: str, headers: dict[str, str], words: str, seconds: float) -> None:
    api = new_api(name, error(429, words, type="rate_limit_error", **headers))
    with pytest.raises(RateLimited) as caught:
        await api.model(HELLO)
    await api.model.aclose()
    assert caught.value.retry_after == seconds


async def test_a_limit_in_mid_stream_says_when_it_is_over() -> None:
    failure = {"code": "rate_limit_exceeded", "message": "Please try again in 1.5s."}
    api = new_api("responses")
    ended = {"type": "response.failed", "response": {"id": "r", "status": "failed", "error": failure}}
    api.server._answers = [Answer([api.body([*api.sent[:5], ended])])]
    with pytest.raises(RateLimited) as caught:
        async for _ in await api.model(HELLO):
            pass
    await api.model.aclose()
    assert caught.value.retry_after == 1.5


async def test_a_wrong_key_of_google_is_named_as_one() -> None:
    failure = {"code": 400, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT"}
    api = new_api("gemini", json_of([{"error": failure}], 400))  # a list, as Google has it for a stream
    with pytest.raises(Rejected, match=r"API key not valid.*check the key: set GEMINI_API_KEY"):
        await api.model(HELLO)
    await api.model.aclose()


@pytest.mark.parametrize(
    "provider",  # with botocore, Bedrock takes the credentials of AWS; a server of Ollama needs no key
    [name for name, preset in PRESETS.items() if preset.key_variable and name not in ("bedrock", "ollama")],
)
def test_a_missing_key_names_its_variable(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preset: Any = PRESETS[provider]
    for variable in (preset.key_variable, "GOOGLE_API_KEY", None if preset.is_rented else preset.url_variable):
        monkeypatch.delenv(variable or "", raising=False)
    if preset.is_rented:
        monkeypatch.setenv(preset.url_variable, "https://a.example")
    with pytest.raises(ConfigError, match=f"set {preset.key_variable} or give api_key="):
        chat_model(f"{provider}:{preset.example}")
