"""One conversation of an editor: prompts, questions, and what the editor is shown."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio
from acp.exceptions import RequestError
from acp.interfaces import Client
from acp.schema import DeniedOutcome, PermissionOption, ToolCallUpdate

from agentrt._runtime.block import HIDDEN_CALL
from agentrt._runtime.text import one_line
from agentrt.agent import Agent
from agentrt.event import (
    ConfirmResult,
    ReplyEndEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    UserConfirmResultEvent,
    UserInterruptEvent,
)
from agentrt.message import Msg, TextBlock, ToolCallBlock
from agentrt.serving.acp.command import STOP, EditorCommand, split_command
from agentrt.serving.acp.updates import ReplyUpdates, call_content, call_title, message_chunk, raw_input, saved_updates
from agentrt.serving.sse import public_error

_MAX_QUESTION_TITLE = 500
_MAX_QUESTION_SHOWN = 10_000  # characters, which the address of a login page needs
_STOP_REASONS: Mapping[str, Any] = {
    "completed": "end_turn",
    "interrupted": "cancelled",
    "exceed_max_iters": "max_turn_requests",
    "exceed_max_tool_calls": "max_turn_requests",
    "exceed_max_seconds": "max_turn_requests",
    "exceed_max_form_attempts": "max_turn_requests",
    "exceed_max_output": "max_tokens",
    "exceed_budget": "max_tokens",
    "guardrail": "refusal",
}
_ALLOW_ONCE = PermissionOption(option_id="allow_once", name="Allow", kind="allow_once")
_ALLOW_ALWAYS = PermissionOption(option_id="allow_always", name="Always allow", kind="allow_always")
_REJECT_ONCE = PermissionOption(option_id="reject_once", name="Reject", kind="reject_once")


class EditorSession:
    """A session; `folder` is where the editor works."""

    def __init__(self, agent: Agent, client: Client, folder: str, commands: Mapping[str, EditorCommand]) -> None:
        self.agent = agent
        self.folder = folder
        self._client = client
        self._commands = commands
        self._is_busy = False
        self._is_cancelled = False
        self._cancellable: anyio.CancelScope | None = None

    @property
    def id(self) -> str:
        return self.agent.state.session_id

    async def prompt(self, message: Msg) -> Any:
        """Reply to the user, and return the reason why the turn ended.

        What an earlier process has left is finished first. Raises `RequestError` while the session is at work.
        """
        with self._alone():
            return await self._take_turn(message)

    def cancel(self) -> None:
        """End the turn, also one that waits for the user or runs a command."""
        if self._is_busy:
            self._is_cancelled = True
            if self._cancellable is not None:
                self._cancellable.cancel()
            else:
                _ = self.agent.interrupt()

    async def show_history(self) -> None:
        """Show what has been said, and the reply that was left; raises `RequestError` while the session is at work."""
        with self._alone():
            context = self.agent.state.reply_context
            for message in (*self.agent.state.context, *([] if context is None else [context.message])):
                for update in saved_updates(self.agent.released(message, "output"), self.folder):
                    await self._client.session_update(session_id=self.id, update=update)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._is_busy:
            raise RequestError.invalid_request({"details": "the session is at work: wait, or cancel it"})
        self._is_busy, self._is_cancelled = True, False
        try:
            yield
        finally:
            self._is_busy, self._cancellable = False, None

    async def _take_turn(self, message: Msg) -> Any:
        first = message.content[0]
        name, words = split_command(first.text) if isinstance(first, TextBlock) else ("", "")
        command = self._commands.get(name)
        context = self.agent.state.reply_context
        if context is not None:
            reason = await self._reply(UserInterruptEvent(context.reply_id) if command is STOP else None)
            if reason == "cancelled" or self.agent.waiting() is not None:
                return reason
        if command is not None:
            text = None
            with anyio.CancelScope() as self._cancellable:
                text = await command.run(self.agent, words)
            self._cancellable = None
            if self._is_cancelled:
                return "cancelled"
            if text is None:
                return "end_turn"
            message.content = [TextBlock(text), *message.content[1:]]
        return await self._reply(message)

    async def _reply(self, inputs: Any) -> Any:
        reason = "end_turn"
        question = self.agent.waiting() if inputs is None else None
        if question is None:
            reason = await self._show(inputs)
            question = self.agent.waiting()
        while question is not None:
            if isinstance(question, RequireExternalExecutionEvent):
                names = ", ".join(call.name for call in question.tool_calls)
                text = f"The reply waits for the result of {names}, which another program has to give. /stop ends it."
                await self._client.session_update(session_id=self.id, update=message_chunk(text))
                return "end_turn"
            reason = await self._show(await self._ask(question))
            question = self.agent.waiting()
        return reason

    async def _show(self, inputs: Any) -> Any:
        """Run the reply and show its events; returns why it stopped, "end_turn" for one that waits."""
        updates, reason = ReplyUpdates(self.agent, self.folder), "end_turn"
        async with self.agent.reply_stream(inputs) as events:
            async for event in events:
                if self._is_cancelled and self.agent.waiting() is None:
                    _ = self.agent.interrupt()  # again, since there was nothing to interrupt before the first event
                for update in updates.translate(event):
                    await self._client.session_update(session_id=self.id, update=update)
                if isinstance(event, ReplyEndEvent) and event.reply_id == updates.reply_id:
                    if event.finished_reason not in _STOP_REASONS:
                        error = public_error(event.finished_reason, event.error)
                        raise RequestError.internal_error({"details": error or "the reply failed"})
                    reason = _STOP_REASONS[event.finished_reason]
        return reason

    async def _ask(self, question: RequireUserConfirmEvent) -> UserConfirmResultEvent | UserInterruptEvent:
        """Have the editor ask its user about each call; a cancelled turn ends the reply."""
        results: list[ConfirmResult] = []
        for call in question.tool_calls:
            outcome = None
            with anyio.CancelScope() as self._cancellable:
                if not self._is_cancelled:
                    outcome = await self._ask_about(question, call)
            self._cancellable = None
            if outcome is None:
                return UserInterruptEvent(question.reply_id)
            if outcome == "reject_once":
                results += question.deny(None, call).confirm_results
            else:
                results += question.approve(call, always=outcome == "allow_always").confirm_results
        return UserConfirmResultEvent(question.reply_id, results)

    async def _ask_about(self, question: RequireUserConfirmEvent, call: ToolCallBlock) -> str | None:
        """Return the option that the user has chosen, `None` if the turn was cancelled."""
        reason = question.questions.get(call.id)
        is_of_layer = call.id.rpartition("/")[2].startswith(HIDDEN_CALL)
        words = one_line(reason.message, _MAX_QUESTION_SHOWN) if reason is not None and reason.message else ""
        title = one_line(words, _MAX_QUESTION_TITLE) if is_of_layer and words else call_title(call)
        agents = " > ".join(question.inside.get(call.id, ()))
        may_add = self.agent.state.permission_context.allow_new_rules
        has_rules = may_add and reason is not None and reason.suggested_rules
        options = [_ALLOW_ONCE, *([_ALLOW_ALWAYS] if has_rules else []), _REJECT_ONCE]
        response = await self._client.request_permission(
            session_id=self.id,
            tool_call=ToolCallUpdate(
                tool_call_id=call.id,
                title=f"{agents} > {title}" if agents else title,
                status="pending",
                raw_input=raw_input(call),
                content=None if is_of_layer or not words else [call_content(words)],
            ),
            options=options,
        )
        if isinstance(response.outcome, DeniedOutcome):
            return None
        chosen = response.outcome.option_id
        # Whatever is not clearly a yes to what was offered is a no.
        return chosen if chosen in {option.option_id for option in options} else "reject_once"
