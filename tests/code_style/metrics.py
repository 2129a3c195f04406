"""Measures how the shipped code is written: how long and deep functions are, what names repeat, who knows whom.

Run `python -m tests.code_style.metrics [PATH ...]` for a table of all figures, each with the places that are worst.
`test_code_style.py` compares the figures with the aims.
"""

import ast
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agentrt import Agent
from agentrt.testing import ScriptedChatModel
from tests.syntax import nodes_in, nodes_of, tree_of

__all__ = ["MEASURES", "ROOT", "Figure", "Source", "shipped_sources", "sources_in"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "agentrt", ROOT / "middleware" / "agentrt_middleware")

Function = ast.FunctionDef | ast.AsyncFunctionDef
INTERNALS = "_runtime"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith, ast.match_case)
CHANGES = frozenset(
    "add append appendleft clear discard extend insert pop popitem popleft remove setdefault update".split()
)
DIRECTIVE = re.compile(r"\s*(?:noqa|type: ignore|pragma)\b")
WHAT = re.compile(r'\A"""What\b')
STIFF = re.compile(r"\b(?:is none|[Aa]new|[Bb]egun|[Ss]o many|[Ww]hat became of)\b")
SHOWN = 5
SMALL_FILE = 60  # lines


@dataclass(frozen=True)
class Figure:
    """What a measure found: the value, and the places that account for it, worst first."""

    value: float
    places: Sequence[str] = ()


@dataclass(frozen=True)
class Source:
    """One file; `module` is its dotted name."""

    path: Path
    module: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def tree(self) -> ast.Module:
        return tree_of(self.text)

    @property
    def room(self) -> str:
        """The folder right under the package, with all that is in it; a file right under the package is its own.

        The folder of the internals holds rooms, and is none.
        """
        package, *rest = self.module.split(".")
        names = rest[: 2 if rest[:1] == [INTERNALS] else 1]
        return ".".join([package, *names]) if package == "agentrt" else package

    @property
    def nodes(self) -> list[ast.AST]:
        return nodes_of(self.text)

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in self.nodes if isinstance(node, FUNCTIONS)]

    @cached_property
    def code_lines(self) -> int:
        """The number of lines with code on them: no docstrings, no comments, no empty lines."""
        texts = enumerate((line.lstrip() for line in self.text.splitlines()), 1)
        lines = {number for number, text in texts if text and not text.startswith("#")}
        for node in self.nodes:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)) and ast.get_docstring(node, clean=False):
                docstring = node.body[0]
                lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
        return len(lines)

    @cached_property
    def strings_and_comments(self) -> list[re.Match[str]]:
        return list(_STRING_OR_COMMENT.finditer(self.text))

    @cached_property
    def comments(self) -> int:
        """The number of comments that say something to a reader; one behind a `noqa` counts, the `noqa` does not."""
        comments = [found[0].lstrip("#") for found in self.strings_and_comments if found[0].startswith("#")]
        return sum(any(not DIRECTIVE.match(part) for part in comment.split("#")) for comment in comments)

    def place(self, node: Function) -> str:
        return f"{self.path.name}:{node.lineno} {node.name}"


# `tokenize` takes longer for this than all other measures together.
_STRING_OR_COMMENT = re.compile(r"""("{3}|'{3})(?:\\.|[^\\])*?\1|(["'])(?:\\.|(?!\2)[^\\\n])*\2|#[^\n]*""", re.DOTALL)


def sources_in(*folders: Path) -> list[Source]:
    """Return the Python files in these folders, each of which is a package."""
    return [
        Source(path, ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__"))
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
    ]


def shipped_sources() -> list[Source]:
    """Return what a user installs."""
    return sources_in(*PACKAGES)


def function_lengths(sources: Sequence[Source]) -> list[tuple[int, str]]:
    """Return the lines of each function, docstring included, and its place; longest first."""
    lengths = [
        ((node.end_lineno or node.lineno) - node.lineno + 1, source.place(node))
        for source in sources
        for node in source.functions
    ]
    return sorted(lengths, reverse=True)


def longest_function(sources: Sequence[Source]) -> Figure:
    """Return the lines of the longest function."""
    return _highest(function_lengths(sources))


def length_of_nine_in_ten(sources: Sequence[Source]) -> Figure:
    """Return how many lines nine in ten functions have at most."""
    lengths = sorted(length for length, _ in function_lengths(sources))
    return Figure(lengths[int(0.9 * len(lengths))] if lengths else 0)


def median_length(sources: Sequence[Source]) -> Figure:
    """Return the lines of the function in the middle."""
    return Figure(statistics.median([length for length, _ in function_lengths(sources)] or [0]))


def highest_complexity(sources: Sequence[Source]) -> Figure:
    """Return the most ways through one function, those through the functions inside of it included."""
    return _highest((_complexity(node), source.place(node)) for source in sources for node in source.functions)


def _complexity(function: Function) -> int:
    ways = 1
    for node in nodes_in(function):
        if isinstance(node, BRANCHES):
            ways += 1
        elif isinstance(node, ast.BoolOp):
            ways += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            ways += 1 + len(node.ifs)
    return ways


def deepest_nesting(sources: Sequence[Source]) -> Figure:
    """Return the most blocks that stand inside of each other in one function."""
    return _highest((_nesting(node, 0), source.place(node)) for source in sources for node in source.functions)


def _nesting(node: ast.AST, depth: int) -> int:
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # most nodes, and none of them has a block inside
            continue
        # An `elif` is an `If` in the `else` of another one, and stands no deeper than that.
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        is_deeper = isinstance(child, BLOCKS) and not is_elif
        deepest = max(deepest, _nesting(child, depth + is_deeper))
    return deepest


def one_caller_share(sources: Sequence[Source]) -> Figure:
    """Return which share of the private functions of modules is used in one place only, in per cent."""
    count = sum(_is_private(node.name) for node in _module_functions(sources))
    places = _used_once(sources)
    return Figure(100 * len(places) / max(count, 1), places)


def one_caller_share_of_all(sources: Sequence[Source]) -> Figure:
    """Return the same as a share of all functions of modules, which is how other projects were measured."""
    places = _used_once(sources)
    return Figure(100 * len(places) / max(len(_module_functions(sources)), 1), places)


def _module_functions(sources: Sequence[Source]) -> list[Function]:
    return [node for source in sources for node in source.tree.body if isinstance(node, FUNCTIONS)]


def _used_once(sources: Sequence[Source]) -> list[str]:
    """Return the places of the private functions of modules that are used in one place."""
    places = []
    for source in sources:
        uses = Counter(
            node.id for node in source.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        )
        for node in source.tree.body:
            if isinstance(node, FUNCTIONS) and _is_private(node.name) and uses[node.name] == 1:
                places.append(source.place(node))
    return places


def repeated_names(sources: Sequence[Source]) -> Figure:
    """Return how many names more than one module defines at its top level."""
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for source in sources:
        for name in _top_level_names(source.tree):
            modules[name].add(source.module)
    repeated = sorted(
        ((len(users), name) for name, users in modules.items() if len(users) > 1 and not name.startswith("__")),
        reverse=True,
    )
    return Figure(len(repeated), [f"{name} in {count} modules" for count, name in repeated])


def _top_level_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def comments_per_thousand(sources: Sequence[Source]) -> Figure:
    """Return the comments in a thousand lines of code; the places are the files with the fewest."""
    lines = sum(source.code_lines for source in sources)
    large = [source for source in sources if source.code_lines > SMALL_FILE]
    files = sorted((1000 * source.comments / source.code_lines, source.module) for source in large)
    comments = sum(source.comments for source in sources)
    return Figure(1000 * comments / max(lines, 1), [f"{module} {share:.0f}" for share, module in files])


def any_per_thousand(sources: Sequence[Source]) -> Figure:
    """Return how often `Any` stands in a thousand lines of code."""
    uses = {
        source.path.name: sum(isinstance(node, ast.Name) and node.id == "Any" for node in source.nodes)
        for source in sources
    }
    lines = sum(source.code_lines for source in sources)
    worst = sorted(((count, name) for name, count in uses.items() if count), reverse=True)
    return Figure(1000 * sum(uses.values()) / max(lines, 1), [f"{name} {count}" for count, name in worst])


def foreign_private_accesses(sources: Sequence[Source]) -> Figure:
    """Return how often code reaches for a private name of another object than its own."""
    places = [
        f"{source.path.name}:{node.lineno} {ast.unparse(node)}"
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and not _is_own(node.value)
    ]
    return Figure(len(places), places)


def _is_own(owner: ast.expr) -> bool:
    if isinstance(owner, ast.Call):
        return isinstance(owner.func, ast.Name) and owner.func.id == "super"
    return isinstance(owner, ast.Name) and owner.id in ("self", "cls")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def agent_attributes(_: Sequence[Source] = ()) -> Figure:
    """Return how many attributes an `Agent` has of its own."""
    names = sorted(vars(Agent("measured", model=ScriptedChatModel([]))))
    return Figure(len(names), names)


def module_state(sources: Sequence[Source]) -> Figure:
    """Return how many values of modules change while the program runs.

    What a `ContextVar` holds belongs to the task that set it, and is not counted; a table that is only read is not
    state.
    """
    places = [f"{source.module}.{name}" for source in sources for name in sorted(_changing_names(source))]
    return Figure(len(places), places)


def _changing_names(source: Source) -> set[str]:
    names = {name for node in source.nodes if isinstance(node, ast.Global) for name in node.names}
    top_level = set(_top_level_names(source.tree))
    if not top_level & {_changed_name(node) for node in source.nodes}:
        return names  # as in most files
    for function in source.functions:
        nodes = nodes_in(function)
        local = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        names |= {_changed_name(node) for node in nodes} & (top_level - local)
    return names


def _changed_name(node: ast.AST) -> str:
    changed: ast.expr | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        changed = node.func.value
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
        changed = node.value
    return changed.id if isinstance(changed, ast.Name) else ""


def what_docstrings(sources: Sequence[Source]) -> Figure:
    """Return how many docstrings begin with "What" where a noun would do."""
    return _matches(sources, WHAT)


def stiff_phrases(sources: Sequence[Source]) -> Figure:
    """Return how often comments and strings use a phrase that nobody says."""
    return _matches(sources, STIFF)


def _matches(sources: Sequence[Source], pattern: re.Pattern[str]) -> Figure:
    places = [
        f"{source.path.name}:{source.text.count(chr(10), 0, found.start()) + 1} {match[0]}"
        for source in sources
        for found in source.strings_and_comments
        for match in pattern.finditer(found[0])
    ]
    return Figure(len(places), places)


def largest_folder(sources: Sequence[Source]) -> Figure:
    """Return the number of files in the folder that has most of them."""
    folders = Counter(source.path.parent for source in sources)
    return _highest((count, _short(folder)) for folder, count in folders.items())


def largest_room_share(sources: Sequence[Source]) -> Figure:
    """Return the share of the largest room in all lines of code, in per cent.

    A middleware that ships in a folder of its own, which knows none of the others, is a room here.
    """
    lines: Counter[str] = Counter()
    for source in sources:
        is_folder = source.module.count(".") > 1 and source.room == "agentrt_middleware"
        lines[source.module.rpartition(".")[0] if is_folder else source.room] += source.code_lines
    total = max(sum(lines.values()), 1)
    return _highest((100 * count / total, room) for room, count in lines.items())


def circles(sources: Sequence[Source]) -> Figure:
    """Return how many groups of rooms import each other in a circle, imports inside of functions included.

    Without those of `compat` and of `store.runs`: the import contracts list the doors that load them at the first use.
    """
    rooms = {source.module: source.room for source in sources}
    imports: defaultdict[str, set[str]] = defaultdict(set)
    for source in sources:
        for name in _imported_names(source):
            # What is imported is a module or a name in one.
            room = rooms.get(name) or rooms.get(name.rpartition(".")[0])
            is_loaded_late = room == "agentrt.compat" or (source.module, room) == (
                "agentrt.state.store",
                "agentrt.runs",
            )
            if room is not None and room != source.room and not is_loaded_late:
                imports[source.room].add(room)
    reachable = {room: _reach(room, imports) for room in rooms.values()}
    groups = {frozenset(other for other in reached if room in reachable[other]) for room, reached in reachable.items()}
    places = [" <-> ".join(sorted(group)) for group in groups if len(group) > 1]
    return Figure(len(places), places)


def _imported_names(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _reach(start: str, imports: dict[str, set[str]]) -> set[str]:
    """Return the rooms that this one imports, directly or through others."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = imports.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def _highest(values: Iterable[tuple[float, str]]) -> Figure:
    ranked = sorted(values, reverse=True)
    return Figure(ranked[0][0] if ranked else 0, [f"{place} {value:.3g}" for value, place in ranked])


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


MEASURES: dict[str, Callable[[Sequence[Source]], Figure]] = {
    "median lines of a function": median_length,
    "lines of nine in ten functions": length_of_nine_in_ten,
    "lines of the longest function": longest_function,
    "highest complexity": highest_complexity,
    "deepest nesting": deepest_nesting,
    "private functions with one caller, %": one_caller_share,
    "the same, % of all functions of modules": one_caller_share_of_all,
    "names defined in more than one module": repeated_names,
    "comments per 1,000 lines": comments_per_thousand,
    "Any per 1,000 lines": any_per_thousand,
    "foreign private accesses": foreign_private_accesses,
    "attributes of an Agent": agent_attributes,
    "pieces of module state": module_state,
    'docstrings that begin with "What"': what_docstrings,
    "stiff phrases": stiff_phrases,
    "files in the largest folder": largest_folder,
    "largest room, % of all lines": largest_room_share,
    "circles between rooms": circles,
}


def main(arguments: Sequence[str]) -> None:
    """Print all figures, of the shipped code or of the folders that are given."""
    sources = sources_in(*(Path(argument).resolve() for argument in arguments)) if arguments else shipped_sources()
    print(f"{len(sources)} files, {sum(source.code_lines for source in sources)} lines of code\n")
    for name, measure in MEASURES.items():
        figure = measure(sources)
        print(f"{figure.value:8.4g}  {name}")
        for place in figure.places[:SHOWN]:
            print(f"{'':10}    {place}")


if __name__ == "__main__":
    main(sys.argv[1:])
