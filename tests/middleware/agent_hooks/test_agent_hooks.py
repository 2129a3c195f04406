"""What the standard's kit does not ask: questions, other processes, sub-agents, changes in a stream, bad options."""

import json
import subprocess
import sys

import anyio.lowlevel
import pytest
from agent_hooks import DeclarationError, HostRegistry, HostSurface, InterceptionBlocked, Verdict

from agentrt import Agent
from agentrt.errors import MiddlewareConfigError
from agentrt.event import ConfirmResult, ExternalExecutionResultEvent, UserConfirmResultEvent
from agentrt.message import AssistantMsg, ThinkingBlock, ToolCallBlock, ToolResultBlock, UserMsg
from agentrt.middleware import AgentHooksMiddleware, HumanApprovalMiddleware
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.tool import FunctionTool
from agentrt_middleware.agent_hooks.wire import messages_from_wire, messages_to_wire
from tests.loop.helpers import elsewhere

CALL = ToolCallBlock("c1", "pay", '{"amount": 5}')


class Policy:
    """Decides by a function of the point and the context; allows what that says nothing about."""

    def __init__(self, decide=lambda point, context: None):
        self.decide = decide
        self.seen = []

    def intercept(self, context):
        self.seen.append(context)
        return self.decide(context["interception_point"], context) or Verdict.allow()

    def points(self):
        return [context["interception_point"] for context in self.seen]


def at(wanted, verdict):
    return Policy(lambda point, context: verdict if point == wanted else None)


def change(path, value):
    return {"decision": "transform", "transform": {"path": path, "value": value}}


def payer(layers, runs, *, ask=False, script=None, stream=None):
    def pay(amount: int) -> str:
        runs.append(amount)
        return f"paid {amount}"

    model = ScriptedChatModel(script or [[CALL], "Done."], stream=stream)
    return Agent("shop", model=model, tools=[FunctionTool(pay, ask=ask)], middlewares=layers)


def answer(agent, message, *, yes):
    [call] = message.get_content_blocks("tool_call")
    return UserConfirmResultEvent(message.id, [ConfirmResult(yes, call)])


def result_of(agent):
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    return result


async def test_a_policy_denies_before_the_user_is_asked():
    runs = []
    layer = AgentHooksMiddleware([at("pre_tool_call", Verdict.deny(reason="no:money"))])
    agent = payer([layer, HumanApprovalMiddleware(["pay"])], runs)
    assert (await agent.reply("Pay.")).get_text_content() == "Done."
    assert runs == []
    assert (result_of(agent).state, "no:money" in result_of(agent).text) == ("denied", True)


@pytest.mark.parametrize("yes", [True, False])
async def test_what_a_policy_escalates_waits_for_the_user(yes):
    runs = []
    policy = at("pre_tool_call", Verdict.escalate(reason="ask:money"))
    layer = AgentHooksMiddleware([policy])
    agent = payer([layer], runs)
    question = await agent.reply("Pay.")
    moved = elsewhere(agent)
    await moved.reply(answer(agent, question, yes=yes))
    assert runs == [5][: int(yes)]
    outcomes = [(record.proceeds, record.resolved_by) for record in layer.records(moved) if record.sequence == 5]
    assert outcomes == ([(True, "approval")] if yes else [(True, None)])
    assert [context["sequence"] for context in policy.seen] == [*range(len(policy.seen))]
    assert (policy.points().count("agent_startup"), policy.points().count("agent_shutdown")) == (1, 1)


LATER_NO = """
import sys, anyio
from agent_hooks import Verdict
from agentrt import Agent, AgentState
from agentrt.event import UserConfirmResultEvent
from agentrt.middleware import AgentHooksMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool

class No:
    def intercept(self, context):
        is_call = context["interception_point"] == "pre_tool_call"
        return Verdict.deny(reason="later:no") if is_call else Verdict.allow()

def pay(amount: int) -> str:
    raise SystemExit("it ran")

agent = Agent("shop", model=ScriptedChatModel(["Done."]), tools=[FunctionTool(pay, ask=True)],
              middlewares=[AgentHooksMiddleware([No()])],
              state=AgentState.model_validate_json(sys.argv[1]))
anyio.run(agent.reply, UserConfirmResultEvent.from_json(sys.argv[2]))
[result] = agent.state.context[-1].get_content_blocks("tool_result")
print(result.state, result.text)
"""


async def test_a_no_in_another_process_counts_after_the_users_yes():
    agent = payer([AgentHooksMiddleware([Policy()])], [], ask=True)
    question = await agent.reply("Pay.")
    saved, yes = agent.state.model_dump_json(), answer(agent, question, yes=True).to_json()
    done = await anyio.run_process([sys.executable, "-c", LATER_NO, saved, yes], check=False, stderr=subprocess.STDOUT)
    assert done.stdout.decode().startswith("denied")
    assert "later:no" in done.stdout.decode()


async def test_changed_arguments_reach_a_tool_that_asks():
    runs = []
    agent = payer([AgentHooksMiddleware([at("pre_tool_call", change("$target.amount", 3))])], runs, ask=True)
    question = await agent.reply("Pay.")
    await agent.reply(answer(agent, question, yes=True))
    assert runs == [3]


async def test_an_external_result_is_withheld_where_a_policy_denies_it():
    layer = AgentHooksMiddleware([at("post_tool_call", Verdict.deny(reason="leak"))])
    tool = FunctionTool(lambda: "", name="look", description="Look.")
    tool.is_external_tool = True
    model = ScriptedChatModel([[ToolCallBlock("c1", "look", "{}")], "Done."])
    agent = Agent("shop", model=model, tools=[tool], middlewares=[layer])
    question = await agent.reply("Look.")
    result = ToolResultBlock("c1", "look", "the secret", metadata={"source": "the secret"})
    await agent.reply(ExternalExecutionResultEvent(question.id, [result]))
    assert result_of(agent).state == "denied"
    assert "the secret" not in agent.state.model_dump_json()
    assert "the secret" not in repr(model.calls[-1].messages)


class Slow:
    async def intercept(self, context):
        await anyio.sleep(60)
        return Verdict.allow()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("is_declared", [False, True])
async def test_a_slow_interceptor_denies(anyio_backend, is_declared):
    if is_declared:
        registry = HostRegistry().kind("com.example.slow", lambda config, context: Slow())
        bindings = [{"id": "slow", "kind": "com.example.slow", "timeout_ms": 20}]
        document = {"declaration": "agent-hooks-declaration/1.0", "bindings": bindings}
        layer = AgentHooksMiddleware(declaration=document, registry=registry)
    else:
        layer = AgentHooksMiddleware([Slow()], timeout=0.02)
    agent = payer([layer], [])
    with pytest.raises(InterceptionBlocked, match="interceptor_timeout"):
        await agent.reply("Pay.")
    points = [record.interception_point for record in layer.records(agent)]
    assert points == ["agent_startup", "agent_shutdown"]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_an_interceptor_may_wait(anyio_backend):
    class Waits(Policy):
        async def intercept(self, context):
            await anyio.lowlevel.checkpoint()
            return super().intercept(context)

    policy = Waits()
    await payer([AgentHooksMiddleware([policy])], []).reply("Pay.")
    assert policy.points()[-2:] == ["output", "agent_shutdown"]


async def test_a_sub_agent_inherits_and_has_a_session_of_its_own():
    runs = []
    policy = at("pre_tool_call", None)
    policy.decide = lambda point, context: (
        Verdict.deny(reason="no") if point == "pre_tool_call" and context["tool_call"]["name"] == "pay" else None
    )
    worker = payer([], runs)
    model = ScriptedChatModel([[ToolCallBlock("b1", "shop", '{"query": "Pay."}')], "Done."])
    boss = Agent("boss", model=model, tools=[worker.as_tool("Pays.")], middlewares=[AgentHooksMiddleware([policy])])
    await boss.reply("Pay.")
    assert runs == []
    sessions = {context["agent"]["id"]: context["session"]["id"] for context in policy.seen}
    assert sessions.keys() == {"boss", "shop"}
    assert sessions["boss"] != sessions["shop"]


async def test_an_input_is_kept_as_a_policy_leaves_it():
    layer = AgentHooksMiddleware([at("input", change("$target.content", "Pay ***."))])
    agent = payer([layer], [], script=["Done."])
    await agent.reply("Pay hunter2.")
    assert "hunter2" not in agent.state.model_dump_json()
    assert "Pay ***." in agent.state.model_dump_json()


async def test_a_request_is_sent_as_a_policy_leaves_it():
    decide = at("pre_model_call", change("$target[0].content", "Pay nothing."))
    agent = payer([AgentHooksMiddleware([decide])], [], script=["Done."])
    await agent.reply("Pay.")
    assert [message.get_text_content() for message in agent.model.calls[0].messages] == ["Pay nothing."]


async def test_a_changed_request_keeps_what_a_policy_does_not_see():
    history = [UserMsg("ann", "Pay hunter2."), AssistantMsg("shop", "Paid."), UserMsg("ann", "Pay.")]

    def sent(changed):
        return messages_from_wire(changed, messages_to_wire(history), history)

    wire = messages_to_wire(history)
    first, *others = sent([{**wire[0], "content": "Pay ***."}, *wire[1:]])
    assert (first.id, first.name, first.get_text_content()) == (history[0].id, "ann", "Pay ***.")
    assert others == history[1:]
    assert sent(wire[1:]) == history[1:]
    added, *others = sent([{"role": "user", "content": "Be quick."}, *wire])
    assert (added.role, added.get_text_content(), others) == ("user", "Be quick.", history)


async def texts(agent, text="Pay."):
    deltas = []
    async with agent.reply_stream(text) as events:
        async for event in events:
            if event.type == "TEXT_BLOCK_DELTA":
                deltas.append(event.delta)
    return deltas


def cleaned(point, context):
    if point != "post_model_call" or "hunter2" not in (context["response"]["content"] or ""):
        return None
    return change("$target.content", context["response"]["content"].replace("hunter2", "***"))


async def test_a_streamed_piece_leaves_as_a_policy_changes_it():
    runs = []
    agent = payer([AgentHooksMiddleware([Policy(cleaned)])], runs, script=[["a ", "hunter2", " b", CALL], "Done."])
    assert await texts(agent) == ["a ", "***", " b", "Done."]
    assert runs == [5]
    assert "hunter2" not in agent.state.model_dump_json()


async def test_what_has_left_cannot_be_changed():
    agent = payer([AgentHooksMiddleware([Policy(cleaned)])], [], script=[["hun", "ter2", " b"]])
    with pytest.raises(InterceptionBlocked, match="streaming_unsupported"):
        await texts(agent)
    assert "ter2" not in agent.state.model_dump_json()


async def test_thoughts_are_shown_to_a_policy_before_they_leave():
    policy = Policy(lambda point, context: Verdict.deny() if "bad" in str(context.get("response")) else None)
    pieces = [ChatResponse([ThinkingBlock(text)], is_last=False) for text in ("good ", "bad", " more")]
    agent = payer([AgentHooksMiddleware([policy])], [], script=[[*pieces, "Done."]])
    with pytest.raises(InterceptionBlocked):
        await agent.reply("Pay.")
    assert "bad" not in agent.state.model_dump_json()


async def test_a_change_without_a_form_here_is_a_denial():
    layer = AgentHooksMiddleware([at("post_model_call", change("$target.content", {"no": "text"}))])
    agent = payer([layer], [], script=["Done."], stream=False)
    with pytest.raises(InterceptionBlocked, match="adapter_unsupported"):
        await agent.reply("Pay.")


async def test_a_reader_that_leaves_ends_the_session():
    policy = Policy()
    agent = payer([AgentHooksMiddleware([policy])], [])
    async with agent.reply_stream("Pay.") as events:
        await anext(events)
    assert policy.seen[-1]["summary"] == {"reason": "cancelled"}


async def test_a_record_that_cannot_be_delivered_changes_no_verdict(caplog):
    def fails(record):
        raise OSError("full")

    agent = payer([AgentHooksMiddleware([Policy()], on_record=fails)], [])
    assert (await agent.reply("Pay.")).get_text_content() == "Done."
    assert "on_record" in caplog.text


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "agent_hooks", None)
    monkeypatch.delitem(sys.modules, "agentrt_middleware.agent_hooks.emitter", raising=False)
    monkeypatch.delattr("agentrt_middleware.agent_hooks.emitter", raising=False)
    with pytest.raises(MiddlewareConfigError, match=r"agentrt\[agent-hooks\]"):
        AgentHooksMiddleware([Policy()])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"interceptors": Policy()}, r"write AgentHooksMiddleware\(\[...\]\)"),
        ({"interceptors": [Policy]}, "has <class"),
        ({"interceptors": [print]}, r"intercept\(context\)"),
        ({"registry": HostRegistry()}, "give declaration"),
        ({"declaration": {}, "mode": "enforce"}, r"mode=...\) cannot stand beside a declaration"),
        ({"timeout": -1}, "timeout"),
        ({"on_record": 1}, "on_record"),
    ],
)
def test_wrong_options_are_refused(options, match):
    with pytest.raises(MiddlewareConfigError, match=match):
        AgentHooksMiddleware(**options)


def test_a_declaration_is_read_when_the_layer_is_made(tmp_path):
    file = tmp_path / "hooks.json"
    file.write_text(json.dumps({"declaration": "agent-hooks-declaration/1.0", "bindings": [], "extra": 1}))
    with pytest.raises(DeclarationError, match="extra"):
        AgentHooksMiddleware(declaration=file)


@pytest.mark.parametrize("is_buffered", [True, False])
async def test_a_declaration_says_whether_a_stream_is_judged_in_pieces(is_buffered):
    policy = Policy()
    surface = HostSurface.from_capabilities(["model_calls", "tool_calls", "host_declaration"])
    if not is_buffered:
        surface = surface.with_capabilities(["incremental_output"]).with_exposure_bound("one piece")
    registry = HostRegistry(surface).kind("com.example.policy", lambda config, context: policy)
    document = {
        "declaration": "agent-hooks-declaration/1.0",
        "surface": {"buffered_output": True}
        if is_buffered
        else {"buffered_output": False, "exposure_bound": "one piece"},
        "bindings": [{"id": "policy", "kind": "com.example.policy"}],
    }
    layer = AgentHooksMiddleware(declaration=document, registry=registry)
    await payer([layer], [], script=[["a ", "b ", "c"]]).reply("Pay.")
    assert policy.points().count("post_model_call") == (1 if is_buffered else 3)
