"""The runner of one process: what is submitted is answered once, in order, and never at the same time."""

from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio.lowlevel
import pytest

from agentrt import Agent, AgentState, Msg
from agentrt.errors import ConfigError, InvalidInputError, QueueFull, ResumeError, StructuredOutputError, UsageError
from agentrt.event import ReplyEndEvent, RequireUserConfirmEvent, UserConfirmResultEvent, UserInterruptEvent
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.state import InMemoryStateStore, SQLiteStore
from tests.loop.helpers import rebuilt
from tests.runner.conftest import answer_to, approved_pay, make_agent, work


async def test_submitted_reply_is_answered_on_any_store(store):
    async with work(Runner(make_agent(), store)) as runner:
        handle = await runner.submit("ann/1", "Hi!", labels={"owner": "ann"})
        assert (await handle.result()).get_text_content() == "You said: Hi!"
        events = [event async for event in handle.events()]
        assert isinstance(events[-1], ReplyEndEvent)
        state = await store.load("ann/1")
    assert state.labels == {"owner": "ann"}
    assert rebuilt(events).content == state.context[-1].content


async def test_reply_that_waits_goes_on_with_its_answer(store):
    async with work(Runner(make_agent(approved_pay()), store)) as runner:
        handle = await runner.submit("s", "call pay")
        events = [event async for event in handle.events()]
        question = events[-1]
        assert isinstance(question, RequireUserConfirmEvent)
        same = await runner.answer("s", answer_to(question))
        assert same.reply_id == handle.reply_id
        events += [event async for event in handle.events(after=question.seq)]
        message = await handle.result()
        state = await store.load("s")
    assert message.get_text_content() == "paid, as you said: call pay"
    numbers = [event.seq for event in events]
    assert numbers == sorted(set(numbers))
    assert rebuilt(events).content == state.context[-1].content


async def test_reply_id_is_stored_once_and_never_with_another_input(sqlite):
    model = ScriptedChatModel(["One.", "Two."])
    async with work(Runner(make_agent(model=model), sqlite)) as runner:
        for _ in range(3):
            handle = await runner.submit("s", {"role": "user", "content": "Pay!"}, reply_id="key")
            assert (await handle.result()).get_text_content() == "One."
        with pytest.raises(InvalidInputError, match="'key' of session 's' was asked for with another input"):
            await runner.submit("s", "Pay more!", reply_id="key")
    assert len(model.calls) == 1


async def test_schema_of_the_answer_is_stored_with_its_message(sqlite):
    said = [ToolCallBlock("1", "GenerateStructuredOutput", '{"city": "Oslo"}')]
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    async with work(Runner(make_agent(model=ScriptedChatModel([said])), sqlite)) as runner:
        handle = await runner.submit("s", "Where?", schema, reply_id="key")
        assert (await handle.result()).structured_output == {"city": "Oslo"}
        with pytest.raises(InvalidInputError):
            await runner.submit("s", "Where?", reply_id="key")
        with pytest.raises(InvalidInputError, match="model_json_schema"):
            await runner.submit("s", "Where?", int)


async def test_message_with_the_id_of_a_later_reply_is_not_its_answer(sqlite):
    async with work(Runner(make_agent(), sqlite)) as runner:
        await (await runner.submit("s", Msg("user", "One.", "user", id="next"))).result()
        answer = await (await runner.submit("s", "Two.", reply_id="next")).result()
    assert answer.get_text_content() == "You said: Two."


async def test_replies_of_a_session_are_in_order_and_never_overlap(sqlite):
    running, most, order = 0, 0, []

    async def note(messages: Any) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        order.append(messages[-1].get_text_content())
        await anyio.lowlevel.checkpoint()
        running -= 1
        return "Noted."

    class Model(ScriptedChatModel):
        async def _call(self, messages: Any, *args: Any, **options: Any) -> Any:
            await note(messages)
            return await super()._call(messages, *args, **options)

    runner = Runner(make_agent(model=Model(["Noted."] * 20)), sqlite)
    async with runner:
        handles = [await runner.submit("s", str(number)) for number in range(20)]
        async with anyio.create_task_group() as group:
            group.start_soon(runner.work)
            for handle in handles:
                await handle.result()
            await runner.drain()
    assert (most, order) == (1, [str(number) for number in range(20)])


async def test_sessions_run_side_by_side_up_to_the_limit(sqlite):
    running: list[int] = []
    release = anyio.Event()

    async def wait() -> str:
        running.append(1)
        if len(running) == 3:
            release.set()
        await release.wait()
        return "waited"

    async with work(Runner(make_agent(wait), sqlite, max_concurrency=3)) as runner:
        handles = [await runner.submit(f"s{number}", "call wait") for number in range(5)]
        for handle in handles:
            assert "waited" in ((await handle.result()).get_text_content() or "")


async def test_message_behind_a_question_is_held_until_the_answer(sqlite):
    runner = Runner(make_agent(approved_pay()), sqlite)
    async with runner:
        first = await runner.submit("s", "call pay")
        second = await runner.submit("s", "And?")  # before anybody knows that there will be a question
        async with anyio.create_task_group() as group:
            group.start_soon(runner.work)
            question = [event async for event in first.events()][-1]
            with pytest.raises(ResumeError) as error:
                await runner.submit("s", "Hello?")
            assert error.value.code == "pending"
            await runner.answer("s", answer_to(question))
            assert (await second.result()).get_text_content() == "You said: And?"
            await runner.drain()
    state = await sqlite.load("s")
    assert [message.id for message in state.context if message.role == "assistant"] == [first.reply_id, second.reply_id]


async def test_answer_that_does_not_fit_is_refused_and_not_queued(sqlite):
    async with work(Runner(make_agent(approved_pay()), sqlite)) as runner:
        handle = await runner.submit("s", "call pay")
        question = [event async for event in handle.events()][-1]
        forged = answer_to(question)
        forged.confirm_results[0].tool_call.input = '{"amount": 2}'
        with pytest.raises(ResumeError) as error:
            await runner.answer("s", forged)
        assert error.value.code == "mismatch"
        question.tool_calls[0].input = "{}"
        await runner.answer("s", answer_to(question))
        await runner.answer("s", answer_to(question))  # once more, as where the first response was lost
        assert (await handle.result()).finished_reason == "completed"
        with pytest.raises(ResumeError) as error:
            await runner.answer("s", answer_to(question, confirmed=False))
        assert error.value.code == "conflict"


async def test_two_contrary_answers_at_once_are_one_and_a_conflict(sqlite):
    runner = Runner(make_agent(approved_pay()), sqlite)
    async with work(runner):
        handle = await runner.submit("s", "call pay")
        question = [event async for event in handle.events()][-1]
    async with runner:  # nobody works
        await runner.answer("s", answer_to(question))
        with pytest.raises(ResumeError, match="answered in another way just now"):
            await runner.answer("s", answer_to(question, confirmed=False))
        await runner.submit("s", "And then?")  # it comes after the answer


@pytest.mark.parametrize("processes", [1, 2])
async def test_contrary_answers_at_once_are_one_and_a_conflict(processes, tmp_path):
    async with AsyncExitStack() as stack:
        runners = []
        for _ in range(processes):
            store = await stack.enter_async_context(SQLiteStore(tmp_path / "states.db", durability="process"))
            runners.append(await stack.enter_async_context(Runner(make_agent(approved_pay()), store)))
        async with anyio.create_task_group() as group:
            group.start_soon(runners[0].work)
            handle = await runners[0].submit("s", "call pay")
            question = [event async for event in handle.events()][-1]
            await runners[0].drain()
        codes: list[str] = []

        async def answer(runner: Runner, confirmed: bool) -> None:
            try:
                await runner.answer("s", answer_to(question, confirmed=confirmed))
            except ResumeError as error:
                codes.append(error.code)

        async with anyio.create_task_group() as group:
            for runner, confirmed in zip([runners[0], runners[-1]], [True, False], strict=True):
                group.start_soon(answer, runner, confirmed)
        assert codes == ["conflict"]


async def test_running_reply_is_interrupted(sqlite, waiting):
    async with work(Runner(make_agent(waiting.wait), sqlite)) as runner:
        handle = await runner.submit("s", "call wait")
        await waiting.begun.wait()
        assert await handle.interrupt()
        assert (await handle.result()).finished_reason == "interrupted"
        assert not await handle.interrupt()


async def test_running_reply_is_interrupted_from_elsewhere(sqlite, waiting):
    client = Runner(make_agent(waiting.wait), sqlite)
    async with client, work(Runner(make_agent(waiting.wait), sqlite)):
        handle = await client.submit("s", "call wait")
        await waiting.begun.wait()
        assert await handle.interrupt()
        assert (await handle.result()).finished_reason == "interrupted"


async def test_queued_and_parked_replies_are_interrupted(sqlite):
    runner = Runner(make_agent(approved_pay()), sqlite)
    async with runner:
        queued = await runner.submit("s", "Hi!")
        assert await queued.interrupt()
        assert (await queued.result()).finished_reason == "interrupted"
        parked = await runner.submit("s", "call pay")
        async with anyio.create_task_group() as group:
            group.start_soon(runner.work)
            await parked.result()
            assert await parked.interrupt()
            events = [event async for event in parked.events()]
            await runner.drain()
    state = await sqlite.load("s")
    assert state.last_reply.finished_reason == "interrupted"
    assert rebuilt(events).content == state.context[-1].content
    assert len([message for message in state.context if message.role == "user"]) == 1


async def test_failed_reply_has_its_end_and_the_session_goes_on(sqlite, caplog):
    model = ScriptedChatModel([ValueError("a secret"), "Better."])
    async with work(Runner(make_agent(model=model), sqlite)) as runner:
        first = await runner.submit("s", "Hi!")
        second = await runner.submit("s", "And now?")
        message = await first.result()
        assert (message.finished_reason, message.error) == ("error", "ValueError")
        assert (await second.result()).get_text_content() == "Better."
        again = await first.result()
        assert (again.id, again.finished_reason, again.error) == (message.id, "error", "ValueError")
    assert "a secret" not in caplog.text


async def test_full_queue_says_when_to_try_again(sqlite):
    async with Runner(make_agent(), sqlite, max_queued=3, max_queued_per_session=2) as runner:
        await runner.submit("a", "1", reply_id="first")
        await runner.submit("a", "2")
        with pytest.raises(QueueFull, match="2 replies wait in session 'a'") as error:
            await runner.submit("a", "3")
        assert 1 <= error.value.retry_after <= 60
        await runner.submit("b", "1")
        with pytest.raises(QueueFull, match="3 replies wait in the queue"):
            await runner.submit("c", "1")
        await runner.submit("a", "1", reply_id="first")  # it has its place already


async def test_submitted_for_later_runs_when_it_is_due(sqlite):
    async with work(Runner(make_agent(), sqlite)) as runner:
        at = datetime.now(UTC) + timedelta(seconds=0.1)
        handle = await runner.submit("s", "Later!", at=at)
        await handle.result()
        assert datetime.now(UTC) >= at


@pytest.mark.parametrize("store", ["file", "sqlite"], indirect=True)
async def test_input_of_a_process_that_ended_is_answered_by_the_next(store):
    async with Runner(make_agent(), store) as runner:
        handle = await runner.submit("s", "Hi!")
    async with work(Runner(make_agent(), store)) as runner:
        message = await runner.handle("s", handle.reply_id).result()
    assert message.get_text_content() == "You said: Hi!"


async def test_second_worker_waits_and_takes_over(sqlite):
    first, second = Runner(make_agent(), sqlite), Runner(make_agent(), sqlite)
    async with first, second, anyio.create_task_group() as group:
        group.start_soon(first.work)
        await (await first.submit("s", "One")).result()
        group.start_soon(second.work)
        handle = await second.submit("s", "Two")
        assert (await handle.result()).get_text_content() == "You said: Two"
        await first.drain()
        assert (await (await first.submit("s", "Three")).result()).get_text_content() == "You said: Three"
        await second.drain()


@pytest.mark.parametrize("leave", ["drain", "cancel"])
async def test_worker_that_leaves_hands_its_reply_over(sqlite, leave, waiting):
    runner = Runner(make_agent(waiting.wait), sqlite, drain_seconds=0)
    async with runner, anyio.create_task_group() as group:
        group.start_soon(runner.work)
        handle = await runner.submit("s", "call wait")
        await waiting.begun.wait()
        if leave == "drain":
            await runner.drain()
        else:
            group.cancel_scope.cancel()
    state = await sqlite.load("s")
    assert not state.reply_context.parked
    async with work(Runner(make_agent(waiting.wait), sqlite)) as runner:
        message = await runner.handle("s", handle.reply_id).result()
        events = [event async for event in runner.events("s", handle.reply_id)]
    assert (message.finished_reason, waiting.runs) == ("completed", 1)  # it is not idempotent, so it is not run again
    state = await sqlite.load("s")
    assert [block.state for block in state.context[-1].get_content_blocks("tool_result")] == ["unknown"]
    assert rebuilt(events).content == state.context[-1].content


async def test_reply_that_was_left_in_the_store_goes_on_at_start():
    store = InMemoryStateStore()
    agent = make_agent(model=ScriptedChatModel(["It is seven."]), state=AgentState(session_id="s"), state_store=store)
    stream = agent.reply_stream("How many?", reply_id="r")
    await anext(stream)
    await stream.hand_over()
    async with work(Runner(make_agent(model=ScriptedChatModel(["It is seven.", "Eight."])), store)) as runner:
        handle = await runner.submit("s", "And then?")  # which comes after it
        await handle.result()
        message = await runner.handle("s", "r").result()
    assert message.get_text_content() == "It is seven."


async def test_runner_that_is_drained_before_it_works_does_not_work(sqlite):
    runner = Runner(make_agent(), sqlite)
    async with runner:
        handle = await runner.submit("s", "Hi!")
        await runner.drain()
        await runner.work()
        assert await sqlite.load("s") is None
        async with anyio.create_task_group() as group:  # and again, when it is asked to
            group.start_soon(runner.work)
            await handle.result()
            await runner.drain()


@pytest.mark.parametrize("deletes", ["runner", "store"])
async def test_deleted_session_comes_back_only_by_a_later_input(sqlite, deletes, waiting):
    runner = Runner(make_agent(waiting.wait), sqlite)
    async with runner, anyio.create_task_group() as group:
        handles = [await runner.submit("s", text) for text in ("Hi!", "call wait", "And?")]  # to a session that is new
        group.start_soon(runner.work)
        await waiting.begun.wait()
        handles.append(await runner.submit("s", "And then?"))
        await (runner.delete("s") if deletes == "runner" else sqlite.delete("s"))
        waiting.release.set()
        ends = [(await handle.result()).finished_reason for handle in handles[1:]]
        assert ends == ["interrupted"] * 3
        assert await sqlite.load("s") is None
        assert (await (await runner.submit("s", "Hello!")).result()).finished_reason == "completed"
        await runner.drain()
    state = await sqlite.load("s")
    assert [message.get_text_content() for message in state.context] == ["Hello!", "You said: Hello!"]


async def test_end_of_an_older_reply_keeps_its_number(sqlite):
    async with work(Runner(make_agent(), sqlite)) as runner:
        first = await runner.submit("s", "One")
        last = [event async for event in first.events()][-1]
        await (await runner.submit("s", "Two")).result()
        assert [event async for event in runner.events("s", first.reply_id, after=last.seq)] == []
    async with Runner(make_agent(), sqlite) as elsewhere:
        assert [event.seq async for event in elsewhere.events("s", first.reply_id)][-1] == last.seq
        assert [event async for event in elsewhere.events("s", first.reply_id, after=last.seq)] == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_concurrency": 0}, r"Runner\(max_concurrency=...\) must be a whole number of at least 1, not 0"),
        ({"max_queued": True}, r"Runner\(max_queued=...\) must be a whole number of at least 1, not True"),
        ({"drain_seconds": -1}, r"Runner\(drain_seconds=...\) must be a finite number of seconds of at least 0"),
        ({"event_ttl": float("inf")}, r"Runner\(event_ttl=...\) must be a finite number of seconds of at least 0"),
    ],
)
async def test_options_that_cannot_be_used_are_refused(options, problem):
    with pytest.raises(ConfigError, match=problem):
        Runner(make_agent(), InMemoryStateStore(), **options)


async def test_parts_that_do_not_fit_are_refused():
    store = InMemoryStateStore()
    with pytest.raises(ConfigError, match="runs an Agent, not"):
        Runner(Agent, store)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no `async def load`"):
        Runner(make_agent(), object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give both the same store"):
        Runner(make_agent(state_store=InMemoryStateStore()), store)


async def test_wrong_use_is_told_before_anything_is_stored(sqlite):
    runner = Runner(make_agent(), sqlite)
    with pytest.raises(UsageError, match=r"submit\(\) needs an open runner"):
        await runner.submit("s", "Hi!")
    async with runner:
        for session_id in ("", 3, "x" * 501, "\ud800"):
            with pytest.raises(UsageError, match="a session id must be"):
                await runner.submit(session_id, "Hi!")  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="reply_id must be"):
            await runner.submit("s", "Hi!", reply_id="a b")
        with pytest.raises(InvalidInputError, match="is empty"):
            await runner.submit("s", "")
        with pytest.raises(InvalidInputError, match="reply to nothing"):
            await runner.submit("s")
        with pytest.raises(UsageError, match="must be a datetime with a time zone"):
            await runner.submit("s", "Hi!", at=datetime.now())
        with pytest.raises(ResumeError, match="asks none"):
            await runner.answer("s", UserConfirmResultEvent("r", []))
        with pytest.raises(UsageError, match="has no reply 'r'"):
            await runner.handle("s", "r").result()
        with pytest.raises(UsageError, match="the number of an event"):
            await anext(runner.events("s", "r", after=-1))
        assert (await sqlite.list()).sessions == []


async def test_values_that_no_database_holds_are_refused(sqlite):
    async with Runner(make_agent(), sqlite) as runner:
        assert await runner.find_sessions("r", limit=2**70) == []
        for reply_id in ("\ud800", "x" * 129, "a\0b", "a\n", 3):
            with pytest.raises(InvalidInputError, match="a reply id is"):
                runner.handle("s", reply_id)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="before the year 2262"):
            await runner.submit("s", "Hi!", at=datetime.max.replace(tzinfo=UTC))
        await runner.submit("s", "Hi!", at=datetime.min.replace(tzinfo=UTC))  # at once
        with pytest.raises(ConfigError, match=r"every\(...\) takes seconds"):
            runner.every(1e300, "s", "Hi!")
        for name in (3, ["x"], "", "\ud800"):
            with pytest.raises(ConfigError, match=r"every\(name="):
                runner.every(60, "s", "Hi!", name=name)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match=r"every\(\) takes messages"):
            runner.every(60, "s", UserInterruptEvent("r"))
        with pytest.raises(ResumeError, match="has no reply 'nobody'"):
            await runner.answer("s", UserInterruptEvent("nobody"))


async def test_reply_without_its_form_is_read_as_it_ended():
    store = InMemoryStateStore()
    agent = make_agent(model=ScriptedChatModel(["No form."] * 3), state=AgentState(session_id="s"), state_store=store)
    with pytest.raises(StructuredOutputError) as caught:
        await agent.reply("go", dict, reply_id="r")
    async with work(Runner(make_agent(), store)) as runner:
        message = await runner.handle("s", "r").result()
    assert message.finished_reason == caught.value.final_message.finished_reason == "exceed_max_form_attempts"
