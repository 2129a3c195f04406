"""Turning what a tool returns into a `ToolResponse`.

A `ToolResponse` is taken as it is, a `ToolChunk` as the only piece; a `str` becomes one block; blocks, alone or in a
list, stay as they are; a `Msg` gives its text and data. Anything else is written as JSON: `None` is "null".
"""

import inspect
import json
import logging
import os
from contextlib import suppress
from functools import partial
from typing import Any

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from agentrt._runtime.block import Base64Source, DataBlock, TextBlock, ToolResultState
from agentrt._runtime.boundary import json_size, mend_block
from agentrt._runtime.text import lazy_pattern, mask, type_with_article, user_frames_of
from agentrt.errors import ToolError
from agentrt.message import Msg
from agentrt.tool.base import MAX_OUTPUT, ToolBase
from agentrt.types import ToolChunk, ToolOutput, ToolResponse

_logger = logging.getLogger("agentrt")

_MAX_ERROR = 2_000
_MAX_MASKED = 50_000  # characters: masking takes time in proportion
_SECRET_NAME = lazy_pattern(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_MAX_NOTES = 10  # in the place of data; what is left out after that is only counted
# In Python 3.11 a member looked up on its class takes seven times as long as a name of the module.
_STATE_OF_UNFINISHED, _STATE_OF_ENDED = ToolResultState.RUNNING, ToolResultState.SUCCESS
_PLAIN_TYPES = frozenset((int, float, bool, dict, type(None)))  # whose values have a JSON form, and hold no blocks
_UNCOUNTED = 32  # characters of an id or a media type that are not counted: more than a generated id has

MAX_DATA = 50_000_000
"""The most characters of base64 that a result keeps, unless its tool has a `max_output` of its own."""

MAX_METADATA = 1_000_000
"""The most bytes of JSON that the metadata of a result may have, that of all pieces of a streaming tool together."""


def failure(text: str, state: ToolResultState = ToolResultState.ERROR) -> ToolResponse:
    """Return a result that says what went wrong."""
    return ToolResponse([TextBlock(text)], state)


def frames_for_log(tool: ToolBase, error: BaseException, *, is_released: bool = False) -> str:
    """Return the traceback of an exception from the tool's own code on, with its message if the tool allows that.

    `is_released` says that the tool got values in place of handles: a message may quote them, so it is left out.
    """
    has_message = tool.error_detail == "message" and not is_released
    return mask(user_frames_of(error, partial(_message_of, tool) if has_message else None))


def _message_of(tool: ToolBase, error: BaseException) -> str:
    """Return the message of an exception, cut and with secrets masked; nothing if the tool does not allow that."""
    if tool.error_detail != "message":
        return ""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # the user's own __str__; the error that it describes matters more
        text = "(its text cannot be shown)"
    environment = [value for name, value in os.environ.items() if _SECRET_NAME.search(name.upper())]
    # Masked before it is cut, since half a secret is not found.
    masked = mask(text[:_MAX_MASKED], [*tool.secrets, *environment])
    return masked if len(text) <= _MAX_ERROR else f"{masked[:_MAX_ERROR]}... [cut: {len(text):,} characters]"


def check_failure_text(tool: ToolBase, error: BaseException) -> str:
    """Return the short form of what a validator of the tool raised; its traceback goes to the log only."""
    _logger.warning("checking the arguments of tool %r failed:\n%s", tool.name, frames_for_log(tool, error))
    message = _message_of(tool, error)
    return _printable(f"checking the arguments raised {type(error).__name__}{': ' if message else ''}{message}")


def failure_text(tool: ToolBase, error: BaseException, *, is_released: bool = False) -> str:
    """Return the short form of an exception for the model; its traceback goes to the log only."""
    _logger.warning("tool %r failed:\n%s", tool.name, frames_for_log(tool, error, is_released=is_released))
    more = ""
    while isinstance(error, BaseExceptionGroup):
        more = f" (and {len(error.exceptions) - 1} more errors)" if len(error.exceptions) > 1 else more
        error = error.exceptions[0]
    message = _message_of(tool, error)
    return _printable(f"{tool.name} failed: {type(error).__name__}{': ' if message else ''}{message}{more}")


def to_response(tool: ToolBase, value: object) -> ToolResponse:
    """Return a tool's value as a result, cut to the tool's `max_output`; raises `ToolError` for what cannot be one."""
    # The fast path, for what nearly every tool returns; below, it comes out the same.
    text = _value_as_json(tool, value) if value.__class__ in _PLAIN_TYPES else value
    if text.__class__ is str and len(text) <= tool.max_output:
        response = ToolResponse.__new__(ToolResponse)  # field by field, in a third of the time: most calls come here
        response.content = [TextBlock(text if text.isascii() else _printable(text))]
        response.state, response.metadata = _STATE_OF_ENDED, {}
        response.is_last, response.waits = True, ()
        return response
    response = response_of(tool, value)
    if response.waits:
        return ToolResponse(state=_STATE_OF_UNFINISHED, waits=response.waits)
    state = state_of(tool, response.state)
    check_metadata(tool, response.metadata)
    budget = OutputBudget(tool)
    parts = [budget.take(block) for block in blocks_of(tool, response.content)]
    content: ToolOutput = [block for block in parts if block is not None]
    if budget.left_out:
        content.append(TextBlock(budget.note))
    return ToolResponse(content, final_result_state(state), response.metadata or {})


class OutputBudget:
    """How much more a result may keep, in characters: of text and data, of URLs, names and ids."""

    __slots__ = ("left", "left_for_data", "left_out", "notes", "total")

    def __init__(self, tool: ToolBase) -> None:
        self.total = self.left = tool.max_output
        # Unless the tool sets a limit, data has one of its own: a picture is larger than any text.
        self.left_for_data = MAX_DATA if tool.max_output == MAX_OUTPUT else None
        self.left_out = 0
        self.notes = _MAX_NOTES

    @property
    def note(self) -> str:
        whole = self.total + self.left_out
        return f"[cut: of {whole:,} characters the first {self.total:,} are kept, {self.left_out:,} are left out]"

    def take(self, block: TextBlock | DataBlock) -> TextBlock | DataBlock | None:
        """Return as much of the block as fits, a note in the place of data that does not, or nothing."""
        if not isinstance(block, TextBlock):
            return self._take_data(block)
        # At least one each, so that empty blocks do not come without number.
        size = max(len(block.text), 1) + _excess_length(block.id)
        if size <= self.left:
            self.left -= size
            return block
        self.left_out += size - self.left
        beginning, self.left = block.text[: self.left], 0
        return TextBlock(beginning) if beginning else None

    def _take_data(self, block: DataBlock) -> TextBlock | DataBlock | None:
        size = data_size(block)
        # Only bytes are large: a URL counts as text.
        left_for_data = self.left_for_data if isinstance(block.source, Base64Source) else None
        room = self.left if left_for_data is None else left_for_data
        if size <= room:
            if left_for_data is None:
                self.left -= size
            else:
                self.left_for_data = left_for_data - size
            return block
        if not self.notes:
            self.left_out += size
            return None
        self.notes -= 1
        return TextBlock(
            f"[left out: {block.source.media_type[:64]}, {size:,} characters, of which there is room for {room:,}]"
        )


def data_size(block: DataBlock) -> int:
    """Return how many characters of a result the block takes."""
    source = block.source
    payload = source.data if isinstance(source, Base64Source) else source.url
    return max(len(payload), 1) + len(block.name or "") + _excess_length(source.media_type) + _excess_length(block.id)


def _excess_length(text: str) -> int:
    return max(len(text) - _UNCOUNTED, 0)


def response_of(tool: ToolBase, value: object) -> ToolResponse:
    """Return the value of a tool as a result that is neither checked nor cut yet."""
    if isinstance(value, ToolResponse):
        return value
    if isinstance(value, ToolChunk):
        return ToolResponse(value.content, value.state, value.metadata)
    if isinstance(value, str):
        return ToolResponse([TextBlock(str(value))])
    if isinstance(value, Msg):
        return ToolResponse([*value.get_content_blocks("text"), *value.get_content_blocks("data")])
    return ToolResponse(content_of(value) or [TextBlock(_value_as_json(tool, value))])


def content_of(value: object) -> ToolOutput | None:
    """Return a block, or a list of blocks, as a list; `None` for any other value."""
    if isinstance(value, TextBlock | DataBlock):
        return [value]
    if isinstance(value, list) and value and all(isinstance(block, TextBlock | DataBlock) for block in value):
        return value
    return None


def _value_as_json(tool: ToolBase, value: object) -> str:
    if hasattr(value, "__aiter__") or hasattr(value, "__next__") or hasattr(value, "__await__"):
        if inspect.iscoroutine(value):
            value.close()  # the result says it, so Python need not warn as well
        raise ToolError(
            f"the output of {tool.name} is {type_with_article(value)} instead of a value: await it, or make it a "
            f"generator or a list"
        )
    try:
        return to_json(value).decode()
    except (PydanticSerializationError, ValueError) as error:
        with suppress(ValueError, TypeError, RecursionError):  # a string in it may have half a surrogate pair
            return _printable(json.dumps(to_jsonable_python(value), ensure_ascii=False, separators=(",", ":")))
        raise ToolError(
            f"the output of {tool.name} is {type_with_article(value)}, which has no JSON form: {error}"
        ) from error


def blocks_of(tool: ToolBase, content: object) -> ToolOutput:
    parts: object = [TextBlock(content)] if isinstance(content, str) else content
    blocks: ToolOutput = []
    for block in parts if isinstance(parts, list | tuple) else [parts]:
        if not isinstance(block, TextBlock | DataBlock):
            raise ToolError(
                f"the result of {tool.name} holds {type_with_article(block)}: it must be a list of TextBlock and "
                f"DataBlock"
            )
        text: Any = block.text if isinstance(block, TextBlock) else ""
        if isinstance(text, str) and not text.isascii() and (printable := _printable(text)) is not text:
            blocks.append(TextBlock(printable, block.id))
        else:
            blocks.append(block)
    try:
        return [mend_block(block) for block in blocks]
    except ValueError as error:
        problem = str(error)
    # Raised here, so that the error above does not become the context of this one.
    raise ToolError(f"the result of {tool.name} holds {problem}")


def state_of(tool: ToolBase, state: Any) -> ToolResultState:
    if state.__class__ is ToolResultState:  # as nearly always, and an enumeration takes long to find its own member
        return state
    try:
        return ToolResultState(state)
    except ValueError:
        states = ", ".join(ToolResultState)
        raise ToolError(f"the result of {tool.name} has the state {state!r}: the states are {states}") from None


def check_metadata(tool: ToolBase, metadata: object, earlier_size: int = 0) -> int:
    """Return how many bytes of JSON the metadata has, added to the `earlier_size` of the pieces before it.

    Raises `ToolError` for what cannot be saved, or is more than `MAX_METADATA`.
    """
    if not metadata:
        return earlier_size
    if not isinstance(metadata, dict):
        raise ToolError(f"the metadata of {tool.name}'s result is {type_with_article(metadata)}: it must be a dict")
    if not isinstance(metadata.get("response_msg"), Msg | None):
        raise ToolError(f"the metadata of {tool.name}'s result has a response_msg that is not a Msg: pass a Msg")
    try:
        size = earlier_size + json_size({key: value for key, value in metadata.items() if key != "response_msg"})
    except ValueError as error:
        problem = str(error)
    else:
        if size <= MAX_METADATA:
            return size
        raise ToolError(
            f"the metadata of {tool.name}'s result has {size:,} bytes, but at most {MAX_METADATA:,} are allowed: "
            f"it is saved with the conversation, so keep large data elsewhere, and only its address here"
        )
    raise ToolError(f"the metadata of {tool.name}'s result has no JSON form: {problem}")


def _printable(text: str) -> str:
    """Replace half surrogate pairs, as file names may hold: no provider and no file takes them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def final_result_state(state: ToolResultState) -> ToolResultState:
    return _STATE_OF_ENDED if state is _STATE_OF_UNFINISHED else state
