"""Programs in replies: their calls are decided on, shown, saved and asked about as those of a model."""

import json
from typing import Any

import anyio.lowlevel
import pytest

from agentrt import Agent, Toolkit
from agentrt.agent import ReActConfig
from agentrt.event import ConfirmResult, RequireUserConfirmEvent, UserConfirmResultEvent
from agentrt.message import ToolCallBlock, ToolResultBlock
from agentrt.middleware import MiddlewareBase
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.runs import RunRecorder
from agentrt.state import InMemoryStateStore
from agentrt.tool import CodeTool, FunctionTool, MCPToolset, ToolContext
from agentrt.types import PermissionDecision
from tests.loop.helpers import saved_state
from tests.tool.mcp.test_mcp import calculator


class Books:
    """Invoices, and a list of what was done with them."""

    def __init__(self, *, ask: bool = False) -> None:
        self.done: list[str] = []
        self.tool = CodeTool([self.list_invoices, FunctionTool(self.pay, ask=ask), self.fail])

    async def list_invoices(self, month: str) -> list[dict[str, Any]]:
        """List the invoices of a month."""
        self.done.append(f"list {month}")
        return [{"id": f"{month}-{number}", "amount": number * 1.5} for number in range(3)]

    async def pay(self, id: str) -> str:
        self.done.append(f"pay {id}")
        return f"paid {id}"

    async def fail(self) -> str:
        raise ValueError("no such account")


def agent_running(code: str, tool: CodeTool, *middlewares: MiddlewareBase, **options: Any) -> Agent:
    """Return an agent whose model runs the program, and then says that it is done."""
    model = ScriptedChatModel(["Done."] if "state" in options else [program(code), "Done."])
    options.setdefault("model", model)
    return Agent("clerk", "", toolkit=Toolkit([tool]), middlewares=middlewares, **options)


def program(code: str, call_id: str = "c") -> ChatResponse:
    return ChatResponse([ToolCallBlock(call_id, "run_code", json.dumps({"code": code}))])


def result_of(agent: Agent) -> ToolResultBlock:
    [block] = agent.state.context[-1].get_content_blocks("tool_result")
    return block


def answers(agent: Agent, *confirmed: bool) -> UserConfirmResultEvent:
    event = agent.waiting()
    return UserConfirmResultEvent(
        event.reply_id, [ConfirmResult(*pair) for pair in zip(confirmed, event.tool_calls, strict=True)]
    )


def paths_asked(agent: Agent) -> list[str]:
    event = agent.waiting()
    return [] if event is None else [call.id for call in event.tool_calls]


SETTLE = """\
import asyncio
invoices = await list_invoices("2026-11")
paid = await asyncio.gather(*[pay(invoice["id"]) for invoice in invoices])
print(paid)
sum(invoice["amount"] for invoice in invoices)
"""


async def test_only_the_result_of_a_program_reaches_the_model() -> None:
    books = Books()
    agent = agent_running(SETTLE, books.tool)
    await agent.reply("Settle")
    assert result_of(agent).text == "['paid 2026-11-0', 'paid 2026-11-1', 'paid 2026-11-2']\n4.5"
    assert books.done == ["list 2026-11", *(f"pay 2026-11-{number}" for number in range(3))]
    assert isinstance(agent.model, ScriptedChatModel)
    assert "c/1" not in str(agent.model.calls[-1].messages)


async def test_each_call_of_a_program_is_shown_under_its_path() -> None:
    agent = agent_running(SETTLE, Books().tool)
    events = [event async for event in agent.reply_stream("Settle")]
    started = [event.tool_call_id for event in events if event.type == "TOOL_CALL_START"]
    ended = [event.tool_call_id for event in events if event.type == "TOOL_RESULT_END"]
    assert started == ["c", "c/1", "c/2", "c/3", "c/4"]
    assert (sorted(ended[:-1]), ended[-1]) == (["c/1", "c/2", "c/3", "c/4"], "c")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_questions_of_one_gather_are_asked_together(is_streamed: bool) -> None:
    first, second = Books(ask=True), Books(ask=True)
    agent = agent_running(SETTLE, first.tool)
    if is_streamed:
        assert [event async for event in agent.reply_stream("Settle")]
    else:
        await agent.reply("Settle")
    assert paths_asked(agent) == ["c/2", "c/3", "c/4"]
    other = agent_running(SETTLE, second.tool, state=saved_state(agent))
    await other.reply(answers(other, True, True, True))
    assert (first.done, second.done) == (["list 2026-11"], [f"pay 2026-11-{number}" for number in range(3)])
    assert result_of(other).text.endswith("4.5")


async def test_program_resumes_when_all_of_its_questions_are_answered() -> None:
    books = Books(ask=True)
    agent = agent_running(SETTLE, books.tool)
    await agent.reply("Settle")
    event = answers(agent, True, True, True)
    for result in event.confirm_results[::-1]:
        await agent.reply(UserConfirmResultEvent(event.reply_id, [result]))
    assert [line for line in books.done if line.startswith("pay")] == [f"pay 2026-11-{number}" for number in (2, 1, 0)]
    assert books.done.count("list 2026-11") == 1
    assert result_of(agent).text.startswith("['paid 2026-11-0', 'paid 2026-11-1', 'paid 2026-11-2']")


async def test_no_to_a_call_raises_tool_error_in_the_program() -> None:
    books = Books(ask=True)
    code = "try:\n    await pay('1')\nexcept ToolError as error:\n    print('refused:', error)\nawait pay('2')"
    agent = agent_running(code, books.tool)
    await agent.reply("Pay")
    await agent.reply(answers(agent, False))
    assert paths_asked(agent) == ["c/2"]
    await agent.reply(answers(agent, True))
    assert books.done == ["pay 2"]
    assert result_of(agent).text.startswith("refused: ")
    assert result_of(agent).text.endswith("\npaid 2")


async def test_failure_of_a_tool_raises_its_words() -> None:
    agent = agent_running("await fail()", Books().tool)
    await agent.reply("Fail")
    assert result_of(agent).state == "error"
    assert result_of(agent).text.endswith("\nToolError: fail failed: ValueError: no such account")
    assert "line 1, in <module>" in result_of(agent).text


async def test_program_takes_the_same_way_when_it_is_run_again() -> None:
    books = Books(ask=True)
    code = "import random, time\nawait pay(f'{time.time()} {random.random()}')\nawait pay('last')\nrandom.random()"
    agent = agent_running(code, books.tool)
    await agent.reply("Pay")
    for _ in range(2):
        await anyio.lowlevel.checkpoint()
        agent = agent_running(code, books.tool, state=saved_state(agent))
        await agent.reply(answers(agent, True))
    assert result_of(agent).state == "success"
    assert len(books.done) == 2


class Decisions(MiddlewareBase):
    """Keeps the order of decisions, and takes longer for the first."""

    def __init__(self) -> None:
        self.order: list[str] = []

    async def on_check_permission(self, agent: Any, input_kwargs: Any, next_handler: Any) -> PermissionDecision:
        if len(self.order) < 4:
            await anyio.sleep(0.002)
        self.order.append(input_kwargs["tool_call"].id)
        decision: PermissionDecision = await next_handler()
        return decision


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_calls_of_one_gather_are_decided_in_order() -> None:
    decisions = Decisions()
    code = "import asyncio\nlen(await asyncio.gather(*[pay(str(n)) for n in range(8)]))"
    agent = agent_running(code, Books().tool, decisions)
    await agent.reply("Pay")
    assert decisions.order == ["c", *(f"c/{number}" for number in range(1, 9))]


async def test_tools_that_are_not_safe_together_run_one_by_one() -> None:
    running = most = 0

    async def step(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        running -= 1
        return n

    code = "import asyncio\nsum(await asyncio.gather(*[step(n) for n in range(5)]))"
    for is_safe, expected in ((False, 1), (True, 5)):
        running = most = 0
        agent = agent_running(code, CodeTool([FunctionTool(step, is_concurrency_safe=is_safe)]))
        await agent.reply("Go")
        assert (result_of(agent).text, most) == ("10", expected)


async def test_limit_of_calls_ends_a_program_and_undoes_nothing() -> None:
    books = Books()
    tool = CodeTool([books.pay], max_calls=3)
    agent = agent_running("for n in range(10):\n    await pay(str(n))", tool)
    await agent.reply("Pay")
    assert result_of(agent).state == "error"
    assert result_of(agent).text == "stopped after 3 calls: CodeTool(max_calls=3). Calls that it made before stay made."
    assert len(books.done) == 3


async def test_limit_of_the_reply_counts_calls_of_programs() -> None:
    books = Books()
    code = "for n in range(10):\n    await pay(str(n))"
    agent = agent_running(code, books.tool, react_config=ReActConfig(max_tool_calls=4))
    await agent.reply("Pay")
    assert len(books.done) == 3
    assert "one reply may make 4 tool calls, and they are used up" in result_of(agent).text


async def test_interrupt_ends_the_program() -> None:
    reached = anyio.Event()

    async def reach() -> str:
        reached.set()
        return ""

    async def check() -> None:
        """Check."""

    tool = CodeTool([reach, check], max_seconds=1_000)
    agent = agent_running("await check()\nawait reach()\nwhile True:\n    pass", tool)
    async with anyio.create_task_group() as group:
        group.start_soon(agent.reply, "Go")
        await reached.wait()
        await anyio.wait_all_tasks_blocked()
        assert agent.interrupt()
    assert result_of(agent).state == "interrupted"
    assert "Of its own calls, these are done: check (1), reach (2)." in result_of(agent).text


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_tool_that_ends_the_reply_ends_it_from_a_program() -> None:
    async def stop(context: ToolContext, n: int) -> None:
        context.run.stop("guardrail", "That is all.")  # type: ignore[union-attr]  # in a reply it has one

    agent = agent_running("import asyncio\nawait asyncio.gather(stop(1), stop(2))", CodeTool([stop]))
    message = await agent.reply("Go")
    assert message.get_text_content() == "That is all."


async def test_sub_agent_in_a_program_inherits_layers_and_asks() -> None:
    books = Books()
    decisions = Decisions()
    decisions.inherited = True
    payer = Agent(
        "payer",
        "",
        ScriptedChatModel([ChatResponse([ToolCallBlock("k", "pay", '{"id": "7"}')]), "It is paid."]),
        toolkit=Toolkit([FunctionTool(books.pay, ask=True)]),
    )
    tool = CodeTool([payer.as_tool("Pays.")])
    agent = agent_running("print(await payer('Pay 7'))", tool, decisions)
    await agent.reply("Pay")
    assert paths_asked(agent) == ["c/1/k"]
    assert "The tool 'payer' is an agent" in agent.explain()
    await agent.reply(answers(agent, True))
    assert (books.done, result_of(agent).text) == (["pay 7"], "It is paid.")
    assert "k" in decisions.order


async def test_tool_of_an_mcp_server_runs_in_a_program() -> None:
    tool = CodeTool([MCPToolset("calc", server=calculator(), ask=False)])
    agent = agent_running("int(await mcp__calc__add(a=1, b=2)) + 1", tool)
    async with agent:
        await agent.reply("Add")
        assert "async def mcp__calc__add(a: int, b: int) -> str:" in tool.description
    assert result_of(agent).text == "4"


async def test_a_fork_in_the_middle_of_a_program_takes_the_same_way() -> None:
    paid: list[float] = []

    async def draw(number: float) -> None:
        """Draw."""

    async def pay(number: float) -> None:
        paid.append(number)

    code = "import random\nnumber = random.random()\nawait draw(number)\nawait pay(number)"
    tool = CodeTool([draw, FunctionTool(pay, ask=True)])
    model = ScriptedChatModel([program(code), "Done.", "Done."])
    async with InMemoryStateStore() as store:
        agent = agent_running(code, tool, RunRecorder(store), model=model, state_store=store)
        await agent.reply("Pay.")
        await store.runs.flush()
        run = await store.runs.load(agent.state.session_id)
        for one in (run.fork(agent, run.steps[-1], effects="run"), agent):
            question = one.waiting()
            assert isinstance(question, RequireUserConfirmEvent)
            await one.reply(question.approve())
    assert len(paid) == 2
    assert paid[0] == paid[1]
