"""Rules that a reader can rely on, checked on the sources themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("solvers", "storage", "pipeline", "flows")
MODULES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
LONGEST_MODULE = 330
LONGEST_FUNCTION = 60


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in MODULES:
        yield path, ast.parse(path.read_text(encoding="utf-8"))


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


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_extras_of_the_cloud_stores_agree_with_the_tests() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert set(extras["s3"]) <= set(extras["test"])


@pytest.mark.parametrize("block", [1, 2])
def test_readme_begins_with_two_commands_of_one_line(block: int) -> None:
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    command = blocks[block - 1].strip()
    assert "\n" not in command
    assert ("topline run" in command) == (block == 1)
    assert ("pytest" in command) == (block == 2)


def test_readme_lists_the_commands_that_exist() -> None:
    from topline.pipeline.cli.app import app

    there = {command.name for command in app.registered_commands}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        there |= {
            f"{group.typer_instance.info.name} {c.name}" for c in group.typer_instance.registered_commands
        }
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## Commands and exit codes")[1]
    listed = set(re.findall(r"`([^`]+)`", text.split("|", 1)[0]))
    assert listed == there
