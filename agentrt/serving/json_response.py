"""Answers in JSON."""

from json import dumps
from typing import Any

from starlette.responses import JSONResponse

__all__ = ["JsonResponse"]


class JsonResponse(JSONResponse):
    """An answer in JSON, also where a client or a model has written half of a surrogate pair."""

    def render(self, content: Any) -> bytes:
        text = dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        # Such a half has no UTF-8 form, and what Python writes for it is the escape that JSON has.
        return text.encode("utf-8", "backslashreplace")
