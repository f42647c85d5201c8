"""How often examples count, by their classes and by themselves, and which of them belong together."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import ConfigError, InputError
from topline.storage.datasets import DatasetInfo

ClassWeight: TypeAlias = Literal["none", "balanced"] | Mapping[str, float]


def class_weights(
    chosen: ClassWeight, labels: NDArray[Any], names: Sequence[str], own: NDArray[np.float64] | None = None
) -> NDArray[np.float64] | None:
    """Return how often an example of each class counts (m,), None once.

    "balanced" gives all classes with examples the same total, those of the examples' `own` weights (n,) with
    it; of named weights a class without one has 1.  `ConfigError` for the name of no class.
    """
    if isinstance(chosen, Mapping):
        unknown = sorted(set(chosen).difference(names))
        if unknown:
            close = difflib.get_close_matches(unknown[0], names, n=1)
            fix = f"did you mean {close[0]!r}?" if close else f"they are {', '.join(names[:5])} ..."
            raise ConfigError(f"class_weight names {unknown[0]!r}, which is none of the classes: {fix}")
        return np.array([chosen.get(name, 1.0) for name in names])
    if chosen == "none":
        return None
    counts = np.bincount(labels, own, minlength=len(names))
    share = counts.sum() / np.count_nonzero(counts)
    return np.asarray(np.divide(share, counts, out=np.zeros(len(counts)), where=counts > 0))


def example_weights(
    chosen: ClassWeight, labels: NDArray[Any], names: Sequence[str], own: NDArray[np.float64] | None
) -> NDArray[np.float64] | None:
    """Return how often each example counts (n,): its own weight times that of its class; None once."""
    weights = class_weights(chosen, labels, names, own)
    if weights is None:
        return own
    return np.asarray(weights[labels] if own is None else weights[labels] * own)


def class_of_groups(groups: NDArray[np.integer[Any]], labels: NDArray[Any]) -> NDArray[Any]:
    """Return the class that most examples of each group 0, 1, ... have, shape (g,)."""
    pairs, often = np.unique(np.stack([groups, labels]), axis=1, return_counts=True)
    most = pairs[:, np.lexsort((pairs[1], -often, pairs[0]))]
    return np.asarray(most[1, np.unique(most[0], return_index=True)[1]])


def require_single_labels(info: DatasetInfo, why: str) -> None:
    """Raise `InputError` for a dataset whose rows have several labels, which have no top-k accuracy."""
    if info.label_sets is not None:
        raise InputError(
            f"dataset {info.id} has rows with several labels, and {why} by top-k accuracy, which takes one a"
            " row: measure models with topline evaluate"
        )
