"""The found passages as text for the model: data between tags that no passage can close."""

from collections.abc import Sequence

from agentrt.rag import KnowledgeHit
from agentrt_middleware.context.requests import escape_markup
from agentrt_middleware.rag.citations import CitationNumbers

_LEAST_TEXT = 40  # characters; less of a passage is not worth its tags


def format_passages(hits: Sequence[KnowledgeHit], numbers: CitationNumbers, max_chars: int) -> str:
    """Return the passages with their numbers, in `max_chars` characters at most; those without room are left out."""
    parts: list[str] = []
    left = max_chars
    for hit in hits:
        text = escape_markup(hit.text)
        place = f'document="{_attribute(hit.document)}"'
        if hit.heading:
            place += f' heading="{_attribute(hit.heading)}"'
        if hit.page is not None:
            place += f' page="{hit.page}"'
        # The number is not known yet, and a passage that is left out gets none.
        room = left - len(f'<passage number="0000000" {place}>\n\n</passage>\n')
        if room < min(len(text), _LEAST_TEXT):
            break
        if len(text) > room:
            cut = room - 1
            entity = text.rfind("&", max(0, cut - len("&quot;")), cut)
            # One that was cut in half would read as text.
            if entity >= 0 and ";" not in text[entity:cut]:
                cut = entity
            text = text[:cut] + "…"
        # Only now, since what is not shown must have no number that an answer could cite.
        part = f'<passage number="{numbers.number_of(hit)}" {place}>\n{text}\n</passage>\n'
        parts.append(part)
        left -= len(part)
    return "".join(parts).rstrip()


def _attribute(text: str) -> str:
    return escape_markup(" ".join(text.split()), quote=True)[:200]
