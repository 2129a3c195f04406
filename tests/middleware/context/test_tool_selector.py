"""The tool selector offers what fits the question, and the offer of a reply only grows."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt import Agent, AgentState
from agentrt.errors import BudgetExceeded, MiddlewareConfigError, Transient
from agentrt.event import ConfirmResult, RequireUserConfirmEvent, UserConfirmResultEvent
from agentrt.message import ToolCallBlock
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    MiddlewareBase,
    TodoMiddleware,
    ToolResultLimitMiddleware,
    ToolSelectorMiddleware,
)
from agentrt.model import ScriptedChatModel
from agentrt.testing import check_middleware
from agentrt.tool import FunctionTool
from agentrt.types import ToolChoice
from agentrt_middleware.context.bm25 import rank
from tests.loop.helpers import call
from tests.middleware.fake_time import on_both_loops, play

DESCRIPTIONS = {
    "get_forecast": "Tell the weather of tomorrow in a city.",
    "sendEmail": "Send an e-mail to somebody.",
    "pay_invoice": "Pay an invoice.",
    "list_invoices": "List the invoices that are not paid.",
    "play_song": "Play a song.",
    "stop_song": "Stop the music.",
    "translate": "Translate a text.",
    "add": "Add two numbers.",
}


def tools() -> list[FunctionTool]:
    async def run() -> str:
        return "done"

    return [FunctionTool(run, name=name, description=text) for name, text in DESCRIPTIONS.items()]


def agent_of(layer: ToolSelectorMiddleware, script: list[Any]) -> Agent:
    return Agent("a", model=ScriptedChatModel(script), tools=tools(), middlewares=[layer])


def offers(agent: Agent) -> list[set[str]]:
    assert isinstance(agent.model, ScriptedChatModel)
    return [{tool["function"]["name"] for tool in request.tools or ()} for request in agent.model.calls]


async def test_tools_that_fit_the_question_are_offered() -> None:
    agent = agent_of(ToolSelectorMiddleware(2), ["Paid."])
    await agent.reply("Please pay the invoices of last week.")
    assert offers(agent) == [{"pay_invoice", "list_invoices", "find_tools"}]


async def test_few_tools_are_all_offered() -> None:
    agent = agent_of(ToolSelectorMiddleware(8), ["Hello."])
    await agent.reply("Hi")
    assert offers(agent) == [{*DESCRIPTIONS, "find_tools"}]


async def test_the_model_finds_further_tools_and_the_offer_grows() -> None:
    script = [
        [call("1", "pay_invoice")],
        [call("2", "find_tools", query="weather")],
        [call("3", "get_forecast")],
        [call("4", "find_tools", query="weather")],
        "Done.",
    ]
    agent = agent_of(ToolSelectorMiddleware(2), script)
    await agent.reply("Pay the invoice.")
    first, second, third, *rest = offers(agent)
    assert first == second == {"pay_invoice", "list_invoices", "find_tools"}
    assert third == first | {"get_forecast"}
    assert rest == [third, third]
    results = [block.text for block in agent.state.context[-1].get_content_blocks("tool_result")]
    assert results == ["done", "get_forecast: " + DESCRIPTIONS["get_forecast"], "done", "No other tool fits."]


async def test_tools_that_were_called_and_named_ones_stay() -> None:
    script = [[call("1", "find_tools", query="song music")], [call("2", "stop_song")], "Stopped.", "Hello."]
    agent = agent_of(ToolSelectorMiddleware(3, always=["add", "no_such_tool"]), script)
    await agent.reply("Pay the invoice.")
    await agent.reply("Translate this.")
    last = offers(agent)[-1]
    assert {"add", "stop_song", "translate", "find_tools"} <= last
    assert len(last) == 4


async def test_a_tool_choice_names_what_is_offered() -> None:
    class Choose(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            return await next_handler(tool_choice=ToolChoice("translate"))

    layers = [Choose(), ToolSelectorMiddleware(1)]
    agent = Agent("a", model=ScriptedChatModel(["x"]), tools=tools(), middlewares=layers)
    await agent.reply("Pay the invoice.")
    assert "translate" in offers(agent)[0]


async def by_name(question: str, schemas: Any) -> list[str]:
    return ["translate", "no_such_tool", "add"]


class Judge:
    def __init__(self, script: list[Any]) -> None:
        self.script = script


def selection(*names: str) -> list[ToolCallBlock]:
    return [ToolCallBlock("1", "GenerateStructuredOutput", '{"tools": ["' + '", "'.join(names) + '"]}')]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (by_name, {"translate", "add"}),
        (lambda question, schemas: ["play_song"], {"play_song"}),
        (Judge([selection("translate", "nonsense", "add")]), {"translate", "add"}),
        (Judge([Transient("503")]), {"pay_invoice", "list_invoices"}),
        (lambda question, schemas: 1 / 0, {"pay_invoice", "list_invoices"}),
        (lambda question, schemas: None, {"pay_invoice", "list_invoices"}),
        (lambda question, schemas: "play_song", {"pay_invoice", "list_invoices"}),
    ],
)
async def test_a_function_or_a_model_may_choose(by: Any, expected: set[str]) -> None:
    by = ScriptedChatModel(by.script) if isinstance(by, Judge) else by  # one for each event loop
    agent = agent_of(ToolSelectorMiddleware(2, by=by), ["Done."])
    await agent.reply("Pay the invoice.")
    assert offers(agent) == [expected | {"find_tools"}]


async def test_tools_that_other_layers_bring_are_offered() -> None:
    layers = [TodoMiddleware(), ToolSelectorMiddleware(2), ToolResultLimitMiddleware()]
    agent = Agent("a", model=ScriptedChatModel(["Paid."]), tools=tools(), middlewares=layers)
    await agent.reply("Please pay the invoices of last week.")
    own = {"pay_invoice", "list_invoices"}
    assert offers(agent) == [{*own, "find_tools", "write_todos", "read_result"}]


async def test_an_offer_still_grows_after_the_reply_was_parked() -> None:
    async def delete() -> str:
        """Delete a song."""
        return "deleted"

    script = [[call("1", "find_tools", query="add numbers")], [call("2", "delete")], "Done."]
    brought = [*tools(), FunctionTool(delete, ask=True)]
    agent = Agent("a", model=ScriptedChatModel(script), tools=brought, middlewares=[ToolSelectorMiddleware(1)])
    await agent.reply("Delete it.")
    agent = agent.with_state(AgentState.model_validate_json(agent.state.model_dump_json()))
    question = agent.waiting()
    assert isinstance(question, RequireUserConfirmEvent)
    answers = [ConfirmResult(True, tool_call) for tool_call in question.tool_calls]
    await agent.reply(UserConfirmResultEvent(question.reply_id, answers))
    assert offers(agent) == [{"delete", "find_tools"}] + [{"delete", "add", "find_tools"}] * 2


async def test_patterns_of_names_are_always_offered() -> None:
    agent = agent_of(ToolSelectorMiddleware(3, always=["*_song", "none_*"]), ["Done."])
    await agent.reply("Pay the invoice.")
    assert offers(agent) == [{"play_song", "stop_song", "pay_invoice", "find_tools"}]


@on_both_loops
def test_a_choice_that_hangs_is_given_up(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    async def hang(question: str, schemas: Any) -> list[str]:
        await anyio.sleep(1_000)
        return []

    async def main() -> None:
        agent = agent_of(ToolSelectorMiddleware(2, by=hang, timeout=5), ["Paid."])
        started = anyio.current_time()
        await agent.reply("Please pay the invoices of last week.")
        assert anyio.current_time() - started == pytest.approx(5)
        assert offers(agent) == [{"pay_invoice", "list_invoices", "find_tools"}]

    play(backend, main)
    assert "failed: took longer than 5 s" in caplog.text


async def test_a_selection_that_the_budget_refuses_is_no_failure() -> None:
    judge = ScriptedChatModel([], model="judge")
    agent = Agent(
        "a",
        model=ScriptedChatModel(["never"]),
        tools=tools(),
        middlewares=[
            ToolSelectorMiddleware(2, by=judge),
            BudgetMiddleware(reply=Budget(cost=5), prices={"scripted": (1, 1)}),
        ],
    )
    with pytest.raises(BudgetExceeded, match="'judge' is not called"):
        await agent.reply("go")


async def test_structured_output_is_always_possible() -> None:
    agent = agent_of(ToolSelectorMiddleware(1), [[ToolCallBlock("1", "GenerateStructuredOutput", '{"n": 1}')]])
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    message = await agent.reply("Pay.", structured_schema=schema)
    assert message.structured_output == {"n": 1}


@given(st.text(), st.dictionaries(st.text(max_size=3), st.text(max_size=40), max_size=6))
def test_any_words_rank_all_texts(query: str, texts: dict[str, str]) -> None:
    assert sorted(rank(query, texts)) == sorted(texts)
    assert set(rank(query, texts, matching=True)) <= set(texts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ToolSelectorMiddleware(0), r"max_tools=\.\.\.\) must be a whole number above 0, not 0"),
        (lambda: ToolSelectorMiddleware(by="bm26"), "must be \"bm25\", a chat model or a function .* not 'bm26'"),
        (lambda: ToolSelectorMiddleware(by=7), 'must be "bm25", a chat model or a function'),  # type: ignore[arg-type]
        (lambda: ToolSelectorMiddleware(always=[7]), "must be a list of names of tools"),  # type: ignore[list-item]
    ],
)
def test_a_wrong_option_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(MiddlewareConfigError, match=message):
        make()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["bm25", lambda question, schemas: []])
async def test_every_option_keeps_the_contract(by: Any) -> None:
    def make() -> MiddlewareBase:
        return ToolSelectorMiddleware(1, by=by)

    await check_middleware(make, faults=["cancel"], every=3)
