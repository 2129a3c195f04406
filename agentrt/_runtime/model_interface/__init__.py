"""The runtime's interface to chat models; `agentrt.model` has the models."""

from agentrt._runtime.model_interface.base import ChatModelBase, ModelResult
from agentrt._runtime.model_interface.capabilities import ModelCapabilities, ModelPrices, TokenPrices
from agentrt._runtime.model_interface.wire import WireRecord

__all__ = ["ChatModelBase", "ModelCapabilities", "ModelPrices", "ModelResult", "TokenPrices", "WireRecord"]
