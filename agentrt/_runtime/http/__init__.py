"""HTTP APIs of other programs: one kind of peer for models, embeddings, A2A agents and MCP servers."""

from agentrt._runtime.http.credentials import Credentials, KeyOption
from agentrt._runtime.http.limits import MAX_BYTES, CallTimer, Timeouts
from agentrt._runtime.http.options import check_headers, check_http_client, check_max_bytes, check_sign
from agentrt._runtime.http.peer import HTTPPeer, HTTPResponse

__all__ = [
    "MAX_BYTES",
    "CallTimer",
    "Credentials",
    "HTTPPeer",
    "HTTPResponse",
    "KeyOption",
    "Timeouts",
    "check_headers",
    "check_http_client",
    "check_max_bytes",
    "check_sign",
]
