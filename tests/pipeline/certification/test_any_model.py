"""Certificates of models that nothing has trained: P and D of any W and A are those of the reference."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from tests.pipeline.small_data import write_dataset
from tests.pipeline.watching import Recorder
from tests.reference import losses as reference
from tests.reference import risks
from tests.reference.qp import least_on_simplex
from tests.solvers import problems
from topline.pipeline.certification import (
    Certificate,
    certify,
    formulas,
    recompute,
)
from topline.pipeline.certification import sums as certificate_sums
from topline.pipeline.certification.formulas import (
    CertifiedLoss,
    RankedLoss,
    certified_loss,
    envelope,
    penalties,
)
from topline.pipeline.certification.sums import kernel_values
from topline.pipeline.errors import InputError
from topline.solvers.losses import (
    LDRKL,
    MultilabelHinge,
    MultilabelSoftmax,
    OneVsAll,
    Softmax,
    TopKEntropy,
    TopKHinge,
)
from topline.solvers.losses import LOSSES as SOLVER_LOSSES
from topline.solvers.names import LOSS_RULES
from topline.storage.arrays import from_rows
from topline.storage.datasets import Dataset, LabelSetTable
from topline.storage.models import ModelRecord, save_model
from topline.storage.stores import open_store

Array = NDArray[np.float64]

CLASSES = 4
RHO = [0.5, 0.3, 0.1]
LOSSES: list[dict[str, Any]] = [
    {"name": "max_hinge"},
    {"name": "structured_hinge", "margins": [[0, 1, 2, 0.5], [1, 0, 1, 3], [0.2, 1, 0, 1], [2, 2, 1, 0]]},
    {"name": "topk_hinge", "k": 2},
    {"name": "topk_hinge", "k": 4},
    {"name": "usunier_hinge", "k": 3},
    {"name": "weighted_topk_hinge", "rho": RHO},
    {"name": "weighted_usunier_hinge", "rho": RHO},
    {"name": "topk_others_hinge", "k": 1},
    {"name": "topk_others_hinge", "k": 2},
    {"name": "topk_others_hinge", "k": 3},
]
IDS = ["-".join(str(v) for key, v in loss.items() if key != "margins") for loss in LOSSES]


@pytest.mark.parametrize("name", LOSS_RULES)
def test_the_rules_of_losses_are_those_of_the_solvers(name: str) -> None:
    """Names, k, rank weights, margins and what the sort leaves out, which the certificate knows by itself."""
    constructor, parameter = SOLVER_LOSSES[name]
    margins = np.array(LOSSES[1]["margins"])
    for k in range(1, CLASSES) if parameter == "k" else (2,):
        given = {None: (), "k": (k,), "rho": (RHO,), "margins": (margins,), "temperature": (0.5,)}[parameter]
        loss = constructor(*given)
        form, record = loss.form(CLASSES), loss.to_dict()
        if not form.convex:
            with pytest.raises(InputError, match="not convex"):
                certified_loss(record, CLASSES)
            continue
        found = certified_loss(record, CLASSES)
        assert isinstance(found, RankedLoss) == form.sparse_vertices
        if isinstance(found, RankedLoss):
            assert found.own_in_sort == (not LOSS_RULES[name].of_others)
            np.testing.assert_allclose(found.rho[found.rho > 0], form.rho)
            ones, y = 1 - np.eye(CLASSES), np.arange(CLASSES)
            margins_of_labels = found.shifted(np.zeros((CLASSES, CLASSES)), y)
            np.testing.assert_allclose(margins_of_labels, ones if form.margins is None else form.margins)
        elif parameter == "k":
            assert found.k == k


def vertices(loss: RankedLoss) -> np.ndarray[Any, Any]:
    """All x over the m - 1 others: rho in every order, and on the Usunier side any part of it."""
    found = {(0.0,) * (CLASSES - 1)}
    for order in itertools.permutations(range(CLASSES)):
        placed = loss.rho[list(order)]
        if not loss.own_in_sort and placed[0] > 0:
            continue
        for kept in itertools.product((0, 1), repeat=CLASSES) if loss.hinge_per_rank else [(1,) * CLASSES]:
            found.add(tuple((placed * kept)[1:]))
    return np.array(sorted(found))


def as_alpha(x: np.ndarray[Any, Any], y: int) -> np.ndarray[Any, Any]:
    return np.insert(-x, y, x.sum())


@pytest.mark.parametrize("record", LOSSES, ids=IDS)
def test_the_domain_is_the_hull_of_the_vertices(record: dict[str, Any]) -> None:
    """Points of the hull have no violation; random points have one exactly if an LP finds them outside."""
    loss = RankedLoss.from_record(record, CLASSES)
    rng = np.random.default_rng(2)
    corners = vertices(loss)
    inside = rng.dirichlet(np.full(len(corners), 0.3), size=50) @ corners
    for x in inside:
        y = int(rng.integers(CLASSES))
        assert loss.violations(as_alpha(x, y)[None], np.array([y]))[0] <= 1e-12
    outcomes = set()
    for x in np.abs(rng.normal(size=(80, CLASSES - 1))) * 0.35:
        equal = np.vstack([corners.T, np.ones(len(corners))])
        feasible = linprog(np.zeros(len(corners)), A_eq=equal, b_eq=[*x, 1.0]).status == 0
        assert (loss.violations(as_alpha(x, 0)[None], np.array([0]))[0] <= 1e-9) == feasible
        outcomes.add(feasible)
    assert False in outcomes


@pytest.mark.parametrize("record", LOSSES, ids=IDS)
@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("gamma", [0.05, 1.0, 20.0])
@pytest.mark.sampled(6)
def test_the_envelope_is_the_penalised_maximum(record: dict[str, Any], gamma: float, share: float) -> None:
    """Against a general solver over the weights of the vertices; share 0 smooths the others alone."""
    loss = RankedLoss.from_record(record, CLASSES)
    rng = np.random.default_rng(3)
    scores, y = rng.normal(size=(12, CLASSES)), rng.integers(0, CLASSES, size=12)
    corners = vertices(loss)
    values = envelope(loss, scores, y, gamma, share * gamma)
    rows = loss.gradient(scores, y, gamma, share * gamma)
    assert loss.violations(rows, y).max() <= 1e-12
    for i in range(len(y)):
        b = np.delete(loss.shifted(scores[i : i + 1], y[i : i + 1])[0], y[i])

        def negative(w: np.ndarray[Any, Any], b: np.ndarray[Any, Any] = b) -> float:
            x = w @ corners
            return float(0.5 * gamma * (x @ x + share * x.sum() ** 2) - b @ x)

        weights, least = least_on_simplex(negative, len(corners))
        # Any feasible point bounds the maximum from below.
        assert values[i] >= -negative(weights) - 1e-9
        assert values[i] == pytest.approx(-least, abs=2e-5)


CERTIFIED = [loss for loss in problems.EVERY_LOSS if loss.form(problems.M).convex]
SMOOTHED = [
    (loss, gamma, kind)
    for loss in CERTIFIED
    for gamma, kind in ((0.0, "moreau"), (0.5, "moreau"), (0.5, "others"))
    if gamma == 0.0 or not loss.form(problems.M).smooth
    if kind == "moreau" or loss.form(problems.M).sparse_vertices
]


#: Rows of no label, some and all; the softmax has none without.
SETS = [np.array(labels, dtype=int) for labels in ([], [2], [0, 3], [1, 2, 4], [0, 1, 2, 3, 4])]
TABLE = LabelSetTable.checked(np.cumsum([0, *map(len, SETS)]), np.concatenate(SETS), problems.M)
#: Losses of label sets by the sizes of their smoothing.
OF_SETS = {
    MultilabelHinge(): (0.0, 0.05, 0.5, 20.0),
    MultilabelSoftmax(): (0.0,),
    OneVsAll("hinge"): (0.0, 0.05, 0.5, 20.0),
    OneVsAll("logistic"): (0.0,),
}


def codes_of(loss: Any, n: int) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Codes of label sets in turn, and their labels."""
    first = int(isinstance(loss, MultilabelSoftmax))
    codes = first + np.arange(n) % (len(SETS) - first)
    return codes, [SETS[code] for code in codes]


def spread_scores(seed: int) -> Array:
    """Scores of several sizes and with ties."""
    scores = np.random.default_rng(seed).normal(size=(60, problems.M))
    scores *= np.repeat([0.1, 1.0, 10.0], 20)[:, None]
    scores[::3] = np.round(scores[::3])
    return scores


@pytest.mark.parametrize(("loss", "gamma", "kind"), SMOOTHED, ids=str)
def test_values_rows_and_conjugates_are_those_of_the_reference(loss: Any, gamma: float, kind: str) -> None:
    y = np.random.default_rng(5).integers(0, problems.M, size=60)
    assert_as_in_the_reference(certified_loss(loss.to_dict(), problems.M), loss, y, list(y), gamma, kind)


@pytest.mark.parametrize(
    ("loss", "gamma"), [(loss, gamma) for loss, sizes in OF_SETS.items() for gamma in sizes], ids=str
)
def test_label_sets_have_those_of_the_reference(loss: Any, gamma: float) -> None:
    found = certified_loss(loss.to_dict(), problems.M, TABLE)
    assert_as_in_the_reference(found, loss, *codes_of(loss, 60), gamma, "moreau")


def assert_as_in_the_reference(
    found: CertifiedLoss, loss: Any, y: Any, labels: list[Any], gamma: float, kind: str
) -> None:
    """Two implementations that share nothing: `y` is what the one knows rows by, `labels` the other."""
    scores = spread_scores(4)
    own = 0.0 if kind == "others" else gamma
    rows = found.gradient(scores, y, gamma, own)
    values, conjugates = envelope(found, scores, y, gamma, own), found.conjugate(rows, y)
    outside, squares = found.violations(rows, y), penalties(rows, y, gamma, own)
    for i, label in enumerate(labels):
        if gamma:
            expected = reference.envelope(loss, scores[i], label, gamma, kind)
            np.testing.assert_allclose(
                rows[i], reference.gradient(loss, scores[i], label, gamma, kind), atol=1e-10
            )
        else:
            expected = reference.sorted_loss(loss, scores[i], label)
            attained = reference.minus_conjugate(loss, rows[i], label) - rows[i] @ scores[i]
            assert attained == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert values[i] == pytest.approx(expected, rel=1e-12, abs=1e-11)
        conjugate = reference.minus_conjugate(loss, rows[i], label)
        assert conjugates[i] == pytest.approx(conjugate, rel=1e-12, abs=1e-12)
        assert squares[i] == pytest.approx(0.5 * gamma * reference.squares(rows[i], label, kind), abs=1e-13)
        assert reference.infeasibility(loss, rows[i], label) <= 1e-12
    assert (outside <= 1e-12 * np.maximum(1.0, np.abs(rows).max(axis=1))).all()


@pytest.mark.parametrize(
    ("loss", "sets"), [*((loss, False) for loss in CERTIFIED), *((loss, True) for loss in OF_SETS)], ids=str
)
def test_a_row_outside_is_told_by_how_much(loss: Any, sets: bool) -> None:
    """Rows of the domain blown up or moved, compared with the reference's own measure."""
    rng = np.random.default_rng(6)
    found = certified_loss(loss.to_dict(), problems.M, TABLE if sets else None)
    radius = loss.form(problems.M).rho.sum() if loss.form(problems.M).sparse_vertices else 1.0
    scores, y = rng.normal(size=(40, problems.M)), rng.integers(0, problems.M, size=40)
    y, labels = codes_of(loss, 40) if sets else (y, list(y))
    # Only the other sign leaves a cone.
    least = 0.5 if loss.form(problems.M).family.bounded else -0.5
    rows = found.gradient(scores, y, 0.0, 0.0) * rng.uniform(least, 2.5, (40, 1))
    # Some move in one class, and some from one to the next, which keeps their sum.
    moved, j = np.arange(0, 40, 4), np.arange(10) % problems.M
    rows[moved, j] += 0.02
    rows[moved + 1, j] += 0.02
    rows[moved + 1, (j + 1) % problems.M] -= 0.02
    amounts = found.violations(rows, y) * radius
    expected = np.array(
        [reference.infeasibility(loss, row, own) for row, own in zip(rows, labels, strict=True)]
    )
    np.testing.assert_array_equal(amounts > 1e-9, expected > 1e-9)
    assert (amounts > 1e-3).any()
    assert (amounts < 1e-9).any()


@pytest.mark.parametrize("name", ["weighted_topk_hinge", "weighted_usunier_hinge"])
def test_violations_are_shares_of_the_sum_of_the_rank_weights(name: str) -> None:
    """Of a sum that is not zero, and of a largest entry that is too large."""
    loss = RankedLoss.from_record({"name": name, "rho": RHO}, CLASSES)
    assert loss.radius == pytest.approx(0.9)
    unequal, large = (as_alpha(np.array(x), 1) for x in ([0.2, 0.1, 0.1], [0.8, 0.0, 0.0]))
    unequal[1] += 0.25
    found = loss.violations(np.stack([unequal, large]), np.full(2, 1))
    # The largest entry is at most 0.5; on the top-k side it asks for 1.6 times the whole.
    assert found == pytest.approx([0.25 / 0.9, 0.6 if name == "weighted_topk_hinge" else 0.3 / 0.9])


def test_an_unknown_loss_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="square_hinge"):
        certified_loss({"name": "square_hinge"}, CLASSES)


def test_a_loss_that_is_not_convex_is_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match="truncated_topk_entropy with k = 2 is not convex: it has no dual"):
        certified_loss({"name": "truncated_topk_entropy", "k": 2}, CLASSES)
    assert certified_loss({"name": "truncated_topk_entropy", "k": 1}, CLASSES) == certified_loss(
        {"name": "softmax"}, CLASSES
    )


N, D, M, LAM = 40, 4, problems.M, 0.05
WEIGHTS = (0.0, 2.0, 0.5, 1.0, 3.0)


class Rows:
    """A stored dataset that is all training rows, with its features (n, d) and labels (n,)."""

    def __init__(self, folder: Path) -> None:
        X, y = problems.examples(N, D, M, seed=3)
        self.X, self.y = X.astype(np.float32).astype(np.float64), y.astype(np.int64)
        store = open_store(folder, create=True)
        write_dataset(store, X.astype(np.float32), y.astype(np.int32), np.zeros(N, dtype=np.int8), m=M)
        self.dataset = Dataset.open(store)

    def certified(
        self,
        loss: Any,
        arrays: dict[str, Array],
        A: Array | None = None,
        *,
        recorded: tuple[float, float] = (1.0, 0.0),
        config: dict[str, Any] | None = None,
        progress: Any = None,
        **fields: Any,
    ) -> Certificate:
        """Store such a model and certify it."""
        info = self.dataset.info
        record = ModelRecord(
            dataset=info.id,
            dataset_digest=info.digest,
            config={"tol": 1e-3, **(config or {})},
            loss=loss.to_dict(),
            lam=LAM,
            C=1.0 / (LAM * N),
            **{"smoothing": 0.0, **fields},
            method="fw",
            n=N,
            d=D,
            m=M,
            class_names=info.class_names,
            features=info.features,
            result=dict(zip(("primal", "dual"), recorded, strict=True)),
        )
        duals = None if A is None else from_rows([(0, N, A)])
        return certify(save_model(self.dataset.store, record, arrays, duals), progress)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return Rows(tmp_path_factory.mktemp("any") / "store")


def weights_at(seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=(D, M))


def duals_at(rows: Rows, loss: Any, V: Array, gamma: float, kind: str, weights: Array) -> Array:
    """Feasible dual rows: gradients at V, as often as their rows count."""
    found = [reference.gradient(loss, s, y, gamma, kind) for s, y in zip(rows.X @ V, rows.y, strict=True)]
    return np.asarray(found) * weights[:, None]


def smoothed_primal(
    rows: Rows, loss: Any, gamma: float, kind: str, W: Array, A: Array, weights: Array
) -> float:
    """The upper bound that training watches: losses at scores moved by gamma times a dual row, and |.|^2."""
    total = 0.0
    for s, y, row, weight in zip(rows.X @ W, rows.y, A, weights, strict=True):
        beta = row / weight if weight else 0.0 * row
        moved = gamma * beta
        if kind == "others":
            moved[y] = 0.0
        moved_loss = reference.sorted_loss(loss, s + moved, y)
        total += weight * (moved_loss + 0.5 * gamma * reference.squares(beta, y, kind))
    return float(0.5 * LAM * np.sum(W**2) + total / N)


@pytest.mark.parametrize("class_weights", [None, WEIGHTS], ids=["alike", "weighted"])
@pytest.mark.parametrize(("loss", "gamma", "kind"), SMOOTHED, ids=str)
@pytest.mark.sampled(2)
def test_any_weights_and_dual_variables(
    rows: Rows, loss: Any, gamma: float, kind: str, class_weights: tuple[float, ...] | None
) -> None:
    """Every loss, smoothing and weighting; a class that counts for nothing has dual rows of zeros."""
    weights = np.ones(N) if class_weights is None else np.asarray(class_weights)[rows.y]
    W = weights_at(1)
    A = duals_at(rows, loss, weights_at(2), gamma, kind, weights)
    problem = (rows.X, rows.y, loss, LAM, gamma)
    primal = reference.primal(*problem, W, kind, weights)
    dual = reference.dual(*problem, A, kind, weights)
    fields = {"smoothing": gamma, "smoothing_kind": kind, "class_weights": class_weights}
    found = rows.certified(loss, {"W": W}, A, recorded=(primal, dual), **fields)
    assert (found.primal, found.dual) == pytest.approx((primal, dual), rel=1e-9)
    assert found.gap == pytest.approx(primal - dual)
    assert found.relative_gap == pytest.approx((primal - dual) / primal)
    assert (found.basis, found.n, found.gap_kind) == ("A", N, "true")
    assert found.agrees
    assert found.valid
    assert not found.certified
    assert found.infeasibility == pytest.approx(0.0, abs=1e-9)
    V = reference.weights_of(rows.X, LAM, A)
    assert found.w_difference == pytest.approx(np.linalg.norm(W - V) / np.linalg.norm(W))
    if gamma:
        expected = smoothed_primal(rows, loss, gamma, kind, W, A, weights) - dual
        assert found.smoothed_gap == pytest.approx(expected)
    else:
        assert found.smoothed_gap is None
    # Without A and its sums the dual point is minus the gradient at W.
    own = duals_at(rows, loss, W, gamma, kind, weights)
    alone = rows.certified(loss, {"W": W}, **fields)
    assert (alone.basis, alone.infeasibility, alone.w_difference) == ("W", None, None)
    assert alone.dual == pytest.approx(reference.dual(*problem, own, kind, weights), rel=1e-9)
    assert alone.primal == found.primal
    assert not alone.agrees
    assert not alone.valid


def watch_precisions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have float32 tried on any number of products; return what rows come in, tile by tile."""
    monkeypatch.setattr(recompute, "MANY_PRODUCTS", 1)
    add, seen = certificate_sums.CertificateSums.add, []

    def noted(self: certificate_sums.CertificateSums, first: int, X: Any, *others: Any) -> None:
        seen.append(X.dtype.name)
        add(self, first, X, *others)

    monkeypatch.setattr(certificate_sums.CertificateSums, "add", noted)
    return seen


@pytest.mark.parametrize("class_weights", [None, WEIGHTS], ids=["alike", "weighted"])
@pytest.mark.parametrize("loss", [Softmax(), TopKEntropy(2), LDRKL(0.2)], ids=str)
@pytest.mark.parametrize("size", [1e-3, 1.0, 200.0])
def test_a_gap_by_float32_products_covers_their_rounding(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, loss: Any, class_weights: Any, size: float
) -> None:
    """The exact gap is that in float64; W needs more digits than float32 has."""
    W = size * weights_at(1)
    wide = rows.certified(loss, {"W": W}, class_weights=class_weights)
    seen, record = watch_precisions(monkeypatch), (wide.primal, wide.dual)
    found = rows.certified(loss, {"W": W}, class_weights=class_weights, recorded=record)
    assert set(seen) == {"float32"}
    bound = found.gap - (found.primal - found.dual)
    assert abs(found.primal - found.dual - wide.gap) <= bound <= 1e-4 * wide.gap
    assert found.gap >= wide.gap != found.primal - found.dual
    assert (found.primal, found.dual) == pytest.approx(record, rel=1e-6)
    assert found.relative_gap == found.gap / found.primal
    assert (found.basis, found.valid) == ("W", True)


@pytest.mark.parametrize(
    ("recorded", "share", "unit"),
    [((1.0, 1.0), 0.0, 2.0**-24), ((1.0 + 3e-6, 1.0), 1.0, 2.0**-24), ((1.0, 1.0), 1.0, np.inf)],
    ids=["rounding", "record", "overflow"],
)
def test_float64_decides_what_rounding_may_hide(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, recorded: tuple[float, float], share: float, unit: float
) -> None:
    """A gap above the tolerance of which rounding is too large a share, or a record that seems wrong."""
    W = weights_at(1)
    monkeypatch.setattr(certificate_sums, "_UNIT", unit)
    wide = rows.certified(Softmax(), {"W": W})
    seen, record = watch_precisions(monkeypatch), np.multiply(recorded, (wide.primal, wide.dual))
    monkeypatch.setattr(recompute, "SMALL_SHARE", share)
    found = rows.certified(Softmax(), {"W": W}, recorded=(float(record[0]), float(record[1])))
    assert (found.primal, found.dual, found.gap) == (wide.primal, wide.dual, wide.gap)
    assert (seen[0], seen[-1]) == ("float32", "float64")


def test_float64_decides_where_the_bound_alone_may_be_above_the_tolerance(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the gap and the gap with its bound lies the tolerance, though the bound is a small share."""
    W = weights_at(1)
    wide = rows.certified(Softmax(), {"W": W})
    seen, record = watch_precisions(monkeypatch), (wide.primal, wide.dual)
    found = rows.certified(Softmax(), {"W": W}, recorded=record)
    assert {*seen} == {"float32"}
    between = 0.5 * (wide.relative_gap + found.relative_gap)
    assert wide.relative_gap < between < found.relative_gap
    monkeypatch.setattr(recompute, "LOOSEST_TOL", between)
    certified = rows.certified(Softmax(), {"W": W}, recorded=record, config={"tol": between})
    assert seen[-1] == "float64"
    assert certified.certified
    assert certified.gap == wide.gap


def test_the_bound_of_rounding_is_the_sum_of_its_terms() -> None:
    """By hand: W has two features and two classes, and tiles of one and of three rows are added."""
    W, W_dual, lam, n = np.array([[3.0, 0.0], [4.0, 1.0]]), np.array([[3.0, 1.0], [4.0, 1.0]]), 0.5, 4
    whole = certificate_sums.Rounding(W, curvature=2.0)
    for norms, alpha in ((np.array([2.0]), [[1.0, -1.0]]), (np.array([1.0, 1.0, 3.0]), [[0.5, -0.5]] * 3)):
        part = whole.part()
        part.squares, part.most_rows = float(np.vdot(norms, norms)), len(norms)
        part.add(norms, np.array(alpha), np.ones((len(norms), 2)))
        whole.take(part)
    assert (whole.squares, whole.most_rows, whole.cross) == (15.0, 3, 0.0)
    np.testing.assert_allclose(whole.sizes, [4.5, 4.5])
    scores, columns = 6 * 2.0**-24, 7 * 2.0**-24  # sums of two and of three products, and four roundings
    off = columns * 4.5 / (lam * n)
    expected = 0.5 * 2.0 * (scores * 5.0) ** 2 * 15.0 / n + 0.5 * lam * (off * off + off * (2.0 + off))
    assert expected <= whole.bound(W_dual, lam, n) <= 1.03 * expected


@pytest.mark.parametrize("kind", ["hinge", "smoothed", "duals", "cuts"])
def test_products_are_in_float64_where_no_bound_is_known(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    loss = TopKHinge(2) if kind in {"hinge", "smoothed"} else Softmax()
    gamma, W = 0.4 if kind == "smoothed" else 0.0, weights_at(1)
    A = duals_at(rows, loss, W, gamma, "moreau", np.ones(N)) if kind == "duals" else None
    cuts = {"cut_points": W[None], "cut_shares": np.array([0.5])} if kind == "cuts" else {}
    seen = watch_precisions(monkeypatch)
    rows.certified(loss, {"W": W, **cuts}, A, smoothing=gamma)
    assert set(seen) == {"float64"}


@pytest.mark.parametrize(("gamma", "basis"), [(0.0, "W and b"), (0.4, "W, b and aa")])
def test_sums_stand_for_the_dual_variables_that_weights_are_made_of(
    rows: Rows, gamma: float, basis: str
) -> None:
    loss = TopKHinge(2)
    A = duals_at(rows, loss, weights_at(2), gamma, "moreau", np.ones(N))
    W = reference.weights_of(rows.X, LAM, A)
    b = np.mean([reference.minus_conjugate(loss, row, y) for row, y in zip(A, rows.y, strict=True)])
    sums = np.array([b, np.sum(A**2) / N])
    found = rows.certified(loss, {"W": W, "dual_sums": sums}, smoothing=gamma)
    assert found.dual == pytest.approx(reference.dual(rows.X, rows.y, loss, LAM, gamma, A), rel=1e-9)
    assert found.basis == basis
    elsewhere = rows.certified(
        loss, {"W": weights_at(1), "dual_sums": sums * [1.0, 0.0], "dual_W": W}, smoothing=0.0
    )
    assert elsewhere.basis == "W, W(A) and b"
    assert elsewhere.dual == pytest.approx(b - 0.5 * LAM * np.sum(W**2))


@pytest.mark.parametrize("held", [1 << 26, 1], ids=["together", "one by one"])
@pytest.mark.parametrize(
    ("loss", "gamma"), [(TopKHinge(2), 0.0), (TopKHinge(2), 0.4), (Softmax(), 0.0)], ids=str
)
@pytest.mark.parametrize("k", [1, 7.5, 0.25])
def test_any_cuts_of_the_average_top_k_risk(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, loss: Any, gamma: float, k: float, held: int
) -> None:
    """A share of the rows counts as many of them; how many points are looked at at once changes nothing."""
    monkeypatch.setattr("topline.pipeline.certification.sums._LOSS_BYTES", held)
    count = k if k >= 1 else k * N
    points, shares = np.stack([weights_at(seed) for seed in (2, 3, 4)]), np.array([0.5, 0.3, 0.1])
    risk = (rows.X, rows.y, loss, LAM, gamma, count)
    progress = Recorder()
    found = rows.certified(
        loss,
        {"W": weights_at(1), "cut_points": points, "cut_shares": shares},
        config={"average_top": k},
        progress=progress,
        smoothing=gamma,
    )
    assert found.primal == pytest.approx(risks.top_primal(*risk, weights_at(1)), rel=1e-9)
    assert found.dual == pytest.approx(dual_of_vertices(*risk, points, shares), rel=1e-9)
    assert (found.basis, found.infeasibility, found.smoothed_gap) == ("W and its cuts", 0.0, None)
    announced = sum(total or 0 for _, total, _ in progress.stages)
    assert (progress.counts, {unit for *_, unit in progress.stages}) == ({"certify": announced}, {"rows"})


def test_envelopes_are_taken_of_rows_that_may_be_among_the_largest(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined: list[int] = []

    def counted(loss: Any, scores: Array, *rest: Any) -> Array:
        examined.append(len(scores))
        return formulas.envelope(loss, scores, *rest)

    monkeypatch.setattr(certificate_sums, "envelope", counted)
    found = rows.certified(
        TopKHinge(2),
        {"W": weights_at(1), "cut_points": weights_at(1)[None], "cut_shares": np.ones(1)},
        config={"average_top": 5},
        smoothing=1e-3,
    )
    assert found.dual < found.primal
    # At W and at the one point, 5 rows each and those that lie within the bound of them.
    assert 10 <= sum(examined) < N


def dual_of_vertices(
    X: Array, y: Array, loss: Any, lam: float, gamma: float, k: float, points: Array, shares: Array
) -> float:
    """Return the bound of the mixture of the vertices at points V, which have the shares."""
    linear, product = 0.0, np.zeros(points[0].shape)
    for V, share in zip(points, shares, strict=True):
        p = share * risks.top_weights(risks.losses_at(X, y, loss, gamma, V), k)
        for x, s, label, weight in zip(X, X @ V, y, p, strict=True):
            u = reference.gradient(loss, s, label, gamma)
            linear += weight * (reference.minus_conjugate(loss, u, label) - 0.5 * gamma * u @ u)
            product += weight * np.outer(x, u)
    return float(linear - 0.5 * np.sum(product**2) / lam)


@pytest.mark.parametrize(("share", "valid"), [(0.7, True), (1.2, False)])
def test_a_share_of_the_dual_point_at_other_weights(rows: Rows, share: float, valid: bool) -> None:
    """Where training ended with one point the certificate finds it there; a share above 1 is infeasible."""
    loss, V, W = TopKHinge(2), weights_at(2), weights_at(1)
    found = rows.certified(loss, {"W": W, "cut_points": V[None], "cut_shares": np.array([share])})
    A = share * duals_at(rows, loss, V, 0.0, "moreau", np.ones(N))
    assert found.primal == pytest.approx(reference.primal(rows.X, rows.y, loss, LAM, 0.0, W), rel=1e-9)
    assert found.infeasibility == pytest.approx(max(0.0, share - 1.0))
    if valid:
        assert found.dual == pytest.approx(reference.dual(rows.X, rows.y, loss, LAM, 0.0, A), rel=1e-9)
    else:
        assert not found.valid


@pytest.mark.parametrize("held", [0, 1 << 20])
def test_kernels_by_their_matrix(rows: Rows, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """With K in place of rows, and tr(C^T K C) of the coefficients C = A / (lam n) in place of |W|^2."""
    monkeypatch.setattr(recompute, "HELD_BYTES", held)
    monkeypatch.setattr(certificate_sums, "TILE_BYTES", 8 * N * 7)
    loss, squares = TopKHinge(2), np.sum(rows.X**2, axis=1)
    K = np.exp(-0.3 * (squares[:, None] + squares - 2.0 * rows.X @ rows.X.T))
    A = duals_at(rows, loss, weights_at(2), 0.0, "moreau", np.ones(N))
    C = A / (LAM * N)
    half = 0.5 * LAM * np.trace(C.T @ K @ C)
    b = np.mean([reference.minus_conjugate(loss, row, y) for row, y in zip(A, rows.y, strict=True)])
    losses = [reference.sorted_loss(loss, s, y) for s, y in zip(K @ C, rows.y, strict=True)]
    progress = Recorder()
    found = rows.certified(loss, {}, A, kernel={"name": "rbf", "gamma": 0.3}, progress=progress)
    assert (found.primal, found.dual) == pytest.approx((half + np.mean(losses), b - half), rel=1e-9)
    assert (found.basis, found.w_difference) == ("A", None)
    assert (progress.stages, progress.counts) == ([("certify", N, "rows")], {"certify": N})


def test_parts_of_a_kernel_stay_in_memory_as_far_as_they_fit() -> None:
    parts = [(np.full((2, 3), float(i)), np.full((2, 1), float(i))) for i in range(4)]
    read: list[int] = []

    def one(number: int) -> tuple[Any, Any]:
        read.append(number)
        return parts[number]

    # A part takes 64 bytes: two of them fit, and a byte more.
    held = certificate_sums.Parts(one, 4, 2 * 64 + 1)
    for _ in range(3):
        assert [C[0, 0] for _, C in held] == [0.0, 1.0, 2.0, 3.0]
    assert read == [0, 1, 2, 3, 2, 3, 2, 3]


@pytest.mark.parametrize(("dtype", "inside"), [(np.float64, 1e-9), (np.float32, 2e-5)])
def test_rows_may_leave_their_domain_by_the_rounding_of_their_array(
    rows: Rows, dtype: Any, inside: float
) -> None:
    loss = TopKHinge(2)
    A = np.zeros((N, M))
    own, other = np.arange(N), (rows.y + 1) % M
    for share, valid in ((0.5, True), (2.0, False)):
        A[own, rows.y] = 0.5
        A[own, other] = -0.5
        A[0, rows.y[0]] += share * inside
        stored = A.astype(dtype)
        W = weights_at(1)
        dual = reference.dual(rows.X, rows.y, loss, LAM, 0.0, stored)
        primal = reference.primal(rows.X, rows.y, loss, LAM, 0.0, W)
        found = rows.certified(loss, {"W": W}, stored, recorded=(primal, dual))
        assert found.infeasibility == pytest.approx(share * inside, rel=1e-2)
        assert found.agrees
        assert found.valid is valid


def test_what_tiny_rows_leave_their_domain_by_counts_beside_their_mass(rows: Rows) -> None:
    """Where C is large: each is outside by little beside the domain, and by much beside itself."""
    loss, size, outside = TopKHinge(2), 1e-4, 1e-9
    A = np.zeros((N, M))
    own = np.arange(N)
    A[own, rows.y] = size + outside
    A[own, (rows.y + 1) % M] = -size
    by = reference.infeasibility(loss, A[0], rows.y[0])
    assert by == pytest.approx(outside, rel=1e-6)
    found = rows.certified(loss, {"W": weights_at(1)}, A)
    # Half of |alpha| is the mass of a row, of at most 1.
    assert found.infeasibility == pytest.approx(by / size, rel=1e-4)
    assert not found.valid


def plain_values(record: dict[str, Any], x: Array, y: Array) -> float:
    """k(x, y) of two rows as the formulas have it."""
    gamma = record.get("gamma", 0.0)
    match record["name"]:
        case "linear":
            return float(x @ y)
        case "polynomial":
            return float((gamma * (x @ y) + record["coef0"]) ** record["degree"])
        case "rbf":
            return float(np.exp(-gamma * np.sum((x - y) ** 2)))
        case "laplacian":
            return float(np.exp(-gamma * np.sum(np.abs(x - y))))
        case "chi2":
            return float(np.exp(-gamma * np.sum((x - y) ** 2 / (x + y))))
        case "intersection":
            return float(np.sum(np.minimum(x, y)))
    parts = [
        group["weight"] * plain_values(group["kernel"], *(v[group["start"] : group["stop"]] for v in (x, y)))
        for group in record["groups"]
    ]
    return float(sum(parts) if record["name"] == "sum" else np.prod(parts))


GROUPS = [
    {"start": 0, "stop": 2, "weight": 0.7, "kernel": {"name": "rbf", "gamma": 0.4}},
    {"start": 2, "stop": 5, "weight": 1.5, "kernel": {"name": "intersection"}},
]


@pytest.mark.parametrize(
    "record",
    [
        {"name": "linear"},
        {"name": "polynomial", "degree": 3, "gamma": 0.5, "coef0": 1.5},
        {"name": "rbf", "gamma": 0.3},
        {"name": "laplacian", "gamma": 0.3},
        {"name": "chi2", "gamma": 0.3},
        {"name": "intersection"},
        {"name": "sum", "groups": GROUPS},
        {"name": "product", "groups": GROUPS},
    ],
    ids=lambda record: record["name"],
)
def test_kernels_are_what_their_formulas_say(record: dict[str, Any]) -> None:
    rng = np.random.default_rng(6)
    X, Y = rng.uniform(0.1, 2.0, (4, 5)), rng.uniform(0.1, 2.0, (3, 5))
    expected = [[plain_values(record, x, y) for y in Y] for x in X]
    np.testing.assert_allclose(kernel_values(record, X, Y), expected, rtol=1e-12)


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="'laplace' is not known here"):
        kernel_values({"name": "laplace"}, np.eye(2), np.eye(2))
