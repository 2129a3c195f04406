"""Random classes, hooks and moments, held against a plain account of which hooks run."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import AgentBase, Msg, UserMsg

NAMES = ("a", "b", "c")
TYPES = ("pre_reply", "post_reply")


@dataclass
class Tree:
    """Classes, each with its parents by number and whether it overrides `reply`."""

    parents: list[int]
    overrides: list[bool]
    classes: list[type[AgentBase]] = field(default_factory=list)

    def build(self) -> None:
        for number, (parent, overrides) in enumerate(zip(self.parents, self.overrides, strict=True)):
            base = self.classes[parent] if number else AgentBase
            body = {} if number and not overrides else {"reply": self.reply_of(number)}
            self.classes.append(type(f"Class{number}", (base,), body))

    def reply_of(self, number: int) -> Any:
        async def reply(agent, msg):
            agent.at_moment()
            if not number:
                return UserMsg("user", f"{msg.content}|")
            answer = await super(self.classes[number], agent).reply(msg)
            return UserMsg("user", f"{answer.content}<{number}>")

        return reply

    def line(self, number: int) -> list[int]:
        """Return the class and its parents, nearest first."""
        return [number] if not number else [number, *self.line(self.parents[number])]

    def spoken(self, number: int) -> str:
        """Return what the plain methods add to the message."""
        own = f"<{number}>" if number and self.overrides[number] else ""
        return f"{self.spoken(self.parents[number])}{own}" if number else "|"


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    size = draw(st.integers(2, 4))
    parents = [0] + [draw(st.integers(0, number - 1)) for number in range(1, size)]
    return Tree(parents, [True] + [draw(st.booleans()) for _ in range(1, size)])


@dataclass(frozen=True)
class Change:
    """One registration or removal; `owner` is a class where `whose` is "class", else an agent."""

    whose: str
    what: str
    owner: int
    hook_type: str
    name: str
    variant: int

    @property
    def mark(self) -> str:
        return f"({self.whose[0]}{self.owner}{self.name}{self.variant})"


changes = st.builds(
    Change,
    st.sampled_from(["class", "instance"]),
    st.sampled_from(["register"] * 4 + ["remove", "move to the end", "move to the end", "clear", "clear all"]),
    st.integers(0, 3),
    st.sampled_from(TYPES),
    st.sampled_from(NAMES),
    st.integers(0, 2),
)
# A reply of one agent, and the changes that are made while it runs.
replies = st.tuples(st.integers(0, 3), st.lists(changes, max_size=2))
programs = st.lists(st.one_of(changes, replies), min_size=2, max_size=20)


@cache  # so that a hook may come back as the very same function
def marking(mark: str, hook_type: str, is_async: bool) -> Any:
    def before(agent, kwargs):
        return {"msg": UserMsg("user", kwargs["msg"].content + mark)}

    def after(agent, kwargs, output):
        return UserMsg("user", output.content + mark)

    async def before_async(agent, kwargs):
        await anyio.lowlevel.checkpoint()
        return before(agent, kwargs)

    async def after_async(agent, kwargs, output):
        return after(agent, kwargs, output)

    if hook_type == "pre_reply":
        return before_async if is_async else before
    return after_async if is_async else after


class Account:
    """The plain account: who has which marks, by type and name, in the order of registration."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.marks: dict[tuple[str, int, str], dict[str, str]] = {}

    def apply(self, change: Change) -> bool:
        """Make the change; says whether it is one that is allowed."""
        hooks = self.marks.setdefault((change.whose, change.owner, change.hook_type), {})
        if change.what == "register":
            hooks[change.name] = change.mark
        elif change.what in ("remove", "move to the end"):
            mark = hooks.pop(change.name, None)
            if mark is not None and change.what != "remove":
                hooks[change.name] = mark
            return mark is not None
        elif change.what == "clear":
            hooks.clear()
        else:
            for hook_type in TYPES:
                self.marks[change.whose, change.owner, hook_type] = {}
        return True

    def marks_of(self, number: int, hook_type: str) -> str:
        found = list(self.marks.get(("instance", number, hook_type), {}).values())
        taken: set[str] = set()
        for cls in self.tree.line(number):
            hooks = self.marks.get(("class", cls, hook_type), {})
            found += [mark for name, mark in hooks.items() if name not in taken]
            taken |= set(hooks)
        return "".join(found)

    def answer(self, number: int) -> str:
        return f"{self.marks_of(number, TYPES[0])}{self.tree.spoken(number)}{self.marks_of(number, TYPES[1])}"


class Play:
    """Runs a program with real agents, one of each class, beside the account."""

    def __init__(self, tree: Tree) -> None:
        tree.build()
        self.tree = tree
        self.agents = [cls(name=cls.__name__) for cls in tree.classes]
        self.account = Account(tree)
        self.hooks: dict[Any, Any] = {}

    async def step(self, step: Any) -> None:
        if isinstance(step, Change):
            self.change(step)
            return
        number, meanwhile = step[0] % len(self.agents), step[1]
        agent: Any = self.agents[number]
        wanted = self.account.answer(number)
        agent.at_moment = lambda: self.changes(agent, meanwhile)
        answer: Msg = await (agent.reply if len(meanwhile) == 1 else agent)(UserMsg("user", ""))
        assert answer.content == wanted

    def changes(self, agent: Any, meanwhile: list[Change]) -> None:
        agent.at_moment = lambda: None
        for change in meanwhile:
            self.change(change)

    def change(self, change: Change) -> None:
        change = replace(change, owner=change.owner % len(self.agents))
        allowed = self.account.apply(change)
        owners: Any = self.agents if change.whose == "instance" else self.tree.classes
        try:
            self.make(change, owners[change.owner])
        except ValueError:
            assert not allowed
        else:
            assert allowed

    def make(self, change: Change, owner: Any) -> None:
        register = getattr(owner, f"register_{change.whose}_hook")
        remove = getattr(owner, f"remove_{change.whose}_hook")
        key = (change.whose, change.owner, change.hook_type, change.name)
        if change.what == "register":
            self.hooks[key] = marking(change.mark, change.hook_type, change.variant == 1)
            register(change.hook_type, change.name, self.hooks[key])
        elif change.what in ("remove", "move to the end"):
            remove(change.hook_type, change.name)
            if change.what != "remove":
                register(change.hook_type, change.name, self.hooks[key])
        else:
            given = [change.hook_type] if change.what == "clear" else []
            getattr(owner, f"clear_{change.whose}_hooks")(*given)

    async def all_answer(self) -> None:
        for number in range(len(self.agents)):
            await self.step((number, []))

    def tidy(self) -> None:
        for cls in self.tree.classes:
            cls.clear_class_hooks()


@settings(max_examples=100)
@given(trees(), programs)
async def test_hooks_that_run_are_those_of_the_reference(tree, program):
    play = Play(tree)
    try:
        for step in program:
            await play.step(step)
        await play.all_answer()
    finally:
        play.tidy()
