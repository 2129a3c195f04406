"""The questions that wait for an answer of the user, and who may see them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from secrets import token_urlsafe
from threading import Lock
from time import monotonic, time_ns
from typing import Any

import anyio

from agentrt._runtime.concurrency.event_loop import CrossThreadEvent
from agentrt._runtime.timestamp import timestamp_text
from agentrt.serving.failure import ApiError
from agentrt.serving.owners.owner import Owners
from agentrt.types import JSONSchema

InputAnswer = dict[str, Any]
"""The user's answer: `text`, and the `values` of a form, as JSON."""

_FORGET_SECONDS = 120.0  # after which nobody asks any more for the answer to a question that came over HTTP


class UserQuestion:
    """One question; `problems` finds what is wrong with the values of its form."""

    def __init__(
        self,
        owner: str | None,
        agent_id: str,
        agent_name: str,
        schema: JSONSchema | None,
        problems: Callable[[dict[str, Any]], list[str]],
        *,
        refused: Sequence[str] = (),
        is_remote: bool = False,
    ) -> None:
        # An id that cannot be guessed: in a server without owners it is all that keeps two askers apart.
        self.id = token_urlsafe(16)
        self.owner = owner
        self.agent_id = agent_id
        self.agent_name = agent_name
        self.schema = schema
        self.problems = problems
        self.refused = list(refused)
        self.is_remote = is_remote
        self.asked_at = time_ns()
        self.seen_at = monotonic()
        self.answer: InputAnswer | None = None
        self.waits: list[CrossThreadEvent] = []
        self.places = ExitStack()  # that it takes of its owner's, until it is withdrawn

    def describe(self) -> dict[str, Any]:
        """Return what a list says of the question."""
        return {
            "input_id": self.id,
            "agent_id": self.agent_id,
            "agent_name": self.agent_name,
            "schema": self.schema,
            "problems": self.refused,
            "asked_at": timestamp_text(self.asked_at),
        }


class InputBoard:
    """The questions of one application; it may be used from several threads and event loops."""

    def __init__(self, owners: Owners) -> None:
        self.owners = owners
        self._questions: dict[str, UserQuestion] = {}
        self._lock = Lock()

    def ask(self, question: UserQuestion) -> None:
        """Put up a question; raises `ApiError` where there are too many."""
        with self._lock:
            self._forget_abandoned()
            if len(self._questions) >= self.owners.limits.connections:
                raise ApiError(
                    503, "too_many_inputs", "too many questions are already open", headers={"Retry-After": "10"}
                )
            question.places.enter_context(self.owners.get(question.owner).place("inputs"))
            self._questions[question.id] = question

    def list_open(self, owner: str | None) -> list[UserQuestion]:
        """Return the questions of the owner that are not answered, oldest first."""
        with self._lock:
            self._forget_abandoned()
            return [
                question for question in self._questions.values() if question.owner == owner and not question.answer
            ]

    def find(self, owner: str | None, input_id: str) -> UserQuestion:
        """Return a question of the owner; raises `ApiError` for an unknown one."""
        with self._lock:
            question = self._questions.get(input_id)
            if question is None or question.owner != owner:
                raise ApiError(404, "no_input", "this question does not exist, or was withdrawn")
            return question

    def give(self, question: UserQuestion, answer: InputAnswer) -> None:
        """Answer a question; raises `ApiError` for one that is answered, or withdrawn."""
        with self._lock:
            if question.id not in self._questions:
                raise ApiError(404, "no_input", "this question does not exist, or was withdrawn")
            if question.answer is not None:
                raise ApiError(409, "answered", "this question has already been answered")
            question.answer = answer
            for wait in question.waits:
                wait.set()

    async def wait(self, question: UserQuestion, seconds: float | None = None) -> InputAnswer | None:
        """Return the answer once it is there, `None` when it has not come in time."""
        wait = CrossThreadEvent()
        with self._lock:
            if question.answer is None:
                question.waits.append(wait)
            else:
                wait.set()
        try:
            with anyio.move_on_after(seconds):
                await wait.wait()
        finally:
            with self._lock:
                question.seen_at = monotonic()
                if wait in question.waits:
                    question.waits.remove(wait)
        return question.answer

    def withdraw(self, question: UserQuestion) -> None:
        """Take a question down, answered or not."""
        with self._lock:
            self._remove(question)

    def _forget_abandoned(self) -> None:
        # Of another process, which may have ended without a word.
        until = monotonic() - _FORGET_SECONDS
        for question in list(self._questions.values()):
            if question.is_remote and not question.waits and question.seen_at < until:
                self._remove(question)

    def _remove(self, question: UserQuestion) -> None:
        self._questions.pop(question.id, None)
        question.places.close()
