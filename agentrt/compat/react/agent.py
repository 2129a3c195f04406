"""ReActAgent: an `Agent` with the names of 1.x, and a memory beside its state."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NoReturn, Self

from pydantic_core import to_jsonable_python

from agentrt._runtime.conversation.inputs import MessagesInput
from agentrt._runtime.keywords.old_keywords import accept_old_keywords
from agentrt._runtime.model_interface.base import ChatModelBase
from agentrt.agent.agent import Agent
from agentrt.agent.initialization import refuse_before_init
from agentrt.agent.overrides.overridden_method import hook_method
from agentrt.agent.validation import check_is_list
from agentrt.compat.react.layers import (
    HintPrinter,
    SearchableKnowledge,
    check_switch,
    knowledge_layers,
    knowledge_list,
    memory_layers,
    plan_layers,
)
from agentrt.compat.react.options import check_react_options, warn_of_uncalled_methods
from agentrt.compat.step_override import AS_GIVEN, OverriddenLoopStep, act_by_loop, reason_by_loop
from agentrt.errors import ConfigError, UsageError
from agentrt.hooks import MiddlewareBase
from agentrt.memory import InMemoryMemory, LongTermMemoryBase, MemoryBase
from agentrt.message import Msg, ToolCallBlock
from agentrt.state import AgentState
from agentrt.tool import Toolkit
from agentrt.tool.toolkit import ToolLike
from agentrt.types import LongTermMemoryMode, ReActConfig, ToolChoice, ToolResponse

_MAX_ITERS = 10


@refuse_before_init
class ReActAgent(Agent):
    """An `Agent` with a `memory` that holds what its conversation holds, and that shows its replies by itself.

    When a reply begins, what was added to the memory joins the conversation, and what was removed from it leaves; the
    reply's messages join the memory. What the conversation has summarised stays in the memory. `formatter` is not used,
    since a model here brings its own. Without a model the agent can be inspected, but not asked. A structured answer is
    in `metadata` as well as in `structured_output`. A session restores the name and the system prompt as well.

    These options of 1.x are layers, outside of the `middlewares`, as `explain()` shows. `long_term_memory` is kept for
    its owner, `long_term_memory_owner`, a str or a function of the agent: by default the agent's name, which will do as
    long as the agent holds one conversation. `knowledge` is searched for each message, with a query that the model
    makes of it unless `enable_rewrite_query` is `False`. The tools of a `plan_notebook` are in the group
    "plan_related", which the model switches on, if `enable_meta_tool` says so; groups of a toolkit can be switched in
    any case. With `print_hint_msg` the agent also prints what these layers tell the model. The calls of one answer run
    one after the other, unless with `parallel_tool_calls`.

    A subclass may override `_reasoning` and `_acting`, and call `super()` there: hooks and middlewares run around them.
    What they return counts, and `None` keeps what `super()` returned; a `Msg` from `_acting` ends the reply.
    """

    _shows_by_itself = True
    can_speak_first = True  # as in 1.x
    _later_state = frozenset({"name", "system_prompt", "long_term_memory"})

    memory: MemoryBase
    long_term_memory: LongTermMemoryBase | None
    plan_notebook: MiddlewareBase | None

    def __init__(
        self,
        name: str,
        sys_prompt: str,
        model: ChatModelBase | str | None = None,
        formatter: object = None,
        toolkit: Toolkit | Sequence[ToolLike] | None = None,
        memory: MemoryBase | None = None,
        *,
        long_term_memory: LongTermMemoryBase | None = None,
        long_term_memory_mode: LongTermMemoryMode = "both",
        long_term_memory_owner: str | Callable[[Any], str] | None = None,
        enable_meta_tool: bool = False,
        parallel_tool_calls: bool | None = None,
        knowledge: SearchableKnowledge | Sequence[SearchableKnowledge] | None = None,
        enable_rewrite_query: bool = True,
        plan_notebook: MiddlewareBase | None = None,
        print_hint_msg: bool = False,
        max_iters: int | None = None,
        middlewares: Sequence[MiddlewareBase] = (),
        **options: Any,
    ) -> None:
        check_react_options(type(self), {"max_iters": max_iters, "parallel_tool_calls": parallel_tool_calls}, options)
        warn_of_uncalled_methods(type(self))
        if formatter is not None:
            text = f"{type(self).__name__}(formatter=...) is not used: a model brings its own formatter"
            warnings.warn(text, UserWarning, stacklevel=2)
        if memory is not None and not isinstance(memory, MemoryBase):
            raise ConfigError(
                f"{type(self).__name__}(memory=...) must be a MemoryBase, such as InMemoryMemory(), not {memory!r:.200}"
            )
        cls = type(self)
        check_is_list(cls, middlewares)
        check_switch(cls, "print_hint_msg", print_hint_msg)
        layers = [
            *memory_layers(cls, name, long_term_memory, long_term_memory_mode, long_term_memory_owner),
            *knowledge_layers(cls, knowledge, enable_rewrite_query),
            *plan_layers(cls, plan_notebook, enable_meta_tool),
            *([HintPrinter()] if print_hint_msg else []),  # inside of what it prints
            *middlewares,
        ]
        # An `Agent` has more rounds, and runs calls side by side.
        own = ReActConfig(
            max_iters=_MAX_ITERS if max_iters is None else max_iters,
            parallel_tool_calls=False if parallel_tool_calls is None else parallel_tool_calls,
        )
        options.setdefault("react_config", own)
        super().__init__(name, sys_prompt, _NoModel(name) if model is None else model, toolkit, layers, **options)
        self.long_term_memory, self.long_term_memory_mode = long_term_memory, long_term_memory_mode
        self.long_term_memory_owner, self.formatter = long_term_memory_owner, formatter
        self.knowledge = knowledge_list(knowledge)
        self.enable_rewrite_query, self.enable_meta_tool = enable_rewrite_query, enable_meta_tool
        self.plan_notebook, self.print_hint_msg = plan_notebook, print_hint_msg
        self.memory = memory if memory is not None else InMemoryMemory()
        self._remembered: set[str] = set()  # the ids of the conversation's messages that the memory was given
        self._memory_revision: int | None = None  # when the conversation last held what the memory holds
        self.register_state("_remembered", sorted, set)  # JSON has no sets
        self.register_state("name", custom_from_json=_require_str)
        self.register_state("system_prompt", custom_from_json=_require_str)

    @property
    def sys_prompt(self) -> str:
        """The system prompt."""
        return self.system_prompt

    @property
    def max_iters(self) -> int:
        """The maximum number of rounds of a reply; a change applies from the next reply."""
        return self.react_config.max_iters

    @max_iters.setter
    def max_iters(self, max_iters: int) -> None:
        self.react_config = replace(self.react_config, max_iters=max_iters)

    @property
    def parallel_tool_calls(self) -> bool:
        """Whether the calls of one answer run in parallel; a change applies from the next reply."""
        return self.react_config.parallel_tool_calls

    @parallel_tool_calls.setter
    def parallel_tool_calls(self, parallel_tool_calls: bool) -> None:
        self.react_config = replace(self.react_config, parallel_tool_calls=parallel_tool_calls)

    async def reply(self, msg: Any = None, structured_model: Any = None, *, deps: Any = None) -> Msg:  # type: ignore[override]  # no reply_id: it is the runtime's
        """Answer with the final message."""
        await self._load_memory()
        try:
            answer = await super().reply(msg, structured_model, deps=deps)
        finally:  # a reply that failed may have taken in its input all the same
            await self._update_memory()
        if answer.structured_output is not None:
            # In 1.x the metadata held the fields, and `super()` may give an instance.
            output = to_jsonable_python(answer.structured_output)
            answer.metadata = {**(output if isinstance(output, dict) else {}), **answer.metadata}
        return answer

    @hook_method("on_reasoning", OverriddenLoopStep)
    async def _reasoning(self, tool_choice: ToolChoice | str | None = AS_GIVEN) -> Msg:
        """Ask the model once and return what it said; made to be overridden, as the innermost layer of on_reasoning."""
        return await reason_by_loop(self, tool_choice)

    @hook_method("on_acting", OverriddenLoopStep)
    async def _acting(self, tool_call: ToolCallBlock) -> ToolResponse | Msg | None:
        """Run one tool call and return its result; made to be overridden, as the innermost layer of on_acting."""
        return await act_by_loop(self, tool_call)

    @accept_old_keywords(msgs="msg")
    async def observe(self, msg: MessagesInput | None) -> None:
        """Take in messages without answering them."""
        await super().observe(msg)
        await self._update_memory()

    def with_state(self, state: AgentState) -> Self:
        """Return another conversation over the same model, tools and chains, with a new memory.

        Raises `ConfigError` where it is not said whose the memories of a `long_term_memory` are.
        """
        # The other conversation may well be with another user.
        if self.long_term_memory is not None and self.long_term_memory_owner is None and state is not self.state:
            raise ConfigError(
                f"several conversations would share the long-term memory of {self.name!r}: say whose it is in each "
                f"with {type(self).__name__}(long_term_memory_owner=...), a str or a function of the agent"
            )
        other = super().with_state(state)
        other.memory = InMemoryMemory()
        other._remembered = set()
        other._memory_revision = None
        return other

    def __copy__(self) -> Self:
        other = super().__copy__()
        other.memory, other._remembered = self.memory, self._remembered  # it is the same conversation
        return other

    async def _load_memory(self) -> None:
        revision = await self.memory.read_revision()
        if revision is not None and revision == self._memory_revision:
            return
        remembered = await self.memory.get_memory(prepend_summary=False)
        removed = self._remembered - {msg.id for msg in remembered}
        if removed:
            self.state.context = [msg for msg in self.state.context if msg.id not in removed]
            if not remembered:  # it was cleared, and the summary is of what was in it
                self.state.summary = ""
            self.live_conversation.context_usage.reset()
        known = {msg.id for msg in self.state.context}
        # What comes before a message that both have is already there, or was summarised and is in the memory alone.
        new = list(takewhile(lambda msg: msg.id not in known, reversed(remembered)))
        self.state.context += reversed(new)
        self._remembered = {msg.id for msg in remembered} & {msg.id for msg in self.state.context}
        self._memory_revision = revision  # of before, since other code may have added to it meanwhile

    async def _update_memory(self) -> None:
        new = list(takewhile(lambda msg: msg.id not in self._remembered, reversed(self.state.context)))
        await self.memory.add(new[::-1])
        self._remembered.update(msg.id for msg in new)
        revision, before = await self.memory.read_revision(), self._memory_revision
        # Else other code has changed it meanwhile, and it has to be read.
        is_ours = revision is not None and before is not None and revision - before == len(new)
        self._memory_revision = revision if is_ours else None


def _require_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the name and the system prompt of an agent must be str, not {value!r:.200}")
    return value


class _NoModel(ChatModelBase):
    def __init__(self, name: str) -> None:
        super().__init__(model="none")
        self._agent = name

    async def _call(self, messages: object, tools: object, tool_choice: object) -> NoReturn:
        raise UsageError(f"agent {self._agent!r} was built without a model: give ReActAgent(model=...)")
