"""Checks whether a store keeps recorded runs as `RunStore` promises, with runs of real agents."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from traceback import format_exception_only
from typing import Any

from agentrt._runtime.block import new_name
from agentrt.agent import Agent
from agentrt.errors import UsageError
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.runs import RunRecorder
from agentrt.state import AgentState
from agentrt.testing.stores.check import Damage, OpenStore, StoreProblems

_API_KEY = "sk-0123456789abcdef"


async def check_run_store(open_store: OpenStore, *, damages: Mapping[str, Damage] | None = None) -> list[str]:
    """Check that the `runs` of a store keep their promises; raises `StoreProblems` with all broken ones.

    `open_store` opens a store of sessions, again and again over one place, as in `check_store`. `damages` are functions
    that each change what is kept of the runs of the session with that id, by their names: each must be found. Returns
    the promises that were checked.
    """
    problems: list[str] = []
    for promise, check in _RUN_PROMISES.items():
        async with AsyncExitStack() as opened:
            try:
                await getattr(_RecordingPlace(open_store, opened), check)()
            except Exception as error:  # noqa: BLE001  # one broken promise does not hide the others
                problems.append(f"{promise}: {''.join(format_exception_only(error)).strip()}")
    for name, damage in (damages or {}).items():
        async with AsyncExitStack() as opened:
            try:
                await _RecordingPlace(open_store, opened).check_damage(damage)
            except Exception as error:  # noqa: BLE001  # as above
                problems.append(f"{name} is found: {''.join(format_exception_only(error)).strip()}")
    if problems:
        raise StoreProblems(problems)
    return [*_RUN_PROMISES, *(f"{name} is found" for name in damages or {})]


class _RecordingPlace:
    """Stores over one place, and a session of its own in it."""

    def __init__(self, open_store: OpenStore, opened: AsyncExitStack) -> None:
        self._open_store, self._opened = open_store, opened
        self.session_id = new_name()

    async def open(self) -> Any:
        return await self._opened.enter_async_context(self._open_store())

    async def record(self, store: Any, *texts: str, owner: str = "ann", **options: Any) -> Agent:
        """Return an agent that has answered the texts, one reply for each, with one tool call in it."""

        async def find(name: str) -> str:
            """Find something."""
            return f"found {name}"

        # Each reply asks for a tool, and answers with what that found.
        script: list[Any] = []
        for index, _ in enumerate(texts):
            script += [[ToolCallBlock(f"call-{index}", "find", '{"name": "it"}')], f"answer {index}"]
        state = AgentState(session_id=self.session_id, labels={"owner": owner})
        recorder = RunRecorder(store, **options)
        agent = Agent("a", "", ScriptedChatModel(script), [find], [recorder], state=state, state_store=store)
        for index, text in enumerate(texts):
            await agent.reply(text, reply_id=f"r{index}")
        await store.runs.flush()
        return agent

    async def check_kept(self) -> None:
        # The second store object stands for another process.
        one, other = await self.open(), await self.open()
        await self.record(one, "first", "second")
        newest = await other.runs.load(self.session_id)
        _expect("the newest run", newest.reply_id, "r1")
        run = await other.runs.load(self.session_id, "r0")
        _expect("the status", run.status, "completed")
        _expect("the answer", run.message.get_text_content(), "answer 0")
        _expect("the context of the second run", [message.role for message in newest.context], ["user", "assistant"])
        _expect("the messages of the last request", len(newest.requests[-1].messages), 4)
        _expect(
            "the kinds of steps", [step.kind for step in run.steps], ["model", "answer", "result", "model", "answer"]
        )
        _expect("the state at a step", run.state_at(2).reply_context.parked, True)
        lines = await other.runs.lines(self.session_id, "r0", after=1)
        _expect("the lines after the first", [line["n"] for line in lines], [line["n"] for line in run.lines[1:]])

    async def check_missing(self) -> None:
        store = await self.open()
        await _refuses(store.runs.load, self.session_id)
        await self.record(store, "first")
        await _refuses(store.runs.load, self.session_id, "other")
        _expect("the lines of no run", list(await store.runs.lines(self.session_id, "other")), [])

    async def check_lists(self) -> None:
        store = await self.open()
        await self.record(store, "about cats", "about Dogs", "about %", owner=self.session_id)
        mine: dict[str, Any] = {"labels": {"owner": self.session_id}}
        page = await store.runs.list(**mine, limit=2)
        _expect("the first page", [info.reply_id for info in page.runs], ["r2", "r1"])
        page = await store.runs.list(**mine, limit=2, cursor=page.cursor)
        _expect("the second page", [info.reply_id for info in page.runs], ["r0"])
        _expect("the cursor of the last page", page.cursor, None)
        for options, expected in (
            ({"text": "DOGS"}, ["r1"]),
            ({"text": "%"}, ["r2"]),
            ({"status": "completed", "text": "cats"}, ["r0"]),
            ({"status": "failed"}, []),
            ({"session_id": self.session_id}, ["r2", "r1", "r0"]),
            ({"since": 1 << 62}, []),
        ):
            page = await store.runs.list(**mine, **options)
            _expect(f"the list with {options}", [info.reply_id for info in page.runs], expected)
        [info] = (await store.runs.list(**mine, text="cats")).runs
        _expect("what a list knows", (info.title, info.calls, info.tools), ("about cats", 2, ["find"]))

    async def check_owners(self) -> None:
        store = await self.open()
        await self.record(store, "first", owner=f"ann {self.session_id}")
        others = await store.runs.list(labels={"owner": f"bob {self.session_id}"})
        _expect("the runs of another owner", others.runs, [])

    async def check_verified(self) -> None:
        store = await self.open()
        await self.record(store, "first", "second", sign=b"0123456789abcdef")
        found = await store.runs.verify(self.session_id, key=b"0123456789abcdef")
        _expect("what was recorded", (found.ok, found.is_signed), (True, True))
        found = await store.runs.verify(self.session_id, key=b"another key, which is not it")
        _expect("a check with another key", found.ok, False)

    async def check_deleted(self) -> None:
        store, other = await self.open(), await self.open()
        await self.record(store, "first", "second", "third")
        _expect("the runs that were deleted", await store.runs.delete(self.session_id, "r1"), 1)
        await _refuses(other.runs.load, self.session_id, "r1")
        _expect("the chain of the rest", (await other.runs.verify(self.session_id)).ok, True)
        run = await other.runs.load(self.session_id, "r2")
        _expect("a message that two runs share", run.context[0].get_text_content(), "first")
        # All at once, with what is left of the first deletion.
        await store.runs.delete(self.session_id)
        _expect("the list after all are deleted", (await other.runs.list(session_id=self.session_id)).runs, [])

    async def check_session_deleted(self) -> None:
        store, other = await self.open(), await self.open()
        await self.record(store, "first")
        await store.delete(self.session_id)
        await _refuses(other.runs.load, self.session_id)

    async def check_fork(self) -> None:
        store = await self.open()
        await self.record(store, "first")
        fork = new_name()
        await store.fork(self.session_id, fork)
        await _refuses(store.runs.load, fork)
        await store.delete(fork)
        _expect("the run of the session", (await store.runs.load(self.session_id)).status, "completed")

    async def check_expired(self) -> None:
        store = await self.open()
        await self.record(store, "first", keep=1e-6)
        await store.runs.expire()
        await _refuses(store.runs.load, self.session_id, "r0")

    async def check_redacted(self) -> None:
        store = await self.open()
        await self.record(store, f"my key is {_API_KEY}", redact=[_API_KEY])
        run = await store.runs.load(self.session_id)
        _expect("the input", run.inputs[0].get_text_content(), "my key is [REDACTED]")
        _expect("the lines with the secret", [line for line in run.lines if _API_KEY in str(line)], [])

    async def check_damage(self, damage: Damage) -> None:
        store = await self.open()
        await self.record(store, "first", "second")
        # Closed, so that nothing is written behind the back of the damage.
        await store.aclose()
        result: Any = damage(self.session_id)
        if isinstance(result, Awaitable):
            await result
        other = await self.open()
        _expect("the check of damaged runs", (await other.runs.verify(self.session_id)).ok, False)


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{what} is {found!r:.300}, not {wanted!r:.300}")


async def _refuses(load: Callable[..., Awaitable[Any]], *ids: str) -> None:
    try:
        await load(*ids)
    except UsageError:
        return
    raise AssertionError(f"a run was found for {ids}, and none was recorded")


_RUN_PROMISES = {
    "what was recorded is read by another process": "check_kept",
    "what is not there is refused": "check_missing",
    "lists are in order, filtered and in pages": "check_lists",
    "runs of another owner are not listed": "check_owners",
    "what was recorded is verified, and signed": "check_verified",
    "what was deleted is gone, and the chain is whole": "check_deleted",
    "a session that is deleted has no runs": "check_session_deleted",
    "a fork has no runs of its origin": "check_fork",
    "runs expire": "check_expired",
    "secrets are redacted": "check_redacted",
}
"""The promises, with the method that checks each."""
