"""Every error that agentrt raises on purpose, in one tree, split by whose fault it is.

    AgentRTError
    ├── ConfigError                  the caller built something wrongly
    │   ├── UnknownKeywordError        a constructor does not have a keyword that it was given
    │   ├── MiddlewareConfigError      a middleware, or the order of the list
    │   └── ToolConfigError            a function or class that cannot be a tool
    ├── UsageError                   the caller used something in the wrong place or at the wrong time
    │   ├── AgentBusyError             the conversation already has a reply in progress
    │   ├── HookError                  a pre/post hook of an unknown type, or one that does what it must not
    │   │   └── HookTargetError            a pre/post hook for what is not an agent
    │   ├── InvalidInputError          a message or event that an agent does not take
    │   ├── NoReplyError               `agent.run` was used between replies
    │   ├── ResumeError                an answer to a question that was not asked (`code` says which way)
    │   └── WrongCallError             a function does not have a keyword that it was given
    ├── ChainError                   a middleware misused its `next_handler`
    ├── ChainContractError           a middleware or a model broke the contract of its hook
    │   └── MissingTerminalError       a stream ended without the item that it must end with
    ├── LayerTimeout                 a layer took longer than its limit allows
    ├── ModelError                   the provider
    │   ├── RateLimited                asked to slow down (`retry_after` in seconds, when it said so)
    │   │   └── RateLimitTimeout           our own rate limit: the call would have waited too long
    │   ├── Timeout                    too slow
    │   ├── Transient                  a fault that may pass: connection, 5xx, a cut stream
    │   │   └── CircuitOpen                our own circuit breaker: the model has failed too often of late
    │   ├── Rejected                   the request is wrong: 4xx, authentication, quota
    │   │   └── Unsupported                the model is known to lack what it would need (`capability`)
    │   ├── ContextOverflow            the request is too long for the model
    │   ├── Refused                    the model or its filter declined to answer
    │   └── Malformed                  an answer that cannot be used
    │       ├── MalformedCall              the model has written a call, or JSON, that its provider cannot read
    │       └── StructuredOutputError      no answer of a whole reply fits its `structured_schema`
    ├── BudgetExceeded               what may be spent is used up
    ├── GuardrailTripped             a guard has objected to what was asked, said or given
    ├── RedactionBlocked             some text holds what is not to pass, or could not be searched
    ├── SubAgentUnavailable          a sub-agent that cannot be made, or is not healthy
    ├── ToolError                    a tool failed, or was asked for something it cannot do
    ├── InputEnded                   the user was asked, but the input has ended
    ├── QueueFull                    a runner has as many replies waiting as it may (`retry_after` in seconds)
    ├── StateError                   a state that cannot be saved or loaded
    │   ├── RunCorrupt                 a recorded run is damaged (`line` says where)
    │   ├── SessionConflict            another writer has saved the session in the meantime
    │   ├── SessionCorrupt             what was saved is damaged, or is not a state
    │   ├── SessionIOError             the disk, the file system or the database
    │   ├── SessionUnserializable      the state holds something that JSON cannot hold
    │   └── SessionVersion             saved by a version of agentrt that this one does not understand
    ├── ReaderError                  a file that cannot be made a document
    ├── SkillError                   the folder of a skill that cannot be used (`problems` has each reason)
    ├── StoreError                   a store of texts: what it was given, or its database
    └── WorkspaceError               a file of a workspace that cannot be read or written
        ├── AccessDenied               a path that leads, or could lead, out of its namespace
        └── MissingFileError           a file or folder that does not exist

Control flow of the runtime never derives from `Exception`, so no `except Exception` can eat it.
"""

import typing

__all__ = [
    "AccessDenied",
    "AgentBusyError",
    "AgentRTError",
    "BudgetExceeded",
    "ChainContractError",
    "ChainError",
    "CircuitOpen",
    "ConfigError",
    "ContextOverflow",
    "GuardrailTripped",
    "HookError",
    "HookTargetError",
    "InputEnded",
    "InvalidInputError",
    "LayerTimeout",
    "Malformed",
    "MalformedCall",
    "MiddlewareConfigError",
    "MissingFileError",
    "MissingTerminalError",
    "ModelError",
    "NoReplyError",
    "QueueFull",
    "RateLimitTimeout",
    "RateLimited",
    "ReaderError",
    "RedactionBlocked",
    "Refused",
    "Rejected",
    "ResumeError",
    "RunCorrupt",
    "SessionConflict",
    "SessionCorrupt",
    "SessionIOError",
    "SessionUnserializable",
    "SessionVersion",
    "SkillError",
    "StateError",
    "StoreError",
    "StructuredOutputError",
    "SubAgentUnavailable",
    "Timeout",
    "ToolConfigError",
    "ToolError",
    "Transient",
    "UnknownKeywordError",
    "Unsupported",
    "UsageError",
    "WorkspaceError",
    "WrongCallError",
]


class AgentRTError(Exception):
    """Base of every error that agentrt raises on purpose."""


class ConfigError(AgentRTError):
    """Something was put together wrongly; raised by constructors, before anything runs.

    One about a configuration has `problems`, an error for each wrong place: with its `file`, the `path` in it, such as
    "layers[1].options", the `value` as text, without secrets, and the `remedy`.
    """

    file: str = ""
    path: str = ""
    value: str = ""
    remedy: str = ""
    problems: "tuple[ConfigError, ...]" = ()


class UnknownKeywordError(ConfigError, TypeError):
    """A constructor was given a keyword that it does not have; the message says which one was meant."""


class MiddlewareConfigError(ConfigError):
    """A middleware, or the order of the list, cannot be compiled into chains."""


class ToolConfigError(ConfigError):
    """A function or class cannot be offered to a model as a tool."""


class UsageError(AgentRTError, RuntimeError):
    """Something was used in the wrong place, at the wrong time or before it was ready."""


class AgentBusyError(UsageError):
    """The conversation already has a reply in progress."""


class HookError(UsageError, ValueError, AssertionError):
    """A pre/post hook is of a type that its agent does not have, or does what a hook must not do.

    Programs that were written for asserted hooks catch it as an `AssertionError`.
    """


class HookTargetError(HookError, TypeError):
    """A pre/post hook was to be registered on, or removed from, something that is not an agent."""


class InvalidInputError(UsageError, ValueError):
    """An agent was given a message or event that it does not take."""


class ResumeError(UsageError, ValueError):
    """An answer came to a question that the conversation is not asking.

    `code` is stable and meant for programs; the text is meant for people.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class NoReplyError(UsageError, AttributeError):
    """`agent.run` was used between replies; an `AttributeError` too, as `hasattr` and `inspect.getmembers` need it."""


class WrongCallError(UsageError, TypeError):
    """A function was given a keyword that it does not have; the message says which one was meant."""


class ChainError(AgentRTError):
    """A middleware misused its `next_handler`."""


class ChainContractError(AgentRTError):
    """A middleware or a model produced something that its hook does not allow."""


class MissingTerminalError(ChainContractError):
    """A stream ended without the item that its hook must end with."""


class LayerTimeout(AgentRTError):
    """A layer took longer of its own than its limit of `seconds` allows in this hook; no retry repeats it."""

    def __init__(self, message: str, *, layer: str = "", hook: str = "", seconds: float = 0.0) -> None:
        super().__init__(message)
        self.layer = layer
        self.hook = hook
        self.seconds = seconds


class ModelError(AgentRTError):
    """The model's provider failed.

    `status_code` is the HTTP status, if it was one that failed; `retry_after` says in how many seconds to try again, if
    the provider said so.
    """

    status_code: int | None = None
    retry_after: float | None = None


class RateLimited(ModelError):
    """The provider asks to slow down; `retry_after` is in seconds, `None` when it did not say."""

    def __init__(self, message: str = "the provider asks to slow down", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimitTimeout(RateLimited):
    """A rate limit of our own did not let the call begin in time; the provider was not asked."""


class Timeout(ModelError):
    """The provider was too slow."""


class Transient(ModelError):
    """A fault that may pass by itself: a refused connection, a 5xx, a stream cut short."""


class CircuitOpen(Transient):
    """A circuit breaker of our own holds the calls back, for `retry_after` seconds; the provider was not asked."""


class Rejected(ModelError):
    """The provider will not take this request, however often it is sent."""


class Unsupported(Rejected):
    """The model is known to lack what the request needs, and was not asked.

    `capability` names it: "image", "audio", "video", "pdf", "tools", "schema", "batch" or "batch name".
    """

    def __init__(self, message: str, *, capability: str = "") -> None:
        super().__init__(message)
        self.capability = capability


class ContextOverflow(ModelError):
    """The request is longer than the model's context."""


class Refused(ModelError):
    """The model or its content filter declined to answer."""


class Malformed(ModelError):
    """The provider's answer cannot be used."""


class MalformedCall(Malformed):
    """The model has written a tool call, or JSON, that its provider cannot read; a retry may succeed."""


class StructuredOutputError(Malformed):
    """A reply has ended without an answer that fits its `structured_schema`.

    `final_message` is the `Msg` that it ended with: its `finished_reason`, its `error` and what the model said.
    """

    def __init__(self, message: str, *, final_message: typing.Any = None) -> None:
        super().__init__(message)
        self.final_message = final_message  # typed as anything, since messages know the errors


class BudgetExceeded(AgentRTError):
    """The budget is used up, or the cost of a call is unknown; nothing was called.

    `scope` is "reply", "conversation" or "owner"; `counter` says what is counted, such as "tokens", with the `limit`
    and what was `spent`. `reply_id` is the reply that this ends: where sub-agents share a budget, the outermost one
    whose budget it is. Retries, fallbacks and circuit breakers never take it.
    """

    def __init__(
        self,
        message: str,
        *,
        scope: str = "",
        counter: str = "",
        limit: float = 0.0,
        spent: float = 0.0,
        reply_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.scope = scope
        self.counter = counter
        self.limit = limit
        self.spent = spent
        self.reply_id = reply_id


class GuardrailTripped(AgentRTError):
    """A guard has objected; `guard` is its name, and `stage` says to what: "input", "output" or "tool_result".

    The message does not hold the text that the guard has seen, nor its reason.
    """

    def __init__(self, message: str, *, guard: str = "", stage: str = "") -> None:
        super().__init__(message)
        self.guard = guard
        self.stage = stage


class RedactionBlocked(AgentRTError):
    """Some text holds what is not to pass, or could not be searched for that; `detector` names what found it."""

    def __init__(self, message: str, *, detector: str = "") -> None:
        super().__init__(message)
        self.detector = detector


class SubAgentUnavailable(AgentRTError):
    """A sub-agent cannot be made, or says that it could not work, so no tool is made of it."""


class ToolError(AgentRTError):
    """A tool failed, or was asked for something that it cannot do."""


class InputEnded(AgentRTError, EOFError):
    """The user was asked a question, but the input had ended, so that no answer can come."""


class QueueFull(AgentRTError):
    """A runner has as many replies waiting as it may; nothing was stored. `retry_after` is in seconds.

    The `scope` says what is full: the whole "queue", the "session", or the share of its "owner".
    """

    def __init__(self, message: str, *, retry_after: float = 1.0, scope: str = "queue") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.scope = scope


class StateError(AgentRTError):
    """A state cannot be saved or loaded; what is saved is left as it was."""


class SessionConflict(StateError):
    """The saved state is not the one that the state to be saved is based on: saving it would undo another's work."""


class SessionCorrupt(StateError):
    """The saved data is damaged, or is not a state at all; it is kept, so that it can be repaired."""


class RunCorrupt(StateError):
    """A recorded run is damaged at `line`, or was written by a newer version; it is kept as it is."""

    def __init__(self, *args: object, line: int | None = None) -> None:
        super().__init__(*args)
        self.line = line


class SessionIOError(StateError):
    """The disk, the file system or the database failed, or did not answer in time."""


class SessionUnserializable(StateError, TypeError):
    """The state holds something that JSON cannot hold, or that could not be loaded again; what is saved stays."""


class SessionVersion(StateError):
    """The saved data is intact, but written by a version of agentrt that this one does not understand."""


class ReaderError(AgentRTError):
    """A file cannot be made a document; the message names it, the page and what to do."""


class SkillError(AgentRTError):
    """The folder of a skill cannot be used; `problems` has each reason, and `skill` is the name of the folder."""

    def __init__(self, problems: typing.Sequence[str] | str, *, skill: str = "") -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__(self.problems)  # a copy and a pickle are made from them
        self.skill = skill

    def __str__(self) -> str:
        return "; ".join(self.problems)


class StoreError(AgentRTError):
    """A store of texts cannot take what it was given, or its database failed or did not answer; nothing was changed.

    One that did not answer in time may still do, all or nothing, what it was asked for.
    """


class WorkspaceError(AgentRTError, OSError):
    """A file of a workspace cannot be read or written; what was there is left as it was."""


class AccessDenied(WorkspaceError, PermissionError):
    """A path leads, or could lead, out of the namespace of its workspace; nothing was read or written."""


class MissingFileError(WorkspaceError, FileNotFoundError):
    """A workspace has no file or folder at this path."""
