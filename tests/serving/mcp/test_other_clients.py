"""Clients of MCP in another language, over HTTP and over standard input and output."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrt.serving import create_app
from tests.console.program import ROOT, environment
from tests.runner.conftest import approved_pay, make_agent
from tests.servers import node_packages
from tests.serving.conftest import run_server

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).parent / "client.mjs"
APP = """
from tests.runner.conftest import approved_pay, make_agent

agent = make_agent(approved_pay())
"""


@pytest.fixture(scope="session")
def modules(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = node_packages.cache_folder(request.config, tmp_path_factory, "mcp-clients")
    return node_packages.install(folder, "clients of MCP", node_packages.HERE / "mcp_clients")


def talk(modules: Path, **spec: Any) -> Any:
    """Have the client say what it is told, and return what it saw."""
    script = modules.parent / CLIENT.name
    script.write_text(CLIENT.read_text())  # beside its packages, where Node.js looks for them
    answer = {"action": "accept", "content": {"approve": True}}
    text = json.dumps({"messages": ["Hi", "call pay"], "answer": answer, **spec})
    finished = subprocess.run(
        ["node", script], input=text, capture_output=True, text=True, timeout=100, check=False, cwd=modules.parent
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def check(seen: Any) -> None:
    assert [tool["name"] for tool in seen["tools"]] == ["ask"]
    hello, paid = seen["results"]
    assert hello["content"][0]["text"] == "You said: Hi"
    assert paid["content"][0]["text"] == "paid, as you said: call pay"
    assert paid["structuredContent"]["session_id"] == hello["structuredContent"]["session_id"]
    [form] = seen["forms"]
    assert "pay {}" in form["message"]
    # One that comes with the question, or with the result, may be late for the client.
    assert {"calls pay", "pay: success"} & set(seen["progress"])


@pytest.mark.parametrize("client", ["v1", "v2"])
def test_client_over_http_is_asked_and_answered(client, modules):
    with run_server(create_app(make_agent(approved_pay()))) as url:
        check(talk(modules, client=client, url=f"{url}/mcp"))


@pytest.mark.parametrize(("client", "backend"), [("v1", "trio"), ("v2", "asyncio")])
def test_client_starts_the_program(client, backend, modules, tmp_path):
    (tmp_path / "mcp_app.py").write_text(APP)
    paths = environment()["PYTHONPATH"]
    command = {
        "command": sys.executable,
        "args": ["-m", "agentrt", "mcp", "mcp_app:agent", "--backend", backend],
        "env": {**environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}:{paths}"},
    }
    check(talk(modules, client=client, command=command))
