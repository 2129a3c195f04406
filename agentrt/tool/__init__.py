"""Tools: what a model may call."""

from typing import TYPE_CHECKING

from agentrt._runtime.keywords.moved_names import import_when_read
from agentrt.tool.base import ToolBase
from agentrt.tool.context import ToolContext
from agentrt.tool.function import FunctionTool
from agentrt.tool.group import ToolGroup
from agentrt.tool.table import ToolTable
from agentrt.tool.toolkit import Toolkit
from agentrt.tool.toolset import Toolset
from agentrt.types import FlowLabel, OpenQuestion, ToolChoice, ToolChunk, ToolFlow, ToolResponse

if TYPE_CHECKING:
    from agentrt.tool.code.sandbox import CodeCall, CodeProgram, CodeResult, CodeSandbox
    from agentrt.tool.code.tool import CodeTool
    from agentrt.tool.files import workspace_tools
    from agentrt.tool.mcp.oauth.settings import FinishedLogin, OAuth, OAuthClient
    from agentrt.tool.mcp.oauth.token_store import TokenStore
    from agentrt.tool.mcp.offers import MCPPrompt, MCPResource
    from agentrt.tool.mcp.toolset import MCPToolset
    from agentrt.tool.tasks.task_tools import task_tools

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
        "agentrt.tool.code.sandbox": ["CodeCall", "CodeProgram", "CodeResult", "CodeSandbox"],
        "agentrt.tool.code.tool": ["CodeTool"],
        "agentrt.tool.files": ["workspace_tools"],
        "agentrt.tool.mcp.oauth.settings": ["FinishedLogin", "OAuth", "OAuthClient"],
        "agentrt.tool.mcp.oauth.token_store": ["TokenStore"],
        "agentrt.tool.mcp.offers": ["MCPPrompt", "MCPResource"],
        "agentrt.tool.mcp.toolset": ["MCPToolset"],
        "agentrt.tool.tasks.task_tools": ["task_tools"],
    }
    __getattr__ = import_when_read(__name__, _LAZY)
