"""Messages of servers, before the SDK reads them: it refuses a whole list for one tool that it cannot read."""

import logging
from typing import Any

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse, Tool
from mcp_types.methods import validate_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from agentrt._runtime.text import repr_of
from agentrt.tool.mcp.text import clean_text

_logger = logging.getLogger("agentrt")


def without_malformed_tools(message: Any) -> Any:
    """Return the message; from a list of tools, those that are malformed are left out with a warning."""
    tools = message.result.get("tools") if isinstance(message, JSONRPCResponse) else None
    if isinstance(tools, list):
        message.result["tools"] = [tool for tool in tools if _is_tool(tool)]
    return message


def _is_tool(tool: Any) -> bool:
    try:
        Tool.model_validate(tool, by_name=False)
        # A schema without a type means an object, since arguments always are one.
        for schema in (tool["inputSchema"], tool.get("outputSchema")):
            if schema is not None:
                schema.setdefault("type", "object")
        # The SDK reads lists a second time, by the types of a version of the protocol.
        validate_server_result("tools/list", LATEST_HANDSHAKE_VERSION, {"tools": [tool]})
        return True
    except ValidationError:
        pass
    name = tool.get("name") if isinstance(tool, dict) else tool
    _logger.warning(
        "the tool %s of an MCP server is left out: it is malformed, or its schema is not that of an object",
        clean_text(repr_of(name, 64)),
    )
    return False


class MessageStream:
    """The messages that a stream of the SDK receives, as `without_malformed_tools` leaves them."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def receive(self) -> Any:
        return self._clean(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> "MessageStream":
        return self

    async def __anext__(self) -> Any:
        return self._clean(await self._stream.__anext__())

    def _clean(self, item: Any) -> Any:
        if isinstance(item, SessionMessage):
            item.message = without_malformed_tools(item.message)
        return item

    async def __aenter__(self) -> "MessageStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
