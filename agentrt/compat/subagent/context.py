"""The context that a class of sub-agents makes of its supervisor's conversation, completed and within its limits."""

import json
from typing import Any

from agentrt._runtime.block import JSONObject
from agentrt._runtime.text import one_line, repr_of
from agentrt.agent.delegation.summary import MAX_EVENT, MAX_EVENTS, MAX_TASK, DelegationContext
from agentrt.errors import ConfigError


def complete_context(context: object, task: str, safety_limits: JSONObject) -> DelegationContext:
    """Return what `_pre_context_compress` gave with all five fields, within their limits, and with the safety limits.

    Raises `ConfigError` for what is not a dict, or has no JSON form.
    """
    if not isinstance(context, dict):
        raise ConfigError(f"_pre_context_compress() must return a dict, not {repr_of(context)}")
    compressed: dict[str, Any] = {"task_summary": task[:MAX_TASK], "long_term_refs": [], "workspace_pointers": []}
    compressed |= context  # a subclass may add fields, and leave some out
    events = compressed.get("recent_events") or []
    compressed["recent_events"] = [one_line(str(event), MAX_EVENT - 3) for event in events[-MAX_EVENTS:]]
    # Last, so that nothing loosens them.
    compressed["safety_flags"] = {**(compressed.get("safety_flags") or {}), **safety_limits}
    try:
        return json.loads(json.dumps(compressed, allow_nan=False))  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        raise ConfigError(
            "_pre_context_compress() must return what JSON can hold: str, numbers, lists, dicts"
        ) from None
