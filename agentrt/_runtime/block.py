"""Content blocks: what a message is made of.

A block knows its kind by `type`. `id`s fill themselves in; inside a reply they are `{reply_id}-{n}`.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache, lru_cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, TypedDict, TypeVar

import pydantic  # whose classes are loaded by their first use: never name one at the top of a module
from pydantic_core import CoreSchema, ErrorDetails, ValidationError, from_json

from agentrt._runtime.keywords.attributes import suggest_attributes
from agentrt._runtime.representation import describe_content, fields_set, never_raises, repr_as_call
from agentrt.errors import InvalidInputError

_Parsed = TypeVar("_Parsed")

JSONObject = dict[str, Any]
"""An object as JSON has it."""


def new_id() -> str:
    """Return 96 bits of the system's random source in hex, as the id of a message, a block or a plan."""
    return os.urandom(12).hex()


_RANDOM_BITS, _VERSION_4 = ~(0xF << 76 | 0x3 << 62), 0x4 << 76 | 0x2 << 62


def new_name() -> str:
    """Return a UUID in 22 letters and digits that are easy to tell apart, as the id of an agent or a reply."""
    return _name_maker()()


@cache
def _name_maker() -> Callable[[], str]:
    import shortuuid.main  # not at the top: it loads `uuid`, which `import agentrt` need not wait for

    letters = shortuuid.ShortUUID().get_alphabet()  # not the package's own functions: a program may change its alphabet
    # Two letters a digit, the lower one first: half as many divisions of a long number, which are most of the price.
    pairs = [low + high for high in letters for low in letters]

    def make() -> str:
        # A random UUID, of version 4 of RFC 9562; as a number alone, since a `UUID` takes a third of the time.
        number = int.from_bytes(os.urandom(16), "big") & _RANDOM_BITS | _VERSION_4
        return shortuuid.main.int_to_string(number, pairs).rjust(22, letters[0])

    return make


class _ChosenByType:
    """Has pydantic take the class of a union that the field `type` names."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "pydantic.GetCoreSchemaHandler") -> CoreSchema:
        return pydantic.Discriminator("type").__get_pydantic_core_schema__(source, handler)


CHOSEN_BY_TYPE = _ChosenByType()
"""Beside a union of classes: the one to read from JSON is the one that the field `type` names."""


class ToolCallState(StrEnum):
    """The progress of a tool call; `RUNNING` means that it has started, and now waits for an answer or resumes."""

    PENDING = "pending"
    ASKING = "asking"
    ALLOWED = "allowed"
    SUBMITTED = "submitted"
    RUNNING = "running"
    FINISHED = "finished"


class ToolResultState(StrEnum):
    """How a tool call ended; `UNKNOWN` means that it may or may not have taken effect."""

    RUNNING = "running"
    SUCCESS = "success"
    ERROR = "error"
    DENIED = "denied"
    INTERRUPTED = "interrupted"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"


HIDDEN_CALL = "hidden:"
"""The prefix of the ids of hidden tools' calls, which identifies them without the tool."""


class InProcess:
    """Base of classes that may hold something of this process alone: not a field, so never saved, compared or copied.

    It is unset until the one module that uses it sets it: the lock of a conversation, say.
    """

    # A slot, and not a WeakKeyDictionary beside the objects: a slotted dataclass cannot be referred to weakly.
    __slots__ = ("in_process",)

    in_process: Any  # each class keeps something else here, which its one reader knows

    def __getstate__(self) -> tuple[None, JSONObject]:
        state: Any = object.__getstate__(self)  # a pair, for a class with slots
        return None, {name: value for name, value in state[1].items() if name != "in_process"}


class Record:
    """Base of dataclasses that are equal if their fields are, and whose `repr` is short.

    In it fields that have their defaults are left out, long texts are cut, and bytes are counted. Subclasses are
    dataclasses with `repr=False, eq=False`, since making two methods for each of these classes takes a quarter of the
    time of `import agentrt`; those here do the same.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        # The decorator `dataclass` gives each class a repr of its own, unless the class has one by then.
        if "__repr__" not in vars(cls):
            cls.__repr__ = Record.__repr__  # type: ignore[method-assign]  # it is the same method

    @never_raises
    def __repr__(self) -> str:
        values = {name: describe_content(value) for name, value in fields_set(self)}
        if isinstance(data := getattr(self, "data", None), str):  # base64
            values["data"] = f"<{len(data):,} characters>"
        return repr_as_call(type(self).__name__, values)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        values = _compared_values(self.__class__)  # type: ignore[arg-type]  # a class is hashable
        return values(self) == values(other)


class Strict(Record):
    """Base of everything that is read from JSON: a field that it does not have is refused, not dropped."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


@lru_cache(maxsize=256)  # of ours there are sixty
def _compared_values(cls: Any) -> Callable[[object], object]:
    """Return what takes from an instance the values by which a dataclass is compared."""
    names = [field.name for field in fields(cls) if field.compare]
    # One name alone would give its value, and not a tuple; NaN, say, is equal to itself only in a tuple.
    return attrgetter(*names, *names[:1])


@dataclass(slots=True, repr=False, eq=False)
class Base64Source(Strict):
    """Bytes carried in the message itself, base64-encoded."""

    data: str
    media_type: str
    type: Literal["base64"] = "base64"


@dataclass(slots=True, repr=False, eq=False)
class URLSource(Strict):
    """Bytes that live elsewhere."""

    url: str
    media_type: str
    type: Literal["url"] = "url"


@suggest_attributes(content="write block.text", value="write block.text")
@dataclass(slots=True, repr=False, eq=False)
class TextBlock(Strict):
    """Text for the reader."""

    text: str
    id: str = field(default_factory=new_id, repr=False)
    type: Literal["text"] = "text"


@suggest_attributes(content="write block.thinking", text="write block.thinking")
@dataclass(slots=True, repr=False, eq=False)
class ThinkingBlock(Strict):
    """The model's reasoning, kept apart from its answer; `signature` is what some providers need to take it back."""

    thinking: str
    id: str = field(default_factory=new_id, repr=False)
    signature: str | None = None
    type: Literal["thinking"] = "thinking"


@suggest_attributes(
    data="write block.source.data, of a Base64Source",
    media_type="write block.source.media_type",
    mime_type="write block.source.media_type",
    url="write block.source.url, of a URLSource",
)
@dataclass(slots=True, repr=False, eq=False)
class DataBlock(Strict):
    """An image, sound or file."""

    source: Annotated[Base64Source | URLSource, CHOSEN_BY_TYPE]
    name: str | None = None
    id: str = field(default_factory=new_id, repr=False)
    type: Literal["data"] = "data"


@suggest_attributes(content="write block.hint", text="write block.hint")
@dataclass(slots=True, repr=False, eq=False)
class HintBlock(Strict):
    """A note from the runtime or a middleware to the model, inside the model's own turn."""

    hint: str
    source: str | None = None
    id: str = field(default_factory=new_id, repr=False)
    type: Literal["hint"] = "hint"

    def __post_init__(self) -> None:
        if not isinstance(self.hint, str):
            raise TypeError(f"HintBlock(hint=...) must be a str, not {self.hint!r:.200}: join its parts into one")


@suggest_attributes(
    args="write block.input, which is JSON text",
    arguments="write block.input, which is JSON text",
    call_id="write block.id",
    function="write block.name and block.input",
    parameters="write block.input, which is JSON text",
    tool_call_id="write block.id",
    tool_call_name="write block.name",
    tool_name="write block.name",
)
@dataclass(slots=True, repr=False, eq=False)
class ToolCallBlock(Strict):
    """A model's request to run a tool; `input` is JSON text, exactly as the model wrote it."""

    id: str
    name: str
    input: str = ""
    state: ToolCallState = ToolCallState.PENDING
    type: Literal["tool_call"] = "tool_call"

    @property
    def is_hidden(self) -> bool:
        """Whether it is the call of a layer, by `Run.hidden_call`, which no model sees; so is the result's."""
        return self.id.startswith(HIDDEN_CALL)

    def __post_init__(self) -> None:
        if self.type != "tool_call":  # most likely a provider's word for it, given by position or from its JSON
            raise ValueError(f"the type of a ToolCallBlock is 'tool_call', not {self.type!r:.100}: leave it out")


def join_texts(output: str | Sequence[TextBlock | DataBlock]) -> str:
    """Return the text of a tool's output."""
    # A `str` where a list is meant has one meaning; tools and layers may give one.
    return (
        output if isinstance(output, str) else "\n".join(block.text for block in output if isinstance(block, TextBlock))
    )


@suggest_attributes(
    content="write block.output",
    result="write block.output",
    tool_call_id="write block.id",
    tool_call_name="write block.name",
    tool_name="write block.name",
)
@dataclass(slots=True, repr=False, eq=False)
class ToolResultBlock(Strict):
    """The result of the tool call with the same `id`."""

    id: str
    name: str
    output: str | list[Annotated[TextBlock | DataBlock, CHOSEN_BY_TYPE]]
    state: ToolResultState = ToolResultState.SUCCESS
    metadata: JSONObject = field(default_factory=dict)
    type: Literal["tool_result"] = "tool_result"

    @property
    def is_hidden(self) -> bool:
        """Whether it is the result of a call that no model sees."""
        return self.id.startswith(HIDDEN_CALL)

    @property
    def text(self) -> str:
        """The text of the output, one block a line, without data."""
        return join_texts(self.output)

    @property
    def blocks(self) -> list[TextBlock | DataBlock]:
        """The output as a new list of blocks; a `str` is one text block."""
        return [TextBlock(self.output)] if isinstance(self.output, str) else [*self.output]


@dataclass(slots=True, repr=False, eq=False)
class ProviderBlock(Strict):
    """The work of a provider's own tools, such as a web search; it is sent back in the next request.

    `content` is JSON text: that part of the answer as the API of `provider` gave it. Formatters for other providers
    leave it out.
    """

    provider: str
    content: str
    id: str = field(default_factory=new_id, repr=False)
    type: Literal["provider"] = "provider"


BLOCKS = (TextBlock, ThinkingBlock, DataBlock, HintBlock, ToolCallBlock, ToolResultBlock, ProviderBlock)
"""The classes of blocks."""

BlockType = Literal["text", "thinking", "data", "hint", "tool_call", "tool_result", "provider"]
"""The `type` of a content block."""
ContentBlock = Annotated[
    TextBlock | ThinkingBlock | DataBlock | HintBlock | ToolCallBlock | ToolResultBlock | ProviderBlock,
    CHOSEN_BY_TYPE,
]
"""Any content block, as one type: `block.type` says which."""


_CITATIONS = "citations"
_NO_PLACE = {"text": None, "block_id": None}


class Citation(TypedDict):
    """A source that a provider names for a part of its answer, such as a page found by its own search.

    `text` is that part, which is `block.text[start:end]` of the text block with the id `block_id`; all four are `None`
    where the provider does not say which part, or the part is not there any more. `quote` is what the source says.
    """

    url: str | None
    title: str | None
    quote: str | None
    text: str | None
    start: int | None
    end: int | None
    block_id: str | None
    source: JSONObject
    """The same as the provider's API gave it."""


def new_citation(
    source: JSONObject,
    *,
    url: object = None,
    title: object = None,
    quote: object = None,
    start: object = None,
    end: object = None,
) -> JSONObject:
    """Return a citation to keep, in which values that are not what they should be are `None`.

    What it says may be wrong, and is never worth the answer that it is about.
    """
    texts = {
        name: value if isinstance(value, str) and value else None
        for name, value in (("url", url), ("title", title), ("quote", quote))
    }
    is_placed = isinstance(start, int) and isinstance(end, int)
    return {**texts, "start": start if is_placed else None, "end": end if is_placed else None, "source": source}


def citations_block(provider: str, citations: Iterable[JSONObject], text: str, **fields: object) -> ProviderBlock:
    """Return the block that keeps the citations of the text before it, with further fields of the provider's own."""
    kept: list[JSONObject] = []
    for citation in citations:
        start, end = _cited_range(citation, text)
        words = None if start is None else text[start:end]
        kept.append({**citation, "start": start, "end": end, "text": words})
    return ProviderBlock(provider, json.dumps({"type": _CITATIONS, _CITATIONS: kept, **fields}, ensure_ascii=False))


def citations_in(block: ProviderBlock, text: str) -> list[JSONObject]:
    """Return the citations that the block keeps of the text before it, [] if it is about something else."""
    if f'"{_CITATIONS}"' not in block.content:
        return []
    try:
        kept = from_json(block.content)
    except (ValueError, TypeError):  # changed by others, or with half a surrogate pair
        return []
    citations = kept.get(_CITATIONS) if isinstance(kept, dict) and kept.get("type") == _CITATIONS else None
    found: list[JSONObject] = []
    for citation in citations if isinstance(citations, list) else ():
        if isinstance(citation, dict):
            start, end = _cited_range(citation, text)
            found.append({**citation, "start": start, "end": end})
    return found


def citations_of(blocks: Iterable[ContentBlock]) -> list[Citation]:
    """Return the citations among the blocks, each with its place in the text before it."""
    citations: list[Citation] = []
    text = TextBlock("", "")
    for block in blocks:
        if isinstance(block, TextBlock):
            text = block
        for kept in citations_in(block, text.text) if isinstance(block, ProviderBlock) else ():
            source, start, end = kept.get("source"), kept["start"], kept["end"]
            fields: Any = {name: kept.get(name) for name in ("url", "title", "quote", "start", "end")}
            citation: Any = new_citation(source if isinstance(source, dict) else {}, **fields)
            is_placed = start is not None
            citation |= {"text": text.text[start:end], "block_id": text.id} if is_placed else _NO_PLACE
            citations.append(citation)
    return citations


def _cited_range(citation: JSONObject, text: str) -> tuple[int, int] | tuple[None, None]:
    """Return which characters of the text the citation is about; they count if they are still the same."""
    start, end, words = citation.get("start"), citation.get("end"), citation.get("text")
    is_within = isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= len(text)
    if is_within and (not isinstance(words, str) or text[start:end] == words):
        return start, end
    # A layer has changed the text.
    if isinstance(words, str) and words and (place := text.find(words)) >= 0:
        return place, place + len(words)
    return None, None


def no_json_form(what: str, error: Exception) -> InvalidInputError:
    """Return the error for something that holds a value which JSON has no form for."""
    return InvalidInputError(
        f"{what} cannot be written as JSON: {error!s:.200}; put only texts, numbers, lists, dicts and models into it"
    )


def parse_json(adapter: "pydantic.TypeAdapter[_Parsed]", text: str | bytes, noun: str) -> _Parsed:
    """Return the value that the JSON holds; raises `InvalidInputError`, in one line, for anything else."""
    try:
        return adapter.validate_json(text)
    except ValidationError as exc:
        # In a union, the branch that got furthest is most likely the one that was meant.
        errors = exc.errors(include_input=False, include_url=False)
        problem = _describe_error(max(errors, key=lambda error: len(error["loc"])))
    # Raised here, since pydantic's error, which quotes what it refused, would become the context of this one.
    raise InvalidInputError(f"not {noun}: {problem}")


def _describe_error(error: ErrorDetails) -> str:
    kind, location = error["type"], error["loc"]
    is_about_field = kind in ("missing", "unexpected_keyword_argument")
    # The tags of unions, which pydantic puts among the keys, are not part of the JSON.
    keys = [
        str(key)
        for key in (location[:-1] if is_about_field else location)
        if isinstance(key, int) or (key.isidentifier() and not key.isupper() and key != "str")
    ]
    place = f"its {'.'.join(keys)!r:.100}" if keys else "it"
    if kind == "json_invalid":
        return f"it is not JSON ({error['ctx']['error']})"
    if kind == "union_tag_not_found":
        return f"{place} has no type"
    if kind == "union_tag_invalid":
        return f"{place} has the type {error['ctx']['tag']!r:.100}, which does not exist"
    if is_about_field:  # whose name may be any text
        return f"{place} has {'no ' if kind == 'missing' else 'the unknown field '}{location[-1]!r:.100}"
    return f"{place} {error['msg'].removeprefix('Input ')}" if keys else "it is not a JSON object"
