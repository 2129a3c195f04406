"""Which permission mode holds where agents with different modes work together."""

from collections.abc import Iterable

from agentrt.types import PermissionMode

_STRICT_TO_LAX = (
    PermissionMode.EXPLORE,
    PermissionMode.DONT_ASK,
    PermissionMode.DEFAULT,
    PermissionMode.ACCEPT_EDITS,
    PermissionMode.BYPASS,
)


def strictest_mode(modes: Iterable[PermissionMode]) -> PermissionMode:
    """Return the strictest mode."""
    return min(modes, key=_STRICT_TO_LAX.index)
