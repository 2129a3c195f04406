"""A test whose service is missing is skipped, or fails where services are required."""

import pytest

from tests.services import needs


def test_an_installed_program_lets_the_test_run():
    needs("python")


@pytest.mark.parametrize(
    ("required", "outcome", "words"),
    [("", pytest.skip.Exception, "is not available: "), ("1", pytest.fail.Exception, "is required by ")],
)
def test_a_missing_program_skips_or_fails_and_is_named(monkeypatch, required, outcome, words):
    monkeypatch.setenv("AGENTRT_REQUIRE_SERVICES", required)

    with pytest.raises(outcome, match=f"^cellar {words}.*no-such-program not found"):
        needs("cellar", "python", "no-such-program")
