"""What an import takes in a fresh process: time, and the memory after it."""

from collections.abc import Mapping

from benchmarks.processes import RESIDENT, run_python

__all__ = ["MODULES", "measure_imports"]

# A loop written by hand needs asyncio and json; `benchmarks` itself is empty.
MODULES: Mapping[str, str] = {
    "floor": "benchmarks.floor",
    "rich": "benchmarks.rich_floor",
    "agentrt": "agentrt",
}

PROGRAM = """
from time import perf_counter
start = perf_counter()
import asyncio, json, {module}
print((perf_counter() - start) * 1e6)
"""


def measure_imports(batches: int = 2) -> dict[str, float]:
    """Return the microseconds and the bytes in memory after it, the least of each; the sides take turns."""
    sample: dict[str, float] = {}
    for _ in range(batches):
        for side, module in MODULES.items():
            microseconds, resident = run_python(PROGRAM.format(module=module) + RESIDENT + 'print(resident("VmRSS"))')
            for key, number in (("import", microseconds), ("resident", resident)):
                sample[f"{key}/{side}"] = min(sample.get(f"{key}/{side}", float("inf")), number)
    return sample
