"""The method that is taken by forecasts: where a run begins, and when it changes by the test's own clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from topline import MaxHinge, OneVsAll, SerialExecutor, Softmax, Status, StoppingCriteria, TopKEntropy, solve
from topline.solvers.core.codec import decoded, encoded
from topline.solvers.core.problem import LabelledRows, Problem
from topline.solvers.executors import Executor
from topline.solvers.losses import Loss
from topline.solvers.methods import Auto, change_of_method, choose, priors
from topline.solvers.methods.auto import Prior
from topline.solvers.run.loop import Callback, Run, iterate
from topline.solvers.run.task import ProblemSpec, Task, default_executor

N, D, M = 600, 400, 4


def texts(seed: int = 0) -> tuple[Any, np.ndarray]:
    """Return rows of unit norm with words of their class, and labels."""
    random = np.random.default_rng(seed)
    y = random.integers(0, M, N)
    words = (random.exponential(size=(N, 12)) * D / 8 + y[:, None] * D / 8).astype(int) % D
    X = sparse.csr_matrix(
        (np.ones(words.size), words.ravel(), np.arange(0, words.size + 1, 12)), shape=(N, D)
    )
    X.sum_duplicates()
    return normalize(X).astype(np.float32), y


def clusters(n: int = 600, d: int = 30, m: int = 5, noise: float = 2.0) -> tuple[Any, np.ndarray]:
    """Return overlapping clusters with deviations of about 1, and labels."""
    random = np.random.default_rng(0)
    y = np.arange(n) % m
    X = random.normal(size=(m, d))[y] + noise * random.normal(size=(n, d))
    return ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32), y


def activations(n: int = 600, d: int = 300, m: int = 6) -> tuple[Any, np.ndarray]:
    """Return unit rows that have much in common, as behind a ReLU, and labels."""
    random = np.random.default_rng(0)
    y = np.arange(n) % m
    X = np.maximum(random.normal(size=(n, d)) + 0.3 * random.normal(size=(m, d))[y], 0.0)
    return normalize(X).astype(np.float32), y


def forecast(X: Any, y: np.ndarray, loss: Loss, C: float, blocks: int = 1, **known: Any) -> Any:
    """Return what every method is forecast to take."""
    n, m = len(y), int(y.max()) + 1
    return priors(Problem(loss, n, X.shape[1], m, 1.0 / (n * C)), blocks, X, **known)


class Clock:
    """A clock that a test sets: it goes on by so many seconds whenever it is read."""

    def __init__(self, tick: float = 1.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def run_of(
    known: dict[str, Prior], loss: Loss, C: float, clock: Callable[[], float], *callbacks: Callback,
    blocks: int = 1, passes: int = 300, keeps: Callable[[Executor], None] = lambda _: None,
    rows: Any = None, **options: Any,
) -> Run:  # fmt: skip
    """Run the method by these forecasts and a clock of the test's own."""
    X, y = rows or clusters()
    problem = Problem(loss, len(y), X.shape[1], int(y.max()) + 1, 1.0 / (len(y) * C))
    with SerialExecutor(blocks=blocks) as executor:
        executor.bind(problem, X, y.astype(np.int32), keep_duals=True)
        if "duals" in options:
            executor.load_duals(options.pop("duals"))
        method, criteria = Auto(blocks, 0, known), StoppingCriteria(1e-4, passes)
        run = iterate(problem, executor, method, criteria, options.get("state"), callbacks, clock)
        keeps(executor)
        return run


SMOOTH = {"lbfgs": Prior(10.0), "dual_ascent": Prior(10.0)}


@pytest.mark.parametrize("loss", [Softmax(), TopKEntropy(2)], ids=lambda loss: loss.name)
@pytest.mark.parametrize(("first", "then"), [("lbfgs", "dual_ascent"), ("dual_ascent", "lbfgs")])
def test_a_smooth_loss_goes_over_both_ways_to_the_same_optimum(loss: Loss, first: str, then: str) -> None:
    """The prior of the first has it all but done, and the fall of the gap refutes that."""
    known = {first: Prior(1.0), then: Prior(1.0)}
    run = run_of(known, loss, 10.0, Clock())
    assert run.status is Status.SOLVED
    method, why = change_of_method(run.state)
    assert method.startswith(f"{first}, {then}")
    assert why.startswith(f"{then} from pass ")
    assert f"s by {then}" in why
    X, y = clusters()
    plain = solve(X, y, loss, 1.0 / (len(y) * 10.0), method="lbfgs", tol=1e-5)
    assert run.final.primal == pytest.approx(plain.primal, rel=2e-4)
    assert run.final.dual <= plain.primal
    # Neither bound falls back where the method changes.
    assert np.all(np.diff([record.dual for record in run.history]) >= -1e-6)
    assert np.all(np.diff([record.primal for record in run.history]) <= 1e-6)


@pytest.mark.parametrize(("first", "then"), [("lbfgs", "dual_ascent"), ("dual_ascent", "lbfgs")])
def test_the_dual_variables_in_the_blocks_are_those_of_the_certificate(first: str, then: str) -> None:
    states: list[Any] = []
    rows: list[Any] = []
    run = run_of(
        {first: Prior(1.0), then: Prior(1.0)}, Softmax(), 10.0, Clock(),
        lambda _, state: states.append(state),
        keeps=lambda executor: rows.extend(A for _, _, A in executor.duals(states[-1].pending_step)),
    )  # fmt: skip
    X, _ = clusters()
    W = run.final.W if run.final.W_dual is None else run.final.W_dual
    assert run.status is Status.SOLVED
    np.testing.assert_allclose(10.0 * X.T @ np.concatenate(rows), W, atol=1e-4)


def test_a_hinge_goes_to_newton_and_back() -> None:
    known = {"dual_ascent": Prior(1.0), "newton": Prior(1.0)}
    clock = Clock()

    def slower(_record: Any, state: Any) -> None:
        if state.memory.method == "newton":
            clock.tick = 1e5

    run = run_of(known, MaxHinge(), 30.0, clock, slower, passes=2_000)
    assert change_of_method(run.state).method.startswith("dual_ascent, newton, dual_ascent")
    assert np.all(np.diff([record.dual for record in run.history]) >= -1e-6)


def test_a_method_that_is_not_forecast_to_take_longer_keeps_its_turn() -> None:
    for name in SMOOTH:
        others = {other: Prior(1e9) for other in SMOOTH if other != name}
        run = run_of({name: Prior(10.0), **others}, Softmax(), 3.0, Clock())
        assert change_of_method(run.state).method == name


def test_a_gap_that_hardly_moves_refutes_a_forecast_before_its_passes_have_gone() -> None:
    """After five passes the fall forecasts 2,500 more, which refutes 10 and not 1,000."""
    rows = clusters(2_000, 6, 40, 4.0)
    for passes, changes in ((10.0, [5]), (1_000.0, [])):
        known = {"dual_ascent": Prior(passes), "newton": Prior(2.0 * passes)}
        run = run_of(known, MaxHinge(), 30.0, Clock(), passes=9, rows=rows)
        assert [change.passes for change in run.state.memory.changes] == changes


@pytest.mark.parametrize(("prior", "goes"), [(Prior(1e6, 1e-12), False), (Prior(10.0, 1e9), True)])
def test_a_method_that_ends_within_the_passes_comes_first(prior: Prior, goes: bool) -> None:
    """Dual ascent takes more than 1,000 passes: one that takes more yet is no way out, however quick."""
    run = run_of({"dual_ascent": Prior(1.0), "newton": prior}, MaxHinge(), 300.0, Clock(), passes=300)
    assert change_of_method(run.state).method.startswith("dual_ascent, newton") == goes
    assert run.state.passes <= 300


def test_several_blocks_go_over_by_what_an_evaluation_takes() -> None:
    """Their rounds take as long as the clock says, one evaluation a second."""
    known = {"dual_ascent": Prior(math.inf), "newton": Prior(100.0, 1.0)}
    clock = Clock()

    def waits(_record: Any, state: Any) -> None:
        clock.now += 1e4 * (state.memory.method == "dual_ascent")

    slow = run_of(known, MaxHinge(), 1.0, clock, waits, blocks=4)
    assert change_of_method(slow.state).method.startswith("dual_ascent, newton")
    assert slow.state.memory.evaluation == 1.0
    assert slow.state.memory.changes[0].forecast == 100.0 * 8.0


@pytest.mark.parametrize("C", [1.0, 100.0, 1e4, 1e6])
def test_one_against_all_ends_however_large_C_is(C: float) -> None:
    """L-BFGS alone takes more than 500 passes of the last, whose classes come apart one by one."""
    X, y = load_digits(return_X_y=True)
    X, loss = np.c_[X, np.ones(len(y))].astype(np.float32), OneVsAll("logistic")
    run = run_of(forecast(X, y, loss, C), loss, C, Clock(), passes=500, rows=(X, y))
    assert run.status is Status.SOLVED


def test_a_product_of_newton_is_quick_beside_a_pass_of_lbfgs_where_rows_are_few_and_wide() -> None:
    """A pass of L-BFGS goes over its pairs besides, which are large beside the rows."""
    X, y = np.cos(np.outer(np.arange(600), np.linspace(0.0, 3.0, 900))).astype(np.float32), np.arange(600) % 6
    few, many = (
        forecast(np.tile(X, (times, 1)), np.tile(y, times), Softmax(), 1.0)["newton"] for times in (2, 100)
    )
    assert few.cost < many.cost < 1.0
    assert (
        forecast(X, y, TopKEntropy(2), 1.0)["newton"].cost
        > 1.2 * forecast(X, y, Softmax(), 1.0)["newton"].cost
    )
    assert math.isinf(forecast(*texts(), Softmax(), 0.1)["newton"].passes)


@pytest.mark.parametrize(("passes", "changes"), [(20.0, [5]), (60.0, [])])
def test_the_gap_of_dual_ascent_counts_beside_its_forecast(passes: float, changes: list[int]) -> None:
    """At the second reading its rule of thumb says 14 passes to go, the gap says 250, and their mean 59."""
    known = {"dual_ascent": Prior(20.0), "lbfgs": Prior(passes)}
    run = run_of(known, Softmax(), 30.0, Clock(), passes=12)
    assert [change.passes for change in run.state.memory.changes] == changes


def test_it_changes_at_most_three_times() -> None:
    tick = itertools.count()
    known = {"lbfgs": Prior(0.0, 1e-9), "dual_ascent": Prior(0.0, 1e-9)}
    run = run_of(known, Softmax(), 300.0, lambda: float(next(tick) ** 3))
    assert len(run.state.memory.changes) <= 3


def test_the_same_readings_of_the_clock_give_the_same_run() -> None:
    known = {"lbfgs": Prior(1.0), "dual_ascent": Prior(1.0)}
    one, other = (run_of(known, Softmax(), 30.0, Clock(0.5)) for _ in range(2))
    np.testing.assert_array_equal(one.final.W, other.final.W)
    assert change_of_method(one.state) == change_of_method(other.state)


@pytest.mark.parametrize("rounds", [2, 7, 12])
def test_a_run_is_taken_up_on_either_side_of_a_change(rounds: int) -> None:
    """Its state goes through a checkpoint's codec."""
    known = {"lbfgs": Prior(1.0), "dual_ascent": Prior(1.0)}
    kept: list[Any] = []

    def keep(executor: Executor) -> None:
        kept.append([(a, b, np.array(A)) for a, b, A in executor.duals(half_state[-1].pending_step)])

    half_state: list[Any] = []

    def ends(record: Any, state: Any) -> bool:
        half_state.append(state)
        return record.round < rounds

    half = run_of(known, Softmax(), 30.0, Clock(), ends, keeps=keep)
    state = decoded(*encoded(half.state))
    rest = run_of(
        known, Softmax(), 30.0, Clock(), state=replace(state.with_point(pending_step=None)), duals=kept[-1]
    )
    assert rest.status is Status.SOLVED
    assert change_of_method(rest.state).method.startswith("lbfgs, dual_ascent")


def test_dual_ascent_of_one_block_goes_on_in_several() -> None:
    X, y = texts()
    options = {"lam": 0.02 / N, "tol": 1e-6, "keep_duals": True}
    cut = solve(X, y, Softmax(), callbacks=[lambda record, _: record.round < 1], **options)
    assert change_of_method(cut.state).method == "dual_ascent"
    start = {"state": cut.state, "duals": [(0, N, cut.A)]}
    rest = solve(X, y, Softmax(), executor=SerialExecutor(blocks=4), **start, **options)
    assert rest.status is Status.SOLVED


def test_what_is_forecast_follows_from_the_rows() -> None:
    X, y = clusters()
    smooth = [forecast(X, y, Softmax(), C)["dual_ascent"].passes for C in (0.01, 1.0, 100.0)]
    hinge = [forecast(X, y, MaxHinge(), C)["dual_ascent"].passes for C in (0.01, 1.0, 100.0)]
    for passes in (smooth, hinge):
        assert passes == sorted(passes)
        assert passes[-1] > 5.0 * passes[0]
    longer = forecast(np.concatenate([X[:-1], 40.0 * X[-1:]]), y, Softmax(), 1.0)["dual_ascent"].passes
    assert longer > 10.0 * smooth[1]
    weights = np.ones(len(y))
    assert forecast(X, y, Softmax(), 1.0, weights=weights)["dual_ascent"].passes == smooth[1]
    weights[7] = 100.0
    assert forecast(X, y, Softmax(), 1.0, weights=weights)["dual_ascent"].passes > 10.0 * smooth[1]


def test_a_long_run_on_few_dense_rows_begins_with_dual_ascent() -> None:
    mixed = np.random.default_rng(1).standard_normal((4, 320), np.float32)
    for n in (1_200, 2_400):
        X, y = clusters(n, 4, 10)
        known = forecast(X @ mixed, y, Softmax(), 1.0)
        least = min(known, key=lambda name: known[name].time)
        assert least != "dual_ascent"
        assert next(iter(known)) == ("dual_ascent" if n <= 4 * 320 else least)
    # Forecast as long, sparse rows begin with the least.
    known = forecast(*texts(), Softmax(), 5_000.0)
    assert next(iter(known)) == min(known, key=lambda name: known[name].time)


def test_whole_numbers_are_squared_as_numbers() -> None:
    """240^2 is 0 in eight bits."""
    X, y = texts()
    counts = sparse.csr_matrix((np.full(X.nnz, 240, dtype=np.uint8), X.indices, X.indptr), shape=X.shape)
    assert forecast(counts, y, Softmax(), 1.0)["dual_ascent"].passes > 1e5


def test_several_blocks_leave_dual_ascent_to_the_hinges() -> None:
    X, y = clusters()
    assert set(forecast(X, y, Softmax(), 1.0, blocks=8)) == {"lbfgs"}
    several = forecast(X, y, MaxHinge(), 1.0, blocks=8)
    assert math.isinf(several["dual_ascent"].passes)
    with SerialExecutor(blocks=8) as executor:
        assert solve(X, y, Softmax(), 0.1 / len(y), executor=executor).method == "lbfgs"


@pytest.mark.parametrize("loss", [Softmax(), OneVsAll("logistic")], ids=lambda loss: loss.name)
def test_sparse_rows_take_dual_ascent_up_to_a_moderate_size(loss: Loss) -> None:
    X, y = texts()
    found = solve(X, y, loss, 0.1 / N)
    assert (found.method, found.status) == ("dual_ascent", Status.SOLVED)
    assert "dual_ascent" in found.why
    plain = solve(X, y, loss, 0.1 / N, method="lbfgs")
    assert found.primal == pytest.approx(plain.primal, rel=1e-3)
    assert "dual_ascent" not in solve(X, y, loss, 1e-4 / N, tol=1.0).method, "C |x|^2 = 10,000"


def test_a_problem_that_is_large_is_for_workers() -> None:
    X = texts()[0]
    assert choose(Problem(Softmax(), N, D, M, 1.0 / N), kernel=False).method == "lbfgs"
    assert choose(Problem(Softmax(), N, D, M, 1.0 / N), kernel=False, rows=X).method == "auto"
    for n, d in ((1 << 23, 8), (1 << 20, 256)):
        rows = np.broadcast_to(np.float32(1.0), (n, d))
        assert choose(Problem(Softmax(), n, d, M, 1.0), kernel=False, rows=rows).method == "lbfgs"


def test_weights_alone_are_a_start_for_lbfgs() -> None:
    X, y = texts()
    cut = solve(X, y, Softmax(), 0.1 / N, method="lbfgs", max_passes=3)
    rest = solve(X, y, Softmax(), 0.1 / N, state=cut.state)
    assert (rest.method, rest.status) == ("lbfgs", Status.SOLVED)


def test_a_state_of_lbfgs_goes_on_with_its_pairs_and_its_duals_are_asked_for() -> None:
    X, y = activations()
    whole = solve(X, y, Softmax(), 1.0 / len(y), tol=1e-5)
    assert (whole.method, whole.A) == ("lbfgs", None)
    cut = solve(X, y, Softmax(), 1.0 / len(y), tol=1e-5, max_passes=whole.passes - 4)
    rest = solve(X, y, Softmax(), 1.0 / len(y), tol=1e-5, state=cut.state)
    assert (rest.method, rest.status) == ("lbfgs", Status.SOLVED)
    np.testing.assert_allclose(rest.W, whole.W, atol=1e-12)
    asked = solve(X, y, Softmax(), 1.0 / len(y), tol=1e-5, keep_duals=True)
    assert asked.A is not None
    np.testing.assert_allclose(X.T @ asked.A, asked.W if asked.W_dual is None else asked.W_dual, atol=1e-6)


def test_rows_of_a_file_are_looked_at_too(tmp_path: Any) -> None:
    X, y = clusters()
    np.save(tmp_path / "X.npy", X)
    found = solve(np.load(tmp_path / "X.npy", mmap_mode="r"), y, Softmax(), 0.25 / len(y))
    assert found.status is Status.SOLVED


@pytest.mark.parametrize(("per_column", "blocks"), [(8, 1), (40, 2), (1000, 16)])
def test_blocks_of_sparse_rows_have_entries_for_each_column(per_column: int, blocks: int) -> None:
    n, d, m = 20_000, 1_000, 20
    X = sparse.random_array((n, d), density=per_column / n, format="csr", dtype=np.float32, rng=0)
    spec, y = ProblemSpec(Softmax(), C=1.0, method="lbfgs"), np.arange(n, dtype=np.int32) % m
    for rows, expected in ((X, blocks), (np.broadcast_to(np.float32(1.0), (n, d)), 16)):
        task = Task(spec, LabelledRows(rows, y, None, m), StoppingCriteria())
        with default_executor(task) as executor:
            executor.bind(task.problem, X, y, keep_duals=False)
            assert executor.blocks == expected
            assert isinstance(executor, SerialExecutor)
