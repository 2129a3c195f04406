"""ReActAgent: an `Agent` under the names of those who come from other places, with a memory beside its state."""

import warnings
from collections.abc import Sequence
from typing import Any, NoReturn, Self

from agentrt.agent.agent import Agent
from agentrt.agent.config import ReActConfig
from agentrt.errors import ConfigError, UsageError
from agentrt.hooks import MiddlewareBase
from agentrt.memory import InMemoryMemory, MemoryBase
from agentrt.message import Msg
from agentrt.model import ChatModelBase
from agentrt.state import AgentState
from agentrt.tool import Toolkit

__all__ = ["ReActAgent"]


class ReActAgent(Agent):
    """An `Agent` with a `memory` that holds what its conversation holds, and that shows its replies by itself.

    What is in the memory when a reply begins, and not in the conversation yet, joins it first; what was said joins the
    memory. `formatter` is not used, since a model here brings its own. Without a model it can be looked at, but not
    asked. An answer with a form is in `metadata` as well as in `structured_output`.
    """

    _shows_by_itself = True

    def __init__(
        self,
        name: str,
        sys_prompt: str,
        model: ChatModelBase | None = None,
        formatter: Any = None,
        toolkit: Toolkit | None = None,
        memory: MemoryBase | None = None,
        *,
        max_iters: int = 10,
        middlewares: Sequence[MiddlewareBase] = (),
        **options: Any,
    ) -> None:
        if formatter is not None:
            warnings.warn(
                f"{type(self).__name__}(formatter=...) is not used: a model brings its own formatter",
                UserWarning,
                stacklevel=2,
            )
        if memory is not None and not isinstance(memory, MemoryBase):
            raise ConfigError(f"{type(self).__name__}(memory=...) must be a MemoryBase, not {memory!r:.200}")
        options.setdefault("react_config", ReActConfig(max_iters=max_iters))
        super().__init__(name, sys_prompt, model or _NoModel(name), toolkit, middlewares, **options)
        self.memory = memory if memory is not None else InMemoryMemory()

    @property
    def sys_prompt(self) -> str:
        """The system prompt."""
        return self.system_prompt

    async def reply(self, msg: Any = None, structured_model: Any = None) -> Msg:
        """Answer with the final message."""
        await self._take_up_memory()
        try:
            answer = await super().reply(msg, structured_model)
        finally:
            await self._fill_memory()
        if answer.structured_output is not None:
            answer.metadata = {**answer.structured_output, **answer.metadata}
        return answer

    async def observe(self, msg: str | Msg | list[Msg] | None) -> None:
        """Take in messages without answering them."""
        await super().observe(msg)
        await self._fill_memory()

    def with_state(self, state: AgentState) -> Self:
        """Return another conversation over the same model, tools and chains, with a new memory."""
        other = super().with_state(state)
        other.memory = InMemoryMemory()
        return other

    def _begin_conversation(self) -> None:
        super()._begin_conversation()
        self._in_memory: tuple[int, str | None] = (0, None)  # how many messages, and the last one's id

    async def _take_up_memory(self) -> None:
        if await self.memory.size() == self._in_memory[0]:
            return
        known = {msg.id for msg in self.state.context}
        self.state.context += [
            msg for msg in await self.memory.get_memory(prepend_summary=False) if msg.id not in known
        ]
        await self._fill_memory()

    async def _fill_memory(self) -> None:
        _, last = self._in_memory
        new: list[Msg] = []
        for msg in reversed(self.state.context):
            if msg.id == last:
                break
            new.append(msg)
        new.reverse()
        await self.memory.add(new)
        if self.state.context:
            last = self.state.context[-1].id
        self._in_memory = (await self.memory.size(), last)


class _NoModel(ChatModelBase):
    def __init__(self, name: str) -> None:
        super().__init__(model="none")
        self._agent = name

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> NoReturn:
        raise UsageError(f"agent {self._agent!r} was built without a model: give ReActAgent(model=...)")
