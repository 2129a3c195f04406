"""Files that list MCP servers, in the form that many programs share: `{"mcpServers": {...}}`."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrt._runtime.text import lazy_pattern
from agentrt.errors import ConfigError

# `${env:NAME}` is what editors write; `${input:name}`, which they ask their user for, is refused.
_ENV_VARIABLE = lazy_pattern(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*(?::[A-Za-z_][^}]*)?)(?::-([^}]*))?\}")
_REPLACED_IN_NAMES = lazy_pattern(r"[^A-Za-z0-9_-]")
_MAX_SIZE = 1_000_000


def read_servers(path: Path) -> dict[str, dict[str, Any]]:
    """Return the options of each server of the file, by its name; one that is `disabled` is left out."""
    try:
        if path.stat().st_size > _MAX_SIZE:
            raise ConfigError(f"{str(path)!r} has more than {_MAX_SIZE:,} bytes: is it a file with mcpServers?")
        content = json.loads(path.read_text(encoding="utf-8-sig"))  # some editors write a byte order mark
    except OSError as error:
        raise ConfigError(
            f"the file {str(path)!r} with MCP servers cannot be read ({error.strerror}): give the path of a file with "
            f'{{"mcpServers": {{...}}}}'
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the file {str(path)!r} with MCP servers is not JSON: {error}") from None
    # "servers" is what some editors write.
    servers = content.get("mcpServers", content.get("servers")) if isinstance(content, dict) else None
    if not isinstance(servers, dict):
        raise ConfigError(f'the file {str(path)!r} has no {{"mcpServers": {{name: {{...}}}}}} with an entry per server')
    read = {}
    for name, entry in servers.items():
        place = f"mcpServers.{name} in {str(path)!r}"
        if not isinstance(entry, dict):
            raise ConfigError(f"{place} must be an object with a command or a url, not {type(entry).__name__}")
        if entry.get("disabled"):
            continue
        # Names with spaces are common, and cannot be part of the name of a tool.
        toolset_name = _REPLACED_IN_NAMES.sub("_", name)[:64]
        if toolset_name in read:
            raise ConfigError(f"{place} would be called {toolset_name!r}, like another server of the file: rename it")
        read[toolset_name] = _options_of(place, entry)
    return read


def _options_of(place: str, entry: dict[str, Any]) -> dict[str, Any]:
    # Each of the three names of the URL is that of another program.
    command, url = entry.get("command"), entry.get("url", entry.get("serverUrl", entry.get("httpUrl")))
    if (command is None) == (url is None):
        raise ConfigError(f'{place} must have a "command" or a "url"{", and not both" if command else ""}')
    if url is not None:
        headers = _string_values(place, "headers", entry.get("headers"))
        protocol = {"protocol": "sse"} if entry.get("type") == "sse" else {}
        return {"url": _string_of(place, "url", url), "headers": headers, **protocol}
    arguments = entry.get("args", [])
    if not isinstance(arguments, list):
        raise ConfigError(f'{place}: "args" must be a list of strings, not {type(arguments).__name__}')
    words = [_string_of(place, "command", command), *(_string_of(place, "args", word) for word in arguments)]
    options: dict[str, Any] = {"command": words, "env": _string_values(place, "env", entry.get("env"))}
    if entry.get("cwd") is not None:
        options["directory"] = _string_of(place, "cwd", entry["cwd"])
    return options


def _string_values(place: str, key: str, values: object) -> dict[str, str]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        # Only the type, since the value may be a secret.
        raise ConfigError(f"{place}: {key!r} must be an object of strings, not {type(values).__name__}")
    return {str(name): _string_of(place, f"{key}.{name}", value) for name, value in values.items()}


def _string_of(place: str, key: str, value: object) -> str:
    """Return the string, in which the values of environment variables replace their names."""
    if not isinstance(value, str):
        # Only the type, since the value may be a secret.
        raise ConfigError(f"{place}: {key!r} must be a string, not {type(value).__name__}")

    def value_of(variable: re.Match[str]) -> str:
        name, default = variable.groups()
        found = os.environ.get(name, default)
        if found is None:
            raise ConfigError(f"{place}: {key!r} needs the environment variable {name}, which is not set: set it")
        return found

    return _ENV_VARIABLE.sub(value_of, value)
