"""The parts of a record that a replay needs: requests, tool calls with their raw results, and the input."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from agentrt.message import Msg, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.runs.contents import block_adapter
from agentrt.runs.parts import Change, ModelRequest
from agentrt.runs.run import Run
from agentrt.types import JSONObject, ToolResponse


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A tool call: as the model wrote it, as it reached the tool, and the result that the tool returned, if any.

    `block` is the result in the conversation, and `line` its start. `changes` are those of layers, the outermost first,
    and `decisions` those on the call, the innermost first.
    """

    written: ToolCallBlock
    reached: ToolCallBlock
    response: ToolResponse | None
    block: ToolResultBlock | None
    line: JSONObject | None
    changes: list[Change]
    decisions: list[tuple[str | None, str]]


def runs_below(run: Run) -> Iterator[Run]:
    """Yield the run, and those of sub-agents at any depth."""
    yield run
    for child in run.children:
        yield from runs_below(child)


def answered_requests(run: Run) -> list[tuple[JSONObject, ModelRequest]]:
    """Return the requests with their lines, without those that a crash cut off: they were sent again."""
    pairs = [(line, request) for (line, _), request in zip(run.request_lines, run.requests, strict=True)]
    return [
        (line, request)
        for line, request in pairs
        if request.answer is not None or request.error is not None or line is pairs[-1][0]
    ]


def recorded_calls(run: Run) -> dict[str, RecordedCall]:
    """Return the calls of tools by their ids."""
    steps = [line for line in run.lines if line["kind"] == "step"]
    # A message that the agent gave in place of that of an interrupted reply lacks the calls, which the last step has.
    # It comes last, since the message has values in place of handles.
    blocks = [] if run.message is None else list(run.message.get_content_blocks())
    blocks += [
        block_adapter().validate_python(run.values.value(name)) for line in steps[-1:] for name in line["blocks"]
    ]
    for inner in run.inner_calls:
        blocks += [inner.call] if inner.result is None else [inner.call, inner.result]
    lines: dict[str, list[JSONObject]] = defaultdict(list)
    starts: dict[str, JSONObject] = {}
    for line in run.lines:
        if line["kind"] == "layer" and "tool_call" in line:
            lines[line["tool_call"]].append(line)
        elif line["kind"] == "event" and line["event"].get("type") == "TOOL_RESULT_START":
            starts.setdefault(line["event"]["tool_call_id"], line)
    results: dict[str, ToolResultBlock] = {}
    for block in blocks:
        # A step may be from before the end of a call.
        if isinstance(block, ToolResultBlock) and not (block.state is ToolResultState.RUNNING and block.id in results):
            results[block.id] = block
    return {
        block.id: _read_call(run, block, results.get(block.id), lines[block.id], starts.get(block.id))
        for block in blocks
        if isinstance(block, ToolCallBlock)
    }


def _read_call(
    run: Run, call: ToolCallBlock, block: ToolResultBlock | None, lines: list[JSONObject], start: JSONObject | None
) -> RecordedCall:
    reached = call
    changes: list[Change] = []
    # The call passes the layers from the outermost inwards, its result in the other direction, and then on_content.
    acting = sorted((line for line in lines if line["hook"] == "on_acting"), key=lambda line: line["place"])
    for line in acting:
        changes += map(run.values.change, line["changes"])
        for change in line["changes"]:
            if change["where"] == "tool_call":
                sent = run.values.value(change["after"])
                reached = replace(call, name=sent["name"], input=sent["input"])
    receiving = [line for line in lines if line["hook"] == "on_content" and not _feedback_in(run, line)]
    changes += [run.values.change(change) for line in receiving for change in line["changes"]]
    response = None if block is None else _raw_response(run, block, [*reversed(acting), *receiving])
    decisions = [
        (line["layer"], line["decision"])
        for line in lines
        if line["hook"] == "on_check_permission" and line.get("decision")
    ]
    return RecordedCall(call, reached, response, block, start, changes, decisions)


def _raw_response(run: Run, block: ToolResultBlock, lines: list[JSONObject]) -> ToolResponse:
    """Return the result as the tool returned it; `lines` are those of the layers that it passed, in this order."""
    changes = (change for line in lines for change in line["changes"])
    first = next((change for change in changes if change["where"] in ("result", "content")), None)
    if first is None:
        return ToolResponse(block.blocks, block.state, dict(block.metadata))
    raw = run.values.value(first["before"])
    parts: Any = [block_adapter().validate_python(part) for part in raw["content"]]
    return ToolResponse(parts, ToolResultState(raw["state"] or block.state), raw["metadata"] or {})


def result_at(run: Run, path: str) -> tuple[ToolCallBlock, ToolResponse] | None:
    """Return a call and its result, as it came; the path has the ids of the calls around it, and its own."""
    for child in reversed(run.children):
        outer_id = None if child.parent is None else child.parent[2]
        if outer_id is not None and path.startswith(f"{outer_id}/"):
            return result_at(child, path.removeprefix(f"{outer_id}/"))
    found = recorded_calls(run).get(path)
    return None if found is None or found.response is None else (found.written, found.response)


def feedback_on(run: Run, path: str) -> str | None:
    """Return what the user said of a call when answering, before layers of on_content changed it."""
    for line in run.lines:
        if line["kind"] == "layer" and line.get("tool_call") == path:
            feedback = _feedback_in(run, line)
            if feedback is not None:
                return feedback
    for line in reversed([line for line in run.lines if line["kind"] == "step"]):
        reply = run.values.value(line["state"])["reply_context"] or {}
        inner = reply.get("inner", {}).get(path, {})
        decision = inner.get("decision") or reply.get("decisions", {}).get(path) or {}
        if decision.get("by") == "user":
            return decision["message"] or None
    return None


def _feedback_in(run: Run, line: JSONObject) -> str | None:
    """Return the user's words that a layer of on_content changed; `None` for a line of anything else."""
    for change in line["changes"]:
        before = run.values.value(change["before"]) if change["where"] == "content" else {}
        if before.get("source") == "feedback":
            return "".join(part["text"] for part in before["content"] if part["type"] == "text")
    return None


def given_inputs(run: Run) -> list[Msg]:
    """Return the input messages as they were before layers of on_content changed them."""
    inputs = [message.copy() for message in run.inputs]
    lines = [line for line in run.lines if line["kind"] == "layer" and line["hook"] == "on_content"]
    for line in reversed(lines):
        for change in line["changes"]:
            before, after = run.values.value(change["before"]), run.values.value(change["after"])
            if before["source"] == "input":
                for message in inputs:
                    blocks = [block_adapter().dump_python(block, mode="json") for block in message.get_content_blocks()]
                    if without_ids(blocks) == without_ids(after["content"]):
                        message.content = [block_adapter().validate_python(part) for part in before["content"]]
                        break
    return inputs


def without_ids(value: Any) -> Any:
    """Return JSON without the ids and the metadata of blocks; other values as they are."""
    if isinstance(value, list):
        return [without_ids(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {name: without_ids(part) for name, part in value.items() if name not in ("id", "metadata")}
