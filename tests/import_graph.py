"""Which module of a package imports which, read from the sources, and the circles among them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

#: A module, and the modules of the same package that it imports.
Graph = Mapping[str, frozenset[str]]


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a source as a tree, which is read once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def modules_of(folder: Path) -> dict[str, Path]:
    """Return the file of every module of the package in `folder`, symbolic links followed, by dotted name."""
    found = {folder.name: folder / "__init__.py"}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and (path / "__init__.py").is_file():
            found |= {f"{folder.name}.{name}": file for name, file in modules_of(path).items()}
        elif path.suffix == ".py" and path.stem != "__init__":
            found[f"{folder.name}.{path.stem}"] = path
    return found


def imports_of(tree: ast.Module, modules: Mapping[str, Path]) -> frozenset[str]:
    """Return the modules that a source names in any import, wherever it stands.

    `from package import name` is an import of the module `package.name` where there is one, and of
    `package` where there is none.
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules.keys()
            if names - modules.keys():
                found.add(node.module)
    return frozenset(found & modules.keys())


def import_graph(modules: Mapping[str, Path]) -> Graph:
    """Return what every module imports."""
    return {name: imports_of(tree_of(path.resolve()), modules) for name, path in modules.items()}


def circles_of(graph: Graph) -> list[tuple[str, ...]]:
    """Return the sets of modules that reach each other (or themselves), each sorted by name."""
    circles = {
        tuple(sorted(other for other in reached if name in reachable(graph, other)))
        for name in graph
        if name in (reached := reachable(graph, name))
    }
    return sorted(circles)


def reachable(graph: Graph, start: str) -> set[str]:
    """Return the modules that `start` imports, directly or through others; itself only in a circle."""
    seen: set[str] = set()
    stack = list(graph[start])
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack.extend(graph[name])
    return seen


def relative_imports(modules: Mapping[str, Path]) -> Iterator[str]:
    """Iterate the places of relative imports, which `imports_of` does not read."""
    for name, path in modules.items():
        for node in ast.walk(tree_of(path.resolve())):
            if isinstance(node, ast.ImportFrom) and node.level:
                yield f"{name}:{node.lineno}"
