"""The version of an agent: the parts that must be equal for a worker to continue another worker's reply."""

from hashlib import sha256
from json import dumps, loads

from agentrt.agent import Agent


def version_of(agent: Agent) -> str:
    """Return a name that is the same for the same chains and the same schemas of tools, on any machine.

    Tools are those of all groups, and agents that are tools count with theirs: a reply may wait inside of them.
    """
    return sha256(dumps(_version_parts(agent, set()), sort_keys=True).encode()).hexdigest()[:16]


def _version_parts(agent: Agent, known: set[int]) -> list[object]:
    known.add(id(agent))
    description = loads(agent.explain("json"))
    hooks = {
        hook["hook"]: [[layer["class"], layer["key"]] for layer in hook["layers"]] for hook in description["hooks"]
    }
    parts: list[object] = [agent.name, hooks]
    for entry in agent.toolkit.table.entries.values():
        inner = getattr(entry.tool, "agent", None)
        parts.append([entry.group, entry.tool.function_schema])
        if isinstance(inner, Agent) and id(inner) not in known:  # they may be tools of each other
            parts.append(_version_parts(inner, known))
    return parts
