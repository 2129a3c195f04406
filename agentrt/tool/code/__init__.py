"""Code mode: a tool that runs a program of the model, whose functions are tools."""

from agentrt.tool.code.sandbox import CodeCall, CodeProgram, CodeResult, CodeSandbox
from agentrt.tool.code.tool import CodeTool

__all__ = ["CodeCall", "CodeProgram", "CodeResult", "CodeSandbox", "CodeTool"]
