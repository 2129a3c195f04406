"""The files of the studio: one page with its modules and style, which sends requests to this server alone."""

from functools import cache, partial
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

_FOLDER = Path(__file__).parents[1] / "static" / "studio"
_INDEX_PAGE = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# The page shows output of models and tools as text; this policy stops markup that gets through nevertheless.
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",  # else another page could trick its reader into approving
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",  # the page turns no string into markup
    ]
)
_PAGE_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated each time, and sent if changed
}


class StudioPage:
    """Serves the files, without authentication: they contain no data of owners."""

    def routes(self) -> list[Route]:
        names = sorted(path.relative_to(_FOLDER).as_posix() for path in _FOLDER.rglob("*") if path.is_file())
        files = [
            Route("/studio" if name == _INDEX_PAGE else f"/studio/{name}", partial(self._answer, name))
            for name in names
        ]
        return [Route("/", self._redirect), *files]

    async def _redirect(self, request: Request) -> Response:
        # For readers who open the address of the server alone.
        return RedirectResponse(f"{request.scope.get('root_path', '')}/studio")

    async def _answer(self, name: str, request: Request) -> Response:
        content, tag = _read_static(name)
        headers = {**_PAGE_HEADERS, "ETag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=_MEDIA_TYPES[Path(name).suffix])


@cache
def _read_static(name: str) -> tuple[bytes, str]:
    content = (_FOLDER / name).read_bytes()
    return content, f'"{sha256(content).hexdigest()[:32]}"'
