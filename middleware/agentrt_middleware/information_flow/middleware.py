"""The layer of information flow: holds back untrusted text, and checks the sources of a call's arguments."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic_core import from_json, to_json, to_jsonable_python

from agentrt.agent import Agent
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import CheckPermissionValues, MiddlewareBase, NextCheckPermission
from agentrt.message import DataBlock, TextBlock, ToolResultState
from agentrt.model import ChatModelBase
from agentrt.tool import ToolBase
from agentrt.types import (
    STRUCTURED_OUTPUT,
    FlowLabel,
    IncomingContent,
    PermissionBehavior,
    PermissionDecision,
    PermissionMode,
    ToolFlow,
    ToolOutput,
)
from agentrt_middleware.information_flow.fields import Echoes, hold_fields, leaf_texts, words_of
from agentrt_middleware.information_flow.policy import Policy, tools_of, written_arguments
from agentrt_middleware.information_flow.reading import ReadUntrusted, ShowUntrusted
from agentrt_middleware.validation import check_choice

_WRITTEN_HANDLE = re.compile(r"<[A-Za-z]\w*_[0-9]+_[0-9a-f]{8}>")
_NOT_PERMITTED = "This call is not permitted: "  # as the runtime begins a denial
_RESULTS = ("tool_result", "external")


class InformationFlowMiddleware(MiddlewareBase):
    """Keeps text that outsiders may have written from the model, and checks the sources of a call's arguments.

    Results of tools, passages, memories, hints and observed messages are held back, and replaced by handles. `flows`
    says which parts of a result outsiders cannot write, and which arguments must not come from outside. Its keys are
    names or patterns of tools and knowledge bases, or the sources "observed", "hint", "passage" and "memory"; the
    first match applies. A tool without one has its own `flow`, or else is untrusted. What users say is trusted.

    The model gets the tools `read_untrusted`, which asks another model without tools a question about held text, and
    `show_untrusted`. `reader` is that other model, by default the agent's own. If an argument comes from a source that
    it must not come from, the user is asked, with the values, whatever rules and modes say; with
    `on_violation="deny"` the call is denied.
    """

    inherited = True
    # An agent has one at most: two would hold each other's handles back.
    key = "information_flow"
    wrapped_by: ClassVar = {
        "GuardrailMiddleware": "guards judge text, and not its handle",
        "RedactionMiddleware": "held text is redacted first",
    }
    needs_hooks: ClassVar = ("on_content", "on_check_permission")

    def __init__(
        self,
        flows: Mapping[str, ToolFlow] | None = None,
        *,
        on_violation: str = "ask",
        reader: ChatModelBase | None = None,
    ) -> None:
        flow_map: object = {} if flows is None else flows
        if not isinstance(flow_map, Mapping):
            raise MiddlewareConfigError(
                f"InformationFlowMiddleware(flows=...) must be a dict of names and ToolFlows, not {flows!r:.200}"
            )
        for name, flow in flow_map.items():
            if not isinstance(name, str) or not isinstance(flow, ToolFlow):
                raise MiddlewareConfigError(
                    f"InformationFlowMiddleware(flows=...) has {flow!r:.200} for {name!r:.100}: give a ToolFlow, "
                    f'such as ToolFlow(trusted_input=["to"])'
                )
        check_choice("InformationFlowMiddleware(on_violation=...)", on_violation, ("ask", "deny"))
        model: object = reader
        if not (model is None or isinstance(model, ChatModelBase)):
            raise MiddlewareConfigError(
                f"InformationFlowMiddleware(reader=...) must be a chat model, not {reader!r:.200}: make it with "
                f"chat_model(...)"
            )
        self.flows: dict[str, ToolFlow] = dict(flow_map)
        self.on_violation, self.reader = on_violation, reader
        self._policy = Policy(self.flows)

    def list_tools(self) -> Sequence[ToolBase]:
        return [ReadUntrusted(self.reader), ShowUntrusted(self._policy.check)]

    def describe(self, agent: Agent) -> Sequence[str]:
        return self._policy.describe([tool for tool in tools_of(agent) if not _is_own(tool)])

    async def on_check_permission(
        self, agent: Agent, input_kwargs: CheckPermissionValues, next_handler: NextCheckPermission
    ) -> PermissionDecision:
        decision = await next_handler(**input_kwargs)
        call, tool = input_kwargs["tool_call"], input_kwargs["tool"]
        # The model did not make the call of a hidden tool, and the answer in a form goes to the user.
        is_exempt = tool.is_hidden or call.name == STRUCTURED_OUTPUT or _is_own(tool)
        if is_exempt or decision.behavior is PermissionBehavior.DENY:
            return decision
        violation = self._policy.violation(agent, call, tool)
        if violation is None:
            return decision
        # Where nobody can be asked, the question would become a denial, which the model reads.
        is_denied = agent.state.permission_context.mode == PermissionMode.DONT_ASK or self.on_violation == "deny"
        behavior = PermissionBehavior.DENY if is_denied else PermissionBehavior.ASK
        return PermissionDecision(behavior, violation.text, type(self).__name__, bypass_immune=True)

    async def on_content(self, agent: Agent, content: IncomingContent) -> IncomingContent:
        if content.source == "not_run":
            return self._without_quotes(agent, content)
        if _is_own(content.tool) or (content.tool is not None and self._speaks_for_itself(agent, content)):
            return content
        flow = self._policy.of_content(content)
        if flow.trusted_output is True and flow.output_readers is None and content.source not in _RESULTS:
            return content
        return _Holding(agent, content, flow).hold_back()

    def _speaks_for_itself(self, agent: Agent, content: IncomingContent) -> bool:
        """Say whether a result is the answer of an agent under this layer, which has read handles only."""
        if content.name == STRUCTURED_OUTPUT:
            return content.state is ToolResultState.SUCCESS or not _has_handles(agent, content)
        child = getattr(content.tool, "agent", None)
        if not isinstance(child, Agent) or self._policy.find(content.name) is not None:
            return False
        # Another instance has another policy.
        return any(layer is self for layer in child.middlewares) and not child.model.is_remote_agent

    def _without_quotes(self, agent: Agent, content: IncomingContent) -> IncomingContent:
        """Return the runtime's message about a call that it did not run, held back if it may quote held text."""
        call = content.tool_call
        # A call that is let go gets its task's id, which only the runtime puts here, and no word of its arguments.
        if call is None or "task_id" in content.metadata or not _has_handles(agent, content):
            return content
        context = agent.state.reply_context
        decision = None if context is None else context.decision_about(call.id)
        if decision is not None and decision.behavior is PermissionBehavior.DENY and decision.by == "user":
            return content
        violation = (
            None if not isinstance(content.tool, ToolBase) else self._policy.violation(agent, call, content.tool)
        )
        # The whole text: the denial of another layer may end with a value that ends like this one.
        if violation is not None and content.text == f"{_NOT_PERMITTED}{violation.text}":
            return content
        return _Holding(agent, content, ToolFlow()).hold_back()


def _is_own(tool: object) -> bool:
    return isinstance(tool, (ReadUntrusted, ShowUntrusted))


def _has_handles(agent: Agent, content: IncomingContent) -> bool:
    arguments = {} if content.tool_call is None else written_arguments(content.tool_call)
    return bool(agent.released(arguments) != arguments)


class _Holding:
    """Holds back the untrusted parts of one piece of content."""

    def __init__(self, agent: Agent, content: IncomingContent, flow: ToolFlow) -> None:
        self._agent = agent
        self._content = content
        self._flow = flow
        name = content.name or content.source
        arguments = {} if content.tool_call is None else written_arguments(content.tool_call)
        # The output may contain the input, whatever the tool does with it.
        self._untrusted = FlowLabel(False, None, frozenset([name])) | agent.label_of(arguments)
        readers = flow.output_readers
        self._trusted = FlowLabel() if readers is None else FlowLabel(True, frozenset(readers), frozenset([name]))
        self._echoes = Echoes(_labelled_values(agent, arguments))

    def hold_back(self) -> IncomingContent:
        """Return the content as the model reads it."""
        content = self._content
        # An error may quote anything, untrusted text included.
        is_failed = content.source in _RESULTS and content.state not in (None, ToolResultState.SUCCESS)
        is_whole = is_failed or not self._flow.trusted_output
        # Block by block: an image beside text has its own handle, and each block keeps its id.
        blocks: ToolOutput = [self._hold_block(block, is_whole) for block in content.content]
        changed = replace(content, content=blocks)
        if content.source == "passage":  # its heading and title are in the request too
            metadata = {key: self._hold(value, self._untrusted) for key, value in content.metadata.items() if value}
            changed = replace(changed, metadata=metadata)
        return changed

    def _hold(self, value: Any, label: FlowLabel) -> str:
        # With values in place of its handles, which a sub-agent or another layer may have left: a handle inside a held
        # value is not replaced.
        return self._agent.hold(self._agent.released(value), label | self._agent.label_of(value))

    def _hold_block(self, block: TextBlock | DataBlock, is_whole: bool) -> TextBlock | DataBlock:
        if isinstance(block, DataBlock):
            if not is_whole and self._flow.trusted_output is True and self._trusted.readers is None:
                return block
            label = self._untrusted if is_whole or self._flow.trusted_output is not True else self._trusted
            kind = block.source.media_type.partition("/")[0]
            kind = kind if kind in ("image", "audio", "video") else "file"
            handle = self._hold(to_jsonable_python(block), label)
            return TextBlock(
                f"[{kind} from {self._content.name or self._content.source} is held back: {handle}]", block.id
            )
        text = block.text
        if not text.strip():
            return block
        visible = self._hold(text, self._untrusted) if is_whole else self._show(text)
        return block if visible is text else TextBlock(visible, block.id)

    def _show(self, text: str) -> str:
        """Return trusted text with its untrusted parts held back."""
        paths = None if self._flow.trusted_output is True else self._flow.trusted_output
        try:
            value = from_json(text)
        except ValueError:
            value = None
        # A plain number or string is JSON too, but has no fields.
        if not isinstance(value, (dict, list)):
            if paths is not None:
                return self._hold(text, self._untrusted)
            visible = hold_fields(text, None, self._echoes, self._hold, self._untrusted, self._trusted)
            return text if visible == text else words_of(visible)
        assert not isinstance(paths, bool)
        visible = hold_fields(value, paths, self._echoes, self._hold, self._untrusted, self._trusted)
        # If a key occurs twice, only one of its values was checked.
        is_checked = paths is None and not self._echoes
        return text if is_checked and visible == value else to_json(visible).decode()


def _labelled_values(agent: Agent, written: Any) -> Any:
    """Yield the labelled values in the arguments, as text, with their labels."""
    if isinstance(written, dict):
        for key, item in written.items():
            yield from _labelled_values(agent, key)
            yield from _labelled_values(agent, item)
    elif isinstance(written, list):
        for item in written:
            yield from _labelled_values(agent, item)
    elif isinstance(written, str) and (released := agent.released(written)) != written:
        label = agent.label_of(written)
        yield from ((text, label) for text in leaf_texts(released))
        # The result may repeat a value without the text around its handle.
        for handle in _WRITTEN_HANDLE.findall(written):
            yield from ((text, label) for text in leaf_texts(agent.released(handle)))
