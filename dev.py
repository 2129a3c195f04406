"""Run a job of this project in an environment of its own, which is made on the first run.

usage: python3 dev.py JOB [--] [ARGUMENTS]

  demo    run compiled_chains.py, killed_worker.py and quickstart.py of examples/; with arguments, the last one alone;
          with --serve, serve examples/serve/app.py, by the other arguments of `agentrt serve`
  test    run the tests; arguments go to pytest
  check   lint, formatting, types and the direction of imports
  bench   run the benchmarks; arguments go to benchmarks/run.py, or with --peers, --load or --agentdojo to the folder
          of that name in benchmarks
  docs    build the site into site/; `docs serve` shows it and follows your changes
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

OLDEST_PYTHON = (3, 11)
# What the tests need.
EXTRAS = (
    "openai",
    "anthropic",
    "console",
    "otel",
    "redis",
    "postgres",
    "prices",
    "redaction",
    "rag",
    "pgvector",
    "embedding",
    "cron",
    "durable",
    "serve",
    "acp",
    "code",
    "mcp",
    "sandbox",
    "skills",
    "a2a",
    "bedrock",
    "vertex",
)

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "dev-stamp"


def main(arguments: Sequence[str]) -> int:
    job, rest = (arguments[0], strip_dashes(arguments[1:])) if arguments else ("", [])
    if job in ("-h", "--help"):
        print(__doc__)
        return 0
    if job not in JOBS or (job == "check" and rest):
        print(__doc__, file=sys.stderr)
        return 2
    obstacle = find_obstacle(sys.version_info[:2], has_venv=importlib.util.find_spec("ensurepip") is not None)
    if obstacle:
        print(f"dev.py: {obstacle}", file=sys.stderr)
        return 1
    try:
        prepare()
        return JOBS[job](rest)
    except subprocess.CalledProcessError as error:
        print(f"dev.py: this failed, see above: {shlex.join(error.cmd)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def strip_dashes(arguments: Sequence[str]) -> list[str]:
    return list(arguments[1:] if arguments[:1] == ["--"] else arguments)


def find_obstacle(version: tuple[int, int], *, has_venv: bool) -> str:
    """Say why this Python cannot make the environment; empty when it can."""
    if version < OLDEST_PYTHON:
        return "Python {}.{} is too old, {}.{} or newer is needed".format(*version, *OLDEST_PYTHON)
    if not has_venv:
        return "this Python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv"
    return ""


def demo(arguments: list[str]) -> int:
    # In the caller's folder, not ours: the arguments may name files.
    if "--serve" in arguments:
        rest = [argument for argument in arguments if argument != "--serve"]
        return run(python(), ROOT / "examples" / "serve" / "app.py", *rest, cwd=None)
    for name in () if arguments else ("compiled_chains.py", "killed_worker.py"):
        if code := run(python(), ROOT / "examples" / name):
            return code
        print(flush=True)
    return run(python(), ROOT / "examples" / "quickstart.py", *arguments, cwd=None)


def test(arguments: list[str]) -> int:
    # One process more than cores, since a third of the tests' time they wait for other processes; each takes tests from
    # the others when it has none left. `-n 0` runs them in one.
    processes = str((os.cpu_count() or 1) + 1)
    return run(python(), "-m", "pytest", "-n", processes, "--dist", "worksteal", *arguments)


def check(_: list[str]) -> int:
    codes = [
        run(program("ruff"), "check"),
        run(program("ruff"), "format", "--check"),
        run(program("mypy")),
        run(program("lint-imports"), "--no-logo"),
    ]
    return int(any(codes))


def bench(arguments: list[str]) -> int:
    for package in ("peers", "load", "agentdojo"):
        if f"--{package}" in arguments:
            others = [argument for argument in arguments if argument != f"--{package}"]
            return run(python(), "-m", f"benchmarks.{package}", *others)
    return run(python(), ROOT / "benchmarks" / "run.py", *arguments)


def docs(arguments: list[str]) -> int:
    install_group("docs")
    call(python(), "-m", "scripts.reference")
    if arguments[:1] == ["serve"]:
        return run(program("zensical"), *arguments)
    call(program("zensical"), "build", "--clean", "--strict", *arguments)
    return run(python(), "-m", "scripts.finish_site")


JOBS = {"demo": demo, "test": test, "check": check, "bench": bench, "docs": docs}


def prepare() -> None:
    """Make or mend the environment unless it already fits; a second caller waits for the first."""
    if what_to_do(read_stamp(), wanted_stamp()) == "keep":
        return
    with hold_lock(ROOT / ".venv.lock"):
        todo = what_to_do(read_stamp(), wanted_stamp())
        if todo == "keep":
            return
        print(f"dev.py: preparing {VENV}", file=sys.stderr)
        STAMP.unlink(missing_ok=True)  # so that an interrupted run leaves something to rebuild
        if todo == "rebuild":
            call(sys.executable, "-m", "venv", "--clear", VENV)
            call(python(), "-m", "pip", "install", "--quiet", "uv")  # pip itself may not know dependency groups
        install("--group", "dev", "-e", project())
        install("--no-deps", "--group", "agentdojo", "--group", "bfcl", "--group", "catalog")
        STAMP.write_text(wanted_stamp(), encoding="utf-8")


def install_group(group: str) -> None:
    """Add a group of pyproject.toml, which only one job needs, to the environment."""
    stamp = STAMP.with_name(f"dev-stamp-{group}")
    with hold_lock(ROOT / ".venv.lock"):
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted_stamp():
            install("--group", group)
            stamp.write_text(wanted_stamp(), encoding="utf-8")


def install(*what: str) -> None:
    call(program("uv"), "pip", "install", "--quiet", "--python", python(), *what)


def what_to_do(found: str, wanted: str) -> str:
    """Compare two stamps: "keep" the environment, "update" what is installed in it, or "rebuild" it."""
    if found == wanted:
        return "keep"
    return "update" if found.splitlines()[:1] == wanted.splitlines()[:1] else "rebuild"


def wanted_stamp() -> str:
    """The first line says what an environment cannot survive, the second what an install can put right."""
    project_hash = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    return f"python {platform.python_version()} for {ROOT}\n{project()} {project_hash}\n"


def read_stamp() -> str:
    # An upgrade of the system's Python can leave the environment with a dangling link.
    return STAMP.read_text(encoding="utf-8") if STAMP.exists() and python().exists() else ""


def project() -> str:
    return f".[{','.join(EXTRAS)}]"


def python() -> Path:
    return program("python")


def program(name: str) -> Path:
    return program_in(VENV, name, windows=os.name == "nt")


def program_in(venv: Path, name: str, *, windows: bool) -> Path:
    return venv / "Scripts" / f"{name}.exe" if windows else venv / "bin" / name


@contextlib.contextmanager
def hold_lock(lock: Path) -> Iterator[None]:
    """Hold the lock; the system releases it when this process ends, however it ends."""
    with lock.open("w") as file:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def call(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True)


def run(*command: str | Path, cwd: Path | None = ROOT) -> int:
    return subprocess.run([str(part) for part in command], cwd=cwd, env=environment(), check=False).returncode


def environment() -> dict[str, str]:
    """Return ours, but bytecode is kept, in the environment: hundreds of processes of the tests need not compile."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPYCACHEPREFIX": str(VENV / "bytecode")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
