"""A published model as a scikit-learn estimator: a folder of JSON and npz, nothing pickled, and a loader."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from topline.pipeline.calibration import ROW_ARRAYS, calibration_of, calibration_of_facts
from topline.pipeline.errors import InputError
from topline.pipeline.options import ExportOptions
from topline.pipeline.rows import StoredModel, Transforms
from topline.solvers.calibration import CalibrationRows
from topline.solvers.core.state import Status
from topline.solvers.estimators.topk import TopKClassifier
from topline.solvers.losses import loss_from_dict
from topline.storage.errors import StorageError
from topline.storage.records import digest_bytes, seal, unseal
from topline.storage.schema import ESTIMATOR_ENCODING, check_encoding, encoding

RECORD = "estimator.json"
ARRAYS = "arrays.npz"


class ExportedClassifier(TopKClassifier):
    """A published model: takes features as stored, and applies the transforms of its training.

    `coef_` and `intercept_` act on the features after `transforms_`; fitting it again drops these.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train like `TopKClassifier`, and drop the transforms."""
        self.__dict__.pop("transforms_", None)
        return super().fit(X, y, sample_weight)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the scores of X, (rows, m); with two classes (rows,), positive for the second."""
        check_is_fitted(self, "classes_")
        if "transforms_" not in self.__dict__:
            return np.asarray(super().decision_function(X))
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=False)
        rows = self.transforms_.apply(X)
        scores = np.asarray(rows @ self.coef_.T) + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores


def write_estimator(stored: StoredModel, folder: Path, _: ExportOptions) -> None:
    """Write a linear model of one label per row as an estimator to the new folder `folder`."""
    record = stored.model.record
    names, W = np.array(record.class_names), stored.W
    order = np.argsort(names)
    W = W[:, order]
    if record.m == 2:
        W = W[:, 1:] - W[:, :1]
    steps = [step.name for step in stored.transforms.steps]
    # A trailing bias is the intercept; anywhere else it is a feature.
    last = bool(steps) and steps[-1] == "bias"
    arrays = {
        "coef_": np.ascontiguousarray(W[: len(W) - last].T),
        "intercept_": W[-1].copy() if last else np.zeros(W.shape[1]),
        **stored.transforms.arrays(),
    }
    calibration = calibration_of(stored)
    if calibration.rows is not None:
        rows = calibration.rows
        codes = np.argsort(order).astype(np.int32)[rows.labels]
        arrays |= {f"calibration.{name}": getattr(replace(rows, labels=codes), name) for name in ROW_ARRAYS}
    folder.mkdir(parents=True)
    with (folder / ARRAYS).open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    content = {
        **encoding(ESTIMATOR_ENCODING),
        "model": record.id,
        "class_names": names.tolist(),
        "features": stored.input_width,
        "transforms": list(stored.transforms.names)[: len(steps) - last],
        "loss": dict(record.loss),
        "parameters": {
            "C": record.C,
            "smoothing": record.smoothing,
            "solver": record.method,
            "tol": record.config.get("tol", 1e-3),
            "smoothing_kind": record.smoothing_kind,
            "fit_intercept": last,
        },
        "result": dict(record.result),
        "probabilities": None if calibration.probabilities is None else calibration.probabilities.to_dict(),
        "fitted_rows": calibration.fitted_rows,
        "penalties": [list(tuned) for tuned in calibration.weighings],
        "arrays_sha256": digest_bytes((folder / ARRAYS).read_bytes()),
    }
    (folder / RECORD).write_bytes(seal(content))


def load_estimator(folder: str | Path) -> ExportedClassifier:
    """Return the estimator that `topline export --format sklearn` wrote to `folder`.

    Parameters
    ----------
    folder : folder of the exported model, which needs no store

    Raises
    ------
    InputError
        If the folder is not an exported estimator, or a file of it is damaged.  Nothing in it can run code.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> from topline import load_estimator
    >>> from topline.pipeline.export.writing import export_model
    >>> from topline.pipeline.ingest import import_features
    >>> from topline.pipeline.options import ClusterConfig, ImportConfig, TrainConfig
    >>> from topline.pipeline.training import train
    >>> place = pathlib.Path(tempfile.mkdtemp())
    >>> y = np.arange(90) % 3
    >>> X = np.eye(3, dtype=np.float32)[y] + 0.1 * np.random.default_rng(0).normal(size=(90, 3))
    >>> np.save(place / "X.npy", X.astype(np.float32)), np.save(place / "y.npy", y)
    (None, None)
    >>> files = {"features": str(place / "X.npy"), "labels": place / "y.npy", "store": str(place / "store")}
    >>> dataset = import_features(ImportConfig(**files))
    >>> model = train(TrainConfig(store=str(place / "store"), k=1), ClusterConfig(workers=0)).model
    >>> report = export_model(model, place / "classifier", "sklearn")
    >>> load_estimator(place / "classifier").predict(X[:4].astype(np.float32)).tolist()
    ['0', '1', '2', '0']
    """
    place = Path(folder)
    try:
        content = unseal((place / RECORD).read_bytes(), str(place / RECORD))
        check_encoding(content, ESTIMATOR_ENCODING, str(place / RECORD))
        data = (place / ARRAYS).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{place} is not an estimator that topline exported: topline export MODEL --format sklearn"
            f" --output {place} writes one"
        ) from error
    except (OSError, StorageError) as error:
        raise InputError(f"{place} is not an estimator that topline exported: {error}") from error
    if digest_bytes(data) != content["arrays_sha256"]:
        raise InputError(f"{place / ARRAYS} is damaged: export the model again")
    with np.load(place / ARRAYS, allow_pickle=False) as found:
        return _estimator(content, {name: found[name] for name in found.files})


def _estimator(content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ExportedClassifier:
    loss, result = loss_from_dict(content["loss"]), content["result"]
    k = int(content["loss"].get("k") or 1)
    parameters = dict(content["parameters"])
    made = ExportedClassifier(loss, k, method=parameters.pop("solver"), **parameters)
    made.classes_ = np.sort(np.array(content["class_names"]))
    made.coef_, made.intercept_ = arrays["coef_"], arrays["intercept_"]
    made.transforms_ = Transforms.from_arrays(content["transforms"], arrays)
    made.n_features_in_ = int(content["features"])
    made.k_ = min(k, len(made.classes_))
    rows = None
    if "calibration.labels" in arrays:
        rows = CalibrationRows(*(arrays[f"calibration.{name}"] for name in ROW_ARRAYS))
    made.calibration_ = calibration_of_facts(tuple(made.classes_.tolist()), content, rows)
    bounds = {"primal_": "primal", "dual_": "dual", "dual_gap_": "gap", "relative_gap_": "relative_gap"}
    facts: dict[str, Any] = {name: result.get(key) for name, key in bounds.items()}
    facts = {name: math.nan if value is None else float(value) for name, value in facts.items()}
    status = Status(result.get("status", "solved"))
    facts |= {"status_": status, "history_": (), "n_iter_": result.get("passes")}
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def estimator_scores(folder: Path, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the scores (rows, m) of a written estimator, with the model's order of classes."""
    made = load_estimator(folder)
    scores = made.decision_function(rows)
    if scores.ndim == 1:
        scores = np.column_stack([-scores, scores]) / 2
    names = unseal((folder / RECORD).read_bytes(), str(folder))["class_names"]
    return np.asarray(scores[:, np.searchsorted(made.classes_, np.array(names))])
