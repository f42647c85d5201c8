"""Training from a stored dataset to a published model, its resumption and its refusals."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine

from tests.pipeline.small_data import feature_files, make_features, make_split, small_dataset, write_dataset
from tests.pipeline.watching import Recorder
from topline.pipeline.errors import ConfigError, InputError, InterruptedRunError
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.ingest import import_features
from topline.pipeline.options import ClusterConfig, ImportConfig, TrainConfig
from topline.pipeline.options.train import DEFAULT_TRANSFORMS
from topline.pipeline.rows import TrainingRows
from topline.pipeline.training import TrainResult, train
from topline.pipeline.training.plan import plan_training, scale_note
from topline.pipeline.training.run import begin_run
from topline.solvers.errors import InvalidProblemError, StateLostError, UnsupportedCombinationError
from topline.storage.datasets import Dataset
from topline.storage.errors import IntegrityError, MismatchError, NotFoundError
from topline.storage.models import list_models, load_model, save_model
from topline.storage.runs import HistoryWriter, RunLock, list_runs, read_history, read_run, run_lock
from topline.storage.stores import LeaseHeldError, LeaseLostError, open_store

HERE = ClusterConfig(workers=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_dataset(tmp_path / "store", n=400)
    return tmp_path / "store"


def config(folder: Path, **options: Any) -> TrainConfig:
    return TrainConfig(
        store=str(folder), **{"C": 0.3, "tol": 2e-2, "k": 2, "max_passes": 3000, "method": "fw", **options}
    )


def test_a_run_leaves_a_certified_model_and_its_whole_history(folder: Path) -> None:
    result = train(config(folder), HERE)
    assert result.solved
    assert result.relative_gap <= 2e-2
    assert result.certificate.certified
    model = load_model(result.model)
    assert model.array("W").shape == (13, 5)  # 12 features and the bias
    assert model.record.certificate == result.certificate.to_dict()
    records = read_history(open_store(folder), result.run)
    history = [record for record in records if "round" in record]
    assert [record["round"] for record in history] == list(range(result.passes))
    assert history[-1]["relative_gap"] <= 2e-2
    assert [record.get("event") for record in (records[0], records[-1])] == ["begin", "end"]
    # Features of this size are read once, and stay in memory.
    assert [record["bytes_read"] >= 4 * 12 * result.n for record in history[:2]] == [True, False]
    assert not any(record["bytes_read"] for record in history[1:])
    assert all(record["memory_bytes"] > 10 << 20 for record in history)
    workers = history[-1]["activity"]
    assert sum(worker["rows"] for worker in workers) == result.n
    outcome = read_run(open_store(folder), result.run).outcome
    assert outcome["model"] == result.model


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"class_weight": "balanced", "smoothing": 0.5, "smoothing_kind": "others"},
        {"smoothing": 0.5},
        {"class_weight": "balanced"},
        {"class_weight": "balanced", "loss": "softmax", "k": None, "method": "dual_ascent"},
        {"method": "dual_ascent", "blocks": 3},
    ],
    ids=str,
)
@pytest.mark.sampled(6)
def test_threads_and_workers_train_the_same_model(folder: Path, options: dict[str, Any]) -> None:
    W = [
        load_model(train(config(folder, **options), cluster).model).array("W")
        for cluster in (HERE, ClusterConfig(workers=1), ClusterConfig(workers=2))
    ]
    assert np.array_equal(W[0], W[1])
    assert np.array_equal(W[0], W[2])


@pytest.mark.parametrize("method", ["fw", "dual_ascent"])
def test_the_number_of_blocks_can_be_chosen(folder: Path, method: str) -> None:
    for blocks in (1, 3):
        plan = plan_training(config(folder, method=method, blocks=blocks))
        bounds = plan.bounds_of(plan.rows)
        assert len(bounds) == blocks + 1
        assert bounds[-1] == len(plan_training(config(folder)).rows)
    plan = plan_training(config(folder, method=method))
    assert (len(plan.bounds_of(plan.rows)) == 2) == (method == "dual_ascent")


def test_a_plan_leaves_nothing_on_disk(folder: Path) -> None:
    store = open_store(folder)
    before = [run.id for run in list_runs(store)]
    plan = plan_training(config(folder))
    assert [run.id for run in list_runs(store)] == before
    begun = begin_run(plan)
    assert [run.id for run in list_runs(store)] == [*before, begun.id]


def test_a_start_that_is_not_there_is_refused_before_a_run_begins(folder: Path) -> None:
    before = len(list_runs(open_store(folder)))
    with pytest.raises(NotFoundError, match="m9999"):
        train(config(folder, start_from="m9999"), HERE)
    assert len(list_runs(open_store(folder))) == before


@pytest.mark.parametrize("workers", [0, 2])
def test_a_limit_that_is_too_small_is_refused_before_a_run_begins(folder: Path, workers: int) -> None:
    before = len(list_runs(open_store(folder)))
    with pytest.raises(ConfigError, match=r"300 MiB .* is too small for this job"):
        train(config(folder), ClusterConfig(workers=workers, memory_limit="300MiB"))
    assert len(list_runs(open_store(folder))) == before


def test_balanced_classes_count_alike(folder: Path) -> None:
    """The weights are in the record, sum to n over the rows, and make another model."""
    plain, balanced = (
        load_model(train(config(folder, class_weight=weight), HERE).model) for weight in ("none", "balanced")
    )
    assert plain.record.class_weights is None
    weights = np.asarray(balanced.record.class_weights)
    dataset = Dataset.open(open_store(folder))
    counts = np.bincount(dataset.labels()[dataset.split() == 0], minlength=5)
    np.testing.assert_allclose(weights * counts, counts.sum() / 5)
    assert not np.array_equal(plain.array("W"), balanced.array("W"))


def test_a_class_without_rows_counts_for_nothing(tmp_path: Path) -> None:
    X, labels = make_features(120, 6, 4)
    keep = labels != 2
    write_dataset(
        open_store(tmp_path, create=True), X[keep], labels[keep], np.zeros(keep.sum(), dtype=np.int8), m=4
    )
    weights = load_model(train(config(tmp_path, class_weight="balanced"), HERE).model).record.class_weights
    assert weights[2] == 0.0
    counts = np.bincount(labels[keep], minlength=4)
    np.testing.assert_allclose(np.asarray(weights) * counts, np.where(counts > 0, counts.sum() / 3, 0.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "simplex"}, "there is no method named 'simplex'"),
        ({"loss": "softmax", "k": None, "smoothing": 0.5}, "the loss softmax is smooth as it is"),
        ({"smoothing_kind": "others"}, "the smoothing kind others is for .* not for topk_hinge with"),
        ({"loss": "truncated_topk_entropy"}, "truncated_topk_entropy is not convex .* which the method fw"),
        ({"method": "fw_away", "keep_duals": True}, "the method fw_away never knows the dual variables"),
        ({"method": "lbfgs"}, "the method lbfgs needs a smooth loss, which topk_hinge is not"),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_run_begins(
    folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((InvalidProblemError, UnsupportedCombinationError, ConfigError), match=message):
        train(config(folder, **options), HERE)
    assert not list_runs(open_store(folder))


@pytest.mark.parametrize(
    ("short", "long", "options"),
    [
        (7, 11, {"method": "fw_fully_corrective"}),
        (7, 11, {"method": "fw_away", "smoothing": 0.5}),
        (7, 11, {"method": "lbfgs", "loss": "softmax", "k": None}),
        (7, 11, {"method": "lbfgs", "loss": "truncated_topk_entropy"}),
        (7, 11, {"method": "sdca"}),
        (11, 30, {"transforms": "standardize,l2,bias"}),
        (11, 30, {"transforms": "standardize,l2,bias", "smoothing": 0.5}),
        (11, 30, {"transforms": "standardize,l2,bias", "keep_duals": False}),
    ],
    ids=str,
)
@pytest.mark.sampled(3)
def test_a_run_that_ran_out_of_passes_goes_on_to_the_same_answer(
    folder: Path, short: int, long: int, options: dict[str, Any]
) -> None:
    """What a method remembers is in its checkpoints."""
    whole = train(config(folder, tol=1e-12, max_passes=long, **options), HERE)
    first = train(config(folder, tol=1e-12, max_passes=short, **options), HERE)
    assert first.status == whole.status == "max_passes"
    second = train(TrainConfig(store=str(folder), resume=first.run, max_passes=long), HERE)
    assert (second.run, second.passes) == (first.run, whole.passes)
    assert np.array_equal(load_model(second.model).array("W"), load_model(whole.model).array("W"))


def test_a_weighted_run_goes_on_where_it_was_to_rounding(folder: Path) -> None:
    """Stored duals are w_i times what the blocks hold, so that they come back with another last digit.

    And a budget cuts the sweeps of its last round, after which the run takes another way.
    """
    options = {"class_weight": "balanced", "method": "dual_ascent", "tol": 1e-12}
    whole = train(config(folder, **{**options, "max_passes": 24}), HERE)
    first = train(config(folder, **{**options, "max_passes": 9}), HERE)
    second = train(TrainConfig(store=str(folder), resume=first.run, max_passes=24), HERE)
    assert second.passes == pytest.approx(whole.passes, abs=2)
    assert second.dual == pytest.approx(whole.dual, rel=1e-3)
    assert second.dual > first.dual


def test_a_run_does_not_go_on_as_another(folder: Path) -> None:
    first = train(config(folder, max_passes=5, tol=1e-9), HERE)
    with pytest.raises(MismatchError, match=r"C was 0\.3, now 3\.0.*k was 2, now 3"):
        train(TrainConfig(store=str(folder), resume=first.run, C=3.0, k=3), HERE)
    with pytest.raises(NotFoundError, match="r0099"):
        train(TrainConfig(store=str(folder), resume="r0099"), HERE)


def test_a_run_does_not_go_on_with_other_margins_under_the_same_name(folder: Path, tmp_path: Path) -> None:
    """The linear term of the dual belongs to the margins that it was summed with."""
    margins = tmp_path / "margins.csv"
    np.savetxt(margins, 1.0 - np.eye(5), delimiter=",")
    options = config(folder, max_passes=5, tol=1e-9, loss="structured_hinge", margins=margins, k=None)
    first = train(options, HERE)
    np.savetxt(margins, 0.5 - 0.5 * np.eye(5), delimiter=",")
    with pytest.raises(MismatchError, match="margins"):
        train(TrainConfig(store=str(folder), resume=first.run), HERE)


def test_dual_variables_are_stored_where_they_are_asked_for(folder: Path) -> None:
    kept, left = (train(config(folder, keep_duals=keep), HERE) for keep in (True, False))
    assert load_model(kept.model).has_duals
    assert not load_model(left.model).has_duals
    assert kept.certificate.basis == "A"
    # W(A) comes along where the best W is another.
    assert left.certificate.basis in {"W and b", "W, W(A) and b"}
    assert left.certificate.certified


@pytest.mark.parametrize(
    ("options", "kept"), [({"method": "dual_ascent"}, True), ({"loss": "softmax", "k": None}, False)]
)
def test_dual_variables_no_larger_than_the_features_are_stored_if_the_blocks_hold_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], kept: bool
) -> None:
    """Without a word about it, above the size up to which they always are; L-BFGS holds none."""
    monkeypatch.setattr("topline.pipeline.training.plan.STORED_DUALS_BYTES", 0)
    model = load_model(train(config(folder, **{"method": "lbfgs", **options}), HERE).model)
    assert model.record.m < model.record.d
    assert model.has_duals is kept


def test_sparse_features_train_as_their_dense_copies_do(tmp_path: Path) -> None:
    sparse = small_dataset(tmp_path / "sparse", n=300, sparse=True)
    dense = open_store(tmp_path / "dense", create=True)
    X = sparse.rows(0, 300).toarray()
    write_dataset(dense, X, sparse.labels(), sparse.split(), m=5)
    results = [train(config(tmp_path / name), HERE) for name in ("sparse", "dense")]
    assert results[0].primal == pytest.approx(results[1].primal, rel=1e-4)
    assert all(result.certificate is not None and result.certificate.certified for result in results)


def test_k_bends_to_few_classes_only_where_it_was_not_chosen(tmp_path: Path) -> None:
    small_dataset(tmp_path / "store", n=200, m=3)
    options = {"store": str(tmp_path / "store"), "tol": 0.1, "max_passes": 2000}
    result = train(TrainConfig(**options, loss="topk_hinge"), HERE)
    assert load_model(result.model).record.loss == {"name": "topk_hinge", "k": 1}
    assert not result.notes
    result = train(TrainConfig(**options, k=2), HERE)
    assert "k = 2 of 3 classes gives up top-1 accuracy" in result.notes[0]
    assert load_model(train(TrainConfig(**options), HERE).model).record.loss == {"name": "softmax"}
    with pytest.raises(InvalidProblemError, match="k <= 3"):
        train(config(tmp_path / "store", k=4), HERE)
    assert len(list_runs(open_store(tmp_path / "store"))) == 3


def test_data_that_make_no_problem_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    X, labels = make_features(60, 4, 3)
    store = open_store(tmp_path / "store", create=True)
    held_out = np.full(60, 2, dtype=np.int8)
    write_dataset(store, X, labels, held_out, key="a", m=3)
    with pytest.raises(InputError, match="no training rows"):
        train(config(tmp_path / "store"), HERE)
    write_dataset(store, X, np.zeros(60, dtype=np.int32), held_out * 0, key="b", m=3)
    with pytest.raises(InputError, match="at least 2"):
        train(config(tmp_path / "store"), HERE)
    write_dataset(store, X, np.minimum(labels, 1), held_out * 0, key="c", m=3)
    train(config(tmp_path / "store", tol=0.2), HERE)
    assert "class 2" in caplog.text
    with pytest.raises(NotFoundError):
        train(config(tmp_path / "elsewhere"), HERE)


def test_a_missing_chunk_stops_training_with_its_rows(folder: Path) -> None:
    shards = feature_files(folder)
    shards[2].unlink()
    with pytest.raises(IntegrityError, match="rows"):
        train(config(folder), HERE)


def test_short_rounds_are_written_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 rounds of well under a millisecond each: two writes a second, and one for each event."""
    writes = []
    genuine = HistoryWriter.append

    def counted(writer: HistoryWriter, *records: Any) -> None:
        writes.append(time.monotonic())
        genuine(writer, *records)

    monkeypatch.setattr(HistoryWriter, "append", counted)
    result = train(config(folder, tol=1e-9, max_passes=200, certify=False), HERE)
    assert len(writes) <= 10 + 2 * (writes[-1] - writes[0])
    records = read_history(open_store(folder), result.run)
    assert sum("round" in record for record in records) == 200


def test_the_display_ends_with_the_gap_of_the_result(folder: Path) -> None:
    """The last round may have measured another point than the one that is published."""

    seen = Recorder()
    result = train(config(folder, method="dual_ascent", max_passes=5, tol=1e-9, certify=False), HERE, seen)
    before, last = (facts["relative_gap"] for facts in seen.facts[-2:])
    assert before > last == result.relative_gap


def test_a_run_whose_duals_are_lost_while_the_model_is_stored_goes_back_and_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = [StateLostError("worker 7 is gone, and the dual variables with it")]

    def lost(*arguments: Any) -> str:
        if losses:
            raise losses.pop()
        return save_model(*arguments)

    monkeypatch.setattr("topline.pipeline.training.run.save_model", lost)
    result = train(config(folder), HERE)
    assert result.solved
    assert not losses
    events = [record.get("event") for record in read_history(open_store(folder), result.run)]
    assert events.count("rollback") == 1
    monkeypatch.setattr("topline.pipeline.training.session.ROLLBACKS", 1)
    losses.extend(StateLostError("worker 7 is gone again") for _ in range(2))
    with pytest.raises(InterruptedRunError, match=r"worker 7 is gone.*topline train .*--resume r0002"):
        train(config(folder), HERE)
    assert train(TrainConfig(store=str(folder), resume="r0002"), HERE).solved


def test_two_trainings_of_one_run_of_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory://two-trainings")
    X, labels = make_features(400, 12, 5)
    write_dataset(store, X, labels, make_split(400), m=5)
    options = TrainConfig(store=store.url, C=0.3, tol=2e-2, k=2, max_passes=3000, method="fw")
    again = TrainConfig(store=store.url, resume=train(options, HERE).run)
    with run_lock(store, "r0001"), pytest.raises(LeaseHeldError, match="r0001 is already being trained by"):
        train(again, HERE)

    def taken_over(_: RunLock) -> None:
        raise LeaseLostError("the store was taken over by another training of r0001")

    with monkeypatch.context() as patch:
        patch.setattr(RunLock, "check", taken_over)
        before = [model.id for model in list_models(store)]
        with pytest.raises(LeaseLostError, match="taken over"):
            train(again, HERE)
        assert [model.id for model in list_models(store)] == before, "who lost the run publishes nothing"
    assert train(again, HERE).solved


def test_an_interrupted_run_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topline.pipeline.interrupts.StopFlag.__bool__", lambda _self: True)
    with pytest.raises(
        InterruptedRunError, match=r"after 1 pass; continue with: topline train .*--resume r0001"
    ):
        train(config(folder), HERE)


def test_a_gap_that_is_only_bounded_is_printed_as_a_bound() -> None:
    values = {"primal": 1.0, "dual": 1.0 - 8.06e-05, "certificate": None}
    assert TrainResult.from_dict({**values, "gap_kind": "true"}).relative_gap_text == "8.06e-05"
    bounded = TrainResult.from_dict({**values, "gap_kind": "lifted"})
    assert bounded.relative_gap_text == "8.06e-05 (lifted: an upper bound)"


def test_a_column_that_drowns_the_others_is_named_with_what_to_do(tmp_path: Path) -> None:
    # The last column of wine is proline, in mg/l; all others are below 200.
    X, y = load_wine(return_X_y=True)
    write_dataset(open_store(tmp_path, create=True), X.astype("float32"), y, make_split(len(y)))
    asked = TrainConfig(store=str(tmp_path), loss="max_hinge")
    plain = train(asked, HERE)
    (sentence,) = plain.notes
    assert sentence.startswith("feature 12 of 13, counted from 0, makes 9")
    assert sentence.endswith("--transforms standardize,bias puts all on one scale")
    scaled = train(asked.model_copy(update={"transforms": ("standardize", "bias")}), HERE)
    short = train(asked.model_copy(update={"transforms": ("standardize", "bias"), "max_passes": 1}), HERE)
    # The options of a resumed run are those that it began with.
    resumed = train(TrainConfig(store=str(tmp_path), resume=short.run, max_passes=1000), HERE)
    assert (scaled.notes, resumed.notes) == ((), ())
    top_1 = [evaluate(found.model).topk[1] for found in (plain, scaled)]
    assert top_1[1] > 0.9 > top_1[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda X: X * np.geomspace(1.0, 200.0, 8), "column 'h' varies .* times as much as most"),
        (lambda X: X + 10.0, r"the means of the 8 features make 9\d\.\d% of the squares"),
    ],
)
def test_imported_columns_that_hardly_count_are_said(tmp_path: Path, change: Any, said: str) -> None:
    """As of silhouettes of vehicles: no column is nearly all, and rows of length 1 are nearly their mean."""
    random = np.random.default_rng(0)
    y = np.arange(400) % 4
    X = change(random.normal(size=(4, 8))[y] + random.normal(size=(400, 8)))
    table, names = np.column_stack([X, y]), "a,b,c,d,e,f,g,h,label"
    np.savetxt(tmp_path / "table.csv", table, delimiter=",", header=names, comments="")
    import_features(ImportConfig(features=str(tmp_path / "table.csv"), store=str(tmp_path / "store")))
    (note,) = train(TrainConfig(store=str(tmp_path / "store"), tol=0.1), HERE).notes
    assert re.search(f"{said}.*--transforms standardize,bias", note)


@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_one_scale_are_not_spoken_of(tmp_path: Path, sparse: bool) -> None:
    small_dataset(tmp_path, n=200, sparse=sparse)
    assert train(TrainConfig(store=str(tmp_path), loss="max_hinge"), HERE).notes == ()


def test_rows_are_looked_at_from_all_over(tmp_path: Path) -> None:
    """The first thousand rows, of one class, have a feature that is far larger; of all rows it is not."""
    X = np.random.default_rng(0).standard_normal((6000, 8)).astype(np.float32)
    X[:1000, 3] *= 1e2
    X[1000:] *= 1e2
    labels = np.minimum(np.arange(6000) // 1000, 3).astype(np.int32)
    store = open_store(tmp_path / "sorted", create=True)
    write_dataset(store, X, labels, np.zeros(6000, dtype=np.int8))
    assert scale_note(TrainingRows(Dataset.open(store), "train"), DEFAULT_TRANSFORMS) is None
