"""Monty keeps one runtime for a process, of which the check for open files must know."""

import pydantic_monty
import pytest


@pytest.fixture(scope="session", autouse=True)
def monty_has_run() -> None:
    with pydantic_monty.Monty(min_processes=0) as pool, pool.checkout() as session:
        session.feed_run("1")
