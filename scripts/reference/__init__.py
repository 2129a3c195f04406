"""The pages of the reference and the pictures, made from the code; `python -m scripts.reference` writes them."""

from pathlib import Path

from scripts.reference import events, hooks, models, modules, pictures, protocols, state

__all__ = ["FOLDER", "generated_files"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs"


def generated_files() -> dict[Path, str]:
    """Return the text of each generated file."""
    makers = modules, events, hooks, models, state, protocols
    pages = {FOLDER / "reference" / name: text for maker in makers for name, text in maker.pages().items()}
    return {**pages, **pictures.pictures()}
