"""The tools that a skill says it needs, as rules over the tools that an agent has."""

import re
from collections.abc import Iterable, Mapping

from agentrt.permission import PermissionRule
from agentrt.permission.glob import escape
from agentrt.types import PermissionBehavior

TOOL_NAMES = {
    "Bash": "run_command",
    "Edit": "edit_file",
    "Glob": "glob_files",
    "Grep": "search_files",
    "LS": "list_files",
    "Read": "read_file",
    "Write": "write_file",
}
"""The tools of `workspace_tools`, by the names that skills write for them."""

_ENTRY = re.compile(r"([^()]+)(?:\((.*)\))?", re.DOTALL)
_ANY_ARGUMENTS = ":*"


def rules_for_entries(entries: Iterable[str], tool_names: Mapping[str, str], tool_name: str) -> list[PermissionRule]:
    """Return rules that cover the calls of one tool which the entries of an `allowed-tools` name.

    An entry that cannot be read names no tool. A name is never a pattern: a list of "*" would allow everything.
    """
    rules: list[PermissionRule] = []
    for entry in entries:
        parts = _ENTRY.fullmatch(entry)
        if parts is None:
            continue
        name, content = parts.groups()
        # Others are left out first: a list of a stranger may have thousands, and each pattern has to be compiled.
        if tool_names.get(name, name) != tool_name:
            continue
        contents: list[str | None] = [content]
        if content is not None and content.endswith(_ANY_ARGUMENTS):  # with arguments or without
            command = content.removesuffix(_ANY_ARGUMENTS)
            contents = [command, f"{command} *"]
        rules += [
            PermissionRule(escape(tool_name), text, PermissionBehavior.ALLOW, "allowed-tools") for text in contents
        ]
    return rules
