"""A model that follows a script: it makes the calls that solve its task, and those of every injection that it reads."""

import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.message import Msg, TextBlock, ToolCallBlock, ToolResultBlock
from agentrt.model import ChatModelBase, ChatResponse
from benchmarks.agentdojo.plans import Plan
from benchmarks.agentdojo.suites import MARK

__all__ = ["Planner", "Question"]

_HANDLE = re.compile(r"<(?:untrusted|private)_\d+_[0-9a-f]{8}>")
_ESCAPE = re.compile(r"\\[nrt\"\\/]")
_WORD = re.compile(r"\d+\.\d+|\w+")
# Placeholders in AgentDojo's ground truth for words of the text that was read.
_PLACEHOLDERS = ("...", "<summary>", "<feedback>")
_MAX_FREE_LENGTH = 2  # the planner may write words up to this length without having read them


@dataclass(frozen=True)
class Question:
    """A question about text that the planner may not read: it asks for the value of a parameter."""

    text: str
    parameter: str
    answer: object

    def arguments(self, handles: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of a `read_untrusted` call about the handles."""
        is_number = isinstance(self.answer, int | float)
        return {"handles": handles, "question": self.text, "answer_type": "number" if is_number else "text"}


class Planner(ChatModelBase):
    """Follows a plan, and first of all the plan of any injection that it reads.

    It writes only words that it was shown. For others it asks `read_untrusted` about all held text, and passes the
    handle of the answer on. `questions` are those that it asked, for the reader.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(model="planner", stream=False, context_size=10_000_000)
        self.questions: list[Question] = []
        self._plan = plan
        calls = [*((call.function, call.args) for call in plan.calls), ("", {"answer": plan.answer})]
        self._todo = deque(_Step(number, *call) for number, call in enumerate(calls, 1))
        self._words: set[str] = set()
        self._handles: dict[str, None] = {}
        self._read: dict[str, str] = {}  # the handle of each answer, by question
        self._results: set[str] = set()  # ids of calls whose results were read
        self._asked: dict[str, str] = {}  # questions, by the id of the asking call
        self._calls_made = 0
        self._is_misled = False
        self._has_text = not plan.follows

    async def _call(self, messages: list[Msg], tools: Any, tool_choice: Any) -> ChatResponse:
        self._take_in(messages)
        can_read = any(tool["function"]["name"] == "read_untrusted" for tool in tools or ())
        if can_read and not self._has_text and self._handles:
            self._has_text = True
            return self._make_calls([("show_untrusted", {"handle": handle}) for handle in self._handles])
        step = self._todo[0]
        unknown = [] if step.is_injected or not (can_read and self._handles) else self._unknown(step)
        if unknown:
            return self._ask(unknown)
        self._todo.popleft()
        arguments = step.fill(self._read)
        if not step.function:
            words = [str(arguments["answer"]), self._plan.injected_answer if self._is_misled else ""]
            return ChatResponse([TextBlock(" ".join(filter(None, words)) or "Done.")], True, None, "stop")
        return self._make_calls([(step.function, arguments)])

    def _make_calls(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> ChatResponse:
        blocks: list[Any] = []
        for name, arguments in calls:
            self._calls_made += 1
            blocks.append(ToolCallBlock(f"call-{self._calls_made}", name, json.dumps(arguments)))
        return ChatResponse(blocks, True, None, "tool_calls")

    def _ask(self, unknown: list[Question]) -> ChatResponse:
        self.questions += unknown
        response = self._make_calls(
            [("read_untrusted", question.arguments(list(self._handles))) for question in unknown]
        )
        for block, question in zip(response.content, unknown, strict=True):
            assert isinstance(block, ToolCallBlock)
            self._asked[block.id] = question.text
        return response

    def _unknown(self, step: "_Step") -> list[Question]:
        return [
            question
            for question in step.questions()
            if question.text not in self._read and not self._can_write(question.answer)
        ]

    def _can_write(self, value: object) -> bool:
        if isinstance(value, bool) or value is None:
            return True
        return value not in _PLACEHOLDERS and _words(str(value)) <= self._words

    def _take_in(self, messages: list[Msg]) -> None:
        """Read new messages: their words, handles, answers and injections."""
        for message in messages:
            if message.role == "assistant":
                for result in message.get_content_blocks("tool_result"):
                    if result.id not in self._results:
                        self._results.add(result.id)
                        self._take_result(result)
            else:
                self._take_text(message.get_text_content() or "")

    def _take_result(self, result: ToolResultBlock) -> None:
        question = self._asked.get(result.id)
        handles = _HANDLE.findall(result.text)
        if question is None:
            self._handles.update(dict.fromkeys(handles))
        elif handles:
            self._read[question] = handles[0]
        else:  # the answer was not held back
            self._read[question] = result.text
        self._take_text(result.text)

    def _take_text(self, text: str) -> None:
        if not self._is_misled and MARK in text:
            self._is_misled = True
            steps = [
                _Step(0, call.function, call.args, is_injected=True)  # the attacker supplies every word
                for call in self._plan.injected_calls
            ]
            self._todo.extendleft(reversed(steps))
        self._words |= _words(_ESCAPE.sub(" ", _HANDLE.sub(" ", text)))


@dataclass(frozen=True)
class _Step:
    """A call, or the answer if it has no function."""

    number: int
    function: str
    arguments: dict[str, Any]
    is_injected: bool = False

    def questions(self) -> Iterator[Question]:
        for parameter, value in self.arguments.items():
            for path, leaf in _leaves(parameter, value):
                yield Question(self._question(path), parameter, leaf)

    def fill(self, handles: dict[str, str]) -> dict[str, Any]:
        """Return the arguments, with handles for the values that were asked for."""
        return {parameter: self._fill(parameter, value, handles) for parameter, value in self.arguments.items()}

    def _fill(self, path: str, value: Any, handles: dict[str, str]) -> Any:
        if isinstance(value, list):
            return [self._fill(f"{path}[{index}]", item, handles) for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: self._fill(f"{path}.{key}", item, handles) for key, item in value.items()}
        return handles.get(self._question(path), value)

    def _question(self, path: str) -> str:
        return f"Step {self.number}, {self.function or 'the answer'}: which {path}?"


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(f"{path}[{index}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}", item)
    else:
        yield path, value


def _words(text: str) -> set[str]:
    return {_number_or_word(word) for word in _WORD.findall(text.lower()) if len(word) > _MAX_FREE_LENGTH}


def _number_or_word(word: str) -> str:
    try:
        return repr(float(word))
    except ValueError:
        return word
