"""Fallback to another model: rows 3, 4, 8, 16 and 18 of the fault table."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState, Msg, UserMsg
from agentrt.errors import (
    CircuitOpen,
    Malformed,
    MiddlewareConfigError,
    ModelError,
    RateLimited,
    Refused,
    Rejected,
    Timeout,
    Transient,
    UsageError,
)
from agentrt.message import Base64Source, DataBlock, TextBlock, ToolCallBlock, ToolResultBlock
from agentrt.middleware import MiddlewareBase, ModelFallbackMiddleware
from agentrt.model import AnthropicChatModel, ChatResponse, OpenAIChatModel, RulesChatModel, ScriptedChatModel
from tests.loop.helpers import add, agent_of, elsewhere, items_of
from tests.middleware.fake_time import Clock, rebuilt, retries, text_of


def model_of(
    name: str, *responses: Any, capabilities: Sequence[str] | None = None, **options: Any
) -> ScriptedChatModel:
    model = ScriptedChatModel(responses, model=name, **options)
    model.capabilities = None if capabilities is None else frozenset(capabilities)
    return model


def calls_of(*models: ScriptedChatModel) -> list[int]:
    return [len(model.calls) for model in models]


@pytest.mark.parametrize("stream", [True, False, None])
@pytest.mark.parametrize(
    "failure",
    [
        Transient("503"),
        RateLimited(),
        Timeout("slow"),
        Rejected("quota"),
        Malformed("what"),
        CircuitOpen("held back"),
        ["half an ", Transient("cut")],
        [Timeout("nothing came")],
    ],
)
async def test_the_next_model_answers_and_no_text_is_shown_twice(failure: Any, stream: bool | None) -> None:
    second, third = model_of("second", failure, stream=stream), model_of("third", "the answer", stream=stream)
    agent = Agent("tester", model=model_of("first", failure), middlewares=[ModelFallbackMiddleware([second, third])])
    items = await items_of(agent)
    kind = type(failure if isinstance(failure, Exception) else failure[-1]).__name__
    assert retries(items) == [(f"{kind}, falling back to 'second'", 1, 0), (f"{kind}, falling back to 'third'", 2, 0)]
    assert text_of(agent) == rebuilt(items).get_text_content() == "the answer"


async def test_a_single_model_needs_no_list() -> None:
    agent = agent_of([Transient("503")], middlewares=[ModelFallbackMiddleware(model_of("second", "hello"))])
    assert (await agent.reply("go")).get_text_content() == "hello"


@pytest.mark.parametrize("error", [Refused("filtered"), UsageError("not here")])
async def test_a_refusal_goes_to_no_other_model_unless_chosen(error: Exception) -> None:
    second = model_of("second", "I will say it")
    with pytest.raises(type(error)) as raised:
        await agent_of([error], middlewares=[ModelFallbackMiddleware(second)]).reply("go")
    assert raised.value is error
    assert not any("it is from model" in note for note in getattr(error, "__notes__", ()))
    for chosen in (type(error), lambda error: True):
        second = model_of("second", "I will say it")
        agent = agent_of([error], middlewares=[ModelFallbackMiddleware(second, fallback_on=chosen)])
        assert (await agent.reply("go")).get_text_content() == "I will say it"


async def test_if_all_models_fail_the_last_error_names_the_others() -> None:
    last = Rejected("no such model")
    layer = ModelFallbackMiddleware([model_of("second", Timeout("secret text")), model_of("third", last)])
    with pytest.raises(Rejected) as raised:
        await agent_of([RateLimited()], middlewares=[layer]).reply("go")
    assert raised.value is last
    expected = "this is from model 'third'; before it failed 'scripted' with RateLimited, 'second' with Timeout"
    assert f"agentrt: {expected}" in last.__notes__


@pytest.mark.parametrize("sticky", [False, True])
async def test_no_model_is_asked_twice_in_one_call(sticky: bool) -> None:
    down = [Transient("503")] * 2
    first, second, third = model_of("first", *down), model_of("second", "hello", *down), model_of("third", *down)
    layer = ModelFallbackMiddleware([third, second, first], sticky=sticky)
    agent = Agent("tester", model=first, middlewares=[layer])
    assert (await agent.reply("go")).get_text_content() == "hello"
    with pytest.raises(Transient):
        await agent.reply("go on")
    assert calls_of(first, second, third) == [2, 2, 2]


@pytest.mark.parametrize(
    ("sticky", "passed", "expected"),
    [(False, 0, [2, 2]), (True, 1e9, [1, 2]), (60, 59, [1, 2]), (60, 61, [2, 1])],
)
async def test_a_sticky_conversation_keeps_the_model_that_answered(
    sticky: bool | float, passed: float, expected: list[int]
) -> None:
    clock = Clock()
    first, second = (
        model_of("first", Transient("503"), "back" if sticky else Transient("503")),
        model_of("second", "a", "b"),
    )
    layer = ModelFallbackMiddleware(second, sticky=sticky, clock=clock)
    agent = Agent("tester", model=first, middlewares=[layer])
    await agent.reply("go")
    clock.now += passed
    # The state is all that the conversation takes along.
    agent = elsewhere(agent)
    await agent.reply("go on")
    assert calls_of(first, second) == expected


async def test_each_conversation_stays_with_its_own_model() -> None:
    first, second = model_of("first", Transient("503"), "hello", "hello"), model_of("second", "a", "b")
    agent = Agent("tester", model=first, middlewares=[ModelFallbackMiddleware(second, sticky=True)])
    other = agent.with_state(AgentState())
    for conversation in (agent, other, agent, other):
        await conversation.reply("go")
    assert calls_of(first, second) == [3, 2]


async def test_after_a_failing_sticky_model_the_others_come_in_order() -> None:
    first, second = model_of("first", Transient("1"), "back"), model_of("second", "a", ["half ", Transient("2")])
    agent = Agent("tester", model=first, middlewares=[ModelFallbackMiddleware(second, sticky=True)])
    await agent.reply("go")
    await agent.reply("go on")
    assert text_of(agent) == "back"
    assert calls_of(first, second) == [2, 2]
    assert agent.state_of(agent.chains.middlewares[0]) == {}


async def test_a_sticky_model_saved_with_another_list_is_ignored() -> None:
    layer = ModelFallbackMiddleware(model_of("second", "hello"), sticky=True)
    agent = Agent("tester", model=model_of("first", "mine"), middlewares=[layer])
    agent.state_of(layer).update(place=0, model="another", until=None)
    assert (await agent.reply("go")).get_text_content() == "mine"


async def test_a_model_that_cannot_take_a_call_is_skipped() -> None:
    plain = model_of("plain", "no", "no", capabilities=[])
    sees = model_of("sees", "a cat", capabilities=["image"])
    unknown = model_of("unknown", "hello")
    layer = ModelFallbackMiddleware([plain, sees, unknown])
    image = DataBlock(Base64Source("aGk=", "image/png"))
    question = UserMsg("user", [TextBlock("what is this?"), image])
    answer = await agent_of([Transient("503")], middlewares=[layer]).reply(question)
    assert answer.get_text_content() == "a cat"
    answer = await agent_of([Transient("503")], add, middlewares=[layer]).reply("go")
    assert answer.get_text_content() == "hello"
    assert calls_of(plain, sees, unknown) == [0, 1, 1]


async def test_the_agents_own_model_in_the_list_is_not_asked_again() -> None:
    own = model_of("own", Transient("503"))
    agent = Agent("tester", model=own, middlewares=[ModelFallbackMiddleware([own, model_of("second", "hello")])])
    assert (await agent.reply("go")).get_text_content() == "hello"
    assert calls_of(own) == [1]


async def test_concurrent_replies_fall_back_each_by_itself() -> None:
    layer = ModelFallbackMiddleware(model_of("second", "from the second", "from the second"))
    agents = [
        agent_of([response], middlewares=[layer]) for response in (Transient("x"), "mine", ["half ", Transient("y")])
    ]
    async with anyio.create_task_group() as group:
        for agent in agents:
            group.start_soon(agent.reply, "go")
    assert [text_of(agent) for agent in agents] == ["from the second", "mine", "from the second"]


TWICE = model_of("twice")


@pytest.mark.parametrize(
    ("models", "options", "words"),
    [
        ([], {}, "no models"),
        ([5], {}, "takes chat models, or their names, such as 'openai:gpt-5-mini', not 5"),
        (5, {}, "takes chat models, or their names, .* not 5"),
        ([TWICE, TWICE], {}, "'twice' twice"),
        (
            [model_of("blind", capabilities=["tools"])],
            {"needs": ["tools", "image"]},
            "asks for image, which the model 'blind'",
        ),
        ([model_of("mute", capabilities=[])], {"needs": "tools"}, "asks for tools, which the model 'mute'"),
        ([TWICE], {"sticky": -1}, "sticky"),
        ([TWICE], {"fallback_on": ModelError("x")}, "fallback_on="),
    ],
)
def test_unsuitable_fallback_models_are_refused_at_construction(
    models: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(MiddlewareConfigError, match=words):
        ModelFallbackMiddleware(models, **options)


def test_a_model_that_meets_the_needs_or_is_unknown_is_accepted() -> None:
    able = model_of("able", capabilities=["tools", "image"])
    assert ModelFallbackMiddleware([able, model_of("unknown")], needs=["tools"]).models[0] is able


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_from_another_model_names_it_in_its_metadata(stream: bool) -> None:
    seen: list[ChatResponse] = []

    class See(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            result = await next_handler()
            pieces = [result] if isinstance(result, ChatResponse) else [piece async for piece in result]
            seen.append(pieces[-1])
            return pieces[-1]

    answer = ChatResponse([TextBlock("hello")])
    layers = [See(), ModelFallbackMiddleware(model_of("second", answer, stream=stream))]
    agent = agent_of(["mine", Transient("503")], middlewares=layers)
    await agent.reply("go")
    await agent.reply("go on")
    assert [response.metadata for response in seen] == [None, {"model": "second"}]
    assert answer.metadata is None


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (DataBlock(Base64Source("aGk=", "text/csv")), [1, 0]),
        (DataBlock(Base64Source("aGk=", "Image/PNG")), [0, 1]),
        (ToolResultBlock("1", "look", [DataBlock(Base64Source("aGk=", "image/png"))]), [0, 1]),
        (ToolResultBlock("1", "look", [TextBlock("nothing")]), [1, 0]),
    ],
)
async def test_text_files_need_no_capability_and_images_in_results_do(block: Any, expected: list[int]) -> None:
    plain, sees = model_of("plain", "a", capabilities=["tools"]), model_of("sees", "b", capabilities=["tools", "image"])
    agent = agent_of([Transient("503")], middlewares=[ModelFallbackMiddleware([plain, sees])])
    blocks = [ToolCallBlock("1", "look", "{}"), block] if isinstance(block, ToolResultBlock) else [block]
    agent.state.context.append(Msg("someone", blocks, "assistant" if len(blocks) == 2 else "user"))
    await agent.reply("go")
    assert calls_of(plain, sees) == expected


def test_the_shipped_models_state_their_capabilities() -> None:
    models = [OpenAIChatModel("gpt-5", api_key="k"), AnthropicChatModel("claude", api_key="k"), RulesChatModel()]
    assert ModelFallbackMiddleware(models[:2], needs=["tools", "image"]).models == tuple(models[:2])
    for model, lacks in zip(models, ("video", "audio", "image"), strict=True):
        with pytest.raises(MiddlewareConfigError, match=lacks):
            ModelFallbackMiddleware(model, needs=[lacks])
    for needs in (None, 7, [7], [""]):
        with pytest.raises(MiddlewareConfigError, match=r"needs=\.\.\.\) must be a list of capabilities"):
            ModelFallbackMiddleware(models, needs=needs)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [OpenAIChatModel, AnthropicChatModel])
def test_with_a_custom_formatter_capabilities_are_unknown(kind: Any) -> None:
    model = kind("omni", api_key="k", formatter=lambda messages: [])
    assert ModelFallbackMiddleware(model, needs=["video"]).models == (model,)
