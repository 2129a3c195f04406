"""The parts that a configuration names: values, objects of modules, layers with their terms, and the agent of them."""

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, time
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

from agentrt._runtime.named_object import import_object
from agentrt._runtime.representation import describe_setting, is_secret
from agentrt._runtime.text import mask, repr_of
from agentrt.agent import Agent
from agentrt.errors import AgentRTError, ConfigError, MiddlewareConfigError
from agentrt.middleware import Bundle, InstalledLayer, LayerEntry, Limited, MiddlewareBase, When, installed_layers
from agentrt.state import state_store

_NOT_MADE: Any = object()
"""Stands for a value that a problem was noted for."""
_EXTRA_KEY = ("unexpected_keyword_argument", "extra_forbidden")  # pydantic's words for it
_LAYER_KEYS = ("use", "options", "when", "limit", "bundle")
_NOT_IN_FILES = ("middlewares", "state")  # of an agent: its layers stand beside it, and its state in a store


class PartReader:
    """Makes the parts of one configuration, and notes all that is wrong on the way, so that one error can say it."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._problems: list[ConfigError] = []
        self._installed: list[InstalledLayer] | None = None
        self._secrets: list[str] = []  # what came from the environment, and must not be shown

    def read_agent(self, data: Mapping[str, Any]) -> Agent:
        """Return the agent; raises `ConfigError` with all problems."""
        self._check_keys("", data, ("agent", "layers"), "a configuration")
        settings = self._read_settings(data.get("agent"))
        listed = data.get("layers", [])
        if not isinstance(listed, list):
            self._note("layers", "must be a list of tables", "write [[layers]] above each", listed)
            listed = []
        layers = [self._read_layer(layer, f"layers[{place}]") for place, layer in enumerate(listed)]
        if not any(layer is _NOT_MADE for layer in layers):
            # The order can be checked without the rest.
            make = partial(Agent, **settings) if not self._problems else partial(Agent, "config", model="rules")
            try:
                agent = make(middlewares=layers)
            except MiddlewareConfigError as error:
                self._note("layers", str(error))
            except Exception as error:  # noqa: BLE001  # of a user's class: one of several problems
                self._note("agent", _text_of_error(error))
        if not self._problems:
            return agent
        problems = tuple(self._problems)
        refusal = ConfigError("\n".join(map(str, problems)))
        refusal.file, refusal.problems = self._file, problems
        raise refusal

    def _read_settings(self, table: object) -> dict[str, Any]:
        """Return the arguments of the agent, except its layers."""
        if not isinstance(table, dict):
            self._note("agent", "must be a table", 'write [agent], and below it name = "..." and model = "..."', table)
            return {}
        tools = self._load_tools(table.get("tools"))
        if "model" not in table:
            self._note("agent", "has no model", 'write model = "openai:gpt-5-mini", or "rules" for one that is offline')
        from agentrt.model import chat_model  # which loads all providers

        others = {key: value for key, value in table.items() if key != "tools"}
        makers: dict[str, Callable[[str], object]] = {"model": chat_model, "state_store": state_store}
        settings = self._read_options(Agent, others, "agent", _NOT_IN_FILES, makers)
        return {} if settings is _NOT_MADE else {**settings, "tools": tools}

    def _load_tools(self, specs: object) -> list[Any]:
        """Return the named tools; a name may be that of a list of tools."""
        if specs is None:
            return []
        if not isinstance(specs, list):
            self._note("agent.tools", "must be a list", 'write tools = ["module:name"]', specs)
            return []
        tools: list[Any] = []
        for place, spec in enumerate(specs):
            tool = self._load(spec, f"agent.tools[{place}]")
            tools += tool if isinstance(tool, (list, tuple)) else [tool]
        return tools

    def _read_layer(self, table: object, path: str) -> LayerEntry:
        """Return a layer under its terms."""
        if not isinstance(table, dict):
            self._note(path, "must be a table", 'write use = "..." in it', table)
            return _NOT_MADE  # type: ignore[no-any-return]
        before = len(self._problems)
        self._check_keys(path, table, _LAYER_KEYS, "a layer")
        cls = self._find_class(table.get("use"), f"{path}.use")
        layer = _NOT_MADE
        if cls is not _NOT_MADE:
            options = self._read_options(cls, table.get("options", {}), f"{path}.options")
            if options is not _NOT_MADE:
                layer = self._make(f"{path}.options", cls, **options)
        entry = self._add_terms(layer, table, path)
        return _NOT_MADE if len(self._problems) > before else entry  # type: ignore[no-any-return]

    def _add_terms(self, layer: Any, table: Mapping[str, Any], path: str) -> Any:
        entry = MiddlewareBase() if layer is _NOT_MADE else layer  # so that its terms are checked in any case
        if "limit" in table:
            limit = self._read_options(Limited, table["limit"], f"{path}.limit", ("layer",))
            if limit is not _NOT_MADE:
                entry = self._make(f"{path}.limit", Limited, entry, **limit)
        if "when" in table:
            predicate = self._load(table["when"], f"{path}.when")
            if predicate is not _NOT_MADE:
                entry = self._make(f"{path}.when", When, predicate, entry)
        if "bundle" in table:
            entry = self._make(f"{path}.bundle", Bundle, table["bundle"], [entry])
        return entry

    def _find_class(self, use: object, path: str) -> Any:
        """Return the class that `use` names: one that ships, one that is installed, or "module:Class"."""
        if not isinstance(use, str) or not use:
            self._note(path, "must name a layer", 'write use = "RetryMiddleware", or "module:Class"', use)
            return _NOT_MADE
        if ":" in use:
            return self._load_class(use, path)
        shipped = _shipped_layers()
        if use in shipped:
            return shipped[use]
        if self._installed is None:
            self._installed = installed_layers()  # once, since it reads the files of all distributions
        installed = self._installed
        offers = [layer for layer in installed if layer.name == use]
        if len(offers) == 1:
            return self._load_class(offers[0].target, path)
        if offers:
            owners = " and ".join(f"{layer.distribution} ({layer.target})" for layer in offers)
            self._note(path, f"{use!r} is offered by {owners}", "write the one that you mean, as module:Class", use)
        else:
            names = {*shipped, *(layer.name for layer in installed)}
            remedy = _nearest(use, names) or "name one that ships, one that is installed, or module:Class"
            self._note(path, f"{use!r:.200} is the name of no layer", remedy, use)
        return _NOT_MADE

    def _load_class(self, target: str, path: str) -> Any:
        cls = self._load(target, path)
        if cls is not _NOT_MADE and not (isinstance(cls, type) and issubclass(cls, MiddlewareBase)):
            self._note(path, f"{target!r} must be a class that derives from MiddlewareBase, not {repr_of(cls)}")
            return _NOT_MADE
        return cls

    def _read_options(
        self,
        cls: Callable[..., Any],
        given: object,
        path: str,
        left_out: Collection[str] = (),
        makers: Mapping[str, Callable[[str], object]] | None = None,
    ) -> Any:
        """Return the keyword arguments for a class, checked by its annotations; `makers` take those that are texts."""
        if not isinstance(given, dict):
            self._note(path, "must be a table of options", value=given)
            return _NOT_MADE
        before = len(self._problems)
        parameters = _accepted_options(cls, left_out)
        names = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
        if len(names) == len(parameters):
            self._check_keys(path, given, names, cls.__name__)
        else:
            self._check_texts(path, given)
        options = {}
        for name, value in given.items():
            place = f"{path}.{name}"
            found = self._resolve(value, place, hidden=is_secret(name, value))
            if found is not _NOT_MADE and name in names:
                found = self._check_type(parameters[name].annotation, found, value, place)
            if makers and name in makers and isinstance(found, str):
                found = self._make(place, makers[name], found)
            options[name] = found
        required = [name for name in names if parameters[name].default is inspect.Parameter.empty]
        for name in required:
            if name not in given:
                self._note(path, f"{cls.__name__} needs {name!r}", f"write {name} = ...")
        return _NOT_MADE if len(self._problems) > before else options

    def _check_type(self, annotation: Any, found: object, written: object, path: str) -> Any:
        """Return the value as its annotation asks for it, so that a dataclass may be written as a table."""
        from pydantic import ConfigDict, TypeAdapter, ValidationError

        if annotation is inspect.Parameter.empty or annotation is Any:
            return found
        try:
            # In a tuple, since a dataclass by itself takes no configuration.
            adapter = TypeAdapter(tuple[annotation], config=ConfigDict(arbitrary_types_allowed=True, extra="forbid"))
        except Exception:  # noqa: BLE001  # a type that pydantic does not know: the constructor looks at the value
            return found
        try:
            [value] = adapter.validate_python((found,))
            if hasattr(value, "__next__"):
                return list(value)  # an Iterable is checked as it is read
            if not _is_converted(found, value) or isinstance(written, dict):  # a variable is always a str
                return value
            extra = []
        except ValidationError as error:
            extra = [str(detail["loc"][-1]) for detail in error.errors() if detail["type"] in _EXTRA_KEY]
        except TypeError:  # of a protocol that cannot be asked for at run time
            return found
        what = f"must be {_describe_annotation(annotation)}, not {self._show(written)}"
        self._note(path, f"{what}, where {extra[0]!r} is unknown" if extra else what, value=written)
        return _NOT_MADE

    def _resolve(self, value: object, path: str, *, hidden: bool = False) -> Any:
        """Return the value with what its variables and names stand for."""
        match value:
            case {"env": str(name), **others} if not others:
                text = os.environ.get(name)
                if text is None:
                    self._note(
                        path, f"the environment variable {name!r:.200} is not set", f"set {name:.200}", {"env": name}
                    )
                    return _NOT_MADE
                self._secrets.append(text)
                return text
            case {"ref": str(name), **others} if not others:
                return self._load(name, path)
        if isinstance(value, dict):
            if not self._check_texts(path, value):
                return _NOT_MADE
            entries = {
                key: self._resolve(item, f"{path}.{key}", hidden=hidden or is_secret(key, item))
                for key, item in value.items()
            }
            return _NOT_MADE if any(item is _NOT_MADE for item in entries.values()) else entries
        if isinstance(value, list):
            items = [self._resolve(item, f"{path}[{place}]", hidden=hidden) for place, item in enumerate(value)]
            return _NOT_MADE if any(item is _NOT_MADE for item in items) else items
        if isinstance(value, str) and (hidden or _looks_secret(value)):
            self._note(path, "is a secret, which must not stand in a file", 'write { env = "NAME" }')
            return _NOT_MADE
        if not isinstance(value, (str, bool, int, float, date, time)):
            remedy = (
                'leave it out, or write { ref = "builtins:None" }' if value is None else 'write { ref = "module:name" }'
            )
            self._note(path, f"must be plain data, not {self._show(value)}", remedy, value)
            return _NOT_MADE
        return value

    def _load(self, spec: object, path: str) -> Any:
        """Return the object that "module:name", or the table with that as its `ref`, names."""
        if isinstance(spec, dict) and spec.keys() == {"ref"}:
            spec = spec["ref"]
        if not isinstance(spec, str):
            self._note(path, "must be a name, as module:name", value=spec)
            return _NOT_MADE
        return self._make(path, partial(import_object, example="shop.rules:is_pro"), spec)

    def _make(self, path: str, make: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
        try:
            return make(*arguments, **options)
        except Exception as error:  # noqa: BLE001  # of a user's class or module: one of several problems
            words = _text_of_error(error)
        # Here, so that no error holds another one with a secret in it.
        self._note(path, words)
        return _NOT_MADE

    def _check_texts(self, path: str, table: Mapping[Any, Any]) -> bool:
        """Say whether all keys are texts; in YAML, `on` and `1` are not."""
        others = [key for key in table if not isinstance(key, str)]
        for key in others:
            self._note(path, f"has the key {key!r:.200}, which is not a str", "write it in quotes")
        return not others

    def _check_keys(self, path: str, table: Mapping[str, Any], known: Sequence[str], owner: str) -> None:
        for key in table:
            if key not in known:
                remedy = _nearest(str(key), known) or f"it has {', '.join(known) or 'none'}"
                value = None if is_secret(key, table[key]) else table[key]
                self._note(f"{path}.{key}".strip("."), f"{owner} has no {key!r:.200}", remedy, value)

    def _note(self, path: str, what: str, remedy: str = "", value: object = None) -> None:
        # Each by itself: behind the name of a secret, as paths have it, all else would look like one.
        words = ": ".join(self._masked(part) for part in (self._file, path, what, remedy) if part)
        problem = ConfigError(words.replace("\n", " "))
        problem.file, problem.path, problem.remedy = self._file, path, self._masked(remedy)
        problem.value = "" if value is None else self._show(value)
        self._problems.append(problem)

    def _show(self, value: object) -> str:
        return self._masked(describe_setting(value))

    def _masked(self, text: str) -> str:
        return mask(text, self._secrets)


def _looks_secret(text: str) -> bool:
    """Say whether text by itself is a key, or a URL with a password; prose may speak of passwords."""
    without_user = re.sub(r"://[^/\s:@]+@", "://", text)  # a URL may name one
    return len(text.split()) == 1 and mask(without_user) != without_user


def _describe_annotation(annotation: Any) -> str:
    """Describe the type of an option, without modules, and without `None`, which no file can write."""
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, get_args(annotation)))
    kind = re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(annotation)).removesuffix(" | None")
    return f"of type {kind.replace(' | ', ' or ')}"


def _is_converted(before: object, after: object) -> bool:
    """Say whether pydantic has made another plain value of one, such as a number of a str."""
    plain = (str, bool, int, float)
    is_widened = type(before) is int and type(after) is float
    return type(before) in plain and type(after) in plain and type(before) is not type(after) and not is_widened


def _shipped_layers() -> dict[str, type[MiddlewareBase]]:
    module = import_module("agentrt.middleware")
    exported = {name: getattr(module, name) for name in module.__all__}
    return {
        name: cls
        for name, cls in exported.items()
        if isinstance(cls, type) and issubclass(cls, MiddlewareBase) and cls is not MiddlewareBase
    }


def _accepted_options(cls: Callable[..., Any], left_out: Collection[str]) -> dict[str, inspect.Parameter]:
    try:
        signature = inspect.signature(cls, eval_str=True)
    except NameError:  # an annotation of a name that only a type checker knows
        signature = inspect.signature(cls)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    return {
        name: parameter.replace(annotation=Any) if isinstance(parameter.annotation, str) else parameter
        for name, parameter in signature.parameters.items()
        if name not in left_out and parameter.kind not in kinds
    }


def _nearest(word: str, known: Iterable[str]) -> str:
    matches = get_close_matches(word, list(known), 1)
    return f"did you mean {matches[0]!r}?" if matches else ""


def _text_of_error(error: Exception) -> str:
    return str(error) if isinstance(error, AgentRTError) else f"{type(error).__name__}: {error}"
