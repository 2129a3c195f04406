"""Registering pre/post hooks, on one agent or on a class of agents.

The hooks run in layers that `agentrt.middleware.HookMiddleware` provides, innermost of all. Tables of hooks are never
changed, only replaced: an agent compiles its chains anew at the next entry after that, and a reply in progress keeps
those that it began with.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, get_args, overload

from agentrt.chain.signature import signature_of
from agentrt.errors import HookError, HookTargetError
from agentrt.types import AgentHookTypes, PostHookTypes, PreHookTypes, ReActAgentHookTypes

__all__ = [
    "REACT_HOOK_TYPES",
    "Hook",
    "HookRegistration",
    "HookTable",
    "are_same_hooks",
    "class_hooks",
    "registered_hooks",
]

PreHook = Callable[[Any, dict[str, Any]], object]
"""A function `(self, kwargs)`, plain or `async`."""

PostHook = Callable[[Any, dict[str, Any], Any], object]
"""A function `(self, kwargs, output)`, plain or `async`."""

Hook = Callable[..., Any]
"""One of these two: its type of hook says which."""

HookTable = Mapping[str, Mapping[str, Hook]]
"""By type of hook and then by name, in the order of registration; without types that have no hooks."""

HOOK_TYPES: tuple[str, ...] = get_args(AgentHookTypes)
REACT_HOOK_TYPES = tuple(hook_type for types in get_args(ReActAgentHookTypes) for hook_type in get_args(types))

_PARAMETERS = {"pre": ("self", "kwargs"), "post": ("self", "kwargs", "output")}


class _ClassHooks:
    """The hooks of classes, changed from any thread; `version` changes whenever any of them does."""

    __slots__ = ("_lock", "version")

    def __init__(self) -> None:
        self.version = 0
        self._lock = threading.Lock()

    def of(self, cls: type) -> HookTable:
        hooks: HookTable = vars(cls).get("_class_hooks", {})  # on the class itself, with which they go
        return hooks

    def change(self, cls: "type[HookRegistration]", change: Callable[[HookTable], HookTable]) -> None:
        with self._lock:
            cls._class_hooks = change(self.of(cls))
            # Comes last: an agent that looks in between compiles its chains once more, and never keeps the old hooks.
            self.version += 1


class_hooks = _ClassHooks()


class HookRegistration:
    """The part of an agent that takes pre/post hooks.

    A pre hook `(self, kwargs)` gets copies of the arguments and may return others; a post hook `(self, kwargs, output)`
    gets the result as well and may return another. `None` leaves things as they are. Plain or `async` functions. Hooks
    of the instance run before those of its class, these before those of its parents, each in the order of
    registration; a name that is registered again replaces the hook in its place, and a class's own hook takes the place
    of one by that name which it would inherit.
    """

    supported_hook_types: ClassVar[list[str]] = list(HOOK_TYPES)
    _class_hooks: ClassVar[HookTable] = {}
    _instance_hooks: HookTable = {}  # noqa: RUF012  # a mapping that is replaced, never changed

    @overload
    def register_instance_hook(self, hook_type: PreHookTypes, hook_name: str, hook: PreHook) -> None: ...
    @overload
    def register_instance_hook(self, hook_type: PostHookTypes, hook_name: str, hook: PostHook) -> None: ...
    def register_instance_hook(self, hook_type: ReActAgentHookTypes, hook_name: str, hook: Hook) -> None:
        """Register a hook for this agent alone; raises `HookError` for an unknown type or a hook that cannot be one."""
        _check_target(self)
        _check_registration(type(self), hook_type, hook_name, hook)
        self._instance_hooks = _add_hook(self._instance_hooks, hook_type, hook_name, hook)

    def remove_instance_hook(self, hook_type: ReActAgentHookTypes, hook_name: str) -> None:
        """Remove a hook of this agent; raises `ValueError` when there is none by that name."""
        _check_target(self)
        _check_hook_type(type(self), hook_type)
        target = f"this {type(self).__name__}"
        self._instance_hooks = _remove_hook(self._instance_hooks, hook_type, hook_name, target)

    def clear_instance_hooks(self, hook_type: ReActAgentHookTypes | None = None) -> None:
        """Remove the hooks of one type, or all of them, of this agent."""
        _check_target(self)
        self._instance_hooks = _clear_hooks(type(self), self._instance_hooks, hook_type)

    @overload
    @classmethod
    def register_class_hook(cls, hook_type: PreHookTypes, hook_name: str, hook: PreHook) -> None: ...
    @overload
    @classmethod
    def register_class_hook(cls, hook_type: PostHookTypes, hook_name: str, hook: PostHook) -> None: ...
    @classmethod
    def register_class_hook(cls, hook_type: ReActAgentHookTypes, hook_name: str, hook: Hook) -> None:
        """Register a hook for all agents of this class and of those derived from it, existing ones included."""
        _check_registration(cls, hook_type, hook_name, hook)
        class_hooks.change(cls, lambda hooks: _add_hook(hooks, hook_type, hook_name, hook))

    @classmethod
    def remove_class_hook(cls, hook_type: ReActAgentHookTypes, hook_name: str) -> None:
        """Remove a hook that was registered on this very class; raises `ValueError` when there is none by that name."""
        _check_hook_type(cls, hook_type)
        class_hooks.change(cls, lambda hooks: _remove_hook(hooks, hook_type, hook_name, f"class {cls.__name__}"))

    @classmethod
    def clear_class_hooks(cls, hook_type: ReActAgentHookTypes | None = None) -> None:
        """Remove the hooks of one type, or all of them, that were registered on this very class."""
        class_hooks.change(cls, lambda hooks: _clear_hooks(cls, hooks, hook_type))


def registered_hooks(agent: HookRegistration) -> HookTable:
    """Return the hooks that run for an agent, by type; names are made unique by the class that a hook is of."""
    tables = [(cls, class_hooks.of(cls)) for cls in type(agent).__mro__]
    instance_hooks = agent._instance_hooks
    if not any(table for _, table in tables):
        return instance_hooks
    hooks_by_type: dict[str, dict[str, Hook]] = {}
    for hook_type in agent.supported_hook_types:
        hooks = dict(instance_hooks.get(hook_type, {}))
        inherited: set[str] = set()
        for cls, table in tables:
            for name, hook in table.get(hook_type, {}).items():
                if name not in inherited:
                    inherited.add(name)
                    hooks[f"{name} of class {cls.__name__}"] = hook
        if hooks:
            hooks_by_type[hook_type] = hooks
    return hooks_by_type


def are_same_hooks(hooks: HookTable, others: HookTable) -> bool:
    """Say whether these are the same hooks in the same order, which `==` of dicts does not compare."""
    return hooks == others and all(list(named) == list(others[hook_type]) for hook_type, named in hooks.items())


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


def _clear_hooks(cls: type[HookRegistration], table: HookTable, hook_type: str | None) -> HookTable:
    if hook_type is None:
        return {}
    _check_hook_type(cls, hook_type)
    return {other: hooks for other, hooks in table.items() if other != hook_type}


def _check_target(agent: object) -> None:
    # `AgentBase.register_instance_hook(target, ...)` reaches the method with anything for `self`.
    if isinstance(agent, type) or not isinstance(agent, HookRegistration):
        raise HookTargetError(
            f"instance hooks belong to an agent, not to {agent!r:.200}: a class has register_class_hook"
        )


def _check_registration(cls: type[HookRegistration], hook_type: str, name: object, hook: object) -> None:
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


def _check_hook_type(cls: type[HookRegistration], hook_type: str) -> None:
    supported: Iterable[str] = cls.supported_hook_types
    if hook_type not in supported:
        raise HookError(f"{cls.__name__} has no hook type {hook_type!r}; it has {', '.join(supported)}")
