"""Golden runs: what every loss, method and row format comes to, to compare a changed engine with.

    python -m tests.benchmarks.solvers.golden [--only PATTERN] [--against FILE] [--write] [--large]

A case is loss/method/rows/layout; `--only` takes a glob pattern of such names, `--against` a file that
`--write` made (default: the stored figures).

* loss: its name, then +moreau or +others where it is smoothed, @k with the average top-k risk.
* rows: dense (float32), double (float64), csr, kernel (features that give the products of an RBF kernel),
  tiles (the same kernel, computed where it is needed).
* layout: one block, three blocks, heads (two costs and folds in shared passes), resumed (three blocks; the
  run stops after a few rounds and continues from its state and dual variables).

Every loss meets every method on dense rows in one block.  Other rows and layouts, smoothed losses and the
average top-k risk take the losses and methods whose code paths cover those of all, see `cases`.

A run notes a digest of W (of A with a kernel, if kept), passes, P, D, its status, and the bytes of arrays in
the state that a checkpoint keeps besides A.  A case is the same if its bits are; else passes may differ by
2 %, and P and D by the tolerance of the runs.  CPU seconds are those of the second of two runs, over those of
a NumPy loop timed in turn with the cases; the median over the cases of new over stored ratios is printed.
Digests hold for one build of NumPy and BLAS, which the file names, and one kind of CPU.
All cases take some three minutes of one core once loops are compiled.  `--large` adds the five large cases of
`pass_cost`, `first_fit` and `gap_curve`, which take minutes.  Exits 1 where a case is neither of the two.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_info, threadpool_limits

from tests.benchmarks.harness import read_options
from tests.benchmarks.scale import gap_curve
from tests.benchmarks.solvers import first_fit, pass_cost
from tests.solvers.problems import EVERY_LOSS, MULTILABEL_LOSSES, loss_name, several_labels
from topline import AverageTopK, RBFKernel, SerialExecutor, SolverError, solve
from topline.solvers.core.problem import MEAN_RISK, Problem
from topline.solvers.core.state import StoppingCriteria
from topline.solvers.methods import METHODS, method_named
from topline.solvers.operations import Head
from topline.solvers.run import Callback, iterate, task
from topline.solvers.run.shared import HeadExecutor, SharedPasses

#: Where the stored figures lie.
STORED = Path(__file__).with_name("golden.json")

N, D, M = 60, 8, 5
LAM, TOL, MAX_PASSES, GAMMA = 0.5 / N, 1e-3, 300, 0.5
KERNEL = RBFKernel(0.1)
#: Rounds after which runs stop that are resumed, those with tiles (which may take few columns each), and all.
STOPPED_AFTER, MOST_ON_TILES, MOST_ROUNDS = 3, 60, 300
#: Passes may differ by this share, or by one, where bits do.
PASSES_SHARE = 0.02

LOSSES = {loss_name(loss).replace(" ", "_"): loss for loss in (*EVERY_LOSS, *MULTILABEL_LOSSES)}
MULTILABEL = {loss.name for loss in MULTILABEL_LOSSES}
#: Losses whose dual steps differ in kind.
FEW = ("max_hinge", "topk_hinge", "weighted_usunier_hinge", "one_vs_all_hinge", "softmax", "multilabel_hinge")
SMOOTHED = ("max_hinge+moreau", "topk_hinge+moreau", "topk_hinge+others", "one_vs_all_hinge+moreau")
HEAD_METHODS = ("dual_ascent", "newton", "lbfgs", "fw")
TILE_METHODS = ("dual_ascent", "fw", "fw_away", "fw_pairwise", "fw_fully_corrective")


class Case(NamedTuple):
    """A run: loss (with what smooths it, and k of the average top-k risk), method, row format, layout."""

    loss: str
    method: str
    rows: str
    layout: str

    def __str__(self) -> str:
        return "/".join(self)

    @property
    def objective(self) -> dict[str, Any]:
        """Return loss, smoothing and risk, as `solve` takes them."""
        name, _, k = self.loss.partition("@")
        name, _, kind = name.partition("+")
        smoothed = {"smoothing": GAMMA, "smoothing_kind": kind} if kind else {}
        return {"loss": LOSSES[name], "risk": AverageTopK(int(k)) if k else MEAN_RISK, **smoothed}


def cases() -> Iterator[Case]:
    """Yield all cases; some of them are refused, which is what they come to."""
    every, few = (*LOSSES, *SMOOTHED), (*FEW, *SMOOTHED)
    for part in (
        (every, METHODS, ["dense"], ["one"]),
        (few, METHODS, ["csr"], ["one"]),
        (few, METHODS, ["dense"], ["three"]),
        (["topk_hinge", "softmax"], METHODS, ["csr"], ["three"]),
        (["topk_hinge", "softmax"], METHODS, ["double"], ["one"]),
        (["topk_hinge", "topk_hinge+moreau"], METHODS, ["kernel"], ["one"]),
        (["topk_hinge", "topk_hinge+moreau", "softmax"], METHODS, ["dense"], ["resumed"]),
        (["max_hinge@10", "softmax@10"], METHODS, ["dense", "csr"], ["three"]),
        (few, TILE_METHODS, ["tiles"], ["one", "three"]),
        (few, HEAD_METHODS, ["dense", "csr"], ["heads"]),
    ):
        yield from (Case(*names) for names in product(*part))


@cache
def examples(rows: str) -> tuple[Any, np.ndarray]:
    """Return the features (N, D) of a row format, and labels."""
    random = np.random.default_rng(5)
    y = np.arange(N) % M
    X = random.standard_normal((M, D))[y] + random.standard_normal((N, D))
    if rows == "csr":
        return csr_matrix(np.where(random.random((N, D)) < 0.5, X, 0.0).astype(np.float32)), y
    return X.astype(np.float32 if rows == "dense" else np.float64), y


def results_of(case: Case) -> list[Any]:
    """Return what a case comes to: one result, or one a head."""
    X, y = examples(case.rows)
    options: dict[str, Any] = {**case.objective, "m": M}
    if case.loss in MULTILABEL:
        options["label_sets"], y = several_labels(y)
    if case.layout == "heads":
        return heads(X, y, case.method, options)
    with ExitStack() as stack:
        executor = stack.enter_context(SerialExecutor(blocks=1 if case.layout == "one" else 3))
        if case.rows in ("kernel", "tiles"):
            options["kernel"] = KERNEL
            most = dict.fromkeys(TILE_METHODS, 0 if case.rows == "tiles" else N)
            stack.enter_context(mock.patch.dict(task.ON_BLOCKS, most))
        options |= {"lam": LAM, "method": case.method, "tol": TOL, "max_passes": MAX_PASSES}
        run = partial(solve, X, y, executor=executor, **options)
        if case.layout != "resumed":
            most = MOST_ON_TILES if case.rows == "tiles" else MOST_ROUNDS
            return [run(callbacks=[stop_after(most)])]
        first = run(callbacks=[stop_after(STOPPED_AFTER)])
        duals = None if first.A is None else [(0, N, first.A)]
        return [run(state=first.state, duals=duals, callbacks=[stop_after(MOST_ROUNDS)])]


def stop_after(rounds: int) -> Callback:
    """Return a callback that ends a run after so many rounds."""
    return lambda record, _: record.round < rounds


def heads(X: Any, y: np.ndarray, method: str, options: Mapping[str, Any]) -> list[Any]:
    """Return what two heads, each of a cost and a fold of its own, come to in shared passes."""
    objective = {name: value for name, value in options.items() if name != "m"}
    runs = [
        Head(head, Problem(n=N, d=D, m=M, lam=LAM / (1 + 2 * head), **objective), head) for head in (0, 1)
    ]
    weights = np.stack([(np.arange(N) // M % 3 != fold).astype(float) for fold in (0, 1)], axis=1)
    criteria = StoppingCriteria(tol=TOL, max_passes=MAX_PASSES)

    def train(run: Head, executor: HeadExecutor) -> Any:
        spec = method_named(method)
        spec.refuse(run.problem)
        chosen = spec.method_for(run.problem, executor.blocks, 0)
        duals = spec.needs_duals(run.problem.form, run.problem.smoothing)
        stops = [stop_after(MOST_ROUNDS)]
        alone = replace(executor, keeps_duals=duals)
        return iterate(run.problem, alone, chosen, criteria, callbacks=stops)

    with SerialExecutor(blocks=3) as executor:
        passes = SharedPasses(executor, runs[0].problem, X, y, weights)
        found = passes.run_all({run: partial(train, run) for run in runs})
    return [found[run.number] for run in runs]


def array_bytes(value: Any) -> int:
    """Return the bytes of all arrays within a value."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(array_bytes(part) for part in value.values())
    if isinstance(value, tuple | list):
        return sum(array_bytes(part) for part in value)
    if is_dataclass(value):
        return sum(array_bytes(getattr(value, part.name)) for part in fields(value))
    return 0


def figures_of(case: Case) -> dict[str, Any]:
    """Run a case twice and return its figures; `cpu` in units of the reference loop."""
    try:
        results_of(case)
        unit, began = reference(), time.process_time()
        found = results_of(case)
        spent = time.process_time() - began
    except SolverError as error:
        return {"status": type(error).__name__}
    digest, values = hashlib.sha256(), [getattr(one, "final", one) for one in found]
    for one, value in zip(found, values, strict=True):
        kept = one.A if case.rows in ("kernel", "tiles") and one.A is not None else value.W
        digest.update(np.ascontiguousarray(kept).tobytes())
    return {
        "status": " ".join(one.status.value for one in found),
        "passes": sum(one.state.passes for one in found),
        "primal": [_number(value.primal) for value in values],
        "dual": [_number(value.dual) for value in values],
        "digest": digest.hexdigest()[:16],
        "state_bytes": sum(array_bytes(one.state) for one in found),
        "cpu": round(spent / unit, 3),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def reference() -> float:
    """Return the CPU seconds of a fixed loop of products and sorts."""
    random = np.random.default_rng(0)
    X, W = random.standard_normal((N, D)), random.standard_normal((D, M))
    began = time.process_time()
    for _ in range(200):
        W = W - 1e-3 * (X.T @ np.sort(X @ W, axis=1))
    return time.process_time() - began


def difference(old: Mapping[str, Any], new: Mapping[str, Any], share: float = PASSES_SHARE) -> str:
    """Return how the figures of a case differ: "" for the same bits, "close ..." within the tolerance.

    Passes may differ by `share` of the old ones.
    """
    if old["status"] != new["status"]:
        return f"status {old['status']} -> {new['status']}"
    if old.get("digest") == new.get("digest"):
        return ""
    passes = f"passes {old['passes']} -> {new['passes']}"
    if abs(new["passes"] - old["passes"]) > max(1.0, share * old["passes"]):
        return passes
    for name in ("primal", "dual"):
        for before, after in zip(old[name], new[name], strict=True):
            if (before is None) != (after is None):
                return f"{name} {before} -> {after}"
            if before is not None and abs(after - before) > 2.0 * TOL * abs(old["primal"][0]):
                return f"{name} {before:.6g} -> {after:.6g}"
    return f"close, {passes}"


def compare(stored: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> int:
    """Print the cases that differ and the ratio of CPU time; return how many are not close."""
    differences = {name: difference(stored[name], new) for name, new in found.items() if name in stored}
    for name, what in differences.items():
        if what:
            print(f"{name:<56} {what}")
    close = sum(what.startswith("close") for what in differences.values())
    apart = sum(bool(what) for what in differences.values()) - close
    both = [(stored[name], new) for name, new in found.items() if name in stored and "cpu" in new]
    ratios = [new["cpu"] / old["cpu"] for old, new in both if old.get("cpu")]
    memory = [new["state_bytes"] / old["state_bytes"] for old, new in both if old.get("state_bytes")]
    same, fresh = len(differences) - close - apart, len(found) - len(differences)
    print(f"{len(found)} cases: {same} the same bits, {close} close, {apart} apart, {fresh} not stored")
    if ratios:
        print(
            f"CPU time over the stored one: {statistics.median(ratios):.3f};"
            f" bytes of state over the stored: {statistics.median(memory):.3f} (medians)"
        )
    return apart


def large() -> None:
    """Run the five large cases: a pass, two first fits, two curves of the gap."""
    pass_cost.main([])
    first_fit.main(["topk_hinge", "softmax"])
    gap_curve.main(["--loss", "topk_hinge"])
    gap_curve.main(["--loss", "softmax"])


def versions() -> dict[str, Any]:
    """Return what digests depend on besides the code."""
    blas = sorted(
        {f"{one['internal_api']} {one['version']} {one.get('architecture', '')}" for one in threadpool_info()}
    )
    return {"python": platform.python_version(), "numpy": np.__version__, "blas": blas}


def stored_cases(path: Path) -> dict[str, Any]:
    """Return the figures of a file by the names of cases, none where there is no such file."""
    return json.loads(path.read_text())["cases"] if path.exists() else {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases that are asked for, compare and store them; returns the exit code."""
    options = read_options(__doc__, arguments, only="*", against=STORED, write=False, large=False)
    found, began = {}, time.process_time()
    with threadpool_limits(1):
        for case in cases():
            if fnmatch.fnmatch(str(case), options.only):
                found[str(case)] = figures_of(case)
    apart = compare(stored_cases(options.against), found)
    print(f"{time.process_time() - began:.0f} CPU s; {versions()}")
    if options.write:
        kept = {**stored_cases(STORED), **found}
        lines = ",\n".join(f"{json.dumps(str(case))}: {json.dumps(kept[str(case)])}" for case in cases())
        STORED.write_text(f'{{"versions": {json.dumps(versions())},\n"cases": {{\n{lines}\n}}}}\n')
    if options.large:
        large()
    return 1 if apart and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
