"""The reply in progress, as the loop sees it."""

from collections.abc import Hashable
from threading import get_ident
from time import time_ns
from types import CodeType
from typing import Any, NoReturn

from agentrt.concurrency.background_task import enclosing_replies
from agentrt.concurrency.interrupt import Interrupted
from agentrt.concurrency.interrupt_trio import create_interruption
from agentrt.concurrency.mailbox import Mailbox
from agentrt.conversation.progress import ReplyProgress
from agentrt.conversation.turns import Claim
from agentrt.tool import Toolkit
from agentrt.types import FinishedReason

__all__ = ["ReplyRun"]


class ReplyRun:
    """One reply in progress, with all that the loop keeps of it; a `Run` is what hooks and tools see of it.

    `agent` is the conversation, and `parent` the reply in whose tool this one was asked for. `is_unseen` says that
    nobody sees an event of its core before the reply is over, so that none need be seen at once. `scratch` holds the
    data of middlewares, by their `id()`. `examined` holds the hooks that have emitted, so that not every event of one
    has its frames walked.
    """

    # Defaults of the class, since most replies change none of them.
    is_unseen = ended = False
    deps: Any = None
    parent: "ReplyRun | None" = None
    examined: frozenset[CodeType] = frozenset()

    def __init__(self, agent: Any, claim: Claim, sequence: int, toolkit: Toolkit) -> None:
        assert claim.reaper is not None  # it has the conversation
        enclosing = enclosing_replies.get()
        if enclosing:
            self.parent = enclosing[-1]  # type: ignore[assignment]  # only tasks of replies are enclosed by anything
        self.agent = agent
        self.id = claim.reply_id
        self.claim = claim
        self.toolkit = toolkit
        self.interruption = create_interruption(claim.reaper.loop)
        self.mailbox = Mailbox()
        self.progress = ReplyProgress(claim, sequence, toolkit)
        self.scratch: dict[int, dict[str, Any]] = {}
        self.thread = get_ident()

    now = staticmethod(time_ns)
    """The clock, in nanoseconds since the epoch."""

    @property
    def enclosing_replies(self) -> tuple[Hashable, ...]:
        """The replies that its tools work for: those that the current task works for, and this one."""
        enclosing = enclosing_replies.get()
        return enclosing if self in enclosing else (*enclosing, self)

    def new_id(self) -> str:
        """Return an id that nothing else in this reply has."""
        progress = self.progress
        progress.ids += 1
        return f"{self.id}-{progress.ids}"

    def stop(self, reason: FinishedReason, message: str | None = None) -> NoReturn:
        """End the reply for that reason, and with that message, from inside of its core; the first reason counts."""
        if self.interruption.reason is None:
            self.interruption.message = message
            self.interruption.reason = reason
        raise Interrupted
