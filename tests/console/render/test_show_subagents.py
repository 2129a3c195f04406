"""What sub-agents do is shown under the call that asked them, with their names."""

import json

import anyio

from agentrt import Agent, Toolkit
from agentrt.console import show
from agentrt.message import TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, ToolContext


def ask(name: str, call_id: str) -> ToolCallBlock:
    return ToolCallBlock(call_id, name, json.dumps({"query": "go"}))


def agent_of(name: str, responses, tools=()) -> Agent:
    return Agent(name, "", ScriptedChatModel(responses), Toolkit(tools=list(tools)))


async def shown(agent: Agent, capsys) -> list[str]:
    await show(agent.reply_stream("go"))
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("[tokens]")]


def look(place: str) -> str:
    return f"nothing in {place}"


async def test_a_subagent_is_indented_under_its_call(capsys):
    looks = ToolCallBlock("l1", "look", json.dumps({"place": "the box"}))
    finder = agent_of("finder", [[ThinkingBlock("hmm"), TextBlock("I look."), looks], "It is\n\nnot there."], [look])
    boss = agent_of("boss", [[ask("finder", "f1")], "Gone."], [finder.as_tool("Finds.")])
    assert await shown(boss, capsys) == [
        '[call] finder({"query": "go"})',
        "  [finder is thinking] hmm",
        "  [finder] I look.",
        '  [call] look({"place": "the box"})',
        "  [result] look: nothing in the box",
        "  [finder] It is",
        "  [finder] not there.",
        "[result] finder: It is",
        "[result] finder:",
        "[result] finder: not there.",
        "Gone.",
    ]


async def test_what_a_tool_calls_is_indented_under_its_call(capsys):
    looks = ToolCallBlock("l1", "look", json.dumps({"place": "the box"}))
    finder = agent_of("finder", [[looks], "Not there."], [look])

    async def search(context: ToolContext) -> str:
        await context.call("look", {"place": "the bag"})
        return (await context.call("finder", {"query": "go"})).text

    tools = [FunctionTool(search, is_resumable=True), look, finder.as_tool("Finds.")]
    boss = agent_of("boss", [[ToolCallBlock("s1", "search", "{}")], "Gone."], tools)
    assert await shown(boss, capsys) == [
        "[call] search({})",
        '  [call] look({"place": "the bag"})',
        "  [result] look: nothing in the bag",
        '  [call] finder({"query": "go"})',
        '    [call] look({"place": "the box"})',
        "    [result] look: nothing in the box",
        "    [finder] Not there.",
        "  [result] finder: Not there.",
        "[result] search: Not there.",
        "Gone.",
    ]


async def test_a_question_names_the_way_to_it(capsys):
    looks = ToolCallBlock("l1", "look", json.dumps({"place": "x"}))
    inner = agent_of("inner", [[TextBlock("May I?"), looks]], [FunctionTool(look, ask=True)])
    middle = agent_of("middle", [[TextBlock("Ask inner."), ask("inner", "i1")]], [inner.as_tool("Looks.")])
    boss = agent_of("boss", [[ask("middle", "m1")]], [middle.as_tool("Delegates.")])
    lines = await shown(boss, capsys)
    assert lines[:6] == [
        '[call] middle({"query": "go"})',
        "  [middle] Ask inner.",
        '  [call] inner({"query": "go"})',
        "    [inner] May I?",
        '    [call] look({"place": "x"})',
        '[waiting] for a decision on middle > inner > look {"place": "x"}',
    ]


async def test_subagents_side_by_side_keep_their_lines_apart(capsys):
    turn = anyio.Event()

    async def wait() -> str:
        await turn.wait()
        return "waited"

    async def wake() -> str:
        turn.set()
        return "woken"

    first = agent_of("first", [[TextBlock("One."), ToolCallBlock("w", "wait", "{}")], "Three."], [wait])
    second = agent_of("second", [[TextBlock("Two."), ToolCallBlock("w", "wake", "{}")], "Four."], [wake])
    tools = [first.as_tool("Waits."), second.as_tool("Wakes.")]
    boss = agent_of("boss", [[ask("first", "1"), ask("second", "2")], "Done."], tools)
    lines = await shown(boss, capsys)
    assert {"  [first] One.", "  [second] Two.", "  [first] Three.", "  [second] Four."} <= set(lines)
    assert lines.index("  [result] wake: woken") < lines.index("  [result] wait: waited")
    assert lines[-1] == "Done."
