"""Layers that guard or observe state whether sub-agents inherit them."""

import inspect
import warnings
from typing import Any

import pytest

from agentrt import Agent, MiddlewareBase, middleware
from agentrt.errors import ConfigError
from agentrt.hooks import guards_or_observes
from agentrt.model import ScriptedChatModel
from agentrt.testing import MiddlewareProblems, check_middleware
from tests.loop.helpers import add

PUBLIC = [getattr(middleware, name) for name in middleware.__all__]
SHIPPED = [cls for cls in PUBLIC if inspect.isclass(cls) and issubclass(cls, MiddlewareBase)]


def guard(hook: str, inherited: object = None) -> type[MiddlewareBase]:
    """Return a new class that overrides the hook."""

    async def call(self: Any, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return await next_handler(**input_kwargs)

    async def stream(self: Any, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        async for item in next_handler(**input_kwargs):
            yield item

    async def change(self: Any, agent: Any, value: Any) -> Any:
        return value

    def look(self: Any, agent: Any, item: Any) -> None:
        pass

    functions = {"on_acting": stream, "on_reply": stream, "on_content": change, "on_event": look}
    functions |= {"on_wire": look, "on_layer": look}
    return type("Policy", (MiddlewareBase,), {hook: functions.get(hook, call), "inherited": inherited})


def lead(*layers: MiddlewareBase, names: tuple[str, ...] = ("writer",), **options: Any) -> Agent:
    writers = [Agent(name, model=ScriptedChatModel([]), tools=[add]) for name in names]
    tools = [writer.as_tool("Writes.", **options) for writer in writers]
    return Agent("lead", model=ScriptedChatModel([]), tools=tools, middlewares=list(layers))


GUARDING = ("on_check_permission", "on_acting", "on_model_call", "on_content", "on_event", "on_wire", "on_layer")


@pytest.mark.parametrize("hook", GUARDING)
def test_a_class_that_does_not_state_it_warns_once(hook: str) -> None:
    cls = guard(hook)
    with pytest.warns(UserWarning, match="Policy guards or observes 'lead' and not its sub-agents 'writer'") as caught:
        lead(cls(), cls(), names=("writer", "reader"))
    lead(cls())  # where a further warning would be an error
    (warning,) = caught
    assert str(warning.message).endswith("set inherited = True on Policy, or False")


@pytest.mark.parametrize("inherited", [True, False])
def test_a_class_that_states_it_does_not_warn(inherited: bool) -> None:
    lead(guard("on_acting", inherited)())


def test_other_layers_and_other_agents_do_not_warn() -> None:
    lead(guard("on_reply")())
    lead(guard("on_acting")(), names=())
    lead(guard("on_acting")(), inherit=False)


def test_a_layer_of_both_agents_does_not_warn() -> None:
    layer = guard("on_acting")()
    writer = Agent("writer", model=ScriptedChatModel([]), middlewares=[layer])
    Agent("lead", model=ScriptedChatModel([]), tools=[writer.as_tool("Writes.")], middlewares=[layer])


def test_explain_has_a_line_for_each_child() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = lead(guard("on_acting")(), guard("on_event", inherited=False)(), names=("writer", "reader")).explain()
    assert text.count("guards and observers that are not inherited: Policy (not stated), Policy\n") == 2


def test_each_shipped_layer_states_it() -> None:
    assert [cls.__name__ for cls in SHIPPED if cls.inherited is None] == ["MiddlewareBase"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_kit_fails_a_class_that_does_not_state_it() -> None:
    cls = guard("on_check_permission")
    assert guards_or_observes(cls())
    with pytest.raises(
        MiddlewareProblems, match=r"does not state whether sub-agents inherit it: set `inherited = True`"
    ):
        await check_middleware(cls, faults=())


@pytest.mark.parametrize("stated", ["no", 1, ()])
def test_what_is_neither_true_nor_false_is_refused(stated: Any) -> None:
    with pytest.raises(ConfigError, match=r"Policy\.inherited must be True, False or None, not"):
        lead(guard("on_acting", inherited=stated)())
