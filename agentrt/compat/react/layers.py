"""Options of 1.x that are layers here: long-term memory, knowledge and plans, and hints that are printed."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar, Protocol, get_args

from agentrt._runtime.model_interface.base import ModelResult
from agentrt._runtime.text import repr_of
from agentrt.errors import ConfigError
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.memory import LongTermMemoryBase
from agentrt.types import LongTermMemoryMode

_PLAN_GROUP = "plan_related"


class SearchableKnowledge(Protocol):
    """The methods of a `KnowledgeBase`; importing that here would import it into every program."""

    name: str
    description: str

    async def search(self, query: str, limit: int = 5) -> list[Any]: ...


def memory_layers(
    cls: type,
    agent_name: str,
    memory: LongTermMemoryBase | None,
    mode: LongTermMemoryMode,
    owner: str | Callable[[Any], str] | None,
) -> list[MiddlewareBase]:
    """Return the layer of a long-term memory, if there is one; raises `ConfigError` for options that do not fit."""
    modes = get_args(LongTermMemoryMode)
    if mode not in modes:
        raise _wrong_option(cls, "long_term_memory_mode", f"one of {', '.join(map(repr, modes))}", mode)
    chosen: object = owner
    if not (owner is None or callable(owner) or (isinstance(chosen, str) and chosen)):
        raise _wrong_option(cls, "long_term_memory_owner", "a str, or a function of the agent that returns one", owner)
    if memory is None:
        return []
    if not isinstance(memory, LongTermMemoryBase):
        raise _wrong_option(cls, "long_term_memory", "a LongTermMemoryBase, such as LongTermMemory(store)", memory)
    # In 1.x each agent had a memory of its own.
    whose = agent_name if owner is None else owner
    return [_middlewares().LongTermMemoryMiddleware(memory, owner=whose, mode=mode)]


def knowledge_list(knowledge: Any) -> list[Any]:
    """Return the knowledge bases as a list; a single one may be given by itself."""
    return [] if knowledge is None else [*knowledge] if isinstance(knowledge, (list, tuple)) else [knowledge]


def knowledge_layers(cls: type, knowledge: Any, rewrites: bool) -> list[MiddlewareBase]:
    """Return the layer of knowledge bases, if there are any; raises `ConfigError` for options that do not fit."""
    check_switch(cls, "enable_rewrite_query", rewrites)
    bases = knowledge_list(knowledge)
    if not bases:
        return []
    from agentrt.rag import KnowledgeBase  # here, since most agents have no knowledge

    if not all(isinstance(base, KnowledgeBase) for base in bases):
        raise _wrong_option(cls, "knowledge", "a KnowledgeBase or a list of them", knowledge)
    return [_middlewares().RAGMiddleware(bases, "static", rewrite=rewrites)]


def plan_layers(cls: type, notebook: Any, has_meta_tool: bool) -> list[MiddlewareBase]:
    """Return the notebook, if there is one, with its tools in a group if a meta tool is to switch them on."""
    check_switch(cls, "enable_meta_tool", has_meta_tool)
    if notebook is None:
        return []
    if not isinstance(notebook, _middlewares().PlanNotebook):
        raise _wrong_option(cls, "plan_notebook", "a PlanNotebook of agentrt.middleware", notebook)
    if has_meta_tool and notebook.group is None:
        notebook.group = _PLAN_GROUP
    return [notebook]


class HintPrinter(MiddlewareBase):
    """Prints what the layers around it add to requests for the model alone, each text once in a reply."""

    sources: ClassVar = frozenset({"knowledge", "long_term_memory", "plan"})

    async def on_model_call(
        self, agent: Any, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        if not agent.run.is_internal:
            printed = agent.run.scratch(self)
            for msg in input_kwargs["messages"]:
                hints = {block.hint: True for block in msg.get_content_blocks("hint") if block.source in self.sources}
                if not hints.keys() <= printed.keys():
                    printed.update(hints)
                    await agent.print(msg)
        return await next_handler(**input_kwargs)


def check_switch(cls: type, option: str, value: object) -> None:
    """Raise `ConfigError` for an option that is neither on nor off."""
    if not isinstance(value, bool):
        raise _wrong_option(cls, option, "True or False", value)


def _middlewares() -> Any:
    # By its name, since nothing of the runtime depends on the middlewares that ship; these options alone ask for them.
    return import_module("agentrt.middleware")


def _wrong_option(cls: type, option: str, expected: str, value: object) -> ConfigError:
    return ConfigError(f"{cls.__name__}({option}=...) must be {expected}, not {repr_of(value)}")
