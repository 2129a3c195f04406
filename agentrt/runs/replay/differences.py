"""The differences of a run and its replay, each with the layer that caused it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from pydantic_core import from_json

from agentrt.message import Msg, ToolResultState
from agentrt.runs.changes import changes_between
from agentrt.runs.contents import dump_json
from agentrt.runs.fork import call_key
from agentrt.runs.parts import Change, ModelRequest, Step
from agentrt.runs.replay.record import RecordedCall, answered_requests, recorded_calls, without_ids
from agentrt.runs.run import Run
from agentrt.types import JSONObject

_MAX_EXCERPT = 200  # characters
_REPLAYING = "RecordedAnswers"


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of a run and its replay.

    `where` is a place such as "messages[2]", "tools", "arguments", "decision", "result" or "answer"; for a call of a
    model or a tool that only one of the two has it is "extra call" or "call not made". `layer` is the outermost layer
    that behaved differently, `None` if none did, as with another system prompt. `step` is one of the run
    with the ids `run`, which may be that of a sub-agent.
    """

    step: Step | None
    where: str
    layer: str | None
    before: Any
    after: Any
    run: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        step = "before the first step" if self.step is None else f"step {self.step.number} ({self.step.kind})"
        layer = "" if self.layer is None else f" by {self.layer}"
        return f"{step}, {self.where}{layer}: {_excerpt(self.before)} -> {_excerpt(self.after)}"


def request_differences(request: ModelRequest, values: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the places where a request differs from a recorded one: in content, not in ids, times and metadata."""
    yield from changes_between("messages", request.messages, list(values["messages"]))
    offered = from_json(dump_json(values["tools"] or []))
    if (request.tools or []) != offered:
        yield "tools", request.tools, offered
    if request.tool_choice != values["tool_choice"]:
        yield "tool_choice", request.tool_choice, values["tool_choice"]


def differences_of(run: Run, other: Run, *, is_whole: bool) -> list[Difference]:
    """Return the differences in the order of the run; those at its end only if the other run ended by itself."""
    found = sorted(_Comparison(run, other, is_whole).all(), key=lambda pair: pair[0])
    return [difference for _, difference in found]


class _Comparison:
    """The comparison of two runs, whose differences have their times in the first one."""

    def __init__(self, run: Run, other: Run, is_whole: bool) -> None:
        self._run, self._other, self._is_whole = run, other, is_whole
        steps = (line for line in run.lines if line["kind"] == "step")
        self._steps = [(line["n"], step) for line, step in zip(steps, run.steps, strict=True)]
        self._end = run.lines[-1]

    def all(self) -> Iterator[tuple[int, Difference]]:
        yield from self._compare_requests()
        yield from self._compare_calls()
        others = {child.session_id: child for child in self._other.children}
        for child in self._run.children:
            if child.session_id in others:
                yield from _Comparison(child, others[child.session_id], self._is_whole).all()
        # The last message of an interrupted replay is not its answer.
        if self._is_whole:
            for change in changes_between("answer", self._run.message, self._other.message):
                yield self._at(self._end, "answer", self._layer_anywhere(), change.before, change.after)

    def _compare_requests(self) -> Iterator[tuple[int, Difference]]:
        others = [request for _, request in answered_requests(self._other)]
        for pair, second in zip_longest(answered_requests(self._run), others):
            if pair is None:
                yield self._at(self._end, "extra call", self._layer_anywhere(), None, second.messages)
                continue
            line, one = pair
            if second is None:
                if self._is_whole:
                    yield self._at(line, "call not made", self._layer_anywhere(), one.messages, None)
                continue
            # Compared as in `RecordedAnswers`, so that both find the same differences.
            values = {"messages": second.messages, "tools": second.tools, "tool_choice": second.tool_choice}
            for where, before, after in request_differences(one, values):
                layer = _differing_layer(one.changes, second.changes, _family(where)) or self._layer_anywhere()
                yield self._at(line, where, layer, before, after)
            layer = _differing_layer(one.changes, second.changes, "answer")
            if layer is not None:
                before, after = (_final_answer(request) for request in (one, second))
                yield self._at(line, "answer", layer, before, after)

    def _compare_calls(self) -> Iterator[tuple[int, Difference]]:
        calls, others = recorded_calls(self._run), recorded_calls(self._other)
        for call_id in {**calls, **others}:
            one, second = calls.get(call_id), others.get(call_id)
            if one is None:
                assert second is not None
                yield self._at(self._end, "extra call", self._layer_anywhere(), None, call_key(second.reached))
                continue
            # A call that was never started has no line of its own.
            line = one.line or self._end
            if second is None:
                if self._is_whole:
                    yield self._at(line, "call not made", self._layer_anywhere(), call_key(one.written), None)
            elif call_key(one.reached) != call_key(second.reached):
                layer = _differing_layer(one.changes, second.changes, "tool_call") or self._layer_anywhere()
                yield self._at(line, "arguments", layer, one.reached.input, second.reached.input)
            elif one.block is not None and second.block is not None:
                decided = _differing_decision(one, second)
                layer = _differing_layer(one.changes, second.changes, "result")
                if decided is not None:
                    yield self._at(line, "decision", *decided)
                elif layer is not None:
                    yield self._at(line, "result", layer, one.block.text, second.block.text)

    def _at(self, line: JSONObject, where: str, layer: str | None, before: Any, after: Any) -> tuple[int, Difference]:
        step = next((step for number, step in reversed(self._steps) if number < line["n"]), None)
        names = self._run.session_id, self._run.reply_id
        return line["t"], Difference(step, where, layer, before, after, names)

    def _layer_anywhere(self) -> str | None:
        """Return the outermost layer that did something else in this run, or that only one of the two has."""
        one, second = ([call for call in run.layers if _counts(call.layer)] for run in (self._run, self._other))
        known, known_now = ({call.layer for call in calls} for calls in (one, second))
        for call in sorted((*one, *second), key=lambda call: call.place):
            if (call.layer in known) != (call.layer in known_now):
                return call.layer
        before, after = ([change for call in calls for change in call.changes] for calls in (one, second))
        return _differing_layer(before, after, None)


def _differing_layer(one: Sequence[Change], second: Sequence[Change], family: str | None) -> str | None:
    """Return the outermost layer whose changes differ, though what reached it was the same."""
    sides = [
        [change for change in changes if _counts(change.layer) and family in (None, _family(change.where))]
        for changes in (one, second)
    ]
    for layer in dict.fromkeys(change.layer for changes in sides for change in changes):
        mine, theirs = ([change for change in changes if change.layer == layer] for changes in sides)
        if len(mine) != len(theirs):
            return layer
        # A layer that got something else already has another one outside of it to blame.
        for before, after in zip(mine, theirs, strict=True):
            is_same_before = _has_same_content(before.before, after.before)
            if is_same_before and not _has_same_content(before.after, after.after):
                return layer
    return None


def _counts(layer: str | None) -> bool:
    """Say whether this is a layer of the agent, and not the one that answers."""
    return layer is not None and layer.partition("@")[0] != _REPLAYING


def _differing_decision(one: RecordedCall, second: RecordedCall) -> tuple[str | None, str, str] | None:
    """Return the layer and the two decisions on a call, `None` if they are the same."""
    decided = [[pair for pair in call.decisions if pair[0] is None or _counts(pair[0])] for call in (one, second)]
    denied = [call.block is not None and call.block.state is ToolResultState.DENIED for call in (one, second)]
    if all(decided) and decided[0][-1][1] != decided[1][-1][1]:
        # The innermost layers decide first; those around them get their decision.
        known = [dict(pairs) for pairs in decided]
        layers = [layer for pairs in decided for layer, _ in pairs]
        layer = next(layer for layer in layers if known[0].get(layer) != known[1].get(layer))
        return layer, decided[0][-1][1], decided[1][-1][1]
    if denied[0] == denied[1]:
        return None
    before, after = ("deny" if is_denied else "allow" for is_denied in denied)
    deciding = next((layer for layer, decision in (*decided[0], *decided[1]) if decision == "deny"), None)
    return deciding, before, after


def _final_answer(request: ModelRequest) -> Any:
    """Return the answer as the layers left it."""
    return next((change.after for change in request.changes if change.where == "answer"), request.answer)


def _family(where: str) -> str:
    """Return which part of a request or a call a place belongs to."""
    if where in ("answer", "tool_call", "tool_choice"):
        return where
    if where in ("result", "content"):
        return "result"
    return "tools" if "tools" in where else "messages"


def _has_same_content(one: Any, other: Any) -> bool:
    return not any(changes_between("", without_ids(one), without_ids(other)))


def _excerpt(value: Any) -> str:
    if isinstance(value, Msg):
        results = (block.text for block in value.get_content_blocks("tool_result"))
        value = " ".join(filter(None, (value.get_text_content() or "", *results)))
    text = repr(value)
    return text if len(text) <= _MAX_EXCERPT else f"{text[:_MAX_EXCERPT]}..."
