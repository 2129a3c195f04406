"""The page of all hooks: what each wraps, its types, and what it must return or yield."""

import ast
import inspect
import textwrap

from agentrt import hooks
from agentrt._runtime.chain.spec import HookSpec
from agentrt.hooks import HOOKS, MiddlewareBase
from scripts.reference.markdown import GENERATED, block, source_fields, table, whole_docstring

__all__ = ["pages"]


def pages() -> dict[str, str]:
    """Return the text of the page by its file name."""
    rows = [(f"[`{spec.name}`](#{spec.name})", spec.shape, spec.wraps) for spec in HOOKS]
    sections = "\n".join(_section(spec) for spec in HOOKS)
    text = f"""# Hooks

{GENERATED}
A middleware overrides the hooks that it needs. [Write a middleware](../middlewares/index.md) explains how. The types of
this page are in [agentrt.middleware](modules/middleware.md).

{table(("hook", "shape", "wraps"), *rows)}
A *stream* is an async generator. A *call* is a coroutine; that of `on_model_call` may return an async generator. A
*transformer* is a coroutine that takes a value and returns it. An *observer* is a plain function that
[sees](../how-to/audit.md) what happens.

{sections}"""
    return {"hooks.md": text}


def _section(spec: HookSpec) -> str:
    parts = [f"## {spec.name}", whole_docstring(getattr(MiddlewareBase, spec.name)), block("py", _signature(spec))]
    if spec.shape not in ("transformer", "observer"):
        parts.append(_values(spec))
    if spec.never:
        parts.append(f"It never sees {spec.never}.\n")
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _prefix(spec: HookSpec) -> str:
    return "".join(word.title() for word in spec.name.removeprefix("on_").split("_"))


def _signature(spec: HookSpec) -> str:
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(getattr(MiddlewareBase, spec.name)))).body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    assert definition.returns is not None
    returns = ast.unparse(definition.returns)
    if spec.shape == "call":
        returns = returns.removeprefix("Awaitable[").removesuffix("]")
    if spec.shape == "transformer":
        return f"async def {spec.name}(self, agent: Agent, current_prompt: str) -> {returns}"
    if spec.shape == "observer":
        return ast.unparse(definition).partition(":\n")[0]
    prefix = _prefix(spec)
    return f"""async def {spec.name}(
    self, agent: Agent, input_kwargs: {prefix}Values, next_handler: Next{prefix}
) -> {returns}"""


def _values(spec: HookSpec) -> str:
    received = dict(source_fields(getattr(hooks, f"{_prefix(spec)}Values")))
    taken = dict(source_fields(getattr(hooks, f"{_prefix(spec)}Overrides")))
    rows = [
        (f"`{key}`", f"`{received[key]}`", "the same" if received[key] == taken[key] else f"`{taken[key]}`")
        for key in spec.keys
    ]
    return table(("key", "received", "`next_handler` takes"), *rows)
