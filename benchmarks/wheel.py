"""What an installation takes: the wheel that is built from this checkout, in an empty environment, without extras."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.processes import ROOT

__all__ = ["measure_installation", "size_of"]


def measure_installation() -> dict[str, float]:
    """Return the bytes and the number of distributions; nothing where they cannot be installed."""
    with TemporaryDirectory() as folder:
        try:
            site_packages = _install(Path(folder))
        except subprocess.CalledProcessError as error:
            print(f"the size of an installation is skipped: {error.stderr.strip()[-500:]}", file=sys.stderr)
            return {}
        return {
            "installed/agentrt": float(size_of(site_packages)),
            "distributions/agentrt": float(len([*site_packages.glob("*.dist-info")])),
        }


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder, except the bytecode that Python writes on the first import."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc")


def _install(folder: Path) -> Path:
    environment = folder / "environment"
    _run("-m", "uv", "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable,
         "--out-dir", str(folder), str(ROOT))  # fmt: skip
    _run("-m", "venv", "--without-pip", str(environment))
    python = next(path for name in ("bin", "Scripts") for path in (environment / name).glob("python*"))
    _run("-m", "uv", "pip", "install", "--quiet", "--python", str(python), str(next(folder.glob("*.whl"))))
    return next(environment.rglob("site-packages"))


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=ROOT)
