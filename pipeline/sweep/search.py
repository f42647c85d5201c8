"""A sweep: compare C, k, losses and smoothings by cross-validation, only as far as the decision needs.

A round solves every running cell to a smaller relative gap on every fold, with each path of C as one task
(`topline.pipeline.sweep.paths`); then `topline.pipeline.sweep.race` decides which cells are finished and
which can no longer win.  Answers are stored before they count, so that an interrupted sweep continues from
the last one and makes the same decisions.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from distributed import Client

from topline.pipeline.cluster import given_or_own_client
from topline.pipeline.errors import ClusterError, InputError, InterruptedRunError
from topline.pipeline.interrupts import terminating, whole_interrupts
from topline.pipeline.options import Cell, ClusterConfig, SweepConfig
from topline.pipeline.progress import Progress
from topline.pipeline.sweep.cells import Outcome
from topline.pipeline.sweep.paths import DaskRunner, HereRunner, PathTask, Round
from topline.pipeline.sweep.plan import SweepPlan, place_cells, plan_sweep, variant_of
from topline.pipeline.sweep.race import (
    Standing,
    best_cell,
    contested,
    due,
    grown,
    judged,
    may_go_on,
    next_step,
    skipped,
)
from topline.pipeline.sweep.result import SweepResult, concluded, write_page
from topline.pipeline.sweep.shared import SharedRunner, open_shared
from topline.pipeline.training import train
from topline.solvers.run import compile_jit_functions
from topline.storage.runs import add_answer, finish_sweep, read_answers

#: Path and fold of an answer.
Place: TypeAlias = tuple[int, int]
#: Takes paths through their last round.
Runner: TypeAlias = HereRunner | DaskRunner | SharedRunner


def sweep(
    config: SweepConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
) -> SweepResult:
    """Compare the cells of a grid by cross-validation on the training rows of a dataset.

    `cluster` says where paths are solved (default: one worker per core); an open `client` takes precedence.
    Raises `InterruptedRunError` after Ctrl-C, SIGTERM or loss of the cluster; its message holds the command
    that continues.
    """
    plan = plan_sweep(config)
    cluster = cluster or ClusterConfig()
    began = time.perf_counter()
    try:
        with whole_interrupts(), terminating(), _runner(plan, cluster, client) as runner:
            _compile(plan, progress)
            standings = _Rounds(plan, runner, progress).to_the_end()
    except (KeyboardInterrupt, ClusterError) as error:
        reason = str(error) or "stopped"
        raise InterruptedRunError(f"{reason}; {plan.how_to_resume}") from error
    if best_cell(standings) is None:
        raise InputError(
            f"every cell of sweep {plan.id} overflowed: scale the features (transforms standardize or l2)"
        )
    result = concluded(plan, standings, time.perf_counter() - began)
    result = replace(result, page=write_page(plan.store, result))
    finish_sweep(plan.store, plan.id, result.to_dict())
    if not config.train_best:
        return result
    best = result.best
    chosen = next(path for path in plan.paths if variant_of(path) == best.variant)
    trained = train(chosen.model_copy(update={"C": best.C}), cluster, progress, client)
    return replace(result, trained=trained)


class _Rounds:
    """A sweep between two rounds."""

    def __init__(self, plan: SweepPlan, runner: Runner, progress: Progress | None) -> None:
        self._plan, self._runner, self._progress = plan, runner, progress
        self._standings = [
            Standing(cell, plan.config.folds, effective_rows=plan.effective_rows) for cell in plan.cells
        ]
        self._answers = read_answers(plan.store, plan.id)
        # Unique to this process: states of an earlier process are gone.
        self._name = f"{plan.id}-{uuid.uuid4().hex[:8]}"
        self._asked: dict[Place, tuple[Round, ...]] = {}

    def to_the_end(self) -> list[Standing]:
        """Run rounds until no cell is running."""
        if self._progress is not None:
            self._progress.begin("sweep", len(self._standings), "cells")
        number = 0
        try:
            while wanted := self._wanted():
                self._take(number, wanted)
                number += 1
        finally:
            self._runner.close(self._name)
        return self._standings

    def _wanted(self) -> dict[Place, Round]:
        """Return the cells that are due in this round, by path and fold."""
        config, standings = self._plan.config, self._standings
        asked: dict[Place, list[tuple[float, float]]] = {}
        for one in due(standings, config.rule):
            folds, gap = next_step(one, config.rule, config.tol)
            for fold in folds:
                asked.setdefault((self._path_of(one.cell), fold), []).append((one.cell.C, gap))
        # Fold by fold, so that a fold's rows are read once for all its paths.
        return {place: tuple(asked[place]) for place in sorted(asked, key=lambda place: place[::-1])}

    def _take(self, number: int, wanted: Mapping[Place, Round]) -> None:
        config, found = self._plan.config, self._known(number, wanted)
        tasks = [self._task(place, cells) for place, cells in wanted.items() if place not in found]
        for task, answer in self._runner.run(tasks):
            place = (int(task.name.rpartition("/")[2]), task.fold)
            name = variant_of(self._plan.paths[place[0]]).name
            cells = [part.to_dict() for part in answer]
            record = {"round": number, "path": place[0], "name": name, "fold": task.fold, "cells": cells}
            add_answer(self._plan.store, self._plan.id, len(self._answers), record)
            self._answers.append(record)
            found[place] = answer
        before = self._ended
        after = [self._grown(one, found) for one in self._standings]
        after = judged(after, config.rule, config.tol, config.confidence)
        self._standings = contested(skipped(after, config.rule), config.rule)
        if self._progress is not None:
            self._progress.advance(self._ended - before)
            self._progress.note(self._facts(number))

    def _task(self, place: Place, cells: Round) -> PathTask:
        path, fold = place
        self._asked[place] = (*self._asked.get(place, ()), cells)
        plan, train = self._plan, self._plan.paths[path]
        left = [one.cell for one in self._standings if may_go_on(one, plan.config.rule)]
        waiting = tuple(cell.C for cell in left if cell.variant == variant_of(train))
        return PathTask(
            f"{self._name}/{path}", plan.source(train), train, plan.spec(train), fold, plan.topk,
            self._asked[place], waiting, plan.class_weights,
        )  # fmt: skip

    def _known(self, number: int, wanted: Mapping[Place, Round]) -> dict[Place, tuple[Outcome, ...]]:
        """Return a round's stored answers; one that lacks a cell is from an older version and is ignored."""
        known = {
            (answer["path"], answer["fold"]): tuple(map(Outcome.from_dict, answer["cells"]))
            for answer in self._answers
            if answer["round"] == number
        }
        return {
            place: known[place]
            for place, cells in wanted.items()
            if place in known and {C for C, _ in cells} <= {part.C for part in known[place]}
        }

    def _grown(self, one: Standing, found: Mapping[Place, Sequence[Outcome]]) -> Standing:
        """Add this round's findings to a cell, fold by fold."""
        path = self._path_of(one.cell)
        parts = tuple(
            part
            for fold in range(self._plan.config.folds)
            for part in found.get((path, fold), ())
            if part.C == one.cell.C
        )
        return grown(one, parts, self._plan.config.rule) if parts else one

    def _path_of(self, cell: Cell) -> int:
        return [variant_of(path) for path in self._plan.paths].index(cell.variant)

    @property
    def _ended(self) -> int:
        # Cells that continue once more already have a reason.
        return sum(one.state != "running" or bool(one.why) for one in self._standings)

    def _facts(self, number: int) -> dict[str, Any]:
        measured = [one for one in self._standings if one.rounds]
        if not measured:
            return {"round": number + 1}
        leader = max(measured, key=lambda one: one.mean)
        accuracy = f"{leader.mean:.1%} with C = {leader.cell.C:g}"
        return {"round": number + 1, f"best {self._plan.metric.column}": accuracy}


@contextmanager
def _runner(plan: SweepPlan, cluster: ClusterConfig, client: Client | None) -> Iterator[Runner]:
    cluster, memory = place_cells(plan, cluster, there=client is not None)
    if memory is not None:
        with open_shared(plan, memory, client) as shared:
            yield shared
        return
    with given_or_own_client(cluster, client, plan.nbytes) as found:
        if found is None:
            yield HereRunner()
        else:
            wait = cluster.worker_wait
            yield DaskRunner(found, heartbeat_timeout=cluster.heartbeat_timeout, worker_wait=wait)


def _compile(plan: SweepPlan, progress: Progress | None) -> None:
    """Compile before the clock starts, and before workers start, which then find the kernels on disk."""
    if progress is not None:
        progress.begin("compile")
    info = plan.dataset.info
    for path in plan.paths:
        # With a kernel the features are a factor of its matrix.
        factored = path.kernel is not None
        compile_jit_functions(
            replace(plan.spec(path), keep_duals=True),
            plan.n if factored else info.d,
            info.m,
            sparse=not factored and info.layout == "csr",
        )
