"""Law 7: what could not run is refused when the chains are built, with the class, the hook and the remedy."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import HOOKS, MiddlewareBase, arrange
from tests.chain.helpers import STREAMS, Guard, Log, compile_with, enter, read_texts


def refusal(*middlewares: Any) -> str:
    """Return the text of the error that refuses the middlewares."""
    with pytest.raises(MiddlewareConfigError) as caught:
        compile_with(*middlewares)
    return str(caught.value)


def line_of(function: Callable[..., Any]) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


class Plain(MiddlewareBase):
    """Overrides nothing."""


# What stands in the list


def test_a_class_in_place_of_an_instance_is_refused() -> None:
    assert refusal(Guard("1"), Plain) == ("middlewares holds the class Plain, not an instance of it: write Plain()")


@pytest.mark.parametrize("foreign", [object(), "logging", None, len, int])
def test_object_that_is_not_a_middleware_is_refused(foreign: Any) -> None:
    text = refusal(foreign)
    assert repr(foreign) in text
    assert "is not a MiddlewareBase instance: derive its class from agentrt.MiddlewareBase" in text


def test_the_same_instance_twice_is_refused() -> None:
    guard = Guard("1")
    text = refusal(guard, Plain(), guard)
    assert "the same Guard instance is listed twice (positions 0 and 2)" in text
    assert "make two instances" in text


def test_two_instances_of_one_class_are_accepted() -> None:
    assert len(compile_with(Guard("1"), Guard("2")).middlewares) == 2


def test_two_middlewares_with_one_explicit_key_are_refused() -> None:
    first, second = Plain(), Guard("2")
    first.key = second.key = "same"
    text = refusal(first, second)
    assert "Plain and Guard both have the key 'same'" in text
    assert "another key" in text


# Names of hooks


def test_misspelt_hook_is_refused_with_the_nearest_name() -> None:
    class Misspelt(MiddlewareBase):
        async def on_resoning(self, agent, input_kwargs, next_handler):
            yield

    assert refusal(Misspelt()) == (
        "Misspelt.on_resoning is not a hook: did you mean on_reasoning? "
        f"The hooks are {', '.join(spec.name for spec in HOOKS)}."
    )


def test_on_method_unlike_any_hook_is_refused() -> None:
    class Odd(MiddlewareBase):
        def on_zzz(self):
            pass

    assert "Odd.on_zzz is not a hook: rename the method, or put an underscore before it." in refusal(Odd())


def test_inherited_misspelt_hook_is_refused() -> None:
    class Mixin:
        def on_replay(self):
            pass

    class Mixed(Mixin, MiddlewareBase):
        pass

    assert "Mixed.on_replay is not a hook: did you mean on_reply?" in refusal(Mixed())


def test_other_methods_and_plain_attributes_are_accepted() -> None:
    class Free(MiddlewareBase):
        on_by_default = True

        def _on_zzz(self):
            pass

        def only_here(self):
            pass

    compile_with(Free())


def test_a_hook_assigned_on_the_instance_is_refused() -> None:
    async def on_reply(agent, input_kwargs, next_handler):
        yield

    plain = Plain()
    plain.on_reply = on_reply
    text = refusal(plain)
    assert "Plain.on_reply is assigned on the instance" in text
    assert "define it as a method of the class" in text


# Shapes


def test_coroutine_for_a_stream_hook_is_refused() -> None:
    class Wrong(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            return next_handler()

    assert refusal(Wrong()) == (
        "Wrong.on_reply must be an async generator (`async def` with `yield`), but it is a coroutine function "
        f"({line_of(Wrong.on_reply)}): "
        "pass the items on with `async for item in next_handler(**input_kwargs): yield item`"
    )


class SyncGenerator:
    def hook(self, agent, input_kwargs, next_handler):
        yield from ()


class PlainFunction:
    def hook(self, agent, input_kwargs, next_handler):
        return next_handler()


class AsyncGenerator:
    async def hook(self, agent, input_kwargs, next_handler):
        yield


class Coroutine:
    async def hook(self, agent, input_kwargs, next_handler):
        return await next_handler()


SHAPES = {
    "a sync generator": SyncGenerator.hook,
    "a plain function": PlainFunction.hook,
    "an async generator": AsyncGenerator.hook,
    "a coroutine function": Coroutine.hook,
}


@pytest.mark.parametrize("hook", STREAMS)
@pytest.mark.parametrize("found", [shape for shape in SHAPES if shape != "an async generator"])
def test_a_stream_hook_of_any_other_shape_is_refused(hook: str, found: str) -> None:
    text = refusal(type("Wrong", (MiddlewareBase,), {hook: SHAPES[found]})())
    assert f"Wrong.{hook} must be an async generator" in text
    assert f"but it is {found} (" in text
    assert "async for item in next_handler(**input_kwargs): yield item" in text


@pytest.mark.parametrize("found", [shape for shape in SHAPES if shape != "a coroutine function"])
def test_a_call_hook_of_any_other_shape_is_refused(found: str) -> None:
    text = refusal(type("Wrong", (MiddlewareBase,), {"on_model_call": SHAPES[found]})())
    assert "Wrong.on_model_call must be a coroutine function (`async def` without `yield`)" in text
    assert f"but it is {found} (" in text
    assert "return await next_handler(**input_kwargs)" in text


@pytest.mark.parametrize("found", [shape for shape in SHAPES if shape != "a coroutine function"])
def test_a_transformer_of_any_other_shape_is_refused(found: str) -> None:
    text = refusal(type("Wrong", (MiddlewareBase,), {"on_system_prompt": SHAPES[found]})())
    assert "Wrong.on_system_prompt must be a coroutine function" in text
    assert f"but it is {found} (" in text
    assert "return current_prompt" in text


class CallableObject:
    async def __call__(self, agent, input_kwargs, next_handler):
        yield


@pytest.mark.parametrize("value", [None, CallableObject(), 3], ids=["None", "CallableObject", "int"])
def test_hook_that_is_not_a_function_is_refused(value: Any) -> None:
    text = refusal(type("Wrong", (MiddlewareBase,), {"on_reply": value})())
    assert "Wrong.on_reply must be an async generator" in text
    assert f"but it is of type {type(value).__name__}" in text


def test_every_middleware_in_the_list_is_checked() -> None:
    class Wrong(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            return next_handler()

    assert "Wrong.on_acting must be" in refusal(Guard("1"), Plain(), Wrong())


# Parameters


class TooFew(MiddlewareBase):
    async def on_model_call(self, input_kwargs, next_handler):
        return await next_handler()


class TooMany(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler, more):
        return await next_handler()


class KeywordOnly(MiddlewareBase):
    async def on_model_call(self, agent, *, input_kwargs, next_handler):
        return await next_handler()


class NoSelf(MiddlewareBase):
    async def on_model_call(agent, input_kwargs, next_handler):
        return await next_handler()


@pytest.mark.parametrize("cls", [TooFew, TooMany, KeywordOnly, NoSelf])
def test_wrong_parameters_are_refused(cls: type[MiddlewareBase]) -> None:
    text = refusal(cls())
    assert f"{cls.__name__}.on_model_call must take (self, agent, input_kwargs, next_handler), but it takes (" in text
    assert line_of(cls.on_model_call) in text


def test_wrong_parameters_of_a_transformer_are_refused() -> None:
    class Onion(MiddlewareBase):
        async def on_system_prompt(self, agent, input_kwargs, next_handler):
            return ""

    assert "Onion.on_system_prompt must take (self, agent, current_prompt)" in refusal(Onion())


async def test_parameters_may_be_renamed_defaulted_or_variadic() -> None:
    class Free(MiddlewareBase):
        async def on_reasoning(self, conversation, kwargs, following, more=None):
            async for item in following():
                yield item

        async def on_model_call(self, *arguments):
            return await arguments[-1]()

    chains = compile_with(Free())
    assert await read_texts(enter(chains, "on_reasoning", Log())) == ["a", "b", "c"]
    assert (await enter(chains, "on_model_call", Log())).is_last


# Decorated hooks are judged by the function inside


def log_calls(hook):
    @functools.wraps(hook)
    def wrapper(self, agent, *rest):
        agent.append("decorated")
        return hook(self, agent, *rest)

    return wrapper


async def test_a_hook_decorated_with_wraps_is_accepted_and_runs(agent: Log) -> None:
    class Decorated(MiddlewareBase):
        @log_calls
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item

        @log_calls
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await next_handler()

        @log_calls
        async def on_system_prompt(self, agent, current_prompt):
            return current_prompt

    chains = compile_with(Decorated())
    await read_texts(enter(chains, "on_reasoning", agent))
    await enter(chains, "on_model_call", agent)
    await enter(chains, "on_system_prompt", agent)
    assert agent.count("decorated") == 3


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_stream_passed_through_by_a_decorator_is_still_closed(place) -> None:
    def stepping_aside(hook):
        @functools.wraps(hook)
        def wrapper(self, agent, input_kwargs, next_handler):
            return next_handler(**input_kwargs)

        return wrapper

    class Aside(MiddlewareBase):
        @stepping_aside
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            yield

    layers = [Guard("one"), Guard("two")]
    logs = []
    for chains in (compile_with(*layers), compile_with(*layers[:place], Aside(), *layers[place:])):
        agent = Log()
        logs.append(agent)
        assert await read_texts(enter(chains, "on_reasoning", agent)) == ["a", "b", "c"]
        stream = enter(chains, "on_reasoning", agent)
        await anext(stream)
        await stream.aclose()
    assert logs[0] == logs[1]


def test_decorated_hook_is_checked_by_the_function_inside() -> None:
    class Decorated(MiddlewareBase):
        @log_calls
        @log_calls
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            return next_handler()

    text = refusal(Decorated())
    assert "Decorated.on_reasoning must be an async generator" in text
    assert "but it is a coroutine function" in text


def test_a_hook_decorated_without_wraps_is_a_plain_function() -> None:
    def bare(hook):
        def wrapper(self, agent, input_kwargs, next_handler):
            return hook(self, agent, input_kwargs, next_handler)

        return wrapper

    class Decorated(MiddlewareBase):
        @bare
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            yield

    assert "a plain function" in refusal(Decorated())


async def test_a_hook_may_be_a_staticmethod(agent: Log) -> None:
    class Static(MiddlewareBase):
        @staticmethod
        async def on_reasoning(agent, input_kwargs, next_handler):
            agent.append("static")
            async for item in next_handler():
                yield item

    assert await read_texts(enter(compile_with(Static()), "on_reasoning", agent)) == ["a", "b", "c"]
    assert agent[0] == "static"


async def test_a_hook_may_be_a_classmethod(agent: Log) -> None:
    class OfClass(MiddlewareBase):
        @classmethod
        async def on_model_call(cls, agent, input_kwargs, next_handler):
            agent.append(cls.__name__)
            return await next_handler()

    await enter(compile_with(OfClass()), "on_model_call", agent)
    assert agent == ["OfClass", "core"]


async def test_a_hook_may_be_a_partialmethod(agent: Log) -> None:
    class Partial(MiddlewareBase):
        async def _call(self, word, agent, input_kwargs, next_handler):
            agent.append(word)
            return await next_handler()

        on_model_call = functools.partialmethod(_call, "partial")

    await enter(compile_with(Partial()), "on_model_call", agent)
    assert agent == ["partial", "core"]


def test_a_staticmethod_with_self_takes_one_parameter_too_many() -> None:
    class Static(MiddlewareBase):
        @staticmethod
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await next_handler()

    assert "Static.on_model_call must take" in refusal(Static())


# Depth


async def test_64_layers_run(agent: Log) -> None:
    chains = compile_with(*(Guard(str(number)) for number in range(64)))
    stream = enter(chains, "on_reasoning", agent)
    await anext(stream)
    await stream.aclose()
    names = [str(number) for number in range(64)] + ["core"]
    assert agent == [f"{name} opens" for name in names] + [f"{name} closes" for name in reversed(names)]
    assert (await enter(chains, "on_model_call", agent)).is_last


def test_65_layers_are_refused() -> None:
    text = refusal(*(Guard(str(number)) for number in range(65)))
    assert "on_reply has 65 layers, but 64 is the most" in text


def test_only_layers_count_not_middlewares() -> None:
    compile_with(*(Plain() for _ in range(100)), *(Guard(str(number)) for number in range(64)))


# Order


class Outermost(MiddlewareBase):
    position = "outermost"


class AlsoOutermost(MiddlewareBase):
    position = "outermost"


class Innermost(MiddlewareBase):
    position = "innermost"


class AlsoInnermost(MiddlewareBase):
    position = "innermost"


def test_outermost_form_a_prefix_and_innermost_a_suffix() -> None:
    compile_with(Outermost(), AlsoOutermost(), Plain(), Innermost(), AlsoInnermost())
    compile_with(AlsoOutermost(), Outermost(), AlsoInnermost(), Innermost())


def test_an_outermost_behind_another_is_refused() -> None:
    text = refusal(Outermost(), Plain(), AlsoOutermost())
    assert "AlsoOutermost must be outermost, but Plain stands outside it: put AlsoOutermost before Plain" in text


def test_an_innermost_before_another_is_refused() -> None:
    text = refusal(Innermost(), Plain(), AlsoInnermost())
    assert "Innermost must be innermost, but Plain stands inside it: put Innermost after Plain" in text


def test_a_position_that_does_not_exist_is_refused() -> None:
    class Middle(MiddlewareBase):
        position = "middle"

    text = refusal(Middle())
    assert "Middle.position must be" in text
    assert "'middle'" in text


class Wraps(MiddlewareBase):
    wraps = (Plain, "Guard")


class WrappedBy(MiddlewareBase):
    wrapped_by = (Plain, "Guard")


class Child(Plain):
    """Stands for its parent in every constraint."""


@pytest.mark.parametrize("other", [Plain(), Guard("1"), Child()])
def test_wraps_requires_the_others_later_in_the_list(other: MiddlewareBase) -> None:
    name = type(other).__name__
    compile_with(Wraps(), other)
    assert f"Wraps must wrap {name}, but stands inside it: put Wraps before {name}" in refusal(other, Wraps())


@pytest.mark.parametrize("other", [Plain(), Guard("1"), Child()])
def test_wrapped_by_requires_the_others_earlier_in_the_list(other: MiddlewareBase) -> None:
    name = type(other).__name__
    compile_with(other, WrappedBy())
    text = refusal(WrappedBy(), other)
    assert f"WrappedBy must be wrapped by {name}, but stands outside it: put WrappedBy after {name}" in text


@pytest.mark.parametrize("wanted", [Plain, "Plain"])
def test_requires_accepts_the_other_anywhere_in_the_list(wanted: Any) -> None:
    class Needy(MiddlewareBase):
        requires = (wanted,)

    compile_with(Needy(), Plain())
    compile_with(Child(), Needy())
    assert "Needy requires Plain, which is not in middlewares: add it" in refusal(Guard("1"), Needy())


def test_a_middleware_does_not_meet_its_own_requirement() -> None:
    class Self(MiddlewareBase):
        requires = ("Self",)

    assert "Self requires Self" in refusal(Self())


def test_wraps_and_wrapped_by_do_not_require_anything() -> None:
    compile_with(Wraps(), WrappedBy())


class WithReasons(MiddlewareBase):
    wraps: ClassVar = {Plain: "it counts calls"}
    wrapped_by: ClassVar = {"Guard": "what is guarded is counted"}


def test_a_refusal_gives_the_reason_of_the_order() -> None:
    compile_with(Guard("1"), WithReasons(), Plain())
    text = refusal(Child(), WithReasons())
    assert "WithReasons must wrap Child (it counts calls), but stands inside it: put " in text
    text = refusal(WithReasons(), Guard("1"))
    assert "must be wrapped by Guard (what is guarded is counted), but stands outside it: put " in text


@pytest.mark.parametrize("reason", ["", None, 7, ["why"]])
def test_a_reason_must_be_words(reason: Any) -> None:
    class Wordless(MiddlewareBase):
        wraps: ClassVar = {"Plain": reason}

    assert "Wordless.wraps must give a reason in words for each" in refusal(Wordless())


def test_a_refusal_has_all_conflicts_and_the_correct_order() -> None:
    assert refusal(Innermost(), Plain(), Outermost(), Wraps()) == (
        "the list of middlewares breaks 3 constraints:\n"
        "- Innermost must be innermost, but Wraps stands inside it: put Innermost after Wraps\n"
        "- Outermost must be outermost, but Innermost stands outside it: put Outermost before Innermost\n"
        "- Wraps must wrap Plain, but stands inside it: put Wraps before Plain\n"
        "agentrt.middleware.arrange(middlewares) returns the correct order, write: "
        "middlewares=[Outermost, Wraps, Plain, Innermost]"
    )


def test_arranging_layers_keeps_an_order_that_is_free() -> None:
    layers = [Guard("1"), Plain(), Wraps(), Guard("2")]
    assert arrange(layers) == [layers[2], layers[0], layers[1], layers[3]]
    assert arrange(arrange(layers)) == arrange(layers)


def test_constraints_that_contradict_each_other_are_named() -> None:
    class Both(MiddlewareBase):
        wraps = (Plain,)
        wrapped_by = ("Plain",)

    contradiction = "no order satisfies constraints that contradict each other: "
    circle = "Both outside Plain, as their classes say; Plain outside Both, as their classes say: leave one out"
    with pytest.raises(MiddlewareConfigError) as caught:
        arrange([Both(), Plain()])
    assert str(caught.value) == contradiction + circle
    assert contradiction in refusal(Plain(), Both())


def test_constraints_are_checked_and_never_used_to_reorder() -> None:
    middlewares = (Outermost(), Wraps(), Plain(), WrappedBy(), Innermost())
    assert compile_with(*middlewares).middlewares == middlewares
