"""A model with an RBF kernel on few of its rows: a linear one over kernel values with these as landmarks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from topline.pipeline.certification import objective
from topline.pipeline.errors import ConfigError
from topline.pipeline.rows import StoredModel, Transforms
from topline.pipeline.rows.kernel_transforms import Nystroem
from topline.pipeline.training import spec_of_model
from topline.solvers.core.rows import as_rows
from topline.solvers.kernels import KernelExpansion, RBFKernel
from topline.solvers.run import compress
from topline.storage.models import load_model


@dataclass(frozen=True)
class Compression:
    """What a compressed model is worth.

    `rows` of the `of_rows` that carry the model are left.  `primal` is P of the exported model, recomputed in
    float64 from the stored features with the certificate's formulas, `of_model` P of the model itself and
    `dual` the bound of its certificate: no classifier of this kernel has a P below that.
    """

    rows: int
    of_rows: int
    primal: float
    of_model: float
    dual: float

    @property
    def loss(self) -> float:
        """By which share of the model's P the exported model's is larger."""
        return (self.primal - self.of_model) / abs(self.of_model)

    @property
    def relative_gap(self) -> float:
        """By which share of its own P the exported model is above the least there is, at most."""
        return (self.primal - self.dual) / abs(self.primal)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "loss": self.loss, "relative_gap": self.relative_gap}


def compressed(stored: StoredModel, most_loss: float) -> tuple[StoredModel, Compression]:
    """Return a linear model on the fewest rows found whose P is at most (1 + most_loss) times the model's.

    Raises `ConfigError` for a model without an RBF kernel, or with sparse features, and one that lost more
    once it was written down.
    """
    record, certificate = stored.model.record, stored.model.record.certificate
    _refuse(stored, most_loss)
    rows = stored.rows("train")
    labels = rows.labels()
    weights = None if record.class_weights is None else np.asarray(record.class_weights)[labels]
    problem = spec_of_model(record).problem(*rows.shape, record.m)
    few = compress(
        stored.expansion,
        as_rows(rows[0 : len(rows)], np.dtype(np.float32)),
        labels,
        problem,
        most_loss,
        weights,
    )
    step, W = _landmarks(few.expansion)
    name = f"nystroem:{len(step.landmarks)}:{float(step.gamma[0])!r}"
    transforms = Transforms((*stored.transforms.names, name), (*stored.transforms.steps, step))
    small = replace(stored, model=load_model(stored.model.url), W=W, transforms=transforms, kernel=None)
    found = Compression(
        rows=len(step.landmarks),
        of_rows=len(stored.expansion.support),
        primal=objective(small),
        of_model=float(record.result["primal"]),
        dual=float((certificate or record.result)["dual"]),
    )
    if found.loss > 1.01 * most_loss:
        raise ConfigError(
            f"on {found.rows:,} rows model {record.id} loses {found.loss:.2e} of its objective once float32"
            f" values are written, more than --compress {most_loss:g}: allow more, or train with a larger C"
        )
    result = {
        **record.result,
        "primal": found.primal,
        "gap": found.primal - found.dual,
        "relative_gap": found.relative_gap,
        "compression": found.to_dict(),
    }
    # Probabilities and sets were fitted on scores of the model itself.
    small.model.record = replace(record, kernel=None, calibration={}, result=result)
    return small, found


def _landmarks(expansion: KernelExpansion) -> tuple[Nystroem, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the transform to kernel values at the rows, made white, and W with the scores of the model."""
    landmarks = np.ascontiguousarray(expansion.rows, dtype=np.float32)
    gamma = np.array([getattr(expansion.kernel, "gamma", None)], dtype=np.float64)
    values, vectors = np.linalg.eigh(RBFKernel(float(gamma[0])).matrix(landmarks, landmarks))
    kept = values > len(values) * np.finfo(np.float64).eps * values.max()
    roots, vectors = np.sqrt(values[kept]), vectors[:, kept]
    W = (vectors * roots) @ (vectors.T @ expansion.coefficients)
    return Nystroem(landmarks, np.ascontiguousarray((vectors / roots) @ vectors.T), gamma), np.asarray(W)


def _refuse(stored: StoredModel, most_loss: float) -> None:
    record = stored.model.record
    if not 0.0 < most_loss < 1.0:
        raise ConfigError(f"--compress {most_loss:g} is not a share of the objective: give one such as 0.01")
    if record.kernel is None or record.kernel["name"] != RBFKernel.name:
        kind = "no kernel" if record.kernel is None else f"the kernel {record.kernel['name']}"
        raise ConfigError(f"model {record.id} has {kind}: --compress is for models with the kernel rbf")
    if stored.dataset().info.layout == "csr":
        raise ConfigError(f"model {record.id} has sparse features: --compress is for dense ones")
