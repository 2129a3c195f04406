"""A conversation in the shape of Anthropic's messages API."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from pydantic_core import from_json

from agentrt._runtime.block import (
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    JSONObject,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
    URLSource,
    citations_in,
)
from agentrt._runtime.boundary import DATA_URL
from agentrt._runtime.text import lazy_pattern
from agentrt.formatter.conventions import (
    CONVERSATION_START,
    UNANSWERED,
    CallIds,
    empty_result_text,
    is_svg,
    is_text_type,
    object_in,
    results_of_calls,
    text_part,
)
from agentrt.message import Msg

ANTHROPIC = "anthropic"
"""The name of this provider in a `ProviderBlock`."""

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PACKED = "anthropic:"  # prefix of a signature that holds several blocks of thinking
# Parts made from blocks of other classes; a stored block of this provider must not pass for one of them.
_OTHER_BLOCKS = (
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "image",
    "document",
    "citations",  # which belong to the text before them
)
_SEARCH_CITATION_FIELDS = ("type", "url", "title", "cited_text", "encrypted_index")  # those that the API takes back
_FORBIDDEN_IN_IDS = lazy_pattern(r"[^a-zA-Z0-9_-]")


def format_anthropic(messages: Sequence[Msg]) -> JSONObject:
    """Return the `messages` of a request, and its `system` when there is a system message.

    Roles alternate, beginning with the user's; the results of a turn's calls come first in the turn after it, in the
    order of the calls, and a call without a result gets a note in its place. Thinking goes back only with the signature
    that came with it. The work of Anthropic's own tools goes back unchanged, a use together with its result; one that
    is still without a result ends the request or is left out. Content that the API does not take (sound, an image of
    the assistant's own) leaves a note in its place.
    """
    # Names from another provider may have other characters.
    call_ids = CallIds(lambda call_id: _FORBIDDEN_IN_IDS.sub("_", call_id) or "call")
    return arrange_turns(messages, _media_part, call_ids, _provider_parts)


def arrange_turns(
    messages: Sequence[Msg],
    media_part: Callable[[DataBlock], JSONObject],
    call_ids: CallIds,
    provider_parts: Callable[[Sequence[tuple[str, ContentBlock]]], dict[int, JSONObject]],
) -> JSONObject:
    """Return the conversation in turns, as Claude takes them from any server.

    `provider_parts` returns the parts that go back unchanged, by the identity of their block.
    """
    items = [(msg.role, block) for msg in messages if msg.role != "system" for block in msg.get_content_blocks()]
    turns = _Turns(results_of_calls(block for _, block in items), media_part, call_ids, provider_parts(items))
    for role, block in items:
        turns.add(role, block)
    payload: JSONObject = {"messages": turns.end()}
    system: list[str] = []
    for msg in messages:
        if msg.role == "system":
            blocks = [block for block in msg.get_content_blocks() if isinstance(block, (TextBlock, HintBlock))]
            texts = [block.text if isinstance(block, TextBlock) else block.hint for block in blocks]
            system.append("\n".join(text for text in texts if text.strip()))
    text = "\n\n".join(filter(None, system))
    return {"system": text, **payload} if text else payload


def pack_thinking(parts: Sequence[JSONObject]) -> str | None:
    """Return the signature to keep for one `ThinkingBlock` that holds the text of all these blocks of thinking.

    Thinking may come as several blocks in a row, each with a signature of its own or encrypted as a whole, and goes
    back exactly as it came.
    """
    if len(parts) == 1 and parts[0]["type"] == "thinking" and not parts[0]["signature"].startswith(_PACKED):
        return parts[0]["signature"] or None
    return f"{_PACKED}{json.dumps(list(parts), ensure_ascii=False)}"


def _unpack_thinking(block: ThinkingBlock) -> list[JSONObject]:
    signature = block.signature
    if not signature:
        return []
    if ":" in signature and not signature.startswith(_PACKED):
        return []  # from another provider's adapter: signatures of this API are base64, without a colon
    if not signature.startswith(_PACKED):
        return [{"type": "thinking", "thinking": block.thinking, "signature": signature}]
    try:
        parts = from_json(signature.removeprefix(_PACKED))
    except (ValueError, TypeError):  # from another model adapter, or with half a surrogate pair
        return []
    # The stored text may have been changed by others, and must not become a part of another kind.
    return [
        part
        for part in (parts if isinstance(parts, list) else [])
        if isinstance(part, dict)
        and (
            (part.get("type") == "thinking" and part.get("signature"))
            or (part.get("type") == "redacted_thinking" and part.get("data"))
        )
    ]


def _provider_parts(items: Sequence[tuple[str, ContentBlock]]) -> dict[int, JSONObject]:
    """Return the parts of Anthropic's own tools that the API accepts, by the identity of their block.

    It refuses a result without its use, and a use without a result unless the answer continues. Beside a
    call of an agent's tool, a use may get its result with the next answer, which then begins with it.
    """
    uses = _OpenUses()
    has_called = False
    paired = {id(result) for result in results_of_calls(block for _, block in items).values()}
    for role, block in items:
        is_answer = role == "assistant"
        if isinstance(block, ProviderBlock):
            if is_answer and (part := _provider_part(block)) is not None:
                uses.add(block, part)
            continue
        is_result = id(block) in paired
        if is_result or (has_called and isinstance(block, ThinkingBlock)):
            uses.end_round()
            has_called = False
        elif is_answer and not isinstance(block, ThinkingBlock):
            uses.drop_due()
        has_called = has_called or isinstance(block, ToolCallBlock)
        # A hint, and a result without its call, is text in the user's turn.
        if not is_result and (isinstance(block, (HintBlock, ToolResultBlock)) or not is_answer):
            uses.drop_all()
    return uses.parts


class _OpenUses:
    """The uses of Anthropic's own tools that have no result yet, and the `parts` that the API accepts so far."""

    def __init__(self) -> None:
        self.parts: dict[int, JSONObject] = {}
        self._open: dict[str, int] = {}  # the identities of their blocks, by the ids of the uses
        self._due: set[str] = set()  # those of an earlier round

    def add(self, block: ProviderBlock, part: JSONObject) -> None:
        """Add a use, or the result of an open one."""
        is_use = part["type"].endswith("_tool_use")
        if is_use:
            self.drop_due()
        if "tool_use_id" in part and self._open.pop(part["tool_use_id"], None) is None:
            return
        self.parts[id(block)] = part
        if is_use:
            self._open[part["id"]] = id(block)

    def end_round(self) -> None:
        """The next answer has to begin with the results of the open uses."""
        self._due = {*self._open}

    def drop_due(self) -> None:
        """Drop the uses of the earlier round: the answer begins with something else, so it is another model's."""
        self._drop(self._due & self._open.keys())

    def drop_all(self) -> None:
        """Drop all open uses: in the user's turn, they never get a result."""
        self._drop([*self._open])

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            del self.parts[self._open.pop(name)]


def _provider_part(block: ProviderBlock) -> JSONObject | None:
    part = object_in(block.content) if block.provider == ANTHROPIC else None
    kind = part.get("type") if part else None
    if not part or not isinstance(kind, str) or kind in _OTHER_BLOCKS:
        return None
    names = ["id"] if kind.endswith("_tool_use") else []
    names += ["tool_use_id"] if "tool_use_id" in part else []
    return part if all(isinstance(part.get(name), str) for name in names) else None


class _Turns:
    """The turns so far, and the blocks held back until their place is known."""

    def __init__(
        self,
        results: dict[int, ToolResultBlock],
        media_part: Callable[[DataBlock], JSONObject],
        call_ids: CallIds,
        provider_parts: dict[int, JSONObject],
    ) -> None:
        self._results = results
        self._media_part = media_part
        self._call_ids = call_ids
        self._provider_parts = provider_parts
        self._paired = {id(result) for result in results.values()}
        self._turns: list[JSONObject] = []
        self._thinking: list[JSONObject] = []
        self._calls: list[tuple[str, ToolCallBlock]] = []  # calls of the turn without a result in the next one yet

    def add(self, role: str, block: ContentBlock) -> None:
        match block:
            case TextBlock():
                self._add_text("assistant" if role == "assistant" else "user", block.text)
            case ToolCallBlock():
                self._add_call(block)
            case ToolResultBlock():
                self._add_result(block)
            case ThinkingBlock():
                # Thinking begins an answer, so thinking after calls belongs to the next one. Nothing may end in
                # thinking: it waits for what follows on it.
                self._add_results()
                self._thinking += _unpack_thinking(block)
            case HintBlock():
                self._add_text("user", block.hint)
            case ProviderBlock():
                if id(block) in self._provider_parts:
                    self._add_part("assistant", self._provider_parts[id(block)])
                elif block.provider == ANTHROPIC and role == "assistant":
                    self._cite(block)
            case _ if role == "assistant":
                self._add_text("assistant", unshown_file(block))
            case _:
                self._add_part("user", self._media_part(block))

    def end(self) -> list[JSONObject]:
        self._add_results()
        # The API requires a turn, the user's first: compression or a greeting may leave none.
        if not self._turns or self._turns[0]["role"] == "assistant":
            self._turns.insert(0, {"role": "user", "content": [text_part(CONVERSATION_START)]})
        # The API does not continue an answer that ends in white space.
        last = self._turns[-1]
        end = last["content"][-1]
        if last["role"] == "assistant" and end["type"] == "text":
            last["content"][-1] = {**end, "text": end["text"].rstrip()}
        return self._turns

    def _add_call(self, block: ToolCallBlock) -> None:
        call_id = self._call_ids.new(block)
        # The API takes only objects. The tool refused anything else, and the model should see what it wrote.
        arguments = object_in(block.input) if block.input.strip() else {}
        part = {
            "type": "tool_use",
            "id": call_id,
            "name": _FORBIDDEN_IN_IDS.sub("_", block.name)[:128] or "unnamed",
            "input": {"INVALID_JSON": block.input} if arguments is None else arguments,
        }
        self._add_part("assistant", part)
        self._calls.append((call_id, block))

    def _add_result(self, block: ToolResultBlock) -> None:
        if id(block) in self._paired:
            self._add_results()
            return
        self._add_text("user", f"Result of {block.name!r}, whose call is no longer part of the conversation:")
        for part in self._result_parts(block):
            self._add_part("user", part)

    def _add_results(self) -> None:
        """Give each call of the turn its result, all of them before anything else of the next turn."""
        calls, self._calls = self._calls, []  # first: `_add_part` calls this method
        for call_id, call in calls:
            result = self._results.get(id(call))
            content = [text_part(UNANSWERED)] if result is None else list(self._result_parts(result))
            part: JSONObject = {"type": "tool_result", "tool_use_id": call_id, "content": content}
            if result is None or result.state not in (ToolResultState.SUCCESS, ToolResultState.RUNNING):
                part["is_error"] = True
            self._add_part("user", part)

    def _result_parts(self, result: ToolResultBlock) -> Iterator[JSONObject]:
        # The API refuses blank text and empty results.
        contents = [block for block in result.blocks if not isinstance(block, TextBlock) or block.text.strip()]
        if not contents:
            yield text_part(empty_result_text(result))
        for block in contents:
            yield text_part(block.text) if isinstance(block, TextBlock) else self._media_part(block)

    def _add_text(self, role: str, text: str) -> None:
        if text.strip():  # the API refuses blank text
            self._add_part(role, text_part(text))

    def _cite(self, block: ProviderBlock) -> None:
        """Split the text that was added last into its cited passages, as it came."""
        content = self._turns[-1]["content"] if self._turns and self._turns[-1]["role"] == "assistant" else []
        if content and content[-1].keys() == {"type", "text"}:
            text = content[-1]["text"]
            content[-1:] = _cited_parts(text, citations_in(block, text))

    def _add_part(self, role: str, part: JSONObject) -> None:
        if role == "user":
            self._add_results()
        if not self._turns or self._turns[-1]["role"] != role:
            self._turns.append({"role": role, "content": []})
        content = self._turns[-1]["content"]
        if role == "assistant":
            content += self._thinking
        self._thinking = []
        content.append(part)


def _cited_parts(text: str, citations: list[JSONObject]) -> list[JSONObject]:
    """Return the text in parts; a part that rests on a search carries its citations.

    Citations of documents are left out: they refer to documents by their number in a request, which may have changed.
    """
    passages: dict[tuple[int, int], list[JSONObject]] = {}
    for citation in citations:
        start, end, source = citation.get("start"), citation.get("end"), citation.get("source")
        if not isinstance(source, dict) or source.get("type") != "web_search_result_location":
            continue
        is_whole = all(isinstance(source.get(name), str) for name in ("url", "cited_text", "encrypted_index"))
        if isinstance(start, int) and isinstance(end, int) and is_whole:
            passages.setdefault((start, end), []).append({name: source.get(name) for name in _SEARCH_CITATION_FIELDS})
    parts: list[JSONObject] = []
    last = 0
    for (start, end), sources in sorted(passages.items(), key=lambda passage: passage[0]):
        # A layer may have changed the text. The API refuses blank parts, so the space between two goes with the second.
        if last <= start < end <= len(text) and text[start:end].strip():
            if text[last:start].strip():
                parts.append(text_part(text[last:start]))
                last = start
            parts.append({**text_part(text[last:end]), "citations": sources})
            last = end
    if text[last:].strip():
        return [*parts, text_part(text[last:])]
    return parts


def _media_part(block: DataBlock) -> JSONObject:
    """Return an image or a document as the API takes it, or a note where it does not."""
    source = block.source
    if isinstance(source, URLSource) and (inline := DATA_URL.fullmatch(source.url)):
        source = Base64Source(inline["data"], inline["media_type"] or source.media_type)
    media_type = source.media_type.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
    is_image = media_type.startswith("image/")
    field: JSONObject | None = None
    if isinstance(source, URLSource):
        is_taken = media_type == "application/pdf" or (is_image and not is_svg(block))
        if is_taken and source.url.startswith(("http://", "https://")):
            field = {"type": "url", "url": source.url}
    elif media_type in _IMAGES or media_type == "application/pdf":
        field = {"type": "base64", "media_type": media_type, "data": source.data}
    elif is_text_type(media_type):
        with suppress(ValueError):  # of a file that is not text
            text = base64.b64decode(source.data, validate=True).decode()
            if text.strip():
                field = {"type": "text", "media_type": "text/plain", "data": text}
    if field is None:
        return text_part(unshown_file(block))
    if is_image:
        return {"type": "image", "source": field}
    return {"type": "document", "source": field, **({"title": block.name} if block.name else {})}


def unshown_file(block: DataBlock) -> str:
    """Return the note in place of a file that is not sent."""
    name = f" {block.name!r}" if block.name else ""
    where = f" at {block.source.url}" if isinstance(block.source, URLSource) and len(block.source.url) < 2000 else ""
    return f"[{block.source.media_type} file{name}{where}, which cannot be shown here]"
