"""A pytest plugin: `--more-examples=10` has each property test try ten times as many examples as it says.

Those marked `slow` try many in any case, and no more.
"""

from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

# Where Hypothesis keeps the settings of a test, and its own plugin finds them. A test with settings of its own takes no
# others, so a profile would leave most of ours as they are.
_SETTINGS = "_hypothesis_internal_use_settings"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--more-examples", type=_factor, default=1, metavar="FACTOR", help="examples of property tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    factor = config.getoption("--more-examples")
    # Once each: the parameters of a test share one function.
    tests: dict[int, Any] = {
        id(test): test
        for item in items
        if is_hypothesis_test(test := getattr(item, "function", None)) and item.get_closest_marker("slow") is None
    }
    for test in tests.values() if factor > 1 else ():
        own: settings = getattr(test, _SETTINGS)
        setattr(test, _SETTINGS, settings(own, max_examples=own.max_examples * factor))


def _factor(text: str) -> int:
    factor = int(text)
    if factor < 1:
        raise ValueError
    return factor
