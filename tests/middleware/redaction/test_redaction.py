"""Redaction in an agent: nothing of what is found leaves, is kept or is sent, whatever way it takes."""

import base64
import copy
import json
import logging
import pickle
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from agentrt import Agent, AgentBase, AgentState, Msg, Toolkit, UserMsg
from agentrt.agent import ContextConfig
from agentrt.errors import MiddlewareConfigError, RedactionBlocked, Transient
from agentrt.event import (
    AgentEvent,
    ConfirmResult,
    CustomEvent,
    ExternalExecutionResultEvent,
    RequireUserConfirmEvent,
    TextBlockDeltaEvent,
    ThinkingBlockEndEvent,
    ToolCallDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
    UserConfirmResultEvent,
)
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    DataBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
)
from agentrt.middleware import (
    CARD,
    EMAIL,
    LoggingMiddleware,
    MiddlewareBase,
    Pattern,
    RedactionMiddleware,
    RetryMiddleware,
    TracingMiddleware,
)
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.testing import InMemoryStateStore, check_middleware
from agentrt.tool import FunctionTool, ToolChunk, ToolContext, ToolResponse
from agentrt.types import STRUCTURED_OUTPUT, ToolResultState
from tests.loop.helpers import call, items_of
from tests.middleware.fake_time import Least, rebuilt
from tests.middleware.redaction.helpers import CARD_TEXT, EMAIL_TEXT, IBAN_TEXT, KEY_TEXT, PRIVATE_TEXT

SECRETS = (EMAIL_TEXT, CARD_TEXT, IBAN_TEXT, KEY_TEXT, PRIVATE_TEXT)
ALL = " | ".join(SECRETS)
# Eight digits of the card, since six are found in some time or other.
NOT_SHOWN = ("bob@", "example.com", "4111 11", "41111111", "DE89", "ghp_", "MIIEow")


def letters(text: str) -> list[Any]:
    """Return the text as a stream of single characters."""
    return list(text)


def assert_clean(*values: object) -> None:
    for value in values:
        text = value if isinstance(value, str) else repr(value)
        found = [secret for secret in NOT_SHOWN if secret in text]
        assert not found, (found, text)


def as_json(items: list[Any]) -> str:
    return "\n".join(item.to_json() for item in items)


def agent_of(script: list[Any], *tools: Any, redaction: RedactionMiddleware | None = None, **options: Any) -> Agent:
    layers = [*options.pop("outside", []), redaction or RedactionMiddleware(), *options.pop("inside", [])]
    model = ScriptedChatModel(script, stream=options.pop("stream", None))
    return Agent("tester", "Be kind.", model, Toolkit(tools=list(tools)), layers, **options)


def sent_by(agent: Agent) -> str:
    """Return everything that the model was sent."""
    calls = agent.model.calls  # type: ignore[attr-defined]  # of a scripted model
    messages = [message.to_json() for each in calls for message in each.messages]
    return "\n".join([*messages, json.dumps([each.tools for each in calls])])


@pytest.mark.parametrize("stream", [True, False])
async def test_whatever_the_way_an_answer_comes_it_is_the_same(stream: bool) -> None:
    answer = f"Yes: {ALL}."
    expected = "Yes: [EMAIL] | [CARD] | [IBAN] | [API_KEY] | [PRIVATE_KEY]."
    agent = agent_of([letters(answer)], stream=None if stream else False)
    items = await items_of(agent)
    deltas = "".join(item.delta for item in items if isinstance(item, TextBlockDeltaEvent))
    assert deltas == expected
    assert isinstance(items[-1], Msg)
    assert items[-1].get_text_content() == expected
    assert rebuilt(items).content == agent.state.context[-1].content == items[-1].content
    assert_clean(as_json(items), agent.state.model_dump_json())


async def test_an_awaited_reply_and_a_streamed_one_say_the_same() -> None:
    script = [ThinkingBlock(f"He is {EMAIL_TEXT}", signature="signed"), TextBlock(f"I know {CARD_TEXT}.")]
    awaited, streamed = agent_of([list(script)]), agent_of([list(script)])
    message = await awaited.reply("go")
    items = await items_of(streamed)
    assert message.get_text_content() == "I know [CARD]."
    kept = [
        [(block.type, getattr(block, block.type)) for block in agent.state.context[-1].get_content_blocks()]
        for agent in (awaited, streamed)
    ]
    assert kept[0] == kept[1] == [("thinking", "He is [EMAIL]"), ("text", "I know [CARD].")]
    ends = [item.signature for item in items if isinstance(item, ThinkingBlockEndEvent)]
    assert ends == [None]


async def test_thinking_that_is_not_changed_keeps_its_signature() -> None:
    agent = agent_of([[ThinkingBlock("Nothing here.", signature="signed"), TextBlock("Yes.")]])
    await agent.reply("go")
    assert agent.state.context[-1].get_content_blocks("thinking")[0].signature == "signed"


async def test_text_leaves_as_soon_as_it_can_hold_nothing() -> None:
    agent = agent_of([["One ", "two ", "bob@ex", "ample.com", " three"]])
    deltas = [item.delta for item in await items_of(agent) if isinstance(item, TextBlockDeltaEvent)]
    assert deltas[0].startswith("One")
    assert len(deltas) > 2
    assert "".join(deltas) == "One two [EMAIL] three"


async def test_what_a_user_sends_is_kept_and_sent_redacted() -> None:
    data = DataBlock(Base64Source(base64.b64encode(ALL.encode()).decode(), "text/plain"), "bob@example.com.txt")
    link = DataBlock(URLSource(f"https://x.example/?mail={EMAIL_TEXT}", "image/png"))
    message = UserMsg(
        "bob@example.com", [TextBlock(ALL), data, link], metadata={"from": EMAIL_TEXT, "n": [1, CARD_TEXT]}
    )
    agent = agent_of(["Thanks."])
    await agent.reply([message])
    assert_clean(agent.state.model_dump_json(), sent_by(agent))
    sent = agent.state.context[0].get_content_blocks("data")[0].source
    assert isinstance(sent, Base64Source)
    assert_clean(base64.b64decode(sent.data).decode())
    assert message.content[0].text == ALL  # type: ignore[union-attr]  # the caller's own stays


@pytest.mark.parametrize(
    ("media_type", "content"),
    [
        ("TEXT/PLAIN", EMAIL_TEXT.encode()),
        ("text/plain; charset=utf-8", EMAIL_TEXT.encode()),
        ("application/json; charset=utf-8", EMAIL_TEXT.encode()),
        ("application/vnd.x+JSON;v=1", EMAIL_TEXT.encode()),
        ("application/toml", EMAIL_TEXT.encode()),
        ("message/rfc822", EMAIL_TEXT.encode()),
        ("image/svg+xml", EMAIL_TEXT.encode()),
        ("text/plain", "Zoë ".encode("latin-1") + EMAIL_TEXT.encode()),
        ("text/plain", EMAIL_TEXT.encode("utf-16")),
        ("text/plain", EMAIL_TEXT.encode("utf-16-le")),
        ("text/plain", EMAIL_TEXT.encode("utf-16-be")),
        ("text/plain", EMAIL_TEXT.encode("utf-32")),
        ("text/plain; charset=utf-16-le", EMAIL_TEXT.encode("utf-16-le")),
        ("text/plain; charset=no-such-code", EMAIL_TEXT.encode()),
    ],
)
@pytest.mark.parametrize("kind", ["data", "url", "percents"])
async def test_text_in_files_is_redacted_in_any_encoding(media_type: str, content: bytes, kind: str) -> None:
    def file_of(content: bytes) -> Base64Source | URLSource:
        data = base64.b64encode(content).decode()
        if kind == "data":
            return Base64Source(data, media_type)
        payload = f";base64,{data}" if kind == "url" else f",{quote(content)}"
        return URLSource(f"data:{media_type}{payload}", media_type)

    agent = agent_of(["Thanks."])
    await agent.reply(UserMsg("eve", [DataBlock(file_of(content)), DataBlock(file_of(b"Hi!"))]))
    found, other = (block.source for block in agent.state.context[0].get_content_blocks("data"))
    assert other == file_of(b"Hi!")
    if isinstance(found, URLSource):
        payload = found.url.partition(",")[2]
        redacted = base64.b64decode(payload) if kind == "url" else unquote_to_bytes(payload)
    else:
        redacted = base64.b64decode(found.data)
    assert b"@" not in redacted
    assert b"[EMAIL]" in redacted.replace(b"\0", b"")


@pytest.mark.parametrize("media_type", ["image/png", "application/pdf", "audio/wav"])
async def test_bytes_that_are_no_text_stay_as_they_are(media_type: str) -> None:
    source = Base64Source(base64.b64encode(b"\xff\xd8" + EMAIL_TEXT.encode()).decode(), media_type)
    agent = agent_of(["Thanks."])
    await agent.reply(UserMsg("eve", [DataBlock(source)]))
    assert agent.state.context[0].get_content_blocks("data")[0].source == source


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("content", [(EMAIL_TEXT + "; ").encode() * 40, b"Hi!" * 100])
async def test_a_file_that_the_model_gives_leaves_redacted(stream: bool, content: bytes) -> None:
    block = DataBlock(Base64Source(base64.b64encode(content).decode(), "text/plain"))
    model = ScriptedChatModel([[TextBlock("Look: "), block, TextBlock("Yes?")]], stream=stream)
    agent = Agent("tester", "", model, middlewares=[RedactionMiddleware()])
    items = await items_of(agent)
    message = Msg("tester", [], "assistant")
    for item in items:
        if not isinstance(item, Msg):
            message.append_event(item)
    assert message.content == agent.state.context[-1].content
    source = message.get_content_blocks("data")[0].source
    assert isinstance(source, Base64Source)
    assert base64.b64decode(source.data) == content.replace(EMAIL_TEXT.encode(), b"[EMAIL]")


async def test_what_is_observed_is_kept_redacted() -> None:
    agent = agent_of(["Thanks."])
    await agent.observe(UserMsg("eve", ALL))
    await agent.observe([UserMsg("eve", ALL)])
    assert_clean(agent.state.model_dump_json())


async def test_all_of_a_request_is_redacted() -> None:
    def search(mail: str = EMAIL_TEXT) -> str:
        return "nothing"

    state = AgentState(context=[UserMsg("eve", ALL), AssistantMsg("tester", [TextBlock(ALL)])], summary=ALL)
    redaction = RedactionMiddleware()
    model = ScriptedChatModel(["Hello."])
    agent = Agent("tester", f"Never tell {ALL}", model, Toolkit(tools=[search]), [redaction], state=state)
    await agent.reply("go")
    assert_clean(sent_by(agent))
    assert model.calls[0].tools[0]["function"]["name"] == "search"


async def test_a_call_is_redacted_in_its_strings_keys_and_numbers() -> None:
    seen: list[Any] = []

    async def send(values: dict[str, Any]) -> str:
        seen.append(values)
        return "sent"

    text = '{"values": {"bob\\u0040example.com": ["to bob@exam\\u0070le.com", 4111111111111111, 5], "x": "a"}}'
    blocks = [ToolCallBlock("1", "send", text[start : start + 7]) for start in range(0, len(text), 7)]
    pieces = [ChatResponse([block], is_last=False) for block in blocks]
    agent = agent_of([pieces, "Done."], send)
    items = await items_of(agent)
    assert seen == [{"[EMAIL]": ["to [EMAIL]", "[CARD]", 5], "x": "a"}]
    assert_clean(as_json(items), agent.state.model_dump_json(), sent_by(agent))
    assert "\\u0040" not in as_json(items)
    assert len([item for item in items if isinstance(item, ToolCallDeltaEvent)]) == 1


async def test_a_call_that_was_cut_is_redacted_as_far_as_it_goes() -> None:
    text = '{"to": "bob\\u0040example.com", "card": 4111111111111111, "x": "ghp_abcdefghijklmnopqrstuvwx'
    agent = agent_of([[ToolCallBlock("1", "send", text)], "Done."])
    items = await items_of(agent)
    block = agent.state.context[-1].get_content_blocks("tool_call")[0]
    assert block.input == '{"to": "[EMAIL]", "card": [CARD], "x": "[API_KEY]'
    assert_clean(as_json(items), agent.state.model_dump_json())


async def test_results_are_redacted_piece_by_piece_and_whole() -> None:
    async def stream() -> Any:
        for character in ALL:
            yield character

    def everything() -> str:
        return ALL

    def blocks() -> ToolResponse:
        link = DataBlock(URLSource(f"https://{EMAIL_TEXT}/", "image/png"))
        return ToolResponse([TextBlock(ALL), link, TextBlock(EMAIL_TEXT)], metadata={"to": EMAIL_TEXT})

    async def mixed() -> Any:
        yield ToolChunk([TextBlock("bob@", "a"), TextBlock("card 4111 1111", "b")])
        yield ToolChunk([TextBlock(" 1111 1111", "b")], metadata={"x": EMAIL_TEXT})

    names = ["stream", "everything", "blocks", "mixed"]
    script = [[call(str(number), name) for number, name in enumerate(names)], "Done."]
    agent = agent_of(script, stream, everything, blocks, mixed)
    items = await items_of(agent)
    assert_clean(
        *(text.replace("bob@", "") for text in (as_json(items), agent.state.model_dump_json(), sent_by(agent)))
    )
    results = agent.state.context[-1].get_content_blocks("tool_result")
    redacted = "[EMAIL] | [CARD] | [IBAN] | [API_KEY] | [PRIVATE_KEY]"
    assert [result.text for result in results[:3]] == [redacted, redacted, f"{redacted}\n[EMAIL]"]
    assert rebuilt(items).content == agent.state.context[-1].content


async def test_an_answer_that_a_tool_gives_is_redacted() -> None:
    def answer() -> ToolResponse:
        return ToolResponse([TextBlock("ok")], metadata={"response_msg": AssistantMsg("tester", ALL)})

    agent = agent_of([[call("1", "answer")]], answer)
    items = await items_of(agent)
    assert_clean(as_json(items), agent.state.model_dump_json())


async def test_events_that_tools_and_layers_emit_are_redacted() -> None:
    def tell(context: ToolContext) -> str:
        context.emit(CustomEvent("found", {"mail": [EMAIL_TEXT]}))
        return "ok"

    items = await items_of(agent_of([[call("1", "tell")], "Done."], tell))
    events = [item for item in items if isinstance(item, CustomEvent)]
    assert [event.value for event in events] == [{"mail": ["[EMAIL]"]}]


async def test_the_answer_of_a_layer_further_in_is_redacted() -> None:
    class Answer(MiddlewareBase):
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            yield AssistantMsg("tester", ALL)

    agent = agent_of([], inside=[Answer()])
    items = await items_of(agent)
    assert_clean(as_json(items), agent.state.model_dump_json())


async def test_structured_output_is_redacted() -> None:
    class Person(BaseModel):
        mail: str

    agent = agent_of([[call("1", STRUCTURED_OUTPUT, mail=EMAIL_TEXT)]])
    message = await agent.reply("go", structured_schema=Person)
    assert message.structured_output == Person(mail="[EMAIL]")
    assert_clean(agent.state.model_dump_json())


async def test_a_summary_is_redacted_both_ways() -> None:
    history = [UserMsg("eve", f"{ALL} {'word ' * 400}") for _ in range(6)]
    model = ScriptedChatModel([f"He is {EMAIL_TEXT}.", "Done."])
    config = ContextConfig(trigger_ratio=0.02, reserve_ratio=0.01)
    state = AgentState(context=history)
    agent = Agent("tester", "", model, middlewares=[RedactionMiddleware()], state=state, context_config=config)
    await agent.compress_context()
    assert len(model.calls) == 1
    assert agent.state.summary == "He is [EMAIL]."
    assert_clean(sent_by(agent))


async def test_a_withdrawn_attempt_leaves_nothing_behind() -> None:
    script = [["half bob@exam", Transient("cut")], ["whole bob@example.com", " end"]]
    agent = agent_of(script, inside=[RetryMiddleware(random=Least())])
    items = await items_of(agent)
    assert_clean(as_json(items), agent.state.model_dump_json())
    assert rebuilt(items).get_text_content() == "whole [EMAIL] end"


@pytest.mark.parametrize("error", [Transient("cut"), ValueError(EMAIL_TEXT)])
async def test_an_answer_that_breaks_off_leaves_nothing_unredacted(error: Exception) -> None:
    agent = agent_of([["half bob@example.co", error]])
    items: list[Any] = []
    with pytest.raises(type(error)):
        async with agent.reply_stream("go") as events:
            async for event in events:
                items.append(event)
    assert_clean(as_json(items), agent.state.model_dump_json())


async def test_a_reader_that_leaves_anywhere_leaves_nothing_unredacted() -> None:
    for count in range(1, 40):
        agent = agent_of([letters(ALL), "Done."])
        items: list[Any] = []
        async with agent.reply_stream(EMAIL_TEXT) as events:
            async for event in events:
                items.append(event)
                if len(items) == count:
                    break
        assert_clean(as_json(items), agent.state.model_dump_json())


async def test_a_cancellation_leaves_nothing_unredacted() -> None:
    async def wait(messages: Any, tools: Any) -> Any:
        await anyio.sleep_forever()

    agent = agent_of([wait])
    with anyio.move_on_after(0.01):
        await agent.reply(ALL)
    assert_clean(agent.state.model_dump_json())


# Blocking.


async def test_blocked_input_is_neither_kept_nor_sent() -> None:
    agent = agent_of(["Hello.", "Hello."], redaction=RedactionMiddleware(action="block"))
    with pytest.raises(RedactionBlocked, match="EMAIL") as raised:
        await agent.reply(EMAIL_TEXT)
    assert_clean(str(raised.value), repr(raised.value), agent.state.model_dump_json(), sent_by(agent))
    assert agent.model.calls == []  # type: ignore[attr-defined]  # of a scripted model
    assert (await agent.reply("Hi")).get_text_content() == "Hello."


@pytest.mark.parametrize(
    "script",
    [
        [letters(f"He is {EMAIL_TEXT}.")],
        [[call("1", "look", to=EMAIL_TEXT)], "x"],
        [[call("1", "look")], "x"],
        [[ThinkingBlock(EMAIL_TEXT)]],
    ],
)
async def test_a_blocked_answer_or_result_ends_the_reply(script: list[Any]) -> None:
    def look(to: str = "") -> str:
        return ALL

    agent = agent_of(script, look, redaction=RedactionMiddleware(action="block"))
    items: list[Any] = []
    with pytest.raises(RedactionBlocked):
        async with agent.reply_stream("go") as events:
            async for event in events:
                items.append(event)
    assert_clean(as_json(items), agent.state.model_dump_json())


async def test_a_detector_that_raises_blocks_and_quotes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str) -> int:
        raise ValueError(text)

    caplog.set_level(logging.DEBUG)
    redaction = RedactionMiddleware([Pattern("mail", "bob@example", validate=fail)])
    agent = agent_of([letters(EMAIL_TEXT)], redaction=redaction, outside=[LoggingMiddleware(content=True)])
    with pytest.raises(RedactionBlocked) as raised:
        await agent.reply("go")
    assert_clean(str(raised.value), caplog.text, agent.state.model_dump_json())


# Tokens.


def tokens(**options: Any) -> RedactionMiddleware:
    return RedactionMiddleware([EMAIL, CARD], action="token", **options)


async def test_tools_and_readers_get_the_values_and_the_model_tokens() -> None:
    sent_to: list[str] = []

    def send(to: str) -> str:
        sent_to.append(to)
        return f"sent to {to}"

    def repeat(messages: list[Msg], tools: Any) -> Any:
        token = str(messages[-1].get_text_content()).split()[-1]
        return [call("1", "send", to=token)]

    def tell(messages: list[Msg], tools: Any) -> Any:
        result = messages[-1].get_content_blocks("tool_result")[0].text
        return letters(f"I have {result}, not to <EMAIL_1_00000000>.")

    agent = agent_of([repeat, tell, "Bye."], send, redaction=tokens(restore=("tools", "output")))
    items = await items_of(agent, f"write to {EMAIL_TEXT}")
    assert sent_to == [EMAIL_TEXT]
    assert rebuilt(items).get_text_content() == f"I have sent to {EMAIL_TEXT}, not to <EMAIL_1_00000000>."
    await agent.reply("go on")
    assert_clean(sent_by(agent))
    question, reply = agent.state.context[0], agent.state.context[1]
    assert_clean(question.to_json(), *(block.input for block in reply.get_content_blocks("tool_call")))
    assert sorted(agent.state.held.values) == ["EMAIL_1"]


async def test_without_restore_values_are_held_and_nowhere_else() -> None:
    agent = agent_of([letters(f"Is it {EMAIL_TEXT} or {CARD_TEXT}?")], redaction=tokens())
    items = await items_of(agent, f"I am {EMAIL_TEXT}")
    dumped = json.loads(agent.state.model_dump_json())
    assert EMAIL_TEXT in json.dumps(dumped.pop("held"))
    assert_clean(as_json(items), json.dumps(dumped), sent_by(agent))
    texts = [message.get_text_content() for message in agent.state.context]
    assert str(texts[0]).removeprefix("I am ") in str(texts[1])


async def test_tokens_hold_in_another_process_but_not_elsewhere() -> None:
    redaction = tokens(restore="output")
    first = agent_of(["Hello."], redaction=redaction)
    await first.reply(EMAIL_TEXT)
    token = str(first.state.context[0].get_text_content())
    state = AgentState.model_validate_json(first.state.model_dump_json())
    again = Agent("tester", model=ScriptedChatModel([f"It is {token}."]), middlewares=[redaction], state=state)
    assert (await again.reply("Who?")).get_text_content() == f"It is {EMAIL_TEXT}."
    other = agent_of([f"It is {token}."], redaction=redaction)
    assert (await other.reply("Who?")).get_text_content() == f"It is {token}."


# The other entries.


async def test_answers_to_questions_are_redacted_before_they_are_kept() -> None:
    def send(to: str) -> str:
        return "sent"

    agent = agent_of(
        [[call("1", "send", to="eve")], "Done."], FunctionTool(send, ask=True), state_store=InMemoryStateStore()
    )
    items = await items_of(agent)
    question = next(item for item in items if isinstance(item, RequireUserConfirmEvent))
    answer = ConfirmResult(True, question.tool_calls[0], feedback=f"also {EMAIL_TEXT}")
    await agent.reply(UserConfirmResultEvent(question.reply_id, [answer]))
    assert_clean(agent.state.model_dump_json(), sent_by(agent))


async def test_results_from_outside_are_redacted_before_they_are_kept() -> None:
    class Outside(FunctionTool):
        is_external_tool = True

    def look() -> str:
        return ""

    agent = agent_of([[call("1", "look")], "Done."], Outside(look))
    items = await items_of(agent)
    reply_id = next(item.reply_id for item in items if isinstance(item, AgentEvent))
    result = ToolResultBlock("1", "look", ALL)
    await agent.reply(ExternalExecutionResultEvent(reply_id, [result]))
    assert_clean(agent.state.model_dump_json(), sent_by(agent))


async def test_custom_agents_are_redacted_too() -> None:
    class Own(AgentBase):
        asked: Any = None

        async def reply(self, msg: Msg, note: str = "", context: Any = None) -> Msg:
            self.asked = (msg.get_text_content(), note, context)
            return AssistantMsg("own", ALL)

        async def observe(self, msg: Any) -> None:
            self.asked = msg

    agent = Own(middlewares=[RedactionMiddleware()])
    message = await agent.reply(UserMsg("eve", ALL), note=EMAIL_TEXT, context={"of": (EMAIL_TEXT, [EMAIL_TEXT])})
    assert_clean(message.to_json(), repr(agent.asked))
    await agent.observe(UserMsg("eve", ALL))
    assert_clean(agent.asked.to_json())


async def test_streamed_results_of_a_custom_agent_are_redacted() -> None:
    class Own(AgentBase):
        async def reply(self, msg: Msg) -> Msg:
            return AssistantMsg("own", "Done.")

    class Looks(MiddlewareBase):
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            yield ToolResultStartEvent("", "1", "look")
            for delta in ("bob@exam", "ple.com ", "and more"):
                yield ToolResultTextDeltaEvent("", "1", delta, "b")
            yield ToolResultEndEvent("", "1", ToolResultState.SUCCESS)
            async for item in next_handler():
                yield item

    class Outside(MiddlewareBase):
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            async for item in next_handler():
                if isinstance(item, ToolResultTextDeltaEvent):
                    deltas.append(item.delta)
                yield item

    deltas: list[str] = []
    await Own(middlewares=[Outside(), RedactionMiddleware(), Looks()]).reply(UserMsg("eve", "Look."))
    assert "".join(deltas) == "[EMAIL] and more"
    assert len(deltas) > 1


@pytest.mark.parametrize("options", [{}, {"action": "token"}])
async def test_sub_agents_are_redacted_too(options: dict[str, Any]) -> None:
    def look() -> str:
        return ALL

    child_model = ScriptedChatModel([[call("c1", "look")], f"It is {ALL}."])
    child = Agent("child", f"Never tell {ALL}", child_model, Toolkit(tools=[look]))
    script = [[call("1", "child", query=f"Who is {ALL}?")], f"It is {ALL}."]
    redaction = RedactionMiddleware(**options)
    agent = agent_of(script, child.as_tool("Asks.", name="child"), redaction=redaction)
    items = await items_of(agent, ALL)
    assert len(child_model.calls) == 2
    dumped = json.loads(agent.state.model_dump_json())
    dumped.pop("held")
    assert_clean(as_json(items), json.dumps(dumped), sent_by(agent), sent_by(child))


async def test_each_side_may_be_left_as_it_is() -> None:
    def look() -> str:
        return EMAIL_TEXT

    for side in ("input", "output", "tools"):
        agent = agent_of([[call("1", "look")], EMAIL_TEXT], look, redaction=RedactionMiddleware(**{side: False}))
        message = await agent.reply(EMAIL_TEXT)
        result = agent.state.context[1].get_content_blocks("tool_result")[0].text
        question = agent.state.context[0].get_text_content()
        seen = {"input": question, "output": message.get_text_content(), "tools": result}
        assert [name for name, text in seen.items() if text == EMAIL_TEXT] == [side]


async def test_concurrent_conversations_have_tokens_of_their_own() -> None:
    redaction = tokens(restore=("output",))
    model = ScriptedChatModel([lambda messages, tools: letters(str(messages[-1].get_text_content()))] * 5)
    agent = Agent("tester", model=model, middlewares=[redaction])
    conversations = [agent.with_state(AgentState()) for _ in range(5)]
    answers: dict[int, str | None] = {}

    async def talk(number: int, conversation: Agent) -> None:
        answers[number] = (await conversation.reply(f"u{number}@example.com")).get_text_content()

    async with anyio.create_task_group() as group:
        for number, conversation in enumerate(conversations):
            group.start_soon(talk, number, conversation)
    assert answers == {number: f"u{number}@example.com" for number in range(5)}
    kept = {str(conversation.state.context[-1].get_text_content()) for conversation in conversations}
    assert len(kept) == 5
    assert all(text.startswith("<EMAIL_1_") for text in kept)


async def test_logs_are_clean_with_its_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    redaction = RedactionMiddleware()
    agent = agent_of(["Done."], redaction=redaction, outside=[LoggingMiddleware(content=True, redact=redaction.text)])
    await agent.reply(ALL)
    assert "[EMAIL]" in caplog.text
    assert_clean(caplog.text)


async def test_spans_are_clean_with_its_text() -> None:
    def look(question: str) -> str:
        return ALL

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    redaction = RedactionMiddleware()
    tracing = TracingMiddleware(tracer_provider=provider, capture_content=True, redact=redaction.text)
    agent = agent_of([[call("1", "look", question=ALL)], ALL], look, redaction=redaction, outside=[tracing])
    await agent.reply(ALL)
    spans = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert "[PRIVATE_KEY]" in spans
    assert_clean(spans)


@pytest.mark.parametrize("other", [RetryMiddleware, TracingMiddleware, LoggingMiddleware])
def test_an_order_in_which_secrets_get_by_is_refused(other: type[MiddlewareBase]) -> None:
    layers = [other(), RedactionMiddleware()] if other is RetryMiddleware else [RedactionMiddleware(), other()]
    with pytest.raises(MiddlewareConfigError, match="RedactionMiddleware"):
        Agent("tester", model="rules", middlewares=layers)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"action": "block", "input": False},
        {"action": "mask", "output": False},
        {"action": "hash", "hash_key": "a secret key", "tools": False},
        {"action": "token", "restore": ("tools", "output")},
    ],
)
async def test_each_set_of_options_keeps_the_contract(options: dict[str, Any]) -> None:
    await check_middleware(lambda: RedactionMiddleware(**options), faults=[])


async def test_a_whole_answer_in_one_response_is_redacted() -> None:
    agent = agent_of([ChatResponse([TextBlock(ALL), ThinkingBlock(ALL)])])
    items = await items_of(agent)
    assert_clean(as_json(items), agent.state.model_dump_json())


@pytest.mark.parametrize("again", [lambda agent: pickle.loads(pickle.dumps(agent)), copy.copy, copy.deepcopy])
async def test_a_copy_of_an_agent_redacts_as_the_agent_does(again: Any) -> None:
    layer = RedactionMiddleware([EMAIL, Pattern("badge", r"B-\d{6}")])
    agent = Agent("a", model=ScriptedChatModel(["one", "two"]), middlewares=[layer])
    await agent.reply("Hello.")
    await again(agent).reply("B-123456 and bob@example.com")
    assert again(layer).text("B-123456 and bob@example.com") == "[BADGE] and [EMAIL]"
