"""The emitter of the AGENT-HOOKS SDK, with time limits that hold on every event loop. Imports the SDK."""

import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import isawaitable
from typing import Any

import anyio
from agent_hooks import (
    AgentContextBuilder,
    ApprovalOutcome,
    ApprovalRequest,
    ApprovalResolution,
    CompositionConfig,
    EnforcementMode,
    HostDeclaration,
    HostError,
    HostRegistry,
    HostSurface,
    InterceptionBlocked,
    InterceptionEmitter,
    InterceptionPoint,
    InterceptionRecord,
    Verdict,
)

_logger = logging.getLogger("agentrt")
_MAX_RECORDS = 10_000  # of one reply

_TakeRecord = Callable[[InterceptionRecord], None]


class _TimedInterceptor:
    """An interceptor with a time limit of anyio; the SDK's own is that of asyncio, and fails on trio."""

    def __init__(self, interceptor: Any, seconds: float | None) -> None:
        self._interceptor = interceptor
        self._seconds = seconds

    def intercept(self, context: dict[str, Any]) -> Any:
        verdict = self._interceptor.intercept(context)
        return _in_time(verdict, self._seconds) if isawaitable(verdict) else verdict


class _TimedResolver:
    """An approval resolver with a time limit, likewise."""

    def __init__(self, resolver: Any, seconds: float | None) -> None:
        self._resolver = resolver
        self._seconds = seconds

    def resolve(self, request: ApprovalRequest) -> Any:
        resolution = self._resolver.resolve(request)
        return _in_time(resolution, self._seconds) if isawaitable(resolution) else resolution


async def _in_time(work: Any, seconds: float | None) -> Any:
    with anyio.fail_after(seconds):
        return await work


class _UserHasApproved:
    """Answers for the user, who has approved exactly this call."""

    def resolve(self, request: ApprovalRequest) -> ApprovalResolution:
        return ApprovalResolution(ApprovalOutcome.APPROVE, request.context_identity, Verdict.allow())


class Emitter(InterceptionEmitter):
    """An emitter that is configured once and copied for each reply."""

    # The SDK has no public way to wrap what a declaration binds; its version is pinned.

    def move_time_limits(self) -> None:
        """Replace the SDK's time limits by those of anyio."""
        for bound in self._interceptors:
            seconds = self._timeout if bound.inherit_timeout else bound.timeout
            bound.interceptor = _TimedInterceptor(bound.interceptor, seconds)
            bound.inherit_timeout, bound.timeout = False, None
        if self._resolver is not None:
            self.answer_by(_TimedResolver(self._resolver, self._resolver_timeout))
            self._resolver_timeout = None

    @property
    def has_resolver(self) -> bool:
        """Whether liftable denials are answered at once."""
        return self._resolver is not None

    @property
    def max_records(self) -> int:
        """The number of records that are kept of one reply."""
        return _MAX_RECORDS if self._max_records is None else min(self._max_records, _MAX_RECORDS)

    def for_reply(self, take: _TakeRecord) -> "Emitter":
        """Return a copy with records of its own, which `take` receives."""
        emitter = copy.copy(self)
        emitter.take_records()  # gives the copy a list of its own
        emitter.set_record_sink(take)
        return emitter

    def approved_by_user(self) -> "Emitter":
        """Return a copy for one call that the user has approved."""
        emitter = copy.copy(self)
        emitter.answer_by(_UserHasApproved())
        return emitter

    def answer_by(self, resolver: Any) -> None:
        """Have this resolver answer liftable denials."""
        self._resolver = resolver


def emitter_from_code(
    interceptors: Sequence[Any],
    *,
    resolver: Any,
    mode: Any,
    composition: CompositionConfig | None,
    identity_provider: Any,
    redactor: Callable[[dict[str, Any]], dict[str, Any]] | None,
    timeout: float | None,
) -> Emitter:
    """Return an emitter for what the program itself says."""
    emitter = Emitter(
        mode=EnforcementMode.ENFORCE if mode is None else EnforcementMode(mode),
        resolver=resolver,
        timeout=timeout,
        composition=composition,
        identity_provider=identity_provider,
    )
    for interceptor in interceptors:
        emitter.register(interceptor)
    if redactor is not None:
        emitter.set_approval_redactor(redactor)
    emitter.move_time_limits()
    return emitter


def emitter_from_declaration(
    declaration: str | os.PathLike[str] | Mapping[str, Any] | HostDeclaration, registry: HostRegistry | None
) -> tuple[Emitter, bool]:
    """Return the emitter that a document declares, and whether answers are to be judged in pieces.

    Raises the SDK's `DeclarationError` for a document that it refuses.
    """
    if registry is None:
        registry = HostRegistry(HostSurface.from_capabilities(["model_calls", "tool_calls", "host_declaration"]))
    if isinstance(declaration, Mapping):
        declaration = HostDeclaration.from_value(declaration)
    elif not isinstance(declaration, HostDeclaration):
        declaration = HostDeclaration.from_path(declaration)
    emitter = Emitter.from_declaration(declaration, registry)
    assert isinstance(emitter, Emitter)
    emitter.move_time_limits()
    resolved = emitter.declaration
    return emitter, resolved is not None and not resolved.surface.get("buffered_output", True)


class Session:
    """The emissions of one reply: one sequence of contexts, and the records of what was decided about them.

    `data` is saved with the reply, so that the sequence continues where the reply resumes.
    """

    def __init__(self, emitter: Emitter, agent: str, session_id: str, data: dict[str, Any], take: _TakeRecord) -> None:
        self.emitter = emitter.for_reply(self._deliver)
        self.build = AgentContextBuilder(agent_id=agent, agent_name=agent, framework="agentrt", session_id=session_id)
        self.calls: dict[str, Any] = {}
        self._session_id = session_id
        self._data = data
        self._take = take

    @property
    def is_new(self) -> bool:
        """Whether nothing of this reply has been emitted, here or in another process."""
        return "sequence" not in self._data

    @property
    def is_enforced(self) -> bool:
        """Whether verdicts count; otherwise they are recorded and nothing else."""
        return self.emitter.mode is EnforcementMode.ENFORCE

    async def emit(self, context: dict[str, Any]) -> Any:
        """Return the target of the context as the interceptors leave it; raises `InterceptionBlocked` for a denial."""
        return (await self.emitter.emit(self._numbered(context))).target

    async def try_emit(self, context: dict[str, Any], *, is_approved: bool = False) -> InterceptionRecord:
        """Emit the context, which interceptors may change, and return the record of it."""
        emitter = self.emitter.approved_by_user() if is_approved else self.emitter
        return await emitter.emit_unchecked(self._numbered(context))

    def refuse(self, context: dict[str, Any], error: str, detail: str) -> InterceptionBlocked:
        """Record that this host denies something itself, and return the error that says so."""
        # The SDK records failures of a host under one reason only, so that the record is made by a copy that tells
        # nobody, and completed.
        records: list[InterceptionRecord] = []
        silent = self.emitter.for_reply(records.append)
        silent.record_host_failure(
            InterceptionPoint(context["interception_point"]),
            detail,
            session_id=self._session_id,
            sequence=self._numbered(context)["sequence"],
            timestamp=context["timestamp"],
        )
        record = replace(records[0], verdict=Verdict.host_error(HostError(error), detail))
        self._deliver(record)
        return InterceptionBlocked(record)

    def _numbered(self, context: dict[str, Any]) -> dict[str, Any]:
        context["sequence"] = self._data.get("sequence", 0)
        self._data["sequence"] = context["sequence"] + 1
        return context

    def _deliver(self, record: InterceptionRecord) -> None:
        try:
            self._take(record)
        except Exception as error:  # noqa: BLE001  # a function of the user's own; the verdict stands in any case
            _logger.warning("AgentHooksMiddleware(on_record=...) failed: %s", type(error).__name__)
