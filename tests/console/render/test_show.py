"""`show` prints a reply as it happens, returns its message and closes its stream."""

import io
import json
import sys
from contextlib import aclosing

import anyio
import pytest

from agentrt import Agent, MiddlewareBase, Msg, Toolkit
from agentrt._runtime.output.printer import Printer
from agentrt.console import show
from agentrt.console.render.event_renderer import EventRenderer
from agentrt.console.render.plain import PlainView
from agentrt.errors import Transient, UsageError
from agentrt.event import (
    CustomEvent,
    ModelCallRetryEvent,
    RequireUserConfirmEvent,
    TextBlockEndEvent,
)
from agentrt.message import AssistantMsg, ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.tool import FunctionTool
from agentrt.types import ToolChunk, ToolResponse
from tests.loop.helpers import confirmation_of


def agent_of(*responses, tools=(), middlewares=()):
    return Agent("tester", "", ScriptedChatModel(responses), Toolkit(tools=list(tools)), list(middlewares))


def call(name: str, arguments: str = "{}", call_id: str = "1") -> ToolCallBlock:
    return ToolCallBlock(call_id, name, arguments)


async def shown(agent: Agent, capsys, **options) -> list[str]:
    await show(agent.reply_stream("go", **options))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("[tokens] about ")
    return lines[:-1]


def add(a: int, b: int) -> int:
    return a + b


async def fail() -> str:
    raise ValueError("no \x1b[31mway")


async def count():
    for number in range(25):
        yield f"line {number}\n"


def nothing() -> None:
    """Do nothing."""


async def test_all_parts_of_a_reply_are_printed_in_order(capsys):
    agent = agent_of([ThinkingBlock("hmm, well"), call("add", '{"a": 2,\n "b": 3}')], "It is **5**.\nBye", tools=[add])
    assert await shown(agent, capsys) == [
        "[thinking] hmm, well",
        '[call] add({"a": 2, "b": 3})',
        "[result] add: 5",
        "It is **5**.",
        "Bye",
    ]


async def test_a_failed_tool_says_so(capsys):
    lines = await shown(agent_of([call("fail")], "Sorry", tools=[fail]), capsys)
    assert lines[1:] == ["[result] fail: fail failed: ValueError: no \\x1b[31mway", "[error] fail: error", "Sorry"]


async def test_answers_without_the_form_end_with_the_reason(capsys):
    lines = await shown(agent_of("one", "two", "three"), capsys, structured_schema=int)
    assert lines[-1] == "[error] none of 3 answers fits the structured_schema; the last one: it is in words"


async def test_only_the_beginning_of_a_long_result_is_shown(capsys):
    lines = await shown(agent_of([call("count")], "Done", tools=[count]), capsys)
    assert lines[1:-1] == [
        *(f"[result] count: line {number}" for number in range(20)),
        "[result] count: ... and 5 more lines",
    ]


async def test_a_tool_without_output_is_done(capsys):
    lines = await shown(agent_of([call("nothing")], "Done", tools=[nothing]), capsys)
    assert lines[1].startswith("[result] nothing: ")


async def test_lines_of_concurrent_calls_name_their_tool(capsys):
    both = {"one": anyio.Event(), "two": anyio.Event()}

    async def one():
        yield "1 begins\n"
        both["one"].set()
        await both["two"].wait()
        yield "1 ends"

    async def two():
        await both["one"].wait()
        yield "2 begins\n"
        both["two"].set()
        yield "2 ends"

    lines = await shown(agent_of([call("one", call_id="1"), call("two", call_id="2")], "Ok", tools=[one, two]), capsys)
    assert sorted(lines[2:-1]) == [f"[result] {name}" for name in ("one: 1 begins", "one: 1 ends")] + [
        f"[result] {name}" for name in ("two: 2 begins", "two: 2 ends")
    ]


async def test_a_result_that_a_layer_replaced_is_shown_instead(capsys):
    class Censor(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            yield ToolChunk([TextBlock("secret")])
            async for item in next_handler():
                if isinstance(item, ToolResponse):
                    yield ToolResponse([TextBlock("public")])

    lines = await shown(agent_of([call("add", '{"a": 1, "b": 1}')], "Ok", tools=[add], middlewares=[Censor()]), capsys)
    assert lines[1:-1] == [
        "[result] add: secret",
        "[replaced] add: the result above is void; instead:",
        "[result] add: public",
    ]


async def test_a_discarded_attempt_is_declared_void(capsys):
    class Retry(MiddlewareBase):
        emits = True

        async def on_model_call(self, agent, input_kwargs, next_handler):
            async def twice():
                try:
                    async with aclosing(await next_handler()) as stream:
                        async for piece in stream:
                            yield piece
                except Transient:
                    agent.run.emit(ModelCallRetryEvent("cut \x1b off", wait_seconds=1.5))
                    async with aclosing(await next_handler()) as stream:
                        async for piece in stream:
                            yield piece

            return twice()

    agent = agent_of(["It is fo", Transient("cut")], "It is five", middlewares=[Retry()])
    assert await shown(agent, capsys) == [
        "It is fo",
        "[retry] what was said above is void; another attempt follows, after 1.5 s (cut \\x1b off)",
        "It is five",
    ]


async def test_events_of_layers_and_tools_are_shown(capsys):
    class Announce(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                if isinstance(item, TextBlockEndEvent):
                    item.text = "better"
                    yield CustomEvent("progress", 50)
                    yield RequireUserConfirmEvent(agent.run.id, [call("add", "{}")])
                if isinstance(item, Msg):
                    item.content = "better"
                yield item

    lines = await shown(agent_of("good", middlewares=[Announce()]), capsys)
    assert lines == [
        "good",
        "[progress] 50",
        "[waiting] for a decision on add {}",
        "[replaced] what was said above is void; instead:",
        "better",
    ]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "rate_limit_wait",
            {"wait_seconds": 95.2, "reason": "tokens_per_minute", "ahead": 1},
            "[waiting] at least 1 min 35 s for the limit of tokens per minute; 1 call is before it",
        ),
        (
            "rate_limit_wait",
            {"wait_seconds": 0.0, "reason": "max_concurrency", "ahead": 0},
            "[waiting] for the end of another call (max_concurrency)",
        ),
        (
            "tool_retry",
            {"tool_name": "add", "reason": "OSError", "attempt": 1, "wait_seconds": 0.5},
            "[waiting] 0.5 s before add is called again (OSError)",
        ),
        ("rate_limit_wait", "of a layer of one's own", "[rate_limit_wait] of a layer of one's own"),
    ],
)
def test_a_wait_says_for_what_and_how_long(name, value, line, capsys):
    EventRenderer(PlainView(sys.stdout)).render(CustomEvent(name, value))

    assert capsys.readouterr().out == f"{line}\n"


async def test_a_provider_block_is_a_line_and_cannot_move_the_cursor(capsys):
    search = ProviderBlock("anthropic", '{"type": "server_tool_use",\n "name": "\x1b[2Jweb_search"}')
    first, last = await shown(agent_of([ChatResponse([search, TextBlock("Tea.")], is_last=False)]), capsys)
    assert first.startswith('[provider] anthropic: {"type": "server_tool_use",')
    assert "\x1b" not in first
    assert last == "Tea."


async def test_the_sources_of_an_answer_are_lines_each_once(capsys):
    citation = {"url": "https://tea.test", "title": "On tea", "source": {}}
    sources = ProviderBlock("openai", json.dumps({"type": "citations", "citations": [citation, citation]}))
    answer = ChatResponse([TextBlock("Green."), sources], is_last=False)
    _, *lines = await shown(agent_of([answer]), capsys)
    assert lines == ["[source] On tea https://tea.test"]


async def test_an_answer_without_events_is_shown_too(capsys):
    class Cached(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            yield AssistantMsg("tester", "from the cache")

    message = await show(agent_of(middlewares=[Cached()]).reply_stream("go", yield_final_msg=True))
    assert message.get_text_content() == "from the cache"
    assert capsys.readouterr().out == "from the cache\n"


async def events_alone(stream):
    async for event in stream:
        yield event


@pytest.mark.parametrize(
    "responses",
    [
        ["Hello"],
        [[TextBlock("wait"), call("add", '{"a": 1, "b": 1}')], "It is 2"],
        [[call("add", "{}")], [call("add", '{"a": 1, "b": 1}', "2")], [ThinkingBlock("so"), TextBlock("2")]],
    ],
)
async def test_show_returns_the_final_message_even_if_not_streamed(responses):
    given = await show(agent_of(*responses, tools=[add]).reply_stream("go", yield_final_msg=True))
    built = await show(events_alone(agent_of(*responses, tools=[add]).reply_stream("go")))
    assert built.get_text_content() == given.get_text_content() is not None
    assert [block.type for block in built.content] == [block.type for block in given.content]
    assert (built.usage, built.finished_reason, built.role) == (given.usage, "completed", "assistant")


async def test_a_reply_that_continues_after_an_answer_is_shown(capsys):
    agent = agent_of([call("add", '{"a": 1, "b": 1}')], "It is 2", tools=[FunctionTool(add, ask=True)])
    waiting = await show(agent.reply_stream("go"))
    question = agent.waiting()
    assert waiting.get_text_content() == f"Waiting for an answer about 'add' ({question.tool_calls[0].id})."
    assert capsys.readouterr().out == '[call] add({"a": 1, "b": 1})\n[waiting] for a decision on add {"a": 1, "b": 1}\n'
    answer = confirmation_of(agent)
    message = await show(agent.reply_stream(answer))
    assert message.get_text_content() == "It is 2"
    assert capsys.readouterr().out.splitlines()[:2] == ["[result] add: 2", "It is 2"]


async def test_a_failure_is_raised_and_the_stream_closed():
    agent = agent_of(["so f", Transient("cut off")], "Fine")
    stream = agent.reply_stream("go")
    with pytest.raises(Transient, match="cut off"):
        await show(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert isinstance(await show(agent.reply_stream("again")), Msg)


async def test_a_cancelled_reply_is_closed_and_shown_as_stopped(capsys):
    async def wait() -> None:
        scope.cancel()
        await anyio.sleep_forever()

    agent = agent_of([call("wait")], "Fine", tools=[wait])
    with anyio.CancelScope() as scope:
        await show(agent.reply_stream("go"))
    assert scope.cancelled_caught
    assert capsys.readouterr().out.splitlines() == ["[call] wait({})", "[stopped]"]
    assert (await show(agent.reply_stream("go on"))).get_text_content() == "Fine"


async def test_an_output_that_cannot_be_written_to_closes_the_stream(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    agent = agent_of("one", "two")
    stream = agent.reply_stream("go")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Closed())
        with pytest.raises(BrokenPipeError):
            await show(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert (await agent.reply("again")).get_text_content() == "two"


async def test_characters_that_the_output_lacks_are_escaped(monkeypatch):
    bytes_written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(bytes_written, encoding="latin-1", write_through=True))
    await show(agent_of("café 早").reply_stream("go"))
    assert bytes_written.getvalue().startswith("café \\u65e9\n".encode("latin-1"))


def test_a_message_printed_meanwhile_gets_a_line_of_its_own(capsys):
    with PlainView(sys.stdout) as view:
        view.stream("text", "half of")
        Printer().show(AssistantMsg("bot", "hello"), True)
        view.stream("text", " an answer")
    assert capsys.readouterr().out == "half of\nbot: hello\n an answer\n"


async def test_a_stream_without_a_reply_is_refused():
    async def empty():
        return
        yield

    with pytest.raises(UsageError, match=r"await show\(agent\.reply_stream"):
        await show(empty())
