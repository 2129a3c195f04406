"""A run as one JSON object, with each message, answer and list of tools once."""

from dataclasses import asdict
from typing import Any

from pydantic_core import from_json, to_json

from agentrt._runtime.timestamp import timestamp_text
from agentrt.errors import RunCorrupt
from agentrt.message import Msg
from agentrt.runs import Replay, Run, RunInfo
from agentrt.runs.contents import dump_json
from agentrt.runs.log import usage_json
from agentrt.serving.owners.sessions import message_json
from agentrt.types import JSONObject

_MAX_VALUE_BYTES = 1_000_000
_MAX_PAGE_BYTES = 16_000_000
_MAX_DIFFERENCES = 1_000
_DELTA_TYPES = frozenset(("TEXT_BLOCK_DELTA", "THINKING_BLOCK_DELTA", "TOOL_CALL_DELTA", "TOOL_RESULT_TEXT_DELTA"))


def describe_run(run: Run | RunInfo) -> dict[str, Any]:
    """Return the facts about a run that a list shows."""
    return {
        "session_id": run.session_id,
        "reply_id": run.reply_id,
        "parent": run.parent,
        "is_task": run.is_task,
        "title": run.title,
        "agent": run.agent,
        "labels": run.labels,
        "status": run.status,
        "begun_at": timestamp_text(run.begun_at),
        "ended_at": None if run.ended_at is None else timestamp_text(run.ended_at),
        "seconds": None if run.ended_at is None else (run.ended_at - run.begun_at) / 1e9,
        "usage": usage_json(run.usage),
        "cost": run.cost,
        "calls": run.calls,
        "tools": run.tools,
        "changed_by": run.changed_by,
        "lines": run.lines if isinstance(run, RunInfo) else len(run.lines),
    }


def browser_json(value: Any) -> bytes:
    """Return the value as JSON that browsers read: they know no infinite numbers."""
    return to_json(value, inf_nan_mode="null")


def dump_run(run: Run) -> bytes:
    """Return a run with those of its sub-agents; raises `RunCorrupt` for one that is damaged."""
    contents = _PageContents()
    try:
        page = _RunPage(run, contents).describe()
        return browser_json({**page, "contents": contents.found})
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        reason = type(error).__name__
    # Outside the `except`, since the error may quote a message.
    raise RunCorrupt(f"the run {run.reply_id!r:.100} of session {run.session_id!r:.100} cannot be read: {reason}")


def describe_replay(replay: Replay) -> dict[str, Any]:
    """Return the differences of a replay, each with its values as JSON."""
    differences = [
        {
            "session_id": difference.run[0],
            "reply_id": difference.run[1],
            "step": None if difference.step is None else asdict(difference.step),
            "where": difference.where,
            "layer": difference.layer,
            "before": _value_of(difference.before),
            "after": _value_of(difference.after),
        }
        for difference in replay.differences[:_MAX_DIFFERENCES]
    ]
    message = None if replay.message is None else message_json(replay.message)
    first = differences[0] if differences else None
    return {"first": first, "differences": differences, "message": message, "finished": replay.finished}


def _value_of(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_value_of, value))
    text = value.to_json() if isinstance(value, Msg) else dump_json(value)
    return {"size": len(text)} if len(text) > _MAX_VALUE_BYTES else from_json(text)


class _PageContents:
    """The values of a page by their references; the size replaces a value too large for the page."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._left = _MAX_PAGE_BYTES

    def add(self, run: Run, reference: str | None) -> str | None:
        """Add what is referred to, and return the reference."""
        if reference is None or reference in self.found or not run.values.has(reference):
            return reference
        text = run.values.text(reference)
        if len(text) > min(_MAX_VALUE_BYTES, self._left):
            self.found[reference] = {"size": len(text)}
            return reference
        self._left -= len(text)
        value = self.found[reference] = from_json(text)
        # A message of several blocks names them.
        for block in value.get("blocks", ()) if isinstance(value, dict) else ():
            self.add(run, block)
        return reference


class _RunPage:
    """One run of a page."""

    def __init__(self, run: Run, contents: _PageContents) -> None:
        self._run = run
        self._contents = contents

    def describe(self) -> dict[str, Any]:
        """Return the run, with those of its sub-agents."""
        run, has_content = self._run, self._run.has_content
        inputs = run.conversation_references[-len(run.inputs) :] if has_content and run.inputs else []
        begin, end = self._lines("begin")[-1:], self._lines("end")[-1:]
        steps = enumerate(self._lines("step"))
        events = (line for line in self._lines("event") if line["event"].get("type") not in _DELTA_TYPES)
        return {
            **describe_run(run),
            "has_content": has_content,
            "inputs": list(map(self._add, inputs)),
            "message": self._add(end[0].get("message")) if end else None,
            "chains": self._add(begin[0]["chains"]) if begin else None,
            "steps": [self._place(line) | {"number": n, "kind": line["step"], "seq": line["seq"]} for n, line in steps],
            "requests": self._requests(),
            "layer_calls": [
                self._place(line)
                | _some_of(line, "call", "parent", "hook", "layer", "place", "tool_call")
                | _some_of(line, "outcome", "decision", "reason")
                | {"own_seconds": line["own_ns"] / 1e9, "total_seconds": line["total_ns"] / 1e9}
                | {"changes": self._changes(line["changes"])}
                for line in self._lines("layer")
            ],
            "events": [self._place(line) | {"event": line["event"]} for line in events],
            "gaps": [self._place(line) | _some_of(line, "reason", "count") for line in self._lines("gap")],
            "children": [_RunPage(child, self._contents).describe() for child in run.children],
            "tasks": list(map(describe_run, run.tasks)),
        }

    def _requests(self) -> list[dict[str, Any]]:
        run, found = self._run, []
        answers = {line["call_id"]: line for line in self._lines("answer")}
        before: list[str] = []
        for line, changes in run.request_lines:
            answer = answers.get(line["call_id"], {})
            listed = run.values.list_of(line["messages"]) if run.values.has(line["messages"]) else []
            # Only new messages, since a conversation grows by one or two for each request.
            pairs = enumerate(zip(before, listed, strict=False))
            keep = next((place for place, (one, other) in pairs if one != other), min(len(before), len(listed)))
            before = listed
            request = self._place(line) | _some_of(line, "call_id", "model", "purpose", "tool_choice", "count")
            request["messages"] = {"keep": keep, "add": list(map(self._add, listed[keep:]))}
            request["tools"] = self._add(line["tools"])
            request["answer"] = self._add(answer.get("answer"))
            request["ended"] = self._place(answer) if answer else None
            request |= {name: answer.get(name) for name in ("usage", "cost", "error", "pieces", "seconds")}
            request["changes"] = self._changes(changes)
            found.append(request)
        return found

    def _changes(self, changes: list[JSONObject]) -> list[JSONObject]:
        for change in changes:
            self._add(change["before"])
            self._add(change["after"])
        return changes

    def _lines(self, kind: str) -> list[JSONObject]:
        return [line for line in self._run.lines if line["kind"] == kind]

    def _place(self, line: JSONObject) -> dict[str, Any]:
        """Return the number of the line, and its time in seconds since the start of the run."""
        return {"line": line["n"], "at": (line["t"] - self._run.begun_at) / 1e9}

    def _add(self, reference: str | None) -> str | None:
        return self._contents.add(self._run, reference)


def _some_of(line: JSONObject, *names: str) -> dict[str, Any]:
    return {name: line.get(name) for name in names}
