"""Inner layers: those next to the cores, which may be replaced between replies."""

import pickle

from agentrt import Agent, AgentBase, MiddlewareBase, Msg
from agentrt.agent.layers import InnerLayers
from agentrt.model import ScriptedChatModel


class Sign(MiddlewareBase):
    def __init__(self, word: str, order: list[str]) -> None:
        self.word, self.order = word, order

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.order.append(self.word)
        async for item in next_handler(**input_kwargs):
            yield item


class Innermost(Sign):
    position = "innermost"


def agent_in(*layers: MiddlewareBase) -> Agent:
    return Agent("a", model=ScriptedChatModel(["one", "two", "three"]), middlewares=layers)


async def test_inner_layers_stand_inside_of_those_that_are_listed():
    order: list[str] = []
    agent = agent_in(Sign("listed", order), Innermost("listed innermost", order))
    agent.inner_layers = InnerLayers((Innermost("inner", order), Innermost("inner of inner", order)))
    await agent.reply("Hi")
    assert order == ["listed", "listed innermost", "inner", "inner of inner"]


async def test_other_inner_layers_are_compiled_at_the_next_entry():
    order: list[str] = []
    agent = agent_in()
    before = agent.chains
    for layers in ((Sign("first", order),), (Sign("second", order),), ()):
        agent.inner_layers = InnerLayers(layers)
        await agent.reply("Hi")
    assert order == ["first", "second"]
    assert agent.chains.on_reply is before.on_reply


async def test_the_same_inner_layers_are_compiled_once():
    agent = agent_in()
    agent.inner_layers = InnerLayers((Sign("", []),))
    await agent.reply("Hi")
    chains = agent.chains
    await agent.reply("Hi")
    assert agent.chains is chains


async def test_hooks_of_other_classes_leave_the_chains_as_they_are():
    class Other(AgentBase):
        """Has a hook of its own."""

    agent = agent_in()
    agent.register_instance_hook("pre_reply", "none", lambda self, kwargs: None)
    chains = agent.current_chains()
    Other.register_class_hook("pre_reply", "none", lambda self, kwargs: None)
    assert agent.current_chains() is chains


async def test_a_reply_keeps_the_inner_layers_that_it_began_with():
    order: list[str] = []

    class Replacing(AgentBase):
        """Replaces its inner layers while it replies."""

        async def reply(self, msg: str) -> Msg:
            self.inner_layers = InnerLayers((Sign("later", order),))
            self.current_chains()
            return Msg(self.name, msg, "assistant")

    agent = Replacing()
    await agent.reply("Hi")
    assert order == []
    await agent.reply("Hi")
    assert order == ["later"]


def test_a_class_without_hooks_left_has_the_layers_of_its_base():
    class Hooked(AgentBase):
        """Has a hook for a while."""

    Hooked.register_class_hook("pre_reply", "none", lambda self, kwargs: None)
    assert Hooked.inner_layers is not AgentBase.inner_layers
    Hooked.remove_class_hook("pre_reply", "none")
    assert Hooked.inner_layers is AgentBase.inner_layers


def test_hooks_of_a_pickled_agent_run_in_another_process(tmp_path, program_runner):
    agent = agent_in()
    agent.register_instance_hook("pre_reply", "print", print)
    file = tmp_path / "agent"
    file.write_bytes(pickle.dumps(agent))
    program = "import pickle, sys, pathlib; print(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()).explain())"
    loaded = program_runner.run(program, str(file))
    assert "1. ReplyHookMiddleware" in loaded.stdout
