"""How far data has moved: the distribution of each feature, the balance of the classes, and the classes.

A feature is measured by its population stability index.  The quantiles of the rows before cut its values into
bins, p and q are the shares of the rows before and now in them, and

    PSI = sum over the bins of (q - p) log(q / p)

Read as usual: below 0.1 nothing changed, above 0.25 the feature has moved.  Two sets of n and n' rows
of one distribution have an index of (bins - 1) (1/n + 1/n') on average; few rows have fewer bins than 10, so
that this stays below 0.05.  A share counts as half a row at least, and 1e-4 at least, so that an empty bin
has a finite part.  Class balance moves by the total variation distance: the share of rows that would have to
change class.

Drift that no feature shows on its own is seen by whether a classifier can tell new rows from those before.
Ridge regression on the sign of the side, features standardised, is fitted on every second row and scores the
others, and the other way round.  The ROC area of the scores is the share of pairs, one row of each side, that
it puts in the right order.

Classes are compared by name first.  A class whose name is gone is identified by its contents: if at least
four in five of its remaining images now share one other class, it was renamed to that class, or merged into
it if that class existed before or took in others too.  Without contents (imported features) it was removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse

from topline.pipeline.errors import InputError
from topline.pipeline.rows import TrainingRows
from topline.storage.records import PlainRecord

MOST_ROWS = 1000
#: With fewer rows on a side an area says nothing.
LEAST_ROWS = 20
_RIDGE = 1.0


def domain_samples(before: TrainingRows, now: TrainingRows) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return some rows of each side, dense; of those now only the ones new by id, if there are enough."""
    ids = before.dataset.sample_ids()
    known = {ids[row] for row in before.indices}
    own = now.dataset.sample_ids()
    new = np.flatnonzero([own[row] not in known for row in now.indices])
    chosen = new if len(new) >= LEAST_ROWS else np.arange(len(now))
    return _sampled_rows(before, np.arange(len(before))), _sampled_rows(now, chosen)


def domain_area(before: NDArray[Any], now: NDArray[Any]) -> float | None:
    """Return the ROC area of a classifier of two sets of rows, (r, d) and (s, d); None where one is small."""
    if min(len(before), len(now)) < LEAST_ROWS:
        return None
    X = np.concatenate([before, now]).astype(np.float64)
    X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-12)
    sign = np.concatenate([-np.ones(len(before)), np.ones(len(now))])
    halves = np.concatenate([np.arange(len(before)), np.arange(len(now))]) % 2 == 0
    return float(np.mean([_area(X, sign, fitted) for fitted in (halves, ~halves)]))


def _area(X: NDArray[np.float64], sign: NDArray[np.float64], fitted: NDArray[np.bool_]) -> float:
    """Return the area of the rows that are not `fitted`, under a classifier of those that are."""
    from sklearn.linear_model import Ridge
    from sklearn.metrics import roc_auc_score

    A, y = X[fitted], sign[fitted]
    # Both sides weigh the same.
    weight = np.where(y > 0, 0.5 / (y > 0).mean(), 0.5 / (y < 0).mean())
    ridge = Ridge(_RIDGE * A.shape[1], fit_intercept=False).fit(A, y, weight)
    return float(roc_auc_score(sign[~fitted] > 0, ridge.predict(X[~fitted])))


def _sampled_rows(rows: TrainingRows, chosen: NDArray[np.int64]) -> NDArray[Any]:
    """Return rows at some places, evenly spread over these, without transforms."""
    step = max(1, -(-len(chosen) // MOST_ROWS))
    found: Any = rows.at(chosen[::step], None).whole()
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found)


BINS = 10
# Index that chance alone may give on average.
BY_CHANCE = 0.05
LEAST_SHARE = 1e-4
# A feature counts so much at most: one that was constant and now is not would drown all others.
PSI_AT_MOST = 2.5
SHIFTED = 0.25
WORST_SHOWN = 5
# Quantiles are those of so many rows at most, spread evenly over all, and of so many bytes.
SAMPLE_ROWS = 10_000
SAMPLE_BYTES = 1 << 27

#: Every call starts another pass over tiles of rows (r, d), dense or CSR.
Tiles = Callable[[], Iterable[Any]]


@dataclass(frozen=True)
class Drift(PlainRecord):
    """What changed between the rows that two models were trained on, or any two sets of rows.

    `features` is the mean PSI, `shifted` the share above 0.25 and `worst` the places of the largest, all None
    for other features.  `classes` is the total variation distance of class shares, and `domain` the ROC area
    of a classifier of new and earlier rows: 0.5 if nothing tells them apart.
    """

    classes: float
    features: float | None
    shifted: float | None
    worst: tuple[int, ...] | None
    rows_before: int
    rows_now: int
    domain: float | None = None


def bins_for(before: int, now: int) -> int:
    """Return how many bins are used for so many rows before and now: 10, or fewer, and 2 at least."""
    return int(min(BINS, max(2, 1 + BY_CHANCE / (1 / max(1, before) + 1 / max(1, now)))))


def stability_index(before: Tiles, now: Tiles, n: int, bins: int = BINS) -> NDArray[np.float64]:
    """Return the PSI of each feature (d,), at most `PSI_AT_MOST`; raise `InputError` without rows."""
    edges = quantile_edges(before(), n, bins)
    p, q = (_shares(tiles(), edges) for tiles in (before, now))
    return np.asarray(np.minimum(((q - p) * np.log(q / p)).sum(axis=0), PSI_AT_MOST))


def quantile_edges(tiles: Iterable[Any], n: int, bins: int = BINS) -> NDArray[Any]:
    """Return the inner edges of the bins (bins - 1, d): quantiles of `n` rows or a fixed sample of them."""
    sample: list[NDArray[Any]] = []
    begun = 0
    for X in tiles:
        most = min(SAMPLE_ROWS, max(1, SAMPLE_BYTES // (4 * X.shape[1])))
        wanted = np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))
        own = wanted[(begun <= wanted) & (wanted < begun + X.shape[0])] - begun
        rows: Any = X[own]
        sample.append(np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows.copy()))
        begun += X.shape[0]
    if not begun:
        raise InputError("there are no rows whose drift could be measured")
    shares = np.arange(1, bins) / bins
    return np.asarray(np.quantile(np.concatenate(sample), shares, axis=0, method="lower"))


def _shares(tiles: Iterable[Any], edges: NDArray[Any]) -> NDArray[np.float64]:
    """Return the share of rows in each bin of each feature, (bins, d); a value at an edge is below it."""
    above = np.zeros((len(edges) + 2, edges.shape[1]), dtype=np.int64)
    for X in tiles:
        above[0] += X.shape[0]
        for place, edge in enumerate(edges, start=1):
            above[place] += _count_above(X, edge)
    n = int(above[0, 0])
    if not n:
        raise InputError("there are no rows whose drift could be measured")
    return np.maximum(-np.diff(above, axis=0) / n, max(LEAST_SHARE, 0.5 / n))


def _count_above(X: Any, edge: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many of the rows X (r, d) lie above `edge` (d,), by feature."""
    stored: Any = X
    if not sparse.issparse(X):
        return np.asarray(np.count_nonzero(stored > edge, axis=0))
    columns, d = stored.indices, stored.shape[1]
    zeros = stored.shape[0] - np.bincount(columns, minlength=d)
    larger = np.bincount(columns[stored.data > edge[columns]], minlength=d)
    return np.asarray(larger + np.where(edge < 0, zeros, 0))


def class_shares(labels: NDArray[Any], class_names: Sequence[str]) -> dict[str, float]:
    """Return the share of the rows in each class, by name."""
    counts = np.bincount(labels, minlength=len(class_names)) / max(1, len(labels))
    return dict(zip(class_names, counts.tolist(), strict=True))


def balance_change(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """Return the total variation distance of class shares; a class that a side lacks is 0 there."""
    names = before.keys() | now.keys()
    return 0.5 * sum(abs(before.get(name, 0.0) - now.get(name, 0.0)) for name in names)


def drift_between(before: TrainingRows, now: TrainingRows, changes: ClassChanges | None = None) -> Drift:
    """Return the drift of features, if comparable, and classes, of the common ones with `changes`."""
    names = (before.dataset.class_names, now.dataset.class_names)
    shares = [class_shares(rows.labels(), own) for rows, own in zip((before, now), names, strict=True)]
    if changes is not None:
        shares = [changes.shares(own, before=side == 0) for side, own in enumerate(shares)]
    features, shifted, worst = None, None, None
    if before.dataset.info.d == now.dataset.info.d:
        bins = bins_for(len(before), len(now))
        psi = stability_index(_raw_tiles(before), _raw_tiles(now), len(before), bins)
        features, shifted = float(psi.mean()), float(np.mean(psi > SHIFTED))
        worst = tuple(np.argsort(-psi, kind="stable")[:WORST_SHOWN].tolist())
    domain = None if features is None else domain_area(*domain_samples(before, now))
    return Drift(balance_change(*shares), features, shifted, worst, len(before), len(now), domain)


def _raw_tiles(rows: TrainingRows) -> Tiles:
    return lambda: (rows.raw_batch(batch) for batch in range(rows.batches))


MOVED_SHARE = 0.8
_NAMED = 5


@dataclass(frozen=True)
class ClassChanges:
    """Changes from the champion's classes to the challenger's.

    `renamed` and `merged` are pairs of old and new names, `common` the challenger's classes that both know,
    `kept` the share of the champion's classes that went into them.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    merged: tuple[tuple[str, str], ...]
    common: tuple[str, ...]
    kept: float

    @property
    def any(self) -> bool:
        """Whether the classes differ."""
        return bool(self.added or self.removed or self.renamed or self.merged)

    @property
    def lost(self) -> tuple[str, ...]:
        """The champion's names that the challenger lacks, for whatever reason."""
        return (*self.removed, *(old for old, _ in (*self.renamed, *self.merged)))

    def shares(self, shares: Mapping[str, float], *, before: bool) -> dict[str, float]:
        """Return the shares of the common classes among themselves, by the challenger's names."""
        moved = dict((*self.renamed, *self.merged)) if before else {}
        found = dict.fromkeys(self.common, 0.0)
        for name, share in shares.items():
            if moved.get(name, name) in found:
                found[moved.get(name, name)] += share
        total = sum(found.values()) or 1.0
        return {name: share / total for name, share in found.items()}

    def sources(self, name: str, champion: Sequence[str]) -> tuple[str, ...]:
        """Return the champion's classes that correspond to a class of the challenger."""
        own = (name,) if name in champion else ()
        return (*own, *(old for old, new in (*self.renamed, *self.merged) if new == name))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "common": len(self.common)}

    def __str__(self) -> str:
        renamed = tuple(f"{old} to {new}" for old, new in self.renamed)
        merged = tuple(f"{old} into {new}" for old, new in self.merged)
        parts = {"gone": self.removed, "new": self.added, "renamed": renamed, "merged": merged}
        return "; ".join(f"{word} {_first_names(names)}" for word, names in parts.items() if names)


def class_changes(
    champion: Sequence[str], challenger: Sequence[str], before: pa.Table | None, now: pa.Table | None
) -> ClassChanges:
    """Return the changes from the champion's classes; the tables are the manifests of the two datasets."""
    found = {} if before is None or now is None else _moved_contents(before, now)
    goals = {old: _successor(found.get(old, Counter())) for old in champion if old not in challenger}
    moved = {old: new for old, new in goals.items() if new in challenger}
    sources = Counter(moved.values())
    renamed = tuple(
        (old, str(new)) for old, new in moved.items() if new not in champion and sources[new] == 1
    )
    merged = tuple((old, str(new)) for old, new in moved.items() if (old, new) not in renamed)
    common = tuple(name for name in challenger if name in champion or name in sources)
    removed = tuple(old for old in goals if old not in moved)
    added = tuple(name for name in challenger if name not in common)
    kept = 1 - len(removed) / max(1, len(champion))
    return ClassChanges(added, removed, renamed, merged, common, kept)


def _moved_contents(before: pa.Table, now: pa.Table) -> Mapping[str, Counter[str]]:
    """Return, for each class, how many of its contents are in which class now."""
    found: dict[str, Counter[str]] = {}
    rows, later = (table.select(["sha256", "class_name"]).to_pylist() for table in (before, now))
    classes = {row["sha256"]: row["class_name"] for row in later if row["sha256"] and row["class_name"]}
    for row in rows:
        goal = classes.get(row["sha256"])
        if goal is not None and row["class_name"] is not None:
            found.setdefault(row["class_name"], Counter())[goal] += 1
    return found


def _successor(found: Counter[str]) -> str | None:
    """Return the class that nearly all contents are in now, or None."""
    if not found:
        return None
    name, count = found.most_common(1)[0]
    return name if count >= MOVED_SHARE * found.total() else None


def _first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
