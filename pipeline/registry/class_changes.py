"""How the classes of two models differ: which were added, removed, renamed or merged between their datasets.

Names decide first.  A class whose name is gone is identified by its contents: if at least four in five of its
remaining images now share one other class, it was renamed to that class, or merged into it if that class
existed before or took in others too.  Without contents (imported features) it was removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

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
        parts = (
            ("gone", self.removed),
            ("new", self.added),
            ("renamed", tuple(f"{old} to {new}" for old, new in self.renamed)),
            ("merged", tuple(f"{old} into {new}" for old, new in self.merged)),
        )
        return "; ".join(f"{word} {_named(names)}" for word, names in parts if names)


def class_changes(
    champion: Sequence[str], challenger: Sequence[str], before: pa.Table | None, now: pa.Table | None
) -> ClassChanges:
    """Return the changes from the champion's classes; the tables are the manifests of the two datasets."""
    found = _moves(before, now)
    goals = {old: _goal(found.get(old, Counter())) for old in champion if old not in challenger}
    moved = {old: new for old, new in goals.items() if new in challenger}
    sources = Counter(moved.values())
    renamed = tuple(
        (old, str(new)) for old, new in moved.items() if new not in champion and sources[new] == 1
    )
    merged = tuple((old, str(new)) for old, new in moved.items() if (old, new) not in renamed)
    common = tuple(name for name in challenger if name in champion or name in sources)
    removed = tuple(old for old in goals if old not in moved)
    return ClassChanges(
        added=tuple(name for name in challenger if name not in common),
        removed=removed,
        renamed=renamed,
        merged=merged,
        common=common,
        kept=1 - len(removed) / max(1, len(champion)),
    )


def _moves(before: pa.Table | None, now: pa.Table | None) -> Mapping[str, Counter[str]]:
    """Return, for each class, how many of its contents are in which class now."""
    found: dict[str, Counter[str]] = {}
    if before is None or now is None:
        return found
    tables = [table.select(["sha256", "class_name"]).to_pylist() for table in (before, now)]
    classes = {row["sha256"]: row["class_name"] for row in tables[1] if row["sha256"] and row["class_name"]}
    for row in tables[0]:
        goal = classes.get(row["sha256"])
        if goal is not None and row["class_name"] is not None:
            found.setdefault(row["class_name"], Counter())[goal] += 1
    return found


def _goal(found: Counter[str]) -> str | None:
    """Return the class that nearly all contents are in now, or None."""
    if not found:
        return None
    name, count = found.most_common(1)[0]
    return name if count >= MOVED_SHARE * found.total() else None


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
