"""The studio in a browser: each feature, what may go wrong around it, and what must not come through."""

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, Field

from agentrt import Msg, UserAgent
from agentrt._runtime.chain import layer_record
from agentrt.serving import BearerTokens, RemoteUserInput
from tests.serving.studio.conftest import Clock, make_app

pytestmark = pytest.mark.slow

Play = Callable[..., Any]


def test_reply_with_a_tool_is_approved_seen_forked_and_exported(play: Play):
    play("chat", make_app())


def test_arguments_are_edited_where_that_is_allowed(play: Play):
    play("edit", make_app())


def test_times_of_layers_and_steps_lead_to_messages_and_back(play: Play, monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    monkeypatch.setattr(layer_record, "perf_counter_ns", clock)
    play("times", make_app(clock))


def test_agents_and_tools_inside_ask_and_wait(play: Play):
    play("waits", make_app())


def test_reply_is_interrupted(play: Play):
    play("interrupt", make_app())


def test_page_that_is_loaded_again_continues_the_reply(play: Play):
    play("reload", make_app())


def test_reply_continues_after_the_network_was_away(play: Play):
    play("network", make_app())


def test_second_page_follows_the_reply_of_the_first(play: Play):
    play("two_pages", make_app())


def test_hostile_texts_are_texts(play: Play):
    play("hostile", make_app())


def test_five_thousand_events_lay_the_page_out_a_few_times(play: Play):
    # Once per frame, and not per event.
    assert 0 < play("burst", make_app())["layouts"] < 500


def test_keyboard_alone_and_a_narrow_screen_are_enough(play: Play):
    play("keyboard", make_app())


def test_token_is_asked_for_and_left_out_of_addresses(play: Play):
    play("token", make_app(auth=BearerTokens({"a-long-good-token": "ann"})))


class Trip(BaseModel):
    city: str = Field(min_length=2, description="where to")
    days: int = 3
    card: str = Field(default="", json_schema_extra={"format": "password"})
    by_train: bool


def test_form_of_a_user_agent_is_filled_in(play: Play):
    app = make_app()
    user = UserAgent("Ann")
    user.override_instance_input_method(RemoteUserInput(app))
    user.disable_console_output()
    answers: list[Msg] = []
    thread = threading.Thread(target=lambda: answers.append(anyio.run(user.reply, None, Trip)))
    thread.start()
    play("form", app)
    thread.join(300)
    assert answers[0].get_text_content() == "Let us go"
    assert answers[0].metadata == {"city": "Rome", "days": 5, "card": "4711", "by_train": True}
