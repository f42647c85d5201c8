"""How far a training row and `--C` travel: modules, functions and records on the way, counted in small runs.

    python -m tests.path_of_a_row [--names | --json]

The row's way goes from `solve` to its first column update, that of `--C` from the command line to the loop of
rounds.  Compiled functions run as Python, so that they count as called.  A record is a class of ours of which
a function on the way has an instance as an argument.  Of `--C` only functions count that are given it: as
text, as C or lam = 1/(n C), or inside a record, a list or a mapping.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

# Before Numba is imported, which then leaves functions as they are.
os.environ["NUMBA_DISABLE_JIT"] = "1"

import numpy as np

from tests.pipeline.small_data import small_dataset
from topline import TopKHinge, solve
from topline.pipeline.cli import main as topline
from topline.pipeline.rows import TrainingRows

#: The names of what is passed, by kind; the stack is that at the end of the way, the innermost first.
Way: TypeAlias = dict[str, list[str]]

#: How many there were at 3f3ed27b, before the engine became one.
BEFORE = {
    "row": {"modules": 50, "functions": 241, "records": 48, "stack": 22},
    "--C": {"modules": 38, "functions": 114, "records": 33, "stack": 15},
}
C, ROWS = 0.3137, 40
#: How deep inside an argument the parameter is looked for.
_DEEP = 6
#: Comprehensions, and the initialisers of dataclasses.
_GENERATED = re.compile(r"<(?!locals)|^__create_fn__")


class _ArrivedError(Exception):
    """The way is at its end."""


def followed(run: Callable[[], Any], ends: Callable[[FrameType], bool], has: Callable[[Any], bool]) -> Way:
    """Return what is passed by a run until a frame `ends` the way, of functions whose arguments `has` it."""
    modules, functions, records, stack = set(), set(), set(), []

    def look(frame: FrameType, event: str, _: Any) -> None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if event != "call" or not module.startswith("topline") or _GENERATED.search(code.co_qualname):
            return
        arrived = ends(frame)
        if not (arrived or has(frame.f_locals)):
            return
        modules.add(module)
        functions.add(f"{module}.{code.co_qualname}")
        kinds = {type(value) for value in frame.f_locals.values()}
        records.update(kind.__qualname__ for kind in kinds if kind.__module__.startswith("topline"))
        if not arrived:
            return
        sys.setprofile(None)
        below: FrameType | None = frame
        while below is not None:
            if below.f_globals.get("__name__", "").startswith("topline"):
                stack.append(below.f_code.co_qualname)
            below = below.f_back
        raise _ArrivedError

    sys.setprofile(look)
    # The command line takes the end for a fault, and says so.
    with suppress(_ArrivedError, SystemExit), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        run()
    sys.setprofile(None)
    if not stack:
        raise RuntimeError("the run ended before the way did")
    found = {"modules": modules, "functions": functions, "records": records}
    return {**{kind: sorted(names) for kind, names in found.items()}, "stack": stack}


def way_of_a_row() -> Way:
    """Follow a row from `solve` to the first update of a column of the dual variables."""
    y, loss = np.arange(ROWS) % 4, TopKHinge(2)
    X = np.eye(4, 6)[y] + np.linspace(-1.0, 1.0, 6 * ROWS).reshape(ROWS, 6)
    family = loss.form(4).family
    updates = {each._compiled.__code__ for each in (family.column, family.column_alike) if each is not None}
    return followed(
        lambda: solve(X.astype(np.float32), y, loss, 0.05),
        lambda frame: frame.f_code in updates,
        lambda _: True,
    )


def way_of_C(folder: Path) -> Way:
    """Follow `--C` from the command line to the loop of rounds."""
    n = len(TrainingRows(small_dataset(folder, n=ROWS), "train"))

    def has(value: Any, deep: int = 0) -> bool:
        if isinstance(value, float):
            return any(abs(value - one) <= 1e-12 * one for one in (C, 1.0 / (n * C)))
        if isinstance(value, str):
            return str(C) in value
        if deep == _DEEP or isinstance(value, type):
            return False
        if isinstance(value, list | tuple | dict):
            return any(has(one, deep + 1) for one in (value.values() if isinstance(value, dict) else value))
        ours = type(value).__module__.startswith(("topline", "argparse"))
        return ours and hasattr(value, "__dict__") and has(vars(value), deep)

    words = ["train", "--store", str(folder), "--C", str(C), "--workers", "0", "--loss", "max_hinge"]
    return followed(
        lambda: topline(words),
        lambda frame: frame.f_code.co_qualname == "iterate" and has(frame.f_locals),
        has,
    )


def main() -> None:
    """Print both ways, beside what they were."""
    with tempfile.TemporaryDirectory() as folder:
        ways = {"row": way_of_a_row(), "--C": way_of_C(Path(folder) / "store")}
    if "--json" in sys.argv:
        print(json.dumps(ways))
        return
    for name, way in ways.items():
        print(f"{name}: " + ", ".join(f"{kind} {BEFORE[name][kind]} -> {len(way[kind])}" for kind in way))
        if "--names" in sys.argv:
            print("\n".join(f"  {kind}: {', '.join(names)}" for kind, names in way.items()))


if __name__ == "__main__":
    main()
