"""Decoders, responses and their events, for the tests of decoding."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from agentrt._runtime.decoding.decoder import Decoder
from agentrt.event import AgentEvent
from agentrt.message import AssistantMsg, ContentBlock, Msg
from agentrt.types import ChatResponse, ChatUsage
from tests.loop.helpers import short

USAGE = ChatUsage(5, 3, 2, 1)


def decoder(taken: Iterable[str] = ()) -> Decoder:
    numbers = count(1)
    return Decoder("r", lambda: f"r-{next(numbers)}", dict.fromkeys(taken, True), "tester")


def piece(*content: ContentBlock) -> ChatResponse:
    return ChatResponse(list(content), is_last=False)


def last(*content: ContentBlock) -> ChatResponse:
    return ChatResponse(list(content), is_last=True, usage=USAGE, finished_reason="stop")


def streamed(*responses: ChatResponse, by: Decoder | None = None) -> list[AgentEvent]:
    by = by or decoder()
    return timeless([*(event for response in responses for event in by.feed(response)), *by.end()])


def at_once(response: ChatResponse, by: Decoder | None = None) -> list[AgentEvent]:
    return timeless((by or decoder()).decode_answer(response))


def timeless(events: list[AgentEvent]) -> list[AgentEvent]:
    return [replace(event, created_at=0) for event in events]


def message_of(events: Iterable[AgentEvent]) -> Msg:
    message = AssistantMsg("tester", [], id="r", created_at=0)
    for event in events:
        message.append_event(event)
    return message


def order(events: Iterable[AgentEvent]) -> str:
    return " ".join(map(short, events))


def blocks_of(*responses: ChatResponse) -> list[ContentBlock]:
    return message_of(streamed(*responses)).get_content_blocks()
