"""The table of known models is made from packages that are kept up to date, and from corrections with reasons."""

from datetime import date
from importlib.util import find_spec

import pytest

from scripts.catalog import PACKAGES, TABLE, kept_rows, old_rows, packaged_rows, table_text

needs_packages = pytest.mark.skipif(
    not all(map(find_spec, PACKAGES)), reason="the packages of the group `catalog` are not installed"
)


@needs_packages
def test_the_table_is_what_packages_and_corrections_say() -> None:
    assert TABLE.read_text(encoding="utf-8") == table_text(), (
        "run `python -m scripts.catalog`, and commit what it changes"
    )


@needs_packages
def test_each_correction_has_a_reason_and_corrects_something() -> None:
    packaged = packaged_rows()
    for name, (reason, row) in kept_rows().items():
        assert reason.endswith("."), name
        assert packaged.get(name, ())[:-1] != row[:-1], f"the packages say the same of {name} by now: drop it"


def test_rows_older_than_half_a_year_are_named() -> None:
    text = "a b | 1 | ? | ? | - | ??? | 2026-11\nc | 1 | ? | ? | - | ??? | 2026-12\n"
    assert old_rows(text, date(2027, 5, 31)) == []
    assert old_rows(text, date(2027, 6, 1)) == ["a b (2026-11)"]


def test_rows_have_been_looked_up_within_half_a_year() -> None:
    old = old_rows(TABLE.read_text(encoding="utf-8"), date.today())
    # Said and not failed: a build must not break because time has passed.
    if old:
        pytest.skip(f"{len(old)} rows want a look, then `python -m scripts.catalog`: {'; '.join(old)}")
