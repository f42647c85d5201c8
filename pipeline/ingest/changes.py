"""Which images changed between two versions of a dataset."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Changes:
    """Images of a listing, against the version before it.

    `new` have a path that was not there, `changed` another content or class at theirs, `gone` are not there
    any more; `described` had a content without features, and `rejected` cannot be used.
    """

    seen: int
    new: int
    changed: int
    gone: int
    described: int
    rejected: int

    def to_dict(self) -> dict[str, int]:
        """Return plain values for JSON."""
        return asdict(self)

    @property
    def any(self) -> bool:
        """Whether anything has changed."""
        return bool(self.new or self.changed or self.gone)


def changes_between(before: pa.Table | None, now: pa.Table) -> Changes:
    """Return what the manifests of two versions differ in; without one before, everything is new."""
    then, known = _images(before), _contents(before)
    images = _images(now)
    status = now["status"].to_pylist()
    kept = images.keys() & then.keys()
    return Changes(
        seen=len(status),
        new=len(images.keys() - then.keys()),
        changed=sum(images[path] != then[path] for path in kept),
        gone=len(then.keys() - images.keys()),
        described=sum(
            digest not in known and word != "rejected"
            for digest, word in zip(now["sha256"].to_pylist(), status, strict=True)
        ),
        rejected=status.count("rejected"),
    )


def _images(table: pa.Table | None) -> dict[str, tuple[str | None, str | None]]:
    """Return content and class of the image at each path."""
    if table is None:
        return {}
    columns = (table[name].to_pylist() for name in ("path", "sha256", "class_name"))
    return {path: (digest, label) for path, digest, label in zip(*columns, strict=True)}


def _contents(table: pa.Table | None) -> set[str | None]:
    """Return contents that there are features of."""
    if table is None:
        return set()
    pairs = zip(table["sha256"].to_pylist(), table["status"].to_pylist(), strict=True)
    return {digest for digest, word in pairs if word != "rejected"}
