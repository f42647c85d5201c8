"""Refusals before a training run begins: unusable data, and options that do not fit together.

`check_options` needs no features, so that it comes before images are described.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import TrainConfig
from topline.pipeline.options.problem import chosen_loss, chosen_risk, resolved_k
from topline.pipeline.rows import TrainingRows, parse_transforms
from topline.solvers.core.problem import SmoothingKind
from topline.solvers.core.problem import scale_note as sizes_of_columns
from topline.solvers.errors import InvalidProblemError
from topline.solvers.kernels import ChiSquaredKernel, IntersectionKernel, LaplacianKernel, factor, make_kernel
from topline.solvers.kernels.problem import ARRAYS
from topline.solvers.losses import LabelSets, Loss, loss_from_dict
from topline.solvers.run import ProblemSpec
from topline.storage.models import ModelRecord

logger = logging.getLogger(__name__)

#: Rows, and places they come from, in the check of feature scales.
_LOOKED_AT, _PLACES = 1000, 10
#: Random sign vectors for the symmetry test of K, and rows whose own matrix is fully factored.
PROBES, SAMPLED_ROWS = 4, 1000
#: Tolerance of symmetry: float32 roundings, also times the root of n.
ROUNDINGS = 10.0

SEVERAL = "multilabel_hinge, multilabel_softmax, one_vs_all_hinge or one_vs_all_logistic"


def check_labels(rows: TrainingRows) -> None:
    """Raise for training labels that make no problem; warn of classes without rows."""
    info, y = rows.dataset.info, rows.labels()
    if len(y) == 0:
        raise InputError(f"dataset {info.id} has no training rows: import or extract it with a train split")
    if int(y.max()) >= (info.label_sets or info.m) or int(y.min()) < 0:
        raise InputError(f"dataset {info.id} has the label {int(y.max())}, but only {info.m} classes")
    counts = rows.class_counts()
    empty = [name for name, count in zip(info.class_names, counts.tolist(), strict=True) if count == 0]
    if info.label_sets is None and info.m - len(empty) < 2:
        raise InputError(
            f"dataset {info.id} has training rows of {info.m - len(empty)} class, and at least 2 are needed:"
            " give the images a folder for each class, or the features labels of several classes"
        )
    if info.label_sets is not None and (info.m < 2 or len(empty) == info.m):
        raise InputError(
            f"dataset {info.id} has {info.m} classes, {info.m - len(empty)} of them with training rows, and 2"
            " and 1 are the least: import labels of several classes"
        )
    if empty:
        shown = ", ".join(empty[:5]) + (" ..." if len(empty) > 5 else "")
        logger.warning("%d of %d classes have no training rows: %s", len(empty), info.m, shown)


def scale_note(config: TrainConfig, rows: TrainingRows) -> str | None:
    """Return a note if the features differ in scale, or None."""
    info = rows.dataset.info
    scaled = {"standardize", "pca"} & {name.partition(":")[0] for name in config.transforms}
    if scaled or info.layout == "csr" or config.kernel == "precomputed":
        return None
    stored, together = TrainingRows(rows.dataset, "train"), _LOOKED_AT // _PLACES
    # Sample everywhere: the first rows may all be of one class.
    starts = np.unique(np.linspace(0, max(len(stored) - together, 0), _PLACES, dtype=np.int64)).tolist()
    parts = [np.asarray(stored[start : min(start + together, len(stored))]) for start in starts]
    means, names = info.features.get("kind") == "imported", info.features.get("columns")
    note = sizes_of_columns(np.concatenate(parts), means=means, names=names)
    return None if note is None else f"{note}: --transforms standardize,bias puts all on one scale"


def check_options(config: TrainConfig, n: int, m: int, *, several: bool = False) -> None:
    """Raise, as `checked_spec` does, for what cannot be trained on any n rows of m classes."""
    if not several and m < 2:
        raise InputError(
            f"the images are of {m} class, and at least 2 are needed: give them a folder for each class"
        )
    chosen = config.model_copy(update={"k": resolved_k(config, m)})
    loss = chosen_loss(chosen, m)
    _check_label_kind(chosen.class_weight, loss, m, "the images have", several=several)
    spec = spec_of(chosen, loss, n)
    spec.chosen(spec.problem(n, 1, m, LabelSets.from_lists([[0]], m)[0] if several else None))
    parse_transforms(config.transforms)


def checked_spec(config: TrainConfig, loss: Loss, rows: TrainingRows) -> ProblemSpec:
    """Return the problem of resolved options for training rows; raise if they do not fit together."""
    info = rows.dataset.info
    _check_label_kind(
        config.class_weight, loss, info.m, f"dataset {info.id} has", several=info.label_sets is not None
    )
    spec = spec_of(config, loss, len(rows))
    if rows.own_weights is not None:
        spec = replace(spec, weights=spec.weights or "sample_weight")
    spec.chosen(spec.problem(*rows.shape, info.m, rows.solver_label_sets))
    dense = ChiSquaredKernel, IntersectionKernel, LaplacianKernel
    if isinstance(spec.kernel, dense) and info.layout == "csr":
        raise ConfigError(
            f"the kernel {spec.kernel.name} takes no sparse features: use linear, rbf or polynomial"
        )
    return spec


def spec_of(config: TrainConfig, loss: Loss, n: int) -> ProblemSpec:
    """Return the problem of resolved options for n training rows, with the kernel's parameters as given."""
    kernel = None
    if config.kernel is not None:
        kernel = make_kernel(config.kernel, config.kernel_gamma, config.kernel_degree, config.kernel_coef0)
    weights = None if config.class_weight == "none" else f"class_weight {config.class_weight}"
    return ProblemSpec(
        loss, None, config.C, config.smoothing, config.smoothing_kind, chosen_risk(config.average_top, n),
        config.method, kernel, weights, config.keep_duals, stored=True,
    )  # fmt: skip


def spec_of_model(record: ModelRecord) -> ProblemSpec:
    """Return the problem that a stored model solves, in the space of its weights."""
    kind: SmoothingKind = "others" if record.smoothing_kind == "others" else "moreau"
    return ProblemSpec(
        loss_from_dict(record.loss), record.lam, smoothing=record.smoothing, smoothing_kind=kind
    )


def _check_label_kind(class_weight: Any, loss: Loss, m: int, data: str, *, several: bool) -> None:
    """Raise if the loss and the rows, named by `data`, disagree on one or several labels per row."""
    form = loss.form(m)
    if not several:
        if form.needs_label_sets:
            raise ConfigError(
                f"the loss {loss.name} is for rows with several labels, and {data} one per row:"
                " use another loss, such as softmax, or import the labels as sets (of a table of images"
                " with --label-separator)"
            )
        return
    if not form.takes_label_sets:
        raise ConfigError(
            f"{data} rows with several labels, and the loss {loss.name} is for one per row: use {SEVERAL}"
        )
    if class_weight != "none":
        raise ConfigError(
            f"{data} rows with several labels, which have no class to be weighted by: leave"
            f" class_weight {class_weight} out"
        )


def check_kernel_values(rows: TrainingRows) -> None:
    """Raise if the rows are not the matrix of a kernel, in one pass, without holding n^2 numbers.

    For random signs v, K v = K^T v up to rounding if K is symmetric; otherwise row i of the two differs by at
    least the largest k_ij - k_ji with probability 1/2.  The diagonal and the matrix of up to 1,000 rows
    reveal negative eigenvalues.
    """
    n, d = rows.shape
    name = f"dataset {rows.dataset.info.id}"
    if d != n:
        raise ConfigError(
            f"{name} has {d:,} kernel values per row and {n:,} training rows: give k of every row with each"
            " training row, in their order, and say with --split which rows these are"
        )
    if rows.dataset.info.dtype == "float16":
        raise ConfigError(
            f"{name} holds kernel values in float16, whose rounding makes eigenvalues below zero: import it"
            " with --dtype float32"
        )
    random = np.random.default_rng(0)
    signs = random.choice([-1.0, 1.0], size=(n, PROBES))
    chosen = np.sort(random.choice(n, size=min(n, SAMPLED_ROWS), replace=False))
    along, across = np.zeros((n, PROBES)), np.zeros((n, PROBES))
    diagonal, sample, largest = np.zeros(n), np.zeros((len(chosen), len(chosen))), 0.0
    for start, stop, tile in rows.tiles():
        X: NDArray[Any] = (tile.toarray() if hasattr(tile, "toarray") else tile).astype(np.float64)
        along[start:stop] = X @ signs
        across += X.T @ signs[start:stop]
        diagonal[start:stop] = X[np.arange(stop - start), np.arange(start, stop)]
        low, high = np.searchsorted(chosen, [start, stop])
        sample[low:high] = X[np.ix_(chosen[low:high] - start, chosen)]
        largest = max(largest, float(np.abs(X).max(initial=0.0)))
    rounding = ROUNDINGS * float(np.finfo(np.float32).eps) * largest
    apart = np.abs(along - across).max(axis=1)
    if not np.all(apart <= rounding * n**0.5):
        worst = int(np.argmax(apart))
        raise ConfigError(
            f"the kernel values of {name} are not symmetric: those of training row {worst} differ by about"
            f" {apart[worst]:.3g} from those of the others with it; import K(rows, training rows), or"
            " (K + K.T) / 2 where that is rounding"
        )
    if diagonal.min(initial=0.0) < -rounding:
        worst = int(np.argmin(diagonal))
        raise ConfigError(
            f"the kernel of {name} is not positive semi-definite: k of training row {worst} with itself is"
            f" {diagonal[worst]:.3g}"
        )
    try:
        factor(0.5 * (sample + sample.T), "precomputed", rounded=True)
    except InvalidProblemError as error:
        raise ConfigError(f"{len(chosen):,} rows of {name}: {error}") from error


def refuse_size(n: int, budget: int) -> None:
    """Raise if a matrix would not fit the budget beside its factor, before any work."""
    needed = ARRAYS * 8 * n * n
    if needed > budget:
        raise ConfigError(
            f"the kernel matrix of {n:,} rows and its factor take {needed:,} bytes, more than the {budget:,}"
            " of --kernel-bytes: use the method dual_ascent, which holds no matrix, or raise it"
        )
