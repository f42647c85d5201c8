"""What is refused before a training run begins: data without a problem, options that do not go together."""

from __future__ import annotations

import logging

from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import TrainConfig
from topline.pipeline.options.problem import check_average_top, chosen_risk
from topline.pipeline.rows import TrainingRows
from topline.solvers.core.problem import Problem
from topline.solvers.losses import Loss, MultilabelSoftmax
from topline.solvers.methods import method_named

logger = logging.getLogger(__name__)

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


def check_problem(config: TrainConfig, loss: Loss, rows: TrainingRows) -> None:
    """Refuse a loss, smoothing and method that do not go together, or not with the rows."""
    _check_loss(config, loss, rows)
    check_average_top(config)
    method = method_named(config.method)
    lam = 1.0 / (len(rows) * config.C)
    (n, d), m = rows.shape, rows.dataset.info.m
    method.refuse(
        Problem(
            loss,
            n,
            d,
            m,
            lam,
            config.smoothing,
            config.smoothing_kind,
            label_sets=rows.solver_label_sets,
            risk=chosen_risk(config, n),
        )
    )
    if config.keep_duals and method.dual_free:
        raise ConfigError(f"the method {method.name} never knows the dual variables: leave keep_duals out")
    if config.keep_duals and not loss.form(m).convex:
        raise ConfigError(f"the loss {loss.name} is not convex, so it has no duals: leave keep_duals out")


def _check_loss(config: TrainConfig, loss: Loss, rows: TrainingRows) -> None:
    """Refuse a loss of one label a row for several, and the other way round."""
    info, form = rows.dataset.info, loss.form(rows.dataset.info.m)
    if info.label_sets is None:
        if form.needs_label_sets:
            raise ConfigError(
                f"the loss {loss.name} is for rows with several labels, and dataset {info.id} has one a row:"
                " take another loss, such as topk_hinge, or import the labels as sets (of a table of images"
                " with --label-separator)"
            )
        return
    if not form.takes_label_sets:
        raise ConfigError(
            f"dataset {info.id} has rows with several labels, and the loss {loss.name} is for one a row:"
            f" take {SEVERAL}"
        )
    if config.class_weight != "none":
        raise ConfigError(
            f"dataset {info.id} has rows with several labels, which have no class to be weighted by: leave"
            f" class_weight {config.class_weight} out"
        )
    sets = rows.solver_label_sets
    if sets is not None and loss.name == MultilabelSoftmax.name:
        bare = int((sets.sizes[rows.labels()] == 0).sum())
        if bare:
            raise ConfigError(
                f"{bare:,} training rows of dataset {info.id} have no label, and {loss.name} shares one unit"
                " of probability among the labels of a row: take multilabel_hinge, or leave these rows out"
            )
