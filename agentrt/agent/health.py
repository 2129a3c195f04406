"""How the parts of an agent are."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import anyio

from agentrt._runtime.chain.chains import Chains
from agentrt._runtime.concurrency.lifespan import lifespan_failure
from agentrt._runtime.options import check_seconds
from agentrt.agent.delegation.agent_tool import descendants_of, toolkits_of
from agentrt.hooks import MiddlewareBase
from agentrt.tool import Toolkit


@dataclass(frozen=True, slots=True)
class PartHealth:
    """How one part is: a middleware by its key, a toolset by its name, or the store by its class.

    A middleware of a sub-agent has the name of that agent before its own: "writer/Policy".

    `problem` says what is wrong, `None` if nothing is; `seconds` is the time that the answer took.
    """

    name: str
    kind: Literal["layer", "toolset", "store"]
    problem: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Health:
    """How an agent is, and each part that says how it is."""

    is_ok: bool
    parts: tuple[PartHealth, ...]


class _AgentWithParts(Protocol):
    state_store: Any

    @property
    def toolkit(self) -> Toolkit: ...
    def current_chains(self) -> Chains: ...


_HealthQuestion = Callable[[], Awaitable[object]]


async def check_health(agent: _AgentWithParts, limit: float) -> Health:
    """Ask all parts of an agent side by side."""
    check_seconds("health(timeout=...)", limit)
    questions = _questions_of(agent)
    answers: list[PartHealth | None] = [None] * len(questions)

    async def ask(place: int, name: str, kind: Literal["layer", "toolset", "store"], question: _HealthQuestion) -> None:
        start, problem = anyio.current_time(), None
        try:
            with anyio.fail_after(limit) as scope:
                answer = await question()
            if scope.cancel_called:  # it has answered none the less, too late
                raise TimeoutError
            problem = None if answer is None else str(answer)
        except Exception as error:  # noqa: BLE001  # whatever it is, the part is not well
            problem = type(error).__name__  # its text may hold secrets
        answers[place] = PartHealth(name, kind, problem, anyio.current_time() - start)

    async with anyio.create_task_group() as group:
        for place, question in enumerate(questions):
            group.start_soon(ask, place, *question)
    parts = tuple(part for part in answers if part is not None)
    return Health(all(part.problem is None for part in parts), parts)


def _questions_of(agent: _AgentWithParts) -> list[tuple[str, Literal["layer", "toolset", "store"], _HealthQuestion]]:
    store = agent.state_store
    questions: list[tuple[str, Literal["layer", "toolset", "store"], _HealthQuestion]] = []
    layer_ids: set[int] = set()
    for owner in (agent, *descendants_of(agent)):
        chains: Chains = owner.current_chains()
        for layer in chains.middlewares:
            if id(layer) in layer_ids:  # one that is inherited, or shared
                continue
            layer_ids.add(id(layer))
            name = chains.name_of(layer) if owner is agent else f"{owner.name}/{chains.name_of(layer)}"
            failure = lifespan_failure(layer)
            if failure is not None:
                questions.append((name, "layer", _KnownAnswer(f"its lifespan: {type(failure).__name__}")))
            elif isinstance(layer, MiddlewareBase) and type(layer).health is not MiddlewareBase.health:
                questions.append((name, "layer", layer.health))
    for toolset in dict.fromkeys(toolset for toolkit in toolkits_of(agent).values() for toolset in toolkit.toolsets):
        questions.append((toolset.name, "toolset", _KnownAnswer(None if toolset.is_open else toolset.status)))
    if hasattr(store, "health"):
        questions.append((type(store).__name__, "store", store.health))
    return questions


@dataclass(frozen=True, slots=True)
class _KnownAnswer:
    """An answer that is known already."""

    problem: str | None

    async def __call__(self) -> str | None:
        return self.problem
