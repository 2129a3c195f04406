"""What all models behind an HTTP API share: the client, its stream, server-sent events, errors."""

from agentrt.model.remote.client import RemoteChatModel
from agentrt.model.remote.settings import ConnectionOptions, Timeouts

__all__ = ["ConnectionOptions", "RemoteChatModel", "Timeouts"]
