"""A middleware asks the user which of two accounts to use; no model sees the question or the answer."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Literal

from agentrt import Agent, AgentState, MiddlewareBase, Msg
from agentrt.event import AgentEvent, RequireUserConfirmEvent
from agentrt.middleware import NextReasoning, Question, ReasoningValues
from agentrt.model import ScriptedChatModel


class WhichAccount(MiddlewareBase):
    """Asks once per conversation, before the first model call."""

    def __init__(self) -> None:
        self.ask = Question("which_account", account=Literal["private", "work"])

    def list_tools(self) -> list[Question]:
        return [self.ask]

    async def on_reasoning(
        self, agent: Agent, input_kwargs: ReasoningValues, next_handler: NextReasoning
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        chosen = agent.state_of(self)
        answer = self.ask.answer(agent)
        if answer is not None:
            chosen["account"] = answer.input["account"] if answer.confirmed else "none"
        if "account" not in chosen:
            yield self.ask.message(agent, "Which account shall I use?", account="work")
            return
        async for item in next_handler():
            yield item


async def main() -> None:
    layer, model = WhichAccount(), ScriptedChatModel(["The flight is booked."])
    agent = Agent("assistant", model=model, middlewares=[layer])
    await agent.reply("Book OS 831.")
    saved = agent.state.model_dump_json()

    later = Agent("assistant", model=model, middlewares=[layer], state=AgentState.model_validate_json(saved))
    question = later.waiting()
    assert isinstance(question, RequireUserConfirmEvent)
    [call] = question.tool_calls
    print(question.questions[call.id].message, call.input)
    msg = await later.reply(question.answer({"account": "private"}))
    print(msg.get_text_content(), "It is paid from the account:", later.state_of(layer)["account"])
    [request] = model.calls
    assert not request.tools
    assert "account" not in str(request.messages)


if __name__ == "__main__":
    asyncio.run(main())
