"""Redaction: finds private data wherever it enters or leaves, and puts something else in its place."""

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError, RedactionBlocked
from agentrt.event import (
    AgentEvent,
    ExternalExecutionResultEvent,
    TextBlockStartEvent,
    ThinkingBlockStartEvent,
    ToolCallStartEvent,
    UserConfirmResultEvent,
)
from agentrt.hooks import (
    ActingValues,
    MiddlewareBase,
    ModelCallOverrides,
    ModelCallValues,
    NextActing,
    NextModelCall,
    NextObserve,
    NextReasoning,
    NextReply,
    ObserveValues,
    ReasoningValues,
)
from agentrt.message import ContentBlock, Msg
from agentrt.model import ModelResult
from agentrt.types import STRUCTURED_OUTPUT, IncomingContent, ToolChunk, ToolResponse
from agentrt_middleware.attempts import ATTEMPT_LAYERS
from agentrt_middleware.redaction.actions import Actions, check_action
from agentrt_middleware.redaction.content import (
    change_block,
    change_json,
    change_message,
    change_schema,
    change_value,
    redact_response,
)
from agentrt_middleware.redaction.conversation_text import ConversationText, SharedRedactor
from agentrt_middleware.redaction.detectors import Detector
from agentrt_middleware.redaction.events import EventRedactor
from agentrt_middleware.redaction.shipped import API_KEY, CARD, EMAIL, IBAN, PRIVATE_KEY
from agentrt_middleware.redaction.tokens import Tokens
from agentrt_middleware.validation import check_flag

_OF_TOOLS = ("tool_result", "not_run", "external")


class RedactionMiddleware(MiddlewareBase):
    """Finds private data in what enters, in requests, in answers and in results, and replaces or blocks it.

    `action` is "redact" (`[EMAIL]`), "mask" (`****` and the last characters), "hash" (with `hash_key`), "token"
    (`<EMAIL_1_a1b2c3d4>`, which can be undone) or "block" (`RedactionBlocked`). A detector may have its own.

    `input` is what users send, add to an answer or have observed, hints, summaries and what other layers find, before
    it is kept, and all of a request but results; `output` is the text, the thinking, the calls and the structured
    output of a model; `tools` is what tools give and what is said of calls. `restore` says where tokens become values
    again: in the arguments that "tools" get, and in the "output".

    What a model streams leaves as soon as nothing in it can grow into a find, and is the same as the redacted whole.
    The result of a tool leaves whole.
    """

    inherited = True
    wraps: ClassVar = {
        "CacheMiddleware": "what is kept is redacted",
        **dict.fromkeys(ATTEMPT_LAYERS, "a request is redacted once, and not for each attempt"),
        "ToolErrorMiddleware": "what is said of a failure is redacted too",
        "ToolRetryMiddleware": "a result is redacted once, and not after each run",
        "ToolEmulatorMiddleware": "a made-up result is redacted too",
    }

    def __init__(
        self,
        detectors: Sequence[Detector] = (EMAIL, CARD, IBAN, API_KEY, PRIVATE_KEY),
        *,
        action: str = "redact",
        input: bool = True,
        output: bool = True,
        tools: bool = True,
        restore: Collection[str] = (),
        hash_key: str | bytes | None = None,
    ) -> None:
        chosen = _checked_detectors(detectors)
        actions = Actions(chosen, check_action("RedactionMiddleware(action=...)", action), hash_key)
        for option, value in (("input", input), ("output", output), ("tools", tools)):
            check_flag(f"RedactionMiddleware({option}=...)", value)
        if not (input or output or tools):
            raise MiddlewareConfigError("RedactionMiddleware with input, output and tools off does nothing: remove it")
        self.detectors = chosen
        self.action = action
        self.input, self.output, self.tools = input, output, tools
        self.restore = actions.check_restore(restore)
        self._uses_tokens = actions.uses_tokens
        self._redactor = SharedRedactor(chosen, actions)

    def text(self, text: str) -> str:
        """Return the text redacted, for `redact` of `TracingMiddleware` and `LoggingMiddleware`.

        Where the action is "block" or "token", `[EMAIL]` stands in the place of what was found.
        """
        return self._redactor.change(text, self._redactor.actions.replacer("the text", None))

    def finds_in(self, blocks: Sequence[ContentBlock], metadata: object = None) -> bool:
        """Say whether anything would be replaced in the blocks, or in the metadata of a response."""
        try:
            return change_value(metadata, self.text) is not metadata or any(
                change_block(block, self.text) is not block for block in blocks
            )
        except RedactionBlocked:  # by a detector that cannot say
            return True

    async def on_reply(
        self, agent: AgentBase, input_kwargs: Any, next_handler: NextReply
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        values: Any = input_kwargs  # of a custom agent, the parameters of its `reply`
        # Before anything else: what the core gets is what joins the conversation and is saved.
        entering = self._text_of(agent, "the input")
        for name, value in list(values.items()):
            if name != "structured_schema":  # which is changed in the tools of requests
                values[name] = self._change_input(value, entering)
        if not (self.output or (self.tools and not agent.runs_reply_loop)):
            async for item in next_handler(**values):
                yield item
            return
        leaving = self._text_of(agent, "the answer")
        redacted_ids = self._redacted_ids(agent)
        # Where `on_content` is entered, results have passed it.
        changes_results = self.tools and not agent.runs_reply_loop
        redactor = EventRedactor(
            leaving.change, leaving.begin_shown, redacted_ids, output=self.output, tools=changes_results
        )
        own_id = agent.run.id
        async for item in next_handler(**values):
            if isinstance(item, Msg):
                for event in redactor.end():
                    yield event
                yield self._change_answer(item, leaving, redacted_ids) if self.output else item
            elif item.reply_id and item.reply_id != own_id:
                yield item  # of a sub-agent, in which this middleware, inherited, has redacted it
            else:
                for event in redactor.take(item):
                    yield event

    async def on_content(self, agent: AgentBase, content: IncomingContent) -> IncomingContent:
        is_of_tool = content.source in _OF_TOOLS
        if not (self.tools if is_of_tool else self.input):
            return content
        change = self._text_of(agent, "the result of a tool" if is_of_tool else f"the {content.source}").change
        fields: dict[str, Any] = {"content": [change_block(block, change) for block in content.content]}
        if not is_of_tool:
            fields["name"] = change(content.name)
        if content.metadata or content.structured_output is not None:
            fields["metadata"] = change_value(content.metadata, change)
            fields["structured_output"] = change_value(content.structured_output, change)
        changed = {name: value for name, value in fields.items() if value != getattr(content, name)}
        return replace(content, **changed) if changed else content

    async def on_observe(self, agent: AgentBase, input_kwargs: ObserveValues, next_handler: NextObserve) -> None:
        text = self._text_of(agent, "the message")
        await next_handler(msg=self._change_input(input_kwargs["msg"], text))

    async def on_reasoning(
        self, agent: AgentBase, input_kwargs: ReasoningValues, next_handler: NextReasoning
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        if not self.output:
            async for item in next_handler(**input_kwargs):
                yield item
            return
        text = self._text_of(agent, "the answer")
        redacted_ids = self._redacted_ids(agent)
        redactor = EventRedactor(text.change, text.begin_shown)
        async for item in next_handler(**input_kwargs):
            if isinstance(item, Msg):
                for event in redactor.end():
                    yield event
                for call in item.get_content_blocks("tool_call"):
                    _redact_question(agent, call.id, text)
                yield change_message(item, text.show)
                continue
            # So that on_reply, which every event passes as well, changes only what comes from somewhere else.
            if isinstance(item, (TextBlockStartEvent, ThinkingBlockStartEvent)):
                redacted_ids.add(item.block_id)
            elif isinstance(item, ToolCallStartEvent):
                redacted_ids.add(item.tool_call_id)
                _redact_question(agent, item.tool_call_id, text)
            for event in redactor.take(item):
                yield event
        for event in redactor.end():
            yield event

    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        text = self._text_of(agent, "the request")
        overrides: ModelCallOverrides = {"messages": self._change_request(input_kwargs["messages"], text)}
        if self.input:
            tools = [change_schema(schema, text.change) for schema in input_kwargs["tools"]]
            if any(new is not old for new, old in zip(tools, input_kwargs["tools"], strict=True)):
                overrides["tools"] = tools
        result = await next_handler(**overrides)
        # The answers to other requests pass on_reasoning; that to one of the runtime's own is kept as a summary.
        if self.output and agent.run.is_internal:
            return await self._text_of(agent, "the answer").change_answer(result)
        return result

    async def on_acting(
        self, agent: AgentBase, input_kwargs: ActingValues, next_handler: NextActing
    ) -> AsyncGenerator[ToolChunk | ToolResponse, None]:
        call = input_kwargs["tool_call"]
        text = self._text_of(agent, "the result of a tool")
        # Elsewhere the runtime does it, before the call is decided on.
        if "tools" in self.restore and not agent.runs_reply_loop and call.name != STRUCTURED_OUTPUT:
            arguments = change_json(call.input, text.restore_arguments)
            if arguments != call.input:
                call = replace(call, input=arguments)
        if not self.tools:
            async for item in next_handler(tool_call=call):
                yield item
            return
        # The pieces do not leave: a find may lie in two of them, and the result has all of it.
        async for item in next_handler(tool_call=call):
            if isinstance(item, ToolResponse):
                yield redact_response(item, text.change)
            elif not isinstance(item, ToolChunk):
                yield item  # of an agent that runs its tools itself

    def _text_of(self, agent: AgentBase, place: str) -> ConversationText:
        tokens = Tokens(agent, self.restore) if self._uses_tokens else None
        return ConversationText(self._redactor, place, tokens)

    def _redacted_ids(self, agent: AgentBase) -> set[str]:
        """Return the ids of the blocks and calls of this reply that have been redacted."""
        ids: set[str] = agent.run.scratch(self).setdefault("redacted", set())
        return ids

    def _change_input(self, value: Any, text: ConversationText) -> Any:
        """Return what came in as it is to be kept."""
        if not self.input or isinstance(value, ExternalExecutionResultEvent):  # whose results pass `on_content`
            return value
        if isinstance(value, UserConfirmResultEvent):  # the same, except an input that the user has edited
            results = [
                replace(result, tool_call=change_block(result.tool_call, text.change))
                for result in value.confirm_results
            ]
            return replace(value, confirm_results=results)
        return change_value(value, text.change)

    def _change_request(self, messages: list[Msg], text: ConversationText) -> list[Msg]:
        if self.input:
            return [change_message(message, text.change, results=self.tools) for message in messages]
        if not self.tools:
            return messages
        return [change_message(message, text.change, others=False) for message in messages]

    def _change_answer(self, message: Msg, text: ConversationText, redacted_ids: set[str]) -> Msg:
        """Return the last message with the blocks changed that have not been redacted in their round."""
        if isinstance(message.content, str) or not redacted_ids:
            return change_message(message, text.show)
        rest = [block for block in message.content if block.id not in redacted_ids]
        changed = change_message(replace(message, content=rest), text.show)
        new_blocks = iter(changed.get_content_blocks())
        blocks = [block if block.id in redacted_ids else next(new_blocks) for block in message.content]
        is_same = all(new is old for new, old in zip(blocks, message.content, strict=True))
        if is_same and changed.structured_output is message.structured_output:
            return message
        return replace(message, content=blocks, structured_output=changed.structured_output)


def _redact_question(agent: AgentBase, call_id: str, text: ConversationText) -> None:
    """Redact what a layer asks by a hidden call: the reply keeps its words beside the call."""
    context = agent.state.reply_context
    hidden_calls = None if context is None else context.hidden_calls
    if hidden_calls is not None and call_id in hidden_calls:
        hidden_calls[call_id].question = text.change(hidden_calls[call_id].question)


def _checked_detectors(detectors: object) -> list[Detector]:
    if not isinstance(detectors, (list, tuple)) or not detectors:
        raise MiddlewareConfigError(
            f"RedactionMiddleware takes a list of detectors, such as [EMAIL, CARD], not {detectors!r:.200}"
        )
    names: set[str] = set()
    for detector in detectors:
        if not isinstance(detector, Detector):
            kind = "a class: make an instance of it" if isinstance(detector, type) else f"a {type(detector).__name__}"
            raise MiddlewareConfigError(
                f"RedactionMiddleware takes detectors such as EMAIL or Pattern(name, pattern), not {kind}"
            )
        if detector.name in names:
            raise MiddlewareConfigError(
                f"RedactionMiddleware has two detectors of the name {detector.name}: give one of them another name"
            )
        names.add(detector.name)
    return list(detectors)
