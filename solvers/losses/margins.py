"""Margins (m, m) for `StructuredHinge`, row = true class: from class sizes, and from a tree of classes.

Rare classes.  Maximising accuracy neglects classes of few rows.  Menon, Jayasumana, Rawat, Jain, Veit and
Kumar, "Long-tail learning via logit adjustment", ICLR 2021, raise the margin by tau log(n_j / n_y) for a rare
own class and a frequent rival; Cao, Wei, Gaidon, Arechiga and Ma, "Learning imbalanced datasets with
label-distribution-aware margin loss", NeurIPS 2019, by a constant over n_y^(1/4) whatever the rival.  Both
apply it inside a softmax; here it is the margin of a hinge, certified like any other.

Unequal mistakes.  The margin towards a rival is the height in a tree of classes of their lowest common
ancestor: Deng, Berg, Li and Fei-Fei, "What does classifying more than 10,000 image categories tell us?", ECCV
2010.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array


def logit_adjusted_margins(counts: Any, tau: float = 1.0) -> Float64Array:
    """Return max(0, 1 + tau log(n_j / n_y)) of true class y and rival j, shape (m, m), from class sizes.

    `counts` (m,) are the training rows of each class; 0 counts as 1. tau = 0 gives margins of 1.
    InvalidProblemError for invalid counts or a negative tau.

    Examples
    --------
    >>> from topline import logit_adjusted_margins
    >>> logit_adjusted_margins([100, 10], tau=0.25).round(2)
    array([[0.  , 0.42],
           [1.58, 0.  ]])
    """
    logs = np.log(_checked_counts(counts))
    if not 0.0 <= tau < np.inf:
        raise InvalidProblemError(f"tau of logit-adjusted margins is {tau!r}; give a number of at least 0")
    return _without_diagonal(np.maximum(1.0 + tau * (logs[None, :] - logs[:, None]), 0.0))


def ldam_margins(counts: Any, power: float = 0.25) -> Float64Array:
    """Return (n_max / n_y)^power of true class y and every rival, shape (m, m), from class sizes.

    `counts` as above; the largest class has margin 1.  InvalidProblemError for invalid counts or a negative
    power.

    Examples
    --------
    >>> from topline import ldam_margins
    >>> ldam_margins([160, 10])
    array([[0., 1.],
           [2., 0.]])
    """
    sizes = _checked_counts(counts)
    if not 0.0 <= power < np.inf:
        raise InvalidProblemError(f"power of LDAM margins is {power!r}; give a number of at least 0")
    return _without_diagonal(np.repeat((sizes.max() / sizes)[:, None] ** power, len(sizes), axis=1))


def tree_margins(
    classes: Sequence[str], parents: Iterable[tuple[str, str]], least: float = 0.5
) -> Float64Array:
    """Return least + (1 - least) h of any two classes, h the height of their lowest common ancestor, (m, m).

    Parameters
    ----------
    classes : (m,) names in the order of the labels
    parents : pairs of child and parent; a child may have several, as in WordNet; names without a class
        below are ignored
    least : margin at height 0, from 0 to 1; near 0, closely related classes are hardly separated

    Heights are fractions of the largest.  A node's height is the length of the longest path down to a class;
    the lowest common ancestor counts, and classes without one meet just above all roots.  InvalidProblemError
    for a class that is not in the tree and for a node that is its own ancestor.

    Examples
    --------
    >>> from topline import tree_margins
    >>> tree_margins(["cat", "dog", "car"], [("cat", "animal"), ("dog", "animal"),
    ...                                      ("animal", "thing"), ("car", "thing")])
    array([[0.  , 0.75, 1.  ],
           [0.75, 0.  , 1.  ],
           [1.  , 1.  , 0.  ]])
    """
    if not 0.0 <= least <= 1.0:
        raise InvalidProblemError(f"least of tree margins is {least!r}; give a number from 0 to 1")
    above: dict[str, list[str]] = {}
    nodes: set[str] = set()
    for child, parent in parents:
        above.setdefault(child, []).append(parent)
        nodes |= {child, parent}
    missing = [name for name in classes if name not in nodes]
    if missing:
        shown = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
        raise InvalidProblemError(f"{len(missing)} classes are not in the tree ({shown}); give their parents")
    heights, members = _heights(classes, above)
    m, highest = len(classes), max(heights.values(), default=0)
    # Lower ancestors overwrite higher ones.
    margins = np.full((m, m), float(highest + 1))
    for node in sorted(members, key=lambda name: -heights[name]):
        own = members[node]
        margins[np.ix_(own, own)] = heights[node]
    margins = _without_diagonal(margins)
    return _without_diagonal(least + (1.0 - least) * margins / max(margins.max(initial=0.0), 1.0))


def _heights(
    classes: Sequence[str], above: Mapping[str, Sequence[str]]
) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Return the height of each node above a class, and the classes at or below it."""
    heights: dict[str, int] = {}
    members: dict[str, list[int]] = {}
    for label, name in enumerate(classes):
        # Longest path up: a node is visited again when a longer path reaches it.
        reached, waiting = {name: 0}, [(name, 0)]
        while waiting:
            node, height = waiting.pop()
            if height < reached[node]:
                continue
            if height > len(above):
                raise InvalidProblemError(f"the tree of classes has a circle above {name}; fix its parents")
            for parent in above.get(node, ()):
                if reached.get(parent, -1) < height + 1:
                    reached[parent] = height + 1
                    waiting.append((parent, height + 1))
        for node, height in reached.items():
            heights[node] = max(heights.get(node, 0), height)
            members.setdefault(node, []).append(label)
    return heights, members


def _checked_counts(counts: Any) -> Float64Array:
    try:
        sizes = np.asarray(counts, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidProblemError(f"counts are {counts!r}; give the training rows of each class") from None
    if sizes.ndim != 1 or sizes.size < 2 or not np.isfinite(sizes).all() or sizes.min() < 0:
        raise InvalidProblemError(
            "counts must be the training rows of each of at least 2 classes, none negative"
        )
    return np.maximum(sizes, 1.0)


def _without_diagonal(margins: Float64Array) -> Float64Array:
    np.fill_diagonal(margins, 0.0)
    return margins
