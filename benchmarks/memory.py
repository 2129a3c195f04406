"""The memory of replies that wait for their models, in fresh processes."""

import tracemalloc
from collections.abc import Mapping

import anyio

from benchmarks.processes import RESIDENT, run_python
from benchmarks.workloads.concurrent import AgentReplies, FloorReplies, Replies, RichReplies

__all__ = ["SIDES", "measure_memory", "traced_bytes"]

SIDES: Mapping[str, type[Replies]] = {"floor": FloorReplies, "rich": RichReplies, "agentrt": AgentReplies}

PEAK = """
import anyio
from benchmarks.memory import SIDES
replies = SIDES["{side}"]({count})
anyio.run(SIDES["{side}"](10))
before = resident("VmRSS")
anyio.run(replies)
print((resident("VmHWM") - before) / {count})
"""


def measure_memory(count: int) -> dict[str, float]:
    """Return bytes per reply: what Python has in use while all wait, and the most that the process grows by."""
    sample = {}
    for side in SIDES:
        program = f"from benchmarks.memory import traced_bytes\nprint(traced_bytes({side!r}, {count}))"
        sample[f"waiting {count}/{side}"] = run_python(program)[0]
        sample[f"peak {count}/{side}"] = run_python(RESIDENT + PEAK.format(side=side, count=count))[0]
    return sample


def traced_bytes(side: str, count: int) -> float:
    """Return the bytes of Python objects per waiting reply, in this process."""
    bytes_in_use = 0

    def look() -> None:
        nonlocal bytes_in_use
        bytes_in_use, _ = tracemalloc.get_traced_memory()

    replies = SIDES[side](count, look)
    anyio.run(SIDES[side](10))
    tracemalloc.start()
    anyio.run(replies)
    tracemalloc.stop()
    return bytes_in_use / count
