"""What a class of agents writes itself: its `reply`, `observe` and `print`, as cores of chains.

The compiled entry of such a method is installed on each instance, where it hides the method of the class. So
`agent.reply(...)` runs the chain, and `super().reply(...)` in a subclass reaches the parent's plain method.
"""

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from functools import wraps
from types import MethodType
from typing import Any, ClassVar, NoReturn, Self, TypeVar, get_origin

from agentrt.chain import HookSpec
from agentrt.errors import ChainContractError, ConfigError, UsageError
from agentrt.event import AgentEvent, ReplyEndEvent, ReplyStartEvent
from agentrt.message import Msg

__all__ = ["OverriddenMethod", "SetUp", "own_methods", "own_spec", "refuse_before_init"]

_T = TypeVar("_T")
_HOOK_OF = {
    "reply": "on_reply",
    "observe": "on_observe",
    "print": "on_print",
    "_reasoning": "on_reasoning",
    "_acting": "on_acting",
}
_STEPS = ("on_reasoning", "on_acting")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class OverriddenMethod:
    """A method that a class writes itself, and how values that flow through a chain become its arguments.

    `keys` are its parameters; what `*args` and `**kwargs` took goes by these names. Parameters in the places of
    `known` ones go by the names that those have.
    """

    def __init__(self, cls: type, name: str, function: Callable[..., Any], known: tuple[str, ...]) -> None:
        self.name = name
        self.function = function
        self.title = f"{cls.__name__}.{name}()"
        _check_kind(self.title, function)
        self.hook = _HOOK_OF[name]
        self.signature = inspect.signature(function)
        # The first one is the agent.
        self._parameters = list(self.signature.parameters.values())[1:]
        named = [each.name for each in self._parameters]
        places = [each.name for each in self._parameters if each.kind in _POSITIONAL]
        # A method that has a parameter of that name elsewhere means something else by this one.
        known_by = {name: key for name, key in zip(places, known, strict=False) if key not in named}
        self._keys = {name: name for name in named} | known_by
        self.keys = tuple(self._keys.values())
        self.core = _CORES[self.hook](self)
        self.entry = self._make_entry()

    def values(self, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the values of all parameters; raises `TypeError` for arguments that do not fit."""
        try:
            bound = self.signature.bind(agent, *args, **kwargs)
        except TypeError as error:
            takes = ", ".join(map(str, self._parameters))
            given = ", ".join([f"{len(args)} positional"] * bool(args) + [f"{name}=..." for name in kwargs]) or "none"
            raise TypeError(f"{self.title} takes ({takes}); arguments given: {given} ({error})") from None
        bound.apply_defaults()
        return {key: bound.arguments[name] for name, key in self._keys.items()}

    def key_of(self, parameter: str) -> str:
        """Return the name that the parameter goes by; one that the method does not have keeps its own."""
        return self._keys.get(parameter, parameter)

    async def __call__(self, agent: Any, values: dict[str, Any]) -> Any:
        """Call the plain method."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self._parameters:
            value = values[self._keys[parameter.name]]
            if parameter.kind in _POSITIONAL:
                args.append(value)
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(value)
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update(value)
            else:
                kwargs[parameter.name] = value
        result = self.function(agent, *args, **kwargs)
        if not inspect.isawaitable(result):
            raise ChainContractError(f"{self.title} must be a coroutine function: write `async def {self.name}`")
        return await result

    def _make_entry(self) -> Callable[..., Any]:
        @wraps(self.function)
        async def entry(agent: Any, /, *args: Any, **kwargs: Any) -> Any:
            return await agent._enter_chain(self, self.values(agent, args, kwargs))

        return entry


def _check_kind(title: str, function: Any) -> None:
    plain = inspect.unwrap(function) if callable(function) else function
    wrong = None
    if not inspect.isroutine(plain) or isinstance(function, (staticmethod, classmethod)):
        wrong = "it is no method"
    elif inspect.isasyncgenfunction(plain) or inspect.isgeneratorfunction(plain):
        wrong = "it yields"
    if wrong is not None:
        raise ConfigError(f"{title} must be a coroutine function (`async def` without `yield`), but {wrong}")


class SetUp:
    """Has those of an agent's own methods that are called before `super().__init__()` say so."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        agent = super().__new__(cls)
        for name, (ours, _) in cls._inherited.items():  # type: ignore[attr-defined]  # of agents only
            if getattr(cls, name) is not ours:
                vars(agent)[name] = MethodType(_refuse, agent)
        return agent


async def _refuse(agent: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise _not_set_up(type(agent))


def refuse_before_init(cls: type[_T]) -> type[_T]:
    """Have agents that did not call `super().__init__()` say so where an attribute that the class annotates is read."""
    for name, annotation in inspect.get_annotations(cls).items():
        origin: object = get_origin(annotation)
        if origin is not ClassVar and not hasattr(cls, name):
            setattr(cls, name, _MadeByInit(name))
    return cls


class _MadeByInit:
    """Stands on the class for an attribute that each agent has; a `__getattr__` would make every attribute dearer."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, agent: Any, cls: type) -> NoReturn:
        if agent is not None and "chains" not in vars(agent):
            raise _not_set_up(cls)
        where = f"type object {cls.__name__!r}" if agent is None else f"{cls.__name__!r} object"
        raise AttributeError(f"{where} has no attribute {self._name!r}")


def _not_set_up(cls: type) -> UsageError:
    return UsageError(f"{cls.__name__}.__init__() did not call super().__init__(): call it there, first of all")


def own_spec(spec: HookSpec, method: OverriddenMethod) -> HookSpec:
    """Return the line of the hook table for a chain around a class's own method, whose values may be of any type."""
    spec = replace(spec, types={}, converters={})
    if spec.name == "on_reply":
        return replace(spec, keys=method.keys, terminal=None)  # a reply may say nothing
    if spec.name in _STEPS:
        return replace(spec, keys=method.keys, item_types=(object,), terminal=None)
    return replace(spec, keys=method.keys)


def _core_of_call(method: OverriddenMethod) -> Callable[..., Any]:
    async def core(agent: Any, /, **values: Any) -> None:
        await method(agent, values)

    return core


def _core_of_reply(method: OverriddenMethod) -> Callable[..., Any]:
    async def core(agent: Any, /, **values: Any) -> AsyncGenerator[AgentEvent | Msg, None]:
        run, session_id = agent.run, agent.state.session_id
        run.ended = False  # a layer may have us called again
        yield ReplyStartEvent(run.id, session_id, agent.name)
        answer = await method(agent, values)
        if answer is not None and not isinstance(answer, Msg):
            raise ChainContractError(f"{method.title} must return a Msg, or None to say nothing, not {answer!r:.200}")
        for event in run.mailbox.take():
            yield event
        run.ended, run.is_silent = True, answer is None
        yield ReplyEndEvent(run.id, session_id, "completed")
        if answer is not None:
            yield answer

    return core


def _core_of_step(method: OverriddenMethod) -> Callable[..., Any]:
    async def core(agent: Any, /, **values: Any) -> AsyncGenerator[Any, None]:
        yield await method(agent, values)

    return core


_CORES: dict[str, Callable[[OverriddenMethod], Callable[..., Any]]] = {
    "on_reply": _core_of_reply,
    "on_observe": _core_of_call,
    "on_print": _core_of_call,
    "on_reasoning": _core_of_step,
    "on_acting": _core_of_step,
}


def _own_method(cls: type, name: str, known: tuple[str, ...]) -> OverriddenMethod:
    # Kept on the class, with which they go; a class may get another function later.
    made: dict[str, OverriddenMethod] | None = vars(cls).get("_made_own_methods")
    if made is None:
        made = cls._made_own_methods = {}  # type: ignore[attr-defined]
    function = inspect.getattr_static(cls, name)
    if name not in made or made[name].function is not function:
        made[name] = OverriddenMethod(cls, name, function, known)
    return made[name]


def own_methods(
    cls: type, inherited: Mapping[str, tuple[Callable[..., Any], tuple[str, ...]]]
) -> tuple[OverriddenMethod, ...]:
    """Return the methods that the class writes itself.

    `inherited` has by name what the class would inherit from us, and the names that the parameters then go by.
    """
    return tuple(
        _own_method(cls, name, known) for name, (ours, known) in inherited.items() if getattr(cls, name) is not ours
    )
