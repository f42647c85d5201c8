"""The changes are made, undone and told apart, and every target has modules and tests."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.operators import mutations
from tests.mutation.runner import ROOT, Mutant, mutants_of, sample
from tests.mutation.targets import TARGETS


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("x = a < b", {"x = a <= b", "x = a >= b"}),
        ("x = a is not b", {"x = a is b"}),
        ("x = a and b and c", {f"x = {t}" for t in ("a or b or c", "b and c", "a and c", "a and b")}),
        ("x = a + 'b'", set()),
        ("x = a @ b", {"x = a * b"}),
        ("x = not a", {"x = a"}),
        ("x = 1", {"x = 2"}),
        ("x = 1e-6", {"x = 0.01"}),
        ("x = True", {"x = False"}),
        ("x += y", {"x -= y", "pass"}),
        ("x[y] = z", {"pass"}),
        ("f(x)", {"pass"}),
        ("'words'", set()),
        ("def f(a: 1) -> 2:\n    return a", {"def f(a: 1) -> 2:\n    return None"}),
        ("if a:\n    b = c", {"if not a:\n    b = c"}),
        ("if TYPE_CHECKING:\n    x = 1", set()),
        ("raise Error(1)", set()),
        ("__all__ = [1]", set()),
        ("x = zip(a, b, strict=True)", set()),
    ],
)
def test_every_change_is_one_and_is_undone(source, changed) -> None:
    tree = ast.parse(source)
    found = set()
    for change in mutations(tree):
        change.apply()
        found.add(ast.unparse(tree))
        change.undo()
        assert ast.unparse(tree) == ast.unparse(ast.parse(source))
    assert found == changed


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_there(name) -> None:
    assert len(mutants_of(TARGETS[name])) > 10
    assert all((ROOT / path).exists() for path in TARGETS[name].tests)


def test_a_sample_is_the_same_for_a_seed() -> None:
    every = [Mutant("m", number, f"m.py:{number}", "") for number in range(50)]
    assert sample(every, 5, 1) == sample(every, 5, 1) != sample(every, 5, 2)
    assert sample(every, None, 1) == sample(every, 50, 1) == every
    assert every[3].file == "m.py"
