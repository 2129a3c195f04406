"""Layers that ask the user, from each hook, and the answers to them."""

from typing import Any

from agentrt import Agent, MiddlewareBase, Msg
from agentrt.event import AgentEvent, ConfirmResult, RequireUserConfirmEvent, UserConfirmResultEvent
from agentrt.message import ToolCallBlock, ToolResultState
from agentrt.middleware import Answer, Question
from agentrt.model import ScriptedChatModel
from agentrt.types import ToolResponse
from tests.loop.helpers import add, call, items_of

TEXT = "167 tokens are spent. Allow more?"
HOOKS = ("on_reasoning", "on_model_call", "on_acting")
ADD = call("1", "add", a=1, b=2)


class Asking(MiddlewareBase):
    """Asks once in each reply, from the hook that it is given, and continues only after a yes."""

    inherited = False

    def __init__(self, hook: str, name: str = "raise_budget", text: str = TEXT, **values: Any) -> None:
        self.hook, self.text, self.key = hook, text, name
        self.values = values or {"tokens": 120}
        self.ask = Question(name, **{key: type(value) for key, value in self.values.items()})
        self.answers: list[Answer] = []

    def list_tools(self):
        return [self.ask]

    def must_ask(self, agent: Agent) -> bool:
        """Take the answer, if there is one, and say whether the question is still to be asked in this reply."""
        asked = agent.state_of(self)
        answer = self.ask.answer(agent)
        if answer is not None:
            self.answers.append(answer)
            asked["reply"] = agent.run.id
        return asked.get("reply") != agent.run.id

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        if self.hook == "on_reasoning" and self.must_ask(agent):
            yield self.ask.message(agent, self.text, **self.values)
            return
        async for item in next_handler():
            yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):
        if self.hook == "on_model_call" and self.must_ask(agent):
            return self.ask.response(agent, self.text, **self.values)
        return await next_handler()

    async def on_acting(self, agent, input_kwargs, next_handler):
        if self.hook == "on_acting":
            answer = self.ask.answer(agent, input_kwargs["tool_call"])
            if answer is None:
                yield ToolResponse(waits=[self.ask.open(agent, self.text, **self.values)])
                return
            self.answers.append(answer)
            if not answer.confirmed:
                yield ToolResponse(state=ToolResultState.DENIED)
                return
        async for item in next_handler():
            yield item


def asking_agent(*layers: MiddlewareBase, responses: Any = None, **options: Any) -> Agent:
    model = ScriptedChatModel(responses or [[ADD], "done"])
    return Agent("tester", "You are tested.", model, tools=[add], middlewares=list(layers), **options)


async def hear(agent: Agent, inputs: Any, streamed: bool) -> list[AgentEvent | Msg]:
    return await items_of(agent, inputs) if streamed else [await agent.reply(inputs)]


def question_of(agent: Agent) -> RequireUserConfirmEvent:
    question = agent.waiting()
    assert isinstance(question, RequireUserConfirmEvent)
    return question


def answer_to(agent: Agent, confirmed: bool, tool_input: str | None = None, **fields: Any) -> UserConfirmResultEvent:
    question = question_of(agent)
    results = []
    for asked in question.tool_calls:
        repeated = ToolCallBlock(asked.id, asked.name, asked.input if tool_input is None else tool_input)
        results.append(ConfirmResult(confirmed, repeated, **fields))
    return UserConfirmResultEvent(question.reply_id, results)


def hidden_in(messages: list[Msg]) -> list[str]:
    """Return the ids of the calls and results in the messages that no model may see."""
    blocks = [block for message in messages for block in message.get_content_blocks(["tool_call", "tool_result"])]
    return [block.id for block in blocks if block.is_hidden]


def assert_no_model_saw(agent: Agent, *words: str) -> None:
    for request in agent.model.calls:
        assert hidden_in(request.messages) == []
        text = repr([message.to_json() for message in request.messages]) + repr(request.tools)
        for word in ("hidden:", "raise_budget", TEXT, *words):
            assert word not in text
