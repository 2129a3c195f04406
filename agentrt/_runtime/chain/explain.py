"""Descriptions of the chains, for people, programs and pages."""

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from textwrap import indent
from typing import Literal, NamedTuple, NotRequired, Protocol, TypedDict

from agentrt._runtime.chain.chains import Chains, Layer
from agentrt._runtime.chain.check import location_of
from agentrt._runtime.chain.order import must_wrap, reason_to_wrap
from agentrt._runtime.chain.spec import REQUEST_PARTS, Core, Function, Middleware, ObservableCore, Shape, StreamCore
from agentrt._runtime.chain.terms.entries import Terms

_OUR_PACKAGES = ("agentrt", "agentrt_middleware")
_LIBRARY_FOLDERS = {"site-packages", "dist-packages"}

ExplainFormat = Literal["text", "json", "mermaid"]

# What `explain("json")` writes. Two are not written as classes, since `class` is a key of them.
_LayerDescription = TypedDict(
    "_LayerDescription",
    {
        "class": str,
        "key": str,
        "where": str,
        "because": NotRequired[list[str]],
        "terms": NotRequired[list[str]],
        "bundle": NotRequired[str],
        "from": NotRequired[str],
        "package": NotRequired[str],
    },
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
        "rewrites": NotRequired[list[str]],
        "about": NotRequired[list[str]],
        "bundle": NotRequired[str],
        "from": NotRequired[str],
        "package": NotRequired[str],
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
    inner_tools: NotRequired[dict[str, list[str]]]
    children: NotRequired[list["ChildDescription"]]
    background: NotRequired[list[str]]


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


class ToolDescriptions(NamedTuple):
    """The tools that `explain` shows.

    Those of middlewares, by their `id()`; toolsets; agents that are tools; tools that others call; tools whose calls
    are let go.
    """

    of_middlewares: Mapping[int, Sequence[str]] = {}
    toolsets: Sequence[ToolsetDescription] = ()
    children: Sequence[ChildDescription] = ()
    inner_tools: Mapping[str, list[str]] = {}
    background: Sequence[str] = ()


def explain(
    chains: Chains,
    name: str,
    cores: Mapping[str, Core],
    tools: Mapping[int, Sequence[str]],
    format: ExplainFormat = "text",
    origins: Mapping[int, str] | None = None,
    children: Sequence[ChildDescription] = (),
    toolsets: Sequence[ToolsetDescription] = (),
    inner_tools: Mapping[str, list[str]] | None = None,
    packages: Mapping[int, str] | None = None,
    about: Mapping[int, Sequence[str]] | None = None,
    background: Sequence[str] = (),
) -> str:
    """Return the layers of every hook from the outermost to the core, the observers, and the tools of middlewares.

    `tools` maps the `id` of a middleware to the names of its tools, `origins` to the name of the agent that it comes
    from, where that is another one, `packages` to the package that has installed it, and `about` to lines of its own.
    `inner_tools` maps the name of a tool to those of the tools that it calls. `background` has the names of the tools
    whose calls are let go. Raises `ValueError` for an unknown format.
    """
    description = _describe_chains(chains, name, cores, tools)
    _note(description, chains, "from", origins or {})
    _note(description, chains, "package", packages or {})
    for middleware, described in zip(chains.middlewares, description["middlewares"], strict=True):
        if lines := (about or {}).get(id(middleware)):
            described["about"] = list(lines)
    if children:
        description["children"] = list(children)
    if toolsets:
        description["toolsets"] = list(toolsets)
    if inner_tools:
        description["inner_tools"] = dict(inner_tools)
    if background:
        description["background"] = list(background)
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
    """Text that IPython shows unquoted, line by line."""

    __slots__ = ()

    def _repr_pretty_(self, printer: _Printer, cycle: bool) -> None:
        printer.text(self)


class _Page(_Lines):
    """Text that a notebook also shows unchanged."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from html import escape  # here, since only notebooks ask, and it loads the names of all of HTML's characters

        return f"<pre>{escape(self)}</pre>"


class _Diagram(_Lines):
    """A diagram that a notebook draws, if it can."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return f"```mermaid\n{self}\n```"


def _describe_chains(
    chains: Chains, name: str, cores: Mapping[str, Core], tools: Mapping[int, Sequence[str]]
) -> _Description:
    functions = {
        hook: core.plain if isinstance(core, StreamCore) else core
        for hook, core in cores.items()
        if not isinstance(core, ObservableCore)
    }
    layers = {
        hook: [_describe_layer(layer, chain, chains.terms.by_layer.get(id(layer.middleware))) for layer in chain]
        for hook, chain in chains.layers.items()
    }
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
            _describe_middleware(
                middleware,
                chains.name_of(middleware),
                tools.get(id(middleware), ()),
                chains.terms.by_layer.get(id(middleware)),
            )
            for middleware in chains.middlewares
        ],
    }


def _note(description: _Description, chains: Chains, key: Literal["from", "package"], texts: Mapping[int, str]) -> None:
    """Add the texts, by the `id`s of middlewares, wherever these are described."""
    if not texts:
        return
    for middleware, described in zip(chains.middlewares, description["middlewares"], strict=True):
        if id(middleware) in texts:
            described[key] = texts[id(middleware)]
    # Layers of hooks that the agent does not have are described apart.
    described_layers = {hook["hook"]: hook["layers"] for hook in description["hooks"]} | description["unused"]
    described_layers |= {hook["hook"]: hook["observers"] for hook in description["observers"]}
    for hook, layers in chains.layers.items():
        for layer, described_layer in zip(layers, described_layers.get(hook, ()), strict=False):
            if id(layer.middleware) in texts:
                described_layer[key] = texts[id(layer.middleware)]


def _describe_layer(layer: Layer, layers: Sequence[Layer], terms: Terms | None) -> _LayerDescription:
    """Describe a layer, and why it is where it is, as far as it or another layer says so."""
    middleware = layer.middleware
    others = [other.middleware for other in layers]
    outer = _nearest_relations(others, lambda other, inner: must_wrap(other, inner), middleware)
    inner = _nearest_relations(others, lambda other, outer: must_wrap(outer, other), middleware)
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
    conditions = () if terms is None else terms.conditions
    stated = [f"where {condition.name} holds" for condition in conditions]
    if layer.limit is not None:
        seconds, on_failure, _ = layer.limit
        stated.append(f"at most {seconds:g} s of its own, or {on_failure}; code that blocks is not stopped")
    if stated:
        description["terms"] = stated
    if terms is not None and terms.bundles:
        description["bundle"] = " / ".join(terms.bundles)
    return description


def _nearest_relations(
    middlewares: Sequence[Middleware], is_beyond: Callable[[Middleware, Middleware], bool], middleware: Middleware
) -> list[Middleware]:
    """Return those beyond a middleware, without those that others imply: in A > B > C, A wraps C through B."""
    beyond = [one for one in middlewares if is_beyond(one, middleware)]
    return [one for one in beyond if not any(is_beyond(one, other) for other in beyond)]


def _relations(relation: str, related: Sequence[tuple[Middleware, str]]) -> list[str]:
    """Return one line for each reason, with the classes that it holds for."""
    classes_by_reason: dict[str, dict[str, None]] = {}
    for middleware, reason in related:
        classes_by_reason.setdefault(reason, {})[type(middleware).__name__] = None
    return [
        f"{relation} {', '.join(classes)}{reason and f': {reason}'}" for reason, classes in classes_by_reason.items()
    ]


def _describe_middleware(
    middleware: Middleware, key: str, tools: Sequence[str], terms: Terms | None
) -> _MiddlewareDescription:
    description: _MiddlewareDescription = {"class": type(middleware).__name__, "key": key, "tools": list(tools)}
    if terms is not None and terms.bundles:
        description["bundle"] = " / ".join(terms.bundles)
    if middleware.position is not None:
        description["position"] = middleware.position
    if middleware.wraps:
        description["wraps"] = _class_names(middleware.wraps)
    if middleware.wrapped_by:
        description["wrapped_by"] = _class_names(middleware.wrapped_by)
    if middleware.requires:
        description["requires"] = _class_names(middleware.requires)
    if middleware.rewrites:
        description["rewrites"] = [part for part in REQUEST_PARTS if part in middleware.rewrites]
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
            lines += [f"     {line}" for line in (*layer.get("because", ()), *layer.get("terms", ()))]
        lines.append(f"  core  {hook['core']}")
    if direct:
        lines.append(f"\nNo layer, the core is called directly: {', '.join(direct)}")
    # Without numbers, which would say that one stands inside of another.
    for observed in description["observers"]:
        lines.append(f"\n{observed['hook']} (observers; no layer can hide anything from them): {observed['sees']}")
        for observer in observed["observers"]:
            lines.append(f"  -  {_title(observer)}  {observer['where']}")
            lines += [f"     {line}" for line in observer.get("terms", ())]
    for name, layers in description["unused"].items():
        lines.append(f"\nNever here, for this agent has no such step: {name} ({', '.join(map(_title, layers))})")
    lines += _lines_about(description["middlewares"])
    for toolset in description.get("toolsets", ()):
        lines.append(f"\n{_title_of_toolset(toolset)}")
    for tool, names in description.get("inner_tools", {}).items():
        lines.append(f"\nThe tool {tool!r} calls: {', '.join(names)}")
    if "background" in description:
        lines.append(f"\n{_background_line(description['background'])}")
    for child in description.get("children", ()):
        lines.append(f"\nThe tool {child['tool']!r} is an agent, with chains of its own:\n")
        lines.append(indent(_write_text(child["chains"]), "    "))
        lines.append(f"\n    What is its own, and what it shares with {description['agent']!r}:")
        lines += [f"      {resource}: {rule}" for resource, rule in child["isolation"].items()]
    return "\n".join(lines)


def _background_line(names: Sequence[str]) -> str:
    return f"Background tools, awaited where no runner runs the agent: {', '.join(names)}"


def _lines_about(middlewares: Sequence[_MiddlewareDescription]) -> list[str]:
    """Return the lines about the middlewares themselves: their tools, their own words, what they rewrite."""
    lines: list[str] = []
    for middleware in middlewares:
        if middleware["tools"]:
            lines.append(f"\nTools of {_title(middleware)}: {', '.join(middleware['tools'])}")
        if "about" in middleware:
            lines.append(f"\n{_title(middleware)} says:")
            lines += [f"  {line}" for line in middleware["about"]]
    rewriting = [middleware for middleware in middlewares if "rewrites" in middleware]
    if rewriting:
        titles = ", ".join(f"{_title(middleware)} ({', '.join(middleware['rewrites'])})" for middleware in rewriting)
        lines.append(f"\nWhat these rewrite, no provider can read from its cache: {titles}")
    return lines


def _title_of_toolset(toolset: ToolsetDescription) -> str:
    title = f"The toolset {toolset['toolset']!r} ({toolset['status']})"
    return f"{title}: {', '.join(toolset['tools'])}" if toolset["tools"] else title


def _title(description: _LayerDescription | _MiddlewareDescription) -> str:
    name = description["class"]
    bundle = description.get("bundle")
    if bundle is not None:
        name = f"{bundle} / {name}"
    if "package" in description:
        name = f"{name} of {description['package']}"
    if "from" in description:
        return f"{name}, from {description['from']!r}"
    return name if description["key"] == description["class"] else f"{name} [{description['key']}]"


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
            parts = [_title(layer), layer["where"], *layer.get("because", ()), *layer.get("terms", ())]
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
        if "about" in middleware:
            label = "<br/>".join(map(_escape_label, [f"{_title(middleware)} says:", *middleware["about"]]))
            lines.append(f'  {prefix}about_{number}["{label}"]')
    for number, toolset in enumerate(description.get("toolsets", ()), 1):
        lines.append(f'  {prefix}toolset_{number}["{_escape_label(_title_of_toolset(toolset))}"]')
    for number, (tool, names) in enumerate(description.get("inner_tools", {}).items(), 1):
        label = _escape_label(f"The tool {tool!r} calls: {', '.join(names)}")
        lines.append(f'  {prefix}calling_{number}["{label}"]')
    if "background" in description:
        lines.append(f'  {prefix}background["{_escape_label(_background_line(description["background"]))}"]')
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
