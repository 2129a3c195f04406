"""Sub-agents that do as little as possible, and the calls of a supervisor."""

from typing import Any, ClassVar

from agentrt import Agent, Msg, Toolkit
from agentrt.agent import SubAgentBase, SubAgentSpec, make_subagent_tool
from agentrt.model import ScriptedChatModel
from agentrt.tool import ToolResponse
from tests.loop.helpers import call


async def search_web(query: str) -> str:
    return f"found {query}"


class Echo(SubAgentBase):
    made: ClassVar[list["Echo"]] = []

    def __init__(self, **injected: Any) -> None:
        super().__init__(**injected)
        self.sizes: list[int] = []
        self.made.append(self)

    async def reply(self, msg: Msg) -> Msg:
        self.sizes.append(await self.memory.size())
        await self.print(Msg(self.name, "a step on the way", "assistant"))
        return Msg(self.name, f"did {msg.get_text_content()}", "assistant")


def spec_of(name: str = "echo", **options: Any) -> SubAgentSpec:
    return SubAgentSpec(name=name, description=f"Does what {name} does.", **options)


async def register(
    toolkit: Toolkit, cls: type[SubAgentBase] = Echo, spec: SubAgentSpec | None = None, host: Any = None
) -> str:
    """Make the tool and register it; returns its name."""
    spec = spec or spec_of()
    function, keywords = await make_subagent_tool(cls, spec, tool_name=f"agent_{spec.name}", host=host)
    toolkit.register_tool_function(function, **keywords)
    if issubclass(cls, Echo):
        cls.made.clear()  # that of the registration
    return f"agent_{spec.name}"


async def supervisor(cls: type[SubAgentBase], *queries: str, answer: Any = "done", **options: Any) -> Agent:
    """Return an agent whose model calls the sub-agent with these queries, in one answer, and then says `answer`."""
    toolkit = Toolkit()
    name = await register(toolkit, cls)
    calls = [call(f"c{number}", name, query=query) for number, query in enumerate(queries)]
    return Agent("boss", model=ScriptedChatModel([calls, answer]), toolkit=toolkit, **options)


async def run_tool(toolkit: Toolkit, name: str, **arguments: object) -> ToolResponse:
    """Call a tool outside of any agent."""
    *_, last = [item async for item in toolkit.call_tool_function(call("c1", name, **arguments))]
    assert isinstance(last, ToolResponse)
    return last


def results_of(agent: Agent) -> list[Any]:
    return [block for msg in agent.state.context for block in msg.get_content_blocks("tool_result")]
