"""`lint` names the one layer that breaks the contract of a hook, and changes nothing where none does."""

from typing import Any

import anyio
import pytest

from agentrt import Agent, MiddlewareBase, Msg, Toolkit
from agentrt.errors import ChainContractError
from agentrt.event import CustomEvent
from agentrt.message import TextBlock
from agentrt.model import ChatResponse
from agentrt.testing import Lint, ScriptedChatModel, lint
from agentrt.tool import ToolResponse
from tests.loop.helpers import add, call, order_of


class PassesOn(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item

    async def on_acting(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler()

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        return await next_handler()


class Outside(PassesOn):
    pass


class Inside(PassesOn):
    pass


class WrongType(PassesOn):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        yield "text"


class NoEnd(PassesOn):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            if not isinstance(item, Msg):
                yield item


class LosesTheResponse(PassesOn):
    async def on_acting(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            if not isinstance(item, ToolResponse):
                yield item


class YieldsAfterTheEnd(PassesOn):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item
        yield CustomEvent("too late", None)


class ChangesMessages(PassesOn):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        input_kwargs["messages"].pop(0)
        return await next_handler()


class ChangesTools(PassesOn):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        result = await next_handler()
        for tool in input_kwargs["tools"]:
            tool["function"]["description"] = ""
        return result


class ChangesTheCall(PassesOn):
    async def on_acting(self, agent, input_kwargs, next_handler):
        input_kwargs["tool_call"].input = '{"a": 1, "b": 1}'
        async for item in next_handler():
            yield item


class CutsTheStream(PassesOn):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        result = await next_handler()
        return result if isinstance(result, ChatResponse) else self.pieces(result)

    async def pieces(self, stream):
        async for piece in stream:
            if not piece.is_last:
                yield piece


class InAScope(PassesOn):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        with anyio.CancelScope():
            async for item in next_handler():
                yield item


def agent(*layers: MiddlewareBase, script: Any = None) -> Agent:
    script = script or [[call("1", "add", a=1, b=2)], "It is three."]
    return Agent(
        "tester", "You are tested.", ScriptedChatModel(script, stream=True), Toolkit(tools=[add]), list(layers)
    )


@pytest.mark.parametrize(
    ("middleware", "words"),
    [
        (WrongType, r"WrongType\.on_reasoning yielded 'text', but it must yield AgentEvent or Msg"),
        (NoEnd, r"NoEnd\.on_reply ended with ReplyEndEvent\(.*, but its last item must be a Msg: pass on what"),
        (LosesTheResponse, r"LosesTheResponse\.on_acting ended with .*, but its last item must be a ToolResponse"),
        (YieldsAfterTheEnd, r"YieldsAfterTheEnd\.on_reply yielded CustomEvent\(.* after its Msg, which must come last"),
        (
            ChangesMessages,
            r"ChangesMessages\.on_model_call changed the messages that it was given, .*\(messages=\.\.\.\)",
        ),
        (ChangesTools, r"ChangesTools\.on_model_call changed the tools that it was given"),
        (ChangesTheCall, r"ChangesTheCall\.on_acting changed the tool_call that it was given"),
        (CutsTheStream, r"CutsTheStream\.on_model_call returned a stream that ended without .* is_last=True"),
        (InAScope, r"InAScope\.on_reasoning yields inside an open cancel scope or task group"),
    ],
)
async def test_layer_that_breaks_the_contract_is_named(middleware, words):
    layers = lint([Outside(), middleware(), Inside()])
    with pytest.raises(ChainContractError, match=f"^{words}"):
        await agent(*layers).reply("go")
    problems_by_lint = {repr(each): each.problems for each in layers if isinstance(each, Lint)}
    assert [name for name, problems in problems_by_lint.items() if problems] == [f"Lint({middleware.__name__})"]


class ChangesTheEndOfALongText(PassesOn):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        block = input_kwargs["messages"][-1].get_content_blocks("text")[0]
        block.text += "!"
        return await next_handler()


class ChangesTheLastOfManyBlocks(PassesOn):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        input_kwargs["messages"][-1].content[-1].text = "changed"
        return await next_handler()


@pytest.mark.parametrize(
    ("middleware", "content"),
    [
        (ChangesTheEndOfALongText, [TextBlock("long " * 1_000)]),
        (ChangesTheLastOfManyBlocks, [TextBlock(str(number)) for number in range(50)]),
    ],
)
async def test_a_change_behind_what_a_repr_shows_is_found(middleware, content):
    layers = lint([Outside(), middleware(), Inside()])
    with pytest.raises(ChainContractError, match=rf"^{middleware.__name__}\.on_model_call changed the messages"):
        await agent(*layers).reply(Msg("user", content, "user"))


class ChangesWhatIsPrinted(PassesOn):
    async def on_print(self, agent, input_kwargs, next_handler):
        input_kwargs["msg"].content.append(TextBlock("..."))
        await next_handler()


async def test_layer_that_changes_a_printed_message_is_named():
    layers = lint([Outside(), ChangesWhatIsPrinted(), Inside()])
    with pytest.raises(ChainContractError, match=r"^ChangesWhatIsPrinted\.on_print changed the msg that it was given"):
        await agent(*layers).reply("go")


class Hears(PassesOn):
    async def on_observe(self, agent, input_kwargs, next_handler):
        await next_handler()


class ChangesWhatIsObserved(PassesOn):
    async def on_observe(self, agent, input_kwargs, next_handler):
        await next_handler()
        input_kwargs["msg"].content = "Hurry."


@pytest.mark.parametrize("order", [(Hears, ChangesWhatIsObserved), (ChangesWhatIsObserved, Hears)])
async def test_layer_that_changes_an_observed_message_is_named(order):
    layers = lint([each() for each in order])
    with pytest.raises(
        ChainContractError, match=r"^ChangesWhatIsObserved\.on_observe changed the msg that it was given"
    ):
        await agent(*layers).observe(Msg("user", "go", "user"))


def test_an_agent_does_not_print_for_lints_alone():
    assert not agent(*lint([Outside(), Inside()])).chains.layers["on_print"]


class ScopeOfACall(PassesOn):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        anyio.CancelScope().__enter__()
        return await next_handler()


class ScopeOfAnIterator(PassesOn):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.pieces = await next_handler()
        return self

    def __aiter__(self):
        return self

    async def __anext__(self):
        anyio.CancelScope().__enter__()
        return await anext(self.pieces)


@pytest.mark.parametrize(("middleware", "does"), [(ScopeOfACall, "returns"), (ScopeOfAnIterator, "yields")])
@pytest.mark.parametrize("loop", ["asyncio", "trio"])  # a loop of its own, since they leave their scopes open in it
def test_scope_that_cannot_be_left_is_blamed_on_its_opener(loop, middleware, does):
    with pytest.raises(
        ChainContractError, match=rf"^{middleware.__name__}\.on_model_call {does} inside an open cancel"
    ):
        anyio.run(agent(*lint([Outside(), middleware(), Inside()])).reply, "go", backend=loop)


async def test_lint_does_not_change_events_of_correct_layers():
    plain = await order_of(agent(Outside(), Inside()))
    layers = lint([Outside(), Inside()])
    assert await order_of(agent(*layers)) == plain
    assert [repr(each) for each in layers if isinstance(each, Lint)] == [
        "Lint(Outside)",
        "Lint(Inside)",
        "Lint(the core)",
    ]


async def test_model_that_breaks_the_contract_is_not_a_layers_fault():
    stream = [ChatResponse([TextBlock("a")], False), ChatResponse([TextBlock("a")]), ChatResponse([TextBlock("b")])]
    layers = lint([Outside()])

    class Model(ScriptedChatModel):
        async def _call(self, messages, tools, tool_choice):
            return self.pieces()

        async def pieces(self):
            for piece in stream:
                yield piece

    with pytest.raises(ChainContractError, match=r"^the core of on_model_call yielded ChatResponse\(.* after its Chat"):
        await Agent("tester", model=Model([]), middlewares=layers).reply("go")


async def test_lint_takes_the_position_of_the_layer_it_watches():
    class First(PassesOn):
        position = "outermost"

    class Last(PassesOn):
        position = "innermost"

    linted = agent(*lint([First(), Outside(), Last()]))
    assert (await linted.reply("go")).get_text_content() == "It is three."
