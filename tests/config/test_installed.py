"""A layer of another package: built as a wheel, installed, named in a file, and at work."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path

import pytest

from agentrt.config import AgentConfig, load_agent
from agentrt.errors import ConfigError
from agentrt.message import ToolCallBlock
from agentrt.middleware import installed_layers
from agentrt.model import ScriptedChatModel

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "acme-policy"
version = "1.2.3"

[project.entry-points."agentrt.layers"]
acme-policy = "acme_policy:Policy"
"""
POLICY = '''
from contextlib import asynccontextmanager

import anyio

from agentrt.middleware import MiddlewareBase


class Policy(MiddlewareBase):
    """Asks a server for which it has no time."""

    inherited = True

    def __init__(self, url: str, token: str, seconds: float = 0) -> None:
        self.url = url
        self.token = token
        self.seconds = seconds
        self.asked = []
        self.is_open = False

    @asynccontextmanager
    async def lifespan(self):
        self.is_open = True
        yield
        self.is_open = False

    async def health(self):
        return None if self.is_open else "no connection"

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        self.asked.append(input_kwargs["tool_call"].name)
        await anyio.sleep(self.seconds)
        return await next_handler(**input_kwargs)
'''
FILE = """
[agent]
name = "shop"
model = "rules"
tools = ["tests.config.things:refund"]

[[layers]]
use = "acme-policy"
options = { url = "https://policy.example", token = { env = "ACME_TOKEN" }, seconds = 3600 }
when = "tests.config.things:is_pro"
limit = { seconds = 0.05, on_failure = "deny", hooks = ["on_check_permission"] }
bundle = "safety"
"""


def uv(*arguments: str | Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [sys.executable, "-m", "uv", *map(str, arguments), "--quiet", "--offline", "--python", sys.executable]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed."""
    folder = tmp_path_factory.mktemp("acme")
    package = folder / "source" / "acme_policy"
    package.mkdir(parents=True)
    (folder / "source" / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (package / "__init__.py").write_text(POLICY, encoding="utf-8")
    uv("build", "--wheel", "--no-build-isolation", "--out-dir", folder / "built", folder / "source")
    [wheel] = (folder / "built").glob("*.whl")
    uv("pip", "install", "--no-deps", "--target", folder / "site", wheel)
    return folder / "site"


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("ACME_TOKEN", "t0ken-of-acme")
    yield site
    sys.modules.pop("acme_policy", None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agentrt.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


async def test_an_installed_layer_lives_under_its_terms(installed, file):
    agent = load_agent(file)
    call = ToolCallBlock("1", "refund", '{"order": "A-1"}')
    agent.model = ScriptedChatModel([[call], "Done.", [call], "Not done."])
    [policy] = agent.middlewares

    assert [part.problem for part in (await agent.health()).parts] == ["no connection"]
    async with agent:
        assert (await agent.health()).is_ok
        assert (await agent.reply("Refund A-1", deps=False)).get_text_content() == "Done."
        assert policy.asked == []
        assert (await agent.reply("Refund A-1", deps=True)).get_text_content() == "Not done."
        assert policy.asked == ["refund"]
        results = [block for message in agent.state.context for block in message.get_content_blocks("tool_result")]
        assert [result.state for result in results] == ["success", "denied"]
    assert not policy.is_open


def test_an_installed_layer_is_explained_with_its_version(installed, file):
    agent = load_agent(file)
    assert "1. safety / Policy of acme-policy 1.2.3  " in agent.explain()
    assert '"package": "acme-policy 1.2.3"' in agent.explain("json")
    assert "Policy of acme-policy 1.2.3" in agent.explain("mermaid")
    assert agent.config.to_dict()["layers"][0]["options"]["token"] == {"env": "ACME_TOKEN"}


def test_what_is_installed_is_listed_and_not_loaded(installed):
    [layer] = [layer for layer in installed_layers() if layer.name == "acme-policy"]
    assert layer == ("acme-policy", "acme_policy:Policy", "acme-policy", "1.2.3")
    AgentConfig.from_dict({"agent": {"name": "a", "model": "rules"}}).build().explain()
    assert "acme_policy" not in sys.modules


def test_the_nearest_name_may_be_that_of_an_installed_layer(installed):
    data = {"agent": {"name": "a", "model": "rules"}, "layers": [{"use": "acme-polic"}]}
    with pytest.raises(ConfigError, match=r"layers\[0\]\.use: .* did you mean 'acme-policy'\?"):
        AgentConfig.from_dict(data).build()


def test_a_name_of_two_packages_is_refused_with_both(installed, tmp_path, monkeypatch):
    metadata = shutil.copytree(installed / "acme_policy-1.2.3.dist-info", tmp_path / "other_policy-2.0.dist-info")
    text = (metadata / "METADATA").read_text(encoding="utf-8").replace("acme-policy", "other-policy")
    (metadata / "METADATA").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    layer = {"use": "acme-policy", "options": {"url": "u", "token": {"env": "ACME_TOKEN"}}}
    data = {"agent": {"name": "a", "model": "rules"}, "layers": [layer]}
    with pytest.raises(ConfigError, match=r"offered by acme-policy .*acme_policy:Policy.* and other-policy"):
        AgentConfig.from_dict(data).build()
    layer["use"] = "acme_policy:Policy"
    assert len(AgentConfig.from_dict(data).build().middlewares) == 1


def test_what_is_installed_is_read_once_for_all_layers_of_a_file(installed, monkeypatch):
    readings: list[str] = []

    def read(**chosen: str) -> EntryPoints:
        readings.append(chosen["group"])
        return entry_points(**chosen)

    monkeypatch.setattr("importlib.metadata.entry_points", read)
    with pytest.raises(ConfigError):
        AgentConfig({"agent": {"name": "a", "model": "rules"}, "layers": [{"use": "nobody"}] * 3}).build()
    assert readings.count("agentrt.layers") == 1
