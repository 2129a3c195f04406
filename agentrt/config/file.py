"""Configurations of agents, as files and as plain data."""

import json
import tomllib
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import count
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self

from agentrt._runtime.text import repr_of
from agentrt.agent import Agent
from agentrt.config.parts import PartReader
from agentrt.config.toml import write_toml
from agentrt.errors import ConfigError

_MAX_FILE_BYTES = 1_000_000
_MAX_VALUES = 100_000  # since a few anchors of YAML may stand for any number


class AgentConfig:
    """An agent as plain data: the table `agent`, and one of `layers` for each layer, outermost first.

    It holds what was written, so secrets are names of variables. Two are equal if their data are.
    """

    __slots__ = ("_data", "file")

    def __init__(self, data: Mapping[str, Any], file: str = "") -> None:
        if not isinstance(data, Mapping):
            raise ConfigError(f"{file or 'AgentConfig'} must hold the table [agent], not {repr_of(data)}")
        try:
            self._data: dict[str, Any] = _copy_data(data, count(1))
        except RecursionError:
            raise ConfigError(f"{file or 'AgentConfig'} holds tables or lists that are nested too deeply") from None
        except OverflowError:
            raise ConfigError(f"{file or 'AgentConfig'} holds more than {_MAX_VALUES:,} values") from None
        self.file = file
        """Where it was read, for errors; empty for data of a program."""

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Self:
        """Return what a file holds: TOML, JSON or YAML by its suffix; YAML needs the package PyYAML.

        Raises `ConfigError` for a file that cannot be read. Its values are checked by `build`.
        """
        file = fspath(path)
        parsers: dict[str, Callable[[str], Any]] = {
            ".toml": tomllib.loads,
            ".json": json.loads,
            ".yaml": _parse_yaml,
            ".yml": _parse_yaml,
        }
        parse = parsers.get(Path(file).suffix.lower())
        if parse is None:
            raise ConfigError(f"{file!r} must be TOML, JSON or YAML: name it, for example, agentrt.toml")
        data: Any = None
        problem: str | None = None
        try:
            with open(file, "rb") as opened:
                content = opened.read(_MAX_FILE_BYTES + 1)
            if len(content) > _MAX_FILE_BYTES:
                problem = f"it has more than {_MAX_FILE_BYTES:,} bytes"
            else:
                data = parse(content.decode("utf-8-sig"))  # editors of Windows begin a file with a mark
        except OSError as error:
            problem = str(error.strerror)
        except UnicodeDecodeError:
            problem = "it is not UTF-8 text"
        except RecursionError:
            problem = "its tables are nested too deeply"
        except ValueError as error:
            problem = str(error)
        if problem is not None:  # raised here, since what a parser raises may quote the file, with a secret in it
            raise ConfigError(f"{file!r} cannot be read: {problem}")
        return cls(data, file)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the configuration with a copy of these data."""
        return cls(data)

    def build(self) -> Agent:
        """Return a new agent, whose `config` is this one.

        Raises `ConfigError` with all `problems` at once: keys and layers that do not exist, options that are missing or
        of a wrong type, variables that are not set, secrets that are written out, and a wrong order of layers.
        """
        agent = PartReader(self.file).read_agent(self._data)
        agent.config = self
        return agent

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the data."""
        data: dict[str, Any] = _copy_data(self._data, count(1))
        return data

    def to_toml(self) -> str:
        """Return the data as TOML, which reads back equal."""
        return write_toml(self._data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AgentConfig) and self._data == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # its data are dicts

    def __repr__(self) -> str:
        # Without values: one may be a secret that was written out, which `build` will refuse.
        return f"<AgentConfig {self.file or 'of a program'!r}>"


def load_agent(path: str | PathLike[str]) -> Agent:
    """Return the agent that a file describes: `AgentConfig.from_file(path).build()`."""
    return AgentConfig.from_file(path).build()


def _copy_data(value: Any, numbers: "count[int]") -> Any:
    if next(numbers) > _MAX_VALUES:
        raise OverflowError
    if isinstance(value, Mapping):
        return {key: _copy_data(item, numbers) for key, item in value.items()}
    return [_copy_data(item, numbers) for item in value] if isinstance(value, list) else value


def _parse_yaml(text: str) -> Any:
    try:
        yaml = import_module("yaml")
    except ModuleNotFoundError:
        raise ConfigError("YAML needs the package PyYAML: install it, or write TOML") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        # Its own text quotes lines of the file.
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark is not None else ""
        problem = f"{getattr(error, 'problem', None) or 'it is not YAML'}{line}"
    raise ValueError(problem)
