"""Rules that a reader can rely on, checked on the sources themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.import_graph import circles_of, import_graph, modules_of, relative_imports, tree_of
from tests.sizes import (
    LINES,
    MANY_PARAMETERS,
    MOST_PARAMETERS,
    ONE_IMPORTER,
    SOLVERS_WITH_ONE_IMPORTER,
)

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("solvers", "storage", "pipeline", "flows")
MODULES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
LONGEST_MODULE = 700
LONGEST_FUNCTION = 60
MOST_MODULES = 25


def trees() -> Sequence[tuple[Path, ast.Module]]:
    return [(path, tree_of(path)) for path in MODULES]


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def test_imports_point_one_way() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_reaches_itself_through_its_imports() -> None:
    modules = modules_of(ROOT / ".package" / "topline")
    assert len(modules) > len(MODULES)
    assert not list(relative_imports(modules))
    assert circles_of(import_graph(modules)) == []


def test_circles_are_found_in_functions_and_under_type_checking(tmp_path: Path) -> None:
    sources = {
        "__init__": "",
        "a": "from pack.b import x",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pack.c",
        "c": "def f():\n    from pack import a",
        "d": "from pack import a, name",
    }
    for name, text in sources.items():
        path = tmp_path / "pack" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    graph = import_graph(modules_of(tmp_path / "pack"))
    assert graph["pack.d"] == {"pack", "pack.a"}
    assert circles_of(graph) == [("pack.a", "pack.b", "pack.c")]


def test_no_folder_is_too_full_to_look_through() -> None:
    modules = [*MODULES, *(ROOT / "tests").rglob("*.py")]
    folders = Counter(path.parent.relative_to(ROOT) for path in modules)
    assert folders[Path("tests/contracts")], "tests are counted too"
    assert not {f"{folder}: {count}" for folder, count in folders.items() if count > MOST_MODULES}


@cache
def lines_of_rooms() -> Counter[str]:
    """Lines of every room, by its folder; modules beside the rooms of `pipeline` and `storage` are one."""
    found: Counter[str] = Counter()
    for path in MODULES:
        parts = path.relative_to(ROOT).parts
        room = "/".join(parts[:2]) if len(parts) > 2 and parts[0] in ("pipeline", "storage") else parts[0]
        found[room] += len(path.read_text(encoding="utf-8").splitlines())
    return found


def test_no_room_grows_beyond_its_lines() -> None:
    found = lines_of_rooms()
    assert LINES.keys() == found.keys(), "every room has a number of lines in tests/sizes.py, and no other"
    over = [f"{room}: {found[room]} lines, of {most}" for room, most in LINES.items() if found[room] > most]
    assert not over, "say why in the commit and pay elsewhere"


def test_a_module_with_one_importer_is_a_subject_of_its_own() -> None:
    """The face of a room is no importer: what it offers is for all others."""
    modules = modules_of(ROOT / ".package" / "topline")
    graph = import_graph(modules)
    importers: dict[str, set[str]] = {name: set() for name in graph}
    for name, imported in graph.items():
        for other in imported:
            importers[other].add(name)
    alone = {
        name
        for name, by in importers.items()
        if len(by) == 1 and name.rpartition(".")[0] not in by and modules[name].stem != "__init__"
    }
    listed = set().union(*ONE_IMPORTER.values())
    solvers = {name for name in alone if name.startswith("topline.solvers.")}
    assert alone - solvers - listed == set(), "merge it into its importer, or list why it stands alone"
    assert listed - alone == set(), "take it off the list"
    assert len(solvers) <= SOLVERS_WITH_ONE_IMPORTER, "merge a module into its importer"


def test_every_room_says_what_it_is_for() -> None:
    found = []
    for path in MODULES:
        if path.name == "__init__.py":
            text = ast.get_docstring(tree_of(path)) or ""
            if len(re.findall(r"[.!?](?=\s|$)", text)) < 3:
                found.append(str(path.parent.relative_to(ROOT)))
    assert not found, "a docstring of three sentences is wanted"


def test_users_are_never_answered_by_an_assert() -> None:
    found = [
        where(path, node) for path, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Assert)
    ]
    assert not found


def test_nothing_is_pickled() -> None:
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] in {"pickle", "cloudpickle", "joblib", "dill"} for name in names):
                found.append(where(path, node))
    assert not found


def test_no_shell_and_no_print() -> None:
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            shell = any(
                keyword.arg == "shell" and getattr(keyword.value, "value", False) for keyword in node.keywords
            )
            if shell or name == "print" or (attribute == "system" and ast.unparse(node.func) == "os.system"):
                found.append(where(path, node))
    assert not found


def test_errors_are_not_passed_over_in_silence() -> None:
    found = [
        where(path, node)
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and all(isinstance(part, ast.Pass) for part in node.body)
    ]
    assert not found


def test_modules_and_functions_stay_readable() -> None:
    long_modules = [
        f"{path.relative_to(ROOT)}: {lines} lines"
        for path in MODULES
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST_MODULE
    ]
    long_functions = [
        f"{where(path, node)} {node.name}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and body_lines(node) > LONGEST_FUNCTION
    ]
    assert not long_modules + long_functions


def test_what_belongs_together_is_passed_as_one_value() -> None:
    """A folder that has fewer functions of many parameters than it may lowers its number."""
    found = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and parameters(node) > MOST_PARAMETERS
    )
    assert found["solvers/run"], "the arguments of `solve` are counted"
    assert not {
        f"{folder}: {count}" for folder, count in found.items() if count > MANY_PARAMETERS.get(folder, 0)
    }


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(one.arg not in {"self", "cls"} for one in given)


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("block", [1, 2])
def test_readme_begins_with_two_commands_of_one_line(block: int) -> None:
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    command = blocks[block - 1].strip()
    assert "\n" not in command
    assert ("topline run" in command) == (block == 1)
    assert ("pytest" in command) == (block == 2)


def test_the_guide_lists_the_commands_that_exist() -> None:
    from topline.pipeline.cli.entry import app

    there = {command.name for command in app.registered_commands}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        there |= {
            f"{group.typer_instance.info.name} {c.name}" for c in group.typer_instance.registered_commands
        }
    text = (
        (ROOT / "pipeline" / "README.md").read_text(encoding="utf-8").split("## Commands and exit codes")[1]
    )
    listed = set(re.findall(r"`([^`]+)`", text.split("|", 1)[0]))
    assert listed == there
