"""The studio: a page to talk to agents, approve their tool calls, and inspect their runs and reports."""

from agentrt.serving.studio.page import StudioPage
from agentrt.serving.studio.reports import ReportRoutes
from agentrt.serving.studio.times import LayerRoutes

__all__ = ["LayerRoutes", "ReportRoutes", "StudioPage"]
