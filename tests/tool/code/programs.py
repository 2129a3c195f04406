"""Programs, run in a sandbox without a tool around them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from agentrt.tool import CodeCall, CodeProgram, CodeResult
from agentrt.tool.code.monty import MontySandbox

PROGRAM = CodeProgram(
    "",
    frozenset({"double", "shout"}),
    now=datetime(2026, 3, 1, 12, tzinfo=UTC),
    seed="seed",
    max_calls=20,
    max_seconds=60.0,
    max_memory=20_000_000,
    max_output=1_000,
)


class Caller:
    """Answers calls by doubling their argument, and keeps the batches in which they came."""

    def __init__(self) -> None:
        self.batches: list[Sequence[CodeCall]] = []

    async def __call__(self, calls: Sequence[CodeCall]) -> list[Any]:
        self.batches.append(calls)
        return [call.args[0] * 2 for call in calls]


async def run(code: str, call_tools: Any = None, **limits: Any) -> CodeResult:
    return await MontySandbox().run(replace(PROGRAM, code=code, **limits), call_tools or Caller())
