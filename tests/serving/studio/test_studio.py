"""The studio in a browser: each feature, what may go wrong around it, and what must not come through."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, Field

from agentrt import Msg, UserAgent
from agentrt._runtime.chain import layer_record
from agentrt.evaluation import Case
from agentrt.serving import BearerTokens, RemoteUserInput, create_app
from tests.serving.studio.conftest import HOSTILE, Clock, make_app, make_recorded_app
from tests.serving.studio.reports import make_agent, make_report

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


def test_reply_is_interrupted_and_another_one_fails(play: Play):
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


def test_run_shows_question_answer_and_steps(play: Play):
    play("run", make_recorded_app())


def test_layer_that_removed_text_stands_out_with_its_diff(play: Play):
    play("layers", make_recorded_app(playground=["Shorten"]))


def test_closed_playground_offers_no_fork_and_no_replay(play: Play):
    play("closed_playground", make_recorded_app())


def test_fork_without_the_layer_is_compared_with_its_run(play: Play):
    play("fork", make_recorded_app(playground=["Shorten"]))


def test_fork_asks_before_it_pays_again(play: Play):
    play("fork_that_asks", make_recorded_app(playground=["Shorten"]))


def test_replay_names_the_layer_of_the_first_difference(play: Play):
    play("replay", make_recorded_app(playground=["Shorten"]))


def test_sub_agents_stay_in_the_chat_and_in_the_time_line(play: Play):
    play("subagents", make_recorded_app())


def test_run_grows_and_a_reader_that_is_cut_reads_on(play: Play):
    play("growing", make_recorded_app())


def test_run_of_five_thousand_rows_keeps_position_and_focus(play: Play):
    play("many", make_recorded_app())


def test_hostile_names_and_texts_of_a_run_are_texts(play: Play):
    play("hostile_run", make_recorded_app())


def test_markdown_becomes_no_link_image_or_html(play: Play):
    play("markdown", make_app())


def test_questions_of_all_sessions_are_in_the_inbox(play: Play):
    play("inbox", make_recorded_app())


def test_background_calls_are_seen_answered_and_stopped(play: Play):
    play("background", make_recorded_app())


def test_runs_of_another_owner_are_not_there(play: Play):
    play(
        "owners",
        make_recorded_app(auth=BearerTokens({"a-long-good-token": "ann", "another-good-token": "bob"}), runs=True),
    )


def test_keyboard_alone_leads_through_a_run(play: Play):
    play("run_with_keys", make_recorded_app(playground=True))


def test_narrow_and_dark_screens_show_a_run(play: Play):
    play("phone_and_dark", make_recorded_app())


def test_report_shows_the_worth_of_layers_and_leads_to_runs(play: Play, tmp_path: Path):
    async def save_reports() -> None:
        (await make_report(agent, ablate=True)).save(tmp_path / "new.json")
        (await make_report(make_agent(greeting="Goodbye"))).save(tmp_path / "old.json")

    agent = make_agent()
    anyio.run(save_reports)
    os.utime(tmp_path / "old.json", (0, 0))
    play("evaluate", create_app(agent, reports=tmp_path))


def test_hostile_names_and_answers_of_a_report_are_texts(play: Play, tmp_path: Path):
    async def save_report() -> None:
        cases = [Case("Hi", name=HOSTILE, labels={"kind": HOSTILE})]
        report = await make_report(make_agent(other=HOSTILE), HOSTILE, cases, ablate=True)
        report.save(tmp_path / "<img src=x onerror='window.harmed = 1'>.json")

    anyio.run(save_report)
    play("hostile_report", create_app(make_agent(), reports=tmp_path))


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
