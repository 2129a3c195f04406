"""What a layer asks, and what the user answers, where these words are private."""

import io
import logging
import re
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentrt.errors import RedactionBlocked
from agentrt.event import ConfirmResult, RequireUserConfirmEvent, UserConfirmResultEvent
from agentrt.middleware import LoggingMiddleware, RedactionMiddleware, TracingMiddleware
from tests.loop.helpers import elsewhere, items_of
from tests.middleware.question.layers import HOOKS, Asking, answer_to, asking_agent

ADDRESS, CARD = "bob@example.com", "4111111111111111"
QUESTION = f"Write to {ADDRESS}, and pay with {CARD}?"
FEEDBACK = f"yes, and to {ADDRESS}"


def words_of(items: list[Any]) -> str:
    return "".join(item.to_json() for item in items)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("confirmed", [True, False])
async def test_redaction_leaves_nothing_private_of_a_question(hook: str, confirmed: bool) -> None:
    layer = Asking(hook, text=QUESTION, address=ADDRESS)
    agent = asking_agent(RedactionMiddleware(), layer)
    items = await items_of(agent, "go")
    saved = agent.state.model_dump_json()
    [asked] = [item for item in items if isinstance(item, RequireUserConfirmEvent)]
    assert [decision.message for decision in asked.questions.values()] == ["Write to [EMAIL], and pay with [CARD]?"]
    # As its reader has it: the answer is about what was shown.
    results = [ConfirmResult(confirmed, call, feedback=FEEDBACK) for call in asked.tool_calls]
    later = elsewhere(agent)
    items += await items_of(later, UserConfirmResultEvent(asked.reply_id, results))
    sent = [message for request in later.model.calls for message in request.messages]
    for text in (words_of(items), words_of(sent), saved, later.state.model_dump_json()):
        assert ADDRESS not in text
        assert CARD not in text
    [answer] = layer.answers
    assert (answer.confirmed, answer.input) == (confirmed, {"address": "[EMAIL]"})
    assert answer.feedback == "yes, and to [EMAIL]"


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("restore", [(), ("output",), ("tools", "output")])
async def test_value_has_the_same_token_in_all_of_a_question(hook: str, restore: tuple[str, ...]) -> None:
    agent = asking_agent(
        RedactionMiddleware(action="token", restore=restore), Asking(hook, text=f"Write to {ADDRESS}?", address=ADDRESS)
    )
    [asked] = [item for item in await items_of(agent, "go") if isinstance(item, RequireUserConfirmEvent)]
    [decision], [asked_call] = asked.questions.values(), asked.tool_calls
    [token] = set(re.findall(r"<EMAIL_1_[0-9a-f]{8}>", decision.message))
    assert decision.message.startswith(f"Write to {token}?")
    assert asked_call.input == f'{{"address":"{token}"}}'


@pytest.mark.parametrize("hook", HOOKS)
async def test_question_with_what_must_not_be_said_is_not_asked(hook: str) -> None:
    agent = asking_agent(RedactionMiddleware(action="block"), Asking(hook, text=QUESTION))
    with pytest.raises(RedactionBlocked):
        await agent.reply("go")
    assert ADDRESS not in agent.state.model_dump_json()


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("confirmed", [True, False])
async def test_logs_and_spans_tell_nothing_of_a_question_by_default(hook: str, confirmed: bool) -> None:
    log, exporter, provider = io.StringIO(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    logger = logging.Logger("asked")
    logger.addHandler(logging.StreamHandler(log))
    layers = [TracingMiddleware(tracer_provider=provider), LoggingMiddleware(logger), Asking(hook, text=QUESTION)]
    agent = asking_agent(*layers)
    await items_of(agent, "go")
    await items_of(agent, answer_to(agent, confirmed, '{"tokens": 777123777123777}', feedback=FEEDBACK))
    spans = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert "REQUIRE_USER_CONFIRM" in log.getvalue()
    # So long that no time and no id of a span has these digits by chance.
    for words in (QUESTION, FEEDBACK, "777123777123777"):
        assert words not in log.getvalue()
        assert words not in spans
