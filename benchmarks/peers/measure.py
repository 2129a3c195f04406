"""The workloads, on whichever peer is given; each is checked against the script, and its failure is its result."""

import asyncio
import functools
import gc
import inspect
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.peers import script
from benchmarks.peers.peer import PeerBase
from benchmarks.peers.script import expect

__all__ = ["Cell", "count_calls", "measure_peer", "resident_mb"]

BATCH_SECONDS = 0.005
MIN_BATCHES = 2
MIN_REPEATS = 4  # of what is timed one by one
TURNS_IN_CONVERSATION = 10  # so few that it stays about as long
INTERCEPTED = script.ROUNDS + 1 + script.ROUNDS  # the model calls and the tool calls of one run

Cell = dict[str, float | str]
"""One figure as "value", or why there is none: "absent" for a peer without the concept, "error" for a failed run."""


async def measure_peer(peer: PeerBase, seconds: float) -> dict[str, Cell]:
    """Return every figure; each workload has about this long, and at least two batches."""
    workloads: dict[str, tuple[str, Callable[[], Awaitable[float]]]] = {
        "W1": ("W1", functools.partial(time_chat, peer, seconds)),
        "W5": ("W5", functools.partial(run_concurrently, peer, seconds)),
        "W5 memory": ("W5", functools.partial(trace_memory, peer)),
        "W6": ("W6", functools.partial(time_construction, peer, seconds)),
    }
    for depth in script.DEPTHS:
        chat = functools.partial(time_chat, peer, seconds, rounds=script.ROUNDS, layers=depth)
        stream = functools.partial(time_stream, peer, seconds, layers=depth)
        workloads[f"W3 N={depth}"] = ("W3" if depth else "W2", chat)
        workloads[f"W4 N={depth}"] = ("W4 layers" if depth else "W4", stream)
    for held in script.HELD:
        workloads[f"W7 {held}"] = ("W7", functools.partial(time_held, peer, seconds, held=held))
    return {key: await fill_cell(peer, concept, workload) for key, (concept, workload) in workloads.items()}


async def fill_cell(peer: PeerBase, concept: str, workload: Callable[[], Awaitable[float]]) -> Cell:
    """Run one workload, and return what it gave."""
    if concept in peer.absent:
        return {"absent": peer.absent[concept]}
    try:
        return {"value": await workload()}
    except Exception as error:  # noqa: BLE001  # whatever a peer raises belongs into its cell, and the others run
        return {"error": f"{type(error).__name__}: {error}"}


async def time_chat(peer: PeerBase, seconds: float, rounds: int = 0, layers: int = 0) -> float:
    """Return microseconds per turn of so many rounds within so many layers."""
    tools = [script.add] if rounds else []
    await check_layers(peer, tools, rounds, layers)
    model = peer.make_model(rounds)
    agent = peer.make_agent(model, tools, layers)
    turn = functools.partial(peer.take_first_turn, agent)
    best = await time_batches(turn, script.ANSWER, seconds)
    expect(peer.results(model), script.expected_results(rounds))
    return best


async def check_layers(peer: PeerBase, tools: Sequence[script.Tool], rounds: int, layers: int) -> None:
    """Run once with counters in the layers, which the timed runs do not have."""
    with count_calls(peer.layers) as count:
        model = peer.make_model(rounds)
        agent = peer.make_agent(model, tools, layers)
        expect(await peer.take_first_turn(agent), script.ANSWER)
        expect(peer.results(model), script.expected_results(rounds))
        expect(f"{count()} calls of a layer", f"{layers * (2 * rounds + 1)} calls of a layer")


async def time_stream(peer: PeerBase, seconds: float, layers: int = 0) -> float:
    """Return microseconds per streamed answer within so many layers."""
    whole = (script.DELTAS, script.PIECE * script.DELTAS)
    with count_calls(peer.stream_layers, items=True) as count:
        agent = peer.make_streaming_agent(peer.make_streaming_model(), layers)
        expect(await peer.stream_first_turn(agent), whole)
        if count() < layers * script.DELTAS:  # some see starts and ends as well
            raise script.WrongRunError(f"{layers} layers saw {count()} deltas, not {script.DELTAS} each")
    agent = peer.make_streaming_agent(peer.make_streaming_model(), layers)
    return await time_batches(functools.partial(peer.stream_first_turn, agent), whole, seconds)


async def time_held(peer: PeerBase, seconds: float, held: int) -> float:
    """Return microseconds for one more turn in a conversation that began with so many messages."""
    model = peer.make_model()
    agent = peer.make_agent(model)
    conversation = await continue_conversation(peer, agent, model, held)
    best = float("inf")
    deadline = perf_counter() + seconds
    turns = 0
    while turns < MIN_REPEATS or perf_counter() < deadline:
        start = perf_counter()
        answer = await peer.take_turn(conversation)
        best = min(best, perf_counter() - start)
        expect(answer, script.ANSWER)
        turns += 1
        if not turns % TURNS_IN_CONVERSATION:
            conversation = await continue_conversation(peer, agent, model, held)
    return best * 1e6


async def continue_conversation(peer: PeerBase, agent: Any, model: Any, held: int) -> Any:
    """Return a conversation with so many messages and one turn after them, so that a turn is one more."""
    conversation = await peer.open_conversation(agent, held)
    expect(await peer.take_turn(conversation), script.ANSWER)
    if peer.request_length(model) <= held:  # most send their system prompt as a message, some beside them
        raise script.WrongRunError(f"the model saw {peer.request_length(model)} messages, but {held} are held")
    return conversation


async def time_construction(peer: PeerBase, seconds: float) -> float:
    """Return microseconds for an agent of ten tools and ten layers, which then works."""
    model = peer.make_model()
    layers = 0 if "W3" in peer.absent else script.TOOLS
    best = float("inf")
    deadline = perf_counter() + seconds
    repeats = 0
    while repeats < MIN_REPEATS or perf_counter() < deadline:
        tools = script.make_functions()
        start = perf_counter()
        agent = peer.make_agent(model, tools, layers)
        best = min(best, perf_counter() - start)
        del agent
        repeats += 1
    await check_layers(peer, script.make_functions(), rounds=1, layers=layers)
    return best * 1e6


async def run_concurrently(peer: PeerBase, seconds: float) -> float:
    """Return microseconds per run beyond the model's time, of so many runs at once."""
    agent = peer.make_agent(peer.make_model(seconds=script.MODEL_SECONDS))
    await run_conversations(peer, await open_conversations(peer, agent, script.CONCURRENT_RUNS // 20))
    best = float("inf")
    deadline = perf_counter() + 5 * seconds
    while best == float("inf") or perf_counter() < deadline:
        conversations = await open_conversations(peer, agent, script.CONCURRENT_RUNS)
        gc.collect()
        start = perf_counter()
        await run_conversations(peer, conversations)
        best = min(best, perf_counter() - start - script.MODEL_SECONDS)
    return best / script.CONCURRENT_RUNS * 1e6


async def trace_memory(peer: PeerBase) -> float:
    """Return kilobytes per concurrent run at the peak, as Python's allocator counts them."""
    agent = peer.make_agent(peer.make_model(seconds=script.MODEL_SECONDS))
    await run_conversations(peer, await open_conversations(peer, agent, script.TRACED_RUNS // 10))
    conversations = await open_conversations(peer, agent, script.TRACED_RUNS)
    gc.collect()
    tracemalloc.start()
    try:
        await run_conversations(peer, conversations)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak / script.TRACED_RUNS / 1e3


async def open_conversations(peer: PeerBase, agent: Any, count: int) -> list[Any]:
    return [await peer.open_conversation(agent) for _ in range(count)]


async def run_conversations(peer: PeerBase, conversations: Sequence[Any]) -> None:
    answers = await asyncio.gather(*[peer.take_turn(conversation) for conversation in conversations])
    expect(answers, [script.ANSWER] * len(conversations))


async def time_batches(run: Callable[[], Awaitable[object]], expected: object, seconds: float) -> float:
    """Return microseconds per run in the fastest batch; each run must give what is expected."""
    start = perf_counter()
    expect(await run(), expected)
    iterations = max(1, round(BATCH_SECONDS / (perf_counter() - start)))
    best = float("inf")
    deadline = perf_counter() + seconds
    batches = 0
    while batches < MIN_BATCHES or perf_counter() < deadline:
        start = perf_counter()
        for _ in range(iterations):
            actual = await run()
            if actual != expected:
                expect(actual, expected)
        best = min(best, (perf_counter() - start) / iterations)
        batches += 1
    return best * 1e6


@contextmanager
def count_calls(functions: Sequence[tuple[object, str]], *, items: bool = False) -> Iterator[Callable[[], int]]:
    """Count the calls of these functions while the block runs, or the items of those that are generators."""
    count = 0

    def increment() -> None:
        nonlocal count
        count += 1

    originals = [(owner, name, getattr(owner, name)) for owner, name in functions]
    for owner, name, function in originals:
        setattr(owner, name, counting(function, increment, items))
    try:
        yield lambda: count
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def counting(function: Callable[..., Any], increment: Callable[[], None], items: bool) -> Callable[..., Any]:
    """Return the same function with a counter; most peers look at whether it is a coroutine or a generator."""
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            if not items:
                increment()
            async for item in function(*args, **kwargs):
                if items:
                    increment()
                yield item

        return stream
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            increment()
            return await function(*args, **kwargs)

        return call

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        increment()
        return function(*args, **kwargs)

    return plain


def resident_mb() -> Cell:
    try:
        return {"value": read_status("VmRSS") / 1e3}
    except OSError:
        return {"absent": "only Linux tells"}


def read_status(field: str) -> float:
    """Return a field of Linux's account of this process, in kilobytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(field)))
