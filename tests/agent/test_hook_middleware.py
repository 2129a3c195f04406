"""Pre/post hooks: what runs, in which order, with what, and what its result does."""

import functools
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import anyio.to_thread
import pytest

from agentrt import Agent, AgentBase, AgentState, MiddlewareBase, Msg, Toolkit, UserMsg
from agentrt.agent import ReActAgentBase
from agentrt.compat.hook_middleware import (
    ActingHookMiddleware,
    ObserveHookMiddleware,
    PrintHookMiddleware,
    ReasoningHookMiddleware,
    ReplyHookMiddleware,
)
from agentrt.compat.hook_registry import registered_hooks
from agentrt.errors import AgentBusyError, HookError, MiddlewareConfigError
from agentrt.event import CustomEvent
from agentrt.message import AssistantMsg, TextBlock, ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, ToolResponse
from tests.loop.helpers import add, agent_of, call, confirmation_of, items_of, rebuilt
from tests.program_runner import ProgramRunner


class Echo(AgentBase):
    async def reply(self, msg):
        return msg

    async def observe(self, msg):
        self.heard = msg

    async def print(self, msg, last=True, speech=None):
        self.shown = msg


class Loud(Echo):
    async def reply(self, msg):
        answer = await super().reply(msg)
        return answer and user_msg(answer.content + "!")

    async def observe(self, msg):
        await super().observe(msg)

    async def print(self, msg, last=True, speech=None):
        await super().print(msg, last, speech)


@pytest.fixture(autouse=True)
def no_class_hook_stays() -> Iterator[None]:
    yield
    for cls in (AgentBase, ReActAgentBase, Agent, Echo, Loud, Stepwise, Thinker):
        cls.clear_class_hooks()


def user_msg(text: str) -> Msg:
    return UserMsg("user", text)


def mark_before(mark: str):
    """Return a pre hook that adds a mark to the message."""

    def hook(self, kwargs):
        return {**kwargs, "msg": user_msg(kwargs["msg"].get_text_content() + mark)}

    return hook


def mark_after(mark: str):
    def hook(self, kwargs, output):
        return user_msg(output.get_text_content() + mark)

    return hook


def note_with(notes: list[Any], note: Any):
    """Return a hook of either kind that leaves a note and changes nothing."""

    def hook(self, kwargs, output=None):
        notes.append(note)

    return hook


@pytest.fixture
def agent() -> Echo:
    return Echo()


def test_example_of_the_hook_guide_prints_what_the_guide_says(program_runner: ProgramRunner):
    program = """
        import asyncio
        from typing import Any
        from agentrt.agent import ReActAgentBase, AgentBase
        from agentrt.message import Msg

        class TestAgent(AgentBase):
            async def reply(self, msg: Msg) -> Msg:
                return msg

        def instance_pre_reply_hook(self: AgentBase, kwargs: dict[str, Any]) -> dict[str, Any]:
            msg = kwargs["msg"]
            msg.content += "[instance-pre-reply]"
            return {**kwargs, "msg": msg}

        def cls_pre_reply_hook(self: AgentBase, kwargs: dict[str, Any]) -> dict[str, Any]:
            msg = kwargs["msg"]
            msg.content += "[cls-pre-reply]"
            return {**kwargs, "msg": msg}

        TestAgent.register_class_hook(hook_type="pre_reply", hook_name="test_pre_reply", hook=cls_pre_reply_hook)
        agent = TestAgent()
        agent.register_instance_hook(hook_type="pre_reply", hook_name="test_pre_reply", hook=instance_pre_reply_hook)

        async def example_test_hook() -> None:
            msg = Msg(name="user", content="Hello, world!", role="user")
            res = await agent(msg)
            print("reply:", res.content)
            TestAgent.clear_class_hooks()
            print("then:", (await agent(msg)).content)

        asyncio.run(example_test_hook())
    """
    ran = program_runner.run(dedent(program))
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "reply: Hello, world![instance-pre-reply][cls-pre-reply]",
        "then: Hello, world![instance-pre-reply]",
    ]


async def test_instance_hooks_run_before_class_hooks_each_in_order(agent):
    Echo.register_class_hook("pre_reply", "a", mark_before("3"))
    agent.register_instance_hook("pre_reply", "a", mark_before("1"))
    Echo.register_class_hook("pre_reply", "b", mark_before("4"))
    agent.register_instance_hook("pre_reply", "b", mark_before("2"))
    assert (await agent(user_msg("0"))).content == "01234"


async def test_post_hooks_run_in_the_same_order(agent):
    Echo.register_class_hook("post_reply", "a", mark_after("3"))
    agent.register_instance_hook("post_reply", "a", mark_after("1"))
    agent.register_instance_hook("post_reply", "b", mark_after("2"))
    assert (await agent(user_msg("0"))).content == "0123"


async def test_registering_a_name_again_replaces_the_hook_in_place(agent):
    for name, mark in [("a", "1"), ("b", "2"), ("a", "3")]:
        agent.register_instance_hook("pre_reply", name, mark_before(mark))
        Echo.register_class_hook("pre_reply", name, mark_before(mark))
    assert (await agent(user_msg("0"))).content == "03232"


async def test_hook_removed_and_registered_again_runs_last(agent):
    hooks = {name: mark_before(name) for name in "ab"}
    for name, hook in hooks.items():
        agent.register_instance_hook("pre_reply", name, hook)
    assert (await agent(user_msg("0"))).content == "0ab"
    agent.remove_instance_hook("pre_reply", "a")
    agent.register_instance_hook("pre_reply", "a", hooks["a"])
    assert (await agent(user_msg("0"))).content == "0ba"


async def test_plain_and_async_functions_methods_and_objects_are_hooks(agent):
    class Marker:
        def __call__(self, agent, kwargs):
            return mark_before("object")(agent, kwargs)

        async def method(self, agent, kwargs):
            await anyio.lowlevel.checkpoint()
            return mark_before("method ")(agent, kwargs)

    async def function(self, kwargs):
        await anyio.lowlevel.checkpoint()
        return mark_before(" async ")(self, kwargs)

    def three(mark, self, kwargs):
        return mark_before(mark)(self, kwargs)

    for number, hook in enumerate([function, Marker().method, functools.partial(three, "partial "), Marker()]):
        agent.register_instance_hook("pre_reply", str(number), hook)
    assert (await agent(user_msg("an"))).content == "an async method partial object"


async def test_class_hook_runs_for_subclasses_not_parents_or_siblings():
    class Sibling(Echo):
        pass

    class Child(Loud):
        pass

    Loud.register_class_hook("pre_reply", "mark", mark_before("?"))
    assert (await Loud()(user_msg("a"))).content == "a?!"
    assert (await Child()(user_msg("a"))).content == "a?!"
    assert (await Echo()(user_msg("a"))).content == "a"
    assert (await Sibling()(user_msg("a"))).content == "a"
    assert registered_hooks(Echo()) == {}


async def test_hooks_of_a_class_run_before_those_of_its_parents():
    AgentBase.register_class_hook("pre_reply", "base", mark_before("3"))
    Echo.register_class_hook("pre_reply", "echo", mark_before("2"))
    Loud.register_class_hook("pre_reply", "loud", mark_before("1"))
    assert (await Loud()(user_msg("0"))).content == "0123!"


async def test_hook_of_a_class_replaces_the_parents_of_that_name():
    Echo.register_class_hook("pre_reply", "mark", mark_before("parent"))
    Loud.register_class_hook("pre_reply", "mark", mark_before("own"))
    assert (await Loud()(user_msg("a "))).content == "a own!"
    assert (await Echo()(user_msg("a "))).content == "a parent"
    Loud.remove_class_hook("pre_reply", "mark")
    assert (await Loud()(user_msg("a "))).content == "a parent!"


async def test_a_hook_of_one_type_shadows_no_hook_of_another_type():
    Echo.register_class_hook("post_reply", "mark", mark_after("after"))
    Loud.register_class_hook("pre_reply", "mark", mark_before("before"))
    assert (await Loud()(user_msg("a "))).content == "a before!after"


async def test_hooks_of_two_parents_are_inherited_in_mro_order():
    class Left(Echo):
        pass

    class Right(Echo):
        pass

    class Both(Left, Right):
        pass

    Right.register_class_hook("pre_reply", "right", mark_before("R"))
    Left.register_class_hook("pre_reply", "left", mark_before("L"))
    try:
        assert (await Both()(user_msg("_"))).content == "_LR"
    finally:
        Right.clear_class_hooks()
        Left.clear_class_hooks()


async def test_class_hook_reaches_existing_agents_and_conversations():
    notes: list[str] = []
    agent = agent_of(["one", "two", "three"])
    beside = agent.with_state(AgentState())
    await agent.reply("go")
    Agent.register_class_hook("pre_reply", "note", lambda self, kwargs: notes.append(self.name))
    await agent.reply("go")
    await beside.reply("go")
    assert notes == ["tester", "tester"]


async def test_removed_class_hook_is_gone_for_existing_agents():
    notes: list[int] = []
    AgentBase.register_class_hook("pre_reply", "note", note_with(notes, 1))
    agent, beside = agent_of(["one", "two"]), Echo()
    await agent.reply("go")
    await beside(user_msg("a"))
    AgentBase.remove_class_hook("pre_reply", "note")
    await agent.reply("go")
    await beside(user_msg("a"))
    assert notes == [1, 1]


async def test_changes_of_a_hook_count_only_if_it_returns_them(agent):
    def before(self, kwargs):
        kwargs["msg"].content = "changed"
        kwargs["msg"] = None

    def after(self, kwargs, output):
        kwargs.clear()
        output.content = "changed"

    agent.register_instance_hook("pre_reply", "change", before)
    agent.register_instance_hook("post_reply", "change", after)
    agent.register_instance_hook("post_reply", "mark", mark_after("!"))
    message = user_msg("as it was")
    assert (await agent(message)).content == "as it was!"
    assert message.content == "as it was"


async def test_the_last_result_that_is_not_none_counts(agent):
    for name, hook in [
        ("a", mark_before("1")),
        ("b", note_with([], 0)),
        ("c", mark_before("2")),
        ("d", note_with([], 0)),
    ]:
        agent.register_instance_hook("pre_reply", name, hook)
    agent.register_instance_hook("post_reply", "a", mark_after("3"))
    agent.register_instance_hook("post_reply", "b", note_with([], 0))
    assert (await agent(user_msg("0"))).content == "0123"


async def test_hooks_that_return_none_leave_the_same_message(agent):
    agent.register_instance_hook("pre_reply", "note", note_with([], 0))
    agent.register_instance_hook("post_reply", "note", note_with([], 0))
    message = user_msg("this one")
    assert await agent(message) is message


class Manifold(AgentBase):
    """Takes arguments of every kind, and says which."""

    async def reply(self, first, /, second, *args, third, fourth=4, **kwargs):
        return user_msg(repr((first, second, args, third, fourth, kwargs)))


async def test_pre_hook_gets_all_arguments_by_name_with_defaults():
    seen: list[Any] = []
    agent = Manifold()
    agent.register_instance_hook("pre_reply", "see", lambda self, kwargs: seen.append(kwargs))
    agent.register_instance_hook("post_reply", "see", lambda self, kwargs, output: seen.append(kwargs))
    answer = await agent(1, 2, "more", "and more", third=3, extra=5)
    assert answer.content == "(1, 2, ('more', 'and more'), 3, 4, {'extra': 5})"
    wanted = {"first": 1, "second": 2, "args": ("more", "and more"), "third": 3, "fourth": 4, "kwargs": {"extra": 5}}
    assert seen == [wanted, wanted]


async def test_changed_arguments_are_expanded_again():
    def change(self, kwargs):
        return {**kwargs, "first": "one", "args": [], "fourth": "four", "kwargs": {"other": 6}}

    agent = Manifold()
    agent.register_instance_hook("pre_reply", "change", change)
    answer = await agent(1, 2, "more", third=3, extra=5)
    assert answer.content == "('one', 2, (), 3, 'four', {'other': 6})"


async def test_arguments_that_do_not_fit_are_a_type_error_with_hint():
    notes: list[int] = []
    agent = Manifold()
    agent.register_instance_hook("pre_reply", "note", note_with(notes, 1))
    with pytest.raises(
        TypeError, match=r"Manifold\.reply\(\) takes \(first, second, \*args, third, fourth=4, \*\*kwarg"
    ):
        await agent(1, fourth=2)
    with pytest.raises(TypeError, match=r"arguments given: 3 positional"):
        await Echo().reply(1, 2, 3)
    assert notes == []


async def test_a_post_hook_sees_the_arguments_that_the_core_got(agent):
    seen = []
    agent.register_instance_hook("pre_reply", "mark", mark_before("!"))
    agent.register_instance_hook("post_reply", "see", lambda self, kwargs, output: seen.append(kwargs["msg"].content))
    await agent(user_msg("a"))
    assert seen == ["a!"]


async def test_value_that_cannot_be_copied_is_named_in_the_error(agent):
    agent.register_instance_hook("pre_reply", "note", note_with([], 0))
    with pytest.raises(HookError, match="the argument 'msg', a generator, cannot be copied"):
        await agent(number for number in ())


@pytest.mark.parametrize("result", [1, "text", [], user_msg("a")], ids=lambda result: type(result).__name__)
async def test_pre_hook_that_does_not_return_a_dict_is_named(result, agent):
    agent.register_instance_hook("pre_reply", "wrong", lambda self, kwargs: result)
    with pytest.raises(HookError, match="the pre_reply hook 'wrong' must return a dict or None"):
        await agent(user_msg("a"))
    with pytest.raises(AssertionError):
        await agent(user_msg("a"))


async def test_argument_that_the_core_does_not_have_is_refused(agent):
    agent.register_instance_hook("pre_reply", "wrong", lambda self, kwargs: {**kwargs, "mgs": user_msg("b")})
    with pytest.raises(HookError, match=r"pre_reply hook 'wrong' returned the argument 'mgs', .* it has msg"):
        await agent(user_msg("a"))


async def test_arguments_that_a_hook_leaves_out_keep_their_values():
    class Repeating(AgentBase):
        async def reply(self, msg, times=1):
            return user_msg(msg.content * times)

    agent, seen = Repeating(), []
    agent.register_instance_hook("pre_reply", "msg", lambda self, kwargs: {"msg": user_msg("b")})
    agent.register_instance_hook("post_reply", "see", lambda self, kwargs, output: seen.append(sorted(kwargs)))
    assert (await agent(user_msg("a"), times=2)).content == "bb"
    assert seen == [["msg", "times"]]


async def test_post_reply_hook_that_does_not_return_a_msg_is_refused(agent):
    agent.register_instance_hook("post_reply", "wrong", lambda self, kwargs, output: "no message")
    with pytest.raises(HookError, match="post_reply hook 'wrong' must return a Msg or None, not 'no message'"):
        await agent(user_msg("a"))


@pytest.mark.parametrize(
    ("hook_type", "wanted"),
    [("post_reply", "Msg"), ("post_reasoning", "Msg"), ("post_acting", "ToolResponse")],
)
async def test_post_hook_that_returns_a_wrong_type_is_named(hook_type, wanted):
    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add)
    agent.register_instance_hook(hook_type, "wrong", lambda self, kwargs, output: 3)
    with pytest.raises(HookError, match=f"the {hook_type} hook 'wrong' must return a {wanted} or None, not 3"):
        await agent.reply("go")


async def test_post_hook_may_give_an_answer_where_there_was_none(agent):
    seen = []

    def after(self, kwargs, output):
        seen.append(output)
        return user_msg("something")

    agent.register_instance_hook("post_reply", "say", after)
    assert (await agent(None)).content == "something"
    assert seen == [None]


async def test_overridden_reply_observe_and_print_fire_hooks_once():
    notes: list[str] = []
    agent = Loud()
    for hook_type in agent.supported_hook_types:
        agent.register_instance_hook(hook_type, "note", note_with(notes, hook_type))
    await agent(user_msg("a"))
    await agent.reply(user_msg("a"))
    assert notes == ["pre_reply", "post_reply"] * 2
    notes.clear()
    await agent.observe(user_msg("a"))
    await agent.print(user_msg("a"))
    assert notes == ["pre_observe", "post_observe", "pre_print", "post_print"]


class Stepwise(ReActAgentBase):
    async def reply(self, msg):
        thought = await self._reasoning(msg)
        return user_msg(await self._acting({"of": thought}))

    async def _reasoning(self, msg):
        return f"thought of {msg.content}"

    async def _acting(self, tool_call):
        return f"act {tool_call['of']}"


class Thinker(Stepwise):
    """Does the same by its parent's means."""

    async def _reasoning(self, msg):
        return f"deep {await super()._reasoning(msg)}"

    async def _acting(self, tool_call):
        return f"bold {await super()._acting(tool_call)}"


async def test_overridden_reasoning_and_acting_fire_hooks_once():
    notes: list[Any] = []
    agent = Thinker()
    for hook_type in ("pre_reasoning", "pre_acting"):
        agent.register_instance_hook(hook_type, "n", lambda self, kwargs: notes.append(list(kwargs)))
    for hook_type in ("post_reasoning", "post_acting"):
        agent.register_instance_hook(hook_type, "n", lambda self, kwargs, output: notes.append(output))
    answer = await agent(user_msg("a"))
    assert answer.content == "bold act deep thought of a"
    assert notes == [["msg"], "deep thought of a", ["tool_call"], "bold act deep thought of a"]


async def test_hooks_change_values_of_overridden_reasoning_and_acting():
    agent = Stepwise()
    agent.register_instance_hook("pre_reasoning", "h", lambda self, kwargs: {"msg": user_msg("b")})
    agent.register_instance_hook("post_reasoning", "h", lambda self, kwargs, output: output + "!")
    agent.register_instance_hook(
        "pre_acting", "h", lambda self, kwargs: {"tool_call": {"of": "late " + kwargs["tool_call"]["of"]}}
    )
    agent.register_instance_hook("post_acting", "h", lambda self, kwargs, output: output + "?")
    assert (await agent(user_msg("a"))).content == "act late thought of b!?"


async def test_reasoning_and_acting_fire_hooks_outside_of_a_reply():
    agent = Stepwise()
    agent.register_instance_hook("post_reasoning", "h", lambda self, kwargs, output: output + "!")
    agent.register_instance_hook("post_acting", "h", lambda self, kwargs, output: output + "?")
    assert await agent._reasoning(user_msg("a")) == "thought of a!"
    assert await agent._acting({"of": "a"}) == "act a?"


async def test_failing_core_fires_no_post_hooks_and_later_calls_do():
    notes: list[str] = []

    class Moody(AgentBase):
        async def reply(self, fails):
            if fails:
                raise LookupError("not now")
            return user_msg("fine")

    agent = Moody()
    agent.register_instance_hook("pre_reply", "note", note_with(notes, "pre"))
    agent.register_instance_hook("post_reply", "note", note_with(notes, "post"))
    with pytest.raises(LookupError, match="not now"):
        await agent(True)
    assert notes == ["pre"]
    await agent(False)
    assert notes == ["pre", "pre", "post"]


@pytest.mark.parametrize("hook_type", Agent.supported_hook_types)
async def test_an_error_of_a_hook_leaves_as_it_is(hook_type):
    def fail(self, kwargs, output=None):
        raise LookupError("in the hook")

    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add)
    agent.register_instance_hook(hook_type, "fail", fail)
    with pytest.raises(LookupError, match="in the hook") as caught:
        await (agent.observe(user_msg("a")) if hook_type.endswith("observe") else agent.reply("go"))
    assert caught.value.__notes__ == [f"agentrt: raised by the {hook_type} hook 'fail' of 'tester'"]
    assert agent.state.reply_context is None


async def test_hook_that_calls_its_own_core_gets_a_hook_error(agent):
    async def ask_again(self, kwargs):
        await self.reply(kwargs["msg"])

    agent.register_instance_hook("pre_reply", "again", ask_again)
    with pytest.raises(HookError, match="a hook of 'Echo' called reply, which it is a hook of"):
        await agent(user_msg("a"))
    agent.clear_instance_hooks()
    assert (await agent(user_msg("a"))).content == "a"


async def test_hook_that_asks_its_agent_to_reply_gets_busy_error():
    async def ask_again(self, kwargs):
        await self.reply(kwargs["msg"])

    agent = agent_of(["one"])
    agent.register_instance_hook("pre_reply", "again", ask_again)
    with pytest.raises(AgentBusyError):
        await agent.reply("go")


@pytest.mark.parametrize("core", ["observe", "print"])
async def test_hook_of_observe_or_print_that_calls_it_gets_an_error(core, agent):
    async def call_core(self, kwargs, output):
        await getattr(self, core)(user_msg("again"))

    agent.register_instance_hook(f"post_{core}", "again", call_core)
    with pytest.raises(HookError, match=f"called {core}"):
        await getattr(agent, core)(user_msg("a"))


async def test_a_hook_may_call_other_cores_and_other_agents():
    async def tell(self, kwargs, output):
        await self.print(output)
        await self.observe(output)
        await other.reply(output)

    other, agent = Echo(), Echo()
    other.register_instance_hook("post_reply", "tell", lambda self, kwargs, output: notes.append(output.content))
    agent.register_instance_hook("post_reply", "tell", tell)
    notes: list[str] = []
    await agent(user_msg("a"))
    assert (agent.shown.content, agent.heard.content, notes) == ("a", "a", ["a"])


@pytest.mark.parametrize("whose", ["instance", "class"])
async def test_hooks_are_removed_by_name_by_type_and_all_at_once(whose, agent):
    owner = agent if whose == "instance" else Echo
    register = getattr(owner, f"register_{whose}_hook")
    remove = getattr(owner, f"remove_{whose}_hook")
    clear = getattr(owner, f"clear_{whose}_hooks")
    for mark in "123":
        register("pre_reply", mark, mark_before(mark))
        register("post_reply", mark, mark_after(f"_{mark}"))
    remove("pre_reply", "2")
    assert (await agent(user_msg("0"))).content == "013_1_2_3"
    clear("post_reply")
    assert (await agent(user_msg("0"))).content == "013"
    clear()
    assert (await agent(user_msg("0"))).content == "0"
    clear()


@pytest.mark.parametrize("whose", ["instance", "class"])
def test_removing_an_unknown_hook_names_the_known_ones(whose, agent):
    owner = agent if whose == "instance" else Echo
    getattr(owner, f"register_{whose}_hook")("pre_reply", "there", mark_before(""))
    remove = getattr(owner, f"remove_{whose}_hook")
    with pytest.raises(ValueError, match="Echo has no pre_reply hook 'nope'; it has 'there'"):
        remove("pre_reply", "nope")
    with pytest.raises(ValueError, match="Echo has no post_reply hook 'there'; it has none"):
        remove("post_reply", "there")


def test_a_hook_is_removed_where_it_was_registered():
    Echo.register_class_hook("pre_reply", "mark", mark_before(""))
    with pytest.raises(ValueError, match="class Loud has no pre_reply hook"):
        Loud.remove_class_hook("pre_reply", "mark")
    Loud.clear_class_hooks()
    assert registered_hooks(Loud())
    with pytest.raises(ValueError, match="this Echo has no"):
        Echo().remove_instance_hook("pre_reply", "mark")


@pytest.mark.parametrize("whose", ["instance", "class"])
@pytest.mark.parametrize("hook_type", ["pre_thinking", "reply", "", None, "pre_reasoning", ["pre_reply"]])
def test_unknown_hook_type_is_the_same_error_everywhere(whose, hook_type):
    owner = Echo() if whose == "instance" else Echo
    hook = mark_before("")
    for attempt in (
        lambda: getattr(owner, f"register_{whose}_hook")(hook_type, "name", hook),
        lambda: getattr(owner, f"remove_{whose}_hook")(hook_type, "name"),
    ):
        with pytest.raises(HookError, match=r"Echo has no hook type .*; it has pre_reply, post_reply, pre_print"):
            attempt()
    if hook_type is not None:
        with pytest.raises(AssertionError):
            getattr(owner, f"clear_{whose}_hooks")(hook_type)


def test_react_agents_have_reasoning_and_acting_hooks():
    assert AgentBase.supported_hook_types == [
        *("pre_reply", "post_reply", "pre_print", "post_print", "pre_observe", "post_observe")
    ]
    assert set(Agent.supported_hook_types) - set(AgentBase.supported_hook_types) == {
        *("pre_reasoning", "post_reasoning", "pre_acting", "post_acting")
    }


def test_object_that_cannot_be_a_hook_is_refused_at_registration(agent):
    with pytest.raises(HookError, match=r"the pre_reply hook 'h' must take \(self, kwargs\), but it takes \(\)"):
        agent.register_instance_hook("pre_reply", "h", lambda: None)
    with pytest.raises(HookError, match=r"must take \(self, kwargs, output\), but it takes \(self, kwargs\)"):
        Echo.register_class_hook("post_reply", "h", lambda self, kwargs: None)
    with pytest.raises(HookError, match="must be a function, not 'text'"):
        agent.register_instance_hook("pre_reply", "h", "text")
    with pytest.raises(HookError, match="must be a str, not 3"):
        agent.register_instance_hook("pre_reply", 3, mark_before(""))


def test_instance_hook_on_a_class_names_register_class_hook():
    with pytest.raises(HookError, match="register_class_hook"):
        Echo.register_instance_hook(Echo, "pre_reply", "h", mark_before(""))


@pytest.mark.parametrize("target", [object(), "agent", None, Echo])
def test_instance_hook_on_another_object_is_a_type_error(target):
    for attempt in (
        lambda: AgentBase.register_instance_hook(target, "pre_reply", "h", mark_before("")),
        lambda: AgentBase.remove_instance_hook(target, "pre_reply", "h"),
        lambda: AgentBase.clear_instance_hooks(target),
    ):
        with pytest.raises(TypeError, match="instance hooks belong to an agent, not to"):
            attempt()
        with pytest.raises(HookError):
            attempt()


async def test_hook_registered_during_a_reply_runs_from_the_next_on():
    notes: list[str] = []

    class Learning(AgentBase):
        async def reply(self, msg):
            self.register_instance_hook("post_reply", "late", note_with(notes, "post"))
            type(self).register_class_hook("pre_print", "late", note_with(notes, "print"))
            await self.print(msg)
            return msg

        async def print(self, msg, last=True, speech=None):
            pass

    agent = Learning()
    try:
        await agent(user_msg("a"))
        assert notes == []
        await agent(user_msg("a"))
        assert notes == ["print", "post"]
    finally:
        Learning.clear_class_hooks()


async def test_hook_registered_while_the_loop_runs_waits_for_the_next():
    notes: list[str] = []

    async def learn() -> str:
        agent.register_instance_hook("post_acting", "late", note_with(notes, "acting"))
        Agent.register_class_hook("post_reply", "late", note_with(notes, "reply"))
        return "learnt"

    agent = agent_of([[call("1", "learn")], "done", [call("2", "learn")], "done"], learn)
    await agent.reply("go")
    assert notes == []
    await agent.reply("go")
    assert notes == ["acting", "reply"]


async def test_reply_keeps_the_hooks_it_began_with_when_removed(agent):
    notes: list[str] = []

    def remove(self, kwargs):
        self.clear_instance_hooks()

    agent.register_instance_hook("pre_reply", "remove", remove)
    agent.register_instance_hook("post_reply", "note", note_with(notes, "post"))
    await agent(user_msg("a"))
    await agent(user_msg("a"))
    assert notes == ["post"]


async def test_concurrent_replies_fire_their_own_hooks_each():
    fired: Counter[str] = Counter()
    both_are_in = anyio.Event()

    class Slow(AgentBase):
        inside = 0

        async def reply(self, msg):
            self.inside += 1
            if self.inside == 2:
                both_are_in.set()
            await both_are_in.wait()
            return msg

    def count(self, kwargs, output=None):
        fired[f"{'post' if output else 'pre'} {kwargs['msg'].content}"] += 1

    agent = Slow()
    agent.register_instance_hook("pre_reply", "count", count)
    agent.register_instance_hook("post_reply", "count", count)
    async with anyio.create_task_group() as group:
        group.start_soon(agent, user_msg("a"))
        group.start_soon(agent, user_msg("b"))
    assert fired == {"pre a": 1, "pre b": 1, "post a": 1, "post b": 1}


async def test_concurrent_tool_calls_fire_their_own_hooks_each():
    fired: list[str] = []
    agent = agent_of([[call(str(n), "add", a=n, b=n) for n in range(3)], "done"], add)
    agent.register_instance_hook("pre_acting", "c", lambda self, kwargs: fired.append(f"pre {kwargs['tool_call'].id}"))
    agent.register_instance_hook(
        "post_acting", "c", lambda self, kwargs, output: fired.append(f"post {kwargs['tool_call'].id}")
    )
    await agent.reply("go")
    assert sorted(fired) == ["post 0", "post 1", "post 2", "pre 0", "pre 1", "pre 2"]


async def test_reply_and_print_hooks_get_the_message_as_msg():
    seen: list[Any] = []
    agent = agent_of(["one two"])
    agent.register_instance_hook("pre_reply", "see", lambda self, kwargs: seen.append(kwargs))
    agent.register_instance_hook("pre_print", "see", lambda self, kwargs: seen.append(kwargs))
    await agent.reply("go")
    first, *printed = seen
    assert set(first) == {"msg", "structured_model"}
    assert first["msg"].get_text_content() == "go"
    assert [each["msg"].get_text_content() for each in printed] == ["one ", "one two", "one two"]
    assert [each["last"] for each in printed] == [False, False, True]


async def test_hooks_change_the_input_and_the_answer_of_an_agent():
    agent = agent_of(["answer"])
    agent.register_instance_hook("pre_reply", "mark", mark_before(" on"))
    agent.register_instance_hook("post_reply", "mark", mark_after("!"))
    assert (await agent(user_msg("go"))).content == "answer!"
    assert agent.model.calls[0].messages[-1].get_text_content() == "go on"


async def test_the_streamed_reply_has_the_hooks_too():
    agent = agent_of(["answer"])
    agent.register_instance_hook("post_reply", "mark", mark_after("!"))
    *_, answer = await items_of(agent)
    assert answer.content == "answer!"


async def test_post_acting_sees_call_and_result_and_may_replace_it():
    seen = []

    def after(self, kwargs, output):
        seen.append((kwargs["tool_call"], output))
        return ToolResponse([TextBlock("four")])

    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add)
    agent.register_instance_hook("post_acting", "after", after)
    await agent.reply("go")
    [(tool_call, response)] = seen
    assert isinstance(tool_call, ToolCallBlock)
    assert tool_call.name == "add"
    assert isinstance(response, ToolResponse)
    assert [block.text for block in response.content] == ["3"]
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert [block.text for block in result.output] == ["four"]


async def test_pre_acting_may_replace_the_call():
    def before(self, kwargs):
        return {"tool_call": call("1", "add", a=10, b=20)}

    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add)
    agent.register_instance_hook("pre_acting", "change", before)
    await agent.reply("go")
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert [block.text for block in result.output] == ["30"]


async def test_call_replaced_by_pre_acting_is_checked_anew():
    ran: list[int] = []

    async def drop(n: int) -> str:
        ran.append(n)
        return "dropped"

    agent = agent_of([[call("1", "add", a=1, b=2)], "done"] * 2, add, FunctionTool(drop, ask=True))
    agent.register_instance_hook("pre_acting", "h", lambda self, kwargs: {"tool_call": call("1", "add", a="x", b=2)})
    await agent.reply("go")
    [wrong] = agent.state.context[-1].get_content_blocks("tool_result")
    assert wrong.state == "error"
    agent.register_instance_hook("pre_acting", "h", lambda self, kwargs: {"tool_call": call("1", "drop", n=1)})
    await agent.reply("go")
    assert ran == []


async def test_post_reasoning_sees_the_rounds_message():
    seen: list[Msg] = []
    agent = agent_of([[TextBlock("let me see"), call("1", "add", a=1, b=2)], "it is three"], add)
    agent.register_instance_hook("post_reasoning", "see", lambda self, kwargs, output: seen.append(output))
    await agent.reply("go")
    first, second = seen
    assert first.get_text_content() == "let me see"
    assert [block.name for block in first.get_content_blocks("tool_call")] == ["add"]
    assert second.get_text_content() == "it is three"
    assert not second.has_content_blocks("tool_call")


def shout(self, kwargs, output):
    if output.has_content_blocks("tool_call"):
        return None
    return AssistantMsg(self.name, [TextBlock(output.get_text_content().upper())])


class EmitsAround(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        agent.run.emit(CustomEvent("before", None))
        async for item in next_handler():
            yield item
        agent.run.emit(CustomEvent("after", None))


@pytest.mark.parametrize("layers", [[], [EmitsAround]], ids=["alone", "with a layer that emits"])
async def test_answer_changed_by_post_reasoning_replaces_the_streamed(layers):
    script = [[TextBlock("let me see"), call("1", "add", a=1, b=2)], "it is three"]
    agent = agent_of(script, add, middlewares=[layer() for layer in layers])
    agent.register_instance_hook("post_reasoning", "shout", shout)
    *events, answer = await items_of(agent)
    assert answer.get_text_content() == "IT IS THREE"
    kept = agent.state.context[-1]
    assert rebuilt(events).content == kept.content
    assert [block.type for block in kept.content] == ["text", "tool_call", "tool_result", "text"]
    assert kept.content[-1].text == "IT IS THREE"


async def test_post_reasoning_may_drop_and_add_tool_calls():
    ran: list[int] = []

    async def note(n: int) -> str:
        ran.append(n)
        return "noted"

    def change(self, kwargs, output):
        if output.has_content_blocks("tool_call"):
            return AssistantMsg(self.name, [call("2", "note", n=2)])
        return None

    agent = agent_of([[call("1", "note", n=1)], "done"], note)
    agent.register_instance_hook("post_reasoning", "change", change)
    assert (await agent.reply("go")).get_text_content() == "done"
    assert ran == [2]


async def test_call_changed_by_post_reasoning_keeps_id_and_runs_once():
    def change(self, kwargs, output):
        for block in output.get_content_blocks("tool_call"):
            block.input = '{"a": 10, "b": 20}'
        return output

    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add)
    agent.register_instance_hook("post_reasoning", "change", change)
    *events, _ = await items_of(agent)
    kept = agent.state.context[-1]
    assert rebuilt(events).content == kept.content
    assert [(block.id, block.input) for block in kept.get_content_blocks("tool_call")] == [("1", '{"a": 10, "b": 20}')]
    assert [block.output[0].text for block in kept.get_content_blocks("tool_result")] == ["30"]


async def test_unchanged_message_of_post_reasoning_is_not_restreamed():
    agent = agent_of(["it is three"])
    agent.register_instance_hook("post_reasoning", "same", lambda self, kwargs, output: output)
    events = [event.type for event in (await items_of(agent))[:-1]]
    assert "MODEL_CALL_RETRY" not in events
    assert events.count("TEXT_BLOCK_START") == 1


async def test_pre_reasoning_sees_the_tool_choice():
    seen: list[Any] = []
    agent = agent_of(["done"])
    agent.register_instance_hook("pre_reasoning", "see", lambda self, kwargs: seen.append(kwargs))
    await agent.reply("go")
    assert [list(each) for each in seen] == [["tool_choice"]]


async def test_observe_hooks_change_the_observed_message():
    agent = agent_of([])
    agent.register_instance_hook("pre_observe", "mark", mark_before("!"))
    await agent.observe(user_msg("psst"))
    assert [each.get_text_content() for each in agent.state.context] == ["psst!"]


async def test_reply_hooks_run_again_for_a_confirmation():
    kinds: list[str] = []
    model = ScriptedChatModel([[call("1", "add", a=1, b=2)], "done"])
    agent = Agent("tester", model=model, toolkit=Toolkit(tools=[FunctionTool(add, ask=True)]))
    agent.register_instance_hook("pre_reply", "n", lambda self, kwargs: kinds.append(type(kwargs["msg"]).__name__))
    await agent.reply("go")
    answer = await agent.reply(confirmation_of(agent))
    assert answer.get_text_content() == "done"
    assert kinds == ["Msg", "UserConfirmResultEvent"]


async def test_a_hook_has_the_run_of_its_reply():
    seen = []

    def before(self, kwargs):
        self.run.scratch(before)["told"] = True
        self.run.emit(CustomEvent("from a hook", None))

    def after(self, kwargs, output):
        seen.append((self.run.id == self.reply_id, self.run.scratch(before)))

    for agent in (agent_of(["one"]), Echo()):
        agent.register_instance_hook("pre_reply", "before", before)
        agent.register_instance_hook("post_reply", "after", after)
        await agent(user_msg("go"))
    assert seen == [(True, {"told": True})] * 2
    agent = agent_of(["one"])
    agent.register_instance_hook("pre_reply", "before", before)
    assert "from a hook" in [getattr(each, "name", None) for each in await items_of(agent)]


async def test_conversations_share_hooks_at_first_and_then_diverge():
    notes: list[str] = []
    agent = agent_of(["one", "two", "three"])
    agent.register_instance_hook("pre_reply", "both", note_with(notes, "both"))
    beside = agent.with_state(AgentState())
    beside.register_instance_hook("pre_reply", "own", note_with(notes, "own"))
    await agent.reply("go")
    assert notes == ["both"]
    await beside.reply("go")
    assert notes == ["both", "both", "own"]


async def test_entry_is_the_core_again_after_the_last_hook_is_removed():
    agent = agent_of(["one", "two"])
    cores = {name: getattr(agent.chains, name) for name in Agent._cores}
    assert all(cores[name] is getattr(core, "plain", core) for name, core in Agent._cores.items())
    for hook_type in agent.supported_hook_types:
        agent.register_instance_hook(hook_type, "note", note_with([], 0))
    await agent.reply("go")
    assert agent.chains.on_print is not cores["on_print"]
    agent.clear_instance_hooks()
    await agent.reply("go")
    assert all(getattr(agent.chains, name) is core for name, core in cores.items())


def test_explain_shows_hook_layers_innermost():
    class Outside(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item

    agent = agent_of([], middlewares=[Outside()])
    agent.register_instance_hook("pre_reply", "note", note_with([], 0))
    page = agent.explain()
    assert page.index("1. Outside") < page.index("2. ReplyHookMiddleware") < page.index("core  ")
    agent.clear_instance_hooks()
    assert "HookMiddleware" not in agent.explain()


@pytest.mark.parametrize("place", ["innermost", "outermost"])
async def test_hooks_run_inside_of_a_middleware_of_any_position(place):
    order: list[str] = []

    class Layer(MiddlewareBase):
        position = place

        async def on_reply(self, agent, input_kwargs, next_handler):
            order.append("layer")
            async for item in next_handler():
                yield item

    agent = agent_of(["done"], middlewares=[Layer()])
    agent.register_instance_hook("pre_reply", "note", note_with(order, "hook"))
    await agent.reply("go")
    assert order == ["layer", "hook"]


KINDS = [ReplyHookMiddleware, ReasoningHookMiddleware, ActingHookMiddleware, ObserveHookMiddleware, PrintHookMiddleware]


async def test_hook_middleware_may_be_listed_by_the_user():
    order: list[str] = []
    layers = [
        kind({"a": note_with(order, f"pre {kind.core}")}, {"a": note_with(order, f"post {kind.core}")})
        for kind in KINDS
    ]
    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add, middlewares=layers)
    agent.register_instance_hook("pre_reply", "own", note_with(order, "registered"))
    await agent.reply("go")
    await agent.observe(user_msg("psst"))
    steps = [each for each in order if "print" not in each]
    rounds = ["pre reasoning", "post reasoning"]
    acting = ["pre acting", "post acting"]
    wanted = ["pre reply", "registered", *rounds, *acting, *rounds, "post reply", "pre observe", "post observe"]
    assert steps == wanted
    assert order.count("pre print") == order.count("post print") > 0


def test_hook_middleware_that_is_not_innermost_is_refused():
    class Inside(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item

    with pytest.raises(MiddlewareConfigError, match="must be innermost"):
        agent_of([], middlewares=[ReplyHookMiddleware(), Inside()])


def test_class_hooks_registered_in_several_threads_are_all_kept():
    def register(place: int) -> None:
        for n in range(60):
            Loud.register_class_hook("pre_reply", f"{place}.{n}", lambda self, kwargs: None)

    threads = [threading.Thread(target=register, args=(place,)) for place in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(registered_hooks(Loud())["pre_reply"]) == 240


async def test_class_hook_of_another_thread_runs_from_next_reply_on():
    notes: list[str] = []
    agent = Loud()
    await agent(user_msg("a"))
    await anyio.to_thread.run_sync(
        Loud.register_class_hook, "pre_reply", "note", lambda self, kwargs: notes.append("ran")
    )
    await agent(user_msg("b"))
    await anyio.to_thread.run_sync(Loud.remove_class_hook, "pre_reply", "note")
    await agent(user_msg("c"))
    assert notes == ["ran"]
