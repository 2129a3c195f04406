"""Terms: when a layer holds, how long it may take of its own, what a failure of it means, and in which bundle it is."""

import gc
from collections.abc import AsyncIterator
from itertools import permutations
from typing import Any, ClassVar

import anyio
import pytest

from agentrt.errors import ChainContractError, LayerTimeout, MiddlewareConfigError
from agentrt.hooks import HOOKS, MiddlewareBase, arrange
from agentrt.middleware import Bundle, Limited, When
from agentrt.types import PermissionBehavior, PermissionDecision, ToolResponse
from tests.chain.helpers import (
    CORES,
    STREAMS,
    Guard,
    Log,
    compile_with,
    enter,
    entry_of,
    event,
    log_scope,
    read_texts,
    response,
    stream_model,
    text_of,
)

SECONDS = 0.02
CALLS = ("on_model_call", "on_check_permission", "on_observe")
POLICIES = ("raise", "skip", "deny")


class Failure(Exception):
    """An error of a layer's own."""


class Fails(MiddlewareBase):
    """Fails at one point of each of its hooks: it hangs, or raises an error."""

    def __init__(self, point: str, how: str = "hangs") -> None:
        self.point = point
        self.how = how

    async def _fail_at(self, point: str) -> None:
        if point != self.point:
            return
        if self.how == "hangs":
            await anyio.sleep_forever()
        raise Failure(point)

    async def _stream(self, agent, input_kwargs, next_handler):
        await self._fail_at("before")
        async for item in next_handler(**input_kwargs):
            if text_of(item) == "b":
                await self._fail_at("middle")
            yield item
        await self._fail_at("after")

    on_reply = on_reasoning = on_acting = _stream

    async def _call(self, agent, input_kwargs, next_handler):
        await self._fail_at("before")
        result = await next_handler(**input_kwargs)
        await self._fail_at("after")
        return result

    on_check_permission = on_observe = _call

    async def on_model_call(self, agent, input_kwargs, next_handler):
        result = await self._call(agent, input_kwargs, next_handler)
        return result if not hasattr(result, "__anext__") else self._relay(result)

    async def _relay(self, stream):
        async for item in stream:
            if text_of(item) == "b":
                await self._fail_at("middle")
            yield item
        await self._fail_at("end")

    async def on_system_prompt(self, agent, current_prompt):
        await self._fail_at("before")
        return current_prompt + "!"


class Prompt(MiddlewareBase):
    """Passes on everything, and says that it was there."""

    limits: ClassVar[dict[str, tuple[float, str]]] = {}

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt}{type(self).__name__}"


# Law 1


def test_a_hook_without_terms_is_called_by_its_chain_itself() -> None:
    chains = compile_with(Guard("1"), When(lambda agent: True, Prompt()))
    layers = [layer for chain in chains.layers.values() for layer in chain]
    assert {layer.enter is layer.hook for layer in layers if isinstance(layer.middleware, Guard)} == {True}
    assert {layer.enter is layer.hook for layer in layers if isinstance(layer.middleware, Prompt)} == {False}


def test_terms_make_no_chain_for_a_hook_that_the_layer_lacks() -> None:
    chains = compile_with(When(lambda agent: True, Limited(Bundle("all", [Prompt()]), 1.0)))
    assert [hook for hook in CORES if entry_of(chains, hook) is not CORES[hook]] == ["on_system_prompt"]


# Conditions


@pytest.mark.parametrize("hook", STREAMS)
async def test_a_layer_that_is_off_leaves_the_inner_stream_itself(hook: str, agent: Log) -> None:
    chains = compile_with(When(lambda agent: False, Guard("off")), Guard("on"))
    assert await read_texts(enter(chains, hook, agent)) == ["a", "b", "c"]
    assert agent == ["on opens", "core opens", "core closes", "on closes"]


@pytest.mark.parametrize("is_on", [True, False])
async def test_a_condition_decides_on_calls_and_transformers(is_on: bool) -> None:
    chains = compile_with(When(lambda agent: is_on, Prompt()), When(lambda agent: is_on, Fails("before", "raises")))
    with pytest.raises(Failure) if is_on else pytest.MonkeyPatch.context():
        assert text_of(await enter(chains, "on_model_call", Log())) == "answer"
    with pytest.raises(Failure) if is_on else pytest.MonkeyPatch.context():
        assert await enter(chains, "on_system_prompt", Log()) == "prompt"


async def test_conditions_around_each_other_must_all_hold() -> None:
    for outer, inner in ((True, True), (True, False), (False, True)):
        entry = When(
            lambda agent, outer=outer: outer, Bundle("both", [When(lambda agent, inner=inner: inner, Prompt())])
        )
        prompt = await enter(compile_with(entry), "on_system_prompt", Log())
        assert prompt == ("promptPrompt" if outer and inner else "prompt")


class Unclear:
    def __bool__(self) -> bool:
        raise Failure("neither")


def failing() -> bool:
    raise Failure("no deps")


@pytest.mark.parametrize("answer", [failing, Unclear])
async def test_an_error_of_a_condition_names_the_layer(answer: Any) -> None:
    def is_pro(agent: Any) -> Any:
        return answer()

    with pytest.raises(Failure) as caught:
        await enter(compile_with(Guard("outer"), When(is_pro, Prompt())), "on_system_prompt", Log())
    assert "is_pro of Prompt" in caught.value.__notes__[0]


async def test_a_condition_that_returns_a_coroutine_is_refused() -> None:
    async def is_pro(agent: Any) -> bool:
        return True

    with pytest.raises(MiddlewareConfigError, match="is async"):
        When(is_pro, Prompt())
    with pytest.raises(ChainContractError, match="must return True or False, not coroutine"):
        await enter(compile_with(When(lambda agent: is_pro(agent), Prompt())), "on_system_prompt", Log())


# Law 2: each policy, on each hook


def expected_of_stream(hook: str, point: str, policy: str) -> tuple[list[str], type | None]:
    """Return the texts that come out, and the error that comes after them."""
    given = {"before": [], "middle": ["a"], "after": ["a", "b", "c"], "end": ["a", "b", "c"]}[point]
    if policy == "skip":
        return ["a", "b", "c"], None
    if policy == "deny" and point != "after":
        return [*given, "withheld"], None
    return given, LayerTimeout


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("point", ["before", "middle", "after"])
async def test_a_tool_call_whose_layer_hangs_ends_within_the_limit(point: str, policy: Any, agent: Log) -> None:
    chains = compile_with(Guard("outer"), Limited(Fails(point), SECONDS, policy, hooks=["on_acting"]), Guard("inner"))
    texts: list[str] = []
    expected, error = expected_of_stream("on_acting", point, policy)
    with anyio.fail_after(30), pytest.raises(error) if error else pytest.MonkeyPatch.context():
        async for item in enter(chains, "on_acting", agent):
            texts.append(text_of(item) if "withheld" not in text_of(item) else "withheld")
    assert texts == expected
    assert agent.count("core opens") == agent.count("core closes") == (0 if (point, policy) in NOT_RUN else 1)
    assert agent.count("outer closes") == 1


NOT_RUN = {("before", "raise"), ("before", "deny")}


@pytest.mark.parametrize("how", ["hangs", "raises"])
@pytest.mark.parametrize("point", ["before", "middle", "after"])
@pytest.mark.parametrize("hook", ["on_reply", "on_reasoning"])
async def test_a_stream_whose_layer_is_skipped_is_whole(hook: str, point: str, how: str, agent: Log) -> None:
    chains = compile_with(Guard("outer"), Limited(Fails(point, how), SECONDS, "skip", hooks=[hook]), Guard("inner"))
    assert await read_texts(enter(chains, hook, agent)) == ["a", "b", "c"]
    assert agent.count("core opens") == agent.count("core closes") == agent.count("inner closes") == 1
    assert agent[-1] == "outer closes"


@pytest.mark.parametrize("point", ["before", "after", "middle", "end"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
async def test_a_streamed_answer_has_the_limit_for_each_piece(point: str, policy: Any) -> None:
    agent, texts = Log(), list[str]()
    chains = compile_with(Limited(Fails(point), SECONDS, policy, hooks=["on_model_call"]), on_model_call=stream_model)
    expected = ["a", "b", "c"] if policy == "skip" else {"middle": ["a"], "end": ["a", "b", "c"]}.get(point, [])
    with anyio.fail_after(30), pytest.raises(LayerTimeout) if policy == "raise" else pytest.MonkeyPatch.context():
        texts += [text_of(item) async for item in await enter(chains, "on_model_call", agent)]
        assert texts == expected
    assert agent.count("core opens") == agent.count("core closes")


@pytest.mark.parametrize("hook", CALLS)
@pytest.mark.parametrize("how", ["hangs", "raises"])
@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_skipped_call_gives_the_inner_result_of_one_run(hook: str, how: str, point: str, agent: Log) -> None:
    result = await enter(compile_with(Limited(Fails(point, how), SECONDS, "skip", [hook])), hook, agent)
    assert agent == ["core"]
    assert result is None or isinstance(result, PermissionDecision) or text_of(result) == "answer"


@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_permission_whose_layer_fails_is_denied(point: str) -> None:
    chains = compile_with(Limited(Fails(point), SECONDS, "deny", ["on_check_permission"]))
    decision = await enter(chains, "on_check_permission", Log())
    assert decision.behavior is PermissionBehavior.DENY
    assert decision.bypass_immune
    assert "Fails, which guards this, took longer than 0.02 s" in decision.message


async def test_a_skipped_transformer_passes_the_value_on() -> None:
    chains = compile_with(Limited(Fails("before"), SECONDS, "skip", ["on_system_prompt"]), Prompt())
    assert await enter(chains, "on_system_prompt", Log()) == "promptPrompt"


@pytest.mark.parametrize("hook", [*STREAMS, *CALLS, "on_system_prompt"])
async def test_a_timeout_names_the_layer_the_hook_and_the_limit(hook: str) -> None:
    chains = compile_with(Guard("outer"), Limited(Fails("before"), SECONDS, hooks=[hook]))
    with anyio.fail_after(30), pytest.raises(LayerTimeout) as caught:
        result = enter(chains, hook, Log())
        await (read_texts(result) if hook in STREAMS else result)
    assert (caught.value.layer, caught.value.hook, caught.value.seconds) == ("Fails", hook, SECONDS)
    assert caught.value.__notes__[0].startswith(f"agentrt: raised by Fails in {hook} (")
    assert "took longer than 0.02 s of its own" in str(caught.value)


async def test_an_own_error_leaves_as_it_is_without_another_policy() -> None:
    with pytest.raises(Failure) as caught:
        await read_texts(enter(compile_with(Limited(Fails("middle", "raises"), 5)), "on_acting", Log()))
    assert "Fails in on_acting" in caught.value.__notes__[0]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("hook", ["on_acting", "on_check_permission"])
async def test_an_error_from_further_in_passes_as_it_is(hook: str, policy: Any) -> None:
    chains = compile_with(Limited(Fails("never"), 5, policy, [hook]), Fails("before", "raises"))
    with pytest.raises(Failure):
        result = enter(chains, hook, Log())
        await (read_texts(result) if hook in STREAMS else result)


async def test_a_cancellation_of_the_caller_passes_a_limit(agent: Log) -> None:
    chains = compile_with(Limited(Fails("middle"), 60, "skip", ["on_acting"]))
    with anyio.move_on_after(SECONDS) as scope:
        await read_texts(enter(chains, "on_acting", agent))
    assert scope.cancelled_caught
    assert agent == ["core opens", "core closes"]


async def test_what_was_taken_and_not_given_comes_first() -> None:
    class Holds(MiddlewareBase):
        """Holds back all that it takes, and replaces some of it."""

        async def on_acting(self, agent, input_kwargs, next_handler):
            held = [item async for item in next_handler()]
            yield held[0]
            await anyio.sleep_forever()

    chains = compile_with(Limited(Holds(), SECONDS, "skip"))
    assert await read_texts(enter(chains, "on_acting", Log())) == ["a", "b", "c"]


async def test_an_item_in_the_place_of_another_is_not_doubled() -> None:
    class Replaces(Fails):
        async def on_acting(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                if text_of(item) == "b":
                    await self._fail_at("middle")
                yield type(item)([type(item.content[0])(text_of(item).upper())])

    chains = compile_with(Limited(Replaces("middle"), SECONDS, "skip"))
    assert await read_texts(enter(chains, "on_acting", Log())) == ["A", "b", "c"]


async def test_a_layer_that_closes_what_it_reads_can_be_skipped() -> None:
    class Closes(Fails):
        async def on_acting(self, agent, input_kwargs, next_handler):
            stream = next_handler()
            try:
                async for item in stream:
                    await self._fail_at("middle")
                    yield item
            finally:
                await stream.aclose()

    chains = compile_with(Limited(Closes("middle"), SECONDS, "skip"))
    assert await read_texts(enter(chains, "on_acting", Log())) == ["a", "b", "c"]


async def test_a_clean_up_that_hangs_has_the_time_of_a_step(agent: Log) -> None:
    class HangsAtTheEnd(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            try:
                async for item in next_handler():
                    yield item
            finally:
                await anyio.sleep_forever()

    stream = enter(compile_with(Limited(HangsAtTheEnd(), SECONDS, "skip")), "on_reasoning", agent)
    assert text_of(await anext(aiter(stream))) == "a"
    await stream.aclose()
    assert agent == ["core opens", "core closes"]


async def test_a_limited_layer_that_stops_early_has_its_stream_closed(agent: Log) -> None:
    class TakesOne(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item
                break

    class Then(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item
            yield event("then")
            agent.append("later")
            yield event("later")

    texts = await read_texts(enter(compile_with(Then(), Limited(TakesOne(), 5)), "on_reasoning", agent))
    assert texts == ["a", "then", "later"]
    assert agent == ["core opens", "core closes", "later"]


# Law 3: own time


async def slow_act(agent: Log, tool_call: Any) -> AsyncIterator[ToolResponse]:
    with log_scope(agent, "core"):
        await anyio.sleep(3 * SECONDS)
        yield ToolResponse([])


async def slow_model(agent: Log, **values: Any) -> Any:
    await anyio.sleep(3 * SECONDS)
    return response("answer")


class CallsInATask(MiddlewareBase):
    """Calls the next layer in a task of its own, and waits for that."""

    async def on_model_call(self, agent, input_kwargs, next_handler):
        answers: list[Any] = []

        async def call() -> None:
            answers.append(await next_handler())

        async with anyio.create_task_group() as group:
            group.start_soon(call)
        return answers[0]


async def test_no_limit_counts_the_time_of_what_is_inside() -> None:
    chains = compile_with(
        Limited(Bundle("all", [Fails("never"), Guard("1"), CallsInATask()]), SECONDS), on_acting=slow_act
    )
    assert len(await read_texts(enter(chains, "on_acting", Log()))) == 1
    chains = compile_with(Limited(Bundle("all", [Fails("never"), CallsInATask()]), SECONDS), on_model_call=slow_model)
    assert text_of(await enter(chains, "on_model_call", Log())) == "answer"


async def test_the_clock_goes_on_after_what_is_inside() -> None:
    class WaitsAfter(CallsInATask):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            await super().on_model_call(agent, input_kwargs, next_handler)
            await anyio.sleep_forever()

    chains = compile_with(Limited(WaitsAfter(), SECONDS), on_model_call=slow_model)
    with anyio.fail_after(30), pytest.raises(LayerTimeout):
        await enter(chains, "on_model_call", Log())


async def test_time_between_two_items_belongs_to_the_reader() -> None:
    chains, texts = compile_with(Limited(Guard("1"), SECONDS)), list[str]()
    async for item in enter(chains, "on_acting", Log()):
        texts.append(text_of(item))
        await anyio.sleep(2 * SECONDS)
    assert texts == ["a", "b", "c"]


async def test_a_limited_stream_holds_no_garbage() -> None:
    gc.collect()
    gc.disable()
    try:
        await read_texts(enter(compile_with(Limited(Guard("1"), 5, "skip")), "on_acting", Log()))
        assert not [thing for thing in gc.get_objects() if type(thing).__name__ in ("_LimitedStream", "_Inside")]
    finally:
        gc.enable()


# Which limit holds


def limit_of(entry: Any, hook: str = "on_system_prompt") -> Any:
    (layer,) = compile_with(entry).layers[hook]
    return None if layer.limit is None else layer.limit[:2]


class Policed(Prompt):
    limits: ClassVar = {"on_system_prompt": (2.0, "skip"), "on_reply": (9.0, "raise")}


def test_the_nearest_limit_comes_before_that_of_the_class() -> None:
    assert limit_of(Prompt()) is None
    assert limit_of(Policed()) == (2.0, "skip")
    assert limit_of(Limited(Policed(), 1)) == (1.0, "raise")
    assert limit_of(Limited(Bundle("b", [Limited(Policed(), 1)]), 5, "skip")) == (1.0, "raise")
    assert limit_of(Limited(Limited(Fails("never"), 1, hooks=["on_reply"]), 5)) == (5.0, "raise")


class Watches(MiddlewareBase):
    def on_event(self, agent, event):
        pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limited(Prompt(), 0), r"Limited\(...\) must have seconds above 0, and not without end, not 0"),
        (lambda: Limited(Prompt(), float("inf")), "not inf"),
        (lambda: Limited(Prompt(), 1, "ignore"), "must have an on_failure of 'raise', 'skip', 'deny', not 'ignore'"),
        (lambda: Limited([Prompt()], 1), r'takes one layer or a Bundle, not a list: write Bundle\("name", \[...\]\)'),
        (lambda: Limited(Prompt(), 1, hooks="on_reply"), r"write \['on_reply'\]"),
        (lambda: Limited(Prompt(), 1, hooks=None), "must be a list of hooks, not None: leave it out for all hooks"),
        (
            lambda: Limited(Prompt(), 1, hooks=["on_reasonin"]),
            "'on_reasonin', which is not a hook: did you mean 'on_reasoning'",
        ),
        (lambda: Limited(Prompt(), 1, hooks=["on_reply"]), "names on_reply, which none of its layers overrides"),
        (lambda: Limited(Watches(), 1), "Watches has only on_event, and observers have no limit"),
        (lambda: Limited(Watches(), 1, hooks=["on_event"]), "on_event, whose layers are observers: they cannot wait"),
        (lambda: Limited(Prompt(), 1, "deny"), 'on_system_prompt has no refusal, so a limit of it cannot "deny"'),
        (lambda: When(True, Prompt()), "takes a function of the agent first, not True"),
        (lambda: Bundle("", [Prompt()]), "takes a name first, a str that is not empty"),
        (lambda: Bundle("b", Prompt()), r"Bundle\('b', ...\) takes a list of layers"),
        (lambda: arrange(Prompt()), r"arrange\(\.\.\.\) takes a list of middlewares, not Prompt"),
        (lambda: Bundle("b", [Prompt]), "holds the class Prompt, not an instance of it"),
    ],
)
def test_wrong_terms_are_refused(make: Any, message: str) -> None:
    with pytest.raises(MiddlewareConfigError, match=message):
        compile_with(make())


@pytest.mark.parametrize(
    "limits", [["on_reply"], {"on_reply": 2.0}, {"on_repl": (2.0, "skip")}, {"on_event": (1, "skip")}]
)
def test_wrong_limits_of_a_class_are_refused(limits: Any) -> None:
    cls = type("Wrong", (Prompt,), {"limits": limits})
    with pytest.raises(MiddlewareConfigError, match=r"Wrong\.limits"):
        compile_with(cls())


# Bundles, and law 8


class A(Prompt):
    wraps = ("B",)


class B(Prompt):
    wraps = ("C",)


class C(Prompt):
    pass


def test_entries_nest_and_are_flattened() -> None:
    layers = [A(), B(), C()]
    entries = [Bundle("one", [When(lambda agent: True, layers[0]), Limited(Bundle("two", layers[1:]), 1)])]
    chains = compile_with(*entries)
    assert list(chains.middlewares) == layers
    assert [chains.terms.by_layer[id(layer)].bundles for layer in layers] == [("one",), ("one", "two"), ("one", "two")]
    bundle = Bundle("b", layers)
    assert (len(bundle), bundle[1], list(bundle)) == (3, layers[1], layers)
    assert repr(Bundle("b", [])) == "Bundle('b', [])"


def test_a_condition_is_one_for_the_whole_bundle() -> None:
    when = When(lambda agent: True, Bundle("b", [A(), B()]))
    parts = arrange([when])
    assert isinstance(parts[0], When)
    assert isinstance(parts[1], When)
    assert parts[0].condition is parts[1].condition is when.condition


def test_arranging_gives_the_legal_order_from_each_permutation() -> None:
    entries = [A(), When(lambda agent: True, B()), Bundle("b", [C()])]
    for shuffled in permutations(entries):
        assert arrange(shuffled) == entries
    assert arrange(entries) == entries
    compile_with(*arrange(entries[::-1]))


def test_arranging_says_all_that_bars_an_order() -> None:
    kinds: dict[str, Any] = {}
    for name, wraps in {
        "D": {"E": "it counts"},
        "E": {"F": "why"},
        "F": {"D": "so"},
        "G": {"H": "g"},
        "H": {"G": "h"},
    }.items():
        kinds[name] = type(name, (Prompt,), {"wraps": wraps})
    needy = type("Needy", (Prompt,), {"requires": ("Missing",)})
    with pytest.raises(MiddlewareConfigError) as caught:
        arrange([A(), *(kind() for kind in kinds.values()), needy()])
    lines = str(caught.value).splitlines()
    assert lines[0] == "no order is possible:"
    assert len(lines) == 4
    assert all(f"{step}" in lines[1] for step in ("D outside E, it counts", "E outside F, why", "F outside D, so"))
    assert all(step in lines[2] for step in ("G outside H, g", "H outside G, h"))
    assert lines[3] == "- Needy requires Missing, which is not in middlewares: add it"


def test_arranging_refuses_an_instance_that_is_listed_twice() -> None:
    layer = C()
    with pytest.raises(MiddlewareConfigError, match=r"the same C instance is listed twice \(positions 0 and 1\)"):
        arrange([Limited(layer, 1), layer])


def test_the_hook_table_says_which_hooks_can_deny() -> None:
    assert [spec.name for spec in HOOKS if spec.denied is not None] == [
        "on_content",
        "on_reasoning",
        "on_model_call",
        "on_check_permission",
        "on_acting",
    ]
