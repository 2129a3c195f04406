"""The studio: a page to talk to agents, approve what they want to do, and see where the time goes."""

from agentrt.serving.studio.page import StudioPage
from agentrt.serving.studio.times import LayerRoutes

__all__ = ["LayerRoutes", "StudioPage"]
