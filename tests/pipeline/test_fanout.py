"""Agents side by side."""

import asyncio
import threading

import anyio.lowlevel
import pytest

from agentrt import Agent
from agentrt.errors import ConfigError, InvalidInputError, Malformed
from agentrt.message import TextBlock
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import FanoutPipeline, fanout_pipeline
from tests.pipeline.helpers import Failing, Speaker, Waiting, said

BOTH = pytest.mark.parametrize("at_once", [True, False])


@BOTH
async def test_the_answers_come_in_the_order_of_the_agents(at_once):
    class Late(Speaker):
        async def reply(self, msg=None, ending=""):
            await anyio.wait_all_tasks_blocked()
            return await super().reply(msg, ending)

    answers = await fanout_pipeline([Late("a"), Speaker("b"), Late("c")], said("x"), at_once)
    assert [each.content for each in answers] == ["xa", "xb", "xc"]


@BOTH
async def test_without_agents_there_are_no_answers(at_once):
    assert await fanout_pipeline([], said("x"), enable_gather=at_once) == []


@BOTH
async def test_without_a_message_each_is_asked_with_none(at_once):
    assert [each.content for each in await fanout_pipeline([Speaker("a"), Speaker("b")], None, at_once)] == ["a", "b"]


@BOTH
async def test_other_arguments_go_to_each(at_once):
    answers = await fanout_pipeline([Speaker("a"), Speaker("b")], said("x"), at_once, ending="!")
    assert [each.content for each in answers] == ["xa!", "xb!"]
    pipeline = FanoutPipeline([Speaker("a")], enable_gather=at_once)
    assert [each.content for each in await pipeline(said("x"), ending="?")] == ["xa?"]


@BOTH
@pytest.mark.parametrize("several", [False, True])
async def test_each_gets_a_copy_of_its_own(at_once, several):
    class Spoiling(Speaker):
        async def reply(self, msg=None):
            self.heard += (given := msg if isinstance(msg, list) else [msg])
            seen = given[0].content[0].text
            given[0].content[0].text = given[0].metadata["deep"][0] = "spoilt"
            return said(seen, self.name)

    agents = [Spoiling("a"), Spoiling("b"), Spoiling("c")]
    message = said([TextBlock("x")])
    message.metadata["deep"] = ["x"]
    answers = await fanout_pipeline(agents, [message, message] if several else message, at_once)
    assert [each.content for each in answers] == ["x"] * 3
    assert (message.get_text_content(), message.metadata) == ("x", {"deep": ["x"]})
    assert all(each.heard[0].id == message.id for each in agents)


async def test_they_run_at_once():
    both = anyio.Event()
    present = []

    class Meeting(Speaker):
        async def reply(self, msg=None):
            present.append(self.name)
            if len(present) == 2:
                both.set()
            await both.wait()
            return said(self.name, self.name)

    assert len(await fanout_pipeline([Meeting("a"), Meeting("b")])) == 2


async def test_one_after_the_other_when_asked_to():
    log = []

    class Noting(Speaker):
        async def reply(self, msg=None):
            log.append(f"{self.name} begins")
            await anyio.lowlevel.checkpoint()
            log.append(f"{self.name} ends")
            return said(self.name, self.name)

    await FanoutPipeline([Noting("a"), Noting("b")], enable_gather=False)()
    assert log == ["a begins", "a ends", "b begins", "b ends"]


async def test_the_first_failure_stops_the_others_and_is_raised():
    waiting = Waiting("w")
    error = Malformed("no")
    with pytest.raises(Malformed) as caught:
        await fanout_pipeline([waiting, Failing("f", error, waiting.began)])
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert waiting.log == ["began", "stopped"]


async def test_a_group_that_an_agent_raises_is_the_error_itself():
    error = ExceptionGroup("two", [ValueError(), KeyError()])
    with pytest.raises(ExceptionGroup) as caught:
        await fanout_pipeline([Failing("f", error), Speaker("a")])
    assert caught.value is error


async def test_the_first_of_several_failures_names_the_others():
    class Worse(Waiting):
        async def reply(self, msg=None):
            try:
                return await super().reply(msg)
            finally:
                raise KeyError("a secret")

    worse = [Worse("w"), Worse("w")]
    with pytest.raises(ValueError, match="no") as caught:
        await fanout_pipeline([*worse, Failing("f", ValueError("no"), worse[1].began)])
    assert caught.value.__notes__ == ["failed while it was stopped: KeyError, KeyError"]


async def test_one_after_the_other_the_first_failure_ends_it():
    error = ValueError("no")
    waiting = Waiting("w")
    with pytest.raises(ValueError, match="no") as caught:
        await fanout_pipeline([Failing("f", error), waiting], None, False)
    assert caught.value is error
    assert waiting.log == []


@BOTH
async def test_a_cancellation_from_outside_stops_all(at_once):
    waiting = [Waiting("a"), Waiting("b")]
    left_as = None

    async def run() -> None:
        nonlocal left_as
        try:
            await fanout_pipeline(waiting, None, at_once)
        except BaseException as error:
            left_as = error
            raise

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await waiting[at_once].began.wait()
        group.cancel_scope.cancel()
    assert isinstance(left_as, anyio.get_cancelled_exc_class())
    assert [each.log for each in waiting] == [["began", "stopped"], ["began", "stopped"] if at_once else []]


async def test_a_deadline_of_the_caller_holds_for_all():
    waiting = [Waiting("a"), Waiting("b")]
    with anyio.move_on_after(0) as scope:
        await fanout_pipeline(waiting)
    assert scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_cancelled_inside_an_agent_is_not_a_silent_none():
    async def wait() -> None:
        await asyncio.sleep(60)

    class Depending(Speaker):
        async def reply(self, msg=None):
            task = asyncio.get_running_loop().create_task(wait())
            task.cancel()
            await task

    waiting = Waiting("w")
    with pytest.raises(asyncio.CancelledError):
        await fanout_pipeline([waiting, Depending("d")])
    assert waiting.log in ([], ["began", "stopped"])


async def test_agents_with_models_answer_the_same_question():
    agents = [Agent(name, model=ScriptedChatModel([f"I am {name}."])) for name in ("alice", "bob")]
    answers = await fanout_pipeline(agents, said("Who are you?"))
    assert [each.get_text_content() for each in answers] == ["I am alice.", "I am bob."]


@pytest.mark.parametrize("wrong", [None, "ab", 3, [3], [Speaker], [None], Speaker("a")])
async def test_what_cannot_answer_is_refused_before_anything_runs(wrong):
    with pytest.raises(ConfigError, match=r"fanout_pipeline\(\) takes"):
        await fanout_pipeline(wrong)
    with pytest.raises(ConfigError, match=r"FanoutPipeline\(agents=...\) takes"):
        FanoutPipeline(wrong)


@BOTH
@pytest.mark.parametrize("several", [False, True])
async def test_message_that_cannot_be_copied_is_refused(at_once, several):
    agents = [Speaker("a"), Speaker("b")]
    spoilt = said("x")
    spoilt.metadata["lock"] = threading.Lock()
    for message in (spoilt, (text for text in "xy"), threading.Lock()):
        with pytest.raises(InvalidInputError, match="cannot be copied: give what agents share as deps"):
            await fanout_pipeline(agents, [message] if several else message, at_once)
    assert agents[0].heard == agents[1].heard == []
