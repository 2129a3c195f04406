"""Messages written as dicts, in the form of OpenAI's API, in which many programs keep their conversations."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from agentrt.boundary import DATA_URL
from agentrt.errors import InvalidInputError
from agentrt.message import Base64Source, ContentBlock, DataBlock, Msg, TextBlock, URLSource

__all__ = ["message_from_dict"]

_ACCEPTED_ROLES = ("user", "assistant", "system")
_KEYS = ("role", "content", "name")
_ONLY_A_REPLY = (
    "calls of tools and their results are made by replies alone, so leave them out, or load the conversation with "
    "Agent(state=...)"
)
_ONLY_A_MSG = "write a Msg instead, or read what Msg.to_json() wrote with Msg.from_json(text)"
_REFUSED_KEYS = {
    **dict.fromkeys(("function_call", "tool_call_id", "tool_calls"), _ONLY_A_REPLY),
    **dict.fromkeys(("created_at", "id", "metadata", "usage"), _ONLY_A_MSG),
    "input": 'give the text by itself, or {"role": "user", "content": "Hi"}',
    "messages": "give the list by itself, as in agent.reply([...])",
    "reply_id": "read an event, such as the answer to a question, with AgentEvent.from_json(text)",
}
_REFUSED_ROLES = {
    "developer": "give Agent(system_prompt=...) instead, or send it with the role 'user'",
    "function": _ONLY_A_REPLY,
    "tool": _ONLY_A_REPLY,
}
# What other libraries say for ours.
_PEERS_KEYS = {"message": "content", "parts": "content", "sender": "name", "text": "content", "type": "role"}
_PEERS_ROLES = {"ai": "assistant", "human": "user", "model": "assistant"}
_IMAGE_TYPES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}


def message_from_dict(values: Mapping[str, Any]) -> Msg:
    """Return the message that such a dict stands for; raises `InvalidInputError`, with the remedy, for others."""
    # OpenAI's own messages say `None` or [] of what they do not have.
    unknown = [key for key, value in values.items() if key not in _KEYS and value is not None and value != []]
    if unknown:
        telling = [key for key in unknown if key in _REFUSED_KEYS]  # which say what it is instead
        raise InvalidInputError(_unknown_key("a message", (telling or unknown)[0], _KEYS))
    for key in ("role", "content"):
        if values.get(key) is None:
            raise InvalidInputError(
                f'the message {dict(values)!r:.200} has no {key!r}: write {{"role": "user", "content": "Hi"}}'
            )
    role, name = values["role"], values.get("name")
    if role not in _ACCEPTED_ROLES:
        word = str(role)
        remedy = _REFUSED_ROLES.get(word) or f"write {_PEERS_ROLES.get(word, 'user')!r}"
        raise InvalidInputError(f"the role of a message cannot be {role!r:.100}: {remedy}")
    if name is not None and not isinstance(name, str):
        raise InvalidInputError(f"the name in a message must be a str, not {name!r:.200}")
    return Msg(name or role, _read_content(values["content"]), role)


def _unknown_key(owner: str, key: object, keys: Sequence[str]) -> str:
    name = str(key)
    if name in _REFUSED_KEYS:
        return f"{owner} cannot have {name!r}: {_REFUSED_KEYS[name]}"
    guesses = [_PEERS_KEYS[name]] if _PEERS_KEYS.get(name) in keys else get_close_matches(name, keys, 1)
    hint = f"did you mean {guesses[0]!r}? " if guesses else ""
    return f"{owner} has the unknown key {key!r:.100}: {hint}it takes {', '.join(keys)}"


def _read_content(content: object) -> str | list[ContentBlock]:
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise InvalidInputError(f"the content of a message must be a str or a list of parts, not {content!r:.200}")
    return [part if isinstance(part, (TextBlock, DataBlock)) else _read_part(part) for part in content]


def _read_part(part: Any) -> TextBlock | DataBlock:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text":
        return TextBlock(_read_text(part, "text", "a part of the type 'text'", ("type", "text")))
    if kind == "image_url":
        for key in part:
            if key not in ("type", "image_url"):
                raise InvalidInputError(_unknown_key("a part of the type 'image_url'", key, ("type", "image_url")))
        return _read_image(part.get("image_url"))
    raise InvalidInputError(
        f"the content of a message holds {part!r:.200}, which is not understood: write a part such as "
        f'{{"type": "text", "text": "Hi"}} or {{"type": "image_url", "image_url": {{"url": "https://..."}}}}, '
        f"or give a DataBlock"
    )


def _read_image(image: Any) -> DataBlock:
    url = _read_text(image, "url", "the image_url of a part", ("url", "detail"))
    if image.get("detail", "auto") != "auto":
        raise InvalidInputError(f"the detail of an image cannot be set, but is {image['detail']!r:.100}: leave it out")
    # Kept as data: a provider's formatter writes it in the form that its API takes.
    match = DATA_URL.fullmatch(url)
    if match is not None and match["media_type"] and match["data"]:
        return DataBlock(Base64Source(match["data"], match["media_type"]))
    if url.startswith("data:"):
        raise InvalidInputError(f"the image_url {url!r:.100} is not base64: write data:image/png;base64,...")
    # Nobody fetches it to look; providers that take an address find the type themselves.
    try:
        path = urlsplit(url).path
    except ValueError:  # such as an address of version 6 without its end
        raise InvalidInputError(f"the image_url {url!r:.100} is not a URL: write https://...") from None
    suffix = PurePosixPath(path).suffix.lower()
    return DataBlock(URLSource(url, _IMAGE_TYPES.get(suffix, "image/*")))


def _read_text(values: Any, key: str, owner: str, keys: Sequence[str]) -> str:
    """Return the text under a key of a dict that may have these keys; raises `InvalidInputError` for anything else."""
    if not isinstance(values, Mapping):
        raise InvalidInputError(f"{owner} must be a dict with {key!r}, not {values!r:.200}")
    unknown = [name for name in values if name not in keys]
    if unknown:
        raise InvalidInputError(_unknown_key(owner, unknown[0], keys))
    text = values.get(key)
    if not isinstance(text, str):
        raise InvalidInputError(f"{owner} must have a str as its {key!r}, not {text!r:.200}")
    return text
