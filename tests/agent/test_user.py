"""A person among agents."""

import copy
import json
import pickle
import threading
from queue import SimpleQueue
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from pydantic import BaseModel, SecretStr

from agentrt._runtime.terminal.user_input import TerminalUserInput, UserInputBase, UserInputData
from agentrt.agent.base import AgentBase
from agentrt.agent.user import UserAgent
from agentrt.errors import InputEnded, InvalidInputError, UsageError
from agentrt.hooks import MiddlewareBase
from agentrt.message import AssistantMsg, ContentBlock, DataBlock, Msg, TextBlock, URLSource


class Says(UserInputBase):
    """Answers by itself, and remembers what it was asked."""

    def __init__(self, *blocks: ContentBlock, values: dict[str, Any] | None = None) -> None:
        self.data = UserInputData(list(blocks), values)
        self.asked: list[tuple[str, str, Any]] = []

    async def __call__(self, agent_id, agent_name, *args, structured_model=None, **kwargs):
        self.asked.append((agent_id, agent_name, structured_model))
        return self.data


class Never(UserInputBase):
    """Waits for ever, and says when it has begun to."""

    def __init__(self) -> None:
        self.begun = anyio.Event()

    async def __call__(self, agent_id, agent_name, *args, structured_model=None, **kwargs):
        self.begun.set()
        await anyio.sleep_forever()


def user_who(says: UserInputBase, cls: type[UserAgent] = UserAgent, **options: Any) -> UserAgent:
    user = cls("friday", **options)
    user.override_instance_input_method(says)
    user.disable_console_output()
    return user


def hello() -> str:
    return "hello\n"


async def kept(user: UserAgent) -> list[str | None]:
    return [msg.get_text_content() for msg in await user.memory.get_memory()]


@pytest.fixture(autouse=True)
def terminal_again(monkeypatch):
    monkeypatch.setattr(UserAgent, "_input_method", UserAgent._input_method)


async def test_a_line_is_a_message_from_the_user():
    user = user_who(TerminalUserInput(read_line=lambda: "hello\n", write=lambda _: None))
    msg = await user()
    assert (msg.name, msg.content, msg.role, msg.metadata) == ("friday", "hello", "user", {})


async def test_an_input_method_gets_the_agents_id_and_name():
    class Form(BaseModel):
        n: int

    says = Says(TextBlock("x"), values={"n": 1})
    user = user_who(says)
    msg = await user(None, structured_model=Form)
    assert says.asked == [(user.id, "friday", Form)]
    assert msg.metadata == {"n": 1}


async def test_the_metadata_are_the_messages_own():
    says = Says(TextBlock("x"), values={"n": 1})
    (await user_who(says)()).metadata["n"] = 2
    assert says.data.structured_input == {"n": 1}


IMAGE = DataBlock(URLSource("https://example.com/a.png", "image/png"))


@pytest.mark.parametrize(
    ("blocks", "content"),
    [
        ([], ""),
        ([TextBlock("one", "1")], "one"),
        ([IMAGE], [IMAGE]),
        ([TextBlock("one", "1"), TextBlock("two", "2")], [TextBlock("one", "1"), TextBlock("two", "2")]),
    ],
    ids=["none", "one text", "no text", "two"],
)
async def test_a_single_text_is_unwrapped_and_all_else_stays_blocks(blocks, content):
    assert (await user_who(Says(*blocks))()).content == content


async def test_an_answer_is_shown_on_the_terminal(capsys):
    user = user_who(Says(TextBlock("hello")))
    user.set_console_output_enabled(True)
    await user()
    assert "hello" in capsys.readouterr().out


async def test_the_memory_keeps_inputs_observations_and_answers():
    user = user_who(Says(TextBlock("mine")))
    told = AssistantMsg("bot", "told")
    await user.observe([AssistantMsg("bot", "observed"), AssistantMsg("bot", "too")])
    await user.observe(None)
    answer = await user(told)
    told.content = answer.content = "changed later"
    assert await kept(user) == ["observed", "too", "told", "mine"]


async def test_memory_is_saved_with_the_state_and_secrets_are_not():
    user = user_who(Says(TextBlock("mine"), values={"password": SecretStr("hunter2")}))
    answer = await user()
    assert answer.metadata["password"].get_secret_value() == "hunter2"
    saved = user.state_dict()
    assert "hunter2" not in str(saved)
    other = user_who(Says())
    other.load_state_dict(saved)
    assert await kept(other) == ["mine"]


class Pal(UserAgent):
    """A class that can be found when it is pickled."""


COPIES = [copy.copy, copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent))]


@pytest.mark.parametrize("copied", COPIES, ids=["copy", "deepcopy", "pickle"])
async def test_a_copy_asks_in_the_same_way_through_its_own_chains(copied):
    user = user_who(TerminalUserInput("> ", read_line=hello, write=str), Pal)
    await user.observe(AssistantMsg("bot", "told"))
    other = copied(user)
    assert (await other()).content == "hello"
    assert (await kept(other)) == ["told", "hello"]
    assert other.chains is not user.chains
    assert other.reply.__self__ is other


async def test_a_deep_copy_remembers_by_itself():
    user = user_who(Says(TextBlock("mine")))
    other = copy.deepcopy(user)
    await other()
    assert (await kept(user), await kept(other)) == ([], ["mine"])


async def test_a_state_is_loaded_into_another_user_agent():
    user, other = user_who(Says(TextBlock("one"))), user_who(Says(TextBlock("two")))
    await user(AssistantMsg("bot", "told"))
    other.load_state_dict(json.loads(json.dumps(user.state_dict())))
    await other()
    assert await kept(other) == ["told", "one", "two"]
    assert await kept(user) == ["told", "one"]
    assert other.state_dict()["memory"] != user.state_dict()["memory"]


def test_a_user_hides_nothing_of_an_agent_but_what_it_means_to():
    class Bare(AgentBase):
        async def reply(self) -> None: ...

        async def observe(self, msg: Any) -> None: ...

    own = {name for name in vars(UserAgent) if not name.startswith("__")}
    assert own & set(dir(AgentBase)) == {"handle_interrupt", "observe", "reply"}
    assert set(vars(UserAgent("friday"))) - set(vars(Bare())) == {"_own_input_method", "memory"}
    assert not {"_own_input_method", "memory"} & set(dir(AgentBase))


async def test_a_missing_super_init_of_a_user_agent_is_an_error():
    class Forgetful(UserAgent):
        def __init__(self) -> None: ...

    with pytest.raises(UsageError, match=r"Forgetful.__init__\(\) did not call super\(\)"):
        await Forgetful().observe(None)


async def test_layers_see_the_question_the_answer_and_the_printing():
    seen = []

    class Watch(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            seen.append(sorted(input_kwargs))
            async for item in next_handler(**input_kwargs):
                if isinstance(item, Msg):
                    seen.append(item.content)
                yield item

        async def on_print(self, agent, input_kwargs, next_handler):
            seen.append(("print", input_kwargs["msg"].content, input_kwargs["last"]))
            await next_handler(**input_kwargs)

        async def on_observe(self, agent, input_kwargs, next_handler):
            seen.append("observe")
            await next_handler(**input_kwargs)

    user = user_who(Says(TextBlock("x")), middlewares=[Watch()])
    await user(AssistantMsg("bot", "told"))
    await user.observe(None)
    assert seen == [["msg", "structured_model"], ("print", "x", True), "x", "observe"]


# Ways of asking


async def test_an_input_method_of_an_instance_is_its_own():
    UserAgent.override_class_input_method(Says(TextBlock("of the class")))
    mine = user_who(Says(TextBlock("of mine")))
    assert (await mine()).content == "of mine"
    assert (await UserAgent("other")()).content == "of the class"


async def test_an_input_method_of_a_class_applies_to_subclasses_only():
    class Parent(UserAgent): ...

    class Child(Parent): ...

    class Sibling(UserAgent): ...

    UserAgent.override_class_input_method(Says(TextBlock("root")))
    Parent.override_class_input_method(Says(TextBlock("parent")))
    said = [(await cls("friday")()).content for cls in (UserAgent, Parent, Child, Sibling)]
    assert said == ["root", "parent", "parent", "root"]
    Child.override_class_input_method(Says(TextBlock("child")))
    said = [(await cls("friday")()).content for cls in (UserAgent, Parent, Child, Sibling)]
    assert said == ["root", "parent", "child", "root"]


async def test_agents_that_were_there_before_follow_their_class():
    user = UserAgent("friday")
    UserAgent.override_class_input_method(Says(TextBlock("new")))
    assert (await user()).content == "new"


@pytest.mark.parametrize("wrong", [None, "terminal", TerminalUserInput, 7], ids=repr)
def test_what_is_not_an_input_method_is_refused_with_its_value(wrong):
    user = UserAgent("friday")
    for override in (user.override_instance_input_method, UserAgent.override_class_input_method):
        with pytest.raises(ValueError, match="subclass of UserInputBase") as caught:
            override(wrong)
        assert repr(wrong) in str(caught.value)


async def test_an_input_method_must_be_a_coroutine_function():
    class Plain(UserInputBase):
        def __call__(self, *args, **kwargs):  # type: ignore[override]
            return UserInputData([TextBlock("yes")])

    with pytest.raises(InvalidInputError, match=r"Plain.__call__\(\) must be a coroutine function: write `async def`"):
        await user_who(Plain())()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("hunter2", "must return a UserInputData, not one of type str"),
        (UserInputData("hunter2"), "must return a list of content blocks"),  # type: ignore[arg-type]
        (UserInputData([{"type": "text", "text": "hunter2"}]), "must return a list of content blocks"),  # type: ignore[list-item]
        (UserInputData([], ["hunter2"]), "must return a dict as structured_input, not one of type list"),  # type: ignore[arg-type]
    ],
    ids=["text", "text as blocks", "dict as block", "list as values"],
)
async def test_a_wrong_result_of_an_input_method_is_not_quoted(data, told):
    says = Says()
    says.data = data
    with pytest.raises(InvalidInputError, match=f"Says {told}") as caught:
        await user_who(says)()
    assert "hunter2" not in str(caught.value)


def test_the_terminal_is_asked_unless_something_else_is_set():
    assert isinstance(UserAgent._input_method, TerminalUserInput)


# Interrupting and leaving


async def test_an_interrupted_question_is_answered_by_a_message():
    never = Never()
    user = user_who(never)
    answers = []

    async def ask() -> None:
        answers.append(await user())

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await never.begun.wait()
        assert user.interrupt()
    [answer] = answers
    assert (answer.name, answer.role, answer.finished_reason) == ("friday", "user", "interrupted")
    assert answer.metadata == {"_is_interrupted": True}
    assert await kept(user) == [answer.content]


async def test_the_line_after_an_interrupted_question_answers_the_next():
    lines: SimpleQueue[str] = SimpleQueue()
    reading = threading.Event()

    def read_line() -> str:
        reading.set()
        return lines.get()

    user = user_who(TerminalUserInput(read_line=read_line, write=lambda _: None))
    answers = []

    async def ask() -> None:
        answers.append((await user()).content)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        while not reading.is_set():
            await checkpoint()
        user.interrupt()
    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        lines.put("for the second\n")
        lines.put("")
    assert answers == ["I was interrupted before I answered.", "for the second"]


async def test_the_callers_timeout_is_not_an_interruption():
    user = user_who(Never())
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.01):
            await user()
    assert await kept(user) == []


async def test_the_end_of_input_is_an_error_of_the_reply():
    user = user_who(TerminalUserInput(read_line=lambda: "", write=lambda _: None))
    with pytest.raises(InputEnded, match="there is nobody to ask"):
        await user()


async def test_two_users_at_one_terminal_are_asked_one_after_the_other():
    lines: SimpleQueue[str] = SimpleQueue()
    shown = []
    terminal = TerminalUserInput("> ", read_line=lines.get, write=shown.append)
    answers = {}

    async def ask(name: str) -> None:
        user = user_who(terminal)
        answers[name] = (await user()).content

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "a")
        group.start_soon(ask, "b")
        await anyio.wait_all_tasks_blocked()
        assert shown == ["> "]
        lines.put("one\n")
        lines.put("two\n")
    assert shown == ["> ", "> "]
    assert sorted(answers.values()) == ["one", "two"]
