"""Docstrings of the three common styles are understood."""

import pytest

from agentrt.tool.docstring import parse_docstring

GOOGLE = """Get the weather
of a city.

More that the model need not read.

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

More that the model need not read.

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

More that the model need not read.

:param city: The city: its name,
    in English.
:type city: str
:param int days: How many days.
:param dict[str, int] extra: More.
:returns: The weather.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_first_paragraph_and_parameters_are_read(text: str) -> None:
    assert parse_docstring(text) == (
        "Get the weather of a city.",
        {"city": "The city: its name, in English.", "days": "How many days.", "extra": "More."},
    )


def test_several_numpy_parameters_may_share_an_entry() -> None:
    assert parse_docstring("X.\n\nParameters\n----------\na, b : int\n    Both.\n")[1] == {"a": "Both.", "b": "Both."}


@pytest.mark.parametrize("text", [None, "", "   \n  "])
def test_no_docstring_says_nothing(text: str | None) -> None:
    assert parse_docstring(text) == ("", {})


def test_a_docstring_that_begins_with_its_parameters_has_no_summary() -> None:
    assert parse_docstring("\nArgs:\n    a: b\n") == ("", {"a": "b"})
    assert parse_docstring(":param a: b") == ("", {"a": "b"})
    assert parse_docstring("Parameters\n----------\na : int\n    b") == ("", {"a": "b"})


@pytest.mark.parametrize("text", ["Args:", "X.\n\nArgs:\n\n", "Parameters\n---", ":param:", "X.\nArgs:\n    no entry"])
def test_broken_sections_are_harmless(text: str) -> None:
    assert parse_docstring(text)[1] == {}


def test_summary_ends_where_the_parameters_begin() -> None:
    assert parse_docstring("X.\nArgs:\n    a: b") == ("X.", {"a": "b"})
