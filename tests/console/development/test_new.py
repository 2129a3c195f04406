"""`agentrt new`: the project that it writes, and the names that it refuses."""

import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from agentrt.config import load_agent
from agentrt.console.cli import main
from tests.console.development.test_dev import EVENTS, ask, development
from tests.console.program import PATIENCE, environment
from tests.serving.conftest import read_stream


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def project(folder: Path) -> Path:
    assert main(["new", "new_shop"]) == 0
    return folder / "new_shop"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "my-shop",
            "'my-shop' is not a name that Python can import (letters, digits and _): write, for example, 'my_s",
        ),
        ("1st", "write, for example, 'my_agent'"),
        ("", "write, for example, 'my_agent'"),
        (".", "write, for example, 'my_agent'"),
        ("../shop", "write, for example, 'shop'"),
        ("café", "write, for example, 'caf'"),
        ("class", "'class' is a keyword of Python: write, for example, 'class_agent'"),
        ("json", "'json' is the name of an existing module, which imports would find instead"),
        ("sys", "'sys' is the name of an existing module"),
    ],
)
def test_name_that_python_cannot_import_is_refused(name: str, problem: str, folder: Path, capsys):
    assert main(["new", name]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert problem in line
    assert list(folder.iterdir()) == []


def test_folder_with_files_is_left_as_it_is(folder: Path, capsys):
    (folder / "new_shop").mkdir()
    (folder / "new_shop" / "mine.txt").write_text("mine")
    assert main(["new", "new_shop"]) == 2
    assert "'new_shop' exists and is not an empty folder: choose another name" in capsys.readouterr().err
    assert [path.name for path in (folder / "new_shop").iterdir()] == ["mine.txt"]


def test_file_of_that_name_is_left_as_it_is(folder: Path, capsys):
    (folder / "new_shop").write_text("mine")
    assert main(["new", "new_shop"]) == 2
    assert "is not an empty folder" in capsys.readouterr().err


def test_empty_folder_is_used(folder: Path):
    (folder / "new_shop").mkdir()
    assert main(["new", "new_shop"]) == 0


def test_project_names_the_next_commands(project: Path, capsys):
    assert main(["new", "other_shop"]) == 0
    assert capsys.readouterr().out.endswith("Next:\n  cd other_shop\n  agentrt dev\n  python -m pytest\n")
    [commands] = re.findall(r"```console\n(.*?)```", (project / "README.md").read_text(), re.DOTALL)
    assert [line.partition("#")[0].split() for line in commands.splitlines()] == [
        ["$", "agentrt", "dev"],
        ["$", "python", "-m", "pytest"],
        ["$", "agentrt", "explain", "--config", "agentrt.toml"],
    ]
    assert all("NAME" not in path.read_text() for path in project.rglob("*") if path.is_file())


def test_ruff_passes_in_its_settings_and_in_ours(project: Path):
    scripts = Path(sys.executable).parent
    settings = Path(__file__).parents[3] / "pyproject.toml"
    for command in (
        ["ruff", "check", "--isolated", "--no-cache", "."],
        ["ruff", "check", "--no-cache", "--config", str(settings), "."],
        ["ruff", "format", "--check", "--isolated", "--no-cache", "."],
    ):
        subprocess.run([str(scripts / command[0]), *command[1:]], cwd=project, check=True)


@pytest.mark.slow
def test_project_passes_its_tests(project: Path):  # and `tests/test_typing.py` has its types checked
    variables = environment(PYTHONWARNINGS="error")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=project, env=variables, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_run_of_the_project_runs_again_without_its_layer(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(project)
    with development() as running:
        url = running.wait_for(r"new_shop is at (http://\S+:\d+)/studio")[1]
        assert ask(url, "What date is it?").startswith("Date: ")
        with httpx2.Client(base_url=url, timeout=PATIENCE) as client:
            [run] = client.get("/api/runs").json()["runs"]
            assert run["changed_by"] == ["Today"]
            path = f"/api/runs/{run['session_id']}/{run['reply_id']}"
            step = client.get(path).json()["steps"][0]
            fork = client.post(f"{path}/fork", json={"at": step["seq"], "without": ["Today"]}).json()
            assert read_stream(client.get(fork["events"], headers=EVENTS).text)[-1][1]["status"] == "completed"
            [first, second] = client.get("/api/runs").json()["runs"]
            assert (first["session_id"], first["changed_by"], second) == (fork["session_id"], [], run)


@pytest.mark.slow
def test_project_is_served_at_once_and_changes_while_it_runs(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(project)
    with development() as running:
        url = running.wait_for(r"new_shop is at (http://\S+:\d+)/studio")[1]
        assert httpx2.get(f"{url}/studio").status_code == 200
        assert ask(url, "Where is order A-1042?") == "Order A-1042 is on its way."
        assert ask(url, "What date is it?").startswith("Date: ")
        tools = project / "new_shop" / "tools.py"
        tools.write_text(tools.read_text().replace("on its way", "lost"))
        running.wait_for("new_shop/tools.py changed: loading the agent again")
        running.wait_for("new_shop is at ")
        assert ask(url, "Where is order A-1042?") == "Order A-1042 is lost."


def test_real_model_is_one_line(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(project)
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    file = project / "agentrt.toml"
    [line] = [line for line in file.read_text().splitlines() if line.startswith("model =")]
    assert '"openai:gpt-5-mini"' in line
    file.write_text(file.read_text().replace(line, 'model = "openai:gpt-5-mini"'))
    agent = load_agent(file)
    assert agent.model.model == "gpt-5-mini"
    for name in [name for name in sys.modules if name.partition(".")[0] == "new_shop"]:
        monkeypatch.delitem(sys.modules, name)
