"""What `import agentrt` takes in a fresh process, and what those modules of its dependencies take that it loads."""

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["import_agentrt", "import_dependencies", "modules_of_dependencies"]

ROOT = Path(__file__).resolve().parents[1]
DEPENDENCIES = ("anyio", "opentelemetry", "pydantic", "pydantic_core", "shortuuid", "typing_extensions")


def modules_of_dependencies() -> list[str]:
    """Return the modules of the dependencies that `import agentrt` loads, in that order."""
    names = run_python("import sys, agentrt; print(*sys.modules)").split()
    return [name for name in names if name.partition(".")[0] in DEPENDENCIES]


def import_agentrt() -> float:
    """Return how many microseconds it takes."""
    return time_statement("import agentrt")


def import_dependencies(modules: list[str]) -> float:
    """Return how many microseconds these modules take, with what they import themselves."""
    return time_statement(f"for name in {modules}: __import__(name)")


def time_statement(statement: str) -> float:
    printed = run_python(
        f"from time import perf_counter\nstart = perf_counter()\n{statement}\nprint(perf_counter() - start)"
    )
    return float(printed) * 1e6


def run_python(program: str) -> str:
    path = os.pathsep.join([str(ROOT), str(ROOT / "middleware")])
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
