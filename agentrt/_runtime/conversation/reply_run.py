"""The reply in progress, as the loop sees it."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from inspect import iscoroutine
from threading import get_ident
from time import time_ns
from typing import Any, NoReturn

from agentrt._runtime.block import new_name
from agentrt._runtime.concurrency.background_task import enclosing_replies
from agentrt._runtime.concurrency.interrupt import Interrupted
from agentrt._runtime.concurrency.interrupt_trio import create_interruption
from agentrt._runtime.concurrency.mailbox import Mailbox
from agentrt._runtime.conversation.progress import Origin, ReplyProgress
from agentrt._runtime.conversation.turns import Claim
from agentrt._runtime.text import repr_of, whole_characters
from agentrt.errors import ChainContractError, UsageError
from agentrt.event import AgentEvent
from agentrt.hooks import MiddlewareBase
from agentrt.state import AgentState, ReplyContext
from agentrt.tool import Toolkit
from agentrt.types import FinishedReason, JSONObject


class ReplyRun:
    """One reply in progress, with all that the loop keeps of it; a `Run` is what hooks and tools see of it.

    `agent` is the conversation, and `parent` the reply in whose tool this one was asked for. `outlet` is where
    its core tells what happens, from the moment on in which it runs, and `untold` is on record while the layers around
    the core have not taken it. `scratch` holds the data of middlewares, by their
    `id()`; `identities` and `middleware_data`, their data that is saved with the reply, and `conditions` the answers to
    the conditions of layers, likewise. `receiving` counts the content that is in on_content, and `inner_toolkits` has
    the tools that a call in progress may call, by the id of that call. `side_by_side` says which of these calls may run
    now; both are set by the first of them. `calls_in_progress` returns the ids of the model's calls that run.
    """

    # Defaults of the class, since most replies change none of them.
    ended = False
    is_replay = False
    receiving = 0
    outlet: Any = None
    deps: Any = None
    parent: "ReplyRun | None" = None
    untold: Sequence[AgentEvent] = ()
    side_by_side: Any = None
    calls_in_progress: Callable[[], Collection[str]] = frozenset
    inner_toolkits: Mapping[str, Toolkit] = {}  # replaced by another, never changed

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
        self.identities: dict[str, dict[str, str] | None] = {}
        self.middleware_data: dict[str, JSONObject] = {}
        self.conditions: dict[str, bool] = {}
        self.thread = get_ident()

    now = staticmethod(time_ns)
    """The clock, in nanoseconds since the epoch; a replay has another one, and other ids of sub-agents' replies."""

    def begin_child(self, call_id: str, state: AgentState) -> str:
        """Return the id of the reply of a sub-agent that this call asks, in its new conversation."""
        return new_name()

    def toolkit_of(self, call_id: str) -> Toolkit:
        """Return the toolkit of a call: that of the round, or that of the tool which makes the call."""
        return self.inner_toolkits.get(call_id.rpartition("/")[0], self.toolkit)

    def restore(self, context: ReplyContext) -> None:
        """Restore the data and the progress of a reply that resumes."""
        self.identities, self.middleware_data = context.identities, context.middleware_data
        self.conditions = context.conditions
        self.progress.restore(context)

    @property
    def enclosing_replies(self) -> tuple[Hashable, ...]:
        """The replies that its tools work for: those that the current task works for, and this one."""
        enclosing = enclosing_replies.get()
        return enclosing if self in enclosing else (*enclosing, self)

    def identify(self) -> None:
        """Call `identify` of each layer that overrides it, when the reply begins."""
        for middleware in self.agent.chains.middlewares:
            if type(middleware).identify is not MiddlewareBase.identify:
                # A call that fails is repeated when the layer reads its identity, so that the layer handles the error.
                with suppress(Exception):
                    self.identity(middleware)

    def identity(self, middleware: MiddlewareBase) -> Mapping[str, str]:
        """Return what `identify` of the layer returned when the reply began; calls it now if it was not called then."""
        if self.parent is not None and self.agent.lineage.is_inherited(middleware):
            above: ReplyRun | None = self.parent
            while above is not None:
                if any(layer is middleware for layer in above.agent.chains.middlewares):
                    return above.identity(middleware)
                above = above.parent
        key = self.agent.chains.name_of(middleware)
        known = self.identities.get(key)
        if known is not None:
            return known
        if key in self.identities and self.progress.origin is not Origin.INPUT:
            # The current caller may be another user.
            raise UsageError(
                f"{type(middleware).__name__}.identify() failed when the reply {self.id!r} began, and cannot "
                f"be called again in a resumed reply: start a new reply"
            )
        self.identities[key] = None
        identity: object = middleware.identify(self.agent)
        if isinstance(identity, Mapping):
            texts = [text for item in identity.items() for text in item]
            # Text with half of a surrogate pair could not be saved.
            if all(isinstance(text, str) and whole_characters(text) == text for text in texts):
                known = self.identities[key] = dict(identity)
                return known
        remedy = ""
        if iscoroutine(identity):
            identity.close()  # the error says enough, without a warning that it was never awaited
            remedy = ": write `def`, without `async`"
        raise ChainContractError(
            f"{type(middleware).__name__}.identify() must return a dict of str by str, which is saved with the "
            f"reply, not {repr_of(identity)}{remedy}"
        )

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
