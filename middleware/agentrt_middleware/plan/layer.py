"""The common base of layers with a plan: its place, its listeners, and the text for the model."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from inspect import isawaitable
from typing import Any, ClassVar, Self

import anyio

from agentrt._runtime.text import one_line, type_with_article
from agentrt.agent import Agent
from agentrt.errors import ChainContractError, MiddlewareConfigError, ToolError, UsageError
from agentrt.event import CustomEvent
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.message import Msg
from agentrt.model import ModelResult
from agentrt.plan import Plan, PlanStorageBase
from agentrt.plan.plan import plan_from_json, plan_to_json, time_text
from agentrt.tool import ToolContext
from agentrt.types import JSONObject
from agentrt_middleware.context.requests import INSIDE_OF_ADDITIONS, hint_message
from agentrt_middleware.plan.history import ConversationHistory
from agentrt_middleware.validation import check_function, check_number, is_owner

_logger = logging.getLogger("agentrt")

PlanToHint = Callable[[Plan | None], str | None]
PlanOwner = str | Callable[[Agent], str] | None
_ChangeHook = Callable[[Any, Plan | None], Awaitable[None] | None]

MAX_SUBTASKS = 100
"""How many subtasks a plan may have where nothing else is said."""

_MAX_STORAGE_SECONDS = 5.0  # in which a storage takes a plan before the request that waits for it is sent

_PLAN, _HISTORY, _RECOVERED = "plan", "history", "recovered"


class _CheckedPlan(dict[str, Any]):
    """A plan as JSON that this process has checked and told of; one from a saved state is a plain dict."""


class PlanLayer(MiddlewareBase):
    """Keeps the plan of each conversation, and shows it to the model as the last message of each request."""

    inherited = False
    # Both kinds of plans are kept as the same data, so an agent can have one of them only.
    key = "plan"
    emits = False  # once after a plan was loaded, which is soon enough when the model has been asked
    wraps: ClassVar = INSIDE_OF_ADDITIONS
    needs_hooks: ClassVar = ("on_model_call",)
    group: str | None = None  # of tools, which the model has to switch on first

    def __init__(
        self,
        limit_option: str,
        max_subtasks: int | None,
        plan_to_hint: PlanToHint,
        storage: PlanStorageBase | None,
        owner: PlanOwner,
    ) -> None:
        name = type(self).__name__
        if max_subtasks is not None:
            check_number(f"{name}({limit_option}=...)", max_subtasks, whole=True)
        check_function(f"{name}(plan_to_hint=...)", plan_to_hint, "plan", plain=True)
        if storage is not None and not isinstance(storage, PlanStorageBase):
            raise MiddlewareConfigError(
                f"{name}(storage=...) must be a PlanStorageBase, such as SQLitePlanStorage(path), not {storage!r:.200}"
            )
        whose: object = owner
        if callable(whose):
            check_function(f"{name}(owner=...)", whose, "agent", plain=True)
        elif whose is not None and not is_owner(whose):
            raise MiddlewareConfigError(
                f"{name}(owner=...) must be a str, or a function of the agent that returns one, not {owner!r:.200}"
            )
        self.max_subtasks = MAX_SUBTASKS if max_subtasks is None else max_subtasks
        self.plan_to_hint = plan_to_hint
        self.storage = storage
        self.owner = owner
        # Of the notebook, not of a conversation: they are told which plan has changed.
        self._hooks: dict[str, _ChangeHook] = {}
        self._last_hint = "", hint_message("", "plan")

    def plan_of(self, agent: Agent) -> Plan | None:
        """Return a copy of the conversation's plan, `None` if it has none."""
        saved = agent.state_of(self).get(_PLAN)
        if saved is None:
            return None
        try:
            return _read_plan(saved)
        except ValueError:  # it is set aside as soon as a reply needs the plan
            return None

    def register_plan_change_hook(self, hook_name: str, hook: Callable[[Self, Plan | None], Any]) -> None:
        """Call `hook(notebook, plan)` after each change, awaited if need be; `plan` is `None` once it is gone.

        One of the same name is replaced. What a hook raises is logged by its type, and changes nothing.
        """
        name: object = hook_name
        if not isinstance(name, str) or not callable(hook):
            raise UsageError(
                f"register_plan_change_hook() takes a name and a function of a {type(self).__name__} and a Plan, not "
                f"{hook_name!r:.100} and {hook!r:.100}"
            )
        self._hooks[hook_name] = hook

    def remove_plan_change_hook(self, hook_name: str) -> None:
        """No longer call the hook of this name; raises `ValueError` for an unknown name."""
        if hook_name not in self._hooks:
            known = ", ".join(map(repr, self._hooks)) or "none"
            raise ValueError(f"no plan change hook has the name {hook_name!r:.100}: registered are {known}")
        del self._hooks[hook_name]

    # What follows is for the tools.

    async def current_plan(self, context: ToolContext) -> Plan | None:
        """Return a copy of the plan of the conversation that the call belongs to."""
        if context.agent is None:
            raise ToolError(f"{context.tool_call.name} changes the plan of a conversation: call it in a reply")
        saved = context.agent.state_of(self).get(_PLAN)
        if saved is not None and not isinstance(saved, _CheckedPlan):  # the reply has resumed with this call
            context.emit(await self._check_saved_plan(context.agent, context.reply_id))
        return self.plan_of(context.agent)

    def new_plan(self, context: ToolContext, name: str, description: str = "", expected_outcome: str = "") -> Plan:
        """Return a plan without subtasks for the conversation that the call belongs to."""
        owner = self.owner_of(context.agent)
        now = time_text(context.now())
        return Plan(name, description, expected_outcome, id=_new_plan_id(context, owner), created_at=now, owner=owner)

    def note_recovered(self, agent: Agent, plan: Plan) -> None:
        """Note how a former plan was, which the conversation takes up again."""
        agent.state_of(self)[_RECOVERED] = _digest_of_plan(plan)

    async def put_away(self, context: ToolContext, plan: Plan) -> None:
        """Keep a plan that is over among the former ones.

        Another conversation may have taken it up too, and put it away with work of its own: then this one joins it
        under a new id, so that neither is lost.
        """
        history = self.history_of(context.agent)
        if self.storage is not None:  # which other conversations read
            as_kept = plan_to_json(plan)
            described = context.agent.described(as_kept)
            plan = plan if described == as_kept else plan_from_json(described)
        kept = await history.get_plan(plan.id)
        if kept is not None:
            is_known = _digest_of_plan(kept) == context.agent.state_of(self).get(_RECOVERED)
            if not is_known and plan_to_json(kept)["subtasks"] != plan_to_json(plan)["subtasks"]:
                plan.id, kept = _new_plan_id(context, plan.owner), None
        if not await history.replace_plan(plan, kept):  # another conversation has put it away just now
            plan.id = _new_plan_id(context, plan.owner)
            await history.add_plan(plan)

    async def keep_plan(self, context: ToolContext, plan: Plan | None) -> None:
        """Keep this plan in place of the one before, and let listeners know."""
        self._put(context.agent, plan)
        context.emit(_plan_updated(plan, context.reply_id))
        # A copy, since a hook may register or remove one.
        for name, hook in [*self._hooks.items()]:
            try:
                result = hook(self, self.plan_of(context.agent))
                if isawaitable(result):
                    await result
            except Exception as error:  # noqa: BLE001  # an observer that fails must not undo the change
                _logger.warning("the plan change hook %r failed: %s", name, type(error).__name__)

    def history_of(self, agent: Agent) -> PlanStorageBase:
        """Return where the conversation's former plans are kept: in the storage, or else in the conversation."""
        # Without a storage nothing is shared: what is saved with the conversation goes where that goes.
        return self._history_in_conversation(agent) if self.storage is None else self.storage

    def _history_in_conversation(self, agent: Agent) -> PlanStorageBase:
        data = agent.state_of(self)
        if not isinstance(data.setdefault(_HISTORY, []), list):
            _logger.warning("what the state keeps as the former plans of %r is dropped", agent.chains.key_of(self))
            data[_HISTORY] = []
        return ConversationHistory(data[_HISTORY])

    def owner_of(self, agent: Agent) -> str:
        """Return the owner of the plans of the reply in progress, or of a new one: by default the conversation."""
        if not callable(self.owner):
            return agent.state.session_id if self.owner is None else self.owner
        return agent.identity_of(self)["owner"]

    def identify(self, agent: Agent) -> dict[str, str]:
        if not callable(self.owner):
            return {}
        owner: object = self.owner(agent)
        if not isinstance(owner, str) or not is_owner(owner):
            raise ChainContractError(
                f"the function given to {type(self).__name__}(owner=...) must return a str of whole characters, "
                f"at least one, but it returned {owner!r:.100}"
            )
        return {"owner": owner}

    def _put(self, agent: Agent, plan: Plan | None) -> None:
        # One JSON object in place of the other: a save at any time has the whole plan as it was, or as it is.
        data = agent.state_of(self)
        if plan is None:
            data.pop(_PLAN, None)
        else:
            data[_PLAN] = _CheckedPlan(plan_to_json(plan))

    async def on_model_call(
        self, agent: Agent, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        # A summary is of what was said, and has no use for what is still to do.
        if agent.run.is_internal:
            return await next_handler(**input_kwargs)
        # Here and not in on_reasoning, whose chain would cost each round more than this one does.
        saved = agent.state_of(self).get(_PLAN)
        if saved is None:
            plan = None
        else:
            if not isinstance(saved, _CheckedPlan):
                agent.run.emit(await self._check_saved_plan(agent, agent.run.id))
            plan = self.plan_of(agent)
        hint = self.hint_about(agent, plan)
        if hint is None:
            return await next_handler(**input_kwargs)
        # Last, so that what comes before it stays the same from request to request.
        return await next_handler(messages=[*input_kwargs["messages"], hint])

    def hint_about(self, agent: Agent, plan: Plan | None) -> Msg | None:
        """Return the hint about the plan for a request, `None` if it needs none."""
        text = self.plan_to_hint(plan)
        # A hint on how to make a plan is of no use without the tools.
        if not text or (plan is None and self.group is not None and not self._is_active(agent, self.group)):
            return None
        last_text, hint = self._last_hint
        # Most requests have the same hint as the one before: an agent without a plan always has.
        return hint if last_text == text else self._make_hint(text)

    @staticmethod
    def _is_active(agent: Agent, group: str) -> bool:
        if group not in agent.toolkit.tool_groups:  # an agent that was made before the notebook got a group
            return True
        # A conversation that never switched has the toolkit's own choice.
        active = agent.state.active_groups
        return group in (agent.toolkit.active_groups if active is None else active)

    def _make_hint(self, text: object) -> Msg:
        if not isinstance(text, str):
            raise ChainContractError(
                f"the function given to {type(self).__name__}(plan_to_hint=...) must return a str or None, but it "
                f"returned {type_with_article(text)}"
            )
        hint = hint_message(text, "plan")
        self._last_hint = text, hint
        return hint

    async def _check_saved_plan(self, agent: Agent, reply_id: str) -> CustomEvent:
        saved = agent.state_of(self)[_PLAN]
        try:
            plan: Plan | None = _read_plan(saved)
        except ValueError:
            plan = None
            await self._set_aside(agent, saved)
        self._put(agent, plan)
        return _plan_updated(plan, reply_id)

    async def _set_aside(self, agent: Agent, saved: object) -> None:
        key = agent.chains.key_of(self)
        _logger.warning(
            "what the state keeps as %r is not a plan of this version: it is set aside among the former plans", key
        )
        name = saved.get("name") if isinstance(saved, Mapping) else None
        remains = Plan(
            one_line(name, 100) if isinstance(name, str) else "(a plan that cannot be read)",
            json.dumps(saved, ensure_ascii=False),
        )
        remains.finish("abandoned", "Another version saved it; the description has what it saved.")
        try:
            remains.owner = self.owner_of(agent)
            with anyio.fail_after(_MAX_STORAGE_SECONDS):
                await self.history_of(agent).add_plan(remains)
        except Exception as error:  # noqa: BLE001  # a function or a storage of any kind; the conversation keeps it then
            _logger.warning("the storage of plans failed: %s", type(error).__name__)
            await self._history_in_conversation(agent).add_plan(remains)


def _new_plan_id(context: ToolContext, owner: str) -> str:
    # Ids are only new within a reply, and callers may give replies in several conversations the same id, but a
    # storage keeps the plans of them all by their ids.
    place = "\n".join((owner, context.agent.state.session_id, context.new_id()))
    return sha256(place.encode(errors="replace")).hexdigest()[:24]


def _digest_of_plan(plan: Plan) -> str:
    return sha256(json.dumps(plan_to_json(plan), sort_keys=True).encode()).hexdigest()[:32]


def _read_plan(saved: object) -> Plan:
    plan = plan_from_json(saved)
    # By the fourth rule; tools could not name any step of it.
    if not plan.subtasks:
        raise ValueError("a plan that is worked on has subtasks")
    return plan


def _plan_updated(plan: Plan | None, reply_id: str) -> CustomEvent:
    value: JSONObject = {"plan": None if plan is None else plan_to_json(plan)}
    return CustomEvent("plan_updated", value, reply_id=reply_id)
