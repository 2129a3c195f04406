"""Values of command-line options, refused before anything is measured."""

import argparse
from pathlib import Path

__all__ = ["positive", "report_file"]


def positive(text: str) -> int:
    """Return a number of rounds."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"it must be 1 or more, not {number}")
    return number


def report_file(text: str) -> Path:
    """Return the path of a file in a folder that exists, so that what was measured for minutes is not lost."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder: give the path of a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {str(path.parent)!r} does not exist: make it first")
    return path
