"""A request begins like the one before it, or the log says which layer is to blame."""

import logging
from itertools import count

from agentrt import Agent, MiddlewareBase, Toolkit
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from tests.loop.helpers import add

ADDED = '{"a": 1, "b": 2}'


class Clock(MiddlewareBase):
    """Tells the time in the system prompt."""

    def __init__(self, *, changes):
        self._times = count()
        self._changes = changes

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt} It is {next(self._times) if self._changes else 7} o'clock."


async def prompts_and_warnings(layer, caplog):
    """Return the system prompts of two rounds of a reply, done twice, and what was logged."""
    model = ScriptedChatModel([[ToolCallBlock("c1", "add", ADDED)], "Three."] * 2)
    agent = Agent("tester", "Be brief.", model, Toolkit(tools=[add]), middlewares=[layer])
    with caplog.at_level(logging.WARNING, "agentrt"):
        for _ in range(2):
            await agent.reply("go")
    return [call.messages[0].get_text_content() for call in model.calls], [each.getMessage() for each in caplog.records]


async def test_a_layer_that_breaks_the_prefix_is_named_once(caplog):
    prompts, warnings = await prompts_and_warnings(Clock(changes=True), caplog)

    assert len(set(prompts)) == 4
    (warning,) = warnings
    assert warning.startswith("the system prompt of 'tester' changes from round to round, so its provider can read no")
    assert "let Clock change it once per reply at most" in warning


async def test_a_layer_that_keeps_the_prefix_is_not_blamed(caplog):
    prompts, warnings = await prompts_and_warnings(Clock(changes=False), caplog)

    assert set(prompts) == {"Be brief. It is 7 o'clock."}
    assert warnings == []
