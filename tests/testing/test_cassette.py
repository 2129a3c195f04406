"""Cassettes replay what models answered, and say in one line what they do not have."""

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrt import Agent
from agentrt.errors import ConfigError, RateLimited, Transient, UsageError
from agentrt.event import TextBlockDeltaEvent
from agentrt.message import TextBlock, UserMsg
from agentrt.middleware import EMAIL, GuardrailMiddleware, RetryMiddleware
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.testing import CassetteError, CassetteMiss, cassette
from tests.loop.helpers import add, agent_of, call, items_of
from tests.middleware.fake_time import in_jumping_time
from tests.model import wire_anthropic, wire_openai

SECRET = "sk-hunter2-hunter2"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "talk.json"


def talker(script: list[Any]) -> Agent:
    return agent_of(script, add)


def talk() -> list[Any]:
    return [["I ", "add ", call("1", "add", a=1, b=2)], ChatResponse([TextBlock("It is 3.")], usage=ChatUsage(7, 3))]


async def test_a_recorded_conversation_is_replayed_without_a_model(path: Path) -> None:
    with cassette(path):
        first = await items_of(talker(talk()), "1 + 2?")
    for mode in ("once", "none", "new"):
        agent = talker([])
        with cassette(path, mode=mode):  # type: ignore[arg-type]
            again = await items_of(agent, "1 + 2?")
        assert agent.model.calls == []  # type: ignore[attr-defined]
        assert [item.type for item in again[:-1]] == [item.type for item in first[:-1]]  # type: ignore[union-attr]
        deltas = [[item.delta for item in items if isinstance(item, TextBlockDeltaEvent)] for items in (first, again)]
        assert deltas[0] == deltas[1]
        assert again[-1].usage == first[-1].usage  # type: ignore[union-attr]


async def test_a_model_called_by_hand_is_replayed_as_well(path: Path) -> None:
    for script in (["Hello.", "Hello again."], []):
        model, texts = ScriptedChatModel(script, stream=False), []
        with cassette(path):
            for _ in range(2):  # equal requests, in their order
                result = await model([UserMsg("Hi")], tool_choice="none")
                assert isinstance(result, ChatResponse)
                texts.append(result.content[0].text)  # type: ignore[union-attr]
        assert texts == ["Hello.", "Hello again."]


def openai_on_the_wire(key: str) -> tuple[ChatModelBase, Any]:
    return wire_openai.model_of(wire_openai.says("Hello from the wire."), api_key=key)


def anthropic_on_the_wire(key: str) -> tuple[ChatModelBase, Any]:
    wire = wire_anthropic.Wire(wire_anthropic.text_events("Hello ", "from the wire."))
    return wire_anthropic.model_on(wire, api_key=key), wire


@pytest.mark.parametrize("connect", [openai_on_the_wire, anthropic_on_the_wire])
async def test_what_a_provider_sent_is_replayed_without_it_and_its_key(path: Path, connect: Any) -> None:
    answers = []
    for requests, key in ((1, SECRET), (0, "none")):
        model, server = connect(key)
        async with Agent("a", model=model) as agent:
            with cassette(path):
                message = await agent.reply("Hello")
        assert len(server.requests) == requests
        answers.append((message.get_text_content(), message.usage))
    assert answers[0] == answers[1]
    assert answers[0][0] == "Hello from the wire."
    assert SECRET not in path.read_text()


async def test_failures_are_recorded_by_their_type(path: Path) -> None:
    script = [RateLimited(SECRET, retry_after=0.0), ["half ", Transient(SECRET)], "whole"]
    for responses in (script, []):
        agent = Agent("a", model=ScriptedChatModel(responses), middlewares=[RetryMiddleware(initial_delay=0)])
        with cassette(path):
            items = await items_of(agent)
        assert [item.type for item in items[:-1]].count("MODEL_CALL_RETRY") == 2  # type: ignore[union-attr]
        assert items[-1].get_text_content() == "whole"  # type: ignore[union-attr]
    assert SECRET not in path.read_text()


class Hangs(ChatModelBase):
    """Says one word, if it streams, and then nothing."""

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
        if not self.stream:
            await anyio.sleep(1_000)
        return self.pieces()

    async def pieces(self) -> Any:
        yield ChatResponse([TextBlock("half")], is_last=False)
        await anyio.sleep(1_000)


async def refuse_soon(text: str, agent: Agent) -> str:
    await anyio.sleep(0.1)
    return "no"


@in_jumping_time
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_was_left_is_not_replayed_as_whole(path: Path, stream: bool) -> None:
    def agent(*layers: Any) -> Agent:
        return Agent("a", model=Hangs(model="slow", stream=stream), middlewares=list(layers))

    answers = []
    for mode in ("once", "none"):
        with cassette(path, mode=mode):  # type: ignore[arg-type]
            message = await agent(GuardrailMiddleware(input=[refuse_soon], message="Not that.")).reply("go")
            answers.append(message.get_text_content())
    assert answers == ["Not that."] * 2
    with pytest.raises(Transient, match="nobody has read this answer to its end"), cassette(path, mode="none"):
        await agent().reply("go")


async def test_an_unknown_request_says_what_differs(path: Path) -> None:
    with cassette(path):
        await talker(["Sunny."]).reply("Weather in Rome?")
    differences = [
        (talker([]), "Weather in Oslo?", r"messages\[1\]: .*Oslo.* was asked, .*Rome.* is recorded"),
        (agent_of([]), "Weather in Rome?", r"tools: \[\] was asked, \[\{.*add"),
        (
            Agent("tester", "You are tested.", ScriptedChatModel([], model="other"), [add]),
            "Weather in Rome?",
            "model: ",
        ),
    ]
    for agent, question, difference in differences:
        with pytest.raises(CassetteMiss, match=difference) as miss, cassette(path):
            await agent.reply(question)
        assert "\n" not in str(miss.value)
        assert "mode='rewrite'" in str(miss.value)
    with pytest.raises(CassetteMiss, match="has no further answer"), cassette(path):
        for _ in range(2):
            await talker([]).reply("Weather in Rome?")


async def test_an_answer_that_nothing_asked_for_fails(path: Path) -> None:
    with cassette(path):
        await talker(["Sunny."]).reply("Weather in Rome?")
    with (
        pytest.raises(CassetteError, match=r"1 of the 1 answers .* were not asked for; .*Rome.*rewrite"),
        cassette(path),
    ):
        pass
    with cassette(path, mode="new"):
        await talker(["Cold."]).reply("Weather in Oslo?")
    with cassette(path, mode="none"):
        for city in ("Oslo", "Rome"):
            await talker([]).reply(f"Weather in {city}?")


async def test_rewriting_asks_for_everything_anew(path: Path) -> None:
    for answer in ("old", "new"):
        with cassette(path, mode="rewrite"):
            await talker([answer]).reply("go")
    with cassette(path, mode="none"):
        assert (await talker([]).reply("go")).get_text_content() == "new"


async def test_a_block_that_raises_writes_nothing(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), cassette(path):
        await talker(["Sunny."]).reply("go")
        raise ZeroDivisionError
    assert not path.exists()


async def test_what_is_redacted_is_in_no_file_and_no_comparison(path: Path) -> None:
    def upper(text: str) -> str:
        return text.replace("Ann", "NAME")

    for mode, name, secret in (("once", "Ann", SECRET), ("none", "Bob", "sk-other")):
        redact = [secret, re.compile("sk-[a-z]+"), upper, lambda text: text.replace("Bob", "NAME")]
        with cassette(path, mode=mode, redact=redact):  # type: ignore[arg-type]
            message = await talker([f"Your key is {secret}, Ann."]).reply(f"I am {name}, my key is {secret}.")
        if mode == "none":
            assert message.get_text_content() == "Your key is [REDACTED], NAME."
    assert SECRET not in path.read_text()
    assert "Ann" not in path.read_text()


async def test_a_secret_that_is_cut_by_the_stream_is_in_no_file(path: Path) -> None:
    half, rest = SECRET[:6], SECRET[6:]
    pieces = ["The key is ", half, f"{rest}.", call("1", "add", a=1, b=2)]
    for mode, script in (("once", [pieces, f"Not {SECRET}."]), ("none", [])):
        agent = talker(script)
        with cassette(path, mode=mode, redact=SECRET):  # type: ignore[arg-type]
            items = await items_of(agent, "Say it.")
    assert rest not in path.read_text()
    said = "".join(item.delta for item in items if isinstance(item, TextBlockDeltaEvent))
    assert said == "The key is [REDACTED].Not [REDACTED]."


async def test_detectors_redact_a_cassette(path: Path) -> None:
    pytest.importorskip("re2")
    question = "I am ann@example.org."
    for mode in ("once", "none"):
        with cassette(path, mode=mode, redact=[EMAIL]):  # type: ignore[arg-type]
            message = await talker(["Hello bob@example.org."]).reply(question)
        question = "I am eve@example.com."
    assert message.get_text_content() == "Hello [EMAIL]."
    assert "@" not in path.read_text()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", r"is damaged \(JSONDecodeError\): record it again"),
        ("[]", "is damaged"),
        ("{}", "is damaged"),
        ('{"format": 1, "calls": [{}]}', "is damaged"),
        ('{"format": 1, "calls": [{"key": "k", "request": {}, "pieces": [{"content": "sk-hunter2"}]}]}', "is damaged"),
        ('{"format": "1.0", "calls": 7}', "is damaged"),
        ('{"format": 1, "calls": [{"key": "k", "request": {"messages": 5}, "error": "Transient"}]}', "is damaged"),
        ('{"format": 1, "calls": [{"key": "k", "request": {"messages": []}}]}', "is damaged"),
        ('{"format": 2, "calls": []}', "has the format 2 of a newer version of agentrt: update it"),
        ("[" * 100_000, "is damaged"),
    ],
)
def test_a_damaged_or_newer_cassette_says_so_in_one_line(path: Path, content: str, problem: str) -> None:
    path.write_text(content)
    with pytest.raises(CassetteError, match=problem) as refused, cassette(path):
        pass
    assert "\n" not in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert path.read_text() == content


def test_a_missing_cassette_is_not_recorded_in_ci(path: Path) -> None:
    with pytest.raises(CassetteError, match="does not exist: record it with mode='once'"), cassette(path, mode="none"):
        pass


def test_one_cassette_at_a_time_is_open(path: Path) -> None:
    plain = ChatModelBase.__call__
    with cassette(path), pytest.raises(UsageError, match="another cassette is open"), cassette(path):
        pass
    assert ChatModelBase.__call__ is plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "all"}, "must be one of 'once', 'none', 'new', 'rewrite', not 'all'"),
        ({"redact": [7]}, "takes texts, patterns, detectors and functions of text, not a int"),
        ({"redact": [dict]}, "not a type"),
        ({"mode": "onec"}, "did you mean 'once'"),
        ({"path": 5}, "must be the path of a file, not 5"),
        ({"path": "."}, "is '.', a folder: give the path of a file"),
        ({"path": "no/such/folder.json"}, "in a folder that does not exist"),
        ({"redact": [""]}, "takes texts, patterns, detectors and functions of text, not a str"),
    ],
)
def test_wrong_options_are_refused(path: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)), cassette(**{"path": path, **options}):
        pass


async def test_a_cassette_is_readable_json(path: Path) -> None:
    with cassette(path):
        await talker(["Sunny."]).reply("Weather?")
    content = json.loads(path.read_text())
    assert content["format"] == 1
    assert content["calls"][0]["request"]["messages"][-1] == ["user", "user", ["text", "Weather?"]]
