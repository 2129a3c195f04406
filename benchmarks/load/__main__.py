"""Measure what one server, its store and several workers carry, and print the figures of the page "Sizing".

usage: python -m benchmarks.load [--only PART ...] [--quick] [--parked N] [--seconds N] [--json FILE]
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.load.client import Client
from benchmarks.load.server import Server, serve
from benchmarks.load.users import Outcome, answer_questions, ask_at_once, converse, park, read_and_leave
from benchmarks.options import positive, report_file

__all__ = ["main"]

_WORDS = 20
_CLIENTS = 50
Figures = dict[str, Any]
_Part = Callable[[argparse.Namespace, Path], Coroutine[Any, Any, list[Figures]]]


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores")
    report: dict[str, list[Figures]] = {}
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            report[name] = asyncio.run(_PARTS[name](options, Path(folder)))
        for figures in report[name]:
            print(f"{name}: {', '.join(f'{key} {value}' for key, value in figures.items())}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench --load", description="Measure what servers carry.")
    parser.add_argument("--only", nargs="+", choices=list(_PARTS), default=list(_PARTS), metavar="PART",
                        help=f"these parts: {', '.join(_PARTS)}")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="a tenth of it, for a look")
    parser.add_argument("--parked", type=positive, default=10_000, metavar="N", help="conversations that wait")
    parser.add_argument("--seconds", type=positive, default=60, metavar="N", help="of 300 conversations at once")
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write the figures there")
    options = parser.parse_args(arguments)
    if options.quick:
        options.parked, options.seconds = options.parked // 10, 6
    return options


async def measure_replies(options: argparse.Namespace, folder: Path) -> list[Figures]:
    """Replies of 20 words, by 50 clients that each ask again at once, in one process over each store."""
    stores = {"memory": "memory:", "files": "file:sessions", "SQLite": "sqlite:full.db", "SQLite, process": None}
    found = []
    for name, store in stores.items():
        with serve(folder, store) as server:
            found.append({"store": name, **await _measure_talk(options, [server])})
    with serve(folder, words=10 * _WORDS) as server:  # the difference is what an event costs
        found.append({"store": f"the last, {10 * _WORDS} words", **await _measure_talk(options, [server], 10 * _WORDS)})
    return found


async def measure_workers(options: argparse.Namespace, folder: Path) -> list[Figures]:
    """The same with 1, 2 and 4 processes, that share one PostgreSQL, and the clients."""
    url = os.environ.get("DATABASE_URL")
    if url is None:
        return [{"left out": "DATABASE_URL names no PostgreSQL"}]
    found = []
    for count in (1, 2, 4):
        with ExitStack() as opened:
            servers = [opened.enter_context(serve(folder, url)) for _ in range(count)]
            found.append({"workers": count, **await _measure_talk(options, servers)})
    return found


async def _measure_talk(options: argparse.Namespace, servers: Sequence[Server], words: int = _WORDS) -> Figures:
    share, turns = _CLIENTS // len(servers), 1 if options.quick else 8
    for server in servers:  # what a process builds once is built by the first replies
        await converse(server.port, 5, turns=1, words=words, cut_every=0, prefix=f"warm-{server.port}")
    before = sum(server.cpu_seconds for server in servers)
    talks = [
        converse(server.port, share, turns=turns, words=words, cut_every=0, prefix=f"talk-{server.port}")
        for server in servers
    ]
    outcomes: list[Outcome] = await asyncio.gather(*talks)
    replies = sum(outcome.replies for outcome in outcomes)
    cpu = sum(server.cpu_seconds for server in servers) - before
    return {
        "replies": replies,
        "errors": sum(len(outcome.errors) + outcome.lost + outcome.doubled for outcome in outcomes),
        "per second": round(replies / max(outcome.seconds for outcome in outcomes), 1),
        "ms of a core each": round(1000 * cpu / replies, 1),
        "per second and core": round(replies / cpu, 1),
    }


async def measure_streams(options: argparse.Namespace, folder: Path) -> list[Figures]:
    """Readers of replies that are in progress: what each one takes while it waits."""
    found, counts = [], (30, 90) if options.quick else (300, 900)
    for count in counts:
        with serve(folder, pause=3600.0) as server:
            # One conversation in progress for each three readers.
            replies = [(f"slow-{number}", f"r-{number}") for number in range(count // 3)]
            async with Client(server.port) as client:
                for session, reply in replies:
                    path, key = f"/api/sessions/{session}/replies", {"Idempotency-Key": reply}
                    await client.request("POST", path, {"input": "Hi"}, key)
                before, opened = server.megabytes, server.descriptors
            held = [await _hold_open(server.port, *replies[number % len(replies)]) for number in range(count)]
            kilobytes = 1024 * (server.megabytes - before) / count
            found.append(
                {
                    "streams": count,
                    "KB each": round(kilobytes, 1),
                    "descriptors each": round((server.descriptors - opened) / count, 2),
                }
            )
            for client, stream in held:
                await stream.aclose()
                await client.disconnect()
            server.process.kill()  # its replies would be waited for
    return found


async def _hold_open(port: int, session: str, reply: str) -> tuple[Client, Any]:
    client = Client(port)
    stream = client.events("GET", f"/api/replies/{reply}/events?session={session}")
    await anext(stream)
    return client, stream


async def measure_parked(options: argparse.Namespace, folder: Path) -> list[Figures]:
    """Conversations that wait for an answer, over a restart: memory, the disk, and the time to the first answer."""
    sessions = [f"parked-{number}" for number in range(options.parked)]
    with serve(folder) as server:
        empty = server.megabytes
        parked = await park(server.port, sessions)
        full = server.megabytes
    size = _size_of(folder)
    with serve(folder) as server:
        restarted = server.megabytes
        began_at = perf_counter()
        async with Client(server.port) as client:
            is_ready = (await client.request("GET", "/readyz")).status == 200
        ready = perf_counter() - began_at
        first = await answer_questions(server.port, sessions[:1])
        answered = await answer_questions(server.port, sessions[1:])
        last = server.megabytes
    return [{
        "parked": parked.statuses[200],
        "ready": is_ready,
        "answered after the restart": first.replies + answered.replies,
        "MB at the start": round(empty),
        "MB with all parked": round(full),
        "MB after the restart": round(restarted),
        "MB after all answers": round(last),
        "KB on the disk each": round(size / 1024 / options.parked, 1),
        "seconds to start": round(server.start_seconds + ready, 2),
        "seconds from ready to the first answer": round(first.first, 2),
    }]  # fmt: skip


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("agent.db*"))


async def measure_talk(options: argparse.Namespace, folder: Path) -> list[Figures]:
    """300 conversations at once; each fifth reader is cut again and again."""
    with serve(folder, pause=0.05) as server:
        outcome = await converse(server.port, 300, seconds=options.seconds, words=_WORDS)
        return [{
            "conversations": 300,
            "replies": outcome.replies,
            "events": outcome.events,
            "cuts": outcome.cuts,
            "lost": outcome.lost,
            "doubled": outcome.doubled,
            "errors": len(outcome.errors),
            "seconds": round(outcome.seconds),
            "ms of a core for each reply": round(1000 * server.cpu_seconds / max(1, outcome.replies), 1),
        }]  # fmt: skip


async def measure_bursts(options: argparse.Namespace, folder: Path) -> list[Figures]:
    """990 posts, and 1,800 readers that come and go, each at one moment."""
    with serve(folder) as server:
        posts = await ask_at_once(server.port, 990)
        await converse(server.port, 1, turns=1, words=_WORDS, prefix="read")
        readers = await read_and_leave(server.port, "read-0", "read-0-1", 1800)
        return [{"posts": dict(posts.statuses), "readers": dict(readers.statuses)}]


async def measure_mixed(options: argparse.Namespace, folder: Path) -> list[Figures]:
    """Rounds of conversations, questions, cut readers and deletions: memory and descriptors after each."""
    found, rounds = [], 3 if options.quick else 12
    with serve(folder) as server:
        for number in range(rounds):
            names = [f"q{number}-{index}" for index in range(50)]
            talked = await converse(server.port, 100, turns=2, words=_WORDS, prefix=f"t{number}")
            await park(server.port, names)
            answered = await answer_questions(server.port, names)
            await read_and_leave(server.port, f"t{number}-0", f"t{number}-0-1", 100)
            async with Client(server.port) as client:
                for name in [*names, *(f"t{number}-{index}" for index in range(100))]:
                    await client.request("DELETE", f"/api/sessions/{name}")
            problems = talked.lost + talked.doubled + len(talked.errors) + 50 - answered.replies
            found.append({"round": number, "errors": problems, "MB": round(server.megabytes, 1),
                          "descriptors": server.descriptors})  # fmt: skip
    return found


_PARTS: dict[str, _Part] = {
    "replies": measure_replies,
    "workers": measure_workers,
    "streams": measure_streams,
    "parked": measure_parked,
    "talk": measure_talk,
    "bursts": measure_bursts,
    "mixed": measure_mixed,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
