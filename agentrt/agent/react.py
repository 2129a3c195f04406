"""ReActAgent: an `Agent` under the names of those who come from other places, with a memory beside its state."""

import warnings
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NoReturn, Self

from agentrt.agent.agent import Agent
from agentrt.agent.initialization import refuse_before_init
from agentrt.agent.overrides import hook_method
from agentrt.agent.step_override import AS_GIVEN, OverriddenLoopStep, act_by_loop, reason_by_loop
from agentrt.conversation.config import ReActConfig
from agentrt.errors import ConfigError, UsageError
from agentrt.hooks import MiddlewareBase
from agentrt.memory import InMemoryMemory, MemoryBase
from agentrt.message import Msg, ToolCallBlock
from agentrt.model import ChatModelBase
from agentrt.state import AgentState
from agentrt.tool import Toolkit
from agentrt.types import ToolChoice, ToolResponse

__all__ = ["ReActAgent"]

_MAX_ITERS = 10
_ELSEWHERE = {
    "compression_config": "an agent shortens a long conversation by itself, see context_config=ContextConfig(...)",
    "enable_meta_tool": "a Toolkit with groups brings its meta tool with it",
    "enable_rewrite_query": "write a middleware with on_reply",
    "knowledge": "write a middleware with on_reply or on_system_prompt, or a tool that searches",
    "long_term_memory": "write a middleware with on_reply or on_system_prompt, or tools",
    "long_term_memory_mode": "write a middleware with on_reply or on_system_prompt, or tools",
    "parallel_tool_calls": "async tools run side by side, and FunctionTool(f, is_concurrency_safe=...) decides on one",
    "plan_notebook": "give the agent tools that keep a plan",
    "print_hint_msg": "hints are events, which agent.reply_stream() shows",
    "system_prompt": "it goes by the name sys_prompt here",
    "tts_model": "write a middleware with on_print",
}
_NEVER_CALLED = {
    "_compress_memory_if_needed": _ELSEWHERE["compression_config"],
    "_retrieve_from_knowledge": _ELSEWHERE["knowledge"],
    "_retrieve_from_long_term_memory": _ELSEWHERE["long_term_memory"],
    "_summarizing": "after max_iters the model is asked once more, without tools, through on_reasoning",
    "generate_response": "a reply ends with the model's text, and one with a form with structured_model=...",
}


@refuse_before_init
class ReActAgent(Agent):
    """An `Agent` with a `memory` that holds what its conversation holds, and that shows its replies by itself.

    When a reply begins, what was added to the memory joins the conversation, and what was removed from it leaves; what
    was said joins the memory. What the conversation has summarised stays in the memory. `formatter` is not used, since
    a model here brings its own. Without a model it can be looked at, but not asked. An answer with a form is in
    `metadata` as well as in `structured_output`. A session restores its name and system prompt as well.

    A subclass may override `_reasoning` and `_acting`, and call `super()` there: hooks and middlewares run around them.
    What they return counts, and `None` keeps what `super()` gave; a `Msg` from `_acting` ends the reply.
    """

    _shows_by_itself = True
    _later_state = frozenset({"name", "system_prompt"})

    memory: MemoryBase

    def __init__(
        self,
        name: str,
        sys_prompt: str,
        model: ChatModelBase | None = None,
        formatter: Any = None,
        toolkit: Toolkit | None = None,
        memory: MemoryBase | None = None,
        *,
        max_iters: int | None = None,
        middlewares: Sequence[MiddlewareBase] = (),
        **options: Any,
    ) -> None:
        _check_options(type(self).__name__, max_iters, options)
        _warn_of_uncalled_methods(type(self))
        if formatter is not None:
            warnings.warn(
                f"{type(self).__name__}(formatter=...) is not used: a model brings its own formatter",
                UserWarning,
                stacklevel=2,
            )
        if memory is not None and not isinstance(memory, MemoryBase):
            raise ConfigError(
                f"{type(self).__name__}(memory=...) must be a MemoryBase, such as InMemoryMemory(), not {memory!r:.200}"
            )
        options.setdefault("react_config", ReActConfig(max_iters=_MAX_ITERS if max_iters is None else max_iters))
        super().__init__(name, sys_prompt, model or _NoModel(name), toolkit, middlewares, **options)
        self.memory = memory if memory is not None else InMemoryMemory()
        self._remembered: set[str] = set()  # the ids of the conversation's messages that the memory was given
        self._seen: int | None = None  # the memory's revision when the conversation was last in step with it
        self.register_state("_remembered", sorted, set)
        self.register_state("name", custom_from_json=_require_str)
        self.register_state("system_prompt", custom_from_json=_require_str)

    @property
    def sys_prompt(self) -> str:
        """The system prompt."""
        return self.system_prompt

    async def reply(self, msg: Any = None, structured_model: Any = None) -> Msg:  # type: ignore[override]  # no reply_id: it is the runtime's
        """Answer with the final message."""
        await self._take_up_memory()
        try:
            answer = await super().reply(msg, structured_model)
        finally:
            await self._fill_memory()
        if answer.structured_output is not None:
            answer.metadata = {**answer.structured_output, **answer.metadata}
        return answer

    @hook_method("on_reasoning", OverriddenLoopStep)
    async def _reasoning(self, tool_choice: ToolChoice | str | None = AS_GIVEN) -> Msg:
        """Ask the model once and return what it said; made to be overridden, as the innermost layer of on_reasoning."""
        return await reason_by_loop(self, tool_choice)

    @hook_method("on_acting", OverriddenLoopStep)
    async def _acting(self, tool_call: ToolCallBlock) -> ToolResponse | Msg | None:
        """Run one tool call and return its result; made to be overridden, as the innermost layer of on_acting."""
        return await act_by_loop(self, tool_call)

    async def observe(self, msg: str | Msg | list[Msg] | None) -> None:
        """Take in messages without answering them."""
        await super().observe(msg)
        await self._fill_memory()

    def with_state(self, state: AgentState) -> Self:
        """Return another conversation over the same model, tools and chains, with a new memory."""
        other = super().with_state(state)
        other.memory = InMemoryMemory()
        other._remembered = set()
        other._seen = None
        return other

    def __copy__(self) -> Self:
        other = super().__copy__()
        other.memory, other._remembered = self.memory, self._remembered  # it is the same conversation
        return other

    async def _take_up_memory(self) -> None:
        if self.memory.revision is not None and self.memory.revision == self._seen:
            return
        found = await self.memory.get_memory(prepend_summary=False)
        gone = self._remembered - {msg.id for msg in found}
        if gone:
            self._forget(gone, whole=not found)
        known = {msg.id for msg in self.state.context}
        # What stands before a message that both have is there already, or was summarised and is in the memory alone.
        new = list(takewhile(lambda msg: msg.id not in known, reversed(found)))
        self.state.context += reversed(new)
        self._remembered = {msg.id for msg in found} & {msg.id for msg in self.state.context}
        self._seen = self.memory.revision

    def _forget(self, gone: set[str], *, whole: bool) -> None:
        self.state.context = [msg for msg in self.state.context if msg.id not in gone]
        if whole:
            self.state.summary = ""
        self.conversation.context_usage.reset()

    async def _fill_memory(self) -> None:
        unseen = self.memory.revision != self._seen  # somebody else has changed it meanwhile
        new = list(takewhile(lambda msg: msg.id not in self._remembered, reversed(self.state.context)))
        await self.memory.add(new[::-1])
        self._remembered.update(msg.id for msg in new)
        self._seen = None if unseen else self.memory.revision


def _require_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the name and the system prompt of an agent must be str, not {value!r:.200}")
    return value


def _check_options(cls: str, max_iters: int | None, options: dict[str, Any]) -> None:
    for name in options:
        if name in _ELSEWHERE:
            raise ConfigError(f"{cls}({name}=...) is not taken: {_ELSEWHERE[name]}")
    if max_iters is not None and "react_config" in options:
        raise ConfigError(f"{cls} takes max_iters or react_config, not both: write ReActConfig(max_iters={max_iters})")


def _warn_of_uncalled_methods(cls: type) -> None:
    """Warn of methods that 1.x programs override and the runtime never calls."""
    for name in dir(cls):
        if name in _NEVER_CALLED or name.startswith("_retrieve_"):
            remedy = _NEVER_CALLED.get(name, "write a middleware with on_reply or on_system_prompt, or a tool")
            warnings.warn(f"the runtime never calls {cls.__name__}.{name}(): {remedy}", UserWarning, stacklevel=3)


class _NoModel(ChatModelBase):
    def __init__(self, name: str) -> None:
        super().__init__(model="none")
        self._agent = name

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> NoReturn:
        raise UsageError(f"agent {self._agent!r} was built without a model: give ReActAgent(model=...)")
