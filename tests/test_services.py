"""A test whose service is missing is skipped, or fails where services are required."""

import pytest

from tests.services import find_service, needs


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


class StartedServer:
    url = "redis://127.0.0.1:7777/0"
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_url_in_the_environment_is_used_and_nothing_started(monkeypatch):
    monkeypatch.setenv("CELLAR_URL", "postgresql://ann:secret@db:5433/x?sslmode=disable")
    with find_service("CELLAR_URL", pytest.fail) as service:
        assert (service.address, service.is_ours) == (("db", 5433), False)
        assert service.url_at(1) == "postgresql://ann:secret@127.0.0.1:1/x?sslmode=disable"


def test_without_a_url_a_server_is_started_and_closed(monkeypatch):
    monkeypatch.delenv("CELLAR_URL", raising=False)
    server = StartedServer()
    with find_service("CELLAR_URL", lambda: server) as service:
        assert (service.address, service.is_ours) == (("127.0.0.1", 7777), True)
        assert not server.is_closed
    assert server.is_closed
