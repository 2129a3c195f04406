"""The options that all models behind an HTTP API share."""

from typing import Any

import pytest

from agentrt.model import AnthropicChatModel, ConnectionOptions, OpenAIChatModel, RemoteChatModel
from agentrt.model.remote.settings import option_names
from tests.model.wire_openai import KEY, URL

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
    assert str(caught.value) == f"{model.__name__}() has no option {wrong!r}: did you mean {near!r}?"


@pytest.mark.parametrize("model", MODELS)
def test_an_option_like_no_other_is_answered_with_all_of_them(model: type[Any]) -> None:
    with pytest.raises(TypeError, match=r"has no option 'colour': it takes .*temperature.*http_client$"):
        model("m", api_key=KEY, colour="red")


def test_a_wrong_option_is_named_before_a_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(TypeError, match="apikey"):
        OpenAIChatModel("m", apikey=KEY)  # type: ignore[call-arg]


@pytest.mark.parametrize("model", MODELS)
def test_the_options_of_a_model_end_with_those_of_its_connection(model: type[Any]) -> None:
    names = option_names(model)
    assert names[:2] == ["stream", "context_size"]
    assert names[-len(ConnectionOptions.__annotations__) :] == list(ConnectionOptions.__annotations__)
    assert len(names) == len(set(names))


def test_a_model_of_the_users_own_has_its_options_found_as_well() -> None:
    class Own(OpenAIChatModel):
        def __init__(self, model: str, *, flavour: str = "", **options: Any) -> None:
            super().__init__(model, **options)

    assert Own("m", api_key=KEY, base_url=URL, flavour="mild").base_url == URL
    for wrong, near in (("flavor", "flavour"), ("temprature", "temperature"), ("api_kye", "api_key")):
        with pytest.raises(TypeError, match=rf"^Own\(\) has no option '{wrong}': did you mean '{near}'"):
            Own("m", **{wrong: KEY})


def test_the_environment_gives_the_url_of_each_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, model in (("OPENAI_BASE_URL", OpenAIChatModel), ("ANTHROPIC_BASE_URL", AnthropicChatModel)):
        monkeypatch.setenv(variable, "http://from-environment.invalid/v1")
        made: RemoteChatModel = model("m", api_key=KEY)
        assert made.base_url == "http://from-environment.invalid/v1"
        assert model("m", api_key=KEY, base_url=URL).base_url == URL
