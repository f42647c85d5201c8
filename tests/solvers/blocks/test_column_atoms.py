"""Away and pairwise steps inside every example's own polytope, against the algorithm written out slowly."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import losses as reference
from tests.solvers.problems import LOSSES, M, examples
from topline import MaxHinge, SerialExecutor, Status, TopKHinge, TopKOthersHinge, solve
from topline.solvers.blocks.block import Block, RunSpec
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem
from topline.solvers.crew import ALONE
from topline.solvers.errors import StateLostError
from topline.solvers.operations import FindDirections, columns
from topline.solvers.run import loop as iteration

VARIANTS = ["fw_away_columns", "fw_pairwise_columns"]
HINGES = [*LOSSES, TopKOthersHinge(2)]
#: (loss, smoothing, smoothing_kind)
CASES = [(loss, gamma, "moreau") for loss in HINGES for gamma in (0.0, 0.5)]
CASES += [(loss, 0.5, "others") for loss in HINGES]


def case_name(value):
    return getattr(value, "name", None)


def run(X, y, loss, lam_n, smoothing=0.0, method="fw_pairwise_columns", **options):
    options = {"tol": 1e-9, "max_passes": 40, "m": M, **options}
    return solve(X, y, loss, lam_n / len(y), smoothing, method, **options)


class Slow:
    """The method with dense vertices in Python lists, straight from its description."""

    def __init__(self, X, y, loss, lam, smoothing, kind, weights, pairwise):
        self.X, self.y, self.loss, self.lam, self.gamma, self.kind = X, y, loss, lam, smoothing, kind
        self.weights, self.pairwise = weights, pairwise
        self.sets = [[(np.zeros(M), 1.0)] for _ in y]
        self.length = 1.0

    def rows(self):
        return np.array([sum(share * point for point, share in group) for group in self.sets])

    def W(self):
        return self.X.T @ (self.weights[:, None] * self.rows()) / (self.lam * len(self.y))

    def dual(self, B):
        return reference.dual(
            self.X,
            self.y,
            self.loss,
            self.lam,
            self.gamma,
            self.weights[:, None] * B,
            self.kind,
            self.weights,
        )

    def gammas(self, label):
        return np.where((np.arange(M) == label) & (self.kind == "others"), 0.0, self.gamma)

    def round(self):
        """Move, and give W, D before it, and the step."""
        B, W, n = self.rows(), self.W(), len(self.y)
        moved, directions = [], np.zeros_like(B)
        for i, label in enumerate(self.y):
            gammas = self.gammas(label)
            scores = self.X[i] @ W + gammas * B[i]
            gradient = -reference.margins_of(self.loss, label, M) - scores
            u = reference.vertex(self.loss, scores, label)
            place = min(range(len(self.sets[i])), key=lambda s: gradient @ self.sets[i][s][0])
            v, share = self.sets[i][place]
            if self.pairwise:
                direction, longest, move = u - v, share, "swap"
            elif gradient @ (B[i] - v) > gradient @ (u - B[i]) and share < 1.0:
                direction, longest, move = B[i] - v, share / (1.0 - share), "away"
            else:
                direction, longest, move = u - B[i], 1.0, "towards"
            slope = gradient @ direction
            if slope <= 0 or self.weights[i] == 0:
                moved.append(None)
                continue
            bend = self.weights[i] * self.X[i] @ self.X[i] / (self.lam * n)
            square = direction**2 @ (bend + gammas)
            reach = longest if longest * square <= self.length * slope else self.length * slope / square
            directions[i] = reach * direction
            moved.append((move, u, place, reach))
        # D on the segment is a parabola, which three of its values fix.
        at = [self.dual(B + g * directions) for g in (0.0, 0.5, 1.0)]
        slope, curvature = -3.0 * at[0] + 4.0 * at[1] - at[2], -4.0 * (at[0] - 2.0 * at[1] + at[2])
        step = min(max(slope / curvature, 0.0), 1.0)
        self.length *= min(max(0.6 * slope / curvature, 0.1), 2.0)
        for i, move in enumerate(moved):
            if move is not None:
                self.sets[i] = self.changed(self.sets[i], *move[:3], step * move[3])
        return W, at[0], step

    @staticmethod
    def changed(group, move, u, place, length):
        kept = {"swap": 1.0, "towards": 1.0 - length, "away": 1.0 + length}[move]
        shares = [kept * share for _, share in group]
        if move != "towards":
            shares[place] -= length
        points = [(point, share) for (point, _), share in zip(group, shares, strict=True) if share > 1e-13]
        if move == "away":
            return points
        for s, (point, share) in enumerate(points):
            if np.array_equal(point, u):
                points[s] = (point, share + length)
                return points
        return [*points, (u, length)]


@pytest.mark.parametrize(("loss", "smoothing", "kind"), CASES, ids=case_name)
@pytest.mark.parametrize("method", VARIANTS)
@pytest.mark.sampled(3)
def test_rounds_are_those_of_the_algorithm_written_out(loss, smoothing, kind, method, monkeypatch) -> None:
    monkeypatch.setattr(columns, "_FEWEST", 16)  # no set is full
    X, y = examples(n=24)
    weights = np.random.default_rng(1).uniform(0.2, 3.0, len(y))
    weights[5] = 0.0
    slow = Slow(X, y, loss, 2.0 / len(y), smoothing, kind, weights, method == "fw_pairwise_columns")
    states = []
    result = run(
        X, y, loss, 2.0, smoothing, method,
        smoothing_kind=kind, sample_weight=weights, max_passes=25, executor=SerialExecutor(blocks=3),
        callbacks=[lambda _record, state: states.append(state)],
    )  # fmt: skip
    for record, state in zip(result.history, states, strict=True):
        W, dual, step = slow.round()
        assert record.dual == pytest.approx(dual, rel=1e-9, abs=1e-12)
        assert record.step == pytest.approx(step, rel=1e-5)
        np.testing.assert_allclose(state.W, slow.W(), rtol=1e-7, atol=1e-9)
        assert not np.array_equal(state.W, W)
    np.testing.assert_allclose(result.A, weights[:, None] * slow.rows(), atol=1e-9)


@pytest.mark.parametrize("method", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.sampled(2)
def test_the_gap_closes_far_beyond_plain_steps(method, dtype) -> None:
    """Also beyond what float32 scores can tell; plain Frank-Wolfe stands at 1e-4 after as many passes."""
    X, y = examples(n=80, d=6, m=6)
    X = X.astype(dtype)
    plain = run(X, y, TopKHinge(3), 10.0, method="fw", max_passes=1000, m=6)
    result = run(X, y, TopKHinge(3), 10.0, method=method, tol=1e-8, max_passes=1000, m=6)
    assert plain.relative_gap > 1e-5
    assert result.status is Status.SOLVED
    assert 0 <= result.relative_gap <= 1e-8


@pytest.mark.parametrize("method", VARIANTS)
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_a_checkpoint_goes_on_from_the_loaded_rows(method, smoothing, monkeypatch) -> None:
    """The sets are new ones of the same A, and lead on as fast as those that were lost."""
    monkeypatch.setattr(iteration, "REBUILD_EVERY", 10)
    X, y = examples()
    first = run(X, y, TopKHinge(2), 5.0, smoothing, method, max_passes=25)
    duals = [(0, 20, first.A[:20].copy()), (20, len(y), first.A[20:].copy())]
    rest = run(
        X, y, TopKHinge(2), 5.0, smoothing, method,
        max_passes=3000, tol=1e-6, state=first.state, duals=duals, executor=SerialExecutor(blocks=7),
    )  # fmt: skip
    whole = run(X, y, TopKHinge(2), 5.0, smoothing, method, max_passes=3000, tol=1e-6)
    assert rest.history[0].dual == pytest.approx(first.dual, rel=1e-12)
    assert rest.history[0].round == 25
    assert whole.status is rest.status is Status.SOLVED
    assert rest.passes < 1.5 * whole.passes
    assert (np.diff([record.dual for record in rest.history]) >= -1e-14 * rest.primal).all()
    lam = 5.0 / len(y)
    assert rest.dual == pytest.approx(reference.dual(X, y, TopKHinge(2), lam, smoothing, rest.A), rel=1e-9)


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_a_step_from_zero_scales_the_vertices(smoothing, pairwise) -> None:
    X, y = examples()
    W = np.zeros((X.shape[1], M))
    with SerialExecutor(blocks=3) as executor:
        problem = Problem(TopKHinge(2), *X.shape, M, 0.1, smoothing)
        executor.bind(problem, X, y.astype(np.int32), keep_duals=True)
        first = executor.run(FindDirections(0, W, pairwise=pairwise))
        after = executor.run(FindDirections(1, W, PendingStep(0, 0.3), pairwise=pairwise, length=0.5))
        assert after.alpha_sq == pytest.approx(0.09 * first.u_sq)
        with pytest.raises(StateLostError, match="round 7"):
            executor.run(FindDirections(8, W, PendingStep(7, 0.5), pairwise=pairwise))


def sets_of(sets, i, y, rho):
    """Give the points of row i as dense vectors, and their shares."""
    points, shares = [], []
    for s in range(sets.used[i]):
        point = np.zeros(M)
        labels = sets.lists[i, s, : sets.lengths[i, s]]
        point[labels] = -rho[: len(labels)]
        point[y[i]] = 0.0
        point[y[i]] = -point.sum()
        points.append(point)
        shares.append(sets.shares[i, s])
    if sets.base_share[i] > 0:
        points.append(sets.base[i])
        shares.append(sets.base_share[i])
    return np.array(points), np.array(shares)


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("places", [2, 3, 16])
@pytest.mark.parametrize("begin", ["zero", "loaded"])
@pytest.mark.sampled(4)
def test_sets_stay_the_rows_of_A_however_small_they_are(pairwise, places, begin, monkeypatch) -> None:
    """Scores at random and steps of all kinds: vertices come, leave, and join the dense point."""
    monkeypatch.setattr(columns, "_PLACES", places)
    monkeypatch.setattr(columns, "_FEWEST", 2)
    X, y = examples(n=40)
    y = y.astype(np.int32)
    loss, random = TopKHinge(3), np.random.default_rng(8)
    problem = Problem(loss, *X.shape, M, 0.1, 0.3)
    A = np.zeros((len(y), M))
    if begin == "loaded":
        scores = random.standard_normal((len(y), M))
        A = 0.7 * np.array([reference.vertex(loss, s, label) for s, label in zip(scores, y, strict=True)])
    block = Block(RunSpec(problem, X, y, keep_duals=True))
    block.load_duals(0, A)
    pending_step = None
    dropped, merged = 0, 0
    for round_ in range(60):
        W = 3.0 * random.standard_normal((X.shape[1], M))
        FindDirections(round_, W, pending_step, pairwise, length=10.0).answer(block, ALONE)
        kept = block.recall(columns.RowSets, pytest.fail)
        sets = kept.sets
        before = sets.used.copy()
        pending_step = PendingStep(round_, float(random.choice([0.0, 0.3, 1.0, 1.0])))
        A = block.dual_rows(pending_step)
        kept.apply_step(pending_step)
        sets = kept.sets
        dropped += int((sets.used < before).sum())
        merged += int((sets.base_share > 0).sum())
        for i in range(len(y)):
            points, shares = sets_of(sets, i, y, problem.form.rho)
            assert shares.min() > 0
            assert shares.sum() == pytest.approx(1.0, abs=1e-12)
            np.testing.assert_allclose(shares @ points, A[i], atol=1e-12)
            assert len(np.unique(points, axis=0)) == len(points) or sets.base_share[i] > 0
    assert dropped > 0
    assert merged > 0 or places == 16
    assert merged == 0 or places < 16 or begin == "loaded"
    assert max(reference.infeasibility(loss, a, k) for a, k in zip(A, y, strict=True)) < 1e-11


@pytest.mark.parametrize("loss", HINGES, ids=case_name)
def test_loaded_rows_are_taken_apart_into_vertices(loss) -> None:
    """Mixtures of up to four vertices, and a row outside the domain, which is kept as it is."""
    X, y = examples(n=100)
    y = y.astype(np.int32)
    random = np.random.default_rng(3)
    shares = random.dirichlet(np.full(4, 0.5), len(y))
    scores = 2.0 * random.standard_normal((len(y), 4, M))
    A = np.array(
        [
            sum(w * reference.vertex(loss, s, label) for w, s in zip(row, some, strict=True))
            for row, some, label in zip(shares, scores, y, strict=True)
        ]
    )
    A[60] *= 5.0
    A[60, y[60]] += 1.0
    A[60, (y[60] + 1) % M] -= 1.0
    block = columns.RowSets(Problem(loss, *X.shape, M, 0.1), y, np.ones(len(y)), A).sets
    dense = np.flatnonzero(block.base_share == 1.0)
    for i in range(len(y)):
        points, weights = sets_of(block, i, y, loss.form(M).rho)
        assert weights.min() > 0
        assert weights.sum() == pytest.approx(1.0, abs=1e-12)
        np.testing.assert_allclose(weights @ points, A[i], atol=2e-12)
    assert 60 in dense
    assert len(dense) <= 10  # the others are approached too slowly


@pytest.mark.parametrize("method", VARIANTS)
def test_features_of_any_size_end_well(method) -> None:
    X, y = examples()
    for size in (1e-4, 1e4):
        result = run(
            (size * X).astype(np.float32), y, MaxHinge(), 60.0 * size**2, method=method, max_passes=500
        )
        same = run(X, y, MaxHinge(), 60.0, method=method, max_passes=500)
        assert result.primal == pytest.approx(same.primal, rel=1e-5)
