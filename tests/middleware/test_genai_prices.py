"""Published prices: found by the model's server, without a network, and behind the user's own."""

import logging
import socket
import subprocess
import sys

import pytest

from agentrt import Agent
from agentrt.errors import ConfigError
from agentrt.middleware import UsageMiddleware, genai_prices
from agentrt.model import ChatModelBase, ChatUsage, ScriptedChatModel, chat_model
from tests.middleware.test_usage import answer

MILLION = 1_000_000


def model_of(spec: str, **settings: str) -> ChatModelBase:
    return chat_model(spec, api_key="k", **settings)


@pytest.fixture
def offline(monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("spec", "usage", "cost"),
    [
        ("openai:gpt-5-mini", ChatUsage(MILLION, MILLION), 0.25 + 2),
        ("openai:gpt-5-mini", ChatUsage(MILLION, 0, MILLION), 0.025),
        ("anthropic:claude-sonnet-4-5", ChatUsage(100_000, 0, 0, 100_000), 0.375),
        ("deepseek:deepseek-chat", ChatUsage(), 0),
    ],
)
def test_a_call_costs_what_its_provider_publishes(spec, usage, cost):
    assert genai_prices()(model_of(spec), usage) == pytest.approx(cost)


def test_a_server_that_counts_too_many_cached_tokens_has_a_cost():
    cost_of = genai_prices()
    assert cost_of(model_of("openai:gpt-5-mini"), ChatUsage(10, 1, 20, 20)) == pytest.approx(10 * 0.025e-6 + 2e-6)


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (model_of("openai:no-such-model"), "api.openai.com"),
        (model_of("openai:gpt-5-mini", base_url="http://localhost:1234/v1"), "localhost"),
        (ScriptedChatModel([], model="gpt-5-mini"), "an unknown provider (set ScriptedChatModel.provider)"),
    ],
    ids=["model", "server", "provider"],
)
def test_what_is_not_known_costs_none_and_is_logged_once(model, place, caplog):
    caplog.set_level(logging.WARNING, "agentrt")
    cost_of = genai_prices()
    assert [cost_of(model, ChatUsage(1, 1)) for _ in range(3)] == [None] * 3
    [record] = caplog.records
    assert f"genai-prices has no price for {model.model!r} of {place}" in record.getMessage()


def test_a_model_of_ones_own_names_its_provider():
    model = ScriptedChatModel([], model="gpt-5-mini")
    model.provider = "openai"
    assert genai_prices()(model, ChatUsage(MILLION, 0)) == pytest.approx(0.25)


async def test_prices_of_the_user_win_and_others_are_looked_up():
    usage = UsageMiddleware({"gpt-5-mini": (100, 100)}, cost_of=genai_prices())
    for name in ("gpt-5-mini", "gpt-5"):
        model = ScriptedChatModel([answer(MILLION, 0)], model=name)
        model.provider = "openai"
        await Agent("tester", model=model, middlewares=[usage]).reply("go")
    costs = {name: report.cost for name, report in usage.total().models.items()}
    assert costs == {"gpt-5-mini": pytest.approx(100), "gpt-5": pytest.approx(1.25)}


def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(ConfigError, match=r'pip install "agentrt\[prices\]"'):
        genai_prices()


def test_the_door_to_middlewares_loads_no_prices():
    program = "import sys, agentrt.middleware; sys.exit('genai_prices' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
