"""Updates of a task from a remote agent, checked, as blocks of an answer.

state of the task          in agentrt
SUBMITTED, WORKING         the reply continues; the text of a status is thinking
INPUT_REQUIRED             a call of the tool `answer`, which parks the reply
COMPLETED                  the answer
FAILED, REJECTED,          an error
CANCELED, AUTH_REQUIRED
"""

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from json import dumps
from typing import Any

from agentrt.errors import Malformed
from agentrt.message import Base64Source, DataBlock, TextBlock, ThinkingBlock, URLSource

_RUNNING_STATES = ("SUBMITTED", "WORKING")
OVER_STATES = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
_ASKING_STATES = ("INPUT_REQUIRED", "AUTH_REQUIRED")
_NEW_PARAGRAPH = "\n\n"
TaskPiece = TextBlock | ThinkingBlock | DataBlock
"""The blocks that a task adds to an answer."""


class TaskProgress:
    """Reads the results of one task, in their order; `state` is the last state, without its prefix.

    `known` is what was passed on in earlier steps, as `passed_on` returns it. Raises `Malformed` for a result that is
    out of order, or of another task.
    """

    def __init__(self, source: str, task_id: str, context_id: str, known: Mapping[str, Sequence[int]]) -> None:
        self.task_id = task_id
        self.context_id = context_id
        self.state = ""
        self.words = ""  # the text of the last status
        self.data: list[Any] = []  # the data in it
        self.has_answer = False  # whether anything but thinking was passed on in this step
        self._source = source
        # By artifact: the characters that came in earlier steps, the text that came in this one, and all files.
        self._skipped = {name: counts[0] for name, counts in known.items()}
        self._texts: dict[str, str] = {}
        self._files = {name: counts[1] for name, counts in known.items()}

    @property
    def is_settled(self) -> bool:
        """Whether the task has ended, or waits for a message."""
        return self.state in OVER_STATES or self.state in _ASKING_STATES

    def passed_on(self) -> dict[str, list[int]]:
        """Return how many characters and files of each artifact were passed on."""
        names = self._texts.keys() | self._skipped.keys()
        return {
            name: [self._skipped.get(name, 0) + len(self._texts.get(name, "")), self._files.get(name, 0)]
            for name in sorted(names)
        }

    def read(self, result: dict[str, Any]) -> list[TaskPiece]:
        """Read one result, and return what it adds to the answer."""
        # The protocol grows, so unknown fields are ignored.
        kind, value = next(((key, value) for key, value in result.items() if key in _READ_METHODS), ("", None))
        if not isinstance(value, dict):
            raise self.wrong("neither a task, nor a message, nor an update")
        if self.state in OVER_STATES:
            raise self.wrong(f"a {kind} after the end of the task, which was {self.state}")
        pieces = list(_READ_METHODS[kind](self, value))
        for piece in pieces:
            self.has_answer |= isinstance(piece, DataBlock) or (
                isinstance(piece, TextBlock) and bool(piece.text.strip())
            )
        return pieces

    def wrong(self, what: str) -> Malformed:
        return Malformed(f"{self._source} sent {what}")

    def read_task(self, task: dict[str, Any]) -> Iterator[TaskPiece]:
        """Read a task as a whole."""
        self._note_ids(task.get("id"), task.get("contextId"))
        artifacts = task.get("artifacts") or []
        if not isinstance(artifacts, list):
            raise self.wrong("artifacts that are not a list")
        for artifact in artifacts:
            yield from self._read_artifact(artifact, is_more=False)
        yield from self._read_status(task.get("status"))

    def read_message(self, message: dict[str, Any]) -> Iterator[TaskPiece]:
        """Read a message, which answers without a task."""
        if self.task_id:
            raise self.wrong("a message in the middle of a task")
        self.context_id = str(message.get("contextId") or self.context_id)
        yield from self._read_artifact({"artifactId": "message", "parts": message.get("parts")}, is_more=False)
        self.state = "COMPLETED"

    def read_status_update(self, update: dict[str, Any]) -> Iterator[TaskPiece]:
        self._note_ids(update.get("taskId"), update.get("contextId"))
        yield from self._read_status(update.get("status"))

    def read_artifact_update(self, update: dict[str, Any]) -> Iterator[TaskPiece]:
        self._note_ids(update.get("taskId"), update.get("contextId"))
        yield from self._read_artifact(update.get("artifact"), is_more=update.get("append") is True)

    def _note_ids(self, task_id: object, context_id: object) -> None:
        if not isinstance(task_id, str) or not task_id or self.task_id not in ("", task_id):
            raise self.wrong(f"something of another task, {task_id!r:.100}")
        if context_id and self.context_id not in ("", context_id):
            raise self.wrong(f"something of another context, {context_id!r:.100}")
        self.task_id, self.context_id = task_id, str(context_id or self.context_id)

    def _read_status(self, status: object) -> Iterator[TaskPiece]:
        values = status if isinstance(status, dict) else {}
        state = str(values.get("state")).removeprefix("TASK_STATE_")
        # An unknown state cannot be waited for, and must not pass for a known one.
        if state not in (*_RUNNING_STATES, *OVER_STATES, *_ASKING_STATES):
            raise self.wrong(f"the state {state!r:.100}, which no task has")
        if state == "SUBMITTED" and self.state not in ("", "SUBMITTED"):
            raise self.wrong(f"the state SUBMITTED after {self.state}")
        message = values.get("message")
        parts = self._parts(message.get("parts")) if isinstance(message, dict) else []
        words = "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str)).strip()
        is_new, self.words = words != self.words or state != self.state, words
        self.data = [part["data"] for part in parts if "data" in part]
        self.state = state
        if words and is_new and state in _RUNNING_STATES:
            yield ThinkingBlock(f"{words}\n")
        # Many agents put their whole answer into the last status.
        elif words and state == "COMPLETED" and words not in self._texts.values():
            yield from self._read_artifact({"artifactId": "status", "parts": parts}, is_more=False)

    def _read_artifact(self, artifact: object, *, is_more: bool) -> Iterator[TaskPiece]:
        values = artifact if isinstance(artifact, dict) else {}
        name, parts = str(values.get("artifactId")), self._parts(values.get("parts"))
        text = "".join(map(self._text_of, parts))
        skipped = self._skipped.get(name, 0)
        known = self._texts.get(name, "" if skipped else None)
        # The task still holds the text before a question, and so does the reply.
        text = text if is_more else text[skipped:]
        begin = _NEW_PARAGRAPH if any(self._texts.values()) else ""
        if is_more and known is not None:
            new, self._texts[name] = text, known + text
        elif known is not None and text.startswith(known):
            new, self._texts[name] = text[len(known) :], text
        else:  # delivered text cannot be withdrawn, so its replacement follows in a new paragraph
            new, self._texts[name] = f"{begin}{text}" if text else "", text
        if new:
            yield TextBlock(new)
        files = [part for part in parts if isinstance(part.get("raw"), str) or isinstance(part.get("url"), str)]
        # Files have no text to compare, so they are counted.
        first = 0 if is_more else self._files.get(name, 0)
        self._files[name] = len(files) + (self._files.get(name, 0) if is_more else 0)
        for part in files[first:]:
            media_type = str(part.get("mediaType") or "application/octet-stream")
            yield DataBlock(
                self._source_of(part, media_type), name=str(part["filename"]) if part.get("filename") else None
            )

    def _source_of(self, part: dict[str, Any], media_type: str) -> Base64Source | URLSource:
        if not isinstance(part.get("raw"), str):
            return URLSource(part["url"], media_type)
        try:
            b64decode(part["raw"], validate=True)
        except ValueError:
            raise self.wrong("a file that is not base64") from None
        return Base64Source(part["raw"], media_type)

    def _text_of(self, part: dict[str, Any]) -> str:
        if "data" in part:
            return dumps(part["data"], ensure_ascii=False)
        return part["text"] if isinstance(part.get("text"), str) else ""

    def _parts(self, parts: object) -> list[dict[str, Any]]:
        if parts is None:
            return []
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise self.wrong("parts that are not a list of objects")
        return parts


_READ_METHODS = {
    "task": TaskProgress.read_task,
    "message": TaskProgress.read_message,
    "statusUpdate": TaskProgress.read_status_update,
    "artifactUpdate": TaskProgress.read_artifact_update,
}
