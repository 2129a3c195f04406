"""What the chains look like, for people, programs and pages."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any, Literal

from agentrt.chain.chains import Chains, Layer
from agentrt.chain.check import must_wrap, where

__all__ = ["ExplainFormat", "explain"]

ExplainFormat = Literal["text", "json", "mermaid"]


def explain(
    chains: Chains,
    name: str,
    cores: Mapping[str, Any],
    tools: Mapping[int, Sequence[str]],
    format: ExplainFormat = "text",
) -> str:
    """Return the layers of every hook from the outermost to the core, and the tools that middlewares bring.

    `tools` maps the `id` of a middleware to the names of its tools. Raises `ValueError` for an unknown format.
    """
    writers = {"text": _text, "json": _json, "mermaid": _mermaid}
    if format not in writers:
        raise ValueError(f"explain() writes {', '.join(map(repr, writers))}, not {format!r}")
    written = writers[format](_describe(chains, name, cores, tools))
    return _Diagram(written) if format == "mermaid" else _Page(written)


class _Page(str):
    """A text that a notebook shows as it is, line by line."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self)}</pre>"


class _Diagram(str):
    """A text that a notebook draws, where it knows how to."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return f"```mermaid\n{self}\n```"


def _describe(
    chains: Chains, name: str, cores: Mapping[str, Any], tools: Mapping[int, Sequence[str]]
) -> dict[str, Any]:
    return {
        "agent": name,
        "hooks": [
            {
                "hook": spec.name,
                "shape": spec.shape,
                "wraps": spec.wraps,
                "never": spec.never,
                "layers": [_layer(layer, chains.layers[spec.name]) for layer in chains.layers[spec.name]],
                "core": where(cores[spec.name]),
            }
            for spec in chains.table
            if spec.name in cores
        ],
        "unused": {
            spec.name: [_layer(layer, chains.layers[spec.name]) for layer in chains.layers[spec.name]]
            for spec in chains.table
            if spec.name not in cores and chains.layers[spec.name]
        },
        "middlewares": [
            {
                "class": type(each).__name__,
                "key": chains.name_of(each),
                "tools": list(tools.get(id(each), ())),
                **_constraints(each),
            }
            for each in chains.middlewares
        ],
    }


def _layer(layer: Layer, layers: Sequence[Layer]) -> dict[str, Any]:
    found: dict[str, Any] = {"class": type(layer.middleware).__name__, "key": layer.key, "where": layer.where}
    because = _reasons(layer.middleware, [each.middleware for each in layers])
    return {**found, "because": because} if because else found


def _reasons(middleware: Any, others: Sequence[Any]) -> list[str]:
    """Return why a layer stands where it does, as far as any of them says."""
    outer = [each for each in others if must_wrap(each, middleware)]
    inner = [each for each in others if must_wrap(middleware, each)]
    # What another one implies is left out.
    outer = [each for each in outer if not any(must_wrap(each, other) for other in outer)]
    inner = [each for each in inner if not any(must_wrap(other, each) for other in inner)]
    reasons = [] if middleware.position is None else [middleware.position]
    if outer:
        reasons.append(f"inside {_classes(outer)}")
    if inner:
        reasons.append(f"wraps {_classes(inner)}")
    return reasons


def _classes(middlewares: Sequence[Any]) -> str:
    return ", ".join(dict.fromkeys(type(each).__name__ for each in middlewares))


def _constraints(middleware: Any) -> dict[str, Any]:
    found: dict[str, Any] = {} if middleware.position is None else {"position": middleware.position}
    for name in ("wraps", "wrapped_by", "requires"):
        wanted = getattr(middleware, name)
        if wanted:
            found[name] = [each if isinstance(each, str) else each.__name__ for each in wanted]
    return found


def _json(description: dict[str, Any]) -> str:
    return json.dumps(description, indent=2)


def _text(description: dict[str, Any]) -> str:
    lines = [f"Agent {description['agent']!r}: the chains, outermost first"]
    empty = []
    for hook in description["hooks"]:
        if not hook["layers"]:
            empty.append(hook["hook"])
            continue
        never = f"; never for {hook['never']}" if hook["never"] else ""
        lines.append(f"\n{hook['hook']} ({hook['shape']}): {hook['wraps']}{never}")
        for depth, layer in enumerate(hook["layers"], 1):
            lines.append(f"  {depth}. {_titled(layer)}  {layer['where']}")
            if "because" in layer:
                lines.append(f"     {'; '.join(layer['because'])}")
        lines.append(f"  core  {hook['core']}")
    if empty:
        lines.append(f"\nNo layer, the core is called directly: {', '.join(empty)}")
    for hook, layers in description["unused"].items():
        lines.append(f"\nNever here, for this agent has no such step: {hook} ({', '.join(map(_titled, layers))})")
    for each in description["middlewares"]:
        if each["tools"]:
            lines.append(f"\nTools of {_titled(each)}: {', '.join(each['tools'])}")
    return "\n".join(lines)


def _titled(each: dict[str, Any]) -> str:
    name: str = each["class"]
    return name if each["key"] == name else f"{name} [{each['key']}]"


def _mermaid(description: dict[str, Any]) -> str:
    lines = ["flowchart LR"]
    for hook in description["hooks"]:
        name = hook["hook"]
        nodes = [(f"{name}_{depth}", _label(each)) for depth, each in enumerate(hook["layers"], 1)]
        nodes.append((f"{name}_core", f"core<br/>{_escaped(hook['core'])}"))
        lines.append(f'  subgraph {name}["{name}"]')
        lines += [f'    {node}["{label}"]' for node, label in nodes]
        lines += [f"    {outer[0]} --> {inner[0]}" for outer, inner in pairwise(nodes)]
        lines.append("  end")
    for number, each in enumerate(description["middlewares"], 1):
        if each["tools"]:
            label = _escaped(f"Tools of {_titled(each)}: {', '.join(each['tools'])}")
            lines.append(f'  tools_{number}["{label}"]')
    return "\n".join(lines)


def _label(layer: dict[str, Any]) -> str:
    return "<br/>".join(_escaped(each) for each in (_titled(layer), layer["where"], *layer.get("because", ())))


def _escaped(title: str) -> str:
    return title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
