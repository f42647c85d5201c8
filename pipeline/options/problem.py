"""The problem that a training run's options mean: its loss, and the risk that sums the losses up."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options.train import TrainConfig
from topline.solvers.core.problem import MEAN_RISK, AverageTopK, Risk
from topline.solvers.losses import Loss, ldam_margins, logit_adjusted_margins, make_loss, tree_margins
from topline.solvers.names import LOSS_RULES, default_k


def resolved_k(loss: str, k: int | None, weights: Any, m: int) -> int | None:
    """Return the k that was asked for, or the default one, which is no more than half of the classes."""
    rule = LOSS_RULES.get(loss)
    if k is not None or rule is None or not rule.takes_k or isinstance(weights, tuple):
        return k
    return default_k(m)


def chosen_loss(config: TrainConfig, m: int, facts: ClassFacts | None = None) -> Loss:
    """Return the loss that the options name for m classes, of which margins by a rule need the `facts`."""
    weights: Any = config.weights
    if weights is None and config.loss.startswith("weighted_"):
        weights = "linear"
    margins = None if config.margins is None else make_margins(config.margins, facts, m)
    return make_loss(config.loss, config.k, weights, margins, config.temperature)


def top_count(config: Mapping[str, Any], n: int) -> float | None:
    """Return k of the average top-k risk, a count or a share of n rows; None for the mean of all losses."""
    asked = config.get("average_top")
    if asked is None:
        return None
    return float(asked) if asked >= 1.0 else float(asked) * n


def chosen_risk(average_top: float | None, n: int) -> Risk:
    """Return the risk that the option means for n rows; raise `ConfigError` if there is none."""
    k = top_count({"average_top": average_top}, n)
    if k is None:
        return MEAN_RISK
    if not 1.0 <= k <= n:
        raise ConfigError(
            f"average_top {average_top:g} is {k:g} of {n} training rows: give a count from 1 to {n}"
            f" or a share from {1.0 / n:.2g} on"
        )
    return AverageTopK(k)


#: Rules that go by the training rows of each class, with the number that each takes where none is given.
BY_SIZE = {"logit-adjusted": (logit_adjusted_margins, 1.0), "ldam": (ldam_margins, 0.25)}
TREE = "tree:"


@dataclass(frozen=True)
class ClassFacts:
    """What margins may go by: the classes in the order of their labels, and the training rows of each."""

    names: Sequence[str]
    counts: Sequence[int]


def make_margins(text: str, facts: ClassFacts | None, m: int) -> NDArray[np.float64]:
    """Return the margins (m, m) that `text` names; raise `InputError` for a bad file or rule."""
    name, _, argument = text.partition(":")
    if name in BY_SIZE:
        rule, default = BY_SIZE[name]
        try:
            number = float(argument) if argument else default
        except ValueError:
            raise InputError(f"margins {text}: give a number, as in {name}:{default:g}") from None
        return rule([1] * m if facts is None else facts.counts, number)
    if text.startswith(TREE):
        pairs = read_tree(Path(argument))
        return 1.0 - np.eye(m) if facts is None else tree_margins(facts.names, pairs)
    return read_margins(Path(text))


def read_margins(path: Path) -> NDArray[np.float64]:
    """Return the m x m matrix in a .npy file or from numbers with commas between them."""
    try:
        if path.suffix.lower() == ".npy":
            return np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
        return np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise InputError(f"margins {path} cannot be read: {error}") from error


def read_tree(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of child and parent in a file, one per line.

    A CSV has child before parent, or a header; WordNet's own form has parent before child with a space
    between.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the tree of classes {path} cannot be read: {error}") from error
    return list(_pairs(path, [line for line in lines if line.strip()]))


def _pairs(path: Path, lines: list[str]) -> Iterator[tuple[str, str]]:
    if not lines:
        raise InputError(f"the tree of classes {path} is empty: give a line of child,parent for each link")
    mark = next((mark for mark in (",", ";", "\t") if mark in lines[0]), None)
    rows: Any = csv.reader(lines, delimiter=mark) if mark else (line.split() for line in lines)
    child, parent = (0, 1) if mark else (1, 0)
    for number, row in enumerate(rows, start=1):
        cells = [cell.strip() for cell in row]
        if len(cells) < 2 or not cells[0] or not cells[1]:
            raise InputError(f"the tree of classes {path}, line {number}: give child and parent, not {row!r}")
        if number == 1 and {"child", "parent"} <= {cell.lower() for cell in cells}:
            child, parent = ([cell.lower() for cell in cells].index(word) for word in ("child", "parent"))
            continue
        yield cells[child], cells[parent]
