"""The code stays readable: each figure of `metrics.py` keeps its aim, and `words.py` finds nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.code_style import words
from tests.code_style.metrics import MEASURES, Figure, main, shipped_sources, sources_in

AIMS = {
    "lines of nine in ten functions": 20,
    "lines of the longest function": 60,
    "highest complexity": 20,
    "deepest nesting": 5,
    "private functions with one caller, %": 36,
    "the same, % of all functions of modules": 18,  # other projects: 5 to 26
    "names defined in more than one module": 10,
    "comments per 1,000 lines": 60,
    "Any per 1,000 lines": 20,
    "foreign private accesses": 20,
    "attributes of an Agent": 14,
    "pieces of module state": 6,  # each with its reason beside it
    'docstrings that begin with "What"': 2,
    "stiff phrases": 15,
    "files in the largest folder": 14,
    "largest room, % of all lines": 100 / 6,
    "circles between rooms": 0,
}
"""The most that each figure may be."""

AT_LEAST = {"comments per 1,000 lines"}
"""Of these, the least."""


@pytest.mark.time_limit(600)  # the whole code is read several times: a busy machine takes minutes
def test_the_shipped_code_keeps_its_limits(no_garbage_collection: None) -> None:
    """All figures in one test, so that the files are read and parsed once."""
    shipped = shipped_sources()
    problems = []
    for name, aim in AIMS.items():
        figure = MEASURES[name](shipped)
        if figure.value < aim if name in AT_LEAST else figure.value > aim:
            problems += [f"{name}: {figure.value:g}, limit {aim:g}", *figure.places[:20]]
    assert not problems, "\n".join(problems)


def test_no_name_and_no_sentence_has_a_refused_shape(no_garbage_collection: None) -> None:
    paths = [*words.SHIPPED, *words.PROGRAMS, *words.DOCUMENTS, *words.TESTS]
    # The list of refused words has to spell them out.
    assert not words.problems(path for path in paths if path.name not in ("words.py", "test_code_style.py"))


def test_every_measure_but_the_median_has_an_aim() -> None:
    assert set(MEASURES) - set(AIMS) == {"median lines of a function"}


def test_the_table_has_every_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "package/__init__.py", "x = 1\n")
    main([str(tmp_path / "package")])
    printed = capsys.readouterr().out
    assert all(name in printed for name in MEASURES)


# Each measure finds what is bad.

Measure = Callable[..., Figure]


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def measure(name: str, folder: Path, *texts: str) -> float:
    """Measure a package with these texts as its modules."""
    for index, text in enumerate(texts):
        write(folder, f"project/module_{index}.py", text)
    return MEASURES[name](sources_in(folder / "project")).value


LONG = "def long():\n" + "    pass\n" * 61


def test_a_long_function_is_found(tmp_path: Path) -> None:
    assert measure("lines of the longest function", tmp_path, LONG) == 62
    assert measure("lines of nine in ten functions", tmp_path, LONG) == 62
    assert measure("median lines of a function", tmp_path, LONG) == 62


def test_nine_in_ten_leaves_the_longest_tenth_out(tmp_path: Path) -> None:
    short = "def short():\n    pass\n"
    assert measure("lines of nine in ten functions", tmp_path, short * 10 + LONG) == 2


def test_ways_through_a_function_are_counted(tmp_path: Path) -> None:
    text = (
        "def f(a, b):\n"
        "    if a and b or not a:\n"
        "        return [x for x in a if x]\n"
        "    def g():\n"
        "        while a:\n"
        "            pass\n"
    )
    assert measure("highest complexity", tmp_path, text) == 1 + 3 + 2 + 1


def test_nesting_is_counted_and_elif_is_no_deeper_than_if(tmp_path: Path) -> None:
    text = "def f(a):\n for x in a:\n  if x:\n   pass\n  elif a:\n   with x:\n    pass\n"
    assert measure("deepest nesting", tmp_path, text) == 3


def test_a_function_with_one_caller_is_found(tmp_path: Path) -> None:
    text = "def _one(): pass\ndef _two(): pass\ndef f(): _one(); _two(); _two()\n"
    assert measure("private functions with one caller, %", tmp_path, text) == 50
    assert measure("the same, % of all functions of modules", tmp_path, text) == 100 / 3


def test_a_name_in_two_modules_is_found(tmp_path: Path) -> None:
    text = "__all__ = []\n_x = 1\n_y: int = 2\ndef f(): pass\nclass C: pass\n"
    assert measure("names defined in more than one module", tmp_path, text, text) == 4
    assert measure("names defined in more than one module", tmp_path, text, "_z = 1\n") == 0


def test_comments_are_counted_and_directives_are_not(tmp_path: Path) -> None:
    text = '"""A docstring."""\n\nx = 1  # why\ny = 2  # noqa: X1\nz = 3  # noqa: X1  # why\nw = 4\n'
    assert measure("comments per 1,000 lines", tmp_path, text) == 500
    assert measure("comments per 1,000 lines", tmp_path, "x = 1\n") == 0


def test_any_is_found_wherever_it_is_used(tmp_path: Path) -> None:
    assert measure("Any per 1,000 lines", tmp_path, "from typing import Any\nx: dict[str, Any] = {}\n") == 500


def test_a_foreign_private_name_is_found(tmp_path: Path) -> None:
    text = "class C:\n    def f(self, other):\n        self._x = super()._y\n        other._x = other.__dict__\n"
    assert measure("foreign private accesses", tmp_path, text) == 1


def test_the_attributes_of_an_agent_are_those_of_an_instance() -> None:
    assert MEASURES["attributes of an Agent"]([]).value > 3


@pytest.mark.parametrize(
    "change", ["_x.append(1)", "_x[0] = 1", "del _x[0]", "global _x; _x = []"], ids=["method", "item", "del", "global"]
)
def test_state_of_a_module_is_found_by_its_changes(change: str, tmp_path: Path) -> None:
    assert measure("pieces of module state", tmp_path, f"_x = []\ndef f():\n    {change}\n") == 1


def test_a_table_that_is_only_read_is_not_state(tmp_path: Path) -> None:
    assert measure("pieces of module state", tmp_path, "_x = {1: 2}\ndef f():\n    x = []\n    x.append(_x[1])\n") == 0


def test_docstrings_that_begin_with_what_are_counted(tmp_path: Path) -> None:
    text = '"""What a file is."""\n\nx = 1\n"""Whatever."""\ny = "What"\n'
    assert measure('docstrings that begin with "What"', tmp_path, text) == 1


def test_stiff_phrases_are_found_in_comments_and_strings_alone(tmp_path: Path) -> None:
    text = 'x = "begun anew"  # `None` where there is none\nbegun = x is None  # so many, and what became of them\n'
    assert measure("stiff phrases", tmp_path, text) == 5


def test_files_of_a_folder_are_counted(tmp_path: Path) -> None:
    assert measure("files in the largest folder", tmp_path, *["x = 1\n"] * 15) == 15


def test_the_largest_room_has_its_folders_in_it(tmp_path: Path) -> None:
    for name, lines in (("large/a.py", 2), ("large/inner/b.py", 4), ("small.py", 2)):
        write(tmp_path, f"agentrt/{name}", "x = 1\n" * lines)
    assert MEASURES["largest room, % of all lines"](sources_in(tmp_path / "agentrt")).value == 75


def test_a_circle_of_three_rooms_is_found(tmp_path: Path) -> None:
    for room, other in (("a", "b.x"), ("b", "c.x"), ("c", "a.x")):
        write(tmp_path, f"agentrt/{room}/x.py", f"def f():\n    from agentrt.{other} import f\n")
    assert MEASURES["circles between rooms"](sources_in(tmp_path / "agentrt")).value == 1
    write(tmp_path, "agentrt/c/x.py", "import agentrt.c.y\n")
    assert MEASURES["circles between rooms"](sources_in(tmp_path / "agentrt")).value == 0


def test_a_refused_word_is_found_in_names_and_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "broken.py"
    bad.write_text(
        'def told(each):\n    for each in each:\n        "it is no list"  # whoever reads on\n', encoding="utf-8"
    )
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert len(words.problems([bad])) == 5


def test_a_test_name_that_is_too_long_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "tests/test_bad.py", f"def test_{'x' * 56}():\n    pass\n")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert len(words.problems([tmp_path / "tests/test_bad.py"])) == 1
