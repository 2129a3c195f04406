"""Stores for the spending of owners: in this process, or in a file shared by processes."""

import os
import sqlite3
from time import time
from typing import Protocol, runtime_checkable

from agentrt_middleware.budget.limits import Amounts, add_amounts, find_excess
from agentrt_middleware.stores.lock import HasLock
from agentrt_middleware.stores.sqlite import ask_database, check_database_path

_FIRST_CLEANING = 1_000  # accounts
_BUDGET_SCHEMA = """
CREATE TABLE IF NOT EXISTS spent (
  account TEXT NOT NULL, counter TEXT NOT NULL, amount REAL NOT NULL, expires_at REAL NOT NULL,
  PRIMARY KEY (account, counter)
);
CREATE INDEX IF NOT EXISTS spent_expires_at ON spent (expires_at);
"""


@runtime_checkable
class BudgetStore(Protocol):
    """Counts the spending of accounts; an error, or no answer in time, counts as a failure.

    An account may be dropped after `ttl` seconds.
    """

    async def reserve(self, account: str, limits: Amounts, amounts: Amounts, ttl: float) -> tuple[bool, Amounts]:
        """Add the amounts, unless a limit is used up or would be exceeded by them.

        A limit is the value in `limits` plus the counter "raised_" with its name. Returns whether the amounts were
        added, and all counters of the account afterwards. Checking and adding is atomic.
        """

    async def settle(self, account: str, amounts: Amounts, ttl: float) -> None:
        """Add the amounts; negative ones return a reserve."""


class MemoryBudgetStore(HasLock):
    """Counts in this process; middlewares may share one."""

    def __init__(self) -> None:
        super().__init__()
        self._accounts: dict[str, tuple[dict[str, float], float]] = {}
        self._clean_at = _FIRST_CLEANING

    async def reserve(self, account: str, limits: Amounts, amounts: Amounts, ttl: float) -> tuple[bool, Amounts]:
        with self.lock:
            spent = self._spent(account, ttl)
            may_add = find_excess(limits, spent, amounts) is None
            if may_add:
                add_amounts(spent, amounts)
            return may_add, dict(spent)

    async def settle(self, account: str, amounts: Amounts, ttl: float) -> None:
        with self.lock:
            add_amounts(self._spent(account, ttl), amounts)

    def _spent(self, account: str, ttl: float) -> dict[str, float]:
        now = time()
        if len(self._accounts) >= self._clean_at:
            self._accounts = {name: kept for name, kept in self._accounts.items() if kept[1] > now}
            self._clean_at = max(_FIRST_CLEANING, 2 * len(self._accounts))  # so that each is checked now and then
        spent = self._accounts.get(account, ({}, 0.0))[0]
        self._accounts[account] = spent, now + ttl
        return spent


class SQLiteBudgetStore:
    """Counts in a file, which several processes of one machine may share and only its owner can read.

    The folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = check_database_path("SQLiteBudgetStore", path, "BudgetMiddleware(owner=...)")

    async def reserve(self, account: str, limits: Amounts, amounts: Amounts, ttl: float) -> tuple[bool, Amounts]:
        def ask(database: sqlite3.Connection) -> tuple[bool, Amounts]:
            with database:
                # From here on no other process may write, so that the values stay current.
                database.execute("BEGIN IMMEDIATE")
                spent = _read_account(database, account)
                may_add = find_excess(limits, spent, amounts) is None
                if may_add:
                    add_amounts(spent, amounts)
                    _write_account(database, account, {counter: spent[counter] for counter in amounts}, ttl)
                return may_add, spent

        return await ask_database(self.path, _BUDGET_SCHEMA, ask)

    async def settle(self, account: str, amounts: Amounts, ttl: float) -> None:
        def ask(database: sqlite3.Connection) -> None:
            with database:
                database.execute("BEGIN IMMEDIATE")
                spent = _read_account(database, account)
                add_amounts(spent, amounts)
                _write_account(database, account, {counter: spent[counter] for counter in amounts}, ttl)

        await ask_database(self.path, _BUDGET_SCHEMA, ask)


def _read_account(database: sqlite3.Connection, account: str) -> dict[str, float]:
    return dict(database.execute("SELECT counter, amount FROM spent WHERE account = ?", (account,)))


def _write_account(database: sqlite3.Connection, account: str, spent: dict[str, float], ttl: float) -> None:
    now = time()
    rows = [(account, counter, amount, now + ttl) for counter, amount in spent.items()]
    database.executemany("REPLACE INTO spent VALUES (?, ?, ?, ?)", rows)
    database.execute("DELETE FROM spent WHERE expires_at < ?", (now,))
