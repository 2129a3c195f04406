"""The flows of tools and other sources, and the violations of a call."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from agentrt.agent import Agent
from agentrt.errors import MiddlewareConfigError
from agentrt.message import ToolCallBlock
from agentrt.permission.glob import matches
from agentrt.tool import ToolBase
from agentrt.types import FlowLabel, IncomingContent, ToolFlow
from agentrt_middleware.information_flow.fields import words_of

_SOURCES = ("observed", "hint", "passage", "memory", "input", "feedback")
_OF_LAYERS = "continue_with"  # the name of a hint that a layer gives
_NOTHING_DECLARED = ToolFlow()
_ALL_TRUSTED = ToolFlow(trusted_output=True)
_TRUSTED_SOURCES = ("input", "feedback", "summary")


@dataclass(frozen=True)
class Violation:
    """Why a call may not run without a question: `reasons` contain no text from outsiders."""

    tool: str
    reasons: Sequence[str]

    @property
    def text(self) -> str:
        """The reasons without values: a model reads them in a denial, and the runtime adds the values to a question."""
        return f"{self.tool}: {'; '.join(self.reasons)}"


def written_arguments(call: ToolCallBlock) -> dict[str, Any]:
    """Return the arguments as the model wrote them, with handles."""
    try:
        arguments = from_json(call.input or "{}")
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


class Policy:
    """The flows of an agent's tools and other sources, by name or pattern; the first match applies."""

    def __init__(self, flows: Mapping[str, ToolFlow]) -> None:
        self._flows = flows

    def find(self, name: str) -> ToolFlow | None:
        """Return the flow that was given for a name, or `None`."""
        return next((flow for pattern, flow in self._flows.items() if matches(pattern, name)), None)

    def of_tool(self, tool: ToolBase) -> ToolFlow:
        """Return the flow of a tool: the one that was given for it, or its own."""
        return self.find(tool.name) or tool.flow or _NOTHING_DECLARED

    def of_content(self, content: IncomingContent) -> ToolFlow:
        """Return the flow of content that is about to join the conversation."""
        if content.tool_call is not None and content.source not in _TRUSTED_SOURCES:
            declared = content.tool.flow if isinstance(content.tool, ToolBase) else None
            return self.find(content.name) or declared or _NOTHING_DECLARED
        # A message of another agent is not from the user, although a pipeline passes it on as an input.
        is_of_agent = content.source == "input" and content.role == "assistant"
        source = "observed" if is_of_agent else content.source
        if source in _TRUSTED_SOURCES:
            # By the source's own name only: neither a pattern for tools nor a user's name may hold back user messages.
            return self._flows.get(source) or _ALL_TRUSTED
        default = _NOTHING_DECLARED
        if content.source == "hint" and content.name == _OF_LAYERS:
            default = _ALL_TRUSTED
        by_name = self.find(content.name) if content.name and default is _NOTHING_DECLARED else None
        return by_name or self.find(source) or default

    def violation(self, agent: Agent, call: ToolCallBlock, tool: ToolBase) -> Violation | None:
        """Return how the call violates the flow of its tool, `None` if it does not."""
        flow, label_read = self.of_tool(tool), agent.label_of(None)
        labels: dict[str, FlowLabel] = {}
        written = written_arguments(call)
        # Keys count too: a handle used as a key would become the name of an argument.
        for key, value in written.items():
            name = words_of(agent.released(key))
            labels[name] = labels.get(name, FlowLabel()) | agent.label_of([key, value])
        known = (tool.input_schema.get("properties") or {}).keys()
        reasons: list[str] = []
        if not label_read.trusted and not tool.is_read_only:
            reasons.append(f"the model was shown untrusted text, from {_list(label_read.sources)}")
        due = sorted(labels) if flow.trusted_input is True else list(flow.trusted_input or ())
        for name in due:
            label = labels.get(name)
            if label is not None and not label.trusted:
                # An argument that the tool does not have may have untrusted text as its name.
                title = name if name in known else "an argument"
                reasons.append(f"{title} comes from {_list(label.sources)}")
            elif label is None and known and name not in known:
                reasons.append(f"its flow names the argument {name!r}, which the tool does not have")
        if flow.sends_to is not None:
            reasons += _unread(agent, written, labels, flow.sends_to)
        return Violation(tool.name, reasons) if reasons else None

    def check(self, agent: Agent) -> None:
        """Raise `MiddlewareConfigError` for a flow that checks nothing, and warn of a pattern that matches nothing."""
        tools = tools_of(agent)
        for tool in tools:
            _check_arguments(tool, self.of_tool(tool))
        if any(toolkit.has_toolsets for toolkit in agent.toolkit.toolkits_to_open(set())):
            return  # their tools are unknown until they are open
        # Knowledge bases are sources too: layers put their passages into requests.
        bases = [base.name for layer in agent.middlewares for base in getattr(layer, "knowledge_bases", ())]
        names = (*(tool.name for tool in tools), *_SOURCES, *bases)
        for pattern in self._flows:
            if not any(matches(pattern, name) for name in names):
                warnings.warn(
                    f"InformationFlowMiddleware has a flow for {pattern!r:.100}, which matches no tool of "
                    f"{agent.name!r} and none of {', '.join(_SOURCES)}: is it misspelt?",
                    UserWarning,
                    stacklevel=2,
                )

    def describe(self, tools: Sequence[ToolBase]) -> list[str]:
        """Return a line for each tool: its trusted output and input, and its readers."""
        return [f"{tool.name}: {_line_of_flow(self.of_tool(tool))}" for tool in tools]


def tools_of(agent: Agent) -> list[ToolBase]:
    """Return the tools whose calls the layers of the agent see, also those of programs and sub-agents."""
    return [
        tool
        for toolkit in agent.toolkit.toolkits_to_open(set())
        for name in toolkit.names(toolkit.groups)
        if (tool := toolkit.get(name)) is not None and not tool.is_hidden
    ]


def _check_arguments(tool: ToolBase, flow: ToolFlow) -> None:
    schema = tool.input_schema
    properties = schema.get("properties")
    if not properties and (properties is None or schema.get("additionalProperties")):
        return  # it takes any argument
    names = [] if isinstance(flow.trusted_input, bool) else [*flow.trusted_input]
    if flow.sends_to is not None:
        names.append(flow.sends_to)
    for name in names:
        if name not in properties:
            known = ", ".join(properties) or "none"
            raise MiddlewareConfigError(
                f"the ToolFlow of {tool.name!r} names the argument {name!r:.100}, so that nothing would be checked; "
                f"the arguments of the tool: {known}"
            )


def _unread(agent: Agent, written: Mapping[str, Any], labels: Mapping[str, FlowLabel], target: str) -> list[str]:
    """Return the reason if a reader of the call may not read what it sends."""
    # Checked for all arguments together: a subject reveals as much as a body.
    joined = FlowLabel()
    for label in labels.values():
        joined |= label
    if joined.readers is None:
        return []
    named = agent.released(written.get(target))
    readers = [words_of(reader) for reader in (named if isinstance(named, list) else [named]) if reader is not None]
    allowed = [reader for reader in readers if reader in joined.readers]
    if readers and len(allowed) == len(readers):
        return []
    return [f"{target} may not read what comes from {_list(joined.sources)}"]


def _list(sources: Sequence[str] | frozenset[str]) -> str:
    return ", ".join(sorted(sources)) or "an unknown source"


def _line_of_flow(flow: ToolFlow) -> str:
    if isinstance(flow.trusted_output, bool) or not flow.trusted_output:
        output = "trusted output" if flow.trusted_output is True else "untrusted output"
    else:
        output = f"trusted output: {', '.join(flow.trusted_output)}"
    parts = [output]
    if flow.output_readers is not None:
        parts.append(f"readers: {', '.join(flow.output_readers) or 'nobody'}")
    if flow.trusted_input:
        names = "all" if flow.trusted_input is True else ", ".join(flow.trusted_input)
        parts.append(f"trusted input: {names}")
    if flow.sends_to is not None:
        parts.append(f"sends to: {flow.sends_to}")
    return "; ".join(parts)
