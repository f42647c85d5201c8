"""Certificates of stored models: right for sound ones, refused or invalid for altered ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.pipeline.small_data import feature_files, make_features, small_dataset, write_dataset
from topline import ldam_margins, logit_adjusted_margins, open_store, tree_margins
from topline.pipeline.certification import Certificate, certify, recompute
from topline.pipeline.certification.recompute import objective
from topline.pipeline.certification.sums import CertificateSums
from topline.pipeline.errors import CertificateMismatchError, InputError
from topline.pipeline.options.problem import read_tree
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.registry import promote_by_rule
from topline.pipeline.registry.promotion import PromotionRule
from topline.pipeline.rows import StoredModel, TrainingRows
from topline.pipeline.training import train
from topline.solvers.core.problem import Problem
from topline.solvers.errors import UnsupportedCombinationError
from topline.solvers.losses import make_loss
from topline.solvers.methods import METHODS
from topline.storage.arrays import from_rows
from topline.storage.datasets import Dataset
from topline.storage.errors import AccessError, IntegrityError
from topline.storage.models import Model, load_model, model_log, save_model
from topline.storage.stores.local import LocalStore
from topline.storage.stores.sealed import STORE_KEY

HERE = ClusterConfig(workers=0)


def trained(folder: Path, **options: Any) -> str:
    config = TrainConfig(
        store=str(folder), **{"C": 0.3, "tol": 5e-2, "max_passes": 2000, "method": "fw", **options}
    )
    return train(config, HERE).model


def altered(model: Model, *, A: Any = None, **arrays: Any) -> str:
    """Publish a copy of a model with other arrays."""
    kept = {name: model.array(name) for name in model.arrays}
    duals = model.duals(0, model.record.n) if A is None else A
    record = dataclasses.replace(model.record, certificate=None)
    return save_model(model.store, record, {**kept, **arrays}, from_rows([(0, model.record.n, duals)]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certified") / "store"
    small_dataset(folder, n=300)
    return folder


EVERY: list[dict[str, Any]] = [
    {"loss": "usunier_hinge", "k": 2},
    {"loss": "weighted_topk_hinge", "k": 3, "weights": "exponential"},
    {"loss": "weighted_usunier_hinge", "weights": (0.5, 0.25, 0.1)},
    {"loss": "softmax"},
    {"loss": "topk_entropy", "k": 2},
    {"loss": "truncated_topk_entropy", "k": 1},
    {"loss": "one_vs_all_hinge"},
    {"loss": "one_vs_all_hinge", "smoothing": 0.4},
    {"loss": "one_vs_all_logistic"},
    {"loss": "topk_others_hinge", "k": 2},
    {"loss": "topk_others_hinge", "k": 2, "smoothing": 0.4, "smoothing_kind": "others"},
    {"loss": "topk_hinge", "k": 2, "smoothing": 0.4, "smoothing_kind": "others"},
    {"loss": "weighted_usunier_hinge", "smoothing": 0.4, "smoothing_kind": "others"},
    {"loss": "max_hinge", "smoothing": 0.4, "smoothing_kind": "others"},
    {"loss": "softmax", "kernel": "rbf"},
    {"loss": "topk_hinge", "k": 2, "smoothing": 0.4, "smoothing_kind": "others", "kernel": "rbf"},
]


@pytest.mark.parametrize("class_weight", ["none", "balanced"])
@pytest.mark.parametrize("options", EVERY, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.sampled(4)
def test_every_loss_smoothing_and_weighting(folder: Path, options: dict[str, Any], class_weight: str) -> None:
    url = trained(folder, method="dual_ascent", tol=1e-5, class_weight=class_weight, **options)
    certificate = certify(url)
    assert certificate.certified
    assert certificate.basis == "A"
    # w_i beta_i is stored in float32, which rounds it once more.
    rounding = 1e-9 if class_weight == "none" else 1e-7
    assert certificate.primal == pytest.approx(certificate.recorded_primal, rel=rounding)
    assert certificate.dual == pytest.approx(certificate.recorded_dual, rel=rounding)
    if certificate.smoothed_gap is not None:
        assert certificate.smoothed_gap >= certificate.gap - 1e-9


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("keep_duals", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"loss": "softmax"},
        {"loss": "usunier_hinge", "k": 2, "smoothing": 0.4},
        {"loss": "topk_hinge", "k": 2},
    ],
    ids=lambda options: options["loss"],
)
@pytest.mark.sampled(20)
def test_every_method(folder: Path, options: dict[str, Any], method: str, keep_duals: bool) -> None:
    """Whatever W was made of, P(W) - D(A) comes out as training recorded it."""
    spec = METHODS[method]
    if spec.dual_free and keep_duals:
        return
    options = {**options, "method": method, "keep_duals": keep_duals, "class_weight": "balanced"}
    loss = make_loss(options["loss"], options.get("k"))
    if spec.unfit(Problem(loss, 10, 3, 5, 1.0, options.get("smoothing", 0.0))) is not None:
        with pytest.raises(UnsupportedCombinationError, match=method):
            trained(folder, **options)
        return
    url = trained(folder, **options)
    certificate = certify(url)
    assert certificate.certified
    rounding = 1e-7 if keep_duals else 1e-9
    assert certificate.primal == pytest.approx(certificate.recorded_primal, rel=rounding)
    assert certificate.dual == pytest.approx(certificate.recorded_dual, rel=rounding)
    assert certificate.basis == ("A" if keep_duals else "W" if method == "lbfgs" else certificate.basis)


def test_weights_that_were_not_made_from_duals_are_certified_by_their_gradient(folder: Path) -> None:
    """L-BFGS: W is not W(A), and the gap is |grad P|^2 / (2 lam) all the same."""
    kept = certify(trained(folder, method="lbfgs", loss="softmax", tol=1e-3))
    assert kept.certified
    assert kept.w_difference > 1e-6
    url = trained(folder, method="lbfgs", loss="softmax", tol=1e-3, keep_duals=False)
    alone = certify(url)
    assert alone.basis == "W"
    assert alone.certified
    assert alone.gap == pytest.approx(kept.gap, rel=1e-6)
    model = load_model(url)
    worse = save_model(
        model.store, dataclasses.replace(model.record, certificate=None), {"W": 1.2 * model.array("W")}
    )
    assert certify(worse).gap > 10 * alone.gap
    assert not certify(worse).valid


def test_duals_of_rows_that_count_for_nothing_must_be_zero(folder: Path) -> None:
    model = load_model(trained(folder, k=2, class_weight="balanced"))
    weights = model.record.class_weights
    zeroed = dataclasses.replace(model.record, class_weights=(0.0, *weights[1:]), certificate=None)
    arrays = {name: model.array(name) for name in model.arrays}
    n = model.record.n
    certificate = certify(save_model(model.store, zeroed, arrays, from_rows([(0, n, model.duals(0, n))])))
    assert certificate.infeasibility > 0.1
    assert not certificate.valid


def test_general_margins_are_certified(folder: Path, tmp_path: Path) -> None:
    margins = np.abs(np.subtract.outer(np.arange(5), np.arange(5))).astype(float)
    np.savetxt(tmp_path / "margins.csv", margins, delimiter=",")
    url = trained(folder, loss="structured_hinge", margins=tmp_path / "margins.csv")
    assert certify(url).certified


def test_margins_by_class_sizes_and_by_a_tree_are_certified(folder: Path, tmp_path: Path) -> None:
    """The loss that is stored has the margins of the training rows' classes, in one guess and in two."""
    (tmp_path / "tree.csv").write_text(
        "parent;child\nlow;class 0\nlow;class 1\nhigh;class 2\nhigh;class 3\nhigh;class 4\n"
        "any;low\nany;high\n"
    )
    counts = TrainingRows(Dataset.open(open_store(str(folder)), "latest"), "train").class_counts()
    pairs = [(f"class {c}", "low" if c < 2 else "high") for c in range(5)] + [("low", "any"), ("high", "any")]
    names = [f"class {c}" for c in range(5)]
    for text, k, expected in (
        ("logit-adjusted:0.5", 2, logit_adjusted_margins(counts, 0.5)),
        ("ldam", None, ldam_margins(counts)),
        (f"tree:{tmp_path / 'tree.csv'}", None, tree_margins(names, pairs)),
    ):
        url = trained(folder, loss="structured_hinge", margins=text, k=k)
        assert np.array_equal(load_model(url).record.loss["margins"], expected)
        assert load_model(url).record.loss.get("k") == k
        assert certify(url).certified
    for text, said in (
        ("ldam:steep", "give a number, as in ldam:0.25"),
        (f"tree:{tmp_path / 'none.csv'}", "none.csv cannot be read"),
    ):
        with pytest.raises(InputError, match=said):
            trained(folder, loss="structured_hinge", margins=text, k=None)


def test_a_tree_is_read_in_every_form(tmp_path: Path) -> None:
    expected = [("cat", "animal"), ("animal", "thing")]
    for text in (
        "cat,animal\nanimal,thing\n",
        "\ufeffparent\tchild\nanimal\tcat\n\nthing\tanimal\n",
        "animal cat\nthing animal\n",
    ):
        (tmp_path / "tree").write_text(text, encoding="utf-8")
        assert read_tree(tmp_path / "tree") == expected
    for text, said in (("", "is empty"), ("cat,animal\ndog,\n", "line 2: give child and parent")):
        (tmp_path / "tree").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=said):
            read_tree(tmp_path / "tree")


def forged(url: str) -> str:
    """Publish a copy with 0.7 W, where b and what is recorded are made up so that the gap is tiny."""
    model = load_model(url)
    kept = {name: model.array(name) for name in model.arrays}
    duals = None
    if model.has_duals:
        duals = from_rows([(0, model.record.n, model.duals(0, model.record.n))])
    arrays, result = {**kept, "W": 0.7 * kept["W"]}, dict(model.record.result)
    if not duals:
        arrays["dual_sums"] = kept["dual_sums"] - [1.0, 0.0]
    for _ in range(2):
        record = dataclasses.replace(model.record, certificate=None, result=result)
        copy = save_model(model.store, record, arrays, duals)
        found = certify(copy)
        made_up = found.dual if duals else found.primal * (1.0 - 1e-5)
        result |= {"primal": found.primal, "dual": made_up}
        if not duals:
            arrays["dual_sums"] = arrays["dual_sums"] + [made_up - found.dual, 0.0]
    return copy


def test_what_a_sealed_forgery_can_and_cannot_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of the run are believed, so their certificate says so; from A, W and b follow by themselves."""
    monkeypatch.delenv(STORE_KEY, raising=False)
    options = {"k": 2, "method": "dual_ascent", "tol": 1e-3}
    certificate = certify(copy := forged(trained(folder, keep_duals=False, **options)))
    assert (certificate.certified, certificate.source) == (True, "sums of the run")
    assert not promote_by_rule(copy, PromotionRule(basis="W")).decision.promote
    stored = certify(forged(url := trained(folder, keep_duals=True, **options)))
    assert (stored.certified, stored.source) == (False, "A")
    # Who has no key cannot seal anew what a reader with the key believes.
    monkeypatch.setenv(STORE_KEY, "a key")
    with pytest.raises(IntegrityError, match="not signed"):
        load_model(copy)
    with pytest.raises(IntegrityError, match="not signed"):
        certify(url)


def with_results(model: Model, A: Any = None, tol: float | None = None, **results: float) -> str:
    """Publish a copy of a model that records other results, or another tolerance."""
    record, kept = model.record, {name: model.array(name) for name in model.arrays}
    config = {**record.config, **({} if tol is None else {"tol": tol})}
    changed = dataclasses.replace(
        record, result={**record.result, **results}, config=config, certificate=None
    )
    duals = model.duals(0, record.n) if A is None else A
    return save_model(model.store, changed, kept, from_rows([(0, record.n, duals)]))


def test_an_infeasible_row_invalidates_even_what_agrees_with_its_record(folder: Path) -> None:
    model = load_model(trained(folder, k=2))
    A = np.array(model.duals(0, model.record.n))
    A[7] *= 3.0 / max(A[7].max(), 1e-9)
    found = certify(altered(model, A=A))
    assert found.infeasibility > 1.0
    assert not found.certified
    certificate = certify(with_results(model, A, tol=1e9, primal=found.primal, dual=found.dual))
    assert certificate.agrees
    assert not certificate.valid
    assert certificate.relative_gap < certificate.tol
    assert not certificate.certified


@pytest.mark.parametrize(
    ("share", "agrees"), [(0.9e-6, True), (-0.9e-6, True), (1.1e-6, False), (-1.1e-6, False)]
)
@pytest.mark.parametrize("name", ["primal", "dual"])
@pytest.mark.sampled(2)
def test_a_record_agrees_to_the_sixth_digit(folder: Path, name: str, share: float, agrees: bool) -> None:
    model = load_model(trained(folder, k=2))
    found = certify(altered(model))
    results = {"primal": found.primal, "dual": found.dual}
    results[name] += share * found.primal
    certificate = certify(with_results(model, **results))
    assert certificate.agrees is agrees
    assert certificate.valid is agrees
    assert certificate.certified is agrees


def test_a_gap_above_the_tolerance_is_valid_and_not_certified(folder: Path) -> None:
    model = load_model(trained(folder, k=2))
    gap = certify(altered(model)).relative_gap
    assert gap > 0.0
    for tol, certified in ((gap, True), (0.999 * gap, False)):
        certificate = certify(with_results(model, tol=tol))
        assert certificate.valid
        assert certificate.certified is certified


def test_a_certificate_is_shown_where_it_cannot_be_recorded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = trained(folder, k=2)
    before = load_model(url).record.revision

    def refused(*_: Any) -> bool:
        raise AccessError("the disk is read-only")

    monkeypatch.setattr(LocalStore, "put_if_absent", refused)
    assert certify(url).certified
    assert "shown and not recorded: the disk is read-only" in caplog.text
    assert load_model(url).record.revision == before


@pytest.mark.parametrize(("share", "refused"), [(0.5e-6, False), (2e-6, True)])
def test_a_smoothed_bound_below_the_gap_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, share: float, refused: bool
) -> None:
    """No A and W give one, so a sum is spoilt here."""
    url = trained(folder, k=2, smoothing=0.4)
    sound = certify(url, store=False)
    below = sound.smoothed_gap - sound.gap + share * sound.primal
    genuine = CertificateSums.add

    def spoilt(self: CertificateSums, first: int, X: Any, *rest: Any) -> None:
        genuine(self, first, X, *rest)
        self.shifted_sum -= below * len(X)

    monkeypatch.setattr(CertificateSums, "add", spoilt)
    if refused:
        with pytest.raises(CertificateMismatchError, match="below the true gap"):
            certify(url, store=False)
    else:
        assert certify(url, store=False).valid


@pytest.mark.parametrize(("share", "refused"), [(0.5e-6, False), (2e-6, True)])
def test_a_gap_below_zero_by_more_than_rounding_is_an_error(
    folder: Path, share: float, refused: bool
) -> None:
    trained_url = trained(folder, k=2, keep_duals=False)
    model, sound = load_model(trained_url), certify(trained_url)
    kept = {name: model.array(name) for name in model.arrays}
    sums = np.array(kept["dual_sums"])
    sums[0] += sound.gap + share * sound.primal
    url = save_model(model.store, model.record, {**kept, "dual_sums": sums})
    if refused:
        with pytest.raises(CertificateMismatchError, match="below zero"):
            certify(url)
    else:
        certificate = certify(url)
        assert certificate.gap < 0.0
        assert certificate.relative_gap == 0.0


def test_certificates_are_stored_unless_they_are_not_wanted(folder: Path) -> None:
    model = load_model(trained(folder, k=2))
    url = altered(model)
    certificate = certify(url, store=False)
    assert load_model(url).record.certificate is None
    assert Certificate.from_dict(certificate.to_dict()) == certificate
    assert "lifted_gap" in certificate.to_dict()
    kept = certify(url)
    assert load_model(url).record.certificate == kept.to_dict()


def test_a_model_of_more_rows_than_its_dataset_has_is_refused(folder: Path) -> None:
    model = load_model(trained(folder, k=2))
    more = dataclasses.replace(model.record, n=model.record.n + 1)
    with pytest.raises(CertificateMismatchError, match="training rows, its dataset has"):
        certify(save_model(model.store, more, {name: model.array(name) for name in model.arrays}))


def test_tiny_rows_are_held_to_their_own_size(tmp_path: Path) -> None:
    """With a large C on separable data all alphas lie below the tolerance that is right for the domain."""
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(20, 40)).astype(np.float32), (np.arange(20) % 4).astype(np.int32)
    write_dataset(open_store(tmp_path, create=True), X, labels, np.zeros(20, dtype=np.int8), m=4)
    model = load_model(trained(tmp_path, k=2, C=1e5, method="dual_ascent", tol=1e-2, transforms=()))
    A = np.array(model.duals(0, model.record.n))
    assert 0.0 < np.abs(A).max() < 1e-5
    assert certify(altered(model)).certified
    A[np.arange(20), labels] = 0.0
    certificate = certify(altered(model, A=A, W=X.T.astype(np.float64) @ A / (model.record.lam * 20)))
    assert certificate.infeasibility > 0.1
    assert not certificate.valid


def test_a_model_whose_dataset_is_gone_or_changed_is_refused(folder: Path) -> None:
    model = load_model(trained(folder, k=2))
    gone = dataclasses.replace(model.record, dataset="d0099-00000000")
    with pytest.raises(InputError, match="d0099-00000000, which is not in"):
        certify(save_model(model.store, gone, {"W": model.array("W")}))
    other = dataclasses.replace(model.record, dataset_digest="0" * 64)
    with pytest.raises(InputError, match=f"{model.record.dataset} with digest 000000000000"):
        certify(save_model(model.store, other, {"W": model.array("W")}))


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    small_dataset(tmp_path, n=300)
    url = trained(tmp_path, k=2)
    shards = feature_files(tmp_path)
    data = bytearray(shards[1].read_bytes())
    data[len(data) // 2] ^= 1
    shards[1].write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match="rows"):
        certify(url)


@pytest.mark.parametrize(
    ("limits", "most", "cores"),
    [
        ({"TILE_ROWS": 7}, 7, 1),
        ({"TILE_BYTES": 8 * 7 * 5, "LEAST_ROWS": 1}, 5, 2),
        ({"TILE_BYTES": 1, "LEAST_ROWS": 3}, 3, 3),
        # Sums of one core take all the room for them.
        ({"TILE_BYTES": 1, "LEAST_ROWS": 3, "PARTS_BYTES": 8 * 7 * 4}, 3, 1),
    ],
)
def test_many_or_wide_rows_are_certified_in_tiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], most: int, cores: int
) -> None:
    store = open_store(tmp_path, create=True)
    X, labels = make_features(300, 6, 4)
    write_dataset(store, X, labels, np.zeros(300, dtype=np.int8))
    assert Dataset.open(store).info.n_rows == 300
    url = trained(tmp_path, k=2, smoothing=0.3, class_weight="balanced")
    monkeypatch.setattr("topline.pipeline.certification.recompute.available_cores", lambda: 1)
    whole = certify(url, store=False)
    monkeypatch.setattr(
        "topline.pipeline.certification.recompute.available_cores",
        lambda: max(cores, 3 * ("PARTS_BYTES" in limits)),
    )
    for name, value in limits.items():
        monkeypatch.setattr(f"topline.pipeline.certification.recompute.{name}", value)
    # Of rows with 4 scores each the losses take 2 at a time, which leaves one for the last part.
    monkeypatch.setattr("topline.pipeline.certification.sums._SCORE_BYTES", 2 * 4 * 8)
    add, sizes, parts = CertificateSums.add, [], set()

    def noted(self: CertificateSums, first: int, X: Any, *others: Any) -> None:
        sizes.append(X.shape)
        parts.add(id(self))
        add(self, first, X, *others)

    monkeypatch.setattr(CertificateSums, "add", noted)
    tiled = certify(url, store=False)
    assert max(sizes) == (most, 7)
    assert sum(rows for rows, _ in sizes) == 300
    assert len(parts) == cores
    assert tiled.primal == pytest.approx(whole.primal, rel=1e-12)
    assert tiled.dual == pytest.approx(whole.dual, rel=1e-12)


def test_sparse_tiles_take_the_room_of_their_scores() -> None:
    """They have as many rows for any number of features."""
    info = SimpleNamespace(layout="csr")
    rows: Any = SimpleNamespace(shape=(9, 60_000), dataset=SimpleNamespace(info=info))
    W = np.zeros((60_000, 100))
    assert recompute._tile_bytes(rows, W) == 8 * 4 * 4096 * 100
    info.layout = "dense"
    assert recompute._tile_bytes(rows, W) == 8 * 64 * (2 * 60_000 + 4 * 100)


def test_a_kernel_is_certified_with_every_thread_of_blas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernel values are made before the sums are, and take most of the time."""
    small_dataset(tmp_path, n=60)
    url = trained(tmp_path, loss="topk_hinge", kernel="rbf")
    monkeypatch.setattr("topline.pipeline.certification.recompute.available_cores", lambda: 3)
    monkeypatch.delattr("topline.pipeline.certification.recompute.one_blas_thread")
    assert certify(url, store=False).valid


def test_the_primal_alone_reads_no_dual_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_dataset(tmp_path, n=60)
    stored = StoredModel.open(trained(tmp_path, k=2))
    assert stored.model.has_duals
    monkeypatch.delattr(Model, "duals")
    assert objective(stored) == pytest.approx(stored.model.record.result["primal"], rel=1e-6)


def test_a_record_without_its_transforms_is_damage(folder: Path) -> None:
    url = trained(folder, loss="max_hinge", transforms=("bias",))
    name = url.rpartition("/")[2]
    log = model_log(open_store(url.rpartition("/models/")[0]), name)
    log.revise(lambda record, seq: {**record, "transforms": [], "revision": seq})
    with pytest.raises(IntegrityError, match=r"has transforms for .* features, and its dataset has"):
        certify(url)
