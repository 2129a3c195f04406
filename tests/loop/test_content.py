"""Content that joins a conversation passes on_content once, and what the layers return is all that there is."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio.lowlevel
import pytest

from agentrt import Agent, AgentState, Msg, UserMsg
from agentrt._runtime.conversation.inputs import incoming_content
from agentrt.errors import ChainContractError
from agentrt.event import (
    ConfirmResult,
    CustomEvent,
    ExternalExecutionResultEvent,
    HintBlockEvent,
    ToolResultTextDeltaEvent,
    UserConfirmResultEvent,
)
from agentrt.hooks import MiddlewareBase
from agentrt.message import DataBlock, TextBlock, ToolResultBlock, ToolResultState, URLSource
from agentrt.middleware import Limited, When
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool, ToolContext, ToolResponse
from agentrt.types import IncomingContent
from tests.loop.helpers import Elsewhere, add, agent_of, call, confirmation_of, items_of, results, short


class Look(MiddlewareBase):
    """Notes what comes, and replaces the canary in it."""

    def __init__(self):
        self.seen: list[IncomingContent] = []

    async def on_content(self, agent, content):
        self.seen.append(content)
        return content.with_text(content.text.replace("canary", "bird")) if "canary" in content.text else content

    @property
    def sources(self) -> list[str]:
        return [content.source for content in self.seen]


class Pass(MiddlewareBase):
    async def on_content(self, agent, content):
        return content


def sent(agent: Agent) -> str:
    """Return all that the model was sent."""
    return repr(
        [
            [vars(block) if hasattr(block, "__dict__") else block for block in message.get_content_blocks()]
            for made in agent.model.calls
            for message in made.messages
        ]
    )


def kept(agent: Agent) -> str:
    return agent.state.model_dump_json()


def fly() -> str:
    return "a canary flies"


@pytest.fixture
def layer() -> Look:
    return Look()


def test_without_layers_the_entry_is_the_core():
    assert agent_of(["hi"]).chains.on_content is incoming_content


async def test_an_input_is_kept_and_sent_as_the_layers_leave_it(layer):
    agent = agent_of(["hi"], middlewares=[layer])
    message = UserMsg("ann", "the canary")
    await agent.reply(message)
    assert agent.state.context[0].content == "the bird"
    assert message.content == "the canary"
    assert [(content.source, content.name) for content in layer.seen] == [("input", "ann")]
    assert "canary" not in kept(agent) + sent(agent)


async def test_layers_may_change_name_and_metadata_of_a_message():
    class Rename(MiddlewareBase):
        async def on_content(self, agent, content):
            return replace(content, name="somebody", metadata={})

    agent = agent_of(["hi"], middlewares=[Rename()])
    await agent.reply(Msg("ann", "hello", "user", metadata={"street": "Main"}))
    assert (agent.state.context[0].name, agent.state.context[0].metadata) == ("somebody", {})


async def test_an_input_that_layers_of_on_reply_answer_is_seen_too(layer):
    class Answer(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            yield Msg("tester", "no", "assistant")

    agent = agent_of(["hi"], middlewares=[Answer(), layer])
    await agent.reply("the canary")
    assert layer.sources == ["input"]
    assert "canary" not in kept(agent)


async def test_observed_messages_pass_before_they_join(layer):
    agent = agent_of(["hi"], middlewares=[layer])
    await agent.observe([UserMsg("bob", "canary"), UserMsg("cat", "no bird")])
    assert [message.content for message in agent.state.context] == ["bird", "no bird"]
    assert layer.sources == ["observed", "observed"]


async def test_a_result_is_announced_and_kept_as_the_layers_leave_it(layer):
    agent = agent_of([[call("1", "fly")], "done"], fly, middlewares=[layer])
    items = await items_of(agent)
    assert layer.sources == ["input", "tool_result"]
    content = layer.seen[1]
    assert (content.name, content.tool.name, content.tool_call.id, content.state) == ("fly", "fly", "1", "success")
    assert "canary" not in kept(agent) + sent(agent) + repr(items)


async def test_a_layer_may_make_a_result_an_error():
    class Refuse(MiddlewareBase):
        async def on_content(self, agent, content):
            return replace(content.with_text("no"), state=ToolResultState.ERROR) if content.tool else content

    agent = agent_of([[call("1", "fly")], "done"], fly, middlewares=[Refuse()])
    await agent.reply("go")
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert (result.state, result.output[0].text) == ("error", "no")


async def test_pieces_of_a_stream_wait_until_the_whole_has_passed(layer):
    async def drip():
        yield "a can"
        yield "ary"

    agent = agent_of([[call("1", "drip")], "done"], drip, middlewares=[layer])
    items = await items_of(agent)
    assert [item.delta for item in items if isinstance(item, ToolResultTextDeltaEvent)] == ["a bird"]
    assert "canary" not in kept(agent)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (call("1", "canary"), "The tool 'bird' does not exist"),
        (call("1", "add", a="canary"), "add was not run"),
        (call("1", "asks", text="x"), "not permitted: bird"),
    ],
)
async def test_what_is_said_of_a_call_that_was_not_run_passes(made, words, layer):
    class Deny(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            decision = await next_handler()
            return replace(decision, behavior="deny", message="canary")

    agent = agent_of([[made], "done"], add, FunctionTool(asks), middlewares=[Deny(), layer])
    await agent.reply("go")
    assert layer.sources == ["input", "not_run"]
    assert words in results(agent)[0]


async def asks(text: str) -> str:
    return text


async def test_calls_beyond_the_limit_pass(layer):
    from agentrt.agent import ReActConfig

    agent = agent_of(
        [[call("1", "fly"), call("2", "fly")], "done"],
        fly,
        middlewares=[layer],
        react_config=ReActConfig(max_tool_calls=1),
    )
    await agent.reply("go")
    assert sorted(layer.sources) == ["input", "not_run", "tool_result"]


@pytest.mark.parametrize("confirmed", [True, False])
async def test_feedback_to_a_question_passes_before_it_is_kept(confirmed, layer):
    store = InMemoryStateStore()
    agent = agent_of(
        [[call("1", "asks", text="x")], "done"], FunctionTool(asks, ask=True), middlewares=[layer], state_store=store
    )
    await agent.reply("go")
    await agent.reply(confirmation_of(agent, confirmed=confirmed, feedback="a canary " * 1_000))
    assert "feedback" in layer.sources
    assert "canary" not in kept(agent) + sent(agent)
    assert "a bird" in sent(agent)


async def test_an_external_result_passes_and_is_known_again(layer):
    agent = agent_of([[call("1", "elsewhere")], "done", "more"], Elsewhere(), middlewares=[layer])
    question = await agent.reply("go")
    [block] = question.get_content_blocks("tool_call")
    result = ToolResultBlock(block.id, block.name, "a canary", metadata={"note": "canary"})
    answer = ExternalExecutionResultEvent(question.id, [result])
    message = await agent.reply(answer)
    assert layer.sources == ["input", "external"]
    assert layer.seen[1].metadata == {"note": "canary"}
    assert results(agent) == ["a bird"]
    assert (await agent.reply(answer)).get_text_content() == message.get_text_content()


async def test_hints_of_continue_with_pass(layer):
    class Continue(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            if not agent.run.scratch(self):
                agent.run.scratch(self)["asked"] = True
                agent.run.continue_with("think of the canary")
            async for item in next_handler():
                yield item

    agent = agent_of(["one", "two"], middlewares=[Continue(), layer])
    await agent.reply("go")
    assert layer.sources == ["input", "hint"]
    assert layer.seen[1].name == "continue_with"
    assert "canary" not in kept(agent) + sent(agent)
    assert "think of the bird" in sent(agent)


@pytest.mark.parametrize("streamed", [True, False])
async def test_hints_that_a_tool_emits_pass_before_they_are_kept(streamed, layer):
    async def hint(context: ToolContext) -> str:
        context.emit(HintBlockEvent("", context.new_id(), "the canary", "hint"))
        return "done"

    agent = agent_of([[call("1", "hint")], "done"], hint, middlewares=[layer], state_store=InMemoryStateStore())
    items = await items_of(agent) if streamed else [await agent.reply("go")]
    assert sorted(layer.sources) == ["hint", "input", "tool_result"]
    assert "canary" not in kept(agent) + sent(agent) + repr(items)
    assert "the bird" in sent(agent)


async def test_a_hint_emitted_into_a_stopped_reply_is_dropped():
    async def hint(context: ToolContext) -> str:
        context.run.agent.interrupt()
        context.emit(HintBlockEvent("", context.new_id(), "the canary", "hint"))
        return "done"

    agent = agent_of([[call("1", "hint")], "done"], hint, middlewares=[Look()])
    await agent.reply("go")
    assert "canary" not in kept(agent)


async def test_a_summary_passes_before_older_messages_go(layer):
    from agentrt.agent import ContextConfig

    agent = agent_of(
        ["one", "two", "three", "a canary sang"], middlewares=[layer], context_config=ContextConfig(reserve_ratio=0)
    )
    for _ in range(3):
        await agent.reply("go")
    await agent.compress_context()
    assert layer.sources[-1] == "summary"
    assert agent.state.summary == "a bird sang"


async def test_what_a_tool_answers_in_the_models_place_passes(layer):
    async def answer() -> ToolResponse:
        return ToolResponse([TextBlock("told")], metadata={"response_msg": Msg("tester", "the canary", "assistant")})

    agent = agent_of([[call("1", "answer")]], answer, middlewares=[layer])
    message = await agent.reply("go")
    assert layer.sources == ["input", "tool_result", "tool_result"]
    assert message.get_text_content() == "the bird"
    assert "canary" not in kept(agent)


async def test_what_a_layer_finds_passes_by_run_receive(layer):
    class Find(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            found = await agent.run.receive(IncomingContent("passage", [TextBlock("the canary")], name="birds"))
            return await next_handler(messages=[*input_kwargs["messages"], UserMsg("runtime", found.text)])

    agent = agent_of(["hi"], middlewares=[Find(), layer])
    await agent.reply("go")
    assert layer.sources == ["input", "passage"]
    assert "the bird" in sent(agent)
    assert "canary" not in sent(agent)


@pytest.mark.parametrize("name", ["input", "tool_result", "external", "feedback"])
async def test_stop_withholds_the_content_and_ends_the_reply(name):
    class Stop(MiddlewareBase):
        async def on_content(self, agent, content):
            if content.source == name:
                agent.run.stop("guardrail", "no more")
            return content

    tools = (fly, Elsewhere(), FunctionTool(asks, ask=True))
    made = {"external": call("1", "elsewhere"), "feedback": call("1", "asks", text="x")}.get(name, call("1", "fly"))
    agent = agent_of([[made], "done"], *tools, middlewares=[Stop()])
    message = await agent.reply(UserMsg("user", "the canary", metadata={"from": "a canary"}))
    if name in ("external", "feedback"):
        [block] = message.get_content_blocks("tool_call")
        answers = {
            "external": ExternalExecutionResultEvent(
                message.id, [ToolResultBlock(block.id, block.name, "canary", metadata={"it": "canary flies"})]
            ),
            "feedback": UserConfirmResultEvent(message.id, [ConfirmResult(True, block, feedback="canary")]),
        }
        message = await agent.reply(answers[name])
    assert (message.finished_reason, message.get_text_content()) == ("guardrail", "no more")
    assert "canary flies" not in kept(agent)
    assert ("canary" in kept(agent)) is (name != "input")
    assert len(agent.model.calls) == (0 if name == "input" else 1)
    # The next reply works.
    assert (await agent.with_state(AgentState()).reply("go") if name != "input" else message) is not None


async def test_an_input_that_a_layer_empties_is_its_error():
    class Empty(MiddlewareBase):
        async def on_content(self, agent, content):
            return replace(content, content=[])

    agent = agent_of(["hi"], middlewares=[Empty()])
    with pytest.raises(ChainContractError, match="on_content left nothing of the message from 'user'"):
        await agent.reply("go")
    assert agent.state.context == []
    await agent.observe("psst")
    assert agent.state.context == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"content": [3]}, "3, which is neither a TextBlock nor a DataBlock; its layers are Wrong"),
        ({"metadata": {"a": object()}}, "cannot be kept"),
        ({"name": None}, "it is of another type"),
    ],
)
async def test_what_cannot_be_kept_is_refused_naming_the_layers(change, words):
    class Wrong(MiddlewareBase):
        async def on_content(self, agent, content):
            return replace(content, **change)

    agent = agent_of(["hi"], middlewares=[Wrong()])
    with pytest.raises(ChainContractError) as caught:
        await agent.reply("go")
    assert words in str(caught.value)
    assert agent.state.context == []


async def test_pictures_and_order_stay_as_they_came():
    picture = DataBlock(URLSource("https://example.com/a.png", "image/png"))
    agent = agent_of(["hi"], middlewares=[Pass()])
    await agent.reply(UserMsg("user", [TextBlock("look"), picture]))
    assert [block.type for block in agent.state.context[0].content] == ["text", "data"]


async def test_stop_at_one_of_several_results_ends_the_reply():
    class Stop(MiddlewareBase):
        async def on_content(self, agent, content):
            if content.source == "tool_result" and content.tool_call.id == "2":
                agent.run.stop("guardrail", "no more")
            return content

    agent = agent_of([[call("1", "slow"), call("2", "slow")], "done"], slow, middlewares=[Stop()])
    message = await agent.reply("go")
    assert (message.finished_reason, message.get_text_content()) == ("guardrail", "no more")
    states = [block.state for block in agent.state.context[-1].get_content_blocks("tool_result")]
    assert len(states) == 2
    assert "interrupted" in states
    assert (await agent.reply("again")).get_text_content() == "done"


async def slow() -> str:
    await anyio.lowlevel.checkpoint()
    return "a canary flies"


async def test_an_error_in_the_hook_ends_the_reply_and_takes_no_input():
    class Fail(MiddlewareBase):
        async def on_content(self, agent, content):
            raise ValueError("broken")

    agent = agent_of(["hi"], middlewares=[Fail()])
    with pytest.raises(ValueError, match="broken") as caught:
        await agent.reply("go")
    assert "Fail in on_content" in caught.value.__notes__[0]
    assert agent.state.context == []
    with pytest.raises(ValueError, match="broken"):
        await agent.observe("psst")
    assert agent.state.context == []


async def test_a_layer_that_emits_in_the_hook_is_heard():
    class Tell(MiddlewareBase):
        emits = True

        async def on_content(self, agent, content):
            agent.run.emit(CustomEvent("looked", content.source))
            return content

    agent = agent_of([[call("1", "fly")], "done"], fly, middlewares=[Tell()])
    items = await items_of(agent)
    assert [item.value for item in items if isinstance(item, CustomEvent)] == ["input", "tool_result"]


@pytest.mark.parametrize("streamed", [True, False])
async def test_inner_layers_get_what_outer_ones_return(streamed):
    class Add(MiddlewareBase):
        def __init__(self, letter: str) -> None:
            self.letter = letter

        async def on_content(self, agent, content):
            return content.with_text(content.text + self.letter)

    agent = agent_of(["hi"], middlewares=[Add("a"), Add("b")])
    await (items_of(agent, "go ") if streamed else agent.reply("go "))
    assert agent.state.context[0].content == "go ab"


async def test_the_source_of_a_hint_is_kept_as_a_layer_leaves_it():
    class Rename(MiddlewareBase):
        async def on_content(self, agent, content):
            return replace(content, name=content.name.replace("canary", "bird"))

    async def sing(context: ToolContext) -> str:
        context.emit(HintBlockEvent("", context.new_id(), "It sings.", "the canary"))
        return "done"

    agent = agent_of([[call("1", "sing")], "done"], sing, middlewares=[Rename()])
    items = await items_of(agent)
    assert [item.source for item in items if isinstance(item, HintBlockEvent)] == ["the bird"]
    assert "canary" not in kept(agent)


async def test_the_structured_output_of_what_a_tool_answers_passes():
    class Forget(MiddlewareBase):
        async def on_content(self, agent, content):
            return content if content.structured_output is None else replace(content, structured_output={"it": "bird"})

    async def answer() -> ToolResponse:
        told = Msg("tester", "told", "assistant", structured_output={"it": "canary"})
        return ToolResponse([TextBlock("told")], metadata={"response_msg": told})

    class Store(InMemoryStateStore):
        saved = ""

        async def save(self, state, **options):
            self.saved += state.model_dump_json()
            await super().save(state, **options)

    store = Store()
    agent = agent_of([[call("1", "answer")]], answer, middlewares=[Forget()], state_store=store)
    await agent.reply("go")
    assert "bird" in store.saved
    assert "canary" not in store.saved


class Late(MiddlewareBase):
    inherited = True

    async def on_content(self, agent: Any, content: IncomingContent) -> IncomingContent:
        await anyio.sleep_forever()
        return content


async def pieces() -> AsyncIterator[str]:
    yield "one "
    yield "two"


@pytest.mark.parametrize("is_on", [True, False])
async def test_pieces_wait_for_a_layer_only_while_its_condition_holds(is_on: bool) -> None:
    layer = When(lambda agent: is_on, Pass())
    agent = agent_of([[call("1", "pieces")], "Done."], pieces, middlewares=[layer])
    names = [short(item) for item in await items_of(agent)]
    assert names.count("RESULT_DELTA:1") == (1 if is_on else 2)


async def test_content_whose_guard_has_failed_is_withheld() -> None:
    agent = agent_of(["Done."], middlewares=[Limited(Late(), 0.01, "deny")])
    await agent.reply("canary")
    assert agent.state.context[0].get_text_content() == "[withheld]"
    assert "canary" not in agent.state.model_dump_json()
