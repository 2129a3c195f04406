"""The syntax trees of sources, each parsed and walked once for all tests that look at it."""

import ast
from functools import cache

__all__ = ["nodes_in", "nodes_of", "tree_of"]


@cache
def tree_of(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def nodes_of(source: str) -> list[ast.AST]:
    return nodes_in(tree_of(source))


def nodes_in(tree: ast.AST) -> list[ast.AST]:
    """Return what `ast.walk` gives, without `Load()` and `Store()`: a third of it, which is in `ctx` as well."""
    nodes = [tree]
    for node in nodes:
        for value in vars(node).values():
            if isinstance(value, list):
                nodes += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                nodes.append(value)
    return nodes
