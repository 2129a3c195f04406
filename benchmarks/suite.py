"""All that is measured: for each group, its series and the lines of the table that they make."""

import shutil
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from tempfile import mkdtemp

from agentrt.state import FileStateStore
from benchmarks.clock import Backend, Probe, Series
from benchmarks.first_answer import PROGRAMS, measure_first_answer
from benchmarks.imports import measure_imports
from benchmarks.memory import SIDES, measure_memory
from benchmarks.rows import Line, Quantity, added, constant, per, slope, total
from benchmarks.wheel import measure_installation
from benchmarks.workloads import (
    CALLS,
    DELTAS,
    IDLE,
    ROUNDS,
    STORES,
    AgentChat,
    AgentConstruct,
    AgentDelegation,
    AgentHeld,
    AgentNew,
    AgentQueue,
    AgentStream,
    FirstSave,
    FloorChat,
    FloorConstruct,
    FloorNew,
    FloorQueue,
    FloorStream,
    PassOnAll,
    RichChat,
    RichConstruct,
    RichNew,
    RichStream,
    SecondAgent,
    StoreSave,
    StoreTurn,
    Workload,
    add,
    add_later,
    in_production,
    make_tracing,
    missing_servers,
)

__all__ = ["GROUPS", "Group", "all_lines", "all_series", "choose"]

CALL_LAYERS = (0, 1, 5, 10, 20)
STREAM_LAYERS = (0, 1, 5, 10)
INTERCEPTED = ROUNDS + 1 + ROUNDS  # the model calls and the tool calls of one W3 run
HELD = (0, 2_000, 20_000)
TOGETHER = 100
MORE_PER_SAVE = 600  # microseconds, at most
MILLISECONDS = 1_000
KILOBYTES = 1_024
MEGABYTES = 1_000_000

Make = Callable[[], Workload]


@dataclass(frozen=True, slots=True)
class Group:
    """Lines that are asked for by one name, and what they are made of."""

    lines: Sequence[Line]
    series: Sequence[Series] = ()
    probes: Sequence[Probe] = ()
    notes: Sequence[str] = ()
    """What is left out, and why."""


def sides(
    name: str, floor: Make, rich: Make, agentrt: Make, *, backend: Backend = "asyncio", counted: int = 8
) -> list[Series]:
    """Return the three sides of a workload."""
    makers = {"floor": floor, "rich": rich, "agentrt": agentrt}
    return [Series(f"{name}/{side}", make, backend, counted) for side, make in makers.items()]


def agent_series(name: str, make: Make, *, backend: Backend = "asyncio", counted: int = 8) -> Series:
    """Return a workload that only agentrt has."""
    return Series(f"{name}/agentrt", make, backend, counted)


def three_sides(
    name: str, unit: str, read: Callable[[str], Quantity], *, target: float | None = None, per_unit: float = 1.0
) -> Line:
    """Return the line of a number that each side has; `read` gets the name of the side."""
    return Line(name, unit, read("agentrt"), read("floor"), read("rich"), target, per_unit=per_unit)


def key_of(name: str, count: float = 1) -> Callable[[str], Quantity]:
    """Return what reads the workload of one side."""
    return lambda side: per(f"{name}/{side}", count)


def slope_of(name: str, depths: Sequence[int], count: float) -> Callable[[str], Quantity]:
    """Return what reads the price of one more layer on one side."""
    return lambda side: slope({depth: f"{name} N={depth}/{side}" for depth in depths}, count)


def as_users_run() -> Group:
    """W1, W2 and replies at once as most programs run them: read, within the layers of a service, and saved."""
    at_once = f"W5 {TOGETHER}"
    lines = [three_sides(f"{at_once} replies, each", "us", key_of(at_once, TOGETHER))]
    floor, rich, agentrt = (partial(replies, TOGETHER) for replies in SIDES.values())
    series = sides(at_once, floor, rich, agentrt, counted=1)
    for name, bare, count, make in (
        ("W1", "W1", 1, partial(AgentChat, 0)),
        ("W2", "W3 N=0", 1, AgentChat),
        ("W5", at_once, TOGETHER, agentrt),
    ):
        read, layered, saved, all_of_it = (f"{bare} {way}/agentrt" for way in ("read", "layered", "saved", "all"))
        counted = 8 if name == "W1" else 1  # the others call a model often enough in one iteration
        series += [
            Series(read, partial(make, reads=True), counted=counted),
            Series(layered, partial(in_production, make, reads=True), counted=counted),
            Series(saved, partial(in_production, make, saves=True), counted=0),
            Series(all_of_it, partial(in_production, make, saves=True, reads=True), counted=0),
        ]
        base = per(f"{bare}/agentrt", count)
        lines += [
            Line(f"{name} read", "us", per(read, count), per(f"{bare}/floor", count), per(f"{bare}/rich", count)),
            Line(f"{name} in seven layers, read", "us", per(layered, count), base, to="bare"),
            Line(f"{name} in production", "us", per(saved, count), base, to="bare"),
            Line(f"{name} in production, read", "us", per(all_of_it, count), base, to="bare"),
        ]
    return Group(lines, series)


def one_turn() -> Group:
    """W1: one turn, and a new conversation."""
    return Group(
        [
            three_sides("W1 one turn", "us", key_of("W1"), target=15.4),
            three_sides("   a new conversation", "us", key_of("new")),
        ],
        [
            *sides("W1", lambda: FloorChat(0), lambda: RichChat(0), lambda: AgentChat(0)),
            *sides("new", FloorNew, RichNew, AgentNew),
        ],
    )


def ten_rounds() -> Group:
    """W2: ten rounds with a tool call each."""
    return Group(
        [three_sides(f"W2 {ROUNDS} rounds", "us", key_of("W3 N=0"), target=7)],
        sides("W3 N=0", FloorChat, RichChat, AgentChat),
    )


def call_layers() -> Group:
    """W3: ten rounds within layers that pass calls on."""
    further = slope_of("W3", CALL_LAYERS[1:], INTERCEPTED)
    first = slope_of("W3", CALL_LAYERS[:2], INTERCEPTED)
    return Group(
        [
            three_sides("W3 first layer", "us/call", first),
            three_sides("W3 each further layer", "us/call", further, target=2.1),
            Line("W3 first layer", "us/call", first("agentrt"), further("agentrt"), target=2.3, to="further"),
        ],
        [
            one
            for depth in CALL_LAYERS[1:]
            for one in sides(
                f"W3 N={depth}",
                partial(FloorChat, layers=depth),
                partial(RichChat, layers=depth),
                partial(AgentChat, layers=depth),
            )
        ],
    )


def deltas() -> Group:
    """W4: a streamed answer within layers that see each event."""
    further = slope_of("W4", STREAM_LAYERS[1:], DELTAS)
    return Group(
        [
            three_sides("W4 a delta", "us", key_of("W4 N=0", DELTAS), target=7),
            three_sides("W4 first layer", "us/delta", slope_of("W4", STREAM_LAYERS[:2], DELTAS)),
            three_sides("W4 each further layer", "us/delta", further, target=1.2),
        ],
        [
            one
            for depth in STREAM_LAYERS
            for one in sides(
                f"W4 N={depth}",
                partial(FloorStream, layers=depth),
                partial(RichStream, layers=depth),
                partial(AgentStream, layers=depth),
                counted=1,
            )
        ],
    )


def concurrent_replies() -> Group:
    """W5: many replies whose models wait at the same time."""
    lines, series, probes = [], [], []
    for count, target in ((1_000, 5.0), (10_000, None)):
        name = f"W5 {count:,}"
        lines += [
            three_sides(f"{name} replies, each", "us", key_of(f"W5 {count}", count), target=target),
            three_sides(
                "   memory while it waits",
                "KB",
                key_of(f"waiting {count}"),
                per_unit=KILOBYTES,
                target=3.8 if target else None,
            ),
            three_sides("   peak of the process, each", "KB", key_of(f"peak {count}"), per_unit=KILOBYTES),
        ]
        series += [
            Series(f"W5 {count}/{side}", partial(replies, count), counted=1 if count == 1_000 else 0)
            for side, replies in SIDES.items()
        ]
        keys = frozenset(f"{what} {count}/{side}" for what in ("waiting", "peak") for side in SIDES)
        probes.append(Probe(keys, partial(measure_memory, count), rounds=1))
    return Group(lines, series, probes)


def construction() -> Group:
    """W6: agents with ten tools and ten layers, and the import."""
    rich = per("construct/rich")
    imports = frozenset(f"{what}/{side}" for what in ("import", "resident") for side in SIDES)
    installation = frozenset({"installed/agentrt", "distributions/agentrt"})
    answers = frozenset(f"first answer/{side}" for side in PROGRAMS)
    first, plain = per("first answer/agentrt"), per("first answer/httpx2")
    return Group(
        [
            Line("W6 construct", "us", per("construct/agentrt"), rich, target=0.5, to="R"),
            Line("   a second agent, same tools", "us", per("second/agentrt"), rich, target=0.06, to="R"),
            Line("   a second agent, same functions", "us", per("second by functions/agentrt"), rich, to="R"),
            three_sides("   import", "ms", key_of("import"), target=3.3, per_unit=MILLISECONDS),
            Line("   first answer", "ms", first, plain, target=2.2, to="httpx2", per_unit=MILLISECONDS),
            three_sides("   memory after import", "MB", key_of("resident"), per_unit=MEGABYTES),
            Line("   installed", "MB", per("installed/agentrt"), per_unit=MEGABYTES, to=""),
            Line("   distributions", "", per("distributions/agentrt"), to=""),
        ],
        [
            *sides("construct", FloorConstruct, RichConstruct, AgentConstruct, counted=4),
            agent_series("second", SecondAgent),
            agent_series("second by functions", lambda: SecondAgent(lambda function: function)),
        ],
        [
            Probe(imports, measure_imports, rounds=99),
            Probe(answers, measure_first_answer, rounds=99),
            Probe(installation, measure_installation, rounds=1),
        ],
    )


def long_conversations() -> Group:
    """W7: a turn where messages are held already, appended to them or taken back after each."""
    lines, series = [], []
    for mode, takes_back in (("appended", False), ("taken back", True)):
        for held in (0, 2_000, 20_000):
            name = f"W7 {held} {mode}"
            series.append(
                agent_series(name, partial(AgentHeld, held, takes_back=takes_back), counted=16 if held < 20_000 else 0)
            )
            if held:
                base = per(f"W7 0 {mode}/agentrt")
                target = 1.15 if held == 2_000 else None
                lines.append(
                    Line(f"W7 {held:,} held, {mode}", "us", per(f"{name}/agentrt"), base, target=target, to="0 held")
                )
    return Group(lines, series)


class SavedReplies(AgentHeld):
    """Ten rounds with a file store, in a folder of its own."""

    max_iterations = 4

    def __init__(self, held: int) -> None:
        folder = mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder)
        super().__init__(held, takes_back=False, rounds=ROUNDS, store=FileStateStore(folder))


def saving() -> Group:
    """Ten rounds that are saved in a file 22 times, where messages are held already."""
    base = per("save 0/agentrt")
    return Group(
        [
            Line(
                f"save {ROUNDS} rounds, 0 held", "ms", base, per("W3 N=0/agentrt"), to="no store", per_unit=MILLISECONDS
            ),
            *(
                Line(
                    f"   {held:,} held",
                    "ms",
                    per(f"save {held}/agentrt"),
                    base,
                    target=target,
                    to="0 held",
                    per_unit=MILLISECONDS,
                )
                for held, target in ((2_000, None), (20_000, 2.0))
            ),
        ],
        [
            agent_series(f"save {held}", partial(SavedReplies, held), counted=0)  # a thread writes
            for held in (0, 2_000, 20_000)
        ],
    )


def stores() -> Group:
    """One save, and a turn with one tool, in each store, where messages are held already."""
    missing = missing_servers()
    lines = []
    series = [agent_series(f"stores turn {held}", partial(StoreTurn, None, held), counted=0) for held in (0, 20_000)]
    for name, open_store in STORES.items():
        if name in missing:
            continue
        save, turn = ({held: f"stores {name} {what} {held}" for held in HELD} for what in ("save", "turn"))
        first = f"stores {name} first"
        series += [agent_series(save[held], partial(StoreSave, open_store, held), counted=0) for held in HELD]
        series += [agent_series(turn[held], partial(StoreTurn, open_store, held), counted=0) for held in (0, 20_000)]
        series.append(agent_series(first, partial(FirstSave, open_store, 20_000), counted=0))
        lines.append(Line(f"{name}: a save, 0 held", "ms", per(f"{save[0]}/agentrt"), to="", per_unit=MILLISECONDS))
        for held in HELD[1:]:
            more = added(f"{save[held]}/agentrt", f"{save[0]}/agentrt")
            line = Line(f"   {held:,} held, beyond that", "ms", more, constant(MORE_PER_SAVE), target=1, to="0.6 ms")
            lines.append(replace(line, per_unit=MILLISECONDS))
        for held in (0, 20_000):
            saves = [per(f"{save[held]}/agentrt")] * 4
            base = total(per(f"stores turn {held}/agentrt"), *saves)
            line = Line(
                f"   a turn, {held:,} held", "ms", per(f"{turn[held]}/agentrt"), base, target=1.2 if held else None
            )
            lines.append(replace(line, to="4 saves", per_unit=MILLISECONDS))
        one = per(f"{first}/agentrt")
        line = Line("   the first save of 20,000", "ms", one, constant(1e6), target=1, to="1 s", per_unit=MILLISECONDS)
        lines.append(line)
    return Group(lines, series, notes=[f"{name} is left out: {reason}" for name, reason in missing.items()])


def concurrent_tools() -> Group:
    """Two and ten tool calls in one round."""
    lines, series = [], []
    for calls in (2, 10):
        for suffix, tool in (("", add), (" that wait", add_later)):
            name = f"batch {calls}{suffix}"
            series += sides(
                name,
                partial(FloorChat, 1, calls=calls, tool=tool),
                partial(RichChat, 1, calls=calls, tool=tool),
                partial(AgentChat, 1, calls=calls, tool=tool),
            )
            lines.append(three_sides(f"{calls} concurrent tools{suffix}", "us", key_of(name)))
    return Group(lines, series)


def delegations() -> Group:
    """A call of a sub-agent beyond one of a function, compared with a turn of the sub-agent alone."""
    series = [
        agent_series(f"call of {what}", partial(AgentDelegation, asks_agent=what == "agent"))
        for what in ("agent", "function")
    ]
    beyond = added(series[0].key, series[1].key)
    return Group([Line("a delegation", "us", beyond, per("W1/agentrt"), target=3, to="turn")], series)


def idle_middlewares() -> Group:
    """Ten rounds within each middleware that ships, which has nothing to do, as a share of a round."""
    makers: dict[str, Callable[[], AgentChat]] = {"a layer that passes on": lambda: AgentChat(within=[PassOnAll()])}
    for name, make in IDLE.items():
        makers[name] = lambda make=make: AgentChat(within=[make()])  # type: ignore[misc]
    return share_of_round("idle", makers, target=0.2)


def tracing() -> Group:
    """Ten rounds within a tracing layer: without a provider, not sampled, recording."""
    makers = {"tracing, no provider": lambda: AgentChat(within=[IDLE["TracingMiddleware"]()])}
    if find_spec("opentelemetry.sdk") is not None:
        makers["tracing, not sampled"] = lambda: AgentChat(within=[make_tracing(samples=False)])
        makers["tracing, recording"] = lambda: AgentChat(within=[make_tracing(samples=True)])
    return share_of_round("tracing", makers)


def share_of_round(group: str, makers: dict[str, Callable[[], AgentChat]], target: float | None = None) -> Group:
    """Return the lines that say what these add to ten rounds, as a share of them."""
    base = "W3 N=0/agentrt"
    series = {name: agent_series(f"{group} {name}", make) for name, make in makers.items()}
    return Group(
        [
            Line(name, "us/round", added(one.key, base, ROUNDS), per(base, ROUNDS), target=target, to="round")
            for name, one in series.items()
        ],
        [*series.values()],
    )


def rate_limit_queue() -> Group:
    """Calls that wait for one place between them."""
    floor, agentrt = "queue/floor", "queue/agentrt"
    return Group(
        [Line("a call in a rate limit's queue", "us", per(agentrt, CALLS), per(floor, CALLS), target=3.1)],
        [Series(floor, FloorQueue, counted=1), Series(agentrt, AgentQueue, counted=1)],
    )


def trio() -> Group:
    """W1, W2 and W4 on trio."""
    one_turn, ten_rounds = per("trio W1/agentrt"), per("trio W2/agentrt")
    delta = per("trio W4/agentrt", DELTAS)
    return Group(
        [
            Line("W1 on trio", "us", one_turn, per("W1/agentrt"), to="asyncio"),
            Line("W2 on trio", "us", ten_rounds, per("W3 N=0/agentrt"), target=1.8, to="asyncio"),
            Line("W4 a delta on trio", "us", delta, per("W4 N=0/agentrt", DELTAS), to="asyncio"),
            Line("W4 a delta, both on trio", "us", delta, per("trio W4/floor", DELTAS)),
        ],
        [
            agent_series("trio W1", lambda: AgentChat(0), backend="trio"),
            agent_series("trio W2", AgentChat, backend="trio"),
            agent_series("trio W4", AgentStream, backend="trio", counted=1),
            Series("trio W4/floor", FloorStream, "trio", counted=1),
        ],
    )


GROUPS: dict[str, Callable[[], Group]] = {
    "users": as_users_run,
    "W1": one_turn,
    "W2": ten_rounds,
    "W3": call_layers,
    "W4": deltas,
    "W5": concurrent_replies,
    "W6": construction,
    "W7": long_conversations,
    "save": saving,
    "batch": concurrent_tools,
    "delegation": delegations,
    "idle": idle_middlewares,
    "tracing": tracing,
    "queue": rate_limit_queue,
    "trio": trio,
    "stores": stores,  # last, since what its drivers leave in the process slows others down
}


@dataclass(slots=True)
class Choice:
    """The lines that were asked for, and what must be measured for them."""

    lines: list[Line]
    series: list[Series] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def choose(names: Iterable[str]) -> Choice:
    """Return these groups, and what their lines compare themselves with in other groups."""
    names, groups = [*names], {name: make() for name, make in GROUPS.items()}
    lines = [line for name in names for line in groups[name].lines]
    keys = frozenset().union(*(line.keys for line in lines))
    return Choice(
        lines,
        [one for group in groups.values() for one in group.series if one.key in keys],
        [probe for group in groups.values() for probe in group.probes if probe.keys & keys],
        [note for name in names for note in groups[name].notes],
    )


def all_lines() -> list[Line]:
    """Return all lines of the table."""
    return choose(GROUPS).lines


def all_series() -> list[Series]:
    """Return all series of this process."""
    return choose(GROUPS).series
