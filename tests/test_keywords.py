"""Wrong guesses are answered, and right ones see no difference."""

import ast
import copy
import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, Unpack

import pytest

from agentrt import (
    Agent,
    AgentState,
    Msg,
    Toolkit,
    UserMsg,
    event,
    memory,
    message,
    middleware,
    model,
    permission,
    pipeline,
    rag,
    runner,
    session,
    state,
    tool,
)
from agentrt import agent as agents
from agentrt._runtime.keywords.attributes import compute_missing, suggest_attributes
from agentrt._runtime.keywords.suggestions import suggest_arguments, suggest_keywords
from agentrt.agent import AgentBase, ReActAgent, ReActConfig
from agentrt.errors import ConfigError, InvalidInputError, UnknownKeywordError, UsageError, WrongCallError
from agentrt.memory import LongTermMemory
from agentrt.middleware import RateLimitMiddleware, RetryMiddleware
from agentrt.model import OpenAIChatModel, RulesChatModel, ScriptedChatModel
from agentrt.rag import KnowledgeBase, SQLiteTextStore
from agentrt.state import SQLiteStore

ROOT = Path(__file__).parent.parent
DOORS = (agents, event, memory, message, middleware, model, permission, pipeline, rag, runner, session, state, tool)


@suggest_keywords(colour="write paint='red'", hue="shade")
class Painted:
    """A class with a constructor of its own."""

    def __init__(self, paint: str = "", *, shade: float = 0.0, act: Callable[[], object] | None = None) -> None:
        self.paint = paint
        self.shade = shade
        if act is not None:
            act()


@suggest_keywords()
@dataclass(frozen=True, slots=True)
class Point:
    """A dataclass."""

    x: int
    y: int = 0


class Wishes(TypedDict, total=False):
    """What is passed on."""

    size: int


@suggest_keywords()
class Passing(Painted):
    """A constructor that passes keywords on."""

    def __init__(self, name: str = "", **wishes: Unpack[Wishes]) -> None:
        super().__init__(**wishes)  # type: ignore[misc]


class Own(Painted):
    """A subclass of a user, which passes keywords on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)


class Fixed(Painted):
    """A subclass of a user with a slip in its own code."""

    def __init__(self, text: str) -> None:
        super().__init__(pain=text)  # type: ignore[call-arg]


def words_of(cause: Callable[[], object], kind: type[Exception] = UnknownKeywordError) -> str:
    with pytest.raises(kind) as caught:
        cause()
    return str(caught.value)


def wrong(cls: Any, *args: Any, **kwargs: Any) -> str:
    return words_of(lambda: cls(*args, **kwargs))


# What is said


def test_a_near_miss_is_answered_with_the_parameter() -> None:
    assert wrong(Painted, pain="red") == "Painted() has no parameter 'pain': did you mean 'paint'?"


def test_a_remedy_may_be_a_parameter_or_a_sentence() -> None:
    assert wrong(Painted, hue=1) == "Painted() has no parameter 'hue': did you mean 'shade'?"
    assert wrong(Painted, colour="red") == "Painted() has no parameter 'colour': write paint='red'"


def test_a_guess_like_nothing_is_answered_with_all_parameters() -> None:
    assert wrong(Painted, zzz=1) == "Painted() has no parameter 'zzz': it takes paint, shade, act"


def test_every_unknown_keyword_is_answered_at_once() -> None:
    said = wrong(Painted, pain="red", hue=1)
    assert said == (
        "Painted() has no parameter 'pain': did you mean 'paint'?; it has no parameter 'hue': did you mean 'shade'?"
    )


def test_the_value_is_not_shown_since_it_may_be_a_secret() -> None:
    assert "hunter2" not in wrong(OpenAIChatModel, "m", apikey="hunter2")


def test_a_class_without_parameters_says_so() -> None:
    @suggest_keywords()
    class Bare:
        def __init__(self) -> None:
            """Take nothing."""

    assert wrong(Bare, x=1) == "Bare() has no parameter 'x': it takes none"


def test_a_dataclass_answers_also_when_it_is_replaced() -> None:
    assert wrong(Point, 1, z=2) == "Point() has no parameter 'z': it takes x, y"
    assert words_of(lambda: replace(Point(1), z=2)).startswith("Point() has no parameter 'z'")  # type: ignore[call-arg]


def test_a_subclass_that_passes_keywords_on_is_named() -> None:
    assert wrong(Own, pain="red") == "Own() has no parameter 'pain': did you mean 'paint'?"


def test_parameters_of_the_subclass_are_suggested_as_well() -> None:
    assert "it takes name, size, paint, shade, act" in wrong(Passing, zzz=1)


def test_a_slip_in_a_subclass_is_not_blamed_on_its_caller() -> None:
    assert wrong(Fixed, "red") == "Painted.__init__() has no parameter 'pain': did you mean 'paint'?"


def test_the_error_is_a_config_error_and_a_type_error() -> None:
    for kind in (ConfigError, TypeError):
        assert words_of(lambda: Painted(pain="red"), kind)  # type: ignore[call-arg]


def test_python_s_own_error_is_not_shown_beside_it() -> None:
    with pytest.raises(UnknownKeywordError) as caught:
        Painted(pain="red")  # type: ignore[call-arg]
    assert caught.value.__suppress_context__


# What is left alone


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (lambda: Point(), "missing 1 required positional argument: 'x'"),
        (lambda: Point(1, x=2), "multiple values for argument 'x'"),
        (lambda: Point(1, 2, 3), "Point\\(\\) was given too many arguments by position: it takes \\(x, y=\\.\\.\\.\\)"),
    ],
)
def test_other_wrong_calls_keep_pythons_own_error(cause: Callable[[], object], words: str) -> None:
    with pytest.raises(TypeError, match=words) as caught:
        cause()
    assert not isinstance(caught.value, UnknownKeywordError)


def test_a_type_error_from_inside_leaves_as_it_is() -> None:
    raised = TypeError("got an unexpected keyword argument 'shade'")

    def fail() -> None:
        raise raised

    with pytest.raises(TypeError) as caught:
        Painted("red", shade=1, act=fail)
    assert caught.value is raised


def test_a_wrong_call_inside_a_constructor_is_not_its_callers() -> None:
    def call_wrongly() -> None:
        (lambda: None)(shade=1)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="unexpected keyword argument 'shade'") as caught:
        Painted("red", shade=1, act=call_wrongly)
    assert not isinstance(caught.value, UnknownKeywordError)


def test_signature_name_and_words_of_a_constructor_stay() -> None:
    assert list(inspect.signature(Agent).parameters)[:3] == ["name", "system_prompt", "model"]
    assert str(inspect.signature(Point)) == "(x: int, y: int = 0) -> None"
    assert Agent.__init__.__qualname__ == "Agent.__init__"


def test_a_dataclass_stays_one() -> None:
    assert [field.name for field in fields(Point)] == ["x", "y"]
    assert Point(1) == Point(1, 0)
    assert hash(Point(1)) == hash(Point(1, 0))
    assert not hasattr(Point(1), "__dict__")
    with pytest.raises(FrozenInstanceError):
        Point(1).x = 2  # type: ignore[misc]


def test_objects_are_copied_and_pickled_as_before() -> None:
    for value in (Point(1, 2), UserMsg("user", "hi"), ReActConfig(max_iters=3)):
        assert copy.copy(value) == copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value


def test_another_conversation_is_made_without_the_constructor() -> None:
    agent = Agent("a", model=RulesChatModel())
    calls: list[str] = []
    type(agent).__init__, before = lambda *_: calls.append("init"), type(agent).__init__  # type: ignore[assignment, method-assign]
    try:
        assert agent.with_state(AgentState()) is not agent
    finally:
        type(agent).__init__ = before  # type: ignore[method-assign]
    assert calls == []


# Functions


@suggest_arguments(colour="write paint='red'")
async def paint_later(paint: str) -> str:
    return paint


@suggest_arguments()
def paint_now(paint: str) -> str:
    return paint


async def test_a_coroutine_function_stays_one_and_answers() -> None:
    assert inspect.iscoroutinefunction(paint_later)
    assert await paint_later(paint="red") == "red"
    with pytest.raises(WrongCallError, match=r"^paint_later\(\) has no parameter 'colour': write paint='red'$"):
        await paint_later(colour="red")  # type: ignore[call-arg]


def test_a_function_raises_a_usage_error_that_is_a_type_error() -> None:
    for kind in (UsageError, TypeError):
        assert "did you mean 'paint'?" in words_of(lambda: paint_now(pain="red"), kind)  # type: ignore[call-arg]


def test_another_wrong_call_of_a_function_keeps_its_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required") as caught:
        paint_now()  # type: ignore[call-arg]
    assert not isinstance(caught.value, WrongCallError)


# Attributes


@suggest_attributes(text="write note.words", later="write note.soon")
@dataclass(slots=True)
class Note:
    """A class of which people guess the attributes."""

    words: str

    later: int = 0


@compute_missing(words=lambda note: f"{type(note).__name__} without words")
class Computing:
    """A class whose objects need not set everything."""

    words: str


def test_a_missing_attribute_is_computed_unless_it_is_set() -> None:
    class Silent(Computing):
        words = "nothing"

    note = Computing()
    assert note.words == "Computing without words"
    assert Silent().words == "nothing"
    note.words = "a word"
    assert note.words == "a word"
    assert not hasattr(Computing, "words")  # it is the objects that have one


def test_a_guessed_attribute_is_an_attribute_error_with_a_remedy() -> None:
    with pytest.raises(AttributeError, match=r"^'Note' object has no attribute 'text': write note.words$"):
        _ = Note("x").text  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"^type object 'Note' has no attribute 'text': write note.words$"):
        _ = Note.text  # type: ignore[attr-defined]


def test_hasattr_getattr_and_dir_do_not_see_the_guesses() -> None:
    note = Note("x")
    assert not hasattr(note, "text")
    assert getattr(note, "text", 5) == 5
    assert "text" not in dir(note)
    assert "words" in dir(note)


def test_an_attribute_that_exists_is_not_hidden() -> None:
    assert Note("x", 3).later == 3


def test_a_subclass_or_an_instance_may_have_what_is_guessed() -> None:
    @dataclass(slots=True)
    class Longer(Note):
        text: str = "own"

    agent = Agent("a", model=RulesChatModel())
    agent.invoke = 5  # type: ignore[attr-defined]
    assert Longer("x").text == "own"
    assert agent.invoke == 5  # type: ignore[attr-defined]


def test_agents_and_messages_with_guesses_are_copied() -> None:
    agent = Agent("a", model=ScriptedChatModel(["hi"]))
    assert copy.copy(agent).name == "a"
    assert pickle.loads(pickle.dumps(agent)).name == "a"
    assert pickle.loads(pickle.dumps(Note("x"))) == Note("x")


# Who answers


@pytest.mark.parametrize(("cls", "arguments"), [(Agent, ["x"]), (Toolkit, []), (ReActAgent, ["a", "b"])])
def test_a_word_like_nothing_gets_the_list_of_parameters(cls: Any, arguments: list[str]) -> None:
    said = wrong(cls, *arguments, flux_capacitor=1)
    assert said.startswith(f"{cls.__name__}() has no parameter 'flux_capacitor': it takes ")


@pytest.mark.parametrize("cls", [AgentBase, ReActConfig, Msg, RetryMiddleware])
def test_other_classes_answer_as_python_does(cls: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'flux_capacitor'"):
        cls(flux_capacitor=1)


def test_agents_toolkits_and_replies_alone_suggest_keywords() -> None:
    files = [file for root in ("agentrt", "middleware") for file in (ROOT / root).rglob("*.py")]
    found = [match[0] for file in files for match in re.finditer(r"@suggest_(keywords|arguments)\(", file.read_text())]
    assert sorted(found) == ["@suggest_arguments("] * 2 + ["@suggest_keywords("] * 2


def test_words_of_other_frameworks_are_answered_with_parameters() -> None:
    page = (ROOT / "docs/coming-from/words.md").read_text()
    calls = re.findall(r"`(?:setup_tracing|[A-Z]\w+)\([^`]*\)`", page)
    assert len(calls) > 40
    for call in calls:
        tree = ast.parse(call.strip("`"), mode="eval").body
        assert isinstance(tree, ast.Call)
        assert isinstance(tree.func, ast.Name)
        cls = next(getattr(module, tree.func.id) for module in DOORS if tree.func.id in module.__all__)
        known = inspect.signature(cls).parameters
        assert {keyword.arg for keyword in tree.keywords} <= known.keys(), call


def test_an_agent_of_the_users_own_answers() -> None:
    class Mine(Agent):
        def __init__(self, **options: Any) -> None:
            super().__init__("mine", **options)

    assert (
        wrong(Mine, instructions="Be brief.") == "Mine() has no parameter 'instructions': did you mean 'system_prompt'?"
    )


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [("agentrt.rag", "SQLiteStore", "SQLiteTextStore"), ("agentrt.middleware", "RedisStore", "RedisLimitStore")],
)
def test_renamed_class_is_found_with_a_warning(module, old, new):
    with pytest.warns(DeprecationWarning, match=f"write `from {module} import {new}`"):
        found = getattr(import_module(module), old)
    assert found is getattr(import_module(module), new)


@pytest.mark.parametrize(("old", "name"), [("chain", "LayerRecord"), ("probe", "LayerTimes")])
def test_a_moved_module_is_found_at_its_old_path(old: str, name: str) -> None:
    moved = import_module(f"agentrt.{old}")
    assert getattr(moved, name) is getattr(import_module("agentrt.middleware"), name)
    with pytest.raises(AttributeError, match=f"module 'agentrt.{old}' has no attribute 'Nothing'"):
        _ = moved.Nothing


def test_class_of_another_module_is_refused_with_its_place():
    with pytest.raises(ImportError, match=r"write `from agentrt\.middleware import RetryMiddleware`"):
        exec("from agentrt import RetryMiddleware")
    with pytest.raises(ImportError, match="cannot import name 'Nothing' from 'agentrt'"):
        exec("from agentrt import Nothing")
    assert not hasattr(import_module("agentrt"), "nothing")


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: Agent("a", model=ScriptedChatModel([]), state_store=SQLiteTextStore(":memory:")),
        lambda: KnowledgeBase("a", "b", SQLiteStore("unused.db")),
        lambda: LongTermMemory(SQLiteStore("unused.db")),
        lambda: RateLimitMiddleware(1.0, store=SQLiteStore("unused.db")),
    ],
)
def test_store_of_another_kind_is_refused_with_its_module(misuse):
    with pytest.raises(ConfigError, match=r"of agentrt\.(state|rag)\."):
        misuse()


@pytest.mark.parametrize(
    "misuse",
    [lambda agent: agent.middlewares.append(RetryMiddleware()), lambda agent: setattr(agent, "middlewares", [])],
)
def test_middlewares_of_an_agent_say_how_to_get_others(misuse):
    agent = Agent("a", model=ScriptedChatModel([]))
    with pytest.raises(AttributeError, match=r"write agent = agent\.with_middlewares\(\["):
        misuse(agent)
    assert agent.middlewares == ()


def test_state_store_may_be_named_by_its_url(tmp_path):
    agent = Agent("a", model=ScriptedChatModel([]), state_store=f"sqlite:{tmp_path / 'x.db'}")
    assert isinstance(agent.state_store, SQLiteStore)
    with pytest.raises(ConfigError, match=r"'x\.db' is not a store URL: write "):
        Agent("a", model=ScriptedChatModel([]), state_store="x.db")


def test_missing_key_names_the_model(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OpenAIChatModel has no API key for 'gpt-5': set OPENAI_API_KEY"):
        Agent("a", model="openai:gpt-5")


def test_truth_value_is_no_answer_to_a_question():
    with pytest.raises(InvalidInputError, match=r"not True: answer with .* question = agent\.waiting\(\)"):
        Agent("a", model=ScriptedChatModel([])).run_sync(True)
