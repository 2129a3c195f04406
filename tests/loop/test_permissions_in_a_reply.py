"""Permissions while a reply runs: layers that decide, calls that layers replace, and that nothing runs undecided."""

from collections import Counter
from dataclasses import replace
from typing import Annotated, Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, StringConstraints

from agentrt import Agent, AgentState, MiddlewareBase
from agentrt.errors import ChainContractError
from agentrt.event import CustomEvent
from agentrt.message import ToolResultState
from agentrt.permission import (
    PermissionBehavior,
    PermissionContext,
    PermissionDecision,
    PermissionMode,
    PermissionRule,
    digest,
)
from agentrt.tool import FunctionTool, ToolBase
from agentrt.tool.arguments import parse_arguments
from tests.loop.helpers import agent_of, call, elsewhere, short
from tests.loop.parked import Answering, Log, PathTool, asked, confirm, done, edited, results_of, yes

ALLOW, ASK, DENY, PASSTHROUGH = (PermissionBehavior(each) for each in ("allow", "ask", "deny", "passthrough"))
SAYS = {each: PermissionDecision(each, "a layer says so") for each in PermissionBehavior}


def with_layers(log: Log, *layers: MiddlewareBase, ask: bool = True, **permissions: Any) -> Agent:
    state = AgentState(permission_context=PermissionContext(**permissions))
    tools = PathTool("rm", log, ask=ask), PathTool("ls", log), PathTool("scan", log, is_external_tool=True)
    return agent_of([[call("1", "rm", path="/a")], "done"], *tools, middlewares=list(layers), state=state)


async def state_of_the_call(agent: Agent) -> ToolResultState | None:
    """Return how the call ended, `None` when somebody is asked about it."""
    await agent.reply("go")
    return None if agent.state.reply_context is not None else results_of(agent)["1"].state


@pytest.mark.parametrize(
    ("says", "ask", "rule", "ends"),
    [
        (ALLOW, True, None, ToolResultState.SUCCESS),
        (ALLOW, True, DENY, ToolResultState.DENIED),
        (ALLOW, False, None, ToolResultState.SUCCESS),
        (ASK, False, None, None),
        (ASK, False, DENY, ToolResultState.DENIED),
        (DENY, False, None, ToolResultState.DENIED),
        (DENY, True, ALLOW, ToolResultState.DENIED),
        (PASSTHROUGH, False, None, ToolResultState.SUCCESS),
        (PASSTHROUGH, True, None, None),
        (PASSTHROUGH, False, DENY, ToolResultState.DENIED),
    ],
)
async def test_of_a_layer_and_the_engine_the_stricter_one_counts(says, ask, rule, ends):
    log: Log = []
    rules = [PermissionRule("rm", None, rule)] if rule else []
    agent = with_layers(log, Answering(lambda **_: SAYS[says]), ask=ask, rules=rules)
    assert await state_of_the_call(agent) is ends
    assert len(log) == (ends is ToolResultState.SUCCESS)


async def test_a_layer_cannot_answer_a_question_that_is_immune():
    class Immune(PathTool):
        """Asks whatever anybody says."""

        def check_permissions(self, tool_input, context):
            return PermissionDecision(ASK, "dangerous", bypass_immune=True)

    log: Log = []
    calls = [call("1", "rm", path="/a"), call("2", "rm", path="/a")]
    agent = agent_of(
        [calls, "done"],
        Immune("rm", log),
        middlewares=[Answering(lambda **_: SAYS[ALLOW])],
        state=AgentState(permission_context=PermissionContext(allow_new_rules=True)),
    )
    await agent.reply("go")
    assert asked(agent) == ["1", "2"]
    assert log == []
    await agent.reply(yes(agent))
    assert len(log) == 2


async def test_a_question_that_is_immune_is_never_left_to_a_rule():
    suggestion = [PermissionRule("rm", "*", ALLOW)]
    immune = PermissionDecision(ASK, "dangerous", suggested_rules=suggestion, bypass_immune=True)
    log: Log = []
    calls = [call(str(number), "rm", path="/a") for number in (1, 2)]
    for says, questions in ((immune, ["1", "2"]), (replace(immune, bypass_immune=False), ["1"])):
        agent = agent_of(
            [calls, "done"],
            PathTool("rm", log),
            middlewares=[Answering(lambda says=says, **_: says)],
            state=AgentState(permission_context=PermissionContext(allow_new_rules=True)),
        )
        await agent.reply("go")
        assert asked(agent) == questions
    assert log == []


class Place(BaseModel):
    folder: str = "/etc"


async def remove(
    path: Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)] = "/etc", place: Place | None = None
) -> str:
    return f"{path} is gone"


class Removal(ToolBase):
    name = "remove"

    async def call(self, path: Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True)] = "/etc") -> str:
        return f"{path} is gone"


async def remove_by_alias(
    other: Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True), Field(alias="path")] = "/etc",
) -> str:
    return f"{other} is gone"


WRITTEN = {"as it is": {"path": "/etc"}, "to be converted": {"path": " /ETC "}, "left out": {}}


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize(
    ("tool", "content"),
    [
        (remove, '*"path":"/etc"*'),
        (Removal(), "/etc"),
        (FunctionTool(remove_by_alias, name="remove"), "/etc"),
    ],
    ids=["two", "one", "alias"],
)
async def test_rules_see_the_arguments_that_the_tool_will_get(tool, content, written):
    for behavior, ends in ((DENY, ToolResultState.DENIED), (ASK, None)):
        rules = PermissionContext(rules=[PermissionRule("remove", content, behavior)])
        agent = agent_of([[call("1", "remove", **written)], "done"], tool, state=AgentState(permission_context=rules))
        assert await state_of_the_call(agent) is ends


async def test_rules_see_the_defaults_inside_of_an_argument():
    rules = PermissionContext(rules=[PermissionRule("remove", '*"folder":"/etc"*', DENY)])
    written = call("1", "remove", path="/a", place={})
    agent = agent_of([[written], "done"], remove, state=AgentState(permission_context=rules))
    assert await state_of_the_call(agent) is ToolResultState.DENIED


class RemovalElsewhere(ToolBase):
    name = "remove"
    is_external_tool = True
    input_schema = {"type": "object", "properties": {"path": {"type": "string", "default": "/etc"}}}  # noqa: RUF012


class RemovalByServer(RemovalElsewhere):
    is_external_tool = False

    async def call(self, **arguments: Any) -> str:
        return "the server fills in the default"


@pytest.mark.parametrize("tool", [RemovalElsewhere(), RemovalByServer()], ids=["elsewhere", "server"])
async def test_rules_see_the_defaults_of_a_schema_written_by_hand(tool):
    rules = PermissionContext(rules=[PermissionRule("remove", "/etc", DENY)])
    agent = agent_of([[call("1", "remove")], "done"], tool, state=AgentState(permission_context=rules))
    assert await state_of_the_call(agent) is ToolResultState.DENIED


async def test_rules_see_what_the_model_wrote_as_well():
    for behavior, ends in ((DENY, ToolResultState.DENIED), (ASK, None)):
        rules = PermissionContext(rules=[PermissionRule("remove", "*ETC*", behavior)])
        written = call("1", "remove", path=" /ETC ")
        agent = agent_of([[written], "done"], Removal(), state=AgentState(permission_context=rules))
        assert await state_of_the_call(agent) is ends


@pytest.mark.parametrize(
    ("contents", "ends"),
    [
        (["/a"], None),
        ([" /A "], None),
        (["/a", " /A "], ToolResultState.SUCCESS),
        (["*"], ToolResultState.SUCCESS),
    ],
)
async def test_an_allow_rule_must_cover_both_forms(contents, ends):
    class Asking(Removal):
        ask = True

    rules = PermissionContext(rules=[PermissionRule("remove", content, ALLOW) for content in contents])
    written = call("1", "remove", path=" /A ")
    agent = agent_of([[written], "done"], Asking(), state=AgentState(permission_context=rules))
    assert await state_of_the_call(agent) is ends


async def test_the_rules_that_are_suggested_allow_the_same_call_later():
    class Asking(Removal):
        ask = True

    written = [call("1", "remove", path=" /A "), call("2", "remove", path=" /A ")]
    state = AgentState(permission_context=PermissionContext(allow_new_rules=True))
    agent = agent_of([[written[0]], [written[1]], "done"], Asking(), state=state)
    await agent.reply("go")
    rules = agent.state.reply_context.decisions["1"].suggested_rules
    assert [rule.rule_content for rule in rules] == [" /A ", "/a"]
    assert (await agent.reply(yes(agent, rules=rules))).get_text_content() == "done"


async def test_layers_get_copies_and_what_they_change_never_runs():
    log: Log = []

    class Spoil(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            said = await next_handler()
            input_kwargs["tool_call"].input = '{"path": "/etc"}'
            input_kwargs["tool_call"].name = "ls"
            input_kwargs["tool_input"]["path"] = "/etc"
            return said

    agent = with_layers(log, Spoil(), ask=False)
    assert await state_of_the_call(agent) is ToolResultState.SUCCESS
    assert log == [("rm", "/a")]
    kept = agent.state.context[-1].get_content_blocks("tool_call")[0]
    assert (kept.name, kept.input) == ("rm", '{"path": "/a"}')


async def test_what_a_layer_replaces_is_decided_on_but_does_not_run():
    log: Log = []
    seen: list[tuple[str, Any, str]] = []

    class Outer(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            other = replace(input_kwargs["tool_call"], input='{"path": "/etc"}')
            return await next_handler(tool_call=other, tool_input={"path": "/etc"})

    def note(tool_call, tool, tool_input):
        seen.append((tool.name, tool_input, tool_call.input))

    agent = with_layers(log, Outer(), Answering(note), ask=False, rules=[PermissionRule("rm", "/etc", DENY)])
    assert await state_of_the_call(agent) is ToolResultState.DENIED
    assert seen == [("rm", {"path": "/etc"}, '{"path": "/etc"}')]
    agent = with_layers(log, Outer(), ask=False, rules=[PermissionRule("rm", "/a", DENY)])
    assert await state_of_the_call(agent) is ToolResultState.DENIED
    agent = with_layers(log, Outer(), ask=False)
    assert await state_of_the_call(agent) is ToolResultState.SUCCESS
    assert log == [("rm", "/a")]


async def test_a_call_that_a_layer_changes_is_decided_on_anew():
    class Change(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            input_kwargs["tool_input"]["path"] = "/etc"
            return await next_handler()

    log: Log = []
    rules = [PermissionRule("rm", "/etc", DENY)]
    assert await state_of_the_call(with_layers(log, Change(), ask=False, rules=rules)) is ToolResultState.DENIED
    assert log == []


@pytest.mark.parametrize("says", [ASK, DENY])
async def test_a_confirmed_call_passes_through_the_layers_again(says):
    log: Log = []
    times: list[int] = []

    def decide(**_):
        times.append(1)
        return SAYS[says] if len(times) > 1 else SAYS[ASK]

    agent = with_layers(log, Answering(decide), ask=False)
    await agent.reply("go")
    await agent.reply(yes(agent))
    assert len(times) == 2
    ends = {ASK: ToolResultState.SUCCESS, DENY: ToolResultState.DENIED}[says]
    assert results_of(agent)["1"].state is ends
    assert len(log) == (says is ASK)


async def test_a_denied_call_is_not_decided_again():
    times: list[int] = []

    def decide(**_):
        times.append(1)
        return SAYS[ALLOW] if len(times) > 1 else SAYS[ASK]

    log: Log = []
    agent = with_layers(log, Answering(decide), ask=False)
    await agent.reply("go")
    await agent.reply(confirm(agent, False))
    assert results_of(agent)["1"].state is ToolResultState.DENIED
    assert log == []


async def test_an_error_of_a_layer_names_it_and_no_tool_runs():
    class Broken(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            raise LookupError("no such user")

    log: Log = []
    agent = with_layers(log, Broken(), ask=False)
    with pytest.raises(LookupError, match="no such user") as caught:
        await agent.reply("go")
    assert any("Broken" in note and "on_check_permission" in note for note in caught.value.__notes__)
    assert log == []
    assert results_of(agent)["1"].state is ToolResultState.INTERRUPTED


async def test_a_layer_that_decides_nothing_is_no_yes():
    class Silent(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            return True

    log: Log = []
    with pytest.raises(ChainContractError, match="on_check_permission"):
        await with_layers(log, Silent(), ask=False).reply("go")
    assert log == []


async def test_an_event_of_a_layer_that_waits_is_seen_while_it_waits():
    seen = anyio.Event()

    class AskElsewhere(MiddlewareBase):
        emits = True

        async def on_check_permission(self, agent, input_kwargs, next_handler):
            agent.run.emit(CustomEvent("asked elsewhere", input_kwargs["tool_input"]))
            await seen.wait()
            return SAYS[ALLOW]

    log: Log = []
    names = []
    async with with_layers(log, AskElsewhere()).reply_stream("go") as stream:
        async for event in stream:
            names.append(short(event))
            if isinstance(event, CustomEvent):
                assert log == []
                seen.set()
    assert names.index("asked elsewhere") < names.index("RESULT_START:1")
    assert log == [("rm", "/a")]


class Swap(MiddlewareBase):
    """A layer of on_acting that puts another call in the place of the one that was decided on."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    async def on_acting(self, agent, input_kwargs, next_handler):
        other = replace(input_kwargs["tool_call"], name=self.name, input=self.text)
        async for item in next_handler(tool_call=other):
            yield item


@pytest.mark.parametrize(
    ("name", "text", "ends", "words"),
    [
        ("ls", '{"path": "/b"}', ToolResultState.SUCCESS, "ls /b"),
        ("ls", '{"path": "/etc"}', ToolResultState.DENIED, "not permitted"),
        ("ls", '{"path": 1}', ToolResultState.ERROR, "ls was not run"),
        ("nothing", "{}", ToolResultState.ERROR, "nothing"),
        ("rm", '{"path": "/b"}', ToolResultState.DENIED, "the user can no longer be asked about it"),
        ("scan", '{"path": "/b"}', ToolResultState.DENIED, "the user can no longer be asked about it"),
        ("rm", '{"path": "/a"}', ToolResultState.SUCCESS, "rm /a"),
    ],
)
async def test_a_replaced_call_is_checked_and_decided_on_again(name, text, ends, words):
    log: Log = []
    agent = with_layers(log, Swap(name, text), rules=[PermissionRule("ls", "/etc", DENY)])
    await agent.reply("go")
    assert asked(agent) == ["1"]
    await agent.reply(yes(agent))
    result = results_of(agent)["1"]
    assert result.state is ends
    assert words in result.output[0].text
    assert log == ([(name, parse_arguments(text)["path"])] if ends is ToolResultState.SUCCESS else [])


async def test_permission_layers_decide_on_a_replaced_call_too():
    log: Log = []
    agent = with_layers(
        log,
        Swap("ls", '{"path": "/b"}'),
        Answering(lambda tool, **_: SAYS[DENY] if tool.name == "ls" else None),
        ask=False,
    )
    assert await state_of_the_call(agent) is ToolResultState.DENIED
    assert log == []


@pytest.mark.parametrize("mode", PermissionMode)
async def test_the_mode_of_the_conversation_holds_in_a_reply(mode):
    log: Log = []
    ends = {
        PermissionMode.DEFAULT: None,
        PermissionMode.ACCEPT_EDITS: None,
        PermissionMode.EXPLORE: ToolResultState.DENIED,
        PermissionMode.BYPASS: ToolResultState.SUCCESS,
        PermissionMode.DONT_ASK: ToolResultState.DENIED,
    }
    assert await state_of_the_call(with_layers(log, mode=mode)) is ends[mode]
    asks = Answering(lambda **_: SAYS[ASK])
    ends[PermissionMode.BYPASS] = None
    assert await state_of_the_call(with_layers(log, asks, mode=mode)) is ends[mode]
    assert len(log) == (mode is PermissionMode.BYPASS)


async def test_what_was_decided_on_each_call_is_on_record():
    log: Log = []
    agent = with_layers(log, rules=[PermissionRule("rm", "/etc", DENY, "admin")])
    await agent.reply("go")
    await agent.reply(yes(agent))
    decision = agent.state.last_reply.decisions["1"]
    assert (decision.behavior, decision.by, decision.digest) == (ALLOW, "user", digest("rm", '{"path": "/a"}'))


PATHS = st.sampled_from(["/a", "/b", "/etc"])
RULES = st.builds(
    PermissionRule,
    st.sampled_from(["rm", "ls", "scan", "*"]),
    st.sampled_from([None, "/a", "/*", "/etc"]),
    st.sampled_from([ALLOW, ASK, DENY]),
)
CALLS = st.lists(st.tuples(st.sampled_from(["rm", "ls", "scan", "both"]), PATHS), min_size=1, max_size=4)
ANSWERS = st.lists(
    st.tuples(st.booleans(), st.sampled_from([None, "/b", "/etc"]), st.booleans()), min_size=12, max_size=12
)


async def answered(agent: Agent, answers: Any) -> Agent:
    """Answer every question of the reply, one at a time, each time in another process."""
    await agent.reply("go")
    while agent.state.reply_context is not None:
        agent = elsewhere(agent)
        confirmed, path, with_rule = next(answers)
        if not asked(agent):
            await agent.reply(done(agent))
            continue
        first = asked(agent)[0]
        if path is not None and confirmed:
            answer = edited(agent, **{first: f'{{"path": "{path}"}}'})
        else:
            answer = confirm(agent, confirmed, first)
        if with_rule and confirmed:
            asked_about = answer.confirm_results[0]
            asked_about.rules = list(agent.state.reply_context.decisions[first].suggested_rules)
        await agent.reply(answer)
    return agent


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(
    calls=CALLS,
    rules=st.lists(RULES, max_size=3),
    mode=st.sampled_from(PermissionMode),
    answers=ANSWERS,
    layers=st.lists(st.sampled_from([None, *PermissionBehavior]), min_size=2, max_size=2),
    safe=st.booleans(),
)
@settings(max_examples=60)
def test_no_tool_runs_without_approval_of_exactly_that_input(backend, calls, rules, mode, answers, layers, safe):
    log: Log = []
    tools = [
        PathTool("rm", log, ask=True, is_concurrency_safe=safe),
        PathTool("ls", log),
        PathTool("scan", log, is_external_tool=True),
        PathTool("both", log, ask=True, is_external_tool=True),
    ]
    answering = [Answering(lambda says=each, **_: None if says is None else SAYS[says]) for each in layers]
    written = [call(str(number), name, path=path) for number, (name, path) in enumerate(calls, 1)]
    permissions = PermissionContext(mode, list(rules), allow_edited_input=True, allow_new_rules=True)
    agent = agent_of([written, "done"], *tools, middlewares=answering, state=AgentState(permission_context=permissions))
    agent = anyio.run(answered, agent, iter(answers), backend=backend)
    kept = agent.state.context[-1].get_content_blocks("tool_call")
    decisions, results = agent.state.last_reply.decisions, results_of(agent)
    assert set(results) == {each.id for each in kept}
    allowed = [each for each in kept if decisions[each.id].behavior is ALLOW]
    ran = [(each.name, parse_arguments(each.input)["path"]) for each in allowed if each.name in ("rm", "ls")]
    assert Counter(log) == Counter(ran)
    for each in kept:
        decision = decisions[each.id]
        assert decision.waits_for is None
        assert (results[each.id].state is ToolResultState.SUCCESS) == (decision.behavior is ALLOW)
        if decision.by == "user" and decision.behavior is ALLOW:
            assert decision.digest == digest(each.name, each.input)
    denied = [rule for rule in agent.state.permission_context.rules if rule.behavior is DENY]
    for name, path in log:
        assert not any(rule.tool_name in (name, "*") and rule.rule_content in (None, path, "/*") for rule in denied)


async def test_layers_decide_on_the_arguments_that_the_tool_gets():
    """Converted, and with defaults filled in: what is decided on is what runs."""
    seen: list[object] = []

    class Watch(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            seen.append(input_kwargs["tool_input"])
            input_kwargs["tool_input"]["to"].append("everybody")
            return await next_handler()

    async def send(to: list[str], limit: float = 5) -> str:
        return f"{to} {limit}"

    agent = agent_of([[call("1", "send", to=["bob"])], "done"], send, middlewares=[Watch()])
    await agent.reply("go")
    assert seen == [{"to": ["bob", "everybody"], "limit": 5}]
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].output[0].text == "['bob'] 5"
