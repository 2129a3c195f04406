"""`agentrt worker`: what it refuses before it works. The example killed_worker.py shows the rest."""

import subprocess
import sys
from pathlib import Path

import pytest
import sniffio

from agentrt.console.cli import main
from agentrt.errors import ConfigError
from agentrt.runner import Runner
from agentrt.state import InMemoryStateStore, PostgresStore, RedisStore, SQLiteStore, state_store
from tests.console.program import environment

APP = """
from agentrt import Agent
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.state import InMemoryStateStore

agent = Agent("assistant", "", ScriptedChatModel([]))
runner = Runner(agent, InMemoryStateStore())
"""


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "worker_app", raising=False)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["worker_app"], "does not have the form module:name: write, for example, app:agent"),
        (["worker_app:nothing"], "'worker_app' has no 'nothing'"),
        (["worker_app:Agent"], "must name an Agent or a Runner"),
        (["worker_app:agent"], "has no store: write --store sqlite:agent.db"),
        (["worker_app:agent", "--store", "mysql://user:secret@db"], "'mysql:...' is not a store URL"),
        (["worker_app:agent", "--store", "sqlite:missing/agent.db"], "cannot keep its file at 'missing/agent.db'"),
        (
            ["worker_app:agent", "--store", "memory:", "--concurrency", "0"],
            "max_concurrency=...) must be a whole number",
        ),
        (["worker_app:runner", "--concurrency", "3"], "is a runner, which has its own store and limits"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(arguments, problem, capsys):
    assert main(["worker", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert problem in line
    assert "secret" not in line


def test_unknown_option_is_answered_with_the_nearest(capsys):
    with pytest.raises(SystemExit):
        main(["worker", "worker_app:agent", "--concurency", "3"])
    assert "did you mean --concurrency?" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_worker_works_on_either_event_loop(backend, monkeypatch):
    works: list[str] = []

    async def work_until_signal(runner: Runner) -> None:
        works.append(sniffio.current_async_library())

    monkeypatch.setattr("agentrt.console.worker._work_until_signal", work_until_signal)
    assert main(["worker", "worker_app:runner", "--backend", backend]) == 0
    assert works == [backend]


def test_store_of_a_url():
    assert isinstance(state_store("memory:"), InMemoryStateStore)
    relative, absolute = state_store("sqlite:agent.db"), state_store("sqlite:///tmp/agent.db")
    assert isinstance(relative, SQLiteStore)
    assert isinstance(absolute, SQLiteStore)
    assert (relative.path, absolute.path) == (Path.cwd() / "agent.db", Path("/tmp/agent.db"))
    assert isinstance(state_store("postgresql://db/agents"), PostgresStore)
    assert isinstance(state_store("redis://cache"), RedisStore)
    for url in ("sqlite://agent.db", "file://states"):
        with pytest.raises(ConfigError, match=r"names a machine, .* write '(sqlite:agent\.db|file:states)'"):
            state_store(url)
    for url in ("", "sqlite:", "agent.db", "memory:x", None):
        with pytest.raises(ConfigError, match=r"sqlite:agent\.db, file:sessions"):
            state_store(url)  # type: ignore[arg-type]


@pytest.mark.slow
def test_worker_stops_with_a_signal(tmp_path):
    command = [sys.executable, "-W", "error", "-m", "agentrt", "worker", "worker_app:runner"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(), cwd=tmp_path, text=True) as worker:
        assert "ready: " in worker.stderr.readline()
        worker.terminate()
        assert worker.stderr.read() == "agentrt worker: stopping: SIGTERM\n"
    assert worker.returncode == 0
