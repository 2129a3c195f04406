"""Files and plain data become agents, and are written again as they were."""

import copy
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrt.middleware
from agentrt import Agent
from agentrt.config import AgentConfig, load_agent
from agentrt.errors import ConfigError
from agentrt.middleware import MiddlewareBase, RetryMiddleware
from agentrt.model import ScriptedChatModel
from tests.config import things

SHOP = """
[agent]
name = "shop"
description = "Sells."
system_prompt = "Help the customer."
model = "rules"
tools = ["tests.config.things:refunds"]
react_config = { max_iters = 3 }

[[layers]]
use = "RetryMiddleware"
bundle = "patience"

[[layers]]
use = "RateLimitMiddleware"
options = { requests_per_minute = { env = "SHOP_RATE" } }
bundle = "patience"

[[layers]]
use = "tests.config.things:Talkative"
options = { token = { env = "SHOP_TOKEN" }, tone = ["kind", { ref = "tests.config.things:refund" }] }
when = "tests.config.things:is_pro"
limit = { seconds = 2, on_failure = "skip", hooks = ["on_system_prompt"] }
"""

SKILLS = Path(__file__).parents[1] / "middleware" / "skills" / "folder"

OPTIONS: dict[str, dict[str, Any]] = {
    "AgentHooksMiddleware": {"interceptors": [{"ref": "tests.config.things:interceptor"}], "timeout": 2},
    "BudgetMiddleware": {"reply": {"tokens": 500}, "owner": {"cost": 1.5, "per": "day"}, "owner_id": "ann"},
    "CacheMiddleware": {"ttl": 60, "tools": {"look": 60.5}},
    "CircuitBreakerMiddleware": {"failure_threshold": 3, "trip_on": {"ref": "agentrt.errors:Transient"}},
    "CompressionMiddleware": {"how": "window"},
    "DynamicContextMiddleware": {"provider": 'It "rains".\n'},
    "GuardrailMiddleware": {"input": [{"ref": "tests.config.things:allow"}], "on_trip": "raise"},
    "HookMiddleware": {},
    "HumanApprovalMiddleware": {"rules": {"refund": True}},
    "InformationFlowMiddleware": {"flows": {"memory": {"trusted_output": ["id"]}}, "on_violation": "deny"},
    "KeepLastMiddleware": {"messages": 2},
    "LayerTimes": {"max_replies": 5},
    "LoggingMiddleware": {"content": False},
    "LongTermMemoryMiddleware": {"memory": {"ref": "tests.config.things:memory"}, "owner": "ann"},
    "ModelFallbackMiddleware": {"models": ["rules"], "sticky": 30},
    "ModelRouterMiddleware": {"choose": {"ref": "tests.config.things:choose"}, "models": {"small": "rules"}},
    "PlanNotebook": {"max_subtasks": 3},
    "RAGMiddleware": {"knowledge_bases": [{"ref": "tests.config.things:handbook"}], "mode": "static"},
    "RateLimitMiddleware": {"requests_per_minute": 60},
    "RedactionMiddleware": {"detectors": [{"ref": "agentrt.middleware:EMAIL"}], "hash_key": {"env": "SHOP_TOKEN"}},
    "RefusalMiddleware": {"models": "rules"},
    "RetryMiddleware": {"max_retries": 1, "max_wait": {"ref": "builtins:None"}},
    "SkillsMiddleware": {"folders": [str(SKILLS)], "tool_names": {"Look": "refund"}},
    "TimeoutMiddleware": {"total": 30},
    "TimingMiddleware": {},
    "TodoMiddleware": {"max_todos": 4},
    "ToolEmulatorMiddleware": {"model": "rules", "tools": ["no_such_tool"]},
    "ToolErrorMiddleware": {"on": ["refund"], "text": "It failed."},
    "ToolResultLimitMiddleware": {"max_chars": 9000, "head": 20},
    "ToolRetryMiddleware": {"tools": ["refund"]},
    "ToolSelectorMiddleware": {"max_tools": 3, "always": ["refund"]},
    "TracingMiddleware": {"capture_content": False},
    "TrimToolResultsMiddleware": {"above": 100, "keep_last": 1},
    "UsageMiddleware": {"prices": {"rules": [1, 2.5]}},
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_RATE", "60")
    monkeypatch.setenv("SHOP_TOKEN", "t0ken-of-the-shop")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "agentrt.toml"
    path.write_text(SHOP, encoding="utf-8")
    return path


async def test_a_file_becomes_the_agent_that_it_describes(shop):
    agent = load_agent(shop)

    assert (agent.name, agent.description, agent.system_prompt) == ("shop", "Sells.", "Help the customer.")
    assert agent.react_config.max_iters == 3
    assert agent.toolkit.names() == ["refund"]
    talkative = agent.middlewares[-1]
    assert (talkative.token, talkative.headers) == ("t0ken-of-the-shop", {"tone": ["kind", things.refund]})
    explained = agent.explain()
    assert "2. patience / RateLimitMiddleware" in explained
    assert "where is_pro holds\n     at most 2 s of its own, or skip" in explained
    assert (await agent.reply("Hi", deps=False)).get_text_content()


def test_every_layer_that_ships_has_options_below():
    exported = {name: getattr(agentrt.middleware, name) for name in agentrt.middleware.__all__}
    layers = {name for name, each in exported.items() if isinstance(each, type) and issubclass(each, MiddlewareBase)}
    assert layers - {"MiddlewareBase"} == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_file_and_its_agent_and_a_file_again_are_the_same(name, tmp_path):
    data = {"agent": {"name": "a", "model": "rules"}, "layers": [{"use": name, "options": OPTIONS[name]}]}
    before = copy.deepcopy(data)
    agent = AgentConfig.from_dict(data).build()
    path = tmp_path / "agent.toml"
    path.write_text(agent.config.to_toml(), encoding="utf-8")
    again = load_agent(path)

    assert type(agent.middlewares[0]).__name__ == name
    assert agent.config.to_dict() == data == before
    assert again.config == agent.config == AgentConfig.from_dict(agent.config.to_dict())
    assert again.config.to_toml() == agent.config.to_toml()
    assert again.explain("json") == agent.explain("json")


def test_json_and_yaml_say_the_same_as_toml(shop):
    config = AgentConfig.from_file(shop)
    text = json.dumps(config.to_dict())
    for suffix in ("json", "yaml"):  # which JSON is as well
        if suffix == "yaml":
            pytest.importorskip("yaml")
        path = shop.with_suffix(f".{suffix}")
        path.write_text(text, encoding="utf-8")
        assert AgentConfig.from_file(path) == config


def test_yaml_without_its_package_names_the_package(tmp_path, monkeypatch):
    path = tmp_path / "agent.yml"
    path.write_text("agent: {}", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match="YAML needs the package PyYAML"):
        AgentConfig.from_file(path)


_PLAIN = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), _PLAIN, max_size=4))
def test_toml_reads_back_as_the_data_that_were_written(data):
    assert tomllib.loads(AgentConfig.from_dict(data).to_toml()) == data


def test_a_configuration_shares_its_data_with_nobody():
    data: dict[str, Any] = {"agent": {"name": "a", "model": "rules"}, "layers": []}
    config = AgentConfig.from_dict(data)
    data["agent"]["name"] = "b"
    config.to_dict()["agent"]["name"] = "c"
    assert config.build().name == "a"


def test_an_agent_with_other_layers_is_not_the_one_of_its_file(shop):
    agent = load_agent(shop)

    assert agent.with_state(agent.state).config == agent.config
    assert agent.with_middlewares([RetryMiddleware()]).config is None
    assert Agent("a", model=ScriptedChatModel([])).config is None


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("agent.ini", b"", "must be TOML, JSON or YAML"),
        ("agent.toml", b"[agent\n", r"cannot be read: .*line 1"),
        ("agent.toml", b'name = "\xff"', "it is not UTF-8 text"),
        ("agent.json", b"[" * 200_000, "nested too deeply"),
        ("agent.json", b"[]", r"must hold the table \[agent\], not \[\]"),
        ("agent.json", b" " * 1_000_001, "more than 1,000,000 bytes"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_reason(name, content, problem, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        AgentConfig.from_file(path)
    assert name in str(caught.value)
    assert caught.value.__context__ is None


def test_yaml_that_cannot_be_read_is_not_quoted(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "agent.yaml"
    path.write_text("agent: {\n  token: s3cret]", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cannot be read: .* at line 2") as caught:
        AgentConfig.from_file(path)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"'no\.toml' cannot be read: No such file"):
        load_agent("no.toml")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("agent.toml", '[agent]\nname = "a"\nmodel = "rules"'),
        ("agent.json", '{"agent": {"name": "a", "model": "rules"}}'),
    ],
)
def test_a_file_may_begin_with_a_byte_order_mark(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert load_agent(tmp_path / name).name == "a"
