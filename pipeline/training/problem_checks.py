"""What is refused before a training run begins: data without a problem, options that do not go together.

Most of it is known before there are features: `check_options` refuses that, before images are described.
"""

from __future__ import annotations

import logging

import numpy as np

from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import TrainConfig
from topline.pipeline.options.problem import check_average_top, chosen_loss, chosen_risk, resolved_k
from topline.pipeline.rows import TrainingRows, parse_transforms
from topline.solvers.core.problem import Problem
from topline.solvers.kernels import ChiSquaredKernel, IntersectionKernel, Kernel, LaplacianKernel, make_kernel
from topline.solvers.losses import LabelSets, Loss, MultilabelSoftmax
from topline.solvers.methods import chosen_method, method_named
from topline.solvers.run import ON_BLOCKS

logger = logging.getLogger(__name__)

#: Of so many rows, at so many places, is looked at how much single features count; at this share of all,
#: others hardly do.
_LOOKED_AT, _PLACES, _NEARLY_ALL = 1000, 10, 0.9

SEVERAL = "multilabel_hinge, multilabel_softmax, one_vs_all_hinge or one_vs_all_logistic"


def check_labels(rows: TrainingRows) -> None:
    """Refuse training rows whose labels make no problem; warn of classes that have no row."""
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
    """Return what is to be said of rows in which one feature is far larger than all others together."""
    info = rows.dataset.info
    scaled = {"standardize", "pca"} & {name.partition(":")[0] for name in config.transforms}
    if scaled or info.layout == "csr" or info.d < 3 or config.kernel == "precomputed":
        return None
    stored, together = TrainingRows(rows.dataset, "train"), _LOOKED_AT // _PLACES
    # From all over: the first rows may be those of one class.
    squares = np.zeros(info.d)
    for start in np.unique(np.linspace(0, max(len(stored) - together, 0), _PLACES, dtype=np.int64)):
        sample = np.asarray(stored[int(start) : min(int(start) + together, len(stored))], dtype=np.float64)
        squares += np.einsum("ij,ij->j", sample, sample)
    largest = int(squares.argmax())
    share = float(squares[largest] / max(squares.sum(), np.finfo(np.float64).tiny))
    if not share > _NEARLY_ALL:
        return None
    return (
        f"feature {largest} of {info.d}, counted from 0, makes {share:.1%} of the squares of the rows, so"
        " that the others hardly count: --transforms standardize,bias puts all on one scale"
    )


def check_options(config: TrainConfig, n: int, m: int, *, several: bool = False) -> None:
    """Refuse what cannot be trained on n rows of m classes, whatever their features.

    `n` and `m` are the most that there can be; with `several` labels a row.  Raises as `check_problem` does.
    """
    if not several and m < 2:
        raise InputError(
            f"the images are of {m} class, and at least 2 are needed: give them a folder for each class"
        )
    chosen = config.model_copy(update={"k": resolved_k(config, m)})
    loss = chosen_loss(chosen, m)
    _check_label_kind(chosen, loss, m, "the images", several=several)
    sets = LabelSets.from_lists([[0]], m)[0] if several else None
    _check_method(chosen, Problem(
        loss, n, 1, m, 1.0 / (n * config.C), config.smoothing, config.smoothing_kind, sets,
        risk=chosen_risk(config, n),
    ))  # fmt: skip
    kernel_of(chosen)
    parse_transforms(config.transforms)


def check_problem(config: TrainConfig, loss: Loss, rows: TrainingRows) -> None:
    """Refuse a loss, smoothing and method that do not go together, or not with the rows."""
    info, sets = rows.dataset.info, rows.solver_label_sets
    _check_label_kind(config, loss, info.m, f"dataset {info.id}", several=info.label_sets is not None)
    if sets is not None and loss.name == MultilabelSoftmax.name:
        _check_bare_rows(loss, rows, sets)
    _check_method(config, problem_of(config, loss, rows))


def problem_of(config: TrainConfig, loss: Loss, rows: TrainingRows) -> Problem:
    """Return what these options solve on these rows."""
    (n, d), m = rows.shape, rows.dataset.info.m
    lam, sets, risk = 1.0 / (n * config.C), rows.solver_label_sets, chosen_risk(config, n)
    return Problem(loss, n, d, m, lam, config.smoothing, config.smoothing_kind, sets, risk=risk)


def _check_method(config: TrainConfig, problem: Problem) -> None:
    """Refuse a method that is not for a problem, and duals that it cannot keep."""
    check_average_top(config)
    method, _ = chosen_method(config.method, problem, kernel=config.kernel is not None)
    method.refuse(problem, kernel=config.kernel is not None)
    if config.keep_duals and method.dual_free:
        raise ConfigError(f"the method {method.name} never knows the dual variables: leave keep_duals out")
    if config.keep_duals and not problem.form.convex:
        raise ConfigError(
            f"the loss {problem.loss.name} is not convex, so it has no duals: leave keep_duals out"
        )


def kernel_of(config: TrainConfig, layout: str = "dense") -> Kernel | None:
    """Return the kernel with its parameters as they were given, None where there is none.

    Raises `ConfigError` for sparse features that it does not take, and for a method whose models have no dual
    variables, which are all that a model with a kernel has.
    """
    if config.kernel is None:
        return None
    kernel = make_kernel(
        config.kernel, gamma=config.kernel_gamma, degree=config.kernel_degree, coef0=config.kernel_coef0
    )
    dense = ChiSquaredKernel, IntersectionKernel, LaplacianKernel
    if isinstance(kernel, dense) and layout == "csr":
        raise ConfigError(f"the kernel {kernel.name} takes no sparse features: use linear, rbf or polynomial")
    method = method_named(config.method)
    knows = method.keeps_duals or method.smooths_through_duals or method.name in ON_BLOCKS
    if not knows or config.keep_duals is False:
        without = (
            "keep_duals is off" if config.keep_duals is False else f"the method {method.name} knows none"
        )
        raise ConfigError(
            f"a model with a kernel is made of its dual variables, and {without}: use dual_ascent, sdca,"
            " fw or fw_fully_corrective, and leave keep_duals out"
        )
    return kernel


def _check_label_kind(config: TrainConfig, loss: Loss, m: int, data: str, *, several: bool) -> None:
    """Refuse a loss of one label per row for several, and the other way round; `data` names the rows."""
    form = loss.form(m)
    if not several:
        if form.needs_label_sets:
            raise ConfigError(
                f"the loss {loss.name} is for rows with several labels, and {data} {_has(data)} one per row:"
                " use another loss, such as topk_hinge, or import the labels as sets (of a table of images"
                " with --label-separator)"
            )
        return
    if not form.takes_label_sets:
        raise ConfigError(
            f"{data} {_has(data)} rows with several labels, and the loss {loss.name} is for one per row: use"
            f" {SEVERAL}"
        )
    if config.class_weight != "none":
        raise ConfigError(
            f"{data} {_has(data)} rows with several labels, which have no class to be weighted by: leave"
            f" class_weight {config.class_weight} out"
        )


def _has(data: str) -> str:
    return "have" if data == "the images" else "has"


def _check_bare_rows(loss: Loss, rows: TrainingRows, sets: LabelSets) -> None:
    """Refuse rows without a label where the loss shares one unit of probability among those of a row."""
    bare = int((sets.sizes[rows.labels()] == 0).sum())
    if bare:
        raise ConfigError(
            f"{bare:,} training rows of dataset {rows.dataset.info.id} have no label, and {loss.name} shares"
            " one unit of probability among the labels of a row: use multilabel_hinge, or leave these rows"
            " out"
        )
