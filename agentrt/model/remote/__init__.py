"""What all models behind an HTTP API share: the client, its stream, server-sent events, errors."""

from agentrt.model.remote.client import RemoteChatModel
from agentrt.model.remote.settings import MAX_BYTES, ConnectionOptions, Timeouts, check_option
from agentrt.model.remote.stream import AnswerReader

__all__ = ["MAX_BYTES", "AnswerReader", "ConnectionOptions", "RemoteChatModel", "Timeouts", "check_option"]
