"""Modules: objects that save the attributes that they register, and the modules that they hold with all of theirs."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar, NamedTuple

from agentrt._runtime.block import JSONObject
from agentrt._runtime.text import type_with_article
from agentrt.errors import SessionUnserializable, StateError

__all__ = ["StateModule", "load_states", "save_states"]

_REGISTERED = "_registered_state"
_ABSENT = object()
_entered: ContextVar[tuple["StateModule", ...]] = ContextVar("agentrt_entered_modules", default=())


class StateModule:
    """An object with a state that can be saved: the attributes that it registers, and those that are `StateModule`s.

    Such children are looked for when a state is saved or loaded, in the instance's `__dict__` and not in slots or
    properties: one that was replaced or deleted no longer is one. States are made of JSON values, and nothing in them
    is shared with the object. Call `super().__init__()` before the first child is assigned; a dataclass need not.
    """

    _later_state: ClassVar[frozenset[str]] = frozenset()
    """The registered attributes and children that may be missing in states of older versions of the class."""

    def __init__(self) -> None:
        vars(self).setdefault(_REGISTERED, {})

    def __setattr__(self, name: str, value: object) -> None:
        # Only so that a mistake is found early: nothing else depends on it. It costs an assignment 0.2 us, so a class
        # that makes very many can have the plain one back, with `__setattr__ = object.__setattr__` in its body.
        if isinstance(value, StateModule) and _REGISTERED not in self.__dict__:
            _registered_attributes(self, f"assigning {name!r}")
        super().__setattr__(name, value)

    def register_state(
        self,
        attr_name: str,
        custom_to_json: Callable[[Any], object] | None = None,
        custom_from_json: Callable[[Any], Any] | None = None,
    ) -> None:
        """Make an attribute part of the state, through these functions where JSON cannot hold it as it is.

        Raises `TypeError` for a value that JSON cannot hold, `ValueError` for a child, whose state is saved anyway, and
        `AttributeError` for what is not there yet.
        """
        registered = _registered_attributes(self, f"registering {attr_name!r}")
        place = f"{type(self).__name__}.{attr_name}"
        value = getattr(self, attr_name, _ABSENT)
        if value is _ABSENT:
            raise AttributeError(f"{place} cannot be registered, since there is no such attribute: assign it first")
        if isinstance(vars(self).get(attr_name), StateModule):
            raise ValueError(f"{place} is a StateModule, which is saved without being registered: leave this call out")
        for function in (custom_to_json, custom_from_json):
            if function is not None and not callable(function):
                raise TypeError(f"the converters of {place} must be functions, not {function!r:.100}")
        if custom_to_json is None:
            _json_copy(value, place)
        # A dict of its own, so that registering on a shallow copy of an object leaves the object alone.
        vars(self)[_REGISTERED] = {**registered, attr_name: _Conversion(custom_to_json, custom_from_json)}

    def state_dict(self) -> JSONObject:
        """Return the state as JSON values: first the children's, then the registered attributes.

        Raises `SessionUnserializable`, a `TypeError`, naming what JSON cannot hold, and `StateError` when a child holds
        one of its parents.
        """
        registered, place = _registered_attributes(self, "asking for its state"), type(self).__name__
        with _enter_module(self, place):
            state: JSONObject = {name: _state_of(child, f"{place}.{name}") for name, child in _children(self).items()}
            for name, conversion in registered.items():
                value = getattr(self, name, _ABSENT)
                if value is not _ABSENT:
                    state[name] = conversion.save(value, f"{place}.{name}")
        return state

    def load_state_dict(self, state_dict: JSONObject, strict: bool = True) -> None:
        """Load a state that `state_dict` returned, as a whole or, when anything in it is wrong, not at all.

        A `KeyError` names what the state lacks; unless `strict`, that keeps the value that it has. What else the state
        has is ignored.
        """
        place, loading = type(self).__name__, _Loading()
        loading.plan_attributes(self, _require_dict(state_dict, place), strict, place)
        loading.apply()


def save_states(modules: Mapping[str, StateModule]) -> dict[str, JSONObject]:
    """Return the state of each module, as `state_dict` does, under the module's name."""
    return {name: _state_of(module, name) for name, module in modules.items()}


def load_states(modules: Mapping[str, StateModule], states: Mapping[str, Any], strict: bool = True) -> None:
    """Load the state of each module, as `load_state_dict` does: all of them, or none when anything is wrong in one."""
    loading = _Loading()
    for name, module in modules.items():
        loading.plan(module, states[name], strict, name)
    loading.apply()


class _Conversion(NamedTuple):
    to_json: Callable[[Any], object] | None
    from_json: Callable[[Any], Any] | None

    def save(self, value: object, place: str) -> object:
        if self.to_json is not None:
            with _add_note_on_error(f"{place} was to be saved"):
                value = self.to_json(value)
        return _json_copy(value, place)

    def load(self, value: object, place: str) -> object:
        value = _json_copy(value, place, allow_nan=True)
        if self.from_json is None:
            return value
        with _add_note_on_error(f"{place} was to be loaded"):
            return self.from_json(value)


class _Loading:
    """A load in two steps: first all of it is checked and converted, then it is applied, or undone if that fails."""

    def __init__(self) -> None:
        self._values: list[tuple[StateModule, str, object]] = []
        self._modules: list[tuple[StateModule, JSONObject, bool, str]] = []

    def plan(self, module: StateModule, state: object, strict: bool, place: str) -> None:
        saved = _require_dict(state, place)
        if type(module).load_state_dict is StateModule.load_state_dict:
            self.plan_attributes(module, saved, strict, place)
        else:  # what it will do cannot be known: it comes last, when all else is known to be right
            self._modules.append((module, _json_copy(saved, place, allow_nan=True), strict, place))

    def plan_attributes(self, module: StateModule, state: JSONObject, strict: bool, place: str) -> None:
        registered = _registered_attributes(module, "loading its state")
        optional = module._later_state
        with _enter_module(module, place):
            for name, child in _children(module).items():
                _refuse_cycle(child, f"{place}.{name}")
                if _has_value(name, state, strict and name not in optional, place):
                    self.plan(child, state[name], strict, f"{place}.{name}")
            for name, conversion in registered.items():
                must_be_there = strict and name not in optional
                if hasattr(module, name) and _has_value(name, state, must_be_there, place):
                    self._values.append((module, name, conversion.load(state[name], f"{place}.{name}")))

    def apply(self) -> None:
        before = [_state_of(module, place) for module, _, _, place in self._modules]
        undo: list[tuple[str, Callable[[], None]]] = []
        try:
            for module, name, value in self._values:
                restore = partial(_restore, module, name, getattr(module, name, _ABSENT), name in vars(module))
                setattr(module, name, value)
                undo.append((f"{type(module).__name__}.{name}", restore))
            for (module, state, strict, place), old in zip(self._modules, before, strict=True):
                # Before it is loaded: one that fails halfway has to be undone, too.
                undo.append((place, partial(module.load_state_dict, old)))
                with _add_note_on_error(f"{place} was to be loaded"):
                    module.load_state_dict(state, strict)
        except BaseException as exc:
            for place, put_back in reversed(undo):
                try:
                    put_back()
                except Exception:  # noqa: BLE001  # the first error is the one to raise, and the rest is to be restored
                    exc.add_note(f"{place} could not be put back as it was")
            raise


def _restore(module: StateModule, name: str, old: object, was_in_instance: bool) -> None:
    if old is not _ABSENT:
        setattr(module, name, old)
    if not was_in_instance:  # a value of the class, say, which the load has hidden
        vars(module).pop(name, None)


def _registered_attributes(module: StateModule, action: str) -> dict[str, _Conversion]:
    registered: dict[str, _Conversion] | None = vars(module).get(_REGISTERED)
    if registered is not None:
        return registered
    cls = type(module)
    if hasattr(cls, "__dataclass_fields__"):  # the constructor of a dataclass does not call that of its base
        return {}
    raise AttributeError(
        f"{cls.__name__} was not set up before {action}: call super().__init__() first in {cls.__name__}.__init__"
    )


def _children(module: StateModule) -> dict[str, StateModule]:
    attributes = vars(module)
    registered = attributes.get(_REGISTERED, ())
    return {
        name: value for name, value in attributes.items() if isinstance(value, StateModule) and name not in registered
    }


def _state_of(module: StateModule, place: str) -> JSONObject:
    _refuse_cycle(module, place)
    state = module.state_dict()
    if type(module).state_dict is not StateModule.state_dict:  # which may return what it continues to use
        state = _json_copy(_require_dict(state, place), place)
    return state


@contextmanager
def _enter_module(module: StateModule, place: str) -> Iterator[None]:
    _refuse_cycle(module, place)
    token = _entered.set((*_entered.get(), module))
    try:
        yield
    finally:
        _entered.reset(token)


def _refuse_cycle(module: StateModule, place: str) -> None:
    parents = _entered.get()
    if any(parent is module for parent in parents):
        cycle = " -> ".join(type(parent).__name__ for parent in (*parents, module))
        raise StateError(
            f"the state cannot be made, since a module holds itself at {place} ({cycle}): hold a parent by "
            f"weakref.ref, or in a property"
        )


@contextmanager
def _add_note_on_error(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        exc.add_note(f"agentrt: raised when {what}")
        raise


def _require_dict(state: object, place: str) -> JSONObject:
    if isinstance(state, dict):
        return state
    raise TypeError(f"the state of {place} must be a dict, as state_dict() returns it, not {type_with_article(state)}")


def _has_value(name: str, state: JSONObject, strict: bool, place: str) -> bool:
    if strict and name not in state:
        raise KeyError(
            f"the state has no {place}.{name}, so nothing was loaded: load_state_dict(state, strict=False) leaves what "
            f"it lacks as it is"
        )
    return name in state


def _json_copy(value: object, place: str, *, allow_nan: bool = False) -> Any:
    # As text and back, which is what happens to it in a file: lists for tuples, and nothing shared. Not as ASCII, since
    # of two surrogates in a row the escapes would be read as one character. JSON has no NaN and no infinity, but what
    # was saved with them still loads.
    try:
        return json.loads(json.dumps(value, ensure_ascii=False, allow_nan=allow_nan))
    except (TypeError, ValueError, RecursionError) as exc:
        raise SessionUnserializable(
            f"{place} holds something that JSON cannot hold ({exc}): keep strings, finite numbers, lists and dicts "
            f"there, or give register_state a custom_to_json and a custom_from_json"
        ) from exc
