"""Programs in fresh processes of this Python, with this checkout on their path."""

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["RESIDENT", "ROOT", "run_python"]

ROOT = Path(__file__).resolve().parents[1]

RESIDENT = """
def resident(name):  # bytes in memory: "VmRSS" now, "VmHWM" at most
    try:
        lines = open("/proc/self/status").read().splitlines()
    except OSError:  # not Linux: only the most, in bytes on macOS
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
"""


def run_python(program: str) -> list[float]:
    """Run the program, and return the numbers that it printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "middleware")])}
    command = [sys.executable, "-c", program]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(number) for number in finished.stdout.split()]
