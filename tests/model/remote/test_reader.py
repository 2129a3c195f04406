"""A provider of one's own: a model that makes requests, and a reader with little more than `feed`."""

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from agentrt import Agent, Msg
from agentrt.errors import Malformed, Transient
from agentrt.formatter import format_openai
from agentrt.message import ContentBlock
from agentrt.model import ChatResponse, ChatUsage, RemoteChatModel
from agentrt.model.remote import AnswerReader, ProviderAPI, count_in, dict_in, list_in, text_in
from agentrt.types import JSONObject
from tests.loop.helpers import add
from tests.model.test_openai_responses import TOOLS, ask
from tests.model.wire_openai import KEY, Answer, Server, events, json_of

HELLO = [{"text": "Hel"}, {"text": "lo"}, {"done": "stop", "tokens": {"in": 7, "out": 2}}]
CALL = {"index": 0, "id": "c1", "name": "add", "arguments": '{"a": 1, "b": 2}'}


class AcmeReader(AnswerReader):
    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        self.accumulator.add_text(text_in(event, "text"))
        for call in list_in(event, "calls"):
            index = count_in(call, "index")
            self.accumulator.add_call(index, text_in(call, "id"), text_in(call, "name"), text_in(call, "arguments"))
        self.reason = text_in(event, "done") or self.reason
        if tokens := dict_in(event, "tokens"):
            self.usage = ChatUsage(count_in(tokens, "in"), count_in(tokens, "out"))
        return self.accumulator.take_pieces()


class AcmeChatModel(RemoteChatModel):
    _api = ProviderAPI("https://acme.invalid/v1", "ACME_API_KEY")
    _path = "/answers"

    def _body(self, messages: Sequence[Msg], tools: Any, tool_choice: Any) -> JSONObject:
        return {"model": self.model, "messages": format_openai(messages), "tools": tools}

    def _reader(self, messages: Sequence[Msg]) -> AnswerReader:
        return AcmeReader(messages)


def acme(*answers: Any, **options: Any) -> AcmeChatModel:
    server = Server(*answers)
    return AcmeChatModel("anvil-1", api_key=KEY, http_client=lambda: httpx2.AsyncClient(transport=server), **options)


@pytest.mark.parametrize("stream", [True, False])
async def test_reader_with_feed_alone_reads_a_whole_answer(stream: bool) -> None:
    whole = {"text": "Hello", **HELLO[-1]}
    model = acme(Answer([events(*HELLO)]) if stream else json_of(whole), stream=stream)
    *pieces, answer = await ask(model)
    assert [piece.content[0].text for piece in pieces] == (["Hel", "lo"] if stream else [])
    assert (answer.content[0].text, answer.finished_reason, answer.usage) == ("Hello", "stop", ChatUsage(7, 2))


async def test_call_of_a_provider_of_ones_own_runs() -> None:
    agent = Agent(
        "a", model=acme(Answer([events({"calls": [CALL], "done": "stop"})]), Answer([events(*HELLO)])), tools=[add]
    )
    assert (await agent.reply("go")).get_text_content() == "Hello"
    assert [block.text for block in agent.state.context[-1].get_content_blocks("tool_result")] == ["3"]


async def test_answer_with_calls_has_their_reason() -> None:
    answer: ChatResponse = (await ask(acme(Answer([events({"calls": [CALL], "done": "stop"})])), None, TOOLS))[-1]
    assert answer.finished_reason == "tool_calls"


async def test_tokens_that_nobody_counted_are_estimated_or_counted() -> None:
    answer = Answer([events({"text": "Hello", "done": "stop"})])
    usage = (await ask(acme(answer)))[-1].usage
    assert usage.estimated
    counted = (await ask(acme(answer, count_tokens=len)))[-1].usage
    assert (counted.output_tokens, usage.output_tokens) == (6, 2)


async def test_answer_without_a_reason_was_cut() -> None:
    with pytest.raises(Transient, match=r"anvil-1.*cut"):
        await ask(acme(json_of({"text": "Hel"}), stream=False))
    with pytest.raises(Malformed, match="'text' is 5, not a string"):
        await ask(acme(json_of({"text": 5}), stream=False))


def test_reader_without_feed_says_so() -> None:
    with pytest.raises(NotImplementedError, match="AnswerReader does not implement `feed`"):
        AnswerReader([]).read(json.loads("{}"))
