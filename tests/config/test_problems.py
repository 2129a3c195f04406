"""All that is wrong in a configuration is said at once, each with its place and remedy, and no secret is shown."""

import json
import traceback
from typing import Any

import pytest

from agentrt.config import AgentConfig
from agentrt.errors import ConfigError

SECRET = "s3cr3t-of-the-shop"
AGENT = {"name": "a", "model": "rules"}
TALKATIVE = "tests.config.things:Talkative"


def problems_of(data: dict[str, Any]) -> dict[str, ConfigError]:
    """Return the problems by their paths."""
    with pytest.raises(ConfigError) as caught:
        AgentConfig(data, "agentrt.toml").build()
    problems = caught.value.problems
    assert str(caught.value) == "\n".join(map(str, problems))
    assert {problem.file for problem in (caught.value, *problems)} == {"agentrt.toml"}
    return {problem.path: problem for problem in problems}


def problem_of(**layer: Any) -> ConfigError:
    [problem] = problems_of({"agent": AGENT, "layers": [layer]}).values()
    return problem


def test_all_problems_of_a_file_are_said_at_once(monkeypatch):
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    problems = problems_of(
        {
            "agent": {"nam": "a", "model": "nobody:x", "tools": ["tests.config.things:refnd"], "react_config": 5},
            "layer": [],
            "layers": [
                {"use": "RetryMiddlewar"},
                {"use": "RateLimitMiddleware", "options": {"request_per_minute": 6, "min_interval": "soon"}},
                {"use": "RedactionMiddleware", "options": {"hash_key": {"env": "NO_SUCH_VARIABLE"}}, "limt": {}},
                {"use": "BudgetMiddleware", "options": {"reply": {"token": 5}}, "limit": {"on_failure": "pass"}},
                {"use": "os:getcwd", "when": 5, "bundle": ""},
                {"use": "DynamicContextMiddleware"},
                3,
            ],
        }
    )
    assert list(problems) == [
        "layer",
        "agent.tools[0]",
        "agent.nam",
        "agent.model",
        "agent.react_config",
        "agent",
        "layers[0].use",
        "layers[1].options.request_per_minute",
        "layers[1].options.min_interval",
        "layers[2].limt",
        "layers[2].options.hash_key",
        "layers[3].options.reply",
        "layers[3].limit.on_failure",
        "layers[3].limit",
        "layers[4].use",
        "layers[4].when",
        "layers[4].bundle",
        "layers[5].options",
        "layers[6]",
    ]
    rate = problems["layers[1].options.request_per_minute"]
    assert str(rate) == (
        "agentrt.toml: layers[1].options.request_per_minute: RateLimitMiddleware has no 'request_per_minute': "
        "did you mean 'requests_per_minute'?"
    )
    assert (rate.value, rate.remedy) == ("6", "did you mean 'requests_per_minute'?")
    assert "must be of type float, not 'soon'" in str(problems["layers[1].options.min_interval"])
    assert "did you mean 'RetryMiddleware'" in problems["layers[0].use"].remedy
    assert "(did you mean 'refund'?)" in str(problems["agent.tools[0]"])
    assert problems["layers[2].options.hash_key"].remedy == "set NO_SUCH_VARIABLE"
    assert "where 'token' is unknown" in str(problems["layers[3].options.reply"])
    assert "DynamicContextMiddleware needs 'provider'" in str(problems["layers[5].options"])


def test_a_wrong_order_is_said_beside_other_problems():
    problems = problems_of(
        {
            "agent": {"name": "a", "model": "nobody:x"},
            "layers": [{"use": "RateLimitMiddleware"}, {"use": "TracingMiddleware"}],
        }
    )
    assert list(problems) == ["agent.model", "layers"]
    assert "write: middlewares=[TracingMiddleware, RateLimitMiddleware]" in str(problems["layers"])


@pytest.mark.parametrize(
    ("data", "path"),
    [({}, "agent"), ({"agent": {"name": "a"}}, "agent"), ({"agent": AGENT, "layers": {}}, "layers")],
)
def test_what_is_missing_or_of_a_wrong_kind_is_named(data, path):
    assert list(problems_of(data)) == [path]


def test_a_limit_on_a_hook_that_the_layer_lacks_is_refused():
    limit = {"seconds": 1, "hooks": ["on_acting"]}
    assert problem_of(use=TALKATIVE, limit=limit).path == "layers"


@pytest.mark.parametrize("written", [SECRET, [SECRET], {"authorization": SECRET}])
def test_a_secret_must_be_a_variable_and_is_not_shown(written):
    problem = problem_of(use=TALKATIVE, options={"token": written})
    assert 'write { env = "NAME" }' in str(problem)
    assert SECRET not in f"{problem}{problem.value}"


def test_a_secret_under_an_unknown_name_is_not_shown_either():
    data = {"agent": AGENT, "layers": [{"use": "RetryMiddleware", "options": {"api_key": SECRET}}]}
    with pytest.raises(ConfigError) as caught:
        AgentConfig.from_dict(data).build()
    assert SECRET not in "".join(f"{problem}{problem.value}" for problem in caught.value.problems)


@pytest.mark.parametrize("url", [f"https://ann:{SECRET}@shop.example", "sk-0123456789abcdef0123"])
def test_a_text_that_looks_like_a_secret_is_refused_by_any_name(url):
    problem = problem_of(use=TALKATIVE, options={"address": url})
    assert "is a secret" in str(problem)
    assert url not in f"{problem}{problem.value}"


def test_a_prompt_may_speak_of_passwords_and_a_limit_of_tokens():
    data = {
        "agent": {**AGENT, "system_prompt": "Never ask for it. The field password: is theirs."},
        "layers": [{"use": "RateLimitMiddleware", "options": {"tokens_per_minute": 100}}],
    }
    assert AgentConfig.from_dict(data).build().system_prompt.startswith("Never")


def test_no_error_holds_what_a_variable_stands_for(monkeypatch):
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    options = {"token": {"env": "SHOP_TOKEN"}, "level": 2}
    with pytest.raises(ConfigError) as caught:
        AgentConfig.from_dict({"agent": AGENT, "layers": [{"use": TALKATIVE, "options": options}]}).build()
    assert "ValueError: level 2 of *** is too high" in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_variable_of_a_wrong_type_is_named_and_not_shown(monkeypatch):
    monkeypatch.setenv("SHOP_RATE", SECRET)
    options = {"requests_per_minute": {"env": "SHOP_RATE"}}
    problem = problem_of(use="RateLimitMiddleware", options=options)
    assert "must be of type float, not {'env': 'SHOP_RATE'}" in str(problem)


def test_neither_chains_nor_data_nor_reprs_show_a_secret(monkeypatch):
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    layer = {"use": TALKATIVE, "options": {"token": {"env": "SHOP_TOKEN"}}}
    agent = AgentConfig.from_dict({"agent": AGENT, "layers": [layer]}).build()
    config = agent.config
    shown = [agent.explain(), agent.explain("json"), agent.explain("mermaid"), config.to_toml(), repr(agent)]
    assert agent.middlewares[0].token == SECRET
    assert SECRET not in "".join([*shown, json.dumps(config.to_dict()), repr(config)])


@pytest.mark.parametrize("written", ["60", True])
def test_a_value_of_another_type_is_not_converted(written):
    problem = problem_of(use="RateLimitMiddleware", options={"requests_per_minute": written})
    assert f"must be of type float, not {written!r}" in str(problem)


def test_a_url_may_name_a_user():
    layer = {"use": TALKATIVE, "options": {"address": "ssh://git@shop.example"}}
    [talkative] = AgentConfig.from_dict({"agent": AGENT, "layers": [layer]}).build().middlewares
    assert talkative.headers == {"address": "ssh://git@shop.example"}


def test_an_option_may_have_any_name():
    options = {"path": "p", "make": "m"}
    layer = {"use": TALKATIVE, "options": options}
    [talkative] = AgentConfig.from_dict({"agent": AGENT, "layers": [layer]}).build().middlewares
    assert talkative.headers == options


@pytest.mark.parametrize("value", [None, object()])
def test_only_plain_data_may_stand_in_a_configuration(value):
    problem = problem_of(use=TALKATIVE, options={"address": value})
    assert "must be plain data" in str(problem)
    with pytest.raises(ConfigError, match="TOML has no form for"):
        AgentConfig.from_dict({"address": value}).to_toml()


def test_the_words_behind_the_name_of_a_secret_are_shown():
    problem = problem_of(use="TimingMiddleware", options={"api_token": 5})
    assert "api_token: TimingMiddleware has no 'api_token'" in str(problem)


def test_a_few_anchors_that_stand_for_many_values_are_refused():
    shared: list[object] = ["x"] * 10
    for _ in range(20):  # as YAML reads `&b [*a, *a]`
        shared = [shared, shared]
    with pytest.raises(ConfigError, match="holds more than 100,000 values"):
        AgentConfig.from_dict({"agent": {"name": "a", "model": "rules"}, "x": shared})


def test_data_that_hold_themselves_are_refused():
    options: dict[str, Any] = {}
    options["headers"] = options  # as an anchor of YAML may make them
    with pytest.raises(ConfigError, match=r"agentrt\.yaml holds tables or lists that are nested too deeply"):
        AgentConfig({"agent": AGENT, "layers": [{"use": TALKATIVE, "options": options}]}, "agentrt.yaml")


@pytest.mark.parametrize("options", [{True: "x"}, {"level": 1, 3: "x"}], ids=["a word of YAML", "a number"])
@pytest.mark.parametrize("path", ["layers[0].options", "layers[0].options.rest"])
def test_a_key_that_is_no_text_is_refused_with_its_place(options, path):
    problem = problem_of(use=TALKATIVE, options={"rest": options} if path.endswith("rest") else options)
    assert (problem.path, problem.remedy) == (path, "write it in quotes")


@pytest.mark.parametrize(
    ("use", "options", "place"),
    [
        ("RedactionMiddleware", {"action": "hash", "hash_key": "plain words"}, "hash_key"),
        (TALKATIVE, {"rest": {"X-API-Key": "plain words"}}, "rest.X-API-Key"),
    ],
)
def test_a_secret_is_known_by_its_name_with_hyphens_too(use, options, place):
    assert problem_of(use=use, options=options).path == f"layers[0].options.{place}"


def test_a_token_in_a_query_is_a_secret():
    assert "is a secret" in str(problem_of(use=TALKATIVE, options={"url": "https://policy.example/x?token=abcdefgh"}))
