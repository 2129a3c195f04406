"""The benchmarks measure what they say they measure. Nothing here looks at a clock."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrt.middleware import TracingMiddleware
from benchmarks import floor, import_time, run, workloads
from benchmarks.run import Row, exit_code, make_rows, verdict
from benchmarks.workloads import (
    AgentChat,
    AgentNew,
    AgentQueue,
    AgentStream,
    FloorChat,
    FloorNew,
    FloorQueue,
    FloorStream,
    Workload,
    WrongRunError,
)

MAKERS: dict[str, Callable[[], Workload]] = {
    "floor, one turn": lambda: FloorChat(rounds=0),
    "floor, two rounds": lambda: FloorChat(rounds=2),
    "floor, two rounds in three layers": lambda: FloorChat(rounds=2, layers=3),
    "floor, stream": lambda: FloorStream(deltas=5),
    "floor, stream in three layers": lambda: FloorStream(deltas=5, layers=3),
    "floor, new": FloorNew,
    "agentrt, one turn": lambda: AgentChat(rounds=0),
    "agentrt, two rounds": lambda: AgentChat(rounds=2),
    "agentrt, two rounds in three layers": lambda: AgentChat(rounds=2, layers=3),
    "agentrt, two rounds in an idle tracing layer": lambda: AgentChat(rounds=2, within=[TracingMiddleware()]),
    "agentrt, stream": lambda: AgentStream(deltas=5),
    "agentrt, stream in three layers": lambda: AgentStream(deltas=5, layers=3),
    "agentrt, new": AgentNew,
    "floor, queue": lambda: FloorQueue(calls=8),
    "agentrt, queue": lambda: AgentQueue(calls=8),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
async def test_each_workload_follows_its_script_every_time(make: Callable[[], Workload]) -> None:
    workload = make()
    for _ in range(3):
        await workload()
        workload.check()


@pytest.mark.parametrize("chat", [FloorChat, AgentChat])
async def test_a_chat_with_another_answer_fails(chat: type[Workload], monkeypatch: pytest.MonkeyPatch) -> None:
    workload = chat()
    monkeypatch.setattr(workloads, "ANSWER", "Eight.")
    with pytest.raises(WrongRunError, match="Seven"):
        await workload()


@pytest.mark.parametrize("stream", [FloorStream, AgentStream])
async def test_a_stream_with_a_missing_delta_fails(stream: type, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = stream(deltas=5)
    monkeypatch.setattr(workload, "_deltas", 6)
    with pytest.raises(WrongRunError, match="5"):
        await workload()


@pytest.mark.parametrize("chat", [FloorChat, AgentChat])
async def test_the_check_finds_a_missing_round(chat: type, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = chat(rounds=2)
    await workload()
    monkeypatch.setattr(workload, "_rounds", 3)
    with pytest.raises(WrongRunError):
        workload.check()


@pytest.mark.parametrize("chat", [FloorChat, AgentChat])
@pytest.mark.parametrize("depth", [0, 1, 3])
async def test_every_layer_sees_every_model_call_and_every_tool_call(
    chat: type, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = count_layers(monkeypatch)
    await chat(rounds=2, layers=depth)()
    assert seen == {"call": 3 * depth, "tool": 2 * depth}


def count_layers(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Put counters into the pass-through layers of both sides."""
    seen = {"call": 0, "tool": 0}

    async def pass_call(values, next_handler):  # type: ignore[no-untyped-def]
        seen["call"] += 1
        return await next_handler(**values)

    async def pass_stream(values, next_handler):  # type: ignore[no-untyped-def]
        seen["tool"] += 1
        async for item in next_handler(**values):
            yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):  # type: ignore[no-untyped-def]
        seen["call"] += 1
        return await next_handler(**input_kwargs)

    async def on_acting(self, agent, input_kwargs, next_handler):  # type: ignore[no-untyped-def]
        seen["tool"] += 1
        async for item in next_handler(**input_kwargs):
            yield item

    monkeypatch.setattr(workloads, "_pass_call", pass_call)
    monkeypatch.setattr(workloads, "_pass_stream", pass_stream)
    monkeypatch.setattr(workloads.PassOnCalls, "on_model_call", on_model_call)
    monkeypatch.setattr(workloads.PassOnCalls, "on_acting", on_acting)
    return seen


@pytest.mark.parametrize("arguments", ['{"a": 3}', '{"a": 3, "b": "4"}', '{"a": null, "b": 4}'])
async def test_the_floor_checks_the_types_of_arguments(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "ARGUMENTS", arguments)
    with pytest.raises(TypeError, match="add wants"):
        await FloorChat(rounds=1)()


async def test_a_floor_layer_overrides_only_the_keys_that_it_names() -> None:
    async def core(a: int, b: int) -> tuple[int, int]:
        return a, b

    async def outer(values, next_handler):  # type: ignore[no-untyped-def]
        return await next_handler(b=7)

    async def inner(values, next_handler):  # type: ignore[no-untyped-def]
        return await next_handler(a=values["a"] + values["b"])

    assert await floor.compose(core, [outer, inner])(a=1, b=2) == (8, 7)


def test_the_floor_without_layers_has_no_onion() -> None:
    core = object
    assert floor.compose(core, []) is core


@pytest.mark.parametrize(
    ("ratio", "target", "word", "code"),
    [
        (6.0, 6.0, "met", 0),
        (6.1, 6.0, "near", 0),
        (7.5, 6.0, "near", 0),
        (7.6, 6.0, "MISSED", 1),
        (99.0, None, "", 0),
    ],
)
def test_a_target_is_an_error_when_missed_by_more_than_a_quarter(
    ratio: float, target: float | None, word: str, code: int
) -> None:
    row = Row("W2", "us", 1.0, ratio, ratio, target)
    met = Row("W1", "us", 1.0, 1.0, 1.0, 10)
    assert (verdict(row), exit_code([met, row, met])) == (word, code)


def made_up_round(layer: float = 2.0, scale: float = 1.0) -> dict[str, float]:
    """Return a round in which agentrt takes five times the floor's time and each layer `layer` times the floor's."""
    cells = {run.STEP: 0.08, "W1": 2.0, "new": 0.5, "W4 trio": 500.0}
    sample = {
        run.STEP: 0.08,
        "W5/floor": 2_000.0 * scale,
        "W5/agentrt": 4_000.0 * scale,
        "idle/floor": 400.0 * scale,
        "idle/agentrt": 325.0 * scale,
        "import/floor": 100_000.0 * scale,
        "import/agentrt": 150_000.0 * scale,
    }
    for key in ("W1", "new", "W4 trio"):
        sample |= {f"{key}/floor": cells[key] * scale, f"{key}/agentrt": cells[key] * 5 * scale}
    for name, base, depths in (("W3", 50.0, run.CALL_LAYERS), ("W4", 400.0, run.STREAM_LAYERS)):
        for depth in depths:
            sample[f"{name} N={depth}/floor"] = (base + depth * 10) * scale
            sample[f"{name} N={depth}/agentrt"] = (base * 5 + depth * 10 * layer) * scale
    return sample


def test_a_slow_round_does_not_change_the_ratios() -> None:
    rows = {row.name: row for row in make_rows([made_up_round(), made_up_round(scale=3), made_up_round()])}
    assert rows["W2 10 rounds"].ratio == pytest.approx(5)
    assert rows["W3 each further layer"].ratio == pytest.approx(2)
    assert rows["W3 each further layer"].floor == pytest.approx(10 / 21)
    assert rows["W3 idle tracing"].ratio == pytest.approx(0.5)
    assert rows["W4 each further layer"].agentrt == pytest.approx(20 / 2000)


@pytest.fixture
def _measured(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(run, "measure", lambda rounds, batches: [made_up_round(layer=request.param)] * rounds)


@pytest.mark.parametrize(("_measured", "code"), [(1.0, 0), (4.0, 1)], indirect=["_measured"])
@pytest.mark.usefixtures("_measured")
def test_check_fails_the_program_when_a_target_is_missed(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--rounds", "2", "--check"]) == code
    assert ("MISSED" in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize("_measured", [4.0], indirect=True)
@pytest.mark.usefixtures("_measured")
def test_without_check_a_missed_target_is_only_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--rounds", "2", "--json", str(tmp_path / "numbers.json")]) == 0
    assert "MISSED" in capsys.readouterr().out
    report = json.loads((tmp_path / "numbers.json").read_text())
    assert len(report["samples"]) == 2
    assert "MISSED" in [row["verdict"] for row in report["rows"]]


def test_import_is_compared_with_what_it_needs_of_dependencies() -> None:
    modules = import_time.modules_of_dependencies()
    assert {"anyio.lowlevel", "pydantic.type_adapter", "shortuuid"} <= set(modules)
    assert not [name for name in modules if name.startswith("agentrt")]
    assert min(import_time.import_dependencies(modules), import_time.import_agentrt()) > 0


def test_no_rounds_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["--rounds", "0"])
    assert "--rounds" in capsys.readouterr().err
