"""Every public name says how it is used: examples in docstrings run as they are printed."""

from __future__ import annotations

import ast
import doctest
import inspect
from pathlib import Path

import pytest

import topline

ROOT = Path(__file__).resolve().parents[1]
Documented = ast.Module | ast.ClassDef | ast.FunctionDef


def examples(text: str, name: str) -> doctest.DocTest:
    """Return the test of one docstring, not those of its members; nothing is imported for it."""
    return doctest.DocTestParser().get_doctest(text, {}, name, None, None)


def every_example() -> dict[str, doctest.DocTest]:
    """Return the tests of all docstrings of the four rooms by `path:name`."""
    found = {}
    for room in ("solvers", "storage", "pipeline", "flows"):
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if ">>> " not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, Documented) and ">>> " in (docstring := ast.get_docstring(node) or ""):
                    name = f"{path.relative_to(ROOT)}:{getattr(node, 'name', '')}"
                    found[name] = examples(docstring, name)
    return found


EXAMPLES = every_example()


def test_every_public_class_and_function_has_an_example() -> None:
    public = [getattr(topline, name) for name in topline.__all__]
    without = [
        value.__name__
        for value in public
        if (inspect.isclass(value) or inspect.isfunction(value))
        and not examples(value.__doc__ or "", value.__name__).examples
    ]
    assert not without


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_as_printed(name: str) -> None:
    written: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert not runner.run(EXAMPLES[name], out=written.append).failed, "".join(written)
