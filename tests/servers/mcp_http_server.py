"""An MCP server behind a URL, and some addresses where none is; prints its port."""

import socket
import sys

import uvicorn
from mcp.server import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

server = MCPServer("s")


@server.tool()
def echo(text: str) -> str:
    """Echo."""
    return text


async def refuse(request: Request) -> PlainTextResponse:
    """Answer as a server does that wants a token."""
    return PlainTextResponse("no", 401)


async def answer_page(request: Request) -> PlainTextResponse:
    """Answer as something does that is not an MCP server."""
    return PlainTextResponse("x" * 20_000_000 if request.url.path == "/huge" else "<h1>Welcome</h1>", 200)


async def answer_badly(request: Request) -> Response:
    """Answer with what is nearly a message of the protocol."""
    return Response('{"jsonrpc": "2.0", "id": 1, "Welcome": ', media_type="application/json")


def main() -> None:
    app = server.streamable_http_app()
    routes = [Route("/closed", refuse, methods=["POST"])]
    routes += [Route(path, answer_page, methods=["POST"]) for path in ("/page", "/huge")]
    routes.append(Route("/malformed", answer_badly, methods=["POST"]))
    routes.append(Mount("/old", server.sse_app()))
    outer = Starlette(routes=[*routes, Mount("/", app)], lifespan=lambda _: app.router.lifespan_context(app))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(outer, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
