"""What no source file may do, whatever it is for. The direction of imports is import-linter's affair."""

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.syntax import nodes_of

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*ROOT.glob("agentrt/**/*.py"), *ROOT.glob("middleware/**/*.py")])
EVENT_LOOP = ROOT / "agentrt" / "_runtime" / "concurrency" / "event_loop.py"
COMPILER = ROOT / "agentrt" / "_runtime" / "chain" / "compile.py"
CONSOLE = ROOT / "agentrt" / "console"

STARTS_TASKS = {"create_task", "ensure_future", "spawn_system_task"}
SCOPES = {"CancelScope", "TaskGroup", "create_task_group", "fail_after", "move_on_after", "open_nursery", "timeout"}
MOST_MODULES = 262  # of agentrt and of other distributions
NOT_LOADED = (
    "agentrt.compat",
    "agentrt.console",
    "agentrt.middleware",
    "agentrt.pipeline",
    "agentrt.testing",
    "agentrt.tool.code",
    "agentrt.tool.mcp",
    "agentrt.workspace.local",
    "agentrt_middleware",
    "anthropic",
    "agentrt._runtime.terminal.form",
    "agentrt.tool.signature.pydantic_types",
    "coredis",
    "email",
    "grpc",
    "html",
    "http.client",
    "jsonschema",
    "jsonschema_rs",
    "mcp",
    "httpx",
    "httpx2",
    "openai",
    "opentelemetry",
    "pydantic.fields",
    "pydantic.main",
    "pydantic.type_adapter",
    "pydantic.types",
    "requests",
    "rich",
    "shortuuid",
    "trio",
    "uuid",
)

PRIVATE_OF_PYTHON = {
    "asyncio._get_running_loop": "middlewares that wait cannot be imported",
    "asyncio.tasks._enter_task": "the runtime cannot be imported: the first step of a task is taken by hand",
    "asyncio.tasks._leave_task": "likewise",
    "re._constants": "RedactionMiddleware cannot be imported: there is no public parser of patterns",
    "re._parser": "likewise",
}
"""What a new version of Python may take away, and what breaks then."""

Find = Callable[[Sequence[ast.AST]], Iterator[ast.AST]]
"""Finds what a rule refuses among the nodes of a file."""


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def find_places(find: Find, *exempt: Path) -> list[str]:
    """Return "file:line" of everything found in the sources, except in the exempt files and folders."""
    return [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for path in SOURCES
        if not any(path == place or place in path.parents for place in exempt)
        for node in find(nodes_of(text_of(path)))
    ]


def count_in(find: Find, source: str) -> int:
    return len(list(find(nodes_of(source))))


def name_of(node: ast.AST) -> str:
    """Return the last part of a name, a dotted name, or what is called by one."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def uses_of(refused: set[str]) -> Find:
    def find(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
        for node in nodes:
            imported = isinstance(node, ast.ImportFrom) and any(alias.name in refused for alias in node.names)
            if imported or (name_of(node) in refused and not isinstance(node, ast.Call)):
                yield node

    return find


def metaclasses(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        if isinstance(node, ast.ClassDef) and (
            any(keyword.arg == "metaclass" for keyword in node.keywords) or "type" in map(name_of, node.bases)
        ):
            yield node


def prints(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    # An agent's own `self.print(...)` shows a message, through a chain.
    calls = (node for node in nodes if isinstance(node, ast.Call))
    return (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print")


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a function's body without the functions inside it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from own_nodes(child)


def yields_under_a_scope(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    for function in nodes:
        # A lifespan runs in a task of its own, so that it may hold a task group.
        if isinstance(function, ast.AsyncFunctionDef) and function.name != "lifespan":
            for node in own_nodes(function):
                if isinstance(node, ast.With | ast.AsyncWith) and _opens_a_scope(node):
                    yield from (child for child in own_nodes(node) if isinstance(child, ast.Yield))


def _opens_a_scope(node: ast.With | ast.AsyncWith) -> bool:
    return any(name_of(item.context_expr) in SCOPES for item in node.items)


def next_handlers(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        name = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else ""
        if name.lower().replace("_", "") == "nexthandler":
            yield node


def loops_through_hooks(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Find loops over something called `middlewares` that await, or that reach for a hook."""
    for node in nodes:
        if isinstance(node, ast.For | ast.AsyncFor):
            iterated, bodies = [node.iter], node.body
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            iterated, bodies = [generator.iter for generator in node.generators], [node]
        else:
            continue
        if any(map(_mentions_middlewares, iterated)) and any(map(_runs_a_hook, bodies)):
            yield node


def _mentions_middlewares(node: ast.AST) -> bool:
    return any(name_of(part).endswith("middlewares") for part in ast.walk(node))


def _runs_a_hook(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Await | ast.AsyncFor | ast.AsyncWith)
        or (isinstance(part, ast.Call) and name_of(part).startswith("on_"))
        for part in ast.walk(node)
    )


RULES: dict[str, tuple[Find, tuple[Path, ...], list[str], str]] = {
    "only concurrency/event_loop.py starts tasks": (
        uses_of(STARTS_TASKS),
        (EVENT_LOOP,),
        ["asyncio.create_task(main())", "from asyncio import ensure_future", "spawn = trio.lowlevel.spawn_system_task"],
        "async with anyio.create_task_group() as group: group.start_soon(main)",
    ),
    "cancellation goes by anyio's name": (
        uses_of({"CancelledError"}),
        (),
        ["asyncio.CancelledError", "from asyncio import CancelledError"],
        "anyio.get_cancelled_exc_class()",
    ),
    "there is no metaclass": (
        metaclasses,
        (),
        ["class A(metaclass=M): ...", "class M(type): ..."],
        "class A(B): ...",
    ),
    "only the console prints": (prints, (CONSOLE,), ["print(1)"], "log.info(1)"),
    "no generator yields under a cancel scope or task group": (
        yields_under_a_scope,
        (),
        [
            "async def f():\n with anyio.move_on_after(1):\n  yield 1",
            "async def f():\n async with create_task_group() as group:\n  if group:\n   x = yield",
        ],
        "async def f():\n with CancelScope():\n  async def g():\n   yield 1\n yield 2",
    ),
    "only the compiler makes a next_handler": (
        next_handlers,
        (COMPILER,),
        ["async def next_handler(): ...", "class NextHandler: ..."],
        "await next_handler()",
    ),
    "only the compiler folds middlewares": (
        loops_through_hooks,
        (COMPILER,),
        [
            "async def f():\n for each in self.middlewares:\n  await each.on_reply()",
            "stream = [each.on_acting(agent) for each in reversed(middlewares)]",
        ],
        "tools = [each.list_tools() for each in chains.middlewares]",
    ),
}
LAWS = pytest.mark.parametrize(("find", "exempt", "bad", "good"), RULES.values(), ids=RULES)


def rooms_in(folder: str) -> set[str]:
    """Return the dotted names of the modules and packages right in a folder of the project."""
    paths = {path for path in (ROOT / folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    return {f"{folder}.{path.stem}".replace("/", ".") for path in paths} - {f"{folder}.__init__".replace("/", ".")}


def test_private_parts_of_python_are_few_and_explained(no_garbage_collection: None) -> None:
    used = set[str]()
    for path in SOURCES:
        for node in nodes_of(text_of(path)):
            module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            if module is not None and module.partition(".")[0] in sys.stdlib_module_names:
                used |= {f"{module}.{alias.name}" for alias in node.names if re.match("_[^_]", alias.name)}
    assert used == set(PRIVATE_OF_PYTHON)
    for name in used:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), f"without {name} {PRIVATE_OF_PYTHON[name]}"


def test_each_room_has_one_place_in_the_order_of_imports():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = [name for layer in layers for name in re.findall(r"[a-z0-9_.]+", layer)]
    doors = rooms_in("agentrt") - {"agentrt._runtime"}
    assert sorted(named) == sorted(doors | rooms_in("agentrt/_runtime"))
    assert len(doors - {"agentrt.__main__"}) <= 30


def test_no_source_breaks_a_rule(no_garbage_collection):
    breaches = {rule: find_places(find, *exempt) for rule, (find, exempt, _, _) in RULES.items()}
    assert not any(breaches.values()), breaches


@LAWS
def test_the_rule_finds_a_breach(find, exempt, bad, good):
    assert [count_in(find, source) for source in bad] == [1] * len(bad)
    assert count_in(find, good) == 0


@pytest.mark.parametrize("path", [EVENT_LOOP, COMPILER])
def test_the_exempt_files_exist(path):
    assert path in SOURCES


def run_program(program: str) -> tuple[str, str]:
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "middleware")])},
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.stdout.strip(), finished.stderr


@cache
def modules_of_an_import() -> set[str]:
    """Return the names of the modules that are loaded after `import agentrt`."""
    printed, complaints = run_program("import sys, agentrt; print(*sys.modules)")
    assert not complaints
    return set(printed.split())


def test_importing_agentrt_loads_no_optional_module():
    assert [name for name in NOT_LOADED if name in modules_of_an_import()] == []


def test_an_agent_loads_the_ways_of_1_x_when_one_of_them_is_used():
    program = """
import sys, anyio, agentrt, agentrt.agent, agentrt.session
from agentrt.model import ScriptedChatModel
agent = agentrt.Agent("a", model=ScriptedChatModel(["one"]))
anyio.run(agent.reply, "Hi")
agent.explain()
loaded = lambda: sorted(name for name in sys.modules if name.startswith("agentrt.compat."))
print(loaded())
agent.register_instance_hook("pre_reply", "none", lambda self, kwargs: None)
print(loaded())
agentrt.session.JSONSession
print(len(loaded()))
agentrt.agent.ReActAgent, agentrt.agent.SubAgentBase
print("agentrt.compat.react.agent" in loaded(), "agentrt.compat.subagent.base" in loaded())
"""
    printed = ["[]", "['agentrt.compat.hook_middleware', 'agentrt.compat.hook_registry']", "5", "True True"]
    assert run_program(program) == ("\n".join(printed), "")


def test_importing_agentrt_loads_few_modules():
    # Those of the standard library are not counted: how many it loads differs from Python to Python.
    names = [name for name in modules_of_an_import() if name.split(".")[0] not in sys.stdlib_module_names]
    assert len(names) <= MOST_MODULES


def test_importing_agentrt_builds_no_schema():
    program = """
from pydantic import BaseModel, TypeAdapter
built = []
def note(self, *args, **kwargs):
    built.append(args)
TypeAdapter.__init__ = note
BaseModel.__pydantic_init_subclass__ = classmethod(lambda cls, **kwargs: built.append(cls))
import agentrt
print(built)
"""
    assert run_program(program) == ("[]", "")
