"""`lint` and `check_middleware` name the layer inside of which a request no longer begins like the last one."""

from itertools import count

import pytest

from agentrt import Agent, MiddlewareBase, Toolkit
from agentrt.errors import ChainContractError
from agentrt.middleware import DynamicContextMiddleware, KeepLastMiddleware, TrimToolResultsMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.testing import MiddlewareProblems, check_middleware, lint
from agentrt.tool import FunctionTool
from tests.loop.helpers import add, call

NUMBERS = count()


class PassesOn(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler()

    async def on_system_prompt(self, agent, current_prompt):
        return current_prompt

    async def on_tools(self, agent, current_tools):
        return current_tools


class Numbered(MiddlewareBase):
    def __init__(self):
        self.numbers = count()


class Clock(Numbered):
    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt} {next(self.numbers)}"


class NewTools(Numbered):
    async def on_tools(self, agent, current_tools):
        async def run() -> str:
            return "done"

        return [*current_tools, FunctionTool(run, name=f"tool_{next(self.numbers)}", description="Run.")]


class Reorders(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        system, *rest = input_kwargs["messages"]
        return await next_handler(messages=[system, *reversed(rest)])


class Declared(Reorders):
    rewrites = ("history",)


class Shows(MiddlewareBase):
    """Shows a tool where a choice names it."""

    async def on_model_call(self, agent, input_kwargs, next_handler):
        is_named = input_kwargs["tool_choice"] is not None and input_kwargs["tool_choice"].mode == "add"
        return await next_handler(tools=input_kwargs["tools"] if is_named else [])


async def reply_twice(*layers):
    script = [[call("1", "add", a=1, b=2)], "Three."] * 2
    linted = lint([PassesOn(), *layers, PassesOn()])
    agent = Agent("tester", "Be brief.", ScriptedChatModel(script), Toolkit(tools=[add]), middlewares=linted)
    for _ in range(2):
        await agent.reply("go")


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Clock(), r"^Clock\.on_system_prompt changed the system prompt .*rewrites = \('system',\) on Clock"),
        (NewTools(), r"^NewTools\.on_tools changed the tools from one request to the next"),
        (Reorders(), r"^Reorders\.on_model_call changed the history from one request to the next"),
    ],
)
async def test_the_layer_that_moves_a_part_is_named(layer, words):
    with pytest.raises(ChainContractError, match=words):
        await reply_twice(layer)


async def test_a_layer_that_moves_what_it_declares_is_not_named():
    await reply_twice(Declared(), DynamicContextMiddleware(lambda: str(next(NUMBERS))))


async def test_a_named_choice_may_show_other_tools():
    class ChooseOnce(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            has_result = any(message.has_content_blocks("tool_result") for message in input_kwargs["messages"])
            return await next_handler(tool_choice=None if has_result else "add")

    await reply_twice(ChooseOnce(), Shows())


async def test_an_answer_of_an_outer_layer_moves_nothing():
    class Answers(Numbered):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            if next(self.numbers) == 1:
                return await ScriptedChatModel(["Three."], stream=False)([])
            return await next_handler()

    await reply_twice(Declared(), Answers())


async def test_the_kit_names_an_undeclared_move():
    with pytest.raises(MiddlewareProblems, match=r"Reorders\.on_model_call changed the history"):
        await check_middleware(Reorders, faults=())


@pytest.mark.parametrize("layer", [KeepLastMiddleware, TrimToolResultsMiddleware, DynamicContextMiddleware])
def test_shipped_layers_declare_what_they_rewrite(layer):
    assert layer.rewrites in (("history",), ("system",))
