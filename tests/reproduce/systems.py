"""`python -m tests.reproduce.systems`: what the papers describe, where it is, and which test checks it."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class System:
    """A row: `key` of the paper, `what` it is, its `name` in Python, how a user `reaches` it, and its `test`.

    One that is not in the library has no name and no test, and `reach` says why.
    """

    key: str
    what: str
    name: str
    reach: str
    test: str

    def found(self) -> Any:
        """Return what the name stands for; ImportError or AttributeError where there is no such thing."""
        module, _, path = self.name.partition(":")
        value: Any = import_module(module)
        for part in path.split(".") if path else ():
            value = getattr(value, part)
        return value

    def summary(self) -> str:
        """Return the first sentence of the docstring in the code, empty where it has none."""
        if not self.name:
            return ""
        text = (getattr(self.found(), "__doc__", None) or "").strip().partition("\n")[0]
        return text.removesuffix(".").replace(" | ", " ")

    def tests(self) -> list[str]:
        """Return the names of the tests in its file."""
        tree = ast.parse((ROOT / self.test).read_text(encoding="utf-8"))
        return [
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]


def systems() -> list[System]:
    """Return all rows of `systems.toml`."""
    rows = tomllib.loads((HERE / "systems.toml").read_text(encoding="utf-8"))["systems"]
    return [System(key, *row) for key, row in rows.items()]


def main() -> None:
    """Print the table in Markdown, with the number of tests of each file."""
    print("| | system | in Python | reached by | tests | in the code's words |\n|---|---|---|---|---|---|")
    for row in systems():
        tests = f"`{row.test}` ({len(row.tests())})" if row.test else ""
        name = f"`{row.name.replace(':', '.')}`" if row.name else "not here"
        print(f"| {row.key} | {row.what} | {name} | {row.reach} | {tests} | {row.summary()} |")


if __name__ == "__main__":
    main()
