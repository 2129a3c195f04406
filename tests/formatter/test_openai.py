"""A conversation in the shape that OpenAI's API accepts, with nothing lost silently."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.formatter import format_anthropic, format_gemini, format_openai, format_openai_responses
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    Msg,
    ProviderBlock,
    SystemMsg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
    URLSource,
    UserMsg,
)

PNG = Base64Source("aGk=", "image/png")
ENCODED = base64.b64encode("Grüße".encode()).decode()


def call(id: str = "c1", input: str = "{}", name: str = "add") -> ToolCallBlock:
    return ToolCallBlock(id, name, input)


def result(id: str = "c1", output: Any = "3") -> ToolResultBlock:
    return ToolResultBlock(id, "add", output)


def assistant_messages(*blocks: ContentBlock) -> list[dict[str, Any]]:
    return format_openai([AssistantMsg("a", list(blocks))])


def user_content(*blocks: ContentBlock, name: str = "user") -> Any:
    (message,) = format_openai([UserMsg(name, list(blocks))])
    return message["content"]


def shape(messages: list[dict[str, Any]]) -> str:
    """Say who speaks, and with how many calls: "user assistant(2) tool:c1 tool:c2"."""
    words = []
    for each in messages:
        calls = f"({len(each['tool_calls'])})" if "tool_calls" in each else ""
        words.append(each["role"] + calls + (f":{each['tool_call_id']}" if "tool_call_id" in each else ""))
    return " ".join(words)


def test_each_speaker_has_a_role() -> None:
    assert format_openai([SystemMsg("system", "Be brief."), UserMsg("user", "Hi"), AssistantMsg("a", "Hello")]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]


def test_rounds_of_a_reply_become_messages_of_their_own() -> None:
    reply = assistant_messages(
        ThinkingBlock("hm"),
        TextBlock("I add."),
        call("c1", '{"a": 1}'),
        call("c2"),
        result("c2", "22"),
        result("c1", "11"),
        HintBlock("Hurry."),
        call("c3"),
        result("c3"),
        TextBlock("Done."),
    )

    assert shape(reply) == "assistant(2) tool:c1 tool:c2 user assistant(1) tool:c3 assistant"
    assert reply[0]["content"] == "I add."
    assert reply[0]["tool_calls"][0] == {
        "id": "c1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 1}'},
    }
    assert [each["content"] for each in reply[1:4]] == ["11", "22", "Hurry."]
    assert reply[4]["content"] is None


def test_a_call_without_a_result_gets_a_substitute() -> None:
    messages = assistant_messages(call("c1"), call("c2"), result("c2"))

    assert shape(messages) == "assistant(2) tool:c1 tool:c2"
    assert "no result" in messages[1]["content"]


def test_a_result_may_be_in_another_message_than_its_call() -> None:
    messages = format_openai([AssistantMsg("a", [call()]), UserMsg("tools", [result(output="7")])])

    assert shape(messages) == "assistant(1) tool:c1"
    assert messages[1]["content"] == "7"


def test_a_result_without_its_call_is_a_note() -> None:
    messages = assistant_messages(result("gone", "42"), TextBlock("So."))

    assert shape(messages) == "user assistant"
    assert "42" in messages[0]["content"]


def test_a_user_may_have_a_result_whose_call_is_gone() -> None:
    assert "42" in str(user_content(TextBlock("See:"), result("gone", "42")))


def test_an_id_that_is_used_again_belongs_to_the_latest_call() -> None:
    messages = assistant_messages(call("c"), result("c", "one"), call("c"), result("c", "two"))

    assert [each["content"] for each in messages if each["role"] == "tool"] == ["one", "two"]


def test_images_of_a_result_follow_in_a_message_of_the_user() -> None:
    output = [TextBlock("a chart"), DataBlock(PNG)]
    messages = assistant_messages(call("c1"), call("c2"), result("c1", output), result("c2"))

    assert shape(messages) == "assistant(2) tool:c1 tool:c2 user"
    assert messages[1]["content"].startswith("a chart\n(image/png:")
    assert messages[3]["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


@pytest.mark.parametrize("output", ["", [], [TextBlock("")]])
def test_a_result_is_never_empty(output: Any) -> None:
    assert assistant_messages(call(), result(output=output))[1]["content"] == "(no output)"


@pytest.mark.parametrize("output", ["", []])
@pytest.mark.parametrize("state", ["interrupted", "denied", "unknown", "timeout", "error"])
def test_an_empty_failed_result_does_not_pass_for_a_success(state: str, output: Any) -> None:
    failed = ToolResultBlock("c1", "add", output, ToolResultState(state))

    assert assistant_messages(call(), failed)[1]["content"] == f"({state})"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        (" ", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": ', {"invalid_arguments": '{"a": '}),
        ("[1]", {"invalid_arguments": "[1]"}),
        ('{"a": NaN}', {"invalid_arguments": '{"a": NaN}'}),
        (r'{"a": "\ud83d"}', {"invalid_arguments": r'{"a": "\ud83d"}'}),
    ],
)
def test_arguments_are_always_a_json_object(text: str, wanted: Any) -> None:
    (function,) = [each["function"] for each in assistant_messages(call(input=text))[0]["tool_calls"]]

    assert json.loads(function["arguments"]) == wanted


def test_ids_and_names_fit_the_limits_of_the_api() -> None:
    message, answer = assistant_messages(call("x" * 100, name="get weather!"), result("x" * 100))

    assert message["tool_calls"][0]["id"] == answer["tool_call_id"]
    assert len(answer["tool_call_id"]) <= 40
    assert message["tool_calls"][0]["function"]["name"] == "get_weather_"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("user", None), ("Anna Müller", "Anna_M_ller"), ("x" * 99, "x" * 64), ("小明", None), ("bob-1_b", "bob-1_b")],
)
def test_a_users_name_is_sent_as_the_api_takes_it(name: str, wanted: str | None) -> None:
    assert format_openai([UserMsg(name, "Hi")])[0].get("name") == wanted


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (DataBlock(PNG), {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}),
        (
            DataBlock(URLSource("https://x.invalid/a.png", "image/png")),
            {"type": "image_url", "image_url": {"url": "https://x.invalid/a.png"}},
        ),
        (
            DataBlock(Base64Source("aGk=", "audio/wav")),
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
        ),
        (
            DataBlock(URLSource("data:audio/mpeg;base64,aGk=", "audio/mpeg")),
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
        ),
        (
            DataBlock(Base64Source("aGk=", "application/pdf"), "a.pdf"),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}},
        ),
    ],
)
def test_media_is_sent_as_the_api_takes_it(block: DataBlock, part: dict[str, Any]) -> None:
    assert user_content(TextBlock("Look:"), block) == [{"type": "text", "text": "Look:"}, part]


def test_a_drawing_is_a_note_for_every_api() -> None:
    for source in (Base64Source("aGk=", "image/svg+xml"), URLSource("https://x.invalid/a.svg", "image/svg+xml")):
        messages = [UserMsg("user", [DataBlock(source)])]
        for write in (format_openai, format_openai_responses, format_gemini, format_anthropic):
            request = str(write(messages))
            assert "(image/svg+xml" in request or "[image/svg+xml file" in request
            assert "aGk=" not in request


def test_a_text_file_is_read_out() -> None:
    assert user_content(DataBlock(Base64Source(ENCODED, "text/plain"), "a.txt")) == "a.txt:\nGrüße"


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (DataBlock(Base64Source("aGk=", "video/mp4"), "a.mp4"), "video/mp4 'a.mp4', of a kind"),
        (
            DataBlock(URLSource("https://x.invalid/a.pdf", "application/pdf")),
            "application/pdf at https://x.invalid/a.pdf",
        ),
        (DataBlock(URLSource("file:///a.png", "image/png")), "image/png at file:///a.png"),
        (DataBlock(Base64Source("/w==", "text/plain")), "not readable text"),
    ],
)
def test_what_the_api_does_not_take_leaves_a_note(block: DataBlock, words: str) -> None:
    assert words in user_content(block)


def test_an_image_that_the_assistant_made_leaves_a_note() -> None:
    assert "image/png" in assistant_messages(DataBlock(PNG))[0]["content"]


def test_thinking_goes_back_only_since_the_users_last_message() -> None:
    old = AssistantMsg("a", [ThinkingBlock("old"), TextBlock("Hello")])
    new = AssistantMsg("a", [ThinkingBlock("new"), call(), result(), ThinkingBlock("newer"), call("c2"), result("c2")])
    hint = UserMsg("runtime", [HintBlock("Answer now.")])
    messages = [UserMsg("user", "Hi"), old, UserMsg("user", "Add"), new, hint]

    sent = [each.get("reasoning_content") for each in format_openai(messages, reasoning=True)]
    assert sent == [None, None, None, "new", None, "newer", None, None]
    assert not any("reasoning_content" in each for each in format_openai(messages))


def test_results_in_the_users_name_are_not_the_users_message() -> None:
    work = AssistantMsg("a", [ThinkingBlock("new"), call()])
    messages = [UserMsg("user", "Add"), work, Msg("user", [result()], "user")]
    sent = [each.get("reasoning_content") for each in format_openai(messages, reasoning=True)]
    assert sent == [None, "new", None]


def test_a_round_without_thinking_sends_empty_reasoning() -> None:
    work = AssistantMsg("a", [call(), result(), ThinkingBlock("hm"), call("c2"), result("c2")])
    rounds = format_openai([UserMsg("user", "Add"), AssistantMsg("a", "Sure"), work], reasoning=True)

    assert [each.get("reasoning_content") for each in rounds if each["role"] == "assistant"] == ["", "", "hm"]


def test_messages_without_anything_to_say_are_left_out() -> None:
    empty = [
        SystemMsg("system", ""),
        UserMsg("user", []),
        AssistantMsg("a", []),
        AssistantMsg("a", [ThinkingBlock("hm")]),
    ]

    assert format_openai([*empty, UserMsg("user", "Hi")]) == [{"role": "user", "content": "Hi"}]
    assert format_openai(empty) == [{"role": "user", "content": "(The conversation starts here.)"}]


blocks = st.one_of(
    st.builds(TextBlock, st.text(max_size=3)),
    st.builds(ThinkingBlock, st.text(max_size=3)),
    st.builds(HintBlock, st.text(max_size=3)),
    st.just(DataBlock(PNG)),
    st.builds(call, st.sampled_from(["c1", "c2"])),
    st.builds(result, st.sampled_from(["c1", "c2"]), st.text(max_size=3) | st.just([DataBlock(PNG)])),
)
messages_of_any_kind = st.lists(
    st.builds(Msg, st.just("x"), st.lists(blocks, max_size=6), st.sampled_from(["user", "assistant"])), max_size=4
)


@given(messages_of_any_kind)
def test_each_call_is_followed_by_its_result_and_no_other(messages: list[Msg]) -> None:
    before = [msg.to_json() for msg in messages]
    formatted = format_openai(messages)

    due: list[str] = []
    for each in formatted:
        if each["role"] == "tool":
            assert due.pop(0) == each["tool_call_id"]
            continue
        assert not due
        due = [call["id"] for call in each.get("tool_calls", [])]
        assert each["content"] or due or each["role"] == "user"
    assert not due
    assert [msg.to_json() for msg in messages] == before


def test_what_another_provider_did_stays_out():
    did = ProviderBlock("anthropic", '{"type": "server_tool_use"}')
    assert format_openai([UserMsg("user", [did, TextBlock("Hi")]), AssistantMsg("a", [TextBlock("Tea"), did])]) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Tea"},
    ]
