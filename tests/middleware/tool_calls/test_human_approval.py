"""Human approval: a matched call never runs without the user's yes, whatever the mode and the rules are."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Agent, AgentState, Toolkit
from agentrt.event import ConfirmResult, RequireUserConfirmEvent, ToolResultEndEvent, UserConfirmResultEvent
from agentrt.message import ToolCallBlock
from agentrt.middleware import HumanApprovalMiddleware, MiddlewareBase
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionContext, PermissionDecision, PermissionMode, PermissionRule
from agentrt.testing import check_middleware
from agentrt.types import PermissionBehavior
from tests.loop.helpers import call, confirmation_of, items_of, saved_state
from tests.middleware.question.layers import Asking

EACH_MODE = pytest.mark.parametrize("mode", list(PermissionMode))


class Log(list[str]):
    def tools(self) -> Toolkit:
        async def delete_file(path: str = "a") -> str:
            self.append(path)
            return "deleted"

        async def pay(amount: Any) -> str:
            self.append(str(amount))
            return "paid"

        return Toolkit(tools=[delete_file, pay])


def agent_with(
    layer: MiddlewareBase, log: Log, calls: list[ToolCallBlock], *more: MiddlewareBase, **state: Any
) -> Agent:
    model = ScriptedChatModel([calls, "done"])
    permissions = PermissionContext(**state)
    return Agent(
        "a", model=model, toolkit=log.tools(), middlewares=[layer], state=AgentState(permission_context=permissions)
    )


@pytest.fixture
def log() -> Log:
    return Log()


@EACH_MODE
@pytest.mark.parametrize("yes", [True, False])
async def test_a_matched_call_waits_in_every_mode(mode: PermissionMode, yes: bool, log: Log) -> None:
    agent = agent_with(HumanApprovalMiddleware(["delete_*"]), log, [call("1", "delete_file", path="x")], mode=mode)
    await agent.reply("go")
    assert log == []
    if mode in (PermissionMode.DONT_ASK, PermissionMode.EXPLORE):  # nobody is asked, or only reading is allowed
        assert agent.waiting() is None
        return
    await agent.reply(confirmation_of(agent, confirmed=yes))
    assert log == (["x"] if yes else [])


async def test_no_rule_and_no_other_layer_answers_for_the_user(log: Log) -> None:
    class Allow(MiddlewareBase):
        async def on_check_permission(self, agent: Any, input_kwargs: Any, next_handler: Any) -> PermissionDecision:
            return PermissionDecision(PermissionBehavior.ALLOW)

    rules = [PermissionRule("*", behavior=PermissionBehavior.ALLOW)]
    approval = HumanApprovalMiddleware({"pay": True})
    agent = agent_with(approval, log, [call("1", "pay", amount=1)], rules=rules, mode="bypass")
    inner = Agent("a", model=agent.model, toolkit=log.tools(), middlewares=[approval, Allow()], state=agent.state)
    await inner.reply("go")
    assert log == []
    assert isinstance(inner.waiting(), RequireUserConfirmEvent)


async def test_what_is_denied_is_not_asked_about(log: Log) -> None:
    rules = [PermissionRule("pay", behavior=PermissionBehavior.DENY)]
    agent = agent_with(HumanApprovalMiddleware(["*"]), log, [call("1", "pay", amount=1)], rules=rules)
    await agent.reply("go")
    assert (log, agent.waiting()) == ([], None)


def fails(arguments: dict[str, Any]) -> bool:
    raise RuntimeError


async def hangs(arguments: dict[str, Any]) -> bool:
    await anyio.sleep(1_000)
    return False


async def thinks(arguments: dict[str, Any]) -> str | None:
    return "So much?" if arguments["amount"] > 100 else None


@pytest.mark.parametrize(
    ("rule", "amount", "asks"),
    [
        (lambda arguments: arguments["amount"] > 100, 200, "pay needs your approval"),
        (lambda arguments: arguments["amount"] > 100, 20, None),
        (lambda arguments: arguments["amount"] > 100, "200", "pay needs your approval"),  # not a number
        (lambda arguments: arguments["sum"] > 100, 20, "pay needs your approval"),
        (lambda arguments: None, 20, None),
        (lambda arguments: "Really?", 20, "Really?"),
        (lambda arguments: [1], 20, "pay needs your approval"),
        (fails, 20, "pay needs your approval"),
        (hangs, 20, "pay needs your approval"),
        (thinks, 20, None),
        (thinks, 200, "So much?"),
        (False, 200, None),
        (True, 20, "pay needs your approval"),
    ],
)
async def test_a_rule_may_look_at_the_arguments(rule: Any, amount: Any, asks: str | None, log: Log) -> None:
    layer = HumanApprovalMiddleware({"pay": rule, "*": True}, timeout=0.05)
    agent = agent_with(layer, log, [call("1", "pay", amount=amount)])
    await agent.reply("go")
    question = agent.waiting()
    if asks is None:
        assert log == [str(amount)]
    else:
        assert isinstance(question, RequireUserConfirmEvent)
        assert [decision.message for decision in question.questions.values()] == [asks]


async def test_a_judge_decides_on_calls_that_no_pattern_fits(log: Log) -> None:
    def judge(name: str, arguments: dict[str, Any]) -> bool:
        return name == "pay"

    layer = HumanApprovalMiddleware(risk=judge)
    agent = agent_with(layer, log, [call("1", "delete_file", path="x")])
    await agent.reply("go")
    assert log == ["x"]
    agent = agent_with(layer, log, [call("1", "pay", amount=1)])
    await agent.reply("go")
    assert agent.waiting() is not None


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        ('{"is_risky": true, "reason": "It spends money."}', "It spends money."),
        ('{"is_risky": false, "reason": ""}', None),
        ("nonsense", "pay needs your approval"),
    ],
)
async def test_a_model_may_be_the_judge(verdict: str, message: str | None, log: Log) -> None:
    answers = [[ToolCallBlock("1", "GenerateStructuredOutput", verdict)]] * 5
    layer = HumanApprovalMiddleware(risk=ScriptedChatModel(answers, model="judge"))
    agent = agent_with(layer, log, [call("1", "pay", amount=1)])
    await agent.reply("go")
    question = agent.waiting()
    if message is None:
        assert log == ["1"]
    else:
        assert isinstance(question, RequireUserConfirmEvent)
        assert [decision.message for decision in question.questions.values()] == [message]


@given(
    st.lists(
        st.tuples(st.sampled_from(["delete_file", "pay"]), st.integers(0, 3), st.booleans()), min_size=1, max_size=5
    ),
    st.sampled_from(["default", "bypass", "accept_edits"]),
)
@settings(max_examples=40, deadline=None)
async def test_each_matched_call_that_ran_had_a_yes(calls: list[tuple[str, int, bool]], mode: str) -> None:
    log = Log()
    blocks, approved = [], set()
    for number, (name, value, yes) in enumerate(calls):
        argument = {"path": f"{number}-{value}"} if name == "delete_file" else {"amount": f"{number}-{value}"}
        blocks.append(call(str(number), name, **argument))
        if yes:
            approved.add(f"{number}-{value}")
    layer = HumanApprovalMiddleware({"delete_*": True, "pay": lambda arguments: not arguments["amount"].endswith("0")})
    agent = agent_with(layer, log, blocks, mode=mode)
    await agent.reply("go")
    while (question := agent.waiting()) is not None:
        assert isinstance(question, RequireUserConfirmEvent)
        results = [
            ConfirmResult(calls[int(each.id.rpartition("-")[2] or each.id)][2], each)
            for each in question.tool_calls[:1]
        ]
        await agent.reply(UserConfirmResultEvent(question.reply_id, results))
    free = {f"{number}-0" for number, (name, value, _) in enumerate(calls) if name == "pay" and value == 0}
    assert set(log) <= approved | free
    assert free <= set(log)


@pytest.mark.parametrize("verdict", [0, "", [], 7, object(), b"no"])
async def test_a_rule_that_answers_nonsense_asks(verdict: Any, log: Log) -> None:
    agent = agent_with(HumanApprovalMiddleware({"pay": lambda arguments: verdict}), log, [call("1", "pay", amount=1)])
    await agent.reply("go")
    assert agent.waiting() is not None
    assert log == []


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: HumanApprovalMiddleware(None), "must be a list of names of tools"),  # type: ignore[arg-type]
    (lambda: HumanApprovalMiddleware({"pay": False}), "has no rules, so it would ask about nothing"),
    (lambda: HumanApprovalMiddleware({"pay": lambda: True}), r"for 'pay' has <lambda>\(\), which must be a function"),  # type: ignore[dict-item,misc]
    (lambda: HumanApprovalMiddleware(risk=lambda name: True), r"must be a function \(name, arguments\)"),  # type: ignore[arg-type,misc]
    (HumanApprovalMiddleware, "has no rules, so it would ask about nothing: write"),
    (lambda: HumanApprovalMiddleware({"pay": 1}), "has 1 for 'pay': give True, False or a function"),  # type: ignore[dict-item]
    (lambda: HumanApprovalMiddleware([1]), "must be a list of names of tools, or of patterns"),  # type: ignore[list-item]
    (lambda: HumanApprovalMiddleware({"": True}), "must be a list of names of tools"),
    (lambda: HumanApprovalMiddleware(["pay"], risk="low"), r"risk=\.\.\.\) must be a function"),  # type: ignore[arg-type]
    (lambda: HumanApprovalMiddleware(["pay"], timeout=0), r"timeout=\.\.\.\) must be a number above 0"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_a_wrong_option_is_refused_with_its_remedy(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as refused:
        make()
    assert type(refused.value).__name__ == "MiddlewareConfigError"


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: HumanApprovalMiddleware(["no_such_*"]),
        lambda: HumanApprovalMiddleware(risk=lambda name, arguments: None),
    ],
)
async def test_every_option_keeps_the_contract(make: Callable[[], MiddlewareBase]) -> None:
    await check_middleware(make, faults=["cancel"], every=3)


async def test_a_yes_lets_the_call_run_in_another_process(log: Log) -> None:
    agent = agent_with(HumanApprovalMiddleware(["pay"]), log, [call("1", "pay", amount=3)])
    await agent.reply("go")
    state = saved_state(agent)
    layers = [HumanApprovalMiddleware(["pay"])]
    other = Agent("a", model=ScriptedChatModel(["done"]), toolkit=log.tools(), middlewares=layers, state=state)
    items = await items_of(other, confirmation_of(other))
    assert [item.state for item in items if isinstance(item, ToolResultEndEvent)] == ["success"]
    assert log == ["3"]


@EACH_MODE
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("confirmed", [True, False])
async def test_rules_hold_in_sub_agents_of_any_depth(mode: PermissionMode, depth: int, confirmed: bool) -> None:
    log = Log()

    def tree() -> Agent:
        # One model for each agent of a process; what was answered before is in the state.
        agent = Agent("level0", model=ScriptedChatModel([[call("0", "delete_file")], "done"]), toolkit=log.tools())
        for level in range(1, depth + 1):
            tool = agent.as_tool("Deletes files.")
            layers = [HumanApprovalMiddleware(["delete_*"])] if level == depth else []
            model = ScriptedChatModel([[call(str(level), tool.name, query="?")], "done"])
            agent = Agent(f"level{level}", model=model, tools=[tool], middlewares=layers)
        agent.state.permission_context = PermissionContext(mode=mode)
        return agent

    boss = tree()
    await boss.reply("go")
    question = boss.waiting()
    if mode in (PermissionMode.DONT_ASK, PermissionMode.EXPLORE):
        assert question is None
        assert log == []
        return
    [asked] = question.tool_calls
    assert asked.name == "delete_file"
    assert log == []
    boss.state = saved_state(boss)
    await boss.reply(confirmation_of(boss, confirmed=confirmed))
    assert boss.waiting() is None
    assert log == (["a"] if confirmed else [])


def test_sub_agents_inherit_the_rules_unless_told_otherwise() -> None:
    def layers_of_child(inherit: bool) -> str:
        child = Agent("child", model=ScriptedChatModel([]))
        tools = [child.as_tool("Deletes files.", inherit=inherit)]
        middlewares = [HumanApprovalMiddleware(["delete_*"])]
        boss = Agent("boss", model=ScriptedChatModel([]), tools=tools, middlewares=middlewares)
        return boss.explain().partition("The tool 'child' is an agent")[2]

    assert "HumanApprovalMiddleware, from 'boss'" in layers_of_child(True)
    assert "HumanApprovalMiddleware, from 'boss'" not in layers_of_child(False)


async def test_a_judge_reads_no_question_of_another_layer() -> None:
    risk = ScriptedChatModel([])
    agent = Agent(
        "a", model=ScriptedChatModel([]), middlewares=[Asking("on_reasoning"), HumanApprovalMiddleware(risk=risk)]
    )
    await agent.reply("go")
    asked = agent.waiting()
    assert isinstance(asked, RequireUserConfirmEvent)
    assert (asked.tool_calls[0].name, risk.calls) == ("raise_budget", [])


@pytest.mark.parametrize(("rules", "is_asked"), [(["*"], False), (["GenerateStructuredOutput"], True)])
async def test_an_answer_in_a_form_waits_only_where_it_is_named(rules: list[str], is_asked: bool) -> None:
    form = [ToolCallBlock("1", "GenerateStructuredOutput", '{"n": 1}')]
    layer = HumanApprovalMiddleware(rules, risk=lambda name, arguments: True)
    agent = Agent("a", model=ScriptedChatModel([form]), middlewares=[layer])
    await agent.reply("go", structured_schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    assert (agent.waiting() is not None) is is_asked
