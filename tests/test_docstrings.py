"""Every public name says how it is used: the examples of its docstring run as they are printed."""

from __future__ import annotations

import doctest
import inspect

import pytest

import topline

NAMES = [
    name
    for name in topline.__all__
    if inspect.isclass(getattr(topline, name)) or inspect.isfunction(getattr(topline, name))
]


def examples(name: str) -> list[doctest.DocTest]:
    """Return the tests of one docstring, not those of its members; nothing is imported for them."""
    text = getattr(topline, name).__doc__ or ""
    found = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    return [found] if found.examples else []


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_public_names_run_as_printed(name: str) -> None:
    tests = examples(name)
    assert tests, f"topline.{name} has no example"
    for test in tests:
        written: list[str] = []
        outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=written.append)
        assert not outcome.failed, "".join(written)
