"""A real backend accepts and understands the spans of `setup_tracing`: Phoenix, in an environment of its own."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from tests.servers import python_packages
from tests.servers.node_packages import cache_folder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
PHOENIX = "arize-phoenix==20.26.1"
START_SECONDS = 150.0  # the first start makes a database; about 40 s when the machine has nothing else to do
READ_SECONDS = 30.0

PROGRAM = """
import sys
from agentrt import Agent, Toolkit
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.middleware import TracingMiddleware, setup_tracing
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel

async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

calls = [ToolCallBlock(n, "add", '{"a": 1, "b": 2}') for n in ("1", "2")]
answers = [ChatResponse(calls, usage=ChatUsage(11, 5)), ChatResponse([TextBlock("three")], usage=ChatUsage(17, 3))]
delivery = setup_tracing(sys.argv[1], service_name="test")
tracing = TracingMiddleware(capture_content=True)
agent = Agent("adder", model=ScriptedChatModel(answers, model="abacus"), toolkit=Toolkit([add]), middlewares=[tracing])
print(agent.run_sync("What is 1 + 2?").get_text_content(), agent.state.session_id)
sys.exit(not delivery.shutdown() or delivery.undelivered)
"""


@pytest.fixture(scope="module")
def phoenix_python(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment that has Phoenix, which pins older packages than ours; kept between runs."""
    folder = cache_folder(pytestconfig, tmp_path_factory, "phoenix")
    return str(python_packages.install(folder, "phoenix", PHOENIX) / "python")


@pytest.fixture(scope="module")
def phoenix(phoenix_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("phoenix")
    port, grpc_port = free_ports()
    # Bytecode is kept in the environment, so that only the first start compiles.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
    environment = {
        **inherited,
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    with (folder / "log").open("w+") as log:
        command = [phoenix_python, "-m", "phoenix.server.main", "serve"]
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            if not wait_for(lambda: answers(f"{url}/healthz"), START_SECONDS, server):
                log.seek(0)
                pytest.fail(f"Phoenix did not start: {log.read()[-2000:]}")
            yield url
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def free_ports() -> list[int]:
    with socket.socket() as one, socket.socket() as other:
        for server in (one, other):
            server.bind(("127.0.0.1", 0))
        return [one.getsockname()[1], other.getsockname()[1]]


def wait_for(what: Any, seconds: float, server: "subprocess.Popen[bytes] | None" = None) -> Any:
    """Return the first true answer; `None` when none comes in time, or the server ends."""
    until = monotonic() + seconds
    while monotonic() < until and (server is None or server.poll() is None):
        found = what()
        if found:
            return found
        sleep(0.5)
    return None


def answers(url: str) -> bool:
    try:
        return get(url).status == 200
    except (urllib.error.URLError, OSError):
        return False


def get(url: str) -> Any:
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({})
    )  # this machine is never reached through a proxy
    with opener.open(url, timeout=10) as response:
        response.body = response.read()
    return response


def spans_of(url: str, expected: int) -> list[dict[str, Any]] | None:
    found = json.loads(get(f"{url}/v1/projects/default/spans?limit=100").body)["data"]
    return found if len(found) >= expected else None


def test_phoenix_shows_span_tree_kinds_content_and_tokens(phoenix: str) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, phoenix]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    answer, session = done.stdout.split()

    found = wait_for(lambda: spans_of(phoenix, 5), READ_SECONDS)
    assert found is not None, "Phoenix has fewer spans than were sent"
    (root,) = [span for span in found if span["parent_id"] is None]
    below = [span for span in found if span is not root]
    assert (root["name"], root["span_kind"]) == ("invoke_agent adder", "AGENT")
    assert {span["parent_id"] for span in below} == {root["context"]["span_id"]}
    assert sorted((span["name"], span["span_kind"]) for span in below) == [
        ("chat abacus", "LLM"),
        ("chat abacus", "LLM"),
        ("execute_tool add", "TOOL"),
        ("execute_tool add", "TOOL"),
    ]
    tokens = [
        (span["attributes"]["llm.token_count.prompt"], span["attributes"]["llm.token_count.completion"])
        for span in below
        if span["span_kind"] == "LLM"
    ]
    assert sorted(tokens) == [(11, 5), (17, 3)]
    attributes = root["attributes"]
    assert (attributes["input.value"], attributes["output.value"]) == ("What is 1 + 2?", answer)
    assert (attributes["session.id"], attributes["llm.token_count.total"]) == (session, 36)
