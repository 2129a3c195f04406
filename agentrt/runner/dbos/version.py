"""The version of an agent: the parts that must be equal for a worker to continue another worker's reply."""

from hashlib import sha256
from json import dumps, loads

from agentrt.agent import Agent


def version_of(agent: Agent) -> str:
    """Return a name that is the same for the same chains and the same schemas of tools, on any machine."""
    description = loads(agent.explain("json"))
    hooks = {
        hook["hook"]: [[layer["class"], layer["key"]] for layer in hook["layers"]] for hook in description["hooks"]
    }
    parts = [agent.name, hooks, agent.toolkit.get_json_schemas()]
    return sha256(dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
