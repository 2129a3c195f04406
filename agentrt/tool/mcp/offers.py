"""Resources and prompts of a server, for programs, as the server describes them."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agentrt.tool.mcp.text import clean_text, has_hidden_characters

_logger = logging.getLogger("agentrt")
_MAX_OFFER_TEXT = 4_000
_MAX_MEDIA_TYPE = 100


@dataclass(frozen=True, slots=True)
class MCPResource:
    """A resource of a server; the `uri` of a template has names in braces, whose values `read_resource` takes."""

    uri: str
    name: str
    description: str = ""
    media_type: str = ""
    size: int | None = None
    is_template: bool = False


@dataclass(frozen=True, slots=True)
class MCPPrompt:
    """A prompt of a server; `arguments` has the description of each argument, and `required` the names of some."""

    name: str
    description: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    required: frozenset[str] = frozenset()


def offered_resources(server: str, resources: Iterable[Any], templates: Iterable[Any]) -> list[MCPResource]:
    """Return what a server lists; resources with hidden characters in their URI are left out with a warning."""
    listed = [(item, item.uri, item.size, False) for item in resources]
    listed += [(item, item.uri_template, None, True) for item in templates]
    return [
        MCPResource(
            uri,
            clean_text(item.title or item.name, _MAX_OFFER_TEXT),
            clean_text(item.description or "", _MAX_OFFER_TEXT),
            clean_text(item.mime_type or "", _MAX_MEDIA_TYPE),
            size,
            is_template,
        )
        for item, uri, size, is_template in listed
        if _can_be_sent_back(server, "resource", [uri])
    ]


def offered_prompts(server: str, prompts: Iterable[Any]) -> list[MCPPrompt]:
    """Return what a server lists; prompts with hidden characters in a name are left out with a warning."""
    return [
        MCPPrompt(
            item.name,
            clean_text(item.description or item.title or "", _MAX_OFFER_TEXT),
            {part.name: clean_text(part.description or "", _MAX_OFFER_TEXT) for part in item.arguments or ()},
            frozenset(part.name for part in item.arguments or () if part.required),
        )
        for item in prompts
        if _can_be_sent_back(server, "prompt", [item.name, *(part.name for part in item.arguments or ())])
    ]


def _can_be_sent_back(server: str, kind: str, names: list[str]) -> bool:
    # The server knows it by these names alone, so they cannot be cleaned.
    hidden = next((name for name in names if has_hidden_characters(name)), None)
    if hidden is not None:
        text = clean_text(hidden, 64)
        _logger.warning("the %s %r of the MCP server %r is left out: it has hidden characters", kind, text, server)
    return hidden is None
