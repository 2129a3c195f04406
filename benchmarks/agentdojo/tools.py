"""The functions of a suite as tools over one environment."""

from typing import Any

from pydantic import BaseModel

from agentrt.tool import ToolBase, ToolContext, Toolkit
from benchmarks.agentdojo.policies import is_read_only

__all__ = ["Sandbox", "make_toolkit"]


class Sandbox:
    """An environment, and the calls that have run in it."""

    def __init__(self, suite: Any, environment: Any) -> None:
        from agentdojo.functions_runtime import FunctionCall, FunctionsRuntime

        self.suite = suite
        self.environment = environment
        self.calls: list[Any] = []
        self._runtime = FunctionsRuntime(suite.tools)
        self._make_call = FunctionCall

    def run(self, name: str, arguments: dict[str, Any]) -> object:
        """Run a function, and return its result as JSON values; an exception of the function is raised."""
        self.calls.append(self._make_call(function=name, args=arguments))
        result, _ = self._runtime.run_function(self.environment, name, arguments, raise_on_error=True)
        return _as_json(result)


class EnvironmentTool(ToolBase):
    """A function of a suite, over the environment in the reply's `deps`."""

    def __init__(self, function: Any) -> None:
        self.name = function.name
        self.description = function.description
        self.input_schema = function.parameters.model_json_schema()
        self.is_read_only = is_read_only(function.name)

    async def call(self, context: ToolContext[Sandbox], **arguments: Any) -> object:
        return context.deps.run(self.name, arguments)


def make_toolkit(suite: Any) -> Toolkit:
    """Return a suite's tools; a reply that uses them gets its `Sandbox` as `deps`."""
    return Toolkit([EnvironmentTool(function) for function in suite.tools])


def _as_json(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    return value
