"""What of an object is saved, and that a load is whole or nothing."""

import copy
import json
import pickle
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import SessionUnserializable, StateError
from agentrt.module import StateModule, load_states, save_states


class Calls(StateModule):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.register_state("calls")


class Tools(StateModule):
    def __init__(self) -> None:
        super().__init__()
        self.history: Calls | None = Calls()


class Person(StateModule):
    def __init__(self, name: str = "Assistant") -> None:
        super().__init__()
        self.name = name
        self.register_state("name")
        self.toolkit: Tools | None = Tools()
        self.mood = "not saved"


class Prefs(StateModule):
    def __init__(self) -> None:
        super().__init__()
        self.prefs: Any = OrderedDict(lang="en")
        self.register_state("prefs", custom_to_json=dict, custom_from_json=OrderedDict)


class Careless(StateModule):
    """Saves and loads in its own way: hands out what it lives on, changes one thing before it looks at the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = [1], [2]

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first, "second": self.second}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        self.first = state_dict["first"]
        self.second = [*state_dict["second"]]


def well_used() -> Person:
    person = Person("Alice")
    person.toolkit.history.calls.append({"tool": "search", "args": {"q": "test"}})
    return person


STATE = {"toolkit": {"history": {"calls": [{"tool": "search", "args": {"q": "test"}}]}}, "name": "Alice"}


# Saving


@pytest.fixture
def person() -> Person:
    return well_used()


def test_registered_attributes_and_child_modules_are_saved() -> None:
    state = well_used().state_dict()
    assert state == STATE
    assert list(state) == ["toolkit", "name"]


def test_state_loads_into_another_object_and_leaves_the_rest() -> None:
    other = Person("temp")
    other.mood = "fine"
    other.load_state_dict(well_used().state_dict())
    assert (other.state_dict(), other.mood) == (STATE, "fine")


def test_a_state_is_what_json_makes_of_it() -> None:
    calls = Calls()
    calls.calls = [(1, 2), {3: "x"}, "\ud83d\ude00"]  # two surrogates, which are no emoji
    assert calls.state_dict() == {"calls": [[1, 2], {"3": "x"}, "\ud83d\ude00"]}


def test_functions_of_ones_own_convert_what_json_cannot_hold() -> None:
    saved, loaded = Prefs(), Prefs()
    saved.prefs["lang"] = "zh"
    state = saved.state_dict()
    assert state == {"prefs": {"lang": "zh"}}
    loaded.load_state_dict(state)
    assert loaded.prefs == {"lang": "zh"}
    assert type(loaded.prefs) is OrderedDict


def test_a_state_is_of_its_own(person: Person) -> None:
    scramble(person.state_dict())
    assert person.state_dict() == STATE


def test_what_is_loaded_is_of_its_own() -> None:
    person, given_ = Person(), copy.deepcopy(STATE)
    person.load_state_dict(given_)
    scramble(given_)
    assert person.state_dict() == STATE


def test_state_that_a_child_keeps_using_is_copied() -> None:
    parent, child = Tools(), Careless()
    parent.history = child  # type: ignore[assignment]
    given_ = parent.state_dict()
    parent.load_state_dict(given_)
    scramble(given_)
    scramble(parent.state_dict())
    assert (child.first, child.second) == ([1], [2])


def test_attribute_without_json_form_is_named_and_not_quoted(person: Person) -> None:
    person.toolkit.history.calls.append({"the secret"})  # type: ignore[union-attr]
    with pytest.raises(SessionUnserializable, match=r"Calls\.calls holds .* type set is not") as caught:
        person.state_dict()
    assert isinstance(caught.value, TypeError)
    assert "secret" not in str(caught.value)


def test_a_circle_in_a_value_is_refused() -> None:
    calls = Calls()
    calls.calls.append(calls.calls)
    with pytest.raises(SessionUnserializable, match=r"Calls\.calls .*Circular"):
        calls.state_dict()


def test_a_function_that_fails_to_convert_says_for_whom() -> None:
    def fail(value: Any) -> Any:
        raise LookupError("no luck")

    prefs = Prefs()
    prefs.register_state("prefs", custom_to_json=fail)
    with pytest.raises(LookupError, match="no luck") as caught:
        prefs.state_dict()
    assert caught.value.__notes__ == ["agentrt: raised when Prefs.prefs was to be saved"]


# Registering


def test_what_json_cannot_hold_is_refused_when_it_is_registered() -> None:
    calls = Calls()
    calls.bad = {1, 2}  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"Calls\.bad holds .*custom_to_json"):
        calls.register_state("bad")
    assert calls.state_dict() == {"calls": []}


def test_a_child_cannot_be_registered() -> None:
    with pytest.raises(ValueError, match=r"Person\.toolkit is a StateModule"):
        Person().register_state("toolkit")


def test_what_is_not_there_cannot_be_registered() -> None:
    with pytest.raises(AttributeError, match=r"Calls\.nothing cannot be registered.*assign it first"):
        Calls().register_state("nothing")


def test_what_is_no_function_cannot_convert() -> None:
    with pytest.raises(TypeError, match=r"the converters of Calls\.calls must be functions, not 'list'"):
        Calls().register_state("calls", custom_to_json="list")  # type: ignore[arg-type]


def test_registered_attribute_that_became_a_module_is_refused() -> None:
    calls = Calls()
    calls.calls = Calls()  # type: ignore[assignment]
    with pytest.raises(SessionUnserializable, match=r"Calls\.calls"):
        calls.state_dict()
    calls.calls = []
    calls.register_state("calls", lambda value: "a module" if value else "none", lambda text: text)
    calls.calls = Calls()  # type: ignore[assignment]
    assert calls.state_dict() == {"calls": "a module"}
    calls.load_state_dict({"calls": "none"})
    assert calls.calls == "none"  # type: ignore[comparison-overlap]


def test_properties_slots_and_class_values_can_be_registered() -> None:
    class Odd(StateModule):
        __slots__ = ("slot",)
        of_class = 1

        def __init__(self) -> None:
            super().__init__()
            self.slot, self._doubled = 3, 4
            for name in ("of_class", "slot", "half"):
                self.register_state(name)

        @property
        def half(self) -> int:
            return self._doubled // 2

        @half.setter
        def half(self, value: int) -> None:
            self._doubled = 2 * value

    odd = Odd()
    assert odd.state_dict() == {"of_class": 1, "slot": 3, "half": 2}
    odd.load_state_dict({"of_class": 10, "slot": 30, "half": 20})
    assert (odd.of_class, odd.slot, odd._doubled, Odd.of_class) == (10, 30, 40, 1)


# Which children


def test_a_module_in_a_property_or_a_list_is_no_child() -> None:
    class Around(StateModule):
        def __init__(self) -> None:
            super().__init__()
            self.each = [Calls()]

        @property
        def first(self) -> Calls:
            return self.each[0]

    assert Around().state_dict() == {}


def test_a_child_replaced_by_none_is_none_any_more(person: Person) -> None:
    person.toolkit.history = None  # type: ignore[union-attr]
    state = person.state_dict()
    assert state == {"toolkit": {}, "name": "Alice"}
    person.load_state_dict(state)
    assert person.state_dict() == state


def test_a_child_replaced_by_another_is_saved_in_its_place() -> None:
    tools = Tools()
    tools.history = Person("other")  # type: ignore[assignment]
    assert tools.state_dict() == {"history": Person("other").state_dict()}


def test_what_is_deleted_is_not_saved_and_not_asked_for(person: Person) -> None:
    del person.toolkit
    del person.name
    assert person.state_dict() == {}
    person.load_state_dict(STATE)
    assert not hasattr(person, "name")


def test_child_that_holds_its_parent_is_refused_with_the_path(person: Person) -> None:
    person.toolkit.history.owner = person  # type: ignore[union-attr]
    circle = r"Calls\.owner \(Person -> Tools -> Calls -> Person\): hold a parent by weakref"
    with pytest.raises(StateError, match=circle):
        person.state_dict()
    with pytest.raises(StateError, match=r"Person\.toolkit\.history\.owner \(Person -> "):
        person.load_state_dict(STATE)
    del person.toolkit.history.owner  # type: ignore[union-attr]
    person.toolkit.history.owner = weakref.ref(person)  # type: ignore[union-attr]
    assert person.state_dict() == STATE


def test_cycle_through_a_child_with_own_state_dict_is_refused() -> None:
    class Own(Tools):
        def state_dict(self) -> dict[str, Any]:
            return super().state_dict()

    first, second = Own(), Own()
    first.history, second.history = second, first  # type: ignore[assignment]
    with pytest.raises(StateError, match="Own -> Own -> Own"):
        first.state_dict()


def test_one_child_of_two_parents_is_no_circle() -> None:
    one, other = Tools(), Tools()
    one.history = other.history = Calls()
    load_states({"one": one, "other": other}, save_states({"one": one, "other": other}))


def test_after_a_refused_circle_all_else_is_saved_as_ever() -> None:
    tools = Tools()
    tools.history = tools  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(StateError):
            tools.state_dict()
    tools.history = None
    assert tools.state_dict() == {}


# Before super().__init__()


def test_a_child_assigned_too_early_is_refused_with_the_remedy() -> None:
    class Early(StateModule):
        def __init__(self) -> None:
            self.child = Calls()
            super().__init__()

    with pytest.raises(AttributeError, match=r"'child': call super\(\).__init__\(\) first in Early.__init__"):
        Early()


@pytest.mark.parametrize(
    "use", [StateModule.state_dict, lambda it: it.load_state_dict({}), lambda it: it.register_state("x")]
)
def test_a_module_that_was_never_set_up_says_so(use: Callable[[Any], Any]) -> None:
    class Never(StateModule):
        def __init__(self) -> None:
            self.x = 1

    with pytest.raises(AttributeError, match=r"call super\(\).__init__\(\) first in Never.__init__"):
        use(Never())


def test_being_set_up_twice_forgets_nothing(person: Person) -> None:
    StateModule.__init__(person)
    assert person.state_dict() == STATE


# Loading


def test_missing_state_is_named_by_path_and_nothing_is_loaded(person: Person) -> None:
    with pytest.raises(KeyError, match=r"Person\.toolkit\.history\.calls"):
        person.load_state_dict({"toolkit": {"history": {}}, "name": "changed"})
    assert person.state_dict() == STATE


def test_without_strict_missing_state_keeps_its_value(person: Person) -> None:
    person.load_state_dict({"toolkit": {"history": {}}, "name": "changed"}, strict=False)
    assert person.state_dict() == STATE | {"name": "changed"}
    person.load_state_dict({}, strict=False)
    assert person.state_dict() == STATE | {"name": "changed"}


@pytest.mark.parametrize("strict", [True, False])
def test_what_the_state_has_beyond_is_passed_over(strict: bool) -> None:
    person = Person()
    person.load_state_dict({**STATE, "mood": "new", "more": 1}, strict)
    assert (person.state_dict(), person.mood) == (STATE, "not saved")


@pytest.mark.parametrize("bad", [None, [], "x", object()])
def test_a_state_that_is_no_dict_is_refused_by_its_place(bad: Any, person: Person) -> None:
    with pytest.raises(TypeError, match="the state of Person must be a dict"):
        person.load_state_dict(bad)
    with pytest.raises(TypeError, match=r"the state of Person\.toolkit must be a dict"):
        person.load_state_dict({"toolkit": bad, "name": "changed"}, strict=False)
    assert person.state_dict() == STATE


def test_failing_conversion_of_one_attribute_changes_none() -> None:
    class Numbers(StateModule):
        def __init__(self) -> None:
            super().__init__()
            self.child = Calls()
            self.first = self.last = 1
            self.register_state("first")
            self.register_state("last", custom_from_json=int)

    numbers = Numbers()
    with pytest.raises(ValueError, match="'many'") as caught:
        numbers.load_state_dict({"child": {"calls": [1]}, "first": 2, "last": "many"})
    assert caught.value.__notes__ == ["agentrt: raised when Numbers.last was to be loaded"]
    assert numbers.state_dict() == {"child": {"calls": []}, "first": 1, "last": 1}


def test_a_setter_that_refuses_takes_everything_back() -> None:
    class Guarded(StateModule):
        default = "of the class"

        def __init__(self) -> None:
            super().__init__()
            self.first = [1]
            self._guarded = 1
            for name in ("first", "default", "guarded"):
                self.register_state(name)

        @property
        def guarded(self) -> int:
            return self._guarded

        @guarded.setter
        def guarded(self, value: int) -> None:
            raise ValueError("never")

    it = Guarded()
    first, before = it.first, dict(vars(it))
    with pytest.raises(ValueError, match="never") as caught:
        it.load_state_dict({"first": [2], "default": "new", "guarded": 2})
    assert vars(it) == before
    assert it.first is first
    assert not hasattr(caught.value, "__notes__")


def test_child_that_fails_halfway_restores_everything(person: Person) -> None:
    person.one, person.two = Careless(), Careless()  # type: ignore[attr-defined]
    before = person.state_dict()
    changed = copy.deepcopy(before) | {"name": "changed", "one": {"first": [3], "second": [4]}, "two": {"first": [5]}}
    with pytest.raises(KeyError, match="second"):
        person.load_state_dict(changed)
    assert person.state_dict() == before
    changed["two"]["second"] = [6]
    person.load_state_dict(changed)
    assert person.state_dict() == changed


def test_attribute_that_cannot_be_restored_is_noted_on_the_error(person: Person) -> None:
    class Stubborn(Careless):
        def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
            raise OSError("stubborn")

    person.child = Stubborn()  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="stubborn") as caught:
        person.load_state_dict({**person.state_dict(), "name": "changed"})
    assert caught.value.__notes__ == [
        "agentrt: raised when Person.child was to be loaded",
        "Person.child could not be put back as it was",
    ]
    assert person.name == "Alice"


def test_several_modules_are_loaded_together_or_not_at_all() -> None:
    one, other = well_used(), Careless()
    states = save_states({"one": one, "other": other})
    assert states == {"one": STATE, "other": {"first": [1], "second": [2]}}
    states["one"]["name"] = "changed"
    del states["other"]["second"]
    with pytest.raises(KeyError, match="second"):
        load_states({"one": one, "other": other}, states)
    with pytest.raises(KeyError, match=r"one\.toolkit"):
        load_states({"other": other, "one": one}, {"one": {}, "other": {"first": [7], "second": [8]}})
    assert save_states({"one": one, "other": other}) == {"one": STATE, "other": {"first": [1], "second": [2]}}


# Copies and kinds of classes


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_deep_copy_has_the_state_and_goes_its_own_way(copied: Callable[[Any], Any], person: Person) -> None:
    other = copied(person)
    assert other.state_dict() == STATE
    other.name = "Bob"
    other.toolkit.history.calls.clear()
    assert person.state_dict() == STATE
    other.load_state_dict(STATE)
    assert other.state_dict() == STATE


def test_a_copy_registers_for_itself(person: Person) -> None:
    other = copy.copy(person)
    other.register_state("mood")
    other.toolkit = None
    assert other.state_dict() == {"name": "Alice", "mood": "not saved"}
    assert person.state_dict() == STATE


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_conversions_come_along_with_a_copy(copied: Callable[[Any], Any]) -> None:
    other = copied(Prefs())
    other.load_state_dict({"prefs": {"lang": "zh"}})
    assert type(other.prefs) is OrderedDict


@dataclass
class Data(StateModule):
    number: int = 1
    child: Calls = field(default_factory=Calls)


@dataclass(frozen=True)
class Frozen(StateModule):
    number: int = 1
    child: Calls = field(default_factory=Calls)

    def __post_init__(self) -> None:
        super().__init__()
        self.register_state("number")


def test_a_dataclass_needs_no_super_init() -> None:
    data = Data()
    data.child.calls.append(1)
    assert data.state_dict() == {"child": {"calls": [1]}}
    data.register_state("number")
    assert data.state_dict() == {"child": {"calls": [1]}, "number": 1}
    Data().load_state_dict(data.state_dict())


def test_a_frozen_dataclass_saves_its_state_and_loads_nothing() -> None:
    frozen = Frozen()
    before = frozen.state_dict()
    assert before == {"child": {"calls": []}, "number": 1}
    with pytest.raises(AttributeError, match="number"):
        frozen.load_state_dict({"child": {"calls": [1]}, "number": 2})
    assert frozen.state_dict() == before


def test_a_class_may_have_a_metaclass_and_other_parents() -> None:
    class Noting:
        def __setattr__(self, name: str, value: Any) -> None:
            noted.append(name)
            super().__setattr__(name, value)

    class Abstract(StateModule, Noting, ABC):
        @abstractmethod
        def work(self) -> None: ...

    class Concrete(Abstract):
        def __init__(self) -> None:
            super().__init__()
            self.child = Calls()

        def work(self) -> None: ...

    noted: list[str] = []
    assert Concrete().state_dict() == {"child": {"calls": []}}
    assert noted == ["child"]


def test_a_class_may_have_plain_assignment_back() -> None:
    class Quick(Tools):
        __setattr__ = object.__setattr__

    quick = Quick()
    quick.history.calls.append(1)  # type: ignore[union-attr]
    assert quick.state_dict() == {"history": {"calls": [1]}}


# Any tree


@dataclass
class Shape:
    """What a tree is like: values by name, children by name, children that were replaced by `None`, and its kind."""

    values: dict[str, Any]
    children: dict[str, "Shape"]
    gone: list[str]
    is_careless: bool


class Node(StateModule):
    def __init__(self, shape: Shape, fresh: bool) -> None:
        super().__init__()
        for name, child in shape.children.items():
            setattr(self, name, make(child, fresh))
        for name, value in shape.values.items():
            setattr(self, name, "fresh" if fresh else copy.deepcopy(value))
            self.register_state(name)
        for name in shape.gone:
            setattr(self, name, Calls())
            setattr(self, name, None)
        self.names = [*shape.children, *shape.values]


class CarelessNode(Node):
    def state_dict(self) -> dict[str, Any]:
        each = {name: getattr(self, name) for name in self.names}
        return {name: it.state_dict() if isinstance(it, StateModule) else it for name, it in each.items()}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        for name in self.names:
            it = getattr(self, name)
            if isinstance(it, StateModule):
                it.load_state_dict(state_dict[name], strict)
            else:
                setattr(self, name, state_dict[name])


def make(shape: Shape, fresh: bool = False) -> Node:
    return (CarelessNode if shape.is_careless else Node)(shape, fresh)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)
VALUES = st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON, max_size=3)
GONE = st.lists(st.sampled_from(["g", "h"]), unique=True)
TREES = st.recursive(
    st.builds(Shape, VALUES, st.just({}), GONE, st.booleans()),
    lambda inner: st.builds(
        Shape, VALUES, st.dictionaries(st.sampled_from(["x", "y", "z"]), inner, max_size=3), GONE, st.booleans()
    ),
    max_leaves=8,
)


def scramble(value: Any) -> None:
    """Empty every list and dict that is in there."""
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        scramble(each)
    if isinstance(value, dict | list):
        value.clear()


def leaves(state: dict[str, Any], shape: Shape) -> Iterator[tuple[dict[str, Any], str]]:
    for name in shape.values:
        yield state, name
    for name, child in shape.children.items():
        yield state, name
        yield from leaves(state[name], child)


@given(TREES)
def test_any_tree_loads_from_its_file_and_shares_nothing(shape: Shape) -> None:
    tree, fresh = make(shape), make(shape, fresh=True)
    state = tree.state_dict() if not shape.is_careless else save_states({"tree": tree})["tree"]
    text = json.dumps(state)
    loaded = json.loads(text)
    load_states({"tree": fresh}, {"tree": loaded})
    scramble(state)
    scramble(loaded)
    assert json.dumps(save_states({"tree": tree})["tree"]) == json.dumps(save_states({"tree": fresh})["tree"]) == text


@given(TREES, st.data())
def test_a_state_with_one_damaged_leaf_changes_nothing(shape: Shape, data: st.DataObject) -> None:
    state = save_states({"tree": make(shape)})["tree"]
    damageable = list(leaves(state, shape))
    if not damageable:
        return
    holder, name = data.draw(st.sampled_from(damageable))
    if data.draw(st.booleans()):
        del holder[name]
    else:
        holder[name] = object()
    fresh = make(shape, fresh=True)
    before = json.dumps(save_states({"tree": fresh}))
    with pytest.raises((KeyError, TypeError)):
        load_states({"tree": fresh}, {"tree": state})
    assert json.dumps(save_states({"tree": fresh})) == before
