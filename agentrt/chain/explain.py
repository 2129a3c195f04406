"""What the chains look like, for people, programs and pages."""

import inspect
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from textwrap import indent
from typing import Literal, NotRequired, Protocol, TypedDict

from agentrt.chain.chains import Chains, Layer
from agentrt.chain.check import location_of
from agentrt.chain.order import must_wrap, reason_to_wrap
from agentrt.chain.spec import Core, Function, Middleware, ObservableCore, Shape

__all__ = ["ChildDescription", "ExplainFormat", "ToolsetDescription", "explain"]

_OUR_PACKAGES = ("agentrt", "agentrt_middleware")
_LIBRARY_FOLDERS = {"site-packages", "dist-packages"}

ExplainFormat = Literal["text", "json", "mermaid"]

# What `explain("json")` writes. Two are not written as classes, since `class` is a key of them.
_LayerDescription = TypedDict(
    "_LayerDescription",
    {"class": str, "key": str, "where": str, "because": NotRequired[list[str]], "from": NotRequired[str]},
)
_MiddlewareDescription = TypedDict(
    "_MiddlewareDescription",
    {
        "class": str,
        "key": str,
        "tools": list[str],
        "position": NotRequired[str],
        "wraps": NotRequired[list[str]],
        "wrapped_by": NotRequired[list[str]],
        "requires": NotRequired[list[str]],
        "from": NotRequired[str],
    },
)


class _HookDescription(TypedDict):
    hook: str
    shape: Shape
    wraps: str
    never: str
    layers: list[_LayerDescription]
    core: str


class _ObserverDescription(TypedDict):
    hook: str
    sees: str
    observers: list[_LayerDescription]


class _Description(TypedDict):
    agent: str
    hooks: list[_HookDescription]
    observers: list[_ObserverDescription]
    unused: dict[str, list[_LayerDescription]]
    middlewares: list[_MiddlewareDescription]
    toolsets: NotRequired[list["ToolsetDescription"]]
    children: NotRequired[list["ChildDescription"]]


class ToolsetDescription(TypedDict):
    """Tools whose list may change: what they are now, and how the toolset is doing."""

    toolset: str
    status: str
    tools: list[str]


class ChildDescription(TypedDict):
    """A tool that is an agent: its chains, as `explain(format="json")` gives them, and what it shares with others."""

    tool: str
    chains: _Description
    isolation: dict[str, str]


def explain(
    chains: Chains,
    name: str,
    cores: Mapping[str, Core],
    tools: Mapping[int, Sequence[str]],
    format: ExplainFormat = "text",
    origins: Mapping[int, str] | None = None,
    children: Sequence[ChildDescription] = (),
    toolsets: Sequence[ToolsetDescription] = (),
) -> str:
    """Return the layers of every hook from the outermost to the core, the observers, and the tools of middlewares.

    `tools` maps the `id` of a middleware to the names of its tools, and `origins` to the name of the agent that it
    comes from, where that is another one. Raises `ValueError` for an unknown format.
    """
    description = _describe_chains(chains, name, cores, tools)
    if origins:
        _note_origins(description, chains, origins)
    if children:
        description["children"] = list(children)
    if toolsets:
        description["toolsets"] = list(toolsets)
    if format == "text":
        return _Page(_write_text(description))
    if format == "json":
        return _Page(json.dumps(description, indent=2))
    if format == "mermaid":
        return _Diagram("\n".join(["flowchart LR", *_mermaid_lines(description, "")]))
    raise ValueError(f"explain(format=...) must be 'text', 'json' or 'mermaid', not {format!r}")


class _Printer(Protocol):
    """That of IPython, which would show a plain `str` in one line, with quotes."""

    def text(self, text: str) -> object: ...


class _Lines(str):
    """What IPython shows as it is, line by line."""

    __slots__ = ()

    def _repr_pretty_(self, printer: _Printer, cycle: bool) -> None:
        printer.text(self)


class _Page(_Lines):
    """What a notebook shows as it is, too."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from html import escape  # here, since only notebooks ask, and it loads the names of all of HTML's characters

        return f"<pre>{escape(self)}</pre>"


class _Diagram(_Lines):
    """What a notebook draws, where it knows how to."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return f"```mermaid\n{self}\n```"


def _describe_chains(
    chains: Chains, name: str, cores: Mapping[str, Core], tools: Mapping[int, Sequence[str]]
) -> _Description:
    functions = {hook: core for hook, core in cores.items() if not isinstance(core, ObservableCore)}
    layers = {hook: [_describe_layer(layer, chain) for layer in chain] for hook, chain in chains.layers.items()}
    return {
        "agent": name,
        "hooks": [
            {
                "hook": spec.name,
                "shape": spec.shape,
                "wraps": spec.wraps,
                "never": spec.never,
                "layers": layers[spec.name],
                "core": _place_of(functions[spec.name]),
            }
            for spec in chains.table
            if spec.name in functions
        ],
        "observers": [
            {"hook": spec.name, "sees": spec.wraps, "observers": layers[spec.name]}
            for spec in chains.table
            if spec.shape == "observer" and spec.name in cores and layers[spec.name]
        ],
        "unused": {
            spec.name: layers[spec.name] for spec in chains.table if spec.name not in cores and layers[spec.name]
        },
        "middlewares": [
            _describe_middleware(middleware, chains.name_of(middleware), tools.get(id(middleware), ()))
            for middleware in chains.middlewares
        ],
    }


def _note_origins(description: _Description, chains: Chains, origins: Mapping[int, str]) -> None:
    for middleware, described in zip(chains.middlewares, description["middlewares"], strict=True):
        if id(middleware) in origins:
            described["from"] = origins[id(middleware)]
    # Layers of hooks that the agent does not have are described apart.
    described_layers = {hook["hook"]: hook["layers"] for hook in description["hooks"]} | description["unused"]
    described_layers |= {hook["hook"]: hook["observers"] for hook in description["observers"]}
    for hook, layers in chains.layers.items():
        for layer, described_layer in zip(layers, described_layers.get(hook, ()), strict=False):
            if id(layer.middleware) in origins:
                described_layer["from"] = origins[id(layer.middleware)]


def _describe_layer(layer: Layer, layers: Sequence[Layer]) -> _LayerDescription:
    """Describe a layer, and why it is where it is, as far as it or another layer says so."""
    middleware = layer.middleware
    others = [other.middleware for other in layers]
    outer = [other for other in others if must_wrap(other, middleware)]
    inner = [other for other in others if must_wrap(middleware, other)]
    # What is implied by another reason is left out: in A > B > C, C is inside B, and hence inside A.
    outer = [one for one in outer if not any(must_wrap(one, other) for other in outer)]
    inner = [one for one in inner if not any(must_wrap(other, one) for other in inner)]
    reasons = [] if middleware.position is None else [middleware.position]
    reasons += _relations("inside", [(other, reason_to_wrap(other, middleware)) for other in outer])
    reasons += _relations("wraps", [(other, reason_to_wrap(middleware, other)) for other in inner])
    description: _LayerDescription = {
        "class": type(middleware).__name__,
        "key": layer.key,
        "where": _place_of(layer.hook),
    }
    if reasons:
        description["because"] = reasons
    return description


def _relations(relation: str, related: Sequence[tuple[Middleware, str]]) -> list[str]:
    """Return one line for each reason, with the classes that it holds for."""
    classes_by_reason: dict[str, dict[str, None]] = {}
    for middleware, reason in related:
        classes_by_reason.setdefault(reason, {})[type(middleware).__name__] = None
    return [
        f"{relation} {', '.join(classes)}{reason and f': {reason}'}" for reason, classes in classes_by_reason.items()
    ]


def _describe_middleware(middleware: Middleware, key: str, tools: Sequence[str]) -> _MiddlewareDescription:
    description: _MiddlewareDescription = {"class": type(middleware).__name__, "key": key, "tools": list(tools)}
    if middleware.position is not None:
        description["position"] = middleware.position
    if middleware.wraps:
        description["wraps"] = _class_names(middleware.wraps)
    if middleware.wrapped_by:
        description["wrapped_by"] = _class_names(middleware.wrapped_by)
    if middleware.requires:
        description["requires"] = _class_names(middleware.requires)
    return description


def _place_of(function: Function) -> str:
    """Return "module:line" of a function in a library, and else "file:line", from the current folder if it is there."""
    plain = inspect.unwrap(function)  # the place of a decorator's wrapper would say nothing
    code = getattr(plain, "__code__", None)
    if code is None:
        return location_of(function)
    file = Path(code.co_filename)
    module = str(getattr(plain, "__module__", ""))
    # Paths into an installation are long, and differ from one machine to another.
    if module.partition(".")[0] in _OUR_PACKAGES or not _LIBRARY_FOLDERS.isdisjoint(file.parts):
        return f"{module}:{code.co_firstlineno}"
    with suppress(ValueError, OSError):  # the current folder may have been removed
        file = file.relative_to(Path.cwd())
    return f"{file.as_posix()}:{code.co_firstlineno}"


def _class_names(classes: Collection[type | str]) -> list[str]:
    return [cls if isinstance(cls, str) else cls.__name__ for cls in classes]


def _write_text(description: _Description) -> str:
    lines = [f"Agent {description['agent']!r}: the chains, outermost first"]
    direct = []
    for hook in description["hooks"]:
        if not hook["layers"]:
            direct.append(hook["hook"])
            continue
        never = f"; never for {hook['never']}" if hook["never"] else ""
        lines.append(f"\n{hook['hook']} ({hook['shape']}): {hook['wraps']}{never}")
        for depth, layer in enumerate(hook["layers"], 1):
            lines.append(f"  {depth}. {_title(layer)}  {layer['where']}")
            lines += [f"     {reason}" for reason in layer.get("because", ())]
        lines.append(f"  core  {hook['core']}")
    if direct:
        lines.append(f"\nNo layer, the core is called directly: {', '.join(direct)}")
    # Without numbers, which would say that one stands inside of another.
    for observed in description["observers"]:
        lines.append(f"\n{observed['hook']} (observers, whom no layer can keep anything from): {observed['sees']}")
        lines += [f"  -  {_title(observer)}  {observer['where']}" for observer in observed["observers"]]
    for name, layers in description["unused"].items():
        lines.append(f"\nNever here, for this agent has no such step: {name} ({', '.join(map(_title, layers))})")
    for middleware in description["middlewares"]:
        if middleware["tools"]:
            lines.append(f"\nTools of {_title(middleware)}: {', '.join(middleware['tools'])}")
    for toolset in description.get("toolsets", ()):
        lines.append(f"\n{_title_of_toolset(toolset)}")
    for child in description.get("children", ()):
        lines.append(f"\nThe tool {child['tool']!r} is an agent, with chains of its own:\n")
        lines.append(indent(_write_text(child["chains"]), "    "))
        lines.append(f"\n    What is its own, and what it shares with {description['agent']!r}:")
        lines += [f"      {resource}: {rule}" for resource, rule in child["isolation"].items()]
    return "\n".join(lines)


def _title_of_toolset(toolset: ToolsetDescription) -> str:
    title = f"The toolset {toolset['toolset']!r} ({toolset['status']})"
    return f"{title}: {', '.join(toolset['tools'])}" if toolset["tools"] else title


def _title(description: _LayerDescription | _MiddlewareDescription) -> str:
    name = description["class"]
    if "from" in description:
        return f"{name}, from {description['from']!r}"
    return name if description["key"] == name else f"{name} [{description['key']}]"


def _mermaid_lines(description: _Description, prefix: str) -> list[str]:
    """Return the lines of the diagram; the prefix keeps the nodes of children apart."""
    lines, direct = [], []
    for hook in description["hooks"]:
        if not hook["layers"]:
            direct.append(hook["hook"])
            continue
        name = f"{prefix}{hook['hook']}"
        nodes = []
        for depth, layer in enumerate(hook["layers"], 1):
            parts = [_title(layer), layer["where"], *layer.get("because", ())]
            nodes.append((f"{name}_{depth}", "<br/>".join(map(_escape_label, parts))))
        nodes.append((f"{name}_core", f"core<br/>{_escape_label(hook['core'])}"))
        lines.append(f'  subgraph {name}["{hook["hook"]}"]')
        lines += [f'    {node}["{label}"]' for node, label in nodes]
        lines += [f"    {outer[0]} --> {inner[0]}" for outer, inner in pairwise(nodes)]
        lines.append("  end")
    if direct:
        lines.append(f'  {prefix}direct["No layer, the core is called directly:<br/>{"<br/>".join(direct)}"]')
    for observed in description["observers"]:
        name = f"{prefix}{observed['hook']}"
        lines.append(f'  subgraph {name}["{observed["hook"]}: observers"]')
        for number, observer in enumerate(observed["observers"], 1):
            lines.append(
                f'    {name}_{number}["{_escape_label(_title(observer))}<br/>{_escape_label(observer["where"])}"]'
            )
        lines.append("  end")
    for number, middleware in enumerate(description["middlewares"], 1):
        if middleware["tools"]:
            label = _escape_label(f"Tools of {_title(middleware)}: {', '.join(middleware['tools'])}")
            lines.append(f'  {prefix}tools_{number}["{label}"]')
    for number, toolset in enumerate(description.get("toolsets", ()), 1):
        lines.append(f'  {prefix}toolset_{number}["{_escape_label(_title_of_toolset(toolset))}"]')
    for number, child in enumerate(description.get("children", ()), 1):
        name = f"{prefix}child_{number}"
        label = _escape_label(f"The tool {child['tool']!r}: the agent {child['chains']['agent']!r}")
        rules = "<br/>".join(_escape_label(f"{resource}: {rule}") for resource, rule in child["isolation"].items())
        lines.append(f'  subgraph {name}["{label}"]')
        lines += indent("\n".join(_mermaid_lines(child["chains"], f"{name}_")), "  ").splitlines()
        lines += [f'    {name}_isolation["{rules}"]', "  end"]
    return lines


def _escape_label(label: str) -> str:
    return label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
