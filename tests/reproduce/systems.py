"""`python -m tests.reproduce.systems`: what the papers describe, where it is, and which tests check it.

A second table has their experiments, the tables here that run them again, and what is not run.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class System:
    """A row: `key` of the paper, `what` it is, its `name` in Python, how a user reaches it, and its `tests`.

    A test is a function or a class of a file below tests/, `file.py::name`.  A system that is not in the
    library has no name and no test, and `reach` says why.
    """

    key: str
    what: str
    name: str
    reach: str
    tests: tuple[str, ...]

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

    def shown(self) -> str:
        """Return the row in Markdown."""
        tests = ", ".join(f"`{test}`" for test in self.tests)
        name = f"`{self.name.replace(':', '.')}`" if self.name else "not here"
        return f"| {self.key} | {self.what} | {name} | {self.reach} | {tests} | {self.summary()} |"


@dataclass(frozen=True)
class Experiment:
    """A row: `key` of the paper, `what` is measured, the `tables` here, and what is `left` out and why.

    One of the tables may be a function, `module:name`.
    """

    key: str
    what: str
    tables: tuple[str, ...]
    left: str

    def shown(self) -> str:
        """Return the row in Markdown."""
        tables = ", ".join(f"`{name.rpartition(':')[2]}`" for name in self.tables) or "not here"
        return f"| {self.key} | {self.what} | {tables} | {self.left} |"


def systems() -> list[System]:
    """Return all systems of `systems.toml`."""
    return [
        System(key, what, name, reach, tuple(tests))
        for key, (what, name, reach, tests) in _rows("systems").items()
    ]


def experiments() -> list[Experiment]:
    """Return all experiments of `systems.toml`."""
    return [
        Experiment(key, what, tuple(tables), left)
        for key, (what, tables, left) in _rows("experiments").items()
    ]


def _rows(section: str) -> dict[str, Any]:
    rows: dict[str, Any] = tomllib.loads((HERE / "systems.toml").read_text(encoding="utf-8"))[section]
    return rows


def systems_table() -> list[str]:
    """Return the lines of the systems in Markdown."""
    return [
        "| | system | in Python | reached by | compared with truth from outside by | in the code's words |",
        "|---|---|---|---|---|---|",
        *(row.shown() for row in systems()),
    ]


def experiments_table() -> list[str]:
    """Return the lines of the experiments in Markdown, as the guide has them."""
    return [
        "| | experiment | tables | what is not run |",
        "|---|---|---|---|",
        *(row.shown() for row in experiments()),
    ]


def main() -> None:
    """Print both tables in Markdown."""
    print("\n".join([*systems_table(), "", *experiments_table()]))


if __name__ == "__main__":
    main()
