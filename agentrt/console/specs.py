"""Tools and models named on a command line, as `module:name`."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrt._runtime import named_object
from agentrt.agent import Agent, AgentBase
from agentrt.console.folder_tools import folder_tools
from agentrt.console.session import SessionFile
from agentrt.errors import ConfigError
from agentrt.model import ChatModelBase, RulesChatModel
from agentrt.tool import MCPToolset, OAuth, Toolkit

SYSTEM_PROMPT = "You are a helpful assistant."
"""The system prompt of a chat without an agent of the user's."""
_TOOLS_EXAMPLE = "my_tools:search; or folder, for tools that only read the current folder"


def load_toolkit(specs: Sequence[str]) -> Toolkit:
    """Return one toolkit with the named tools: each spec names a function, a tool, a list of these, or a `Toolkit`.

    The spec "folder" means the `folder_tools` of the current folder.
    """
    toolkits: list[Toolkit] = []
    tools: list[Any] = []
    for spec in specs:
        loaded = folder_tools() if spec == "folder" else load_object(spec)
        if isinstance(loaded, Toolkit):
            toolkits.append(loaded)
        elif isinstance(loaded, (list, tuple)):
            tools += loaded
        else:
            tools.append(loaded)
    if len(toolkits) > 1:
        raise ConfigError(
            f"only one of {', '.join(specs)} may be a Toolkit: name lists of tools, or one Toolkit with all of them"
        )
    return (toolkits[0] if toolkits else Toolkit()).with_tools(tools)


def load_named_agent(options: argparse.Namespace) -> Agent:
    """Return the `Agent` that the options name, or the agent of the runner that they name."""
    loaded = load_target(options)
    if isinstance(loaded, Agent):
        return loaded
    from agentrt.runner.base import RunnerBase  # a chat needs none otherwise

    if isinstance(loaded, RunnerBase):
        return loaded.agent
    raise ConfigError(f"{options.agent!r} must name an Agent or a Runner, not {loaded!r:.200}")


def load_chat_agent(options: argparse.Namespace, session: SessionFile | None) -> Agent:
    """Return the agent that `options.agent` names, or an assistant that the other options describe.

    It continues the conversation in the session file, and saves to it. Raises `ConfigError` for options that would
    change an agent of the user's.
    """
    state = session.read() if session is not None else None
    if options.agent is None and options.config is None:
        model = load_model(options.model)
        default_tools = ["folder"] if isinstance(model, RulesChatModel) else []
        return Agent(
            "assistant",
            SYSTEM_PROMPT if options.system is None else options.system,
            model,
            load_toolkit(options.tools or default_tools),
            tools=load_mcp_servers(options.mcp),
            state=state,
            state_store=session,
        )
    surplus = [f"--{name}" for name in ("model", "tools", "mcp", "system") if getattr(options, name) not in (None, [])]
    if surplus:
        name = options.agent or options.config
        raise ConfigError(f"{name!r} already has a model, tools and a system prompt: leave out {' and '.join(surplus)}")
    agent = load_named_agent(options)
    agent.set_console_output_enabled(False)  # the chat shows its replies
    if session is not None:
        agent.state_store = session
    return agent if state is None else agent.with_state(state)


def load_mcp_servers(specs: Sequence[str]) -> list[MCPToolset]:
    """Return the toolsets of MCP servers: each spec is a command, a URL, or a .json file with `mcpServers`."""
    toolsets: list[MCPToolset] = []
    for spec in specs:
        name = f"server{len(toolsets) + 1 if toolsets else ''}"
        if spec.startswith(("http://", "https://")):
            # Over plain HTTP, tokens could be read on the way.
            toolsets.append(MCPToolset(name, url=spec, auth=OAuth() if spec.startswith("https://") else None))
        elif spec.endswith(".json") and " " not in spec:
            toolsets += MCPToolset.from_config(spec)
        else:
            toolsets.append(MCPToolset(name, command=spec))
    return toolsets


def load_model(spec: str | None) -> ChatModelBase:
    """Return the model that `chat_model(spec)` knows, or the `ChatModelBase` that "module:name" names.

    Without a spec, it is the one that the environment selects.
    """
    from agentrt.model.presets import PRESETS, chat_model, environment_model

    if spec is None:
        return environment_model() or RulesChatModel()  # a chat says itself that it is offline
    module_name, colon, _ = spec.partition(":")
    package = module_name.partition(".")[0]
    # A preset wins over a module of that name, so that a stray file cannot replace it.
    if not colon or not package or package in {*PRESETS, "rules"}:
        return chat_model(spec)
    _add_folder(os.getcwd())
    if find_spec(package) is None:
        return chat_model(spec)
    model = load_object(spec)
    if isinstance(model, type) and issubclass(model, ChatModelBase):
        make: Callable[[], ChatModelBase] = model
        try:
            model = make()
        except Exception as error:  # the class may raise anything
            raise ConfigError(
                f"{spec!r} cannot be called without arguments ({error!r:.500}): name an instance instead"
            ) from error
    if not isinstance(model, ChatModelBase):
        raise ConfigError(f"{spec!r} must name a ChatModelBase, class or instance, not {model!r:.200}")
    return model


def _add_folder(folder: str) -> None:
    # Last, so that no file in that folder hides a module of Python, agentrt or a provider's package.
    if folder not in (os.path.abspath(place) for place in sys.path):
        sys.path.append(folder)


def load_object(spec: str, *, example: str = _TOOLS_EXAMPLE) -> Any:
    """Return the object that "module:name" names, of a module that may be in the current folder."""
    _add_folder(os.getcwd())
    return named_object.import_object(spec, example=example, agents=AgentBase)


def load_target(options: argparse.Namespace) -> Any:
    """Return the object that `options.agent` names, or the agent that the file `options.config` describes.

    Its modules may be in the folder of the file.
    """
    if options.config is None:
        return load_object(options.agent, example="app:agent")
    _add_folder(str(Path(options.config).resolve().parent))
    from agentrt.config import load_agent  # which loads all layers that ship

    return load_agent(options.config)
