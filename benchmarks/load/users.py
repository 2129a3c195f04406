"""What users of a server do, all at once, and what became of it."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from benchmarks.load.app import PAY, answer_of
from benchmarks.load.client import Client, RefusedError, StreamEvent

__all__ = ["Outcome", "answer_questions", "ask_at_once", "converse", "park", "read_and_leave", "side_by_side"]

_PATIENCE = 120.0


@dataclass
class Outcome:
    """What was counted: replies that ended, events, and what went wrong."""

    replies: int = 0
    events: int = 0
    cuts: int = 0
    lost: int = 0  # replies whose text lacks something
    doubled: int = 0  # events that came twice
    errors: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0
    first: float = 0.0  # seconds until the first event of the first reply


async def side_by_side(count: int, jobs: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Do all jobs, `count` at a time."""
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            await job()

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(work())


async def ask_at_once(port: int, count: int, prefix: str = "burst") -> Outcome:
    """Post one message to each of `count` new sessions, all at the same moment; reads no reply."""
    outcome, connected = Outcome(), asyncio.Barrier(count)

    async def ask(number: int) -> None:
        async with Client(port) as client:
            await client.request("GET", "/healthz")
            await connected.wait()
            answer = await client.request("POST", f"/api/sessions/{prefix}-{number}/replies", {"input": "Hi"})
            outcome.statuses[answer.status] += 1

    await _all(ask(number) for number in range(count))
    return outcome


async def read_and_leave(port: int, session: str, reply: str, count: int, events: int = 3) -> Outcome:
    """Have `count` readers follow one reply and leave it after some events, all at the same moment."""
    outcome = Outcome()

    async def read(number: int) -> None:
        async with Client(port) as client:
            try:
                stream = client.events("GET", f"/api/replies/{reply}/events?session={session}")
                async with aclosing(stream):
                    for _ in range(events):
                        await anext(stream)
                outcome.statuses[200] += 1
            except RefusedError as error:
                outcome.statuses[error.answer.status] += 1

    await _all(read(number) for number in range(count))
    return outcome


async def converse(
    port: int, count: int, *, turns: int = 0, seconds: float = 0.0, words: int, cut_every: int = 5, prefix: str = "talk"
) -> Outcome:
    """Have `count` conversations at once, of so many turns, or for so many seconds.

    The reader of each `cut_every`-th one is cut again and again, and comes back with the number of its last event.
    """
    outcome, began_at = Outcome(), perf_counter()

    async def talk(number: int) -> None:
        chance, session, turn = random.Random(number), f"{prefix}-{number}", 0
        while turn < turns or perf_counter() - began_at < seconds:
            turn += 1
            is_cut = bool(cut_every) and number % cut_every == 0
            try:
                async with asyncio.timeout(_PATIENCE):
                    await _take_turn(port, session, turn, outcome, chance if is_cut else None, words)
            except (RefusedError, OSError, EOFError, TimeoutError) as error:
                outcome.errors.append(f"{session}, turn {turn}: {type(error).__name__} {error!s:.200}")

    await _all(talk(number) for number in range(count))
    outcome.seconds = perf_counter() - began_at
    return outcome


async def _take_turn(
    port: int, session: str, turn: int, outcome: Outcome, chance: random.Random | None, words: int
) -> None:
    reply, last, texts, is_done = f"{session}-{turn}", 0, list[str](), False
    key = {"Idempotency-Key": reply}
    while not is_done:
        async with Client(port) as client:
            if last:
                path = f"/api/replies/{reply}/events?session={session}"
                stream = client.events("GET", path, headers={"Last-Event-ID": str(last)})
            else:
                stream = client.events("POST", f"/api/sessions/{session}/replies", {"input": "Hi"}, key)
            # After some events, and with nothing between the cut and the next request.
            limit = chance.randrange(1, words) if chance is not None else None
            async with aclosing(stream):
                async for event in _first(stream, limit):
                    if not event.number:
                        is_done = event.data["status"] == "completed"
                        break
                    outcome.events += 1
                    outcome.doubled += event.number <= last
                    last = max(last, event.number)
                    if event.data["type"] == "TEXT_BLOCK_DELTA":
                        texts.append(event.data["delta"])
            outcome.cuts += not is_done
    outcome.replies += 1
    outcome.lost += "".join(texts) != answer_of(turn, words)


async def _first(stream: AsyncGenerator[StreamEvent, None], limit: int | None) -> AsyncGenerator[StreamEvent, None]:
    count = 0
    async for event in stream:
        yield event
        count += 1
        if count == limit:
            return


async def park(port: int, sessions: Iterable[str], at_once: int = 50) -> Outcome:
    """Bring each session to a question, which waits from then on."""
    outcome, began_at = Outcome(), perf_counter()

    async def ask(session: str) -> None:
        async with Client(port) as client:
            stream = client.events(
                "POST", f"/api/sessions/{session}/replies", {"input": PAY}, {"Idempotency-Key": f"{session}-pay"}
            )
            events = [event async for event in stream]
            outcome.statuses[200] += events[-1].data["status"] == "waiting"
            outcome.replies += 1

    await side_by_side(at_once, [_bind(ask, session) for session in sessions])
    outcome.seconds = perf_counter() - began_at
    return outcome


async def answer_questions(port: int, sessions: Iterable[str], at_once: int = 50) -> Outcome:
    """Read the question of each session, say yes, and follow the reply to its end."""
    outcome, began_at = Outcome(), perf_counter()

    async def answer(session: str) -> None:
        async with Client(port) as client:
            waiting = (await client.request("GET", f"/api/sessions/{session}")).value["waiting"]
            calls = {call["id"]: True for call in waiting["tool_calls"]}
            body = {"answer": {"reply_id": waiting["reply_id"], "calls": calls}}
            async for event in client.events("POST", f"/api/sessions/{session}/replies", body):
                outcome.first = outcome.first or perf_counter() - began_at
                outcome.events += 1
                if not event.number:
                    outcome.replies += event.data["status"] == "completed"

    await side_by_side(at_once, [_bind(answer, session) for session in sessions])
    outcome.seconds = perf_counter() - began_at
    return outcome


def _bind(job: Callable[[str], Awaitable[None]], session: str) -> Callable[[], Awaitable[None]]:
    return lambda: job(session)


async def _all(jobs: Iterable[Any]) -> None:
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(job)
