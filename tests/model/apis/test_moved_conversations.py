"""One conversation goes from API to API, in the middle of its tools, and each takes it."""

import pytest
from hypothesis import given, settings

from agentrt import Msg
from tests.model.apis.answers import MODELS, TOOLS, conversations
from tests.model.apis.rules import check_request


def check_conversation(messages: list[Msg]) -> None:
    before = [msg.to_json() for msg in messages]
    for api, model in MODELS.items():
        body = model._body(messages, TOOLS, None)
        check_request(api, body)
        assert model._body(messages, TOOLS, None) == body, "the same bytes again, which providers cache"
    check_request("anthropic", MODELS["anthropic"]._body(messages, None, None))  # which wants old calls declared
    assert [msg.to_json() for msg in messages] == before


@given(conversations())
@settings(max_examples=60)
def test_each_api_takes_a_conversation_of_all_of_them(messages: list[Msg]) -> None:
    check_conversation(messages)


@pytest.mark.slow
@given(conversations())
@settings(max_examples=1500)
def test_each_api_takes_many_conversations_of_all_of_them(messages: list[Msg]) -> None:
    check_conversation(messages)
