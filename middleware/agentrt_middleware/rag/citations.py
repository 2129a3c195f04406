"""Citations: the numbers that passages have in a conversation, and those that an answer names."""

import logging
import re
from typing import Any

from agentrt.rag import KnowledgeHit
from agentrt.types import JSONObject

_logger = logging.getLogger("agentrt")

_MAX_CITATIONS = 10_000  # of one conversation; the oldest are dropped, and no number is given twice
_NUMBER = r"\d{1,7}"
# [1], [1, 2] and 【1】, but not the `[0]` of a variable.
_CITED = re.compile(rf"(?<![A-Za-z0-9_])[\[【]({_NUMBER}(?:\s*[,，、;]\s*{_NUMBER})*)[\]】]")


class CitationNumbers:
    """The numbers of one conversation, kept in `data`, which is saved with it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data
        saved = data.setdefault("citations", [])
        if not isinstance(saved, list) or not all(
            isinstance(place, dict) and isinstance(place.get("number"), int) for place in saved
        ):
            _logger.warning("what the state keeps as 'citations' is not of this version: it is dropped")
            saved = data["citations"] = []
        self.places: list[JSONObject] = saved
        if not isinstance(data.setdefault("next_citation", 1), int):
            data["next_citation"] = 1 + max((place["number"] for place in saved), default=0)

    def number_of(self, hit: KnowledgeHit) -> int:
        """Return the number that stands for this passage from now on."""
        place = {
            "knowledge_base": hit.knowledge_base,
            "document": hit.document,
            "title": hit.title,
            "heading": hit.heading,
            "page": hit.page,
            "start": hit.start,
            "end": hit.end,
        }
        # By its place, not by its text, so that a number keeps its meaning when a document is indexed again.
        for known in self.places:
            if all(known.get(key) == value for key, value in place.items()):
                return int(known["number"])
        # Counted apart from the list, whose oldest may be gone.
        number: int = self._data["next_citation"]
        self._data["next_citation"] = number + 1
        self.places.append({"number": number, **place})
        del self.places[:-_MAX_CITATIONS]
        return number

    def cited_in(self, text: str) -> tuple[list[JSONObject], list[int]]:
        """Return the places that an answer cites, and the numbers in it that stand for none; each once, in order."""
        numbers = dict.fromkeys(
            int(digits) for match in _CITED.finditer(text) for digits in re.findall(_NUMBER, match[1])
        )
        places = {place["number"]: place for place in self.places}
        known = [dict(places[number]) for number in numbers if number in places]
        return known, [number for number in numbers if number not in places]
