"""The comparison with other agent runtimes; none of them is installed here, and nothing here looks at a clock."""

import ast
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import benchmarks.peers.__main__ as program
from benchmarks.peers import environments, measure, script, site_packages, table
from benchmarks.peers.adapters import agentrt, floor, rich_floor
from benchmarks.peers.environments import PEERS, NotInstalledError, Requirement, prepare
from benchmarks.peers.measure import Cell
from benchmarks.peers.peer import PeerBase
from benchmarks.peers.table import COLUMNS, format_table, make_figures

ADAPTERS = Path(floor.__file__).parent


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"DELTAS": 3, "ROUNDS": 2, "CONCURRENT_RUNS": 20, "TRACED_RUNS": 2, "MODEL_SECONDS": 0.001, "HELD": (0, 4)}
    for name, value in small.items():
        monkeypatch.setattr(script, name, value)


def cells_of(peer: PeerBase) -> dict[str, Cell]:
    return asyncio.run(measure.measure_peer(peer, 0.0))


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("adapter", [floor, rich_floor, agentrt])
def test_every_workload_follows_the_script(adapter: Any) -> None:
    cells = cells_of(adapter.Peer())
    assert {key: cell for key, cell in cells.items() if "value" not in cell} == {}


class WrongText(floor.Peer):
    async def take_first_turn(self, agent: Any) -> str:
        return "Eight."


class MissingDelta(floor.Peer):
    async def stream_first_turn(self, agent: Any) -> tuple[int, str]:
        count, text = await super().stream_first_turn(agent)
        return count - 1, text


class MissingResult(floor.Peer):
    def results(self, model: Any) -> list[tuple[str, str]]:
        return super().results(model)[1:]


class OtherResult(floor.Peer):
    def results(self, model: Any) -> list[tuple[str, str]]:
        return [(id, "8") for id, _ in super().results(model)]


class OneLayerTooFew(floor.Peer):
    def make_agent(self, model: Any, tools: Sequence[script.Tool] = (), layers: int = 0) -> Any:
        return super().make_agent(model, tools, max(0, layers - 1))

    def make_streaming_agent(self, model: Any, layers: int = 0) -> Any:
        return super().make_streaming_agent(model, max(0, layers - 1))


class ForgetfulConversation(floor.Peer):
    async def open_conversation(self, agent: Any, held: int = 0) -> Any:
        return await super().open_conversation(agent, held=0)


class WrongTextAmongOthers(floor.Peer):
    turns = 0

    async def take_turn(self, conversation: Any) -> str:
        self.turns += 1
        return await super().take_turn(conversation) if self.turns % 2 else "Eight."


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("peer", "wrong"),
    [
        (WrongText(), {"W1", "W6", "W3"}),
        (MissingDelta(), {"W4"}),
        (MissingResult(), {"W6", "W3"}),
        (OtherResult(), {"W6", "W3"}),
        (ForgetfulConversation(), {"W7"}),
        (WrongTextAmongOthers(), {"W5", "W5 memory", "W7"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PeerBase) else "",
)
def test_a_wrong_run_has_an_error_and_no_number(peer: PeerBase, wrong: set[str]) -> None:
    cells = cells_of(peer)
    failed = {key for key, cell in cells.items() if str(cell.get("error")).startswith("WrongRunError")}
    assert {key if key in wrong else key.split()[0] for key in failed} == wrong
    assert all("value" not in cells[key] for key in failed)


@pytest.mark.usefixtures("_small")
def test_a_layer_that_does_not_run_is_an_error() -> None:
    cells = cells_of(OneLayerTooFew())
    assert [key for key, cell in cells.items() if "error" in cell] == [
        "W6",
        *(f"{workload} N={depth}" for depth in script.DEPTHS[1:] for workload in ("W3", "W4")),
    ]


@pytest.mark.usefixtures("_small")
def test_counters_are_gone_when_the_timed_runs_begin() -> None:
    before = [getattr(owner, name) for owner, name in floor.Peer.layers]
    with measure.count_calls(floor.Peer.layers):
        assert [getattr(owner, name) for owner, name in floor.Peer.layers] != before
    assert [getattr(owner, name) for owner, name in floor.Peer.layers] == before


@pytest.mark.usefixtures("_small")
def test_what_a_peer_has_no_concept_for_is_not_run() -> None:
    class Absent(floor.Peer):
        absent = MappingProxyType({"W4 layers": "no layer sees a delta"})

    cells = cells_of(Absent())
    assert cells["W4 N=5"] == {"absent": "no layer sees a delta"}
    assert "value" in cells["W4 N=0"]


def test_each_construction_gets_functions_that_nobody_has_seen() -> None:
    first, second = script.make_functions(), script.make_functions()
    assert not {id(function) for function in first} & {id(function) for function in second}
    assert len({function.__name__ for function in first}) == script.TOOLS
    assert asyncio.run(second[-1](3, 4)) == script.SUM


def made_up_cells(scale: float) -> dict[str, Cell]:
    keys = ["W1", "W5", "W5 memory", "W6", "import", "RSS", "site-packages", "distributions"]
    cells: dict[str, Cell] = {key: {"value": 10 * scale} for key in keys}
    for depth in script.DEPTHS:
        cells[f"W3 N={depth}"] = {"value": (50 + depth * 21) * scale}
        cells[f"W4 N={depth}"] = {"value": (500 + depth * 2_000) * scale}
    cells |= {f"W7 {held}": {"value": 10 * scale} for held in script.HELD}
    return cells


def figures_by_column(rounds: Sequence[table.Round], peer: str) -> dict[str, table.Figure]:
    return dict(zip([column.name for column in COLUMNS], make_figures(rounds, [peer])[peer], strict=True))


def test_a_slow_round_does_not_change_the_ratios_to_the_floor() -> None:
    rounds = [{"floor": made_up_cells(slow), "peer": made_up_cells(7 * slow)} for slow in (1, 3, 1)]
    figures = figures_by_column(rounds, "peer")
    assert {name for name, figure in figures.items() if figure.ratio != pytest.approx(7)} == set()
    assert figures["W3 first"].value == pytest.approx(7)
    assert figures["W3 further"].value == pytest.approx(7)
    assert figures["W4 delta"].value == pytest.approx(1.75)
    assert figures["W4 further"].value == pytest.approx(7)


@pytest.mark.parametrize(
    ("cells", "word", "reason"),
    [
        ({"W1": {"error": "WrongRunError: Eight"}}, "ERROR", "WrongRunError: Eight"),
        ({"W1": {"absent": "no turns"}}, "n/a", "no turns"),
        ({table.PROCESS: {"error": "killed"}}, "ERROR", "killed"),
    ],
)
def test_one_bad_round_is_enough_for_a_word_and_its_reason(cells: dict[str, Cell], word: str, reason: str) -> None:
    good = {"floor": made_up_cells(1), "peer": made_up_cells(7)}
    bad = {"floor": made_up_cells(1), "peer": made_up_cells(7) | cells}
    figure = figures_by_column([good, bad, good], "peer")["W1"]
    assert figure == table.Figure(None, None, word, reason)
    figures = make_figures([good, bad, good], ["floor", "peer"])
    text = format_table(figures, {"floor": "floor", "peer": "peer 1.0"}, ["other is skipped: why"])
    assert f": {word}: {reason}" in text
    assert next(line for line in text.splitlines() if line.startswith("peer 1.0")).split()[2] == word
    assert text.endswith("other is skipped: why")


def test_a_floor_without_figures_leaves_the_table_without_ratios() -> None:
    rounds = [{"floor": {table.PROCESS: {"error": "killed"}}, "peer": made_up_cells(7)}]
    assert {figure.word for figure in make_figures(rounds, ["peer"])["peer"]} == {"ERROR"}


def test_sizes_are_shown_as_they_are_and_times_as_ratios() -> None:
    rounds = [{"floor": made_up_cells(1) | {"distributions": {"value": 0.0}}, "peer": made_up_cells(7)}]
    text = format_table(make_figures(rounds, ["floor", "peer"]), {"floor": "floor", "peer": "peer"}, [])
    assert text.splitlines()[-1].split() == ["peer", "7.00", "70.0", "70.0", "70"]


def test_a_peer_that_cannot_be_installed_says_why(tmp_path: Path) -> None:
    missing = tmp_path / "nothing-here"
    with pytest.raises(NotInstalledError, match="nothing-here"):
        prepare("strands", Requirement((str(missing),)), tmp_path)
    assert not (tmp_path / "strands" / "stamp").exists()


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []

    def run(*command: str) -> None:
        commands.append(command)
        python = tmp_path / "floor" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()

    monkeypatch.setattr(environments, "run", run)
    monkeypatch.setattr(environments.os, "name", "posix")
    for _ in range(2):
        prepare("floor", PEERS["floor"], tmp_path)
    assert [command[1:3] for command in commands] == [
        ("-m", "venv"),
        ("-c", "import benchmarks.peers.adapters.floor"),
        ("-c", "import benchmarks.peers.adapters.floor"),
    ]


def test_bytecode_and_installers_are_not_on_a_peers_bill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("peer", "pip"):
        for path in (tmp_path / name / "code.py", tmp_path / name / "__pycache__" / "code.pyc"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * 500_000)
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    monkeypatch.setattr(site_packages.sysconfig, "get_path", lambda _: str(tmp_path))
    figures = site_packages.measure_site_packages()
    assert figures["site-packages"]["value"] == pytest.approx(0.5, abs=0.001)
    assert figures["distributions"]["value"] == 1


@pytest.fixture
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(name: str, requirement: Requirement, folder: Path) -> tuple[Path, str]:
        if name == "langchain":
            raise NotInstalledError("no such version")
        return Path(name), "something is too old" if name == "agentscope" else ""

    def measure_peer(python: Path, name: str, seconds: float) -> dict[str, Cell]:
        return made_up_cells(1 if name == "floor" else 7)

    monkeypatch.setattr(program, "prepare", prepare)
    monkeypatch.setattr(program, "measure_peer", measure_peer)


@pytest.mark.usefixtures("_made_up")
def test_a_peer_that_cannot_be_installed_is_skipped_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "numbers.json"
    assert program.main(["--rounds", "2", "--json", str(report)]) == 0
    printed = capsys.readouterr().out
    assert "langchain is skipped: no such version" in printed
    assert "agentscope: something is too old" in printed
    assert {"floor", "agentrt", "strands"} <= {line.split()[0] for line in printed.splitlines() if line}
    numbers = json.loads(report.read_text())
    assert len(numbers["rounds"]) == 2
    assert {row["peer"] for row in numbers["rows"]} >= {"floor", "agentrt", "strands 1.62.0"}


@pytest.mark.usefixtures("_made_up")
def test_only_the_peers_asked_for_run(capsys: pytest.CaptureFixture[str]) -> None:
    program.main(["--quick", "--only", "strands", "google-adk"])
    starts = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert starts >= {"floor", "agentrt", "strands", "google-adk"}
    assert not starts & {"agentscope", "pydantic-ai"}


def test_rounds_take_turns_in_who_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def measure_peer(python: Path, name: str, seconds: float) -> dict[str, Cell]:
        order.append(name)
        return {}

    monkeypatch.setattr(program, "measure_peer", measure_peer)
    for number in range(3):
        program.measure_round({name: Path(name) for name in "abc"}, number, 0.0)
    assert "".join(order) == "abcbcacab"


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--only", "nobody"], ["--json", "no-such-folder/x.json"]])
def test_a_wrong_argument_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(arguments)
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.slow
def test_a_process_prints_every_figure_of_its_peer() -> None:
    cells = program.measure_peer(Path(sys.executable), "floor", 0.0)
    figures = figures_by_column([{"floor": cells}], "floor")
    assert {name for name, figure in figures.items() if figure.word == "ERROR"} == set()


def test_a_process_that_fails_gives_its_last_words() -> None:
    cells = program.measure_peer(Path(sys.executable), "nobody", 0.0)
    assert "benchmarks.peers.adapters.nobody" in str(cells[table.PROCESS]["error"])


def test_every_peer_has_an_adapter_and_every_adapter_a_peer() -> None:
    files = {path.stem for path in ADAPTERS.glob("*.py")} - {"__init__"}
    assert files == {name.replace("-", "_") for name in PEERS}


@pytest.mark.parametrize("path", sorted(ADAPTERS.glob("*.py")), ids=lambda path: path.stem)
def test_an_adapter_imports_its_peer_and_the_script_only(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {module for module in modules if module.partition(".")[0] in ("agentrt", "agentrt_middleware", "benchmarks")}
    allowed = {"benchmarks", "benchmarks.floor", "benchmarks.peers", "benchmarks.peers.peer"}
    assert {module for module in ours - allowed if path.stem not in module} == set()
