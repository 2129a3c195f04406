"""What only a type checker imports may stand in a hint: on 3.14 it need not be quoted, and is looked up late."""

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    {future}
    from typing import TYPE_CHECKING

    from agentrt import Agent, AgentBase, Toolkit
    from agentrt.errors import ToolConfigError
    from agentrt.message import AssistantMsg, ToolCallBlock
    from agentrt.middleware import MiddlewareBase
    from agentrt.model import ScriptedChatModel
    from agentrt.tool import FunctionTool

    if TYPE_CHECKING:
        from decimal import Decimal

        from agentrt.tool import ToolContext


    class Late(MiddlewareBase):
        async def on_model_call(self, agent: Decimal, input_kwargs: Decimal, next_handler: Decimal) -> Decimal:
            return await next_handler()


    class Parrot(AgentBase):
        async def reply(self, msg: Decimal) -> Decimal:
            return AssistantMsg(self.name, "hello")


    async def look(city: str, context: ToolContext) -> Decimal:
        "Look out of the window."
        return "sunny"


    async def pay(amount: Decimal) -> str:
        "Pay."
        return "paid"


    def hook(agent: Decimal, kwargs: Decimal) -> Decimal:
        print("hook")


    agent = Agent(
        "a",
        model=ScriptedChatModel([[ToolCallBlock("1", "look", '{{"city": "Oslo"}}')], "done"]),
        toolkit=Toolkit(tools=[look]),
        middlewares=[Late()],
    )
    agent.register_instance_hook("pre_reply", "late", hook)
    print(agent.run_sync("go").get_text_content(), agent.state.context[-1].get_content_blocks("tool_result")[0].text)
    print(Parrot(name="p").run_sync("go").get_text_content() if hasattr(Parrot, "run_sync") else "hello")
    try:
        FunctionTool(pay)
    except ToolConfigError as error:
        print(str(error).partition(" (")[0])
"""


@pytest.mark.parametrize(
    "future",
    [
        "from __future__ import annotations",
        pytest.param("", marks=pytest.mark.skipif(sys.version_info < (3, 14), reason="hints are evaluated at once")),
    ],
)
def test_names_that_only_a_type_checker_imports_may_be_hints(future: str) -> None:
    program = textwrap.dedent(PROGRAM).format(future=future)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "hook",
        "done sunny",
        "hello",
        "pay() cannot be a tool: the type hint 'Decimal' of its parameter 'amount' cannot be looked up",
    ]
