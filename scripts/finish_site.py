"""Finish the site in `site/`: check that its reference has every public name, and add the text of all pages."""

import sys
import zlib
from pathlib import Path

from scripts.reference import generated_files
from scripts.reference.modules import MODULES, public_names
from scripts.reference.site_map import llms_full_txt, llms_txt

SITE = Path(__file__).resolve().parents[1] / "site"


def main() -> str | None:
    """Return what is wrong, `None` if nothing is."""
    generated = generated_files()
    (SITE / "llms.txt").write_text(llms_txt(generated), encoding="utf-8")
    (SITE / "llms-full.txt").write_text(llms_full_txt(generated), encoding="utf-8")
    listed = names_in((SITE / "objects.inv").read_bytes())
    public = [f"{name.module}.{name.name}" for module in MODULES for name in public_names(module)]
    missing = [name for name in public if name not in listed]
    return f"the reference lacks {', '.join(missing)}" if missing else None


def names_in(inventory: bytes) -> set[str]:
    """Return the names in an inventory of Sphinx's second format: four lines of text, then compressed lines."""
    compressed = inventory.split(b"\n", 4)[4]
    return {line.split()[0] for line in zlib.decompress(compressed).decode().splitlines()}


if __name__ == "__main__":
    sys.exit(main())
