"""The tool selector offers what fits the first question, and the others through a list that stays as it is."""

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt import Agent
from agentrt.errors import BudgetExceeded, MiddlewareConfigError, ToolConfigError, Transient
from agentrt.event import RequireUserConfirmEvent
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    Limited,
    MiddlewareBase,
    TodoMiddleware,
    ToolResultLimitMiddleware,
    ToolSelectorMiddleware,
)
from agentrt.model import ScriptedChatModel
from agentrt.testing import check_middleware, lint
from agentrt.tool import FunctionTool
from agentrt.types import ContextConfig, DeferredSchema, ToolChoice
from agentrt_middleware.context.bm25 import rank
from tests.loop.helpers import call, confirmation_of, elsewhere
from tests.middleware.fake_time import in_jumping_time

PAIR = {"find_tools", "call_tool"}
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
    assert offers(agent) == [{"pay_invoice", "list_invoices", *PAIR}]


async def test_few_tools_are_all_offered() -> None:
    agent = agent_of(ToolSelectorMiddleware(8), ["Hello."])
    await agent.reply("Hi")
    assert offers(agent) == [{*DESCRIPTIONS}]


def through(call_id: str, name: Any, arguments: Any) -> ToolCallBlock:
    """Return a call of `call_tool`."""
    return ToolCallBlock(call_id, "call_tool", json.dumps({"name": name, "arguments": arguments}))


class Watch(MiddlewareBase):
    """Keeps what has moved in each request, and the tools that were permitted, run and announced."""

    def __init__(self) -> None:
        self.moved: list[str | None] = []
        self.seen: set[tuple[str, str]] = set()

    def on_wire(self, agent: Any, record: Any) -> None:
        if record.kind == "request" and record.purpose is None:
            self.moved.append(record.moved)

    def on_event(self, agent: Any, event: Any) -> None:
        if event.type == "TOOL_CALL_START":
            self.seen.add(("announced", event.tool_call_name))

    async def on_check_permission(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        self.seen.add(("permitted", input_kwargs["tool_call"].name))
        return await next_handler()

    async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        self.seen.add(("run", input_kwargs["tool_call"].name))
        async for item in next_handler():
            yield item


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_through_the_pair_is_that_of_the_tool(stream: bool) -> None:
    async def refund(amount: int) -> str:
        """Refund money."""
        return f"refunded {amount}"

    script = [
        [call("1", "find_tools", query="refund money")],
        [TextBlock("Now."), through("2", "refund", {"amount": 3}), call("3", "pay_invoice")],
        "Done.",
        [through("4", "refund", '{"amount": 4}')],
        "Again.",
    ]
    watch = Watch()
    agent = Agent(
        "a",
        model=ScriptedChatModel(script, stream=stream),
        tools=[*tools(), refund],
        middlewares=lint([watch, ToolSelectorMiddleware(2)]),
    )
    await agent.reply("Pay the invoice.")
    await agent.reply("Translate and add.")
    assert watch.moved == [None] * 5
    assert offers(agent) == [{"pay_invoice", "list_invoices", *PAIR}] * 5
    names = {"find_tools", "refund", "pay_invoice"}
    assert watch.seen == {(what, name) for what in ("announced", "permitted", "run") for name in names}
    blocks = [block for message in agent.state.context for block in message.get_content_blocks("tool_result")]
    assert json.loads(blocks[0].text)["parameters"]["properties"] == {"amount": {"type": "integer"}}
    assert [(block.name, block.text) for block in blocks[1:]] == [
        ("refund", "refunded 3"),
        ("pay_invoice", "done"),
        ("refund", "refunded 4"),
    ]
    assert isinstance(agent.model, ScriptedChatModel)
    sent = [
        (block.type, block.name, getattr(block, "input", None))
        for message in agent.model.calls[-1].messages
        for block in message.get_content_blocks()
        if block.id in ("2", "4")
    ]
    assert sent == [
        (kind, "call_tool", {"tool_call": json.dumps({"name": "refund", "arguments": {"amount": amount}})}.get(kind))
        for amount in (3, 4)
        for kind in ("tool_call", "tool_result")
    ]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (through("1", "no_such_tool", {}), "the tool 'no_such_tool' does not exist: find_tools finds"),
        (through("1", "call_tool", {}), "the tool 'call_tool' does not exist"),
        (through("1", "add", [1]), "arguments"),
        (through("1", 7, {}), "name"),
        (ToolCallBlock("1", "call_tool", '{"name": "add"'), "call_tool"),
    ],
)
async def test_a_call_through_the_pair_that_fits_nothing_fails(wrong: ToolCallBlock, words: str, stream: bool) -> None:
    agent = agent_of(ToolSelectorMiddleware(2), [])
    agent.model = ScriptedChatModel([[wrong], "Done."], stream=stream)
    await agent.reply("Pay the invoice.")
    (result,) = agent.state.context[-1].get_content_blocks("tool_result")
    assert (result.name, result.state) == ("call_tool", "error")
    assert words in result.text


async def test_a_selector_that_is_skipped_says_how_to_call_a_tool() -> None:
    def fail(question: str, schemas: Any) -> list[str]:
        raise BudgetExceeded("spent")

    layer = Limited(ToolSelectorMiddleware(2, by=fail), 5, "skip")
    agent = Agent(
        "a", model=ScriptedChatModel([[through("1", "add", {})], "Done."]), tools=tools(), middlewares=[layer]
    )
    await agent.reply("Hi")
    (result,) = agent.state.context[-1].get_content_blocks("tool_result")
    assert result.text.endswith("call_tool cannot call 'add' in this answer: call it by its own name")


async def test_a_tool_that_is_called_by_its_name_runs_too() -> None:
    agent = agent_of(ToolSelectorMiddleware(2), [[call("1", "add")], "Added."])
    await agent.reply("Pay the invoice.")
    (result,) = agent.state.context[-1].get_content_blocks("tool_result")
    assert (result.name, result.text) == ("add", "done")


@pytest.mark.parametrize("supported", [True, False])
async def test_a_model_that_defers_tools_gets_all_of_them(supported: bool) -> None:
    class Model(ScriptedChatModel):
        supports_deferred_tools = supported

    agent = agent_of(ToolSelectorMiddleware(2, native=True), [])
    agent.model = model = Model([[call("1", "add")], "Added."])
    await agent.reply("Pay the invoice.")
    shown = {"pay_invoice", "list_invoices"}
    assert offers(agent) == [{*DESCRIPTIONS} if supported else shown | PAIR] * 2
    deferred = [
        {tool["function"]["name"] for tool in request.tools or () if isinstance(tool, DeferredSchema)}
        for request in model.calls
    ]
    assert deferred == [{*DESCRIPTIONS} - shown if supported else set()] * 2


async def test_nothing_is_found_where_nothing_fits() -> None:
    agent = agent_of(ToolSelectorMiddleware(2), [[call("1", "find_tools", query="zzz")], "No."])
    await agent.reply("Pay the invoice.")
    (result,) = agent.state.context[-1].get_content_blocks("tool_result")
    assert result.text == "No other tool fits."


async def test_all_tools_are_found_where_none_has_been_chosen() -> None:
    script = ["Hello.", [call("1", "find_tools", query="pay an invoice")], "Paid."]
    agent = agent_of(ToolSelectorMiddleware(2, by=lambda question, schemas: []), script)
    await agent.reply("Hi")
    await agent.reply("Pay the invoice.")
    assert offers(agent)[0] == PAIR
    (result,) = agent.state.context[-1].get_content_blocks("tool_result")
    assert "pay_invoice" in result.text


async def test_the_list_is_chosen_anew_after_a_compression() -> None:
    script = [[through("1", "stop_song", {})], "Stopped.", "Paid.", "Summary.", "Translated."]
    agent = agent_of(ToolSelectorMiddleware(3, always=["add", "no_such_tool"]), script)
    agent.context_config = ContextConfig(reserve_ratio=0)
    for _ in range(2):
        await agent.reply("Pay the invoice.")
    await agent.compress_context()
    await agent.reply("Translate this.")
    first, *_, last = offers(agent)
    assert first == {"add", "pay_invoice", "list_invoices", *PAIR}
    assert {"add", "translate"} <= last


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
    assert offers(agent) == [expected | PAIR]


async def test_tools_that_other_layers_bring_are_offered() -> None:
    layers = [TodoMiddleware(), ToolSelectorMiddleware(2), ToolResultLimitMiddleware()]
    agent = Agent("a", model=ScriptedChatModel(["Paid."]), tools=tools(), middlewares=layers)
    await agent.reply("Please pay the invoices of last week.")
    own = {"pay_invoice", "list_invoices"}
    assert offers(agent) == [{*own, *PAIR, "write_todos", "read_result"}]


async def test_permission_is_asked_for_the_tool_also_elsewhere() -> None:
    async def delete(name: str) -> str:
        return f"deleted {name}"

    script = [[through("1", "delete", {"name": "x"})], "Done."]
    brought = [*tools(), FunctionTool(delete, ask=True)]
    layers = [ToolSelectorMiddleware(1)]
    agent = Agent("a", model=ScriptedChatModel(script), tools=brought, middlewares=layers)
    await agent.reply("Pay the invoice.")
    agent = elsewhere(agent)
    question = agent.waiting()
    assert isinstance(question, RequireUserConfirmEvent)
    assert [(block.name, block.input) for block in question.tool_calls] == [("delete", '{"name": "x"}')]
    await agent.reply(confirmation_of(agent))
    assert offers(agent)[0] == offers(agent)[1]
    (result,) = agent.state.context[-1].get_content_blocks("tool_result")
    assert (result.name, result.text) == ("delete", "deleted x")


async def test_patterns_of_names_are_always_offered() -> None:
    agent = agent_of(ToolSelectorMiddleware(3, always=["*_song", "none_*"]), ["Done."])
    await agent.reply("Pay the invoice.")
    assert offers(agent) == [{"play_song", "stop_song", "pay_invoice", *PAIR}]


@in_jumping_time
async def test_a_choice_that_hangs_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def hang(question: str, schemas: Any) -> list[str]:
        await anyio.sleep(1_000)
        return []

    agent = agent_of(ToolSelectorMiddleware(2, by=hang, timeout=5), ["Paid."])
    started = anyio.current_time()
    await agent.reply("Please pay the invoices of last week.")
    assert anyio.current_time() - started == pytest.approx(5)
    assert offers(agent) == [{"pay_invoice", "list_invoices", *PAIR}]
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
async def test_a_selector_of_nothing_keeps_the_contract() -> None:
    await check_middleware(
        lambda: ToolSelectorMiddleware(1, by=lambda question, schemas: []), faults=["cancel"], every=3
    )


def test_two_selectors_are_refused_by_their_class() -> None:
    with pytest.raises(ToolConfigError, match="'find_tools': two instances of ToolSelectorMiddleware add it"):
        Agent(
            "assistant", model=ScriptedChatModel([]), middlewares=[ToolSelectorMiddleware(), ToolSelectorMiddleware()]
        )
