"""Dynamic context: adds a section to the system prompt, updated for each request."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import ClassVar

from agentrt.agent import AgentBase
from agentrt.errors import ChainContractError, MiddlewareConfigError
from agentrt.hooks import MiddlewareBase

ContextProvider = str | Callable[[], Awaitable[str | None] | str | None]


class DynamicContextMiddleware(MiddlewareBase):
    """Adds a section to the system prompt each time it is assembled: `provider`, or the result of that function.

    The function takes no arguments, and may be a coroutine function. An empty str or `None` adds nothing. `title` is
    the section's heading, `None` for none. Several such middlewares add their sections in list order.
    """

    inherited = False
    wraps: ClassVar = dict.fromkeys(
        ("GuardrailMiddleware", "BudgetMiddleware", "RedactionMiddleware"),
        "what adds to requests stands outside of what looks at them",
    )

    rewrites = ("system",)

    def __init__(self, provider: ContextProvider, *, title: str | None = "Current Context") -> None:
        if not isinstance(provider, str) and not callable(provider):
            raise MiddlewareConfigError(
                f"DynamicContextMiddleware takes a str or a function that returns one, not {provider!r:.200}"
            )
        self._provider = provider
        self._title = title

    async def on_system_prompt(self, agent: AgentBase, current_prompt: str) -> str:
        context = self._provider if isinstance(self._provider, str) else self._provider()
        if isawaitable(context):
            context = await context
        if not context:
            return current_prompt
        if not isinstance(context, str):
            raise ChainContractError(
                f"the function given to DynamicContextMiddleware must return a str or None, but it returned a "
                f"{type(context).__name__}"
            )
        section = f"## {self._title}\n{context}" if self._title else context
        return f"{current_prompt}\n\n{section}" if current_prompt else section
