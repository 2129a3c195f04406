"""Methods that a class of agents overrides: its own `reply`, `observe` and `print`, as cores of chains.

The compiled entry of such a method is put on each instance, where it hides the method of the class. So
`agent.reply(...)` runs the chain, and `super().reply(...)` in a subclass reaches the parent's plain method. An agent
whose class overrides nothing has no entries, for an entry refers to its agent, which only the garbage collector could
free then: methods of the runtime enter the chain themselves, unless there is an entry that hides them.
"""

import inspect
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from functools import wraps
from types import MethodType
from typing import Any, ClassVar, Protocol, Self, TypeVar, cast

from agentrt._runtime.chain.signature import signature_of
from agentrt._runtime.chain.spec import HookSpec
from agentrt._runtime.conversation.run import Run
from agentrt.agent.audience import AgentConversation
from agentrt.agent.initialization import refuse_call
from agentrt.errors import ChainContractError, ConfigError
from agentrt.event import AgentEvent
from agentrt.hooks import AgentChains
from agentrt.state import AgentState

_Method = Callable[..., Any]  # of any signature: a class may write what it likes
_MarkedMethod = TypeVar("_MarkedMethod", bound=_Method)
_MethodArguments = dict[str, object]  # what flows through a chain around such a method
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class ChainedAgent(Protocol):
    """The part of an agent that the entry and the core of an overridden method use."""

    name: str
    state: AgentState
    live_conversation: AgentConversation

    @property
    def run(self) -> Run: ...
    def current_chains(self) -> AgentChains: ...


class OverriddenMethod:
    """A method that a class overrides, and how values that flow through a chain become its arguments.

    `keys` are its parameters; what `*args` and `**kwargs` took goes by these names. A parameter in the position of one
    that the overridden method has goes by the name of that one; `deps` is always that of a reply. `core` is the core of
    the method's chain, and `entry` takes the place of the method on each instance.
    """

    _core: _Method

    def __init__(self, cls: type, name: str, function: _Method, overridden: "HookMethod") -> None:
        self.name = name
        self.function = function
        self.title = f"{cls.__name__}.{name}()"
        self._check_kind()
        self.hook = overridden.hook
        self.signature = signature_of(function)
        # The first one is the agent.
        self._parameters = list(self.signature.parameters.values())[1:]
        names = [parameter.name for parameter in self._parameters]
        positional = [parameter.name for parameter in self._parameters if parameter.kind in _POSITIONAL]
        # A method that has a parameter of that name elsewhere means something else by this one.
        by_position = zip(positional, overridden.parameters, strict=False)
        renamed = {name: key for name, key in by_position if key not in names and name != "deps"}
        self._keys = {name: name for name in names} | renamed
        self.keys = tuple(self._keys.values())
        self.declares_deps = any(
            parameter.name == "deps" and parameter.kind not in _VARIADIC for parameter in self._parameters
        )
        self.core = self._core  # one object, by which an entry is known to be the core
        self.entry = self._make_entry()  # it takes any agent of the class, and is bound when one is built

    def values(self, agent: object, args: tuple[object, ...], kwargs: _MethodArguments) -> _MethodArguments:
        """Return the values of all parameters; raises `TypeError` for arguments that do not fit."""
        try:
            bound = self.signature.bind(agent, *args, **kwargs)
        except TypeError as error:
            takes = ", ".join(map(str, self._parameters))
            passed = ", ".join([f"{len(args)} positional"] * bool(args) + [f"{name}=..." for name in kwargs]) or "none"
            raise TypeError(f"{self.title} takes ({takes}); arguments given: {passed} ({error})") from None
        bound.apply_defaults()  # layers see all parameters, given or not
        return {key: bound.arguments[name] for name, key in self._keys.items()}

    def with_deps(self, values: _MethodArguments, deps: object) -> _MethodArguments:
        """Return the values with the `deps` of a reply, if the method has a parameter that takes them."""
        if self.declares_deps:
            return {**values, "deps": deps}
        keywords = next((p.name for p in self._parameters if p.kind is p.VAR_KEYWORD), None)
        # A method with `**kwargs` may pass these on to what knows nothing of deps, so `None` is left out.
        if keywords is None or deps is None:
            return values
        return {**values, keywords: {**cast(_MethodArguments, values[keywords]), "deps": deps}}

    def key_of(self, parameter: str) -> str:
        """Return the name that the parameter goes by; one that the method does not have keeps its own."""
        return self._keys.get(parameter, parameter)

    async def __call__(self, agent: object, values: _MethodArguments) -> object:
        args: list[object] = []
        kwargs: _MethodArguments = {}
        for parameter in self._parameters:
            value = values[self._keys[parameter.name]]
            if parameter.kind in _POSITIONAL:
                args.append(value)
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args += cast("tuple[object, ...]", value)
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs |= cast(_MethodArguments, value)
            else:
                kwargs[parameter.name] = value
        result = self.function(agent, *args, **kwargs)
        if not inspect.isawaitable(result):
            raise ChainContractError(f"{self.title} must be a coroutine function: write `async def {self.name}`")
        return await result

    def adapt(self, spec: HookSpec) -> HookSpec:
        """Return the line of the hook table for the chain around this method, whose values may be of any type."""
        return replace(spec, types={}, converters={}, keys=self.keys)

    async def run_chain(self, agent: ChainedAgent, values: _MethodArguments) -> object:
        """Enter the chain around the method, and return its result."""
        return await getattr(agent.current_chains(), self.hook)(agent, **values)

    def _check_kind(self) -> None:
        function: object = self.function
        plain = inspect.unwrap(function) if callable(function) else function
        problem = None
        if not inspect.isroutine(plain) or isinstance(function, (staticmethod, classmethod)):
            problem = "it is not a method"
        elif inspect.isasyncgenfunction(plain) or inspect.isgeneratorfunction(plain):
            problem = "it yields"
        if problem is not None:
            raise ConfigError(f"{self.title} must be a coroutine function (`async def` without `yield`), but {problem}")

    def _make_entry(self) -> _Method:
        @wraps(self.function)
        async def entry(agent: ChainedAgent, /, *args: object, **kwargs: object) -> object:
            return await self.run_chain(agent, self.values(agent, args, kwargs))

        return entry


class OverriddenCall(OverriddenMethod):
    """An `observe` or a `print`."""

    def values(self, agent: object, args: tuple[object, ...], kwargs: _MethodArguments) -> _MethodArguments:
        """Return the values of all parameters; `observe` also takes the keyword of AgentScope 2.x, `msgs`."""
        if self.name == "observe" and "msgs" in kwargs and "msgs" not in self._keys and self._parameters:
            kwargs = {self._parameters[0].name if name == "msgs" else name: value for name, value in kwargs.items()}
        return super().values(agent, args, kwargs)

    async def _core(self, agent: ChainedAgent, /, **values: object) -> None:
        await self(agent, values)


class OverriddenStep(OverriddenMethod):
    """A `_reasoning` or `_acting` of a class that derives from `ReActAgentBase` and writes its own `reply`."""

    def adapt(self, spec: HookSpec) -> HookSpec:
        """Return the line of the hook table for a step, which may result in anything."""
        return replace(super().adapt(spec), item_types=(object,), terminal=None)

    async def run_chain(self, agent: ChainedAgent, values: _MethodArguments) -> object:
        """Enter the chain around the step, and return its result."""
        return await last_item(getattr(agent.current_chains(), self.hook)(agent, **values))

    async def _core(self, agent: ChainedAgent, /, **values: object) -> AsyncGenerator[object, None]:
        yield await self(agent, values)


@dataclass(frozen=True)
class HookMethod:
    """A method that the runtime gives to agents, and what handles one that a class puts in its place."""

    hook: str
    function: _Method
    override: type[OverriddenMethod]
    parameters: tuple[str, ...]


def hook_method(hook: str, override: type[OverriddenMethod]) -> Callable[[_MarkedMethod], _MarkedMethod]:
    """Return a decorator that marks a method of the runtime as that of a hook."""

    def mark(function: _MarkedMethod) -> _MarkedMethod:
        parameters = list(signature_of(function).parameters.values())[1:]
        names = tuple(parameter.name for parameter in parameters if parameter.kind in _POSITIONAL)
        function.hook_method = HookMethod(hook, function, override, names)  # type: ignore[attr-defined]
        return function

    return mark


class ChainedMethods:
    """The part of an agent that has chains around its methods; see the head of this file."""

    _hook_methods: ClassVar[dict[str, HookMethod]] = {}
    """The runtime's implementation of each method, without the overrides of the class."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        methods: dict[str, HookMethod] = {}
        for base in reversed(cls.__mro__):
            for name, member in vars(base).items():
                method = getattr(member, "hook_method", None) if inspect.isfunction(member) else None
                # A decorator that uses `functools.wraps` copies the mark to a function that is not the runtime's.
                if method is not None and method.function is member:
                    methods[name] = method
        if methods != cls._hook_methods:  # most classes need none of their own
            cls._hook_methods = methods

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        agent = super().__new__(cls)
        # Until `__init__` puts the entries in their place, a call would reach the plain method, outside of its chain.
        for name in cls._overridden_names():
            vars(agent)[name] = MethodType(refuse_call, agent)
        return agent

    @classmethod
    def _overridden_names(cls) -> list[str]:
        return [name for name, method in cls._hook_methods.items() if getattr(cls, name) is not method.function]

    @classmethod
    def _overridden_methods(cls) -> tuple[OverriddenMethod, ...]:
        names = cls._overridden_names()
        if not names:
            return ()
        # Kept on the class, with which they go; a class may get another function later.
        known: dict[str, OverriddenMethod] | None = vars(cls).get("_known_overrides")
        if known is None:
            known = cls._known_overrides = {}  # type: ignore[attr-defined]
        for name in names:
            function = inspect.getattr_static(cls, name)  # as it is written: a staticmethod is refused as one
            if name not in known or known[name].function is not function:
                overridden = cls._hook_methods[name]
                known[name] = overridden.override(cls, name, function, overridden)
        return tuple(known[name] for name in names)


async def last_item(stream: AsyncGenerator[object, None]) -> object:
    """Read a stream to its end, and return its last item that is not an event."""
    last: object = None
    try:
        async for item in stream:
            if not isinstance(item, AgentEvent):
                last = item
    finally:
        await stream.aclose()
    return last
