"""The benchmarks measure what they say they measure. Nothing here looks at a clock."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from agentrt import Agent
from agentrt.state import SQLiteStore
from benchmarks import clock, first_answer, floor, imports, memory, rows, run, suite, wheel
from benchmarks.clock import Probe, Series
from benchmarks.counts import count_calls, peak_memory
from benchmarks.instructions import count_instructions, has_valgrind
from benchmarks.rows import Line, Row, added, exit_code, make_rows, markdown, per, render, slope, verdict
from benchmarks.workloads import (
    IDLE,
    STORES,
    AgentChat,
    AgentConstruct,
    AgentDelegation,
    AgentHeld,
    AgentNew,
    AgentQueue,
    AgentReplies,
    AgentStream,
    FirstSave,
    FloorChat,
    FloorConstruct,
    FloorNew,
    FloorQueue,
    FloorReplies,
    FloorStream,
    RichChat,
    RichConstruct,
    RichNew,
    RichReplies,
    RichStream,
    SecondAgent,
    StoreSave,
    StoreTurn,
    Workload,
    WrongRunError,
    add_later,
    agents,
    floors,
    in_production,
    script,
)

CHATS = [FloorChat, RichChat, AgentChat]
STREAMS = [FloorStream, RichStream, AgentStream]

MAKERS: dict[str, Callable[[], Workload]] = {
    **{f"{chat.__name__}, one turn": lambda chat=chat: chat(rounds=0) for chat in CHATS},
    **{f"{chat.__name__}, two rounds": lambda chat=chat: chat(rounds=2) for chat in CHATS},
    **{f"{chat.__name__}, two rounds in three layers": lambda chat=chat: chat(rounds=2, layers=3) for chat in CHATS},
    **{f"{stream.__name__}, five deltas": lambda stream=stream: stream(deltas=5) for stream in STREAMS},
    **{f"{stream.__name__} in three layers": lambda stream=stream: stream(deltas=5, layers=3) for stream in STREAMS},
    **{
        kind.__name__: kind
        for kind in (FloorNew, RichNew, AgentNew, FloorConstruct, RichConstruct, AgentConstruct, SecondAgent)
    },
    "a conversation that grows": lambda: AgentHeld(4, takes_back=False),
    "a conversation that is taken back": lambda: AgentHeld(4, takes_back=True),
    "a conversation that is saved": lambda: suite.SavedReplies(4),
    "a save in a store": lambda: StoreSave(STORES["FileStateStore"], 4),
    "a turn in a store": lambda: StoreTurn(STORES["FileStateStore"], 4),
    "the first save": lambda: FirstSave(STORES["FileStateStore"], 4),
    "a call of an agent": lambda: AgentDelegation(asks_agent=True),
    "a call of a function": lambda: AgentDelegation(asks_agent=False),
    "floor, queue": lambda: FloorQueue(calls=8),
    "agentrt, queue": lambda: AgentQueue(calls=8),
    **{f"idle {name}": lambda make=make: AgentChat(rounds=2, within=[make()]) for name, make in IDLE.items()},
    "tracing, not sampled": lambda: AgentChat(rounds=2, within=[suite.make_tracing(samples=False)]),
    "tracing, recording": lambda: AgentChat(rounds=2, within=[suite.make_tracing(samples=True)]),
    "a reply that is read": lambda: AgentChat(rounds=2, reads=True),
    "in production, read": lambda: in_production(partial(AgentChat, rounds=2), reads=True),
}
ON_ASYNCIO: dict[str, Callable[[], Workload]] = {
    **{f"{kind.__name__}": lambda kind=kind: kind(5) for kind in (FloorReplies, RichReplies, AgentReplies)},
    **{f"{chat.__name__}, three calls": lambda chat=chat: chat(rounds=2, calls=3) for chat in CHATS},
    "five replies that are read": lambda: AgentReplies(5, reads=True),
    **{f"{chat.__name__}, calls that wait": lambda chat=chat: chat(1, calls=3, tool=add_later) for chat in CHATS},
}


async def run_three_times(workload: Workload) -> None:
    await workload.prepare()
    for _ in range(3):
        await workload()
        workload.check()
    await workload.prepare()
    await workload()
    workload.check()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
async def test_each_workload_follows_its_script_every_time(make: Callable[[], Workload]) -> None:
    await run_three_times(make())


@pytest.mark.parametrize("make", ON_ASYNCIO.values(), ids=ON_ASYNCIO)
def test_workloads_with_tasks_follow_their_scripts(make: Callable[[], Workload]) -> None:
    asyncio.run(run_three_times(make()))


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize(("make", "sessions"), [(partial(AgentChat, rounds=2), 1), (partial(AgentReplies, 5), 20)])
def test_production_has_every_layer_at_work_and_saves(
    make: Callable[..., Workload], sessions: int, reads: bool
) -> None:
    async def run() -> None:
        workload = in_production(make, reads=reads, saves=True)
        await run_three_times(workload)
        store: SQLiteStore = workload._agent.state_store  # type: ignore[attr-defined]
        found = (await store.list()).sessions
        state = await store.load(found[0].session_id)
        await store.aclose()
        assert len(found) == sessions
        assert {"UsageMiddleware", "BudgetMiddleware"} <= state.middleware_data.keys()

    asyncio.run(run())


@pytest.mark.parametrize("reads", [False, True])
async def test_only_a_workload_that_reads_makes_a_stream(reads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    reply_stream = Agent.reply_stream
    monkeypatch.setattr(Agent, "reply_stream", lambda *args: made.append("") or reply_stream(*args))
    await AgentChat(rounds=2, reads=reads)()
    assert bool(made) is reads


@pytest.mark.parametrize("chat", CHATS)
async def test_a_chat_with_another_answer_fails(chat: type[Workload], monkeypatch: pytest.MonkeyPatch) -> None:
    workload = chat()
    for module in (agents, floors):
        monkeypatch.setattr(module, "ANSWER", "Eight.")
    with pytest.raises(WrongRunError, match="Seven"):
        await workload()


@pytest.mark.parametrize("stream", STREAMS)
async def test_a_stream_with_a_missing_delta_fails(stream: type, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = stream(deltas=5)
    monkeypatch.setattr(workload, "_deltas", 6)
    with pytest.raises(WrongRunError, match="5"):
        await workload()


@pytest.mark.parametrize("chat", CHATS)
async def test_the_check_finds_a_missing_round(chat: type, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = chat(rounds=2)
    await workload()
    monkeypatch.setattr(workload, "_rounds", 3)
    with pytest.raises(WrongRunError):
        workload.check()


@pytest.mark.parametrize("chat", CHATS)
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

    monkeypatch.setattr(floors, "pass_call", pass_call)
    monkeypatch.setattr(floors, "pass_stream", pass_stream)
    monkeypatch.setattr(floors, "pass_closed_stream", pass_stream)
    monkeypatch.setattr(agents.PassOnCalls, "on_model_call", on_model_call)
    monkeypatch.setattr(agents.PassOnCalls, "on_acting", on_acting)
    return seen


@pytest.mark.parametrize("arguments", ['{"a": 3}', '{"a": 3, "b": "4"}', '{"a": null, "b": 4}'])
async def test_the_floor_checks_the_types_of_arguments(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "ARGUMENTS", arguments)
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


@pytest.mark.parametrize("arguments", ['{"a": 3}', '{"a": 3, "b": "four"}', '{"a": null, "b": 4}'])
async def test_the_rich_floor_validates_arguments(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "ARGUMENTS", arguments)
    with pytest.raises(ValueError, match="add"):
        await RichChat(rounds=1)()


async def test_the_rich_floor_numbers_all_events_of_a_run() -> None:
    chat = RichChat(rounds=2)
    events = [event async for event in chat._loop.stream([floors.system_message()], script.QUESTION)]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert len({event.run_id for event in events}) == 1
    assert len({type(event) for event in events}) == 13


@pytest.mark.parametrize("takes_back", [True, False])
async def test_held_messages_stay_and_only_one_history_grows(takes_back: bool) -> None:
    workload = AgentHeld(6, takes_back=takes_back)
    for _ in range(3):
        await workload()
    assert len(workload._state.context) == (8 if takes_back else 12)
    await workload.prepare()
    assert len(workload._state.context) == 8


@pytest.mark.parametrize("replies", [FloorReplies, RichReplies, AgentReplies])
def test_all_replies_wait_at_the_same_time(replies: type[AgentReplies]) -> None:
    waits: list[str] = []
    workload = replies(5, lambda: waits.append("all wait"))
    asyncio.run(run_three_times(workload))
    assert waits == ["all wait"] * 4


def test_tools_of_each_construction_are_new() -> None:
    first, second = script.make_functions(), script.make_functions()
    assert not {id(function) for function in first} & {id(function) for function in second}
    assert len({function.__name__ for function in first}) == 10


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
    row = Row("W2", "us", "F", 1.0, ratio, ratio, None, target)
    met = Row("W1", "us", "F", 1.0, 1.0, 1.0, None, 10)
    assert (verdict(row), exit_code([met, row, met])) == (word, code)


LINES = [
    Line("turn", "us", per("turn/agentrt"), per("turn/floor"), per("turn/rich"), target=4),
    Line("delta", "ns", per("turn/agentrt", 10), per("turn/floor", 10), per_unit=0.001),
    Line(
        "layer",
        "us",
        slope({0: "turn/agentrt", 2: "layers/agentrt"}, 1),
        slope({0: "turn/floor", 2: "layers/floor"}, 1),
    ),
    Line("share", "us", added("layers/agentrt", "turn/agentrt"), per("turn/agentrt"), to="turn"),
]


def made_up_round(scale: float = 1.0) -> dict[str, float]:
    sample = {"turn/floor": 2.0, "turn/rich": 4.0, "turn/agentrt": 10.0, "layers/floor": 6.0, "layers/agentrt": 16.0}
    return {key: number * scale for key, number in sample.items()}


def test_a_slow_round_does_not_change_the_ratios() -> None:
    turn, delta, layer, share = make_rows(LINES, [made_up_round(), made_up_round(scale=3), made_up_round()])
    assert (turn.ratio, turn.rich_ratio, turn.agentrt, verdict(turn)) == (5, 2.5, 10, "near")
    assert (delta.ratio, delta.agentrt) == (5, 1000)
    assert (layer.ratio, layer.base, layer.agentrt) == (1.5, 2, 3)
    assert (share.ratio, share.to) == (pytest.approx(0.6), "turn")


def test_a_round_without_a_slow_workload_is_left_out_of_its_row() -> None:
    short = {key: number * 9 for key, number in made_up_round().items() if key != "turn/rich"}
    turn, *others = make_rows(LINES, [made_up_round(), short, short])
    assert turn.agentrt == 10
    assert others[0].agentrt == 9000


def test_a_line_that_nobody_measured_is_not_in_the_table() -> None:
    assert make_rows(LINES, [{"turn/floor": 1.0}]) == []


def test_counts_have_no_unit_of_time_and_no_target() -> None:
    turn, delta, *_ = make_rows(rows.as_counts(LINES), [made_up_round()])
    assert (turn.unit, turn.target, verdict(turn)) == ("", None, "")
    assert delta.agentrt == 1


def test_tables_have_every_number() -> None:
    table = make_rows(LINES, [made_up_round()])
    assert render(table).splitlines()[2].split() == ["turn", "us", "F", "2.00", "10.0", "5.00", "2.50", "4", "near"]
    assert markdown(table).splitlines()[2] == "| turn | us | F | 2.00 | 10.0 | 5.00 | 2.50 | 4 |"


def test_an_indented_line_of_a_page_says_its_group() -> None:
    turn, *_ = make_rows(LINES, [made_up_round()])
    table = [replace(turn, name=name) for name in ("W6 construct", "   a second agent", "W7 a turn")]
    names = [line.split("|")[1].strip() for line in markdown(table).splitlines()[2:]]
    assert names == ["W6 construct", "W6 a second agent", "W7 a turn"]


def test_every_line_is_made_of_what_is_measured() -> None:
    chosen = suite.choose(suite.GROUPS)
    measured = {one.key for one in chosen.series}.union(*(probe.keys for probe in chosen.probes))
    assert [line.name for line in chosen.lines if not line.keys <= measured] == []


def test_a_group_brings_what_it_is_compared_with() -> None:
    chosen = suite.choose(["trio"])
    assert {"W1/agentrt", "W3 N=0/agentrt", "trio W2/agentrt"} <= {one.key for one in chosen.series}
    assert {line.name for line in chosen.lines} == {line.name for line in suite.trio().lines}
    assert chosen.probes == []


def test_a_store_without_its_server_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("DATABASE_URL", "REDIS_URL", "PATH"):
        monkeypatch.setenv(variable, "")
    chosen = suite.choose(["stores"])
    assert chosen.notes == [
        "PostgresStore is left out: postgres and initdb not found, and no DATABASE_URL",
        "RedisStore is left out: redis-server not found, and no REDIS_URL",
    ]
    assert {line.name.partition(":")[0] for line in chosen.lines if ":" in line.name} == {
        "FileStateStore",
        "SQLiteStore",
        "SQLiteStore(process)",
    }


class Counted(Workload):
    """Says what is done with it."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name = log, name

    async def prepare(self) -> None:
        self._log.append(f"prepare {self._name}")

    async def __call__(self) -> None:
        self._log.append(f"run {self._name}")

    def check(self) -> None:
        self._log.append(f"check {self._name}")


def test_sides_take_turns_and_are_prepared_before_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "BATCH_SECONDS", 0)  # so that a batch is one iteration
    log: list[str] = []
    series = [Series(f"W1/{side}", lambda side=side: Counted(log, side)) for side in "ab"]  # type: ignore[misc]
    samples = clock.measure(series, [], rounds=1, batches=2)
    order = ["prepare a", "run a", "check a", "prepare b", "run b", "check b"]
    assert log[-12:] == order * 2
    assert samples[0].keys() == {"W1/a", "W1/b", clock.STEP}


def test_a_slow_workload_has_fewer_batches_and_rounds() -> None:
    slow = clock.Run("slow", FloorNew(), batch_seconds=10 * clock.SLOW_SECONDS)
    assert (clock.Run("fast", FloorNew()).batches(11), slow.batches(11), slow.batches(2)) == (11, 1, 1)


def test_probes_run_in_the_first_rounds_only() -> None:
    numbers = count()
    probe = Probe(frozenset({"p"}), lambda: {"p": next(numbers)}, rounds=2)
    samples = clock.measure([], [probe], rounds=3, batches=1)
    assert [sample.get("p") for sample in samples] == [0, 1, None]


def test_calls_are_counted_to_the_last_one() -> None:
    class ThreeCalls(Workload):
        async def __call__(self) -> None:
            len("")
            self.check()

    assert count_calls([Series("W/x", ThreeCalls), Series("W/none", ThreeCalls, counted=0)]) == {"W/x": 3}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_same_work_has_the_same_count(backend: clock.Backend) -> None:
    series = [Series("W1/agentrt", lambda: AgentChat(0), backend)]
    # The id of a reply takes a division for each of its letters, and some have fewer.
    assert count_calls(series) == pytest.approx(count_calls(series), abs=1)


def test_peak_memory_is_what_an_iteration_has_in_use() -> None:
    class TwoKilobytes(Workload):
        async def __call__(self) -> None:
            bytes(2_000)

    assert 2_000 <= peak_memory([Series("W/x", TwoKilobytes)])["W/x"] < 3_000


def test_memory_of_waiting_replies_grows_with_what_they_hold() -> None:
    floor_bytes, agentrt_bytes = (memory.traced_bytes(side, 20) for side in ("floor", "agentrt"))
    assert 500 < floor_bytes < agentrt_bytes < 100_000


def test_imports_are_measured_in_processes_of_their_own() -> None:
    sample = imports.measure_imports(batches=1)
    assert set(sample) == {f"{what}/{side}" for what in ("import", "resident") for side in imports.MODULES}
    assert sample["resident/agentrt"] > sample["resident/floor"] > 1_000_000


def test_first_answer_is_measured_from_the_start_of_a_process() -> None:
    sample = first_answer.measure_first_answer(batches=1)
    assert set(sample) == {"first answer/agentrt", "first answer/httpx2"}
    assert min(sample.values()) > 1_000


def test_the_size_of_an_installation_leaves_bytecode_out(tmp_path: Path) -> None:
    for name, size in (("a.py", 10), ("inner/b.so", 20), ("__pycache__/a.pyc", 40)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    assert wheel.size_of(tmp_path) == 30


def test_an_installation_that_fails_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheel, "ROOT", Path(__file__).parent)  # which is not a project
    assert wheel.measure_installation() == {}
    assert "skipped" in capsys.readouterr().err


def test_what_does_not_add_up_has_no_differences() -> None:
    assert [line.name for line in rows.undivided(LINES)] == ["turn", "delta"]


@pytest.mark.slow
@pytest.mark.skipif(not has_valgrind(), reason="valgrind is not installed")
def test_instructions_of_a_turn_are_counted() -> None:
    series = {one.key: one for one in suite.choose(["W1"]).series}
    sample = count_instructions([series["W1/floor"], series["W1/agentrt"]])
    assert 10_000 < sample["W1/floor"] < sample["W1/agentrt"] < 10_000_000


@pytest.fixture
def _measured(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    sample = {"W1/floor": 2.0, "W1/rich": 4.0, "W1/agentrt": 2.0 * request.param, clock.STEP: 0.1}
    monkeypatch.setattr(run, "measure", lambda series, probes, rounds, batches: [sample] * rounds)


@pytest.mark.parametrize(("_measured", "code"), [(3.0, 0), (99.0, 1)], indirect=["_measured"])
@pytest.mark.usefixtures("_measured")
def test_check_fails_the_program_when_a_target_is_missed(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--only", "W1", "--rounds", "2", "--check"]) == code
    assert ("MISSED" in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize("_measured", [99.0], indirect=True)
@pytest.mark.usefixtures("_measured")
def test_without_check_a_missed_target_is_only_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--rounds", "2", "--json", str(tmp_path / "numbers.json")]) == 0
    assert "MISSED" in capsys.readouterr().out
    report = json.loads((tmp_path / "numbers.json").read_text())
    assert len(report["samples"]["microseconds"]) == 2
    assert [row["verdict"] for row in report["rows"]["microseconds"]] == ["MISSED"]


@pytest.mark.parametrize("_measured", [3.0], indirect=True)
@pytest.mark.usefixtures("_measured")
def test_the_page_gets_the_numbers_and_keeps_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = run.PAGE.read_text(encoding="utf-8")
    before, after = written.split(run.BEGIN)[0], written.split(run.END)[1]
    monkeypatch.setattr(run, "PAGE", tmp_path / "page.md")
    run.PAGE.write_text(written, encoding="utf-8")
    assert run.main(["--write-page", "--rounds", "2"]) == 0
    text = run.PAGE.read_text(encoding="utf-8")
    numbers = text.removeprefix(before + run.BEGIN).removesuffix(run.END + after)
    assert text == before + run.BEGIN + numbers + run.END + after
    assert numbers.splitlines()[-1] == "| W1 one turn | us | F | 2.00 | 6.00 | 3.00 | 1.50 | 15.4 |"


def test_counts_are_printed_in_place_of_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--only", "W1", "--counts", "--quick", "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert "\ncalls per iteration\n" in printed
    assert "| W1 one turn |  | F | 27.0 |" in printed


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rounds", "0"],
        ["--only", "W99"],
        ["--json", "no-such-folder/report.json"],
        ["--json", "."],
        ["--check", "--counts"],
        ["--write-limits", "--only", "W1"],
        ["--write-page", "--only", "W1"],
    ],
    ids=" ".join,
)
def test_a_wrong_argument_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(arguments)
    assert arguments[0] in capsys.readouterr().err
