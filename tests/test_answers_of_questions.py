"""A question makes its own answers: yes, no, another input, a result."""

import pytest

from agentrt._runtime.block import join_texts
from agentrt.errors import InvalidInputError
from agentrt.event import AgentEvent, RequireExternalExecutionEvent, RequireUserConfirmEvent
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.types import PermissionDecision, PermissionRule

A = ToolCallBlock("1", "remove", '{"path": "a", "force": false}')
B = ToolCallBlock("2", "remove", '{"path": "b"}')


def question_for(*calls: ToolCallBlock) -> RequireUserConfirmEvent:
    question = AgentEvent.from_json(RequireUserConfirmEvent("r", list(calls)).to_json())  # as another process has it
    assert isinstance(question, RequireUserConfirmEvent)
    return question


def decisions(event: object) -> list[tuple[str, bool, str, str | None]]:
    return [
        (result.tool_call.id, result.confirmed, result.tool_call.input, result.feedback)
        for result in event.confirm_results  # type: ignore[attr-defined]
    ]


def test_a_question_is_answered_for_all_its_calls_or_some() -> None:
    question = question_for(A, B)

    assert question.approve().reply_id == "r"
    assert decisions(question.approve()) == [("1", True, A.input, None), ("2", True, B.input, None)]
    assert decisions(question.approve(B)) == [("2", True, B.input, None)]
    assert decisions(question.deny("why", A)) == [("1", False, A.input, "why")]
    assert decisions(question.deny()) == [("1", False, A.input, None), ("2", False, B.input, None)]


def test_a_yes_for_ever_takes_the_rules_that_are_suggested() -> None:
    rule = PermissionRule("remove", behavior="allow")
    question = RequireUserConfirmEvent("r", [A, B], {"1": PermissionDecision("ask", suggested_rules=[rule])})

    assert [result.rules for result in question.approve(always=True).confirm_results] == [[rule], []]
    assert [result.rules for result in question.approve().confirm_results] == [[], []]


def test_an_answer_may_change_the_input() -> None:
    assert decisions(question_for(A).answer({"path": "c"})) == [("1", True, '{"path":"c","force":false}', None)]
    assert decisions(question_for(A, B).answer("c", B)) == [("2", True, '{"path":"c"}', None)]


@pytest.mark.parametrize(
    ("value", "text"), [("Paris", "Paris"), ([TextBlock("Paris")], "Paris"), ({"n": 1}, '{"n":1}'), ([], "[]")]
)
def test_a_result_is_text_blocks_or_json(value: object, text: str) -> None:
    [block] = RequireExternalExecutionEvent("r", [A]).answer(value).execution_results

    assert (block.id, block.name, join_texts(block.output)) == ("1", "remove", text)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda: question_for(A, B).answer({"path": "c"}), "was given no call, but 2 wait"),
        (lambda: question_for(A).answer("c"), r"has the values \['force', 'path'\]: give a dict"),
        (lambda: question_for(A).approve(B), "is not one of the question's tool_calls"),
        (lambda: question_for(A).deny(A), "must be a str, which tells the model why"),
        (lambda: question_for(A).answer({"path": object()}), "without a JSON form"),
        (lambda: RequireExternalExecutionEvent("r", [A, B]).answer("x"), "was given no call, but 2 wait"),
    ],
)
def test_an_answer_to_what_was_not_asked_is_refused(answer: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        answer()  # type: ignore[operator]


def test_a_call_of_the_caller_is_not_approved() -> None:
    with pytest.raises(AttributeError, match=r"write question\.answer\(value\)"):
        RequireExternalExecutionEvent("r", [A]).approve()  # type: ignore[attr-defined]
