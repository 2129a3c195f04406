"""The changes to agents that clients may request: a guard that they can leave out guards nothing."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from agentrt.agent import Agent
from agentrt.errors import AgentRTError, ConfigError
from agentrt.hooks import MiddlewareBase
from agentrt.runner.base import RunnerBase
from agentrt.serving.failure import ApiError
from agentrt.serving.owners.sessions import OwnerSessions

PlaygroundSetting: TypeAlias = bool | Sequence[type[MiddlewareBase] | str]
"""`True` allows everything, a list only to leave out these layers, by their classes or keys."""

CHANGE_FIELDS = ("at", "without", "system_prompt", "model", "effects")
_EFFECTS = ("ask", "record", "run")
_MAX_CHANGED_LAYERS = 100


class Playground:
    """Makes the agents with which clients run a recorded run again."""

    def __init__(self, setting: PlaygroundSetting, runners: Mapping[str, RunnerBase], *, has_owners: bool) -> None:
        self._allows_all = setting is True
        if setting is True and has_owners:
            raise ConfigError(
                "create_app(playground=True) lets clients leave out any guard, so it cannot be combined with auth: "
                "give a list of the layers that may be left out"
            )
        layers: Any = [] if isinstance(setting, bool) else setting
        if isinstance(layers, str) or not isinstance(layers, Sequence):
            raise ConfigError(
                f"create_app(playground=...) must be True, False or a list of classes and keys of middlewares, "
                f"not {setting!r:.100}"
            )
        self._is_open = setting is not False
        # By keys, which clients know from `/api/chains`.
        self._allowed = {name: _keys_of(runner.agent, layers) for name, runner in runners.items()}
        for layer in layers:
            if not any(_keys_of(runner.agent, [layer]) for runner in runners.values()):
                title = layer.__name__ if isinstance(layer, type) else repr(layer)
                raise ConfigError(f"create_app(playground=[...{title:.100}...]): no agent has such a middleware")

    def allowed_layers(self, agent_name: str) -> bool | list[str]:
        """Return the keys of the layers that clients may leave out: `True` for any, `False` if nothing runs again."""
        return self._allows_all or (sorted(self._allowed[agent_name]) if self._is_open else False)

    def vary(self, sessions: OwnerSessions, agent_name: str, body: Mapping[str, Any]) -> Agent:
        """Return the agent with the changes in the body; raises `ApiError` for those that are not allowed.

        `agent_name` is the name of the recorded agent: another agent may have fewer guards.
        """
        agent = sessions.agent
        without, effects = body.get("without", []), body.get("effects", "ask")
        texts = {name: body[name] for name in ("system_prompt", "model") if body.get(name) is not None}
        if not self._is_open:
            raise _forbidden("this server does not let clients run a recorded run again")
        if not isinstance(without, list) or not all(isinstance(key, str) for key in without):
            raise ApiError(400, "invalid_body", "'without' must be a list of keys of layers")
        if len(without) > _MAX_CHANGED_LAYERS or not all(isinstance(text, str) for text in texts.values()):
            raise ApiError(400, "invalid_body", "'system_prompt' and 'model' must be text, and 'without' a short list")
        if effects not in _EFFECTS:
            raise ApiError(400, "invalid_body", "'effects' must be 'ask', 'record' or 'run'")
        if not self._allows_all:
            if agent_name != agent.name:
                raise _forbidden("this server does not let clients rerun a run with another agent")
            if texts or effects == "run":
                raise _forbidden("this server does not let clients change the prompt, the model or the effects")
            if not set(without) <= self._allowed[agent.name]:
                raise _forbidden("this server does not let clients leave out all of these layers")
        try:
            varied = agent.without(*dict.fromkeys(without)) if without else agent.with_state(agent.state)
            if "system_prompt" in texts:
                varied.system_prompt = texts["system_prompt"]
            if "model" in texts:
                from agentrt.model import chat_model  # which loads all providers

                varied.model = chat_model(texts["model"])
        except AgentRTError:
            raise ApiError(
                400,
                "invalid_body",
                "the agent cannot be changed so: a layer is unknown or required, or the model is unknown",
            ) from None
        return varied


def _keys_of(agent: Agent, layers: Sequence[type[MiddlewareBase] | str]) -> set[str]:
    return {
        key
        for middleware in agent.middlewares
        for key in [agent.chains.name_of(middleware)]
        for layer in layers
        if (isinstance(middleware, layer) if isinstance(layer, type) else key == layer)
    }


def _forbidden(words: str) -> ApiError:
    return ApiError(403, "playground", f"{words}: see create_app(playground=...)")
