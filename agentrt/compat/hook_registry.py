"""The registry of pre/post hooks, of one agent or of a class of agents: inner layers that run them.

Registered hooks are never changed, only replaced. One layer runs all hooks of a core, those of the agent and those of
its classes, since post hooks of the agent run first as well.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any

from agentrt._runtime.chain.signature import signature_of
from agentrt.agent.base import AgentBase
from agentrt.agent.hook_registration import Hook
from agentrt.agent.layers import InnerLayers
from agentrt.compat.hook_middleware import HookTable, layers_for
from agentrt.errors import HookError, HookTargetError
from agentrt.hooks import MiddlewareBase

_PARAMETERS = {"pre": ("self", "kwargs"), "post": ("self", "kwargs", "output")}

_lock = threading.Lock()  # classes may be given hooks in several threads


class RegisteredHooks(InnerLayers):
    """The hooks that were registered on one agent, or on one class; the layers also run those of the other classes."""

    __slots__ = ("table",)

    def __init__(self, table: HookTable) -> None:
        super().__init__()
        self.table = table

    def of(self, agent: AgentBase, compiled: tuple[MiddlewareBase, ...]) -> tuple[MiddlewareBase, ...]:
        """Return one layer for each core that has hooks: the same ones until a hook is registered or removed."""
        sources = tuple(_registrations_of(agent).values())
        # Equal only if they are the same objects, for a change of hooks makes another one.
        if isinstance(compiled, _HookLayers) and compiled.sources == sources:
            return compiled
        layers = _HookLayers(layers_for(registered_hooks(agent)))
        layers.sources = sources
        return layers


class _HookLayers(tuple[MiddlewareBase, ...]):
    """Layers, and the registrations that they were made for."""

    sources: tuple[RegisteredHooks, ...]


def register_instance_hook(agent: AgentBase, hook_type: str, name: str, hook: Hook) -> None:
    """Register a hook for one agent."""
    _check_target(agent)
    _check_registration(type(agent), hook_type, name, hook)
    _change(agent, lambda hooks: _add_hook(hooks, hook_type, name, hook))


def remove_instance_hook(agent: AgentBase, hook_type: str, name: str) -> None:
    """Remove a hook of one agent."""
    _check_target(agent)
    _check_hook_type(type(agent), hook_type)
    _change(agent, lambda hooks: _remove_hook(hooks, hook_type, name, f"this {type(agent).__name__}"))


def clear_instance_hooks(agent: AgentBase, hook_type: str | None) -> None:
    """Remove the hooks of one type, or all of them, of one agent."""
    _check_target(agent)
    _change(agent, lambda hooks: _clear_hooks(type(agent), hooks, hook_type))


def register_class_hook(cls: type[AgentBase], hook_type: str, name: str, hook: Hook) -> None:
    """Register a hook for all agents of a class."""
    _check_registration(cls, hook_type, name, hook)
    _change(cls, lambda hooks: _add_hook(hooks, hook_type, name, hook))


def remove_class_hook(cls: type[AgentBase], hook_type: str, name: str) -> None:
    """Remove a hook that was registered on this very class."""
    _check_hook_type(cls, hook_type)
    _change(cls, lambda hooks: _remove_hook(hooks, hook_type, name, f"class {cls.__name__}"))


def clear_class_hooks(cls: type[AgentBase], hook_type: str | None) -> None:
    """Remove the hooks of one type, or all of them, that were registered on this very class."""
    _change(cls, lambda hooks: _clear_hooks(cls, hooks, hook_type))


def registered_hooks(agent: AgentBase) -> HookTable:
    """Return the hooks that run for an agent, by type; names are made unique by the class that a hook is of."""
    registrations = _registrations_of(agent)
    hooks_by_type: dict[str, dict[str, Hook]] = {}
    for hook_type in agent.supported_hook_types:
        hooks: dict[str, Hook] = {}
        inherited: set[str] = set()
        for owner, registered in registrations.items():
            for name, hook in registered.table.get(hook_type, {}).items():
                if owner is None:
                    hooks[name] = hook
                elif name not in inherited:
                    inherited.add(name)
                    hooks[f"{name} of class {owner.__name__}"] = hook
        if hooks:
            hooks_by_type[hook_type] = hooks
    return hooks_by_type


def _registrations_of(agent: AgentBase) -> dict[type | None, RegisteredHooks]:
    """Return what was registered by its class, in the order in which hooks run; `None` stands for the agent itself."""
    owners: list[tuple[type | None, Any]] = [(None, agent), *((cls, cls) for cls in type(agent).__mro__)]
    own = ((owner, vars(target).get("inner_layers")) for owner, target in owners)
    # The base of all agents has layers that are no hooks: none.
    return {owner: layers for owner, layers in own if isinstance(layers, RegisteredHooks)}


def _change(target: Any, change: Callable[[HookTable], HookTable]) -> None:
    """Replace the hooks of an agent or a class, on which they are kept, and with which they go."""
    with _lock:
        own = vars(target).get("inner_layers")
        table = change({} if own is None else own.table)
        if table:
            target.inner_layers = RegisteredHooks(table)
        elif own is not None:  # back to what it inherits, so that agents without hooks do not look for any
            del target.inner_layers


def _add_hook(table: HookTable, hook_type: str, name: str, hook: Hook) -> HookTable:
    return {**table, hook_type: {**table.get(hook_type, {}), name: hook}}


def _remove_hook(table: HookTable, hook_type: str, name: str, target: str) -> HookTable:
    hooks = dict(table.get(hook_type, {}))
    if name not in hooks:
        known = ", ".join(map(repr, hooks)) or "none"
        raise ValueError(f"{target} has no {hook_type} hook {name!r}; it has {known}")
    del hooks[name]
    changed = {**table, hook_type: hooks}
    return {hook_type: hooks for hook_type, hooks in changed.items() if hooks}


def _clear_hooks(cls: type[AgentBase], table: HookTable, hook_type: str | None) -> HookTable:
    if hook_type is None:
        return {}
    _check_hook_type(cls, hook_type)
    return {other: hooks for other, hooks in table.items() if other != hook_type}


def _check_target(agent: object) -> None:
    # `AgentBase.register_instance_hook(target, ...)` reaches the method with anything for `self`.
    if isinstance(agent, type) or not isinstance(agent, AgentBase):
        raise HookTargetError(
            f"instance hooks belong to an agent, not to {agent!r:.200}: a class has register_class_hook"
        )


def _check_registration(cls: type[AgentBase], hook_type: str, name: object, hook: object) -> None:
    _check_hook_type(cls, hook_type)
    if not isinstance(name, str):
        raise HookError(f"the name of a {hook_type} hook must be a str, not {name!r:.200}")
    if not callable(hook):
        raise HookError(f"the {hook_type} hook {name!r} must be a function, not {hook!r:.200}")
    parameters = _PARAMETERS[hook_type.partition("_")[0]]
    try:
        signature_of(hook).bind(*parameters)
    except TypeError:
        raise HookError(
            f"the {hook_type} hook {name!r} must take ({', '.join(parameters)}), but it takes {signature_of(hook)}"
        ) from None
    except ValueError:  # a built-in function that does not say what it takes
        pass


def _check_hook_type(cls: type[AgentBase], hook_type: str) -> None:
    supported: Iterable[str] = cls.supported_hook_types
    if hook_type not in supported:
        raise HookError(f"{cls.__name__} has no hook type {hook_type!r}; it has {', '.join(supported)}")
