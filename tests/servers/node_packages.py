"""Programs and libraries of Node.js that tests use, as `package-lock.json` names them."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

import dev
from tests.services import needs, unavailable

__all__ = ["cache_folder", "install"]

HERE = Path(__file__).parent


def cache_folder(config: pytest.Config, temporary: pytest.TempPathFactory, name: str = "node") -> Path:
    """Return where to install: in pytest's cache, which git and packages leave out, if there is one."""
    cache = getattr(config, "cache", None)
    return temporary.mktemp(name) if cache is None else Path(cache.mkdir(name))


def install(folder: Path, service: str, manifest: Path = HERE) -> Path:
    """Return the folder `node_modules`, installed into this folder unless it is there; for the named service.

    `manifest` is the folder with the `package-lock.json` that says what.
    """
    needs(service, "node", "npm")
    modules = folder / "node_modules"
    stamp = folder / "stamp"
    checksum = hashlib.sha256((manifest / "package-lock.json").read_bytes()).hexdigest()
    with dev.hold_lock(folder / "lock"):
        if stamp.exists() and stamp.read_text() == checksum:
            return modules
        for name in ("package.json", "package-lock.json"):
            shutil.copy(manifest / name, folder)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if finished.returncode:
            unavailable(service, f"npm ci failed: {finished.stderr.strip()[-500:]}")
        stamp.write_text(checksum)
    return modules
