"""The tools of a round: what the toolkit offers, as the layers of on_tools leave it.

They are assembled before each request, and when a reply resumes: so a call that waited finds its tool in whichever
process gets the answer. A tool that a layer of on_model_call adds is there for one round, and its calls cannot wait.
"""

from collections.abc import Mapping, Sequence

from agentrt._runtime.conversation.conversation import AssembledTools, ReplyingAgent
from agentrt._runtime.conversation.open_calls import mark_resumed_calls
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.text import repr_of
from agentrt.errors import ChainContractError
from agentrt.message import ToolCallBlock
from agentrt.state import ReplyContext
from agentrt.tool import ToolBase, Toolkit
from agentrt.tool.base import check_tool
from agentrt.tool.table import ToolEntry, ToolTable
from agentrt.tool.to_response import failure
from agentrt.types import STRUCTURED_OUTPUT, ToolResponse


async def current_tools(agent: ReplyingAgent, current_tools: list[ToolBase]) -> list[ToolBase]:
    """The core of on_tools: the tools that the toolkit offers."""
    return current_tools


async def assemble(agent: ReplyingAgent, run: ReplyRun, toolkit: Toolkit) -> None:
    """Give the round the tools of the toolkit, as the layers of on_tools leave them."""
    conversation, active = agent.live_conversation, agent.state.active_groups
    groups = None if active is None else [*active]
    table = toolkit.table
    names = [schema["function"]["name"] for schema in table.schemas(groups)]
    offered = [table.entries[name].tool for name in names if name != STRUCTURED_OUTPUT]
    chosen = await agent.chains.on_tools(agent, current_tools=[*offered])
    _check(agent, chosen)
    # By identity: a layer may offer a tool of its own under the name of another one.
    own = {id(tool) for tool in offered}
    chosen = [tool if id(tool) in own else conversation.bindings.tool(agent, tool) for tool in chosen]
    earlier = conversation.assembled
    # The same one for as long as nothing changes: a provider's cache begins with the tools.
    if earlier is None or not earlier.is_of(table, groups, chosen):
        # Tools that are not offered stay: calls of them are answered with the group to activate.
        others = table.without({tool.name for tool in [*offered, *chosen]}).entries
        entries = {tool.name: table.entries[tool.name] if id(tool) in own else ToolEntry.of(tool) for tool in chosen}
        new = ToolTable.of_entries({**entries, **others}, table.active_groups, binds=False)
        earlier = conversation.assembled = AssembledTools(table, groups, chosen, toolkit.with_table(new))
    run.toolkit = conversation.round_toolkit = run.progress.offered_toolkit = earlier.toolkit


async def assemble_on_resume(agent: ReplyingAgent, run: ReplyRun, context: ReplyContext) -> None:
    """Give a reply that resumes its tools, before any of its calls is looked at."""
    if agent.chains.on_tools is not current_tools:
        await assemble(agent, run, run.progress.lasting_toolkit)
        # The calls were marked by the tools of the toolkit alone.
        mark_resumed_calls(run.toolkit, context)
        run.progress.note_resumed(context)


def offer_for_this_round(agent: ReplyingAgent, added: Mapping[str, tuple[ToolBase, str]]) -> None:
    """Make the tools that layers of on_model_call have added, each with its layer, callable in this round."""
    conversation = agent.live_conversation
    run = conversation.run
    tools = [conversation.bindings.tool(agent, tool) for tool, _ in added.values()]
    run.toolkit = conversation.round_toolkit = run.progress.offered_toolkit.with_tools(tools, override=True)
    conversation.layers_of_added = {name: layer for name, (_, layer) in added.items()}


def _check(agent: ReplyingAgent, tools: Sequence[object]) -> None:
    problem, names = "", set[str]()
    for tool in tools:
        if not isinstance(tool, ToolBase):
            problem = f"{repr_of(tool)}, which is not a ToolBase: write FunctionTool(function)"
        elif tool.is_hidden:
            problem = f"the hidden tool {tool.name!r}, which no model is offered: return it from list_tools() instead"
        elif tool.name in names or tool.name == STRUCTURED_OUTPUT:
            problem = f"two tools called {tool.name!r}: leave one of them out, or rename it"
        if problem:
            layers = " > ".join(layer.name for layer in agent.chains.layers["on_tools"])
            raise ChainContractError(f"on_tools gave {problem}; its layers are {layers}")
        assert isinstance(tool, ToolBase)
        check_tool(tool)
        names.add(tool.name)


def refusal_to_wait(agent: ReplyingAgent, call: ToolCallBlock) -> ToolResponse | None:
    """Return the result of a call that would have to wait, and whose tool is there for this round alone."""
    layer = agent.live_conversation.layers_of_added.get(call.name)
    if layer is None:
        return None
    return failure(
        f"{call.name} was not run: it would have to wait for an answer, and {layer} added it to one request only, in "
        f"on_model_call. The layer's author: add it in on_tools."
    )
