"""The type checkers that users run, over code of theirs, which sees agentrt as an installed package."""

import json
import subprocess
import sys
from pathlib import Path

__all__ = ["report_of_mypy", "report_of_pyright"]


def report_of_mypy(folder: Path) -> str:
    """Return what `mypy --strict` finds in a folder, empty if nothing."""
    options = ["--strict", "--config-file=", f"--cache-dir={folder / '.mypy_cache'}", "--no-error-summary"]
    return _report(folder, "mypy", *options, ".")


def report_of_pyright(folder: Path) -> str:
    """Return what pyright, in its strict mode, finds in a folder, empty if nothing."""
    # A `type: ignore` without an error is one itself, as in mypy.
    settings = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    return _report(folder, "pyright", "--pythonpath", sys.executable, "--warnings")


def _report(folder: Path, checker: str, *options: str) -> str:
    command = [sys.executable, "-m", checker, *options]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return finished.stdout + finished.stderr if finished.returncode else ""
