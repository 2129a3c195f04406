"""Messages, and how a message is rebuilt from the events of its reply."""

import base64
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cache
from time import time_ns
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, overload

import pydantic
from pydantic_core import CoreConfig, CoreSchema, SchemaSerializer, to_json, to_jsonable_python
from typing_extensions import TypeVar as TypeVarWithDefault

from agentrt._runtime.block import (
    BLOCKS,
    Base64Source,
    BlockType,
    Citation,
    ContentBlock,
    DataBlock,
    HintBlock,
    InProcess,
    ProviderBlock,
    Strict,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    ToolResultState,
    URLSource,
    citations_of,
    new_id,
    no_json_form,
    parse_json,
)
from agentrt._runtime.keywords.attributes import suggest_attributes
from agentrt._runtime.text import repr_of
from agentrt._runtime.timestamp import Timestamp, timestamp_text
from agentrt.event import (
    AgentEvent,
    BlocksWithdrawnEvent,
    DataBlockDeltaEvent,
    DataBlockStartEvent,
    HintBlockEvent,
    ModelCallEndEvent,
    ModelCallRetryEvent,
    ProviderBlockEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    SubagentEndEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    TextBlockStartEvent,
    ThinkingBlockDeltaEvent,
    ThinkingBlockEndEvent,
    ThinkingBlockStartEvent,
    ToolCallDeltaEvent,
    ToolCallStartEvent,
    ToolResultDataDeltaEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
    UserConfirmResultEvent,
)
from agentrt.types import ChatUsage, FinishedReason, JSONObject, MessageDict, Role

__all__ = [
    "AssistantMsg",
    "Base64Source",
    "Citation",
    "ContentBlock",
    "DataBlock",
    "HintBlock",
    "MessageDict",
    "MessageInput",
    "Msg",
    "ProviderBlock",
    "SystemMsg",
    "TextBlock",
    "ThinkingBlock",
    "ToolCallBlock",
    "ToolCallState",
    "ToolResultBlock",
    "ToolResultState",
    "URLSource",
    "UserMsg",
    "copy_block",
]

_Cloned = TypeVar("_Cloned")


class _WrittenAsJSON:
    def __get_pydantic_core_schema__(self, source: Any, handler: "pydantic.GetCoreSchemaHandler") -> CoreSchema:
        return pydantic.PlainSerializer(to_jsonable_python).__get_pydantic_core_schema__(source, handler)


_OutputType = TypeVarWithDefault("_OutputType", default=Any)
_MAX_LOOK_BACK = 16  # blocks; searching this many is as fast as an index
_OPENING_EVENTS = (ReplyStartEvent, ReplyResumedEvent)
_ROLES = ("user", "assistant", "system")
# In Python 3.11 a member looked up on its class takes seven times as long as a name of the module.
_RESULT_RUNNING = ToolResultState.RUNNING
_CALL_RUNNING, _CALL_FINISHED = ToolCallState.RUNNING, ToolCallState.FINISHED
_BLOCK_TYPES: tuple[str, ...] = get_args(BlockType)
_TEXT, _MSG_JSON = "write msg.get_text_content()", "write msg.to_json()"
_CONVERSATION = "the conversation is agent.state.context"
# What other frameworks call the fields and methods of a message.
_MSG_GUESSES = {
    "all_messages": _CONVERSATION,
    "blocks": "write msg.get_content_blocks()",
    "annotations": "write msg.get_citations()",
    "choices": _TEXT,
    "citations": "write msg.get_citations()",
    "data": "write msg.structured_output",
    "dict": _MSG_JSON,
    "final_output": _TEXT,
    "get": "write the field itself, as in msg.content",
    "get_text": _TEXT,
    "json": _MSG_JSON,
    "message": "it is the message itself",
    "model_dump": _MSG_JSON,
    "model_dump_json": _MSG_JSON,
    "model_validate_json": "write Msg.from_json(text)",
    "new_messages": _CONVERSATION,
    "output": _TEXT,
    "parsed": "write msg.structured_output",
    "sender": "write msg.name",
    "text": _TEXT,
    "timestamp": "write msg.created_at, in nanoseconds since the epoch",
    "to_dict": _MSG_JSON,
    "to_input_list": _CONVERSATION,
    "tool_calls": 'write msg.get_content_blocks("tool_call")',
    "usage_metadata": "write msg.usage",
}
_AFTER_A_CALL: tuple[BlockType, ...] = ("tool_result", "hint")


@suggest_attributes(**_MSG_GUESSES)
@dataclass(slots=True, repr=False, eq=False)
class Msg(InProcess, Strict, Generic[_OutputType]):
    """One message of a conversation.

    `content` is a `str` or a list of blocks; every accessor treats a `str` as one text block. The message that an
    agent's reply builds up has the reply's id, and `finished_reason` and `error` say how that reply ended. Where the
    caller asked for a type, `structured_output` is an instance of it, and that is a `Msg[T]`; it becomes plain JSON
    where the message is saved or given to another agent.
    """

    name: str
    content: str | list[ContentBlock]
    role: Role
    id: str = field(default_factory=new_id, kw_only=True, repr=False)
    metadata: JSONObject = field(default_factory=dict, kw_only=True)
    usage: ChatUsage | None = field(default=None, kw_only=True)
    structured_output: Annotated[_OutputType | None, _WrittenAsJSON()] = field(default=None, kw_only=True)
    finished_reason: FinishedReason | None = field(default=None, kw_only=True)
    error: str | None = field(default=None, kw_only=True)
    created_at: Timestamp = field(default_factory=time_ns, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            raise ValueError(f"Msg role must be one of 'user', 'assistant', 'system', not {self.role!r}")
        if not isinstance(self.content, (str, list)):
            raise TypeError(
                f"Msg content must be a str or a list of blocks, not {repr_of(self.content)}: "
                f"wrap a single block in a list"
            )
        if isinstance(self.content, list):
            for block in self.content:
                if not isinstance(block, BLOCKS):
                    raise TypeError(
                        f"Msg content holds {repr_of(block)}, which is not a block: a block is an object, such as "
                        f"TextBlock('hi'), ToolCallBlock(id, name, input) or DataBlock(source)"
                    )

    def get_text_content(self, separator: str = "\n") -> str | None:
        """Return the text blocks joined by `separator`, `None` when there are none."""
        if isinstance(self.content, str):
            return self.content
        texts = [block.text for block in self.content if isinstance(block, TextBlock)]
        return separator.join(texts) if texts else None

    @overload
    def get_content_blocks(self, block_type: Literal["text"]) -> list[TextBlock]: ...
    @overload
    def get_content_blocks(self, block_type: Literal["thinking"]) -> list[ThinkingBlock]: ...
    @overload
    def get_content_blocks(self, block_type: Literal["data"]) -> list[DataBlock]: ...
    @overload
    def get_content_blocks(self, block_type: Literal["hint"]) -> list[HintBlock]: ...
    @overload
    def get_content_blocks(self, block_type: Literal["tool_call"]) -> list[ToolCallBlock]: ...
    @overload
    def get_content_blocks(self, block_type: Literal["tool_result"]) -> list[ToolResultBlock]: ...
    @overload
    def get_content_blocks(self, block_type: Literal["provider"]) -> list[ProviderBlock]: ...
    @overload
    def get_content_blocks(
        self, block_type: list[BlockType] | tuple[BlockType, ...] | None = None
    ) -> list[ContentBlock]: ...
    def get_content_blocks(self, block_type: BlockType | list[BlockType] | tuple[BlockType, ...] | None = None) -> Any:
        """Return the blocks of one type, of several types, or all of them, in order, in a new list."""
        types = _check_types(block_type)
        blocks: list[ContentBlock] = [TextBlock(self.content)] if isinstance(self.content, str) else self.content
        return [block for block in blocks if block.type in types]

    def has_content_blocks(self, block_type: BlockType | list[BlockType] | tuple[BlockType, ...] | None = None) -> bool:
        """Say whether there is a block of that type, of one of these types, or any block at all."""
        types = _check_types(block_type)
        if isinstance(self.content, str):
            return "text" in types
        return any(block.type in types for block in self.content)

    def get_citations(self) -> list[Citation]:
        """Return what the provider says that the texts rest on, such as pages that its own search found, in order.

        They are kept in `ProviderBlock`s, each behind its text.
        """
        return citations_of(self.get_content_blocks())

    def snapshot(self) -> "Msg[_OutputType]":
        """Return a message with a list of its own over the same blocks: what is added to this one stays out of it."""
        content = self.content if isinstance(self.content, str) else list(self.content)
        return new_message(self.name, content, self.role, self.id, self.created_at)

    def copy(self) -> "Msg[_OutputType]":
        """Return a message of its own: changing its blocks, lists or dicts leaves this one alone."""
        if self.__class__ is Msg:  # one by one, in a third of the time
            new = Msg.__new__(Msg)
            new.name, new.content, new.role, new.id = self.name, self.content, self.role, self.id
            new.usage, new.structured_output = self.usage, self.structured_output
            new.finished_reason, new.error, new.created_at = self.finished_reason, self.error, self.created_at
        else:
            new = _clone(self)
        # `usage` is shared: it is replaced, never changed.
        new.metadata = deepcopy(self.metadata) if self.metadata else {}
        if self.structured_output is not None:
            new.structured_output = deepcopy(self.structured_output)
        if isinstance(self.content, list):
            new.content = [copy_block(block) for block in self.content]
        return new

    def __deepcopy__(self, memo: dict[int, object]) -> "Msg[_OutputType]":
        # What hooks are given is copied each time; the general way takes five times as long.
        new = self.copy()
        new.usage = _clone(self.usage) if self.usage is not None else None
        memo[id(self)] = new
        return new

    def to_json(self) -> str:
        """Return the message as one line of JSON, with its time as ISO 8601 text.

        Raises `InvalidInputError` where it holds what JSON cannot.
        """
        time = timestamp_text(self.created_at)  # here alone, since a state is saved often
        try:
            values = message_adapter().dump_python(self, mode="json")
            values["created_at"] = time
            return to_json(values, inf_nan_mode="null").decode()
        except (ValueError, RecursionError) as error:
            raise no_json_form(f"the message from {self.name!r:.100}", error) from error

    @staticmethod
    def from_json(text: str | bytes) -> "Msg":
        """Return the message that `to_json` wrote; raises `InvalidInputError`, saying why, for anything else."""
        return parse_json(message_adapter(), text, "a message")

    def _repr_html_(self) -> str | None:
        """Return the whole message as plain text for a notebook, since a model's markup must not be obeyed."""
        try:
            blocks = "".join(map(_block_as_html, self.get_content_blocks()))
            return f'<div style="white-space: pre-wrap"><b>{_escape(self.name)}</b>{blocks}</div>'
        except Exception:  # noqa: BLE001  # what a message holds may be changed to anything; the repr is shown then
            return None

    def append_event(self, event: AgentEvent) -> "Msg[_OutputType]":
        """Apply one event of the reply that builds this message, and return the message.

        The runtime builds its own message this way, so applying a reply's events in order, from `REPLY_START` on,
        gives exactly the message that the conversation keeps; answers that went into the reply belong among them.
        Events that change no message are ignored, and so are those of other replies, such as a sub-agent's, and those
        of calls that a tool makes, whose ids are paths. A
        message without content takes the id of the first `REPLY_START` or `REPLY_RESUMED`, and from then on belongs to
        that reply; `REPLY_RESUMED` also replaces what was applied before it. An event that names a block which this
        message does not have raises `ValueError`.
        """
        if event.reply_id != self.id:
            is_unused = not self.content and self.usage is None and self.finished_reason is None
            if not is_unused or event.__class__ not in _OPENING_EVENTS:
                return self
        apply = APPLY.get(event.__class__)
        if apply is not None and (event.__class__ not in CALL_EVENTS or "/" not in event.tool_call_id):  # type: ignore[attr-defined]  # these have it
            apply(self, event)
        return self


MessageInput = str | Msg | MessageDict
"""The accepted forms of a message: a plain `str` is a user's."""


def _check_types(block_type: Any) -> Sequence[str]:
    if block_type is None:
        return _BLOCK_TYPES
    types = block_type if isinstance(block_type, (list, tuple)) else (block_type,)
    for name in types:
        if name not in _BLOCK_TYPES:
            raise ValueError(f"the block type {name!r} does not exist: the types are {', '.join(_BLOCK_TYPES)}")
    return types


@overload
def UserMsg(content: str | list[ContentBlock], *, name: str = "user", **fields: Any) -> Msg: ...
@overload
def UserMsg(name: str, content: str | list[ContentBlock], **fields: Any) -> Msg: ...
def UserMsg(*args: Any, **fields: Any) -> Msg:
    """Make a message with the role "user", from someone called "user" where no name is given."""
    return _make_message("user", args, fields)


@overload
def AssistantMsg(content: str | list[ContentBlock], *, name: str = "assistant", **fields: Any) -> Msg: ...
@overload
def AssistantMsg(name: str, content: str | list[ContentBlock], **fields: Any) -> Msg: ...
def AssistantMsg(*args: Any, **fields: Any) -> Msg:
    """Make a message with the role "assistant", from someone called "assistant" where no name is given."""
    return _make_message("assistant", args, fields)


@overload
def SystemMsg(content: str | list[ContentBlock], *, name: str = "system", **fields: Any) -> Msg: ...
@overload
def SystemMsg(name: str, content: str | list[ContentBlock], **fields: Any) -> Msg: ...
def SystemMsg(*args: Any, **fields: Any) -> Msg:
    """Make a message with the role "system", from someone called "system" where no name is given."""
    return _make_message("system", args, fields)


def _make_message(role: Role, args: tuple[Any, ...], fields: JSONObject) -> Msg:
    if not fields and len(args) == 2 and args[1].__class__ is str:  # nearly always
        return new_message(args[0], args[1], role, new_id())
    function = f"{role.capitalize()}Msg"
    # One value is the content; a name comes before it.
    keys = ("content",) if len(args) == 1 and "content" not in fields else ("name", "content")
    if len(args) > len(keys):
        raise TypeError(f"{function}() takes a name and a content by position, not {len(args)} values: name the others")
    for key, value in zip(keys, args, strict=False):
        if key in fields:
            raise TypeError(f"{function}() was given the {key} twice, {value!r:.100} and {fields[key]!r:.100}")
        fields[key] = value
    if "role" in fields:
        raise TypeError(
            f"{function}() has the role {role!r}, and was given role={fields['role']!r:.100}: "
            f"write Msg(name, content, role) for another one"
        )
    if "content" not in fields:
        raise TypeError(f"{function}() needs a content: write {function}('Hi') or {function}('bob', 'Hi')")
    return Msg(**{"name": role, **fields}, role=role)


def new_message_like(message: Msg, content: str | list[ContentBlock]) -> Msg:
    """Return a message from the same sender, with the same id and time, that holds the content and nothing else."""
    return new_message(message.name, content, message.role, message.id, message.created_at)


def new_reply_message(name: str, reply_id: str) -> Msg:
    """Return the message of a reply that begins, without content."""
    return new_message(name, [], "assistant", reply_id)


def new_message(
    name: str, content: str | list[ContentBlock], role: Role, id: str, created_at: int | None = None
) -> Msg:
    """Return a message that has only these, which are not checked."""
    new = Msg.__new__(Msg)  # one by one, in a third of the time, since there is nothing to check
    new.name, new.content, new.role, new.id = name, content, role, id
    new.metadata, new.created_at = {}, time_ns() if created_at is None else created_at
    new.usage = new.structured_output = new.finished_reason = new.error = None
    return new


def _block_as_html(block: ContentBlock) -> str:
    if isinstance(block, TextBlock):
        return f"<div>{_escape(block.text)}</div>"
    if isinstance(block, DataBlock):
        kind = _escape(block.source.media_type)
        if isinstance(block.source, Base64Source) and kind.startswith("image/"):
            return f'<img src="data:{kind};base64,{_escape(block.source.data)}" style="max-width: 100%">'
        return f"<div>[{kind}]</div>"  # an address is not fetched: that would tell its server who reads this
    if isinstance(block, ToolCallBlock):
        return f"<div><code>{_escape(block.name)}({_escape(block.input)})</code></div>"
    if isinstance(block, ToolResultBlock):
        return f"<blockquote>{''.join(map(_block_as_html, block.blocks))}</blockquote>"
    if isinstance(block, ProviderBlock):
        text = block.content
    else:
        text = block.hint if isinstance(block, HintBlock) else block.thinking
    return f"<details><summary>{block.type}</summary>{_escape(text)}</details>"


def _escape(text: str) -> str:
    from html import escape  # here, since it loads the names of all of HTML's characters

    return escape(text)


@cache
def message_adapter() -> "pydantic.TypeAdapter[Msg]":
    """Return what reads and writes messages; built on first use, since that takes milliseconds."""
    return pydantic.TypeAdapter(Msg)


@cache
def message_serializer() -> SchemaSerializer:
    """Return what writes messages for a state: a number that is not finite as it is, so that it is noticed."""
    return SchemaSerializer(message_adapter().core_schema, CoreConfig(ser_json_inf_nan="constants"))


def copy_block(block: ContentBlock) -> ContentBlock:
    """Return a block of its own: changing it leaves this one alone."""
    if block.__class__ is TextBlock:
        return TextBlock(block.text, block.id)
    if block.__class__ is ToolCallBlock:
        call = ToolCallBlock.__new__(ToolCallBlock)  # field by field, since each call that enters a chain is copied
        call.id, call.name, call.input = block.id, block.name, block.input
        call.state, call.type = block.state, block.type
        return call
    new = _clone(block)
    if isinstance(new, DataBlock):
        new.source = _clone(new.source)
    elif isinstance(new, ToolResultBlock):
        new.metadata = deepcopy(new.metadata) if new.metadata else {}
        if isinstance(new.output, list):
            new.output = [copy_block(part) for part in new.output]  # type: ignore[misc]  # text stays text, data data
    return new


def take_over_block(block: ContentBlock, other: ContentBlock) -> None:
    """Make a block what another one of its class is."""
    copied = copy_block(other)
    for name in _field_names(block.__class__):  # type: ignore[arg-type]  # likewise
        setattr(block, name, getattr(copied, name))


def _clone(value: _Cloned) -> _Cloned:
    # Several times cheaper than copy.copy, which goes through pickling's protocol.
    cls = value.__class__
    new = cls.__new__(cls)
    for name in _field_names(cls):  # type: ignore[arg-type]  # a class is hashable
        setattr(new, name, getattr(value, name))
    return new


@cache
def _field_names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


class _BlockIndex:
    """Where the blocks of a list are. As long as the list only grows, each block is looked at once."""

    __slots__ = ("_indexed", "_places", "content")

    def __init__(self, content: list[ContentBlock]) -> None:
        self.content = content
        self._indexed = 0
        self._places: dict[tuple[str, type], int] = {}

    def find(self, block_id: str, kind: type) -> ContentBlock | None:
        block = self._look_up(block_id, kind)
        if block is None:
            # The list may have been changed in another way, such as a withdrawal: search all of it before giving up.
            self._indexed = 0
            self._places.clear()
            block = self._look_up(block_id, kind)
        return block

    def _look_up(self, block_id: str, kind: type) -> ContentBlock | None:
        content = self.content
        for place in range(self._indexed, len(content)):
            block = content[place]
            self._places[block.id, block.__class__] = place
        self._indexed = len(content)
        index = self._places.get((block_id, kind))
        if index is None or index >= len(content):
            return None
        block = content[index]
        return block if block.id == block_id and block.__class__ is kind else None


def _block_list(msg: Msg) -> list[ContentBlock]:
    # A `str` becomes its one block, so that the events of a reply can follow it.
    if isinstance(msg.content, str):
        msg.content = [TextBlock(msg.content)] if msg.content else []
    return msg.content


def find_block(msg: Msg, block_id: str, kind: type) -> Any:
    """Return the last block with that id and class; raises `ValueError` without one."""
    content = msg.content
    if not isinstance(content, str):
        # From the end: the block that an event names is nearly always the last one.
        steps_left = _MAX_LOOK_BACK
        for block in reversed(content):
            if block.id == block_id and block.__class__ is kind:
                return block
            steps_left -= 1
            if not steps_left:
                index: _BlockIndex | None = getattr(msg, "in_process", None)
                if index is None or index.content is not content:
                    index = msg.in_process = _BlockIndex(content)
                indexed = index.find(block_id, kind)
                if indexed is not None:
                    return indexed
                break
    raise ValueError(f"the message {msg.id!r} has no {kind.__name__} with id {block_id!r}: was an event left out?")


def _start_reply(msg: Msg, event: ReplyStartEvent) -> None:
    msg.id, msg.name, msg.role, msg.created_at = event.reply_id, event.name, event.role, event.created_at


def _restore_reply(msg: Msg, event: ReplyResumedEvent) -> None:
    msg.id, msg.name, msg.role = event.reply_id, event.name or msg.name, event.role
    msg.created_at = event.begun_at or msg.created_at
    msg.content = [copy_block(block) for block in event.blocks]
    msg.usage = event.usage


def _end_reply(msg: Msg, event: ReplyEndEvent) -> None:
    msg.finished_reason, msg.error = event.finished_reason, event.error
    output = event.structured_output
    msg.structured_output = None if output is None else deepcopy(output)  # the event is its reader's
    if event.finished_reason != "completed":
        # A block that was started and got no content: providers would refuse the conversation from then on.
        msg.content = [block for block in _block_list(msg) if not _is_empty_block(block)]


def _is_empty_block(block: ContentBlock) -> bool:
    if isinstance(block, ThinkingBlock):
        return not block.thinking and block.signature is None
    return isinstance(block, TextBlock) and not block.text


def _add_usage(msg: Msg, event: ModelCallEndEvent) -> None:
    if event.replayed:  # the sum is what this reply has used, which is nothing here
        # A result means that there was an earlier call of the model, whose tokens are not known.
        if msg.usage is None and not msg.has_content_blocks(_AFTER_A_CALL):
            msg.usage = ChatUsage()
        return
    # Tokens that were not counted are not 0: the sum is an estimate from then on.
    if event.input_tokens is None or event.output_tokens is None:
        if msg.usage is not None:  # the sum lacks this call
            msg.usage = replace(msg.usage, estimated=True)
        return
    usage = ChatUsage(
        event.input_tokens,
        event.output_tokens,
        event.cache_input_tokens,
        event.cache_creation_input_tokens,
        event.estimated,
    )
    if msg.usage is not None:
        msg.usage += usage
    else:
        msg.usage = usage
        # A result means that there was an earlier call of the model, whose tokens are not known.
        usage.estimated = usage.estimated or msg.has_content_blocks(_AFTER_A_CALL)


def _add_usage_of_subagent(msg: Msg, event: SubagentEndEvent) -> None:
    # A sub-agent that waits, or whose process died, ends more than once: its latest usage includes the earlier ones.
    if event.usage is not None:
        # A model call of the supervisor came before: without a usage, it was not counted.
        msg.usage = (msg.usage or ChatUsage(estimated=True)).with_subagent(event.child_reply_id, event.usage)
    elif msg.usage is not None:  # the sum lacks this reply
        msg.usage = replace(msg.usage, estimated=True)


def _withdraw_blocks(msg: Msg, event: ModelCallRetryEvent | BlocksWithdrawnEvent) -> None:
    withdrawn = set(event.block_ids)
    msg.content = [block for block in _block_list(msg) if block.id not in withdrawn]


def _append_text(msg: Msg, event: TextBlockDeltaEvent) -> None:
    # Not by `find_block`, which would cost a call for each event; both find the same block.
    content = msg.content
    block: Any = content[-1] if content else None
    if block.__class__ is not TextBlock or block.id != event.block_id:
        block = find_block(msg, event.block_id, TextBlock)
    # The local holds the only reference, so CPython appends in place and a long text costs linear time, not quadratic.
    # An interpreter without reference counting copies instead, which is slower and no less right.
    text = block.text
    block.text = ""
    text += event.delta
    block.text = text


def _end_text(msg: Msg, event: TextBlockEndEvent) -> None:
    if event.text is not None:
        find_block(msg, event.block_id, TextBlock).text = event.text


def _append_thinking(msg: Msg, event: ThinkingBlockDeltaEvent) -> None:
    block = find_block(msg, event.block_id, ThinkingBlock)
    # As for text: the local holds the only reference.
    thinking = block.thinking
    block.thinking = ""
    thinking += event.delta
    block.thinking = thinking


def _sign_thinking(msg: Msg, event: ThinkingBlockEndEvent) -> None:
    if event.signature is not None:
        find_block(msg, event.block_id, ThinkingBlock).signature = event.signature


def _append_tool_input(msg: Msg, event: ToolCallDeltaEvent) -> None:
    block = find_block(msg, event.tool_call_id, ToolCallBlock)
    # As for text: the local holds the only reference.
    text = block.input
    block.input = ""
    text += event.delta
    block.input = text


def new_tool_result(call_id: str, name: str) -> ToolResultBlock:
    """Return the result of a call that runs, without output."""
    new = ToolResultBlock.__new__(ToolResultBlock)  # field by field, in a third of the time: there is one for each call
    new.id, new.name, new.output, new.state = call_id, name, [], _RESULT_RUNNING
    new.metadata, new.type = {}, "tool_result"
    return new


def _append_tool_text(msg: Msg, event: ToolResultTextDeltaEvent) -> None:
    output = find_block(msg, event.tool_call_id, ToolResultBlock).output
    if output and output[-1].id == event.block_id and isinstance(output[-1], TextBlock):
        block = output[-1]
        text = block.text
        block.text = ""
        text += event.delta
        block.text = text
    else:
        output.append(TextBlock(event.delta, event.block_id))


def _append_tool_data(msg: Msg, event: ToolResultDataDeltaEvent) -> None:
    output = find_block(msg, event.tool_call_id, ToolResultBlock).output
    if not (output and output[-1].id == event.block_id and isinstance(output[-1], DataBlock)):
        output.append(DataBlock(Base64Source("", event.media_type), event.name, event.block_id))
    _extend_data_block(output[-1], event)


def _extend_data_block(block: DataBlock, event: DataBlockDeltaEvent | ToolResultDataDeltaEvent) -> None:
    source = block.source
    if event.url is not None:
        block.source = URLSource(event.url, event.media_type)
    elif event.data is not None and isinstance(source, Base64Source):
        # Every piece is encoded by itself, padding and all. Only the last group of what is there can be incomplete; the
        # runtime's own pieces end with a whole one, and are appended in place, as text is.
        rest = base64.b64decode(event.data)
        data = source.data
        if data.endswith("="):
            rest = base64.b64decode(data[-4:]) + rest
            data = data[:-4]
        source.data = ""
        data += base64.b64encode(rest).decode()
        source.data = data


def _end_tool_result(msg: Msg, event: ToolResultEndEvent) -> None:
    block = find_block(msg, event.tool_call_id, ToolResultBlock)
    block.state = event.state
    block.metadata = dict(event.metadata) if event.metadata else {}  # a dict of its own: events are shared
    if event.output is not None:
        block.output = [_clone(part) for part in event.output]
    find_block(msg, event.tool_call_id, ToolCallBlock).state = _CALL_FINISHED


def _set_call_states(state: ToolCallState) -> Callable[[Msg, Any], None]:
    def apply(msg: Msg, event: RequireUserConfirmEvent | RequireExternalExecutionEvent) -> None:
        for call in event.tool_calls:
            # The question of a running call has a path, whose first part is the call itself.
            call_id, slash, _ = call.id.partition("/")
            find_block(msg, call_id, ToolCallBlock).state = _CALL_RUNNING if slash else state

    return apply


def _apply_answers(msg: Msg, event: UserConfirmResultEvent) -> None:
    for result in event.confirm_results:
        if "/" in result.tool_call.id:  # for a running call, which stays in that state
            continue
        call = find_block(msg, result.tool_call.id, ToolCallBlock)
        if call.state is ToolCallState.ASKING:  # a second answer to the same question changes nothing
            call.state = ToolCallState.ALLOWED if result.confirmed else ToolCallState.PENDING
            # A running call that is asked about because of a new rule resumes.
            if any(isinstance(block, ToolResultBlock) and block.id == call.id for block in msg.content):
                call.state = _CALL_RUNNING
            if result.confirmed:
                call.input = result.tool_call.input


APPLY: dict[type[AgentEvent], Callable[[Msg, Any], None]] = {
    ReplyStartEvent: _start_reply,
    ReplyResumedEvent: _restore_reply,
    ReplyEndEvent: _end_reply,
    ModelCallEndEvent: _add_usage,
    SubagentEndEvent: _add_usage_of_subagent,
    ModelCallRetryEvent: _withdraw_blocks,
    BlocksWithdrawnEvent: _withdraw_blocks,
    TextBlockStartEvent: lambda msg, event: _block_list(msg).append(TextBlock("", event.block_id)),
    TextBlockDeltaEvent: _append_text,
    TextBlockEndEvent: _end_text,
    ThinkingBlockStartEvent: lambda msg, event: _block_list(msg).append(ThinkingBlock("", event.block_id)),
    ThinkingBlockDeltaEvent: _append_thinking,
    ThinkingBlockEndEvent: _sign_thinking,
    DataBlockStartEvent: lambda msg, event: _block_list(msg).append(
        DataBlock(Base64Source("", event.media_type), event.name, event.block_id)
    ),
    DataBlockDeltaEvent: lambda msg, event: _extend_data_block(find_block(msg, event.block_id, DataBlock), event),
    HintBlockEvent: lambda msg, event: _block_list(msg).append(HintBlock(event.hint, event.source, event.block_id)),
    ProviderBlockEvent: lambda msg, event: _block_list(msg).append(
        ProviderBlock(event.provider, event.content, event.block_id)
    ),
    ToolCallStartEvent: lambda msg, event: _block_list(msg).append(
        ToolCallBlock(event.tool_call_id, event.tool_call_name)
    ),
    ToolCallDeltaEvent: _append_tool_input,
    ToolResultStartEvent: lambda msg, event: _block_list(msg).append(
        new_tool_result(event.tool_call_id, event.tool_call_name)
    ),
    ToolResultTextDeltaEvent: _append_tool_text,
    ToolResultDataDeltaEvent: _append_tool_data,
    ToolResultEndEvent: _end_tool_result,
    RequireUserConfirmEvent: _set_call_states(ToolCallState.ASKING),
    RequireExternalExecutionEvent: _set_call_states(ToolCallState.SUBMITTED),
    UserConfirmResultEvent: _apply_answers,
}

# A look at the event where it is applied, since many pass there, and a function around each of these costs more.
CALL_EVENTS = frozenset(
    {
        ToolCallStartEvent,
        ToolCallDeltaEvent,
        ToolResultStartEvent,
        ToolResultTextDeltaEvent,
        ToolResultDataDeltaEvent,
        ToolResultEndEvent,
    }
)
"""The events that change the block of a call; a call that a tool makes, whose id is a path, has none in any message."""
