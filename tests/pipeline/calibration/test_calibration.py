"""A stored model's calibration: fitted on rows of its own, stored with digests; nothing else sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.pipeline.small_data import make_features, write_dataset
from tests.storage.test_integrity import flip_first
from topline.pipeline import calibration
from topline.pipeline.calibration import calibration_of, row_draws
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.export.estimator import load_estimator
from topline.pipeline.export.writing import export_model
from topline.pipeline.options import ClusterConfig, PredictConfig, TrainConfig
from topline.pipeline.prediction import predict_dataset
from topline.pipeline.prediction.answers import AnswerRule
from topline.pipeline.registry import compare
from topline.pipeline.report import write_report
from topline.pipeline.rows import StoredModel
from topline.pipeline.training import train
from topline.solvers.calibration import CalibrationRows, conformity, fit_probabilities
from topline.solvers.errors import InvalidProblemError
from topline.storage.errors import AccessError
from topline.storage.schema import SPLITS
from topline.storage.stores import open_store
from topline.storage.verification import verify_store

HERE = ClusterConfig(workers=0)
N, M = 900, 4


def splits(val: int = 200, calibration: int = 200) -> Any:
    """Codes of rows: 300 to train, 200 to test, the others as asked for, mixed."""
    rest = N - 500 - val - calibration
    codes = np.repeat([0, 1, 2, 4], [300 + rest, val, 200, calibration]).astype(np.int8)
    return np.random.default_rng(3).permutation(codes)


def stored(folder: Path, split: Any, *, spoilt: bool = False, **options: Any) -> str:
    """A model of rows whose calibration part is other numbers where it is to be spoilt."""
    X, labels = make_features(N, 10, M, noise=0.6)
    if spoilt:
        rows = split == SPLITS["calibration"]
        X[rows], labels[rows] = 1e4 * X[rows] ** 2, (labels[rows] + 1) % M
    write_dataset(open_store(folder, create=True), X, labels, split, m=M)
    chosen = {"loss": "topk_hinge", "k": 2, "certify": False, **options}
    config = TrainConfig(store=str(folder), tol=0.05, **chosen)
    return train(config, HERE).model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return stored(
        tmp_path_factory.mktemp("calibrated") / "store", splits(), transforms=("standardize", "bias")
    )


def scored(url: str, split: str) -> tuple[Any, Any, list[str]]:
    opened = StoredModel.open(url)
    rows = opened.rows(split)
    ids = rows.dataset.sample_ids()
    scores = np.concatenate([opened.scores(X) for _, _, X in rows.tiles()])
    return scores, rows.labels(), [ids[row] for row in rows.indices.tolist()]


def test_in_a_store_that_cannot_be_written_it_is_made_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = stored(tmp_path / "store", splits())

    def refuse(*_: object) -> None:
        raise AccessError("the disk is read-only")

    with monkeypatch.context() as patched:
        patched.setattr(calibration, "save_calibration", refuse)
        made = calibration_of(StoredModel.open(url))
    assert "the calibration is used and not stored: the disk is read-only" in caplog.text
    assert StoredModel.open(url).model.record.calibration is None
    kept = calibration_of(StoredModel.open(url))
    assert (made.probabilities, made.fitted_rows, made.weighings) == (
        kept.probabilities, kept.fitted_rows, kept.weighings
    )  # fmt: skip


def test_nothing_but_the_sets_follows_from_calibration_rows(tmp_path: Path) -> None:
    split = splits()
    transforms = ("standardize", "pca:6", "bias")
    first, second = (
        stored(tmp_path / name, split, spoilt=spoilt, transforms=transforms)
        for name, spoilt in (("a", False), ("b", True))
    )
    options = {"loss": "softmax", "tol": 0.1, "transforms": transforms, "certify": False}
    rivals = [train(TrainConfig(store=str(tmp_path / name), **options), HERE).model for name in "ab"]
    one, other = StoredModel.open(first), StoredModel.open(second)
    # The digest of all labels says by which the model was trained, and decides nothing.
    for name in set(one.model.arrays) - {"learned_labels"}:
        assert np.array_equal(one.model.array(name), other.model.array(name)), name
    found = [evaluate(url, part) for url in (first, second) for part in ("val", "test")]
    for left, right in zip(found[:2], found[2:], strict=True):
        assert (left.topk, left.per_class, left.confused, left.probabilities) == (
            right.topk, right.per_class, right.confused, right.probabilities
        )  # fmt: skip
        assert left.sets != right.sets
    found_here, found_there = (compare(a, b).evidence for a, b in zip((first, second), rivals, strict=True))
    assert found_here.compared == found_there.compared
    assert found_here.drift == found_there.drift
    with pytest.raises(ValueError, match="calibration rows serve the prediction sets alone"):
        evaluate(first, "calibration")


def test_no_training_starts_from_a_model_that_knows_calibration_rows(tmp_path: Path) -> None:
    X, labels = make_features(N, 10, M)
    store = open_store(tmp_path / "store", create=True)
    split = splits(0, 200)
    write_dataset(store, X, labels, np.where(split == 4, 0, split), m=M, key="before")
    options = TrainConfig(store=str(tmp_path / "store"), k=2, tol=0.1, certify=False)
    before = train(options, HERE)
    again = options.model_copy(update={"start_from": before.model.rpartition("/")[2], "C": 0.5})
    assert StoredModel.open(train(again, HERE).model).model.record.result["start"]["from"] == "duals"
    write_dataset(store, X, labels, split, m=M, key="after")
    start = StoredModel.open(train(again, HERE).model).model.record.result["start"]
    assert (start["from"], start["why"]) == ("zero", "m0001 was trained on rows that are for calibration now")


def test_probabilities_are_those_of_the_validation_rows(model: str) -> None:
    known = calibration_of(StoredModel.open(model))
    scores, labels, _ = scored(model, "val")
    assert known.probabilities == fit_probabilities(scores, labels)
    assert known.fitted_rows == 200
    # Read again it is the same, and every number is stored with a digest.
    again = calibration_of(StoredModel.open(model))
    assert (again.probabilities, again.weighings) == (known.probabilities, known.weighings)
    assert again.rows is not None
    assert known.rows is not None
    for name in ("labels", "ranks", "before", "own", "draws"):
        assert np.array_equal(getattr(again.rows, name), getattr(known.rows, name))


def test_evaluation_measures_probabilities_and_sets(model: str) -> None:
    found = evaluate(model, "test")
    scores, labels, ids = scored(model, "test")
    known = calibration_of(StoredModel.open(model))
    p = known.probabilities.probabilities(scores)
    own = p[np.arange(200), labels]
    assert found.probabilities.log_loss == pytest.approx(-np.log(own).mean())
    assert {metric.name for metric, _ in found.measured()} >= {"log_loss", "calibration_error"}
    cal_scores, cal_labels, cal_ids = scored(model, "calibration")
    rows = CalibrationRows.of(
        cal_scores, known.probabilities.probabilities(cal_scores), cal_labels, row_draws(cal_ids, 0)
    )
    assert [(one.coverage, one.per_class) for one in found.sets][:3] == [
        (0.8, False),
        (0.9, False),
        (0.95, False),
    ]
    for one in found.sets:
        rule = known.rule(one.coverage, per_class=one.per_class)
        bounds = rows.thresholds(one.coverage, rule.weighing, [""] * M, per_class=one.per_class)
        np.testing.assert_allclose(rule.thresholds, bounds, rtol=1e-12)
        sets = conformity(scores, p, row_draws(ids, 0), rule.weighing) <= bounds
        assert one.measured == sets[np.arange(200), labels].mean()
        assert one.mean_size == sets.sum(axis=1).mean()
        assert one.empty == (sets.sum(axis=1) == 0).mean()
        if not one.per_class:
            topk = [
                (np.argsort(-scores, axis=1)[:, :k] == labels[:, None]).any(axis=1).mean()
                for k in range(1, M + 1)
            ]
            assert topk[one.fixed_k - 1] >= one.measured - 1e-12
            assert one.fixed_k == 1 or topk[one.fixed_k - 2] < one.measured


def test_the_report_shows_reliability_and_sets(model: str, tmp_path: Path) -> None:
    found = evaluate(model, "test")
    text = Path(write_report(model, tmp_path / "report.html")).read_text(encoding="utf-8")
    assert found.probabilities.text in text
    assert text.count("<td>in every class</td>") == sum(one.per_class for one in found.sets) > 0
    assert all(f">{one.mean_size:.2f}</td>" in text for one in found.sets)


def test_the_table_has_probabilities_and_sets(model: str, tmp_path: Path) -> None:
    output, page = tmp_path / "rows.parquet", tmp_path / "page.html"
    config = PredictConfig(dataset="latest", top_k=2, coverage=0.9, per_class=True, output=output, page=page)
    found = predict_dataset(model, config, HERE)
    rows = pq.read_table(output).to_pylist()
    known = calibration_of(StoredModel.open(model))
    scores, _, ids = scored(model, "test")
    p, rule = known.probabilities.probabilities(scores), known.rule(0.9, per_class=True)
    sets = rule.sets(scores, row_draws(ids, 0))
    by_id = {row["sample_id"]: row for row in rows}
    names = StoredModel.open(model).model.record.class_names
    for i, name in enumerate(ids):
        order = np.argsort(-scores[i])
        np.testing.assert_allclose(by_id[name]["probabilities"], p[i, order[:2]], rtol=1e-5)
        assert set(by_id[name]["set"]) == {names[c] for c in np.flatnonzero(sets[i])}
        # The best first, as far as they are among the best two.
        best = [names[c] for c in order[:2] if sets[i, c]]
        assert by_id[name]["set"][: len(best)] == best
    said = page.read_text(encoding="utf-8")
    assert "holds the right class with probability 90% in every class" in said
    assert said.count("Set at 90%: ") == said.count('<article class="card">') > 0
    assert found.sets["mean_size"] == pytest.approx(np.mean([len(row["set"]) for row in rows]))
    other = predict_dataset(model, config.model_copy(update={"seed": 2}), HERE)
    assert (other.reused, other.sets != found.sets) == (False, True)
    assert predict_dataset(model, config, HERE).reused
    with pytest.raises(InvalidProblemError, match=r"calibration rows, which give .*, and 0\.9999 needs 9999"):
        predict_dataset(model, PredictConfig(dataset="latest", top_k=2, coverage=0.9999), HERE)
    with pytest.raises(ValueError, match="--per-class, --never-empty and --sets-by are"):
        predict_dataset(model, PredictConfig(dataset="latest", top_k=2, sets_by="rank"), HERE)


def test_classes_of_few_calibration_rows_are_named(model: str, caplog: pytest.LogCaptureFixture) -> None:
    """A coverage c in each class needs c / (1 - c) of its rows, here as many as the largest class has."""
    counts = np.bincount(scored(model, "calibration")[1])
    coverage = (counts.max() - 0.5) / (counts.max() + 0.5)
    few = np.count_nonzero(counts < counts.max())
    assert few > 0
    AnswerRule.of(StoredModel.open(model), PredictConfig(dataset="latest", coverage=coverage, per_class=True))
    assert f"{few} of {M} classes are in every set (" in caplog.text


def test_fsck_sees_a_damaged_calibration(tmp_path: Path) -> None:
    url = stored(tmp_path / "store", splits())
    calibration_of(StoredModel.open(url))
    store = open_store(tmp_path / "store")
    assert verify_store(store) == []
    folder = StoredModel.open(url).model.record.calibration["folder"]
    flip_first(store, f"models/m0001/{folder}/probabilities/c/0")
    (finding,) = verify_store(store)
    assert finding.path == f"models/m0001/{folder}/probabilities/c/0"
    with pytest.raises(Exception, match="is damaged"):
        calibration_of(StoredModel.open(url))


@pytest.mark.parametrize(
    ("loss", "said"), [("topk_hinge", "none: hold out rows"), ("softmax", "the loss's own")]
)
def test_without_validation_rows_hinges_have_no_probabilities(loss: str, said: str, tmp_path: Path) -> None:
    options = {"k": 2} if loss == "topk_hinge" else {"k": None}
    url = stored(tmp_path / "store", splits(0, 0), loss=loss, **options)
    found = predict_dataset(
        url, PredictConfig(dataset="latest", top_k=1, output=tmp_path / "a.parquet"), HERE
    )
    assert found.probabilities.startswith(said)
    rows = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert all((row["probabilities"] is None) == (loss == "topk_hinge") for row in rows)
    assert StoredModel.open(url).model.record.calibration is None
    with pytest.raises(InvalidProblemError, match="there are no calibration rows"):
        predict_dataset(url, PredictConfig(dataset="latest", top_k=1, coverage=0.9), HERE)


@pytest.mark.parametrize("loss", ["topk_hinge", "one_vs_all_logistic"])
def test_an_exported_estimator_has_the_same_probabilities_and_thresholds(loss: str, tmp_path: Path) -> None:
    options = {"k": 2} if loss == "topk_hinge" else {"k": None}
    url = stored(tmp_path / "store", splits(), loss=loss, transforms=("bias",), **options)
    export_model(url, tmp_path / "model", "sklearn")
    made, known = load_estimator(tmp_path / "model"), calibration_of(StoredModel.open(url))
    X = np.asarray(StoredModel.open(url).dataset().rows(0, 50))
    expected = known.probabilities.probabilities(StoredModel.open(url).scores(np.c_[X, np.ones(50)]))
    np.testing.assert_allclose(made.predict_proba(X), expected, atol=1e-6)
    for per_class in (False, True):
        ours, theirs = (c.rule(0.9, per_class=per_class) for c in (made.calibration_, known))
        assert np.array_equal(ours.thresholds, theirs.thresholds)
    assert made.predict_set(X, coverage=0.9).shape == (50, M)


def test_draws_follow_from_seed_and_id_alone() -> None:
    names = [f"row{i}" for i in range(20_000)]
    found = row_draws(names, 7)
    assert np.array_equal(found[5:9], row_draws(names[5:9], 7))
    assert not np.array_equal(found, row_draws(names, 8))
    # Uniform, five standard errors of mean and of the share below a tenth.
    assert abs(found.mean() - 0.5) < 5 / np.sqrt(12 * len(found))
    assert abs((found < 0.1).mean() - 0.1) < 5 * 0.3 / np.sqrt(len(found))
