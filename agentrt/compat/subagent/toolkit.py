"""The tools of a sub-agent: those that its allowlist names, and no others."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from agentrt._runtime.block import JSONObject
from agentrt._runtime.text import repr_of
from agentrt.errors import ToolConfigError
from agentrt.permission.glob import matches
from agentrt.tool import ToolBase, Toolkit
from agentrt.tool.group import META_TOOL
from agentrt.tool.toolkit import ToolLike
from agentrt.types import PermissionBehavior, PermissionContext, PermissionMode

_MAX_KNOWN_SHOWN = 20


def toolkit_of(host: object) -> Toolkit | None:
    """Return the toolkit of a host, which is an agent, or a toolkit itself."""
    toolkit = host if isinstance(host, Toolkit) else getattr(host, "toolkit", None)
    return toolkit if isinstance(toolkit, Toolkit) else None


def hydrate_toolkit(
    tools: Sequence[ToolLike], host_toolkit: Toolkit | None, allowlist: Sequence[str] | None, limits: JSONObject
) -> Toolkit:
    """Return a toolkit with the tools that the allowlist names, of a class's own and of the host's.

    A group gives the tools that it has now, while the host's toolkit has it switched on; one that delegates must be
    named itself, so that delegations do not nest by chance. Raises `ToolConfigError` for a name that means nothing.
    """
    check_allowlist(tools, host_toolkit, allowlist)
    own, host = Toolkit(tools), host_toolkit or Toolkit()
    chosen: dict[str, ToolBase] = {}
    for name in allowlist or ():
        tool = own.get(name) or host.get(name)
        if tool is not None:
            chosen[name] = tool
        elif name in host.active_groups:
            members = [host.get(member) for member in host.groups[name]]
            chosen |= {member.name: member for member in members if member is not None and not delegates(member)}
    return Toolkit([tool for tool in chosen.values() if not _is_disabled(tool, limits)])


def check_allowlist(tools: Sequence[ToolLike], host_toolkit: Toolkit | None, allowlist: object) -> None:
    """Raise `ToolConfigError` for an allowlist that is not a list of names, or that names what is not there."""
    if allowlist is None:
        return
    if not isinstance(allowlist, (list, tuple)) or not all(isinstance(name, str) for name in allowlist):
        raise ToolConfigError(
            f"tools_allowlist must be a list of names of tools and groups, or None, not {repr_of(allowlist)}"
        )
    known = list(Toolkit(tools).names())
    if host_toolkit is not None:
        known += [*host_toolkit.names(host_toolkit.groups), *host_toolkit.groups]
    unknown = [name for name in allowlist if name not in known or name == META_TOOL]
    if unknown:
        close = get_close_matches(unknown[0][:64], known, 1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        remedy = "" if host_toolkit is not None else "; for tools of the supervisor, give host=... as well"
        raise ToolConfigError(
            f"tools_allowlist names {', '.join(map(repr, unknown))}, which is not a tool or a group{hint} There are: "
            f"{', '.join(known[:_MAX_KNOWN_SHOWN]) or 'none'}{remedy}"
        )


def limits_of(permissions: PermissionContext, disabled: Iterable[str]) -> JSONObject:
    """Return the safety limits that follow from the permissions of a conversation, and from what is disabled anyway."""
    strict = (PermissionBehavior.DENY, PermissionBehavior.ASK)
    patterns = [*disabled, *(rule.tool_name for rule in permissions.rules if rule.behavior in strict)]
    limits: JSONObject = {"disabled_tools": patterns} if patterns else {}
    return limits | ({"read_only": True} if permissions.mode is PermissionMode.EXPLORE else {})


def _is_disabled(tool: ToolBase, limits: JSONObject) -> bool:
    # The meta tool would switch groups of the host, for all who use it.
    if tool.name == META_TOOL or (limits.get("read_only") and not tool.is_read_only):
        return True
    patterns = limits.get("disabled_tools") or ()
    return any(pattern == tool.name or matches(pattern, tool.name) for pattern in patterns)


def delegates(tool: ToolBase) -> bool:
    """Say whether the tool gives its work to another agent."""
    return bool(getattr(getattr(tool, "function", tool), "delegates", False))
