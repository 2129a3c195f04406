"""Docstrings of the three common styles are understood."""

import pytest

from agentrt.tool.signature.docstring import parse_docstring

GOOGLE = """Get the weather
of a city.

It takes:
  - a name
  - a number of days

Args:
    city (str): The city: its name,
        in English.
    days: How many days.
    **extra (dict[str, int]): More.

Returns:
    text: The weather.
"""
NUMPY = """Get the weather
of a city.

It takes:
  - a name
  - a number of days

Parameters
----------
city : str
    The city: its name,
    in English.
days : int, optional
    How many days.
**extra
    More.

Returns
-------
text : str
    The weather.
"""
SPHINX = """Get the weather
of a city.

It takes:
  - a name
  - a number of days

:param city: The city: its name,
    in English.
:type city: str
:param int days: How many days.
:param dict[str, int] extra: More.
:returns: The weather.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_whole_description_and_parameters_are_read(text: str) -> None:
    assert parse_docstring(text) == (
        "Get the weather\nof a city.\n\nIt takes:\n  - a name\n  - a number of days",
        {"city": "The city: its name, in English.", "days": "How many days.", "extra": "More."},
    )


SECTIONS = [
    "Returns:\n    x",
    "Yields:\n    x",
    "Raises:\n    ValueError: x",
    "Examples:\n    >>> f()",
    "See Also\n--------\ng",
    ":returns: x",
    ":rtype: str",
    ":raises ValueError: x",
    "Args:\n    a: x",
]


@pytest.mark.parametrize("section", SECTIONS)
def test_description_ends_at_the_first_section_of_any_kind(section: str) -> None:
    assert parse_docstring(f"Find.\n\nSlowly.\n\n{section}\n")[0] == "Find.\n\nSlowly."
    assert parse_docstring(f"Find.\n{section}\n")[0] == "Find."
    assert parse_docstring(section)[0] == ""


@pytest.mark.parametrize("line", ["Note: dates are ISO.", "Returns: a list", ":smile: is allowed", "---"])
def test_what_only_looks_like_a_section_stays_in_the_description(line: str) -> None:
    assert parse_docstring(f"Find.\n\n{line}\n")[0] == f"Find.\n\n{line}"


def test_several_numpy_parameters_may_share_an_entry() -> None:
    assert parse_docstring("X.\n\nParameters\n----------\na, b : int\n    Both.\n")[1] == {"a": "Both.", "b": "Both."}


@pytest.mark.parametrize("text", [None, "", "   \n  "])
def test_missing_docstring_says_nothing(text: str | None) -> None:
    assert parse_docstring(text) == ("", {})


def test_docstring_that_begins_with_parameters_has_no_summary() -> None:
    assert parse_docstring("\nArgs:\n    a: b\n") == ("", {"a": "b"})
    assert parse_docstring(":param a: b") == ("", {"a": "b"})
    assert parse_docstring("Parameters\n----------\na : int\n    b") == ("", {"a": "b"})


@pytest.mark.parametrize("text", ["Args:", "X.\n\nArgs:\n\n", "Parameters\n---", ":param:", "X.\nArgs:\n    no entry"])
def test_broken_sections_are_harmless(text: str) -> None:
    assert parse_docstring(text)[1] == {}


def test_summary_ends_where_the_parameters_begin() -> None:
    assert parse_docstring("X.\nArgs:\n    a: b") == ("X.", {"a": "b"})


def test_heading_that_is_not_a_section_stays_in_the_description():
    text = "Search\n------\nFind pages.\n\nHints\n-----\nBe brief.\n\nArgs:\n    a: b\n"
    assert parse_docstring(text) == ("Search\n------\nFind pages.\n\nHints\n-----\nBe brief.", {"a": "b"})
