"""Pages that list the public names of the modules; mkdocstrings shows there what their docstrings say."""

import ast
import importlib
import inspect
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import agentrt
from scripts.reference.markdown import GENERATED, first_sentence, table, whole_docstring

__all__ = ["MODULES", "PublicName", "page_of", "pages", "public_names"]

# Modules with a page of their own, in the order of the navigation.
MODULES = (
    "agentrt",
    "agentrt.agent",
    "agentrt.message",
    "agentrt.event",
    "agentrt.errors",
    "agentrt.middleware",
    "agentrt.config",
    "agentrt.hooks",
    "agentrt.model",
    "agentrt.model.remote",
    "agentrt.formatter",
    "agentrt.tool",
    "agentrt.permission",
    "agentrt.state",
    "agentrt.runs",
    "agentrt.pipeline",
    "agentrt.console",
    "agentrt.testing",
    "agentrt.evaluation",
    "agentrt.module",
    "agentrt.session",
    "agentrt.memory",
    "agentrt.plan",
    "agentrt.skills",
    "agentrt.rag",
    "agentrt.embedding",
    "agentrt.runner",
    "agentrt.a2a",
    "agentrt.serving",
    "agentrt.workspace",
    "agentrt.types",
)


# What several modules export is described on the page of the first of these that has it.
_HOMES = (*(name for name in MODULES if name not in ("agentrt", "agentrt.hooks")), "agentrt.hooks", "agentrt")


class PublicName(NamedTuple):
    """A name in the `__all__` of a module, and the module whose page describes it."""

    name: str
    module: str
    home: str
    thing: Any


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    modules = {page_of(module): f"# {module}\n\n{GENERATED}\n{_body(module)}" for module in MODULES}
    return {"index.md": _index(), **modules}


def page_of(module: str) -> str:
    """Return the file name of the page of a module, in the folder of the reference."""
    return f"modules/{module.removeprefix('agentrt.').replace('.', '-')}.md"


def public_names(module: str) -> list[PublicName]:
    """Return what a module exports, classes first."""
    source = importlib.import_module(module)
    exported = {name: getattr(source, name) for name in source.__all__}  # some are imported by that
    names = [PublicName(name, module, _home_of(name, thing), thing) for name, thing in exported.items()]
    return sorted(names, key=lambda public: (not inspect.isclass(public.thing), not callable(public.thing)))


def _home_of(name: str, thing: Any) -> str:
    modules = ((home, importlib.import_module(home)) for home in _HOMES)
    return next(home for home, module in modules if name in module.__all__ and getattr(module, name) is thing)


def _index() -> str:
    rows = [(f"[{module}]({page_of(module)})", first_sentence(_docstring(module))) for module in MODULES]
    names = {(public.name, public.home) for module in MODULES for public in public_names(module)}
    links = [
        f"- [{name}]({page_of(home)}#{home}.{name})"
        for name, home in sorted(names, key=lambda name: (name[0].lower(), name))
    ]
    return f"""# Reference

{GENERATED}
Everything that is public, with its types. Eight pages explain what crosses the border of a program:

| page | what it says |
|---|---|
| [Events](events.md) | every event: when it is sent, its fields, its JSON |
| [Hooks](hooks.md) | every hook: what it wraps, its types |
| [Errors](errors.md) | every error: what it means and what to do |
| [State](state.md) | what is saved of a conversation |
| [Known models](models.md) | what models can do, by their names |
| [Command line](command-line.md) | `agentrt chat`, `agentrt worker` and `agentrt serve` |
| [HTTP](http.md) | the routes of a server, with an example of each |
| [Protocols](protocols.md) | MCP, A2A, ACP, AG-UI and OpenAI's API: versions, methods served and refused |
| [The catalogue](../middlewares/catalogue.md) | the middlewares that ship, with their options |

## Modules

{table(("module", "what is in it"), *rows)}
Names that begin with an underscore, such as `agentrt._runtime`, may change at any time.

## All names

{chr(10).join(links)}
"""


def _body(module: str) -> str:
    """Return what a page says of a module."""
    names = public_names(module)
    rows = []
    for public in names:
        has_docstring = inspect.isclass(public.thing) or inspect.isfunction(public.thing)
        docstring = whole_docstring(public.thing) if has_docstring else _docstrings_of_values().get(public.name, "")
        summary = first_sentence(docstring)
        page = "" if page_of(public.home) == page_of(module) else Path(page_of(public.home)).name
        rows.append((f"[`{public.name}`]({page}#{public.home}.{public.name})", summary))
    described = [public for public in names if public.home == module]
    entries = "".join(f"\n::: {module}.{public.name}\n{_options(public.thing)}" for public in described)
    # The headings of the docstring are below the one of the module.
    docstring = re.sub(r"^#", "##", _docstring(module), flags=re.MULTILINE)
    return f"{docstring}\n\n{table(('name', ''), *rows)}{entries}"


@cache
def _docstrings_of_values() -> dict[str, str]:
    """Return what the sources say, in a string right below, of constants and names for types."""
    docstrings = {}
    for path in Path(agentrt.__path__[0]).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        # Most files have no such string, and to parse them all takes a second.
        for node, following in pairwise(ast.parse(text).body if re.search(r'\n"""[^\n]', text) else ()):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(following, ast.Expr):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(following.value, ast.Constant) and isinstance(following.value.value, str):
                    docstrings[ast.unparse(target)] = following.value.value
    return docstrings


def _options(thing: Any) -> str:
    return "    options:\n      inherited_members: true\n" if _has_hidden_base(thing) else ""


def _has_hidden_base(thing: Any) -> bool:
    """Whether the class has members that no other page shows, since they come from a class that is not public."""
    if not inspect.isclass(thing):
        return False
    documented = _documented_classes()
    bases = [base for base in thing.__mro__[1:] if base.__module__.startswith("agentrt")]
    public = [base for base in bases if base in documented]
    return any(not any(base in other.__mro__ for other in public) for base in bases)


@cache  # it is asked for each class
def _documented_classes() -> frozenset[type]:
    return frozenset(
        public.thing for module in MODULES for public in public_names(module) if inspect.isclass(public.thing)
    )


def _docstring(module: str) -> str:
    return whole_docstring(importlib.import_module(module))
