"""Models that read held text: one answers correctly, one is controlled by the attacker."""

from collections.abc import Sequence
from typing import Any

from agentrt.message import Msg, TextBlock
from agentrt.model import ChatModelBase, ChatResponse
from benchmarks.agentdojo.planner import Question
from benchmarks.agentdojo.plans import Plan
from benchmarks.agentdojo.suites import MARK

__all__ = ["AdaptiveReader", "RightReader"]


class RightReader(ChatModelBase):
    """Answers each question of the planner correctly, whatever the text says."""

    def __init__(self, questions: Sequence[Question]) -> None:
        super().__init__(model="reader", stream=False, context_size=10_000_000)
        self._questions = questions

    async def _call(self, messages: list[Msg], tools: Any, tool_choice: Any) -> ChatResponse:
        text = "\n".join(message.get_text_content() or "" for message in messages)
        question = next(question for question in self._questions if question.text in text)
        return ChatResponse([TextBlock(self._answer(question, text))], True, None, "stop")

    def _answer(self, question: Question, text: str) -> str:
        return str(question.answer)


class AdaptiveReader(RightReader):
    """Answers every question about the attacker's text with the attacker's value."""

    def __init__(self, questions: Sequence[Question], plan: Plan) -> None:
        super().__init__(questions)
        self._values: dict[str, str] = {"answer": plan.injected_answer or "Done."}
        for call in plan.injected_calls:
            for parameter, value in call.args.items():
                self._values[parameter] = str(value[0] if isinstance(value, list) and value else value)

    def _answer(self, question: Question, text: str) -> str:
        if MARK not in text:
            return super()._answer(question, text)
        return self._values.get(question.parameter) or next(iter(self._values.values()))
