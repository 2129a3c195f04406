"""Checks in the constructors of agents."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from agentrt._runtime.chain.check import overridden_hooks
from agentrt._runtime.model_interface.base import ChatModelBase
from agentrt._runtime.text import repr_of, repr_with_module, whole_characters
from agentrt.errors import ConfigError, MiddlewareConfigError, ToolConfigError
from agentrt.hooks import HOOKS, MiddlewareBase
from agentrt.message import Msg
from agentrt.state import AgentState, StateStore
from agentrt.state import state_store as state_store_at
from agentrt.state.state import has_session_id
from agentrt.tool import ToolBase, Toolkit
from agentrt.tool.toolkit import ToolLike
from agentrt.types import ContextConfig, PermissionContext, ReActConfig
from agentrt.workspace import FileSystemBase

_ALL_HOOKS = frozenset(spec.name for spec in HOOKS)


def check_agent_name(cls: type, name: object) -> None:
    """Raise `ConfigError` for what cannot be the name of an agent; `None` is fine."""
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigError(f"{cls.__name__}(name=...) must be a str that is not empty, not {repr_of(name)}")
    # Half of a surrogate pair has no UTF-8 form.
    if name is not None and whole_characters(name) is not name:
        raise ConfigError(
            f"{cls.__name__}(name=...) must be valid Unicode, but {name!r:.200} has half of a surrogate pair"
        )


def check_is_list(cls: type, middlewares: object) -> None:
    """Raise `ConfigError` for what is not a list; what is in it is checked by the compiler."""
    if not isinstance(middlewares, (list, tuple)):
        raise ConfigError(
            f"{cls.__name__}(middlewares=...) must be a list of middlewares, not {repr_of(middlewares)}: "
            f"write middlewares=[...], or leave it out"
        )


def check_use(cls: type, middlewares: Sequence[MiddlewareBase], hooks: Collection[str]) -> None:
    """Raise `MiddlewareConfigError` for a middleware that would not run, or not in full, in agents with these hooks."""
    if _ALL_HOOKS.issubset(hooks):
        return
    for middleware in middlewares:
        if not isinstance(middleware, MiddlewareBase):
            continue  # the compiler refuses it
        overridden = [spec.name for spec in overridden_hooks(middleware, MiddlewareBase, HOOKS)]
        problem = None
        if overridden and not any(hook in hooks for hook in overridden):
            problem = "would never run", f"it has {', '.join(overridden)}"
        elif not all(hook in hooks for hook in middleware.needs_hooks):
            problem = "cannot do its work", f"it needs {', '.join(middleware.needs_hooks)}"
        if problem is not None:
            raise MiddlewareConfigError(
                f"{type(middleware).__name__} {problem[0]} in agents like {cls.__name__}, which write their own reply: "
                f"their hooks are {', '.join(hooks)}, and {problem[1]}; leave it out, or give it to an Agent"
            )


def check_parts(name: object, system_prompt: object, model: object, when_busy: object, description: object) -> None:
    """Raise `ConfigError` for parts that an `Agent` cannot be made of."""
    if not isinstance(name, str) or not name:
        remedy = (
            ": the name comes first, as in Agent('assistant', model=...)" if isinstance(name, ChatModelBase) else ""
        )
        raise ConfigError(f"Agent(name=...) must be a str that is not empty, not {repr_of(name)}{remedy}")
    if not isinstance(system_prompt, str):
        raise ConfigError(
            f"Agent(system_prompt=...) must be a str, not {repr_of(system_prompt)}: leave it out, or write a "
            f"middleware with on_system_prompt for one that changes"
        )
    _refuse_class("model", model)
    if not isinstance(model, (ChatModelBase, str)):
        from agentrt.model.presets import PRESETS  # here, since it loads all providers

        # Elsewhere the model comes first.
        is_spec = model is None and name.partition(":")[0] in (*PRESETS, "rules")
        remedy = f": the name comes first, so write Agent('assistant', model={name!r:.100})" if is_spec else ""
        raise ConfigError(
            f"Agent(model=...) must be a chat model, or the name of one, such as 'openai:gpt-5-mini' or 'rules', "
            f"not {repr_of(model)}{remedy}"
        )
    if not isinstance(description, str):
        raise ConfigError(
            f"Agent(description=...) must be a str, not {repr_of(description)}: say what the agent is for"
        )
    if when_busy not in ("raise", "wait"):
        raise ConfigError(f"Agent(when_busy=...) must be 'raise' or 'wait', not {when_busy!r}")


def _refuse_class(parameter: str, value: object, owner: str = "Agent") -> None:
    if isinstance(value, type):
        name = value.__name__
        raise ConfigError(f"{owner}({parameter}=...) holds the class {name}, not an instance of it: write {name}(...)")


def make_toolkit(toolkit: Toolkit | Iterable[ToolLike] | None, tools: Iterable[ToolLike] | None) -> Toolkit:
    """Return a toolkit with what an `Agent` was given as its toolkit and its tools.

    A `Toolkit` that was given stays as it is. Raises `ToolConfigError` for what cannot be a list of tools.
    """
    further = _list_of_tools("tools", tools)
    # One that was given may be shared by agents, so what is this agent's own is put beside it.
    if isinstance(toolkit, Toolkit):
        return toolkit.with_tools(further)
    return Toolkit([*_list_of_tools("toolkit", toolkit), *further])


def _list_of_tools(parameter: str, tools: object) -> list[ToolLike]:
    if tools is None:
        return []
    if isinstance(tools, (str, Mapping, ToolBase)) or not isinstance(tools, (Iterable, Toolkit)):
        name = getattr(tools, "__name__", "function")
        raise ToolConfigError(
            f"Agent({parameter}=...) must be a list of functions and tools, not {repr_of(tools)}: "
            f"write {parameter}=[{name}]"
        )
    listed: list[Any] = [tools] if isinstance(tools, Toolkit) else list(tools)
    if any(isinstance(tool, Toolkit) for tool in listed):
        raise ToolConfigError(f"Agent({parameter}=...) holds a Toolkit: write toolkit=..., and tools=[...] for others")
    return listed


def check_assigned(name: str, model: object, toolkit: object) -> None:
    """Raise `ConfigError` for a model or toolkit set after the agent was built, in a form that only `Agent` takes."""
    if isinstance(model, str):
        raise ConfigError(f"the model of agent {name!r} was set to {model!r:.100}: write agent.model = chat_model(...)")
    if isinstance(toolkit, (list, tuple)):
        raise ConfigError(f"the toolkit of agent {name!r} was set to a list: write agent.toolkit = Toolkit([...])")


def check_options(state: object, react_config: object, context_config: object, workspace: object) -> None:
    """Raise `ConfigError` for an option of an `Agent` that is neither `None` nor what it must be."""
    if state is not None:
        check_state(state)
    if react_config is not None and not isinstance(react_config, ReActConfig):
        raise ConfigError(
            f"Agent(react_config=...) must be a ReActConfig, not {repr_of(react_config)}: "
            f"write ReActConfig(max_iters=...)"
        )
    if context_config is not None and not isinstance(context_config, ContextConfig):
        raise ConfigError(
            f"Agent(context_config=...) must be a ContextConfig, not {repr_of(context_config)}: "
            f"write ContextConfig(trigger_ratio=...)"
        )
    if workspace is not None and not isinstance(workspace, FileSystemBase):
        raise ConfigError(
            f"Agent(workspace=...) must be a FileSystemBase, not {repr_of(workspace)}: write LocalWorkspace(folder)"
        )


def as_state_store(owner: str, store: Any) -> StateStore | None:
    """Return the store, which a URL may name; raises `ConfigError` for what keeps no states of conversations."""
    if isinstance(store, str):
        try:
            return state_store_at(store)
        except ConfigError as error:
            raise ConfigError(f"{owner}(state_store=...): {error}") from error
    _refuse_class("state_store", store, owner)
    if store is not None and not (hasattr(store, "save") and hasattr(store, "load")):
        raise ConfigError(
            f"{owner}(state_store=...) must have `save` and `load`, which {repr_with_module(store)} "
            f"lacks: write FileStateStore(folder) of agentrt.state, or a class of your own"
        )
    return store  # type: ignore[no-any-return]  # it has the methods


def check_state(state: object) -> None:
    """Raise `ConfigError` for what is not the state of a conversation."""
    if state is None:
        raise ConfigError(
            "a conversation's state must be an AgentState, not None, which a store loads for a session that was never "
            "saved: write `await store.load(session_id) or AgentState(session_id=session_id)`"
        )
    if not isinstance(state, AgentState):
        raise ConfigError(
            f"a conversation's state must be an AgentState, not {repr_of(state)}: "
            f"make one with AgentState() or AgentState.model_validate_json(text)"
        )
    if has_session_id(state):  # one that is still to be made need not be made here
        session_id: object = state.session_id
        if not isinstance(session_id, str) or not session_id:
            raise ConfigError(f"AgentState(session_id=...) must be a str that is not empty, not {repr_of(session_id)}")
    permissions: object = state.permission_context
    if not isinstance(permissions, PermissionContext):
        raise ConfigError(
            f"AgentState(permission_context=...) must be a PermissionContext, not {repr_of(permissions)}: "
            f"write PermissionContext(mode=..., rules=[...])"
        )
    # A dataclass takes any value, and a history from elsewhere is often a list of dicts.
    context: object = state.context
    if not isinstance(context, list):
        raise ConfigError(
            f"AgentState(context=...) must be a list of messages, not {repr_of(context)}: write context=[UserMsg(...)]"
        )
    for message in state.context:
        if not isinstance(message, Msg):
            raise ConfigError(
                f"AgentState(context=...) holds {repr_of(message)}, which is not a Msg: write UserMsg('Hi'), or give "
                f"dicts and texts to `await agent.observe([...])`"
            )
