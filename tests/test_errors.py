"""The drawing at the top of `errors.py` is the tree of classes."""

import builtins
import inspect
import re
from itertools import takewhile

import pytest

from agentrt import errors

CLASSES = {name: each for name, each in vars(errors).items() if inspect.isclass(each)}
NODE = re.compile(r"^([ │├└─]*)(\w+)(?:\s{2,}\S.*)?$")


def drawn_parents() -> dict[str, str | None]:
    """Read the drawing: each name with the name that it hangs from."""
    lines = (errors.__doc__ or "").split("\n\n")[1].splitlines()
    above: list[tuple[int, str]] = []
    parents: dict[str, str | None] = {}
    for line in lines:
        found = NODE.match(line)
        assert found, f"no node of the tree: {line!r}"
        depth, name = len(found[1]), found[2]
        above = [*takewhile(lambda each, depth=depth: each[0] < depth, above)]
        parents[name] = above[-1][1] if above else None
        above.append((depth, name))
    return parents


def parent_of(cls: type) -> str | None:
    """Return the name of the class's one parent in this module."""
    parents = [base.__name__ for base in cls.__bases__ if base.__name__ in CLASSES]
    assert len(parents) <= 1, f"{cls.__name__} hangs from {parents}"
    return parents[0] if parents else None


def test_the_drawing_shows_every_class_under_its_parent():
    assert drawn_parents() == {name: parent_of(cls) for name, cls in CLASSES.items()}


def test_every_error_is_public():
    assert set(errors.__all__) == set(CLASSES)


def test_there_is_one_root_and_no_error_escapes_except_exception():
    assert [name for name in CLASSES if parent_of(CLASSES[name]) is None] == ["AgentRTError"]
    assert all(issubclass(cls, Exception) for cls in CLASSES.values())


def test_no_error_shadows_a_builtin():
    assert not set(CLASSES) & set(vars(builtins))


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_error_says_whose_fault_it_is_and_takes_a_message(name):
    extra = {"code": "x"} if name == "ResumeError" else {}
    assert CLASSES[name].__doc__
    assert str(CLASSES[name]("what happened", **extra)) == "what happened"


def test_a_rate_limit_says_how_long_to_wait_when_it_is_known():
    assert errors.RateLimited().retry_after is None
    assert errors.RateLimited("slow down", retry_after=2.5).retry_after == 2.5


def test_usage_errors_are_caught_as_the_builtin_ones():
    assert issubclass(errors.UsageError, RuntimeError)
    assert issubclass(errors.InvalidInputError, ValueError)
    assert issubclass(errors.ResumeError, ValueError)
