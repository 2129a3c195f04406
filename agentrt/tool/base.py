"""The base class of tools."""

import copy
import inspect
import json
from collections.abc import Awaitable, Sequence
from typing import Any, Literal, NoReturn, Self

from agentrt._runtime.keywords.attributes import compute_missing
from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import ToolConfigError, ToolError, UsageError
from agentrt.tool.invocation import CallPlan, make_call_plan
from agentrt.tool.signature.callables import source_location
from agentrt.tool.signature.docstring import parse_docstring
from agentrt.types import JSONObject, JSONSchema, PermissionBehavior, PermissionContext, PermissionDecision, ToolFlow

MAX_OUTPUT = 200_000
"""How many characters a tool's result may have, apart from data, unless the tool sets a limit: some 50,000 tokens."""

_TOOL_NAME = lazy_pattern(r"[A-Za-z0-9_-]{1,64}")


def _refuse_without_name(tool: "ToolBase") -> NoReturn:
    raise ToolConfigError(f"{type(tool).__name__} has no name: write `name = ...` in the class ({tool_location(tool)})")


@compute_missing(
    name=_refuse_without_name,
    description=lambda tool: tool._describe_by_docstring(),
    input_schema=lambda tool: call_plan_of(tool).schema,
)
class ToolBase:
    """A tool: a subclass sets `name` and overrides `call`.

    `call` is a coroutine function, an async generator, or a plain function or generator, which runs in a worker thread.
    What it returns may be a `ToolResponse`, text, blocks, any value that has a JSON form, or a generator. A generator
    may yield the same, and `ToolChunk`s; text, blocks and chunks are only what is new. A parameter annotated
    `ToolContext` receives the context of the call and is not shown to the model.

    `input_schema`, when not set, comes from the signature and docstring of `call`; one that is malformed, or has a
    keyword that cannot be checked, is refused at registration. `description`, when not set, is the docstring up to its
    first section (`Args:`, `Returns:`, ...). A subclass need not call `super().__init__()`.
    """

    name: str
    description: str
    input_schema: JSONSchema

    is_concurrency_safe: bool = True
    """Whether it may run at the same time as other tools of its round."""

    is_read_only: bool = False
    """Whether it leaves the world as it was; unless a rule or `ask` says otherwise, it then runs in every mode."""

    is_external_tool: bool = False
    """Whether it runs outside this program; its `call` is then never entered."""

    is_hidden: bool = False
    """Whether it is for its layer alone: no model is offered it, can call it, or sees a call of it or a result.

    A layer calls it in the model's place, by `Run.hidden_call`. Its calls are part of the conversation, and go through
    `on_check_permission` but not through `on_acting`. One that asks (`ask`) is asked about in every permission mode,
    and denied in DONT_ASK.
    """

    is_resumable: bool = False
    """Whether a call may be entered more than once: after it has waited for an answer, and after a process that died.

    See `ToolResponse.waits` and `ToolContext.kept`. A call of a tool that is neither this nor idempotent, and was
    running when its process ended, gets the result `unknown`, since nobody knows what it has done.
    """

    is_idempotent: bool = False
    """Whether a call that runs again with the same `ToolContext.idempotency_key` takes effect once.

    Then a call that was running when its process ended runs again, and its result is not `unknown`.
    """

    is_background: bool = False
    """Whether a call is let go at once where a runner runs the agent; the model gets its result in a later reply.

    Elsewhere, in sub-agents, and inside of other calls it is awaited.
    """

    fingerprint: str | None = None
    """A digest of its description and parameters, if someone else may change them, such as a server.

    A conversation keeps it from when the tool is first offered, and the user is asked about calls of a tool that has
    another one since, whatever rules allow, until the user has agreed to one.
    """

    inner_toolkit: Any = None
    """The toolkit that its calls use, such as that of an agent; the toolsets in it are opened with those beside it."""

    ask: bool = False
    """Whether the user must agree to each call."""

    flow: ToolFlow | None = None
    """The trust in its output and the trust that its arguments need, for `InformationFlowMiddleware`.

    `None` is a tool that declares nothing: its output is untrusted, and so may be its arguments.
    """

    keeps_handles: bool = False
    """Whether its arguments keep the handles of held values, for a tool whose text a model of this program will read.

    Such are tools that note something in the conversation, and agents: a model would take the values for the user's
    words.
    """

    changes_conversation: bool = False
    """Whether its calls change the data of the conversation, and nothing else, so that a replay of a run makes them.

    Such are tools that choose groups of tools, or note a plan. Other tools do not run in a replay.
    """

    timeout: float | None = 300.0
    """Seconds that one call may take, `None` for no limit."""

    max_output: int = MAX_OUTPUT
    """How many characters the result may have: of text, data in base64, URLs, names and ids.

    A note says what was left out. Unless a tool sets another limit, data has a limit of its own of 50,000,000
    characters.
    """

    raise_tool_errors: bool = False
    """Whether an exception of the tool leaves the runtime instead of becoming a result for the model."""

    error_detail: Literal["message", "type"] = "message"
    """The part of an exception for model and log, a validator's too: type and masked message, or only the type."""

    secrets: Sequence[str] = ()
    """Strings, of 8 characters or more, that are masked in the message of an exception; so is what looks like a key."""

    _plan: CallPlan | None = None
    _function_schema: JSONSchema | None = None

    # Typed so that a subclass may narrow it.
    def call(self, *args: Any, **arguments: Any) -> Any:
        """Do the work; the arguments have been checked against `input_schema`."""
        remedy = "it runs outside this program" if self.is_external_tool else "define `async def call`"
        raise UsageError(f"{type(self).__name__} does not implement `call`: {remedy}")

    def check_permissions(
        self, tool_input: JSONObject, context: PermissionContext
    ) -> PermissionDecision | Awaitable[PermissionDecision]:
        """Return what the tool itself decides on a call; override it, as a plain or as a coroutine function.

        ALLOW and DENY stand unless a deny or ask rule covers the call. An ASK may be answered by an allow rule or by a
        layer, unless it is `bypass_immune`; PASSTHROUGH leaves it to the rules and the mode. What raises denies. A tool
        that is read-only, and does not `ask`, is not consulted. `tool_input` is the model's, before conversion, and not
        to be changed.
        """
        if self.ask:
            return PermissionDecision(PermissionBehavior.ASK, f"{self.name} asks before each call", f"tool {self.name}")
        return PermissionDecision(PermissionBehavior.ALLOW, "", f"tool {self.name}")

    def bound_to(self, agent: Any) -> "ToolBase":
        """Return the tool to use for that agent, of the same name: this one, unless a subclass returns another.

        Asked once for each agent and tool: when the agent is built, or when a tool that joins it later is first
        offered. Its conversations share what it returns. `agent` is complete by then.
        """
        return self

    def permission_subject(self, tool_input: JSONObject) -> str:
        """Return what a call is about, for the content of a permission rule to fit; override it to say it better.

        The only argument, if the tool takes one and it is a `str`, else the arguments as JSON: keys sorted, no blanks,
        and `Infinity` for a default that is infinite. It is called with the arguments that the model wrote, and with
        those that the tool will get: converted, and with defaults filled in. If it raises, every deny and ask rule with
        a content covers the call.
        """
        text = self._sole_string(tool_input)
        if text is not None:
            if len(tool_input) > 1:  # a rule for the one argument must not cover what comes with it
                raise ToolError(f"{self.name} takes one argument, but was given more")
            return text
        return json.dumps(tool_input, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    def has_subject(self, tool_input: JSONObject) -> bool:
        """Say whether `permission_subject` names something, and does not just repeat all of the arguments.

        The rule that is suggested to the user covers what it names; if it names nothing, the rule covers the tool.
        """
        is_overridden = type(self).permission_subject is not ToolBase.permission_subject
        return is_overridden or self._sole_string(tool_input) is not None

    def _sole_string(self, tool_input: JSONObject) -> str | None:
        properties = self.input_schema.get("properties") or {}
        value = tool_input.get(*properties) if len(properties) == 1 else None
        return value if isinstance(value, str) else None

    @property
    def is_trusted(self) -> bool:
        """Whether it allows each of its calls, whatever the arguments: no `ask`, no `fingerprint`, and no check."""
        if self.ask or self.fingerprint is not None or type(self).check_permissions is not ToolBase.check_permissions:
            return False
        # A check may also be set on the instance alone.
        return "check_permissions" not in self.__dict__

    @property
    def is_streaming(self) -> bool:
        """Whether the output comes in pieces; if `call` returns a generator, that is not known before it has run."""
        return call_plan_of(self).is_streaming

    @property
    def function_schema(self) -> JSONSchema:
        """Its schema in OpenAI's form, as models are shown it: the same object until something in it changes."""
        function = {"name": self.name, "description": self.description, "parameters": call_plan_of(self).schema}
        if self._function_schema is None or self._function_schema["function"] != function:
            self._function_schema = {"type": "function", "function": function}
        return self._function_schema

    @property
    def takes_context(self) -> bool:
        """Whether `call` gets a `ToolContext`, so that its result may depend on the conversation."""
        return call_plan_of(self).context_name is not None

    def with_name(self, name: str) -> Self:
        """Return a copy under another name."""
        new = copy.copy(self)
        new.name = name
        new._plan = None  # the plan of this object calls this object
        check_tool(new)
        return new

    @never_raises
    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    def _describe_by_docstring(self) -> str:
        cls = type(self)
        docstring = cls.__doc__ or (inspect.getdoc(cls.call) if cls.call is not ToolBase.call else None)
        return parse_docstring(docstring)[0]

    def __getstate__(self) -> JSONObject:
        # The plan holds closures, which no pickle takes; what is worked out from the others is worked out again.
        return {name: value for name, value in self.__dict__.items() if name not in ("_plan", "_function_schema")}

    def _make_call_plan(self) -> CallPlan:
        schema = self.__dict__.get("input_schema", getattr(type(self), "input_schema", None))
        if schema is None and type(self).call is ToolBase.call:
            raise ToolConfigError(
                f"{type(self).__name__} has neither `call` nor `input_schema`: define `async def call` with type hints"
            )
        return make_call_plan(self.name, self.call, {}, schema)


def call_plan_of(tool: ToolBase) -> CallPlan:
    """Return how to call the tool; worked out on first use."""
    plan = tool._plan
    if plan is None:  # not in the constructor, which a subclass need not call
        plan = tool._plan = tool._make_call_plan()
    return plan


def check_name(kind: str, name: object) -> None:
    """Raise `ToolConfigError` for a name that the providers do not take."""
    if not (isinstance(name, str) and _TOOL_NAME.fullmatch(name)):
        raise ToolConfigError(
            f"{name!r} cannot be the name of a {kind}: use 1 to 64 of A-Z, a-z, 0-9, `_` and `-`, as providers require"
        )


def check_tool(tool: ToolBase) -> None:
    """Raise `ToolConfigError` for a tool that cannot be offered to a model."""
    name = tool.name
    check_name("tool", name)
    timeout: Any = tool.timeout
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and timeout > 0):
        raise ToolConfigError(
            f"the timeout of {name} must be more than 0 seconds, or None for no limit, not {tool.timeout!r}"
        )
    if not isinstance(tool.ask, bool):
        raise ToolConfigError(
            f"the `ask` of {name} must be True or False, not {tool.ask!r:.100}: for some calls only, override "
            f"check_permissions() of a ToolBase, or give the conversation a PermissionRule"
        )
    if not isinstance(tool.is_hidden, bool):
        raise ToolConfigError(f"the `is_hidden` of {name} must be True or False, not {tool.is_hidden!r:.100}")
    if not isinstance(tool.is_background, bool):
        raise ToolConfigError(f"the `is_background` of {name} must be True or False, not {tool.is_background!r:.100}")
    if tool.is_background and (tool.is_hidden or tool.is_external_tool):
        kind = "hidden: its layer needs the result" if tool.is_hidden else "external: a program outside runs it"
        raise ToolConfigError(f"{name} cannot be a background tool, since it is {kind}; set is_background = False")
    if not (tool.flow is None or isinstance(tool.flow, ToolFlow)):
        raise ToolConfigError(f"the flow of {name} must be a ToolFlow, not {tool.flow!r:.200}")
    if tool.error_detail not in ("message", "type"):
        raise ToolConfigError(f'error_detail of {name} must be "message" or "type", not {tool.error_detail!r:.100}')
    if not tool.max_output > 0:
        raise ToolConfigError(f"max_output of {name} must be more than 0 characters, not {tool.max_output!r}")


def tool_location(tool: ToolBase) -> str:
    """Return "file:line" of the function that does the tool's work, or which agent does it."""
    cls = type(tool)
    agent_name = getattr(getattr(tool, "agent", None), "name", None)
    if isinstance(agent_name, str):  # the code is the same for all agents
        return f"the agent {agent_name!r:.100}"
    function = getattr(tool, "function", cls.call)
    return f"{cls.__module__}.{cls.__qualname__}" if function is ToolBase.call else source_location(function)
