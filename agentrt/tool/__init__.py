"""Tools: what a model may call."""

from typing import TYPE_CHECKING

from agentrt._runtime.keywords import import_when_read
from agentrt.tool.base import ToolBase
from agentrt.tool.context import ToolContext
from agentrt.tool.function import FunctionTool
from agentrt.tool.group import ToolGroup
from agentrt.tool.table import ToolTable
from agentrt.tool.toolkit import Toolkit
from agentrt.tool.toolset import Toolset
from agentrt.types import FlowLabel, OpenQuestion, ToolChoice, ToolChunk, ToolFlow, ToolResponse

if TYPE_CHECKING:
    from agentrt.tool.code import CodeCall, CodeProgram, CodeResult, CodeSandbox, CodeTool
    from agentrt.tool.files import workspace_tools
    from agentrt.tool.mcp import (
        FinishedLogin,
        MCPPrompt,
        MCPResource,
        MCPToolset,
        OAuth,
        OAuthClient,
        TokenStore,
    )
    from agentrt.tool.tasks import task_tools

__all__ = [
    "CodeCall",
    "CodeProgram",
    "CodeResult",
    "CodeSandbox",
    "CodeTool",
    "FinishedLogin",
    "FlowLabel",
    "FunctionTool",
    "MCPPrompt",
    "MCPResource",
    "MCPToolset",
    "OAuth",
    "OAuthClient",
    "OpenQuestion",
    "TokenStore",
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
    "task_tools",
    "workspace_tools",
]

if not TYPE_CHECKING:  # which would take any name
    _LAZY = {  # which most agents do without
        "agentrt.tool.code": [name for name in __all__ if name.startswith("Code")],
        "agentrt.tool.files": ["workspace_tools"],
        "agentrt.tool.mcp": [name for name in __all__ if name.startswith(("MCP", "OAuth", "FinishedL", "TokenS"))],
        "agentrt.tool.tasks": ["task_tools"],
    }
    __getattr__ = import_when_read(__name__, _LAZY)
