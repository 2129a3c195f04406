"""The methods of an agent that register pre/post hooks: the only place where the core imports `agentrt.compat`."""

from collections.abc import Callable
from typing import Any, ClassVar, get_args, overload

from agentrt.agent.layers import InnerLayers
from agentrt.types import AgentHookTypes, PostHookTypes, PreHookTypes, ReActAgentHookTypes

PreHook = Callable[[Any, dict[str, Any]], object]
"""A function `(self, kwargs)`, plain or `async`."""

PostHook = Callable[[Any, dict[str, Any], Any], object]
"""A function `(self, kwargs, output)`, plain or `async`."""

Hook = Callable[..., Any]
"""One of these two: its type of hook says which."""

REACT_HOOK_TYPES = tuple(hook_type for types in get_args(ReActAgentHookTypes) for hook_type in get_args(types))


def _registry() -> Any:
    from agentrt.compat import hook_registry  # here, since an agent without hooks needs nothing of it

    return hook_registry


class HookRegistration:
    """The part of an agent that takes pre/post hooks.

    A pre hook `(self, kwargs)` gets copies of the arguments and may return others; a post hook `(self, kwargs, output)`
    gets the result as well and may return another. `None` leaves things as they are. Plain or `async` functions. Hooks
    of the instance run before those of its class, these before those of its parents, each in the order of
    registration; a name that is registered again replaces the hook in its place, and a class's own hook takes the place
    of one by that name which it would inherit.
    """

    supported_hook_types: ClassVar[list[str]] = list(get_args(AgentHookTypes))
    inner_layers: InnerLayers = InnerLayers()  # an agent or a class with hooks has others of its own

    @overload
    def register_instance_hook(self, hook_type: PreHookTypes, hook_name: str, hook: PreHook) -> None: ...
    @overload
    def register_instance_hook(self, hook_type: PostHookTypes, hook_name: str, hook: PostHook) -> None: ...
    def register_instance_hook(self, hook_type: ReActAgentHookTypes, hook_name: str, hook: Hook) -> None:
        """Register a hook for this agent alone; raises `HookError` for an unknown type or a hook that cannot be one."""
        _registry().register_instance_hook(self, hook_type, hook_name, hook)

    def remove_instance_hook(self, hook_type: ReActAgentHookTypes, hook_name: str) -> None:
        """Remove a hook of this agent by name; raises `ValueError` for an unknown name."""
        _registry().remove_instance_hook(self, hook_type, hook_name)

    def clear_instance_hooks(self, hook_type: ReActAgentHookTypes | None = None) -> None:
        """Remove the hooks of one type, or all of them, of this agent."""
        _registry().clear_instance_hooks(self, hook_type)

    @overload
    @classmethod
    def register_class_hook(cls, hook_type: PreHookTypes, hook_name: str, hook: PreHook) -> None: ...
    @overload
    @classmethod
    def register_class_hook(cls, hook_type: PostHookTypes, hook_name: str, hook: PostHook) -> None: ...
    @classmethod
    def register_class_hook(cls, hook_type: ReActAgentHookTypes, hook_name: str, hook: Hook) -> None:
        """Register a hook for all agents of this class and of those derived from it, existing ones included."""
        _registry().register_class_hook(cls, hook_type, hook_name, hook)

    @classmethod
    def remove_class_hook(cls, hook_type: ReActAgentHookTypes, hook_name: str) -> None:
        """Remove a hook that was registered on this class itself; raises `ValueError` for an unknown name."""
        _registry().remove_class_hook(cls, hook_type, hook_name)

    @classmethod
    def clear_class_hooks(cls, hook_type: ReActAgentHookTypes | None = None) -> None:
        """Remove the hooks of one type, or all of them, that were registered on this very class."""
        _registry().clear_class_hooks(cls, hook_type)
