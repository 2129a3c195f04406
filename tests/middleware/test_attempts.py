"""What several middlewares read of an answer in pieces."""

from agentrt.message import TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model import ChatResponse
from agentrt_middleware.attempts import StreamedAnswer


def test_pieces_of_a_broken_answer_are_merged_by_kind_and_call():
    answer = StreamedAnswer(with_content=True)
    pieces = [ThinkingBlock("It "), ThinkingBlock("is"), TextBlock("He"), TextBlock("llo"), TextBlock("!")]
    calls = [("1", '{"a"'), ("2", "{"), ("1", ":1}"), ("2", "}")]
    for block in (*pieces, *(ToolCallBlock(call_id, "add", text) for call_id, text in calls), TextBlock("Bye")):
        answer.add(ChatResponse([block], is_last=False))
    whole = answer.response()
    thinking, text, first, second, rest = whole.content
    assert (thinking.thinking, text.text, rest.text) == ("It is", "Hello!", "Bye")
    assert [(call.id, call.input) for call in (first, second)] == [("1", '{"a":1}'), ("2", "{}")]


def test_a_last_response_replaces_the_pieces_before_it():
    answer = StreamedAnswer(with_content=True)
    last = TextBlock("Hello.")
    answer.add(ChatResponse([TextBlock("Hel")], is_last=False))
    answer.add(ChatResponse([last]))
    whole = answer.response()
    assert [block.text for block in whole.content] == ["Hello."]
