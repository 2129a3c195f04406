"""Replaces handles, by their values, by handles of another conversation, or by descriptions.

A text that consists of one handle becomes the value, with its type; inside longer text a handle becomes the value's
text. Replaced text is not searched again, so a handle inside a value is not replaced.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic_core import from_json, to_json, to_jsonable_python

from agentrt._runtime.block import (
    ContentBlock,
    DataBlock,
    HintBlock,
    JSONObject,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
)
from agentrt._runtime.flow.handles import (
    ANYWHERE,
    HeldValue,
    HoldingState,
    hold,
    holds,
    label_of,
    mark_as_shown,
    name_of_handle,
)
from agentrt.errors import UsageError
from agentrt.message import Msg
from agentrt.types import FlowLabel

Replacement = Callable[[str, HeldValue], Any]
"""Returns the replacement of a handle; called with the handle and its value."""


def value_anywhere(handle: str, held: HeldValue) -> Any:
    """Return the value, which the caller may change, if it is released everywhere, else the handle."""
    return deepcopy(held.value) if held.release == ANYWHERE else handle


def value_in_tools(handle: str, held: HeldValue) -> Any:
    """Return the value if it is released in the arguments of calls, else the handle."""
    return deepcopy(held.value) if "tools" in held.release else handle


def value_in_output(handle: str, held: HeldValue) -> Any:
    """Return the value if it is released in the output, else the handle."""
    return deepcopy(held.value) if "output" in held.release else handle


def describe_held(handle: str, held: HeldValue) -> str:
    """Return a description of a value for other conversations: its name and sources."""
    name = name_of_handle(handle)
    sources = ", ".join(sorted(held.label.sources))
    return f"[{name} text from {sources}]" if sources else f"[{name}]"


def move_to(state: HoldingState) -> Replacement:
    """Return a replacement of another conversation's handles by handles of this one, with the same labels."""
    return lambda handle, held: hold(state, held.value, held.label, name_of_handle(handle), held.release)


def hold_answer(state: HoldingState, blocks: Sequence[TextBlock | DataBlock], label: FlowLabel) -> list[TextBlock]:
    """Hold back the blocks of an answer, whose author read text with that label; returns the handles as text."""
    held: list[TextBlock] = []
    for block in blocks:
        value: Any = block.text if isinstance(block, TextBlock) else to_jsonable_python(block)
        label_of_block = label | label_of(state, value)
        held.append(TextBlock(hold(state, replace_in_value(state, value), label_of_block)))
    return held


def replace_in_value(state: HoldingState, value: Any, replacement: Replacement = value_anywhere) -> Any:
    """Return the JSON value with its handles replaced, those in the keys of objects too."""
    held = state.held
    if held is None:
        return value
    return _replace_in(value, partial(_replace_handles, state, replacement))


def _replace_in(value: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [_replace_in(item, change) for item in value]
    if not isinstance(value, dict):
        return value
    replaced: JSONObject = {}
    for key, item in value.items():
        new = _text_of_value(change(key)) if isinstance(key, str) else key
        # Two keys must not become one, or one of their values would be lost.
        replaced[key if new != key and (new in value or new in replaced) else new] = _replace_in(item, change)
    return replaced


def _replace_handles(state: HoldingState, replacement: Replacement, text: str) -> Any:
    held = state.held
    if held is None or held.tag not in text:
        return text
    pattern, values = held.pattern(), held.values
    # A single handle becomes the value itself, which may be a number or a list.
    alone = held.value_alone(text)
    if alone is not None:
        return replacement(text, alone)
    # In one pass, so that replaced text is not searched again.
    return pattern.sub(
        lambda match: _text_of_value(replacement(match[0], values[match[1]])) if match[1] in values else match[0], text
    )


def replace_words(state: HoldingState, text: str, replacement: Replacement) -> str:
    """Return the text with its handles replaced by text."""
    return _text_of_value(_replace_handles(state, replacement, text)) if holds(state, text) else text


def _text_of_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.get("type") == "data" and isinstance(value.get("source"), dict):
        return f"[{value['source'].get('media_type')}]"  # an image or a file, which text cannot show
    return to_json(value).decode()


def release_arguments(state: HoldingState, text: str, parse: Callable[[str], JSONObject]) -> str:
    """Return the arguments of a call with values in place of handles; the same text if it cannot be parsed."""
    if not holds(state, text):
        return text
    try:
        arguments = parse(text)
    except Exception:  # noqa: BLE001  # the next parser reports the error
        return text
    released = replace_in_value(state, arguments, value_in_tools)
    # Byte for byte as the model wrote it, if no handle was replaced.
    return text if released == arguments else to_json(released).decode()


def show_value(state: HoldingState, handle: str) -> Any:
    """Return the value of a handle for the model to read; `label_of` includes its label from then on.

    Raises `UsageError` if this conversation has no such handle.
    """
    held = state.held
    text: object = handle
    value = held.value_alone(handle.strip()) if held is not None and isinstance(text, str) else None
    if held is None or value is None:
        raise UsageError(f"{handle!r:.100} is not a handle of this conversation")
    # Before anything else: later calls in the same answer are checked against it.
    mark_as_shown(state, value.label)
    return deepcopy(value.value)


def replace_in_message(state: HoldingState, message: Msg, replacement: Replacement) -> Msg:
    """Return a copy of the message with its handles replaced, or the message itself if it has none.

    Calls stay as the model wrote them, except those for an external program.
    """
    change = partial(replace_words, state, replacement=replacement)
    content = message.content
    if isinstance(content, str):
        new: Any = change(content)
    else:
        new = replace_in_blocks(state, content, replacement)
    output = message.structured_output
    form = output if output is None else replace_in_value(state, output, replacement)
    if form != output and message.get_text_content() == to_json(output).decode():
        new = [TextBlock(to_json(form).decode())]  # text put into JSON could end its strings
    error = message.error if message.error is None else change(message.error)
    if new is content and form == output and error == message.error:
        return message
    copied = message.copy()
    copied.content, copied.structured_output, copied.error = new, form, error
    return copied


def replace_in_blocks(
    state: HoldingState, blocks: Sequence[ContentBlock], replacement: Replacement
) -> Sequence[ContentBlock]:
    """Return the blocks with their handles replaced, or the same list if they have none."""
    new = [_replace_in_block(state, block, replacement) for block in blocks]
    return new if any(block is not old for block, old in zip(new, blocks, strict=True)) else blocks


def replace_in_inputs(
    state: HoldingState, calls: Sequence[ToolCallBlock], replacement: Replacement
) -> Sequence[ToolCallBlock]:
    """Return the calls with the handles in their arguments replaced."""
    return [replace(call, input=replace_in_json(state, call.input, replacement)) for call in calls]


def _replace_in_block(state: HoldingState, block: ContentBlock, replacement: Replacement) -> ContentBlock:
    """Return the block with its handles replaced, or the block itself if it has none."""
    change = partial(replace_words, state, replacement=replacement)
    if isinstance(block, TextBlock):
        return replace(block, text=change(block.text)) if holds(state, block.text) else block
    if isinstance(block, ThinkingBlock):
        return replace(block, thinking=change(block.thinking)) if holds(state, block.thinking) else block
    if isinstance(block, HintBlock):
        return replace(block, hint=change(block.hint)) if holds(state, block.hint) else block
    if isinstance(block, ToolCallBlock):
        # The user's answer repeats a call byte for byte; only an external program gets the values.
        if block.state is not ToolCallState.SUBMITTED:
            return block
        return replace(block, input=replace_in_json(state, block.input, replacement))
    if isinstance(block, ToolResultBlock):
        if isinstance(block.output, str):
            return replace(block, output=change(block.output)) if holds(state, block.output) else block
        output: Any = replace_in_blocks(state, block.output, replacement)
        return block if output is block.output else replace(block, output=output)
    return block


def replace_in_json(state: HoldingState, text: str, replacement: Replacement) -> str:
    """Return the JSON text with its handles replaced, or the same text if it cannot be parsed."""
    if not holds(state, text):
        return text
    try:
        value = from_json(text)
    except ValueError:
        return text
    return to_json(replace_in_value(state, value, replacement)).decode()
