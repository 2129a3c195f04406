"""How much is installed beside this interpreter: what a peer needs on the disk."""

import sysconfig
from importlib.metadata import distributions
from pathlib import Path

__all__ = ["measure_site_packages"]

# They come with an environment, but no peer needs them; the last three are parts of setuptools.
INSTALLERS = ("pip", "setuptools", "wheel", "pkg_resources", "_distutils_hack", "distutils-precedence")


def measure_site_packages() -> dict[str, dict[str, float]]:
    """Return megabytes, without bytecode, and the number of distributions."""
    folder = Path(sysconfig.get_path("purelib"))
    found = [dist for dist in distributions(path=[str(folder)]) if dist.name.lower() not in INSTALLERS]
    size = sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.relative_to(folder).parts[0].startswith(INSTALLERS)
    )
    return {"site-packages": {"value": size / 1e6}, "distributions": {"value": len(found)}}
