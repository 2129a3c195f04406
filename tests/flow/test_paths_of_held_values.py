"""On every way into an agent, held text is in no request and in no saved state outside of the held values."""

import json
from typing import Any

import pytest

from agentrt.tool import FlowLabel
from tests.test_content_paths import CANARY, SOURCES, Look, Source, reply, resumed_here, runner, sub_agent


class HoldCanary(Look):
    async def on_content(self, agent, content):
        if CANARY not in content.text:
            return content
        self.sources.append(content.source)
        handle = agent.hold(content.text, FlowLabel(False, sources=[content.source]))
        return content.with_text(f"held: {handle}")


def without_held(value: Any) -> Any:
    """Return a saved state without the values that it, and the states of sub-agents in it, hold back."""
    if isinstance(value, dict):
        return {key: without_held(item) for key, item in value.items() if key != "held"}
    return [without_held(item) for item in value] if isinstance(value, list) else value


PATHS = [reply, resumed_here, sub_agent, runner]
CELLS = [
    pytest.param(source, path, id=f"{source.name}{number}-{path.__name__}")
    for number, source in enumerate(SOURCES)
    for path in PATHS
    if source.name != "observed" or path in (reply, resumed_here)  # elsewhere nothing is observed
]


@pytest.mark.parametrize(("source", "path"), CELLS)
async def test_held_text_is_in_no_request_and_no_save(source: Source, path):
    look = HoldCanary()
    seen = await path(source, look)
    assert source.name in look.sources
    requests = "".join(message.to_json() for made in seen.agent.model.calls for message in made.messages)
    saved = json.dumps([without_held(json.loads(text)) for text in seen.saved])
    assert CANARY not in requests
    assert CANARY not in saved
    assert "held: <untrusted_1_" in requests + saved
    assert CANARY in "".join(seen.saved)
