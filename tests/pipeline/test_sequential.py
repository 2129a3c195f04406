"""One agent after the other."""

import pytest

from agentrt import Agent, Toolkit
from agentrt.errors import ConfigError
from agentrt.event import ConfirmResult, UserConfirmResultEvent
from agentrt.message import Msg, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import FanoutPipeline, SequentialPipeline, sequential_pipeline
from agentrt.tool import FunctionTool
from tests.pipeline.helpers import Failing, Speaker, Waiting, said


@pytest.fixture
def two() -> list[Speaker]:
    return [Speaker("a"), Speaker("b")]


async def test_each_answers_what_the_one_before_it_answered(two):
    answer = await sequential_pipeline(two, said("x"))
    assert (answer.name, answer.content) == ("b", "xab")


async def test_without_agents_the_input_is_returned():
    message = said("x")
    assert await sequential_pipeline([], message) is message
    assert await sequential_pipeline([]) is None


async def test_nothing_passes_through_like_any_answer(two):
    class Silent(Speaker):
        async def reply(self, msg=None):
            self.heard.append(msg)

    silent = Silent("silent")
    assert await sequential_pipeline([two[0], silent]) is None
    answer = await sequential_pipeline([silent, two[1]], said("x"))
    assert answer.content == "b"
    assert [msg and msg.content for msg in silent.heard] == ["a", "x"]


async def test_an_answer_is_passed_as_the_same_object(two):
    given = []

    class Keeping(Speaker):
        async def reply(self, msg=None):
            given.append(msg)
            return msg

    message = said([TextBlock("x")])
    assert await sequential_pipeline([Keeping("one"), Keeping("two")], message) is message
    assert all(each is message for each in given)


async def test_the_first_failure_ends_it_and_is_raised_as_it_is(two):
    error = ValueError("no")
    after = Waiting("after")
    with pytest.raises(ValueError, match="no") as caught:
        await sequential_pipeline([two[0], Failing("f", error), after])
    assert caught.value is error
    assert after.log == []


async def test_answers_in_a_pipeline_reach_subscribers(two):
    two[0].reset_subscribers("hub", two)
    await sequential_pipeline(two, said("x"))
    assert two[1].texts == ["xa"]


async def test_what_a_model_thought_stays_with_its_agent():
    thinks = Agent("thinks", model=ScriptedChatModel([[ThinkingBlock("hm"), TextBlock("Paris.")]] * 2))
    model = ScriptedChatModel([[ThinkingBlock("aha"), TextBlock("It is Paris.")]])
    answer = await sequential_pipeline([thinks, Agent("b", model=model)], said("Where?"))
    [asked] = model.calls[0].messages
    assert [block.type for block in asked.content] == ["text"]
    assert (asked.name, asked.get_text_content()) == ("thinks", "Paris.")
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert thinks.state.context[-1].has_content_blocks("thinking")


async def delete(path: str) -> str:
    return f"Deleted {path}."


async def test_a_reply_that_waits_is_returned_at_once_and_can_resume(two):
    call = ToolCallBlock("1", "delete", '{"path": "draft.txt"}')
    toolkit = Toolkit(tools=[FunctionTool(delete, ask=True)])
    asking = Agent("asking", model=ScriptedChatModel([[call], "Done."]), toolkit=toolkit)
    waiting = await sequential_pipeline([two[0], asking, two[1]], said("tidy up, "))
    [asked] = waiting.get_content_blocks("tool_call")
    context = asking.state.reply_context
    answer = UserConfirmResultEvent(context.reply_id, [ConfirmResult(True, asked)])
    done = await sequential_pipeline([asking, two[1]], answer)
    assert done.content == "Done.b"


async def test_pipelines_and_functions_may_stand_among_the_agents(two):
    async def joined(answers: list[Msg]) -> Msg:
        return said("+".join(each.get_text_content() or "" for each in answers))

    pipeline = SequentialPipeline([two[0], FanoutPipeline(two), joined, SequentialPipeline(two)])
    answer = await pipeline(said("x"))
    assert answer.content == "xaa+xabab"


async def test_fanout_answers_are_passed_without_thinking():
    def thinking(name: str) -> Agent:
        return Agent(name, model=ScriptedChatModel([[ThinkingBlock("hm"), TextBlock(name)]]))

    model = ScriptedChatModel(["Both."])
    answer = await sequential_pipeline(
        [FanoutPipeline([thinking("a"), thinking("b")]), Agent("c", model=model)], "Who?"
    )
    assert answer.get_text_content() == "Both."
    assert [msg.get_text_content() for msg in model.calls[0].messages] == ["a", "b"]


async def test_a_pipeline_object_serves_again_and_again(two):
    agents = list(two)
    pipeline = SequentialPipeline(agents)
    agents.clear()
    assert (await pipeline(said("1"))).content == "1ab"
    assert (await pipeline()).content == "ab"


@pytest.mark.parametrize("wrong", [None, "ab", 3, [3], [Speaker], [None], Speaker("a")])
async def test_what_cannot_answer_is_refused_before_anything_runs(wrong):
    with pytest.raises(ConfigError, match=r"sequential_pipeline\(\) takes"):
        await sequential_pipeline(wrong)
    with pytest.raises(ConfigError, match=r"SequentialPipeline\(agents=...\) takes"):
        SequentialPipeline(wrong)
