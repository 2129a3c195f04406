"""What the runtime knows of the chat models of any provider; `agentrt.model` has the models."""

from agentrt.model_interface.base import ChatModelBase, ModelResult
from agentrt.model_interface.capabilities import ModelCapabilities, ModelPrices, TokenPrices
from agentrt.model_interface.wire import WireRecord

__all__ = ["ChatModelBase", "ModelCapabilities", "ModelPrices", "ModelResult", "TokenPrices", "WireRecord"]
