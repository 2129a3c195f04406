"""Information flow: holds back untrusted text, and checks the sources of a call's arguments."""

from agentrt_middleware.information_flow.middleware import InformationFlowMiddleware

__all__ = ["InformationFlowMiddleware"]
