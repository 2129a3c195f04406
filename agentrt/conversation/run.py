"""The reply in progress, as middlewares and tools see it."""

from inspect import currentframe
from threading import get_ident
from time import time_ns
from types import CodeType
from typing import Any, NoReturn

import anyio
import anyio.from_thread

from agentrt.boundary import whole_characters
from agentrt.concurrency.interrupt import Interrupted
from agentrt.concurrency.interrupt_trio import create_interruption
from agentrt.concurrency.mailbox import Mailbox
from agentrt.conversation.emission import warn_of_late_event
from agentrt.conversation.progress import ReplyProgress
from agentrt.conversation.turns import Claim
from agentrt.errors import UsageError
from agentrt.event import AgentEvent, ReplyEndEvent, ReplyResumedEvent, ReplyStartEvent
from agentrt.representation import never_raises
from agentrt.tool import Toolkit
from agentrt.types import FinishedReason

__all__ = ["Run"]


class Run:
    """One reply in progress: `agent.run` in a hook, and behind `ToolContext` in a tool.

    `deps` is what the caller of the reply gave as such; a layer of `on_reply` may set it for the rest of the reply. It
    is the caller's own object, never saved, copied or shown. `toolkit` holds the tools of the current round,
    `is_internal` says that the runtime itself asks the model just now, for a summary, and `ended` that nothing can be
    emitted any more. `claim`, `interruption`, `mailbox` and `progress` are for the loop.
    """

    is_internal = ended = False
    deps: Any = None
    _examined: frozenset[CodeType] = frozenset()
    """The hooks that have emitted, so that not every event of one has its frames walked."""

    def __init__(self, claim: Claim, sequence: int, toolkit: Toolkit) -> None:
        assert claim.reaper is not None  # it has the conversation
        self.id = claim.reply_id
        self.claim = claim
        self.toolkit = toolkit
        self.interruption = create_interruption(claim.reaper.loop)
        self.mailbox = Mailbox()
        self.progress = ReplyProgress(claim, sequence, toolkit)
        self._scratch: dict[int, dict[str, Any]] = {}
        self._thread = get_ident()

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the reply {self.id!r}{', ended' if self.ended else ''}>"

    @property
    def deadline(self) -> float:
        """The caller's deadline, on the clock of `anyio.current_time`; infinity if there is none."""
        return anyio.current_effective_deadline()

    now = staticmethod(time_ns)
    """The clock, in nanoseconds since the epoch."""

    def new_id(self) -> str:
        """Return an id that nothing else in this reply has."""
        progress = self.progress
        progress.ids += 1
        return f"{self.id}-{progress.ids}"

    def next_seq(self) -> int:
        """Take the next sequence number of the conversation."""
        progress = self.progress
        progress.sequence += 1
        return progress.sequence

    def scratch(self, middleware: object) -> dict[str, Any]:
        """Return the middleware's own data of this reply: empty at its start, gone at its end."""
        return self._scratch.setdefault(id(middleware), {})

    def call_name(self, call_id: str) -> str:
        """Return the name of the tool that the call is for."""
        return self.progress.call_names().get(call_id, "")

    def emit(self, event: AgentEvent) -> None:
        """Send an event into the reply's stream, from any layer, tool or worker thread.

        It is seen at once, also while the layer or tool that emits it waits; a layer of `on_reply` or `on_reasoning`
        yields its events instead. `seq` and a missing `reply_id` are filled in, and so are the `block_ids` of a
        `ModelCallRetryEvent`.
        """
        if get_ident() != self._thread:
            anyio.from_thread.run_sync(self.emit, event)
            return
        if self.ended:
            raise UsageError(f"{event.type} was emitted after the reply {self.id!r} had ended")
        event.reply_id = event.reply_id or self.id
        if event.reply_id == self.id and isinstance(event, (ReplyStartEvent, ReplyResumedEvent, ReplyEndEvent)):
            raise UsageError(f"{event.type} cannot be emitted: the runtime begins and ends a reply")
        if not self.mailbox.is_read:  # else its reader does so, in the order of what it holds
            self.progress.discard_attempt(event)
        self.mailbox.post(event)
        if not self.mailbox.is_read:
            frame = currentframe()
            emitter = frame.f_back if frame is not None else None  # there are Pythons without frames
            if emitter is not None and emitter.f_code not in self._examined and warn_of_late_event(emitter):
                self._examined |= {emitter.f_code}

    def continue_with(self, hint: str) -> None:
        """Ask for another round, with `hint` for the model, where the reply would otherwise be complete.

        It counts as a round, and none is granted beyond `max_iters`. Raises `UsageError` once the reply has ended.
        """
        if self.ended:
            raise UsageError("continue_with() came after the end of the reply: call it before REPLY_END passes")
        if not isinstance(hint, str):
            raise UsageError(f"continue_with() takes a str for the model, not {hint!r:.200}")
        progress = self.progress
        progress.continuations = (*progress.continuations, whole_characters(hint))

    def stop(self, reason: FinishedReason) -> NoReturn:
        """End the reply for that reason, from inside of its core."""
        self.interruption.reason = self.interruption.reason or reason
        raise Interrupted
