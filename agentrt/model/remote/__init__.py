"""Shared by all models behind an HTTP API: the endpoint, the stream of an answer, server-sent events, errors."""

from agentrt._runtime.http.limits import MAX_BYTES, Timeouts
from agentrt.model.remote.accumulator import StreamAccumulator
from agentrt.model.remote.client import ModelOptions, RemoteChatModel
from agentrt.model.remote.endpoint import ProviderAPI
from agentrt.model.remote.reader import AnswerReader
from agentrt.model.remote.settings import ConnectionOptions, check_option
from agentrt.model.remote.sse import count_in, dict_in, list_in, text_in

__all__ = [
    "MAX_BYTES",
    "AnswerReader",
    "ConnectionOptions",
    "ModelOptions",
    "ProviderAPI",
    "RemoteChatModel",
    "StreamAccumulator",
    "Timeouts",
    "check_option",
    "count_in",
    "dict_in",
    "list_in",
    "text_in",
]
