"""Tools: what a model may call."""

from agentrt.tool.base import ToolBase
from agentrt.tool.context import ToolContext
from agentrt.tool.function import FunctionTool
from agentrt.tool.group import ToolGroup
from agentrt.tool.mcp import MCPToolset
from agentrt.tool.table import ToolTable
from agentrt.tool.toolkit import Toolkit
from agentrt.tool.toolset import Toolset
from agentrt.types import FlowLabel, OpenQuestion, ToolChoice, ToolChunk, ToolFlow, ToolResponse

__all__ = [
    "FlowLabel",
    "FunctionTool",
    "MCPToolset",
    "OpenQuestion",
    "ToolBase",
    "ToolChoice",
    "ToolChunk",
    "ToolContext",
    "ToolFlow",
    "ToolGroup",
    "ToolResponse",
    "ToolTable",
    "Toolkit",
    "Toolset",
]
