"""Checkpoints of a run: named arrays, dual variables and a small record, published in one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from storage.models import RowBlocks
from storage.stores import Store

KEPT = 2
"""So many newest checkpoints of a run are kept."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found whole: `arrays` are read and checked, duals are read when asked for.

    `skipped` names newer checkpoints that were found damaged and passed over.
    """

    run_id: str
    round: int
    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]
    skipped: tuple[str, ...]

    @property
    def has_duals(self) -> bool:
        """Whether dual variables were stored."""
        raise NotImplementedError

    def duals(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1 of the dual variables."""
        raise NotImplementedError

    def dual_blocks(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """All dual variables as (start, stop, rows), in row order."""
        raise NotImplementedError


def save_checkpoint(
    store: Store,
    run_id: str,
    round: int,  # noqa: A002 - the word of the field
    arrays: Mapping[str, NDArray[Any]],
    duals: RowBlocks | None,
    meta: Mapping[str, Any],
) -> None:
    """Publish the state after `round`; older checkpoints than the last two are then deleted.

    `meta` is a JSON object; its "fingerprint" (an object) says what data and configuration it belongs to.
    Writing a round again replaces it.
    """
    raise NotImplementedError


def latest_checkpoint(
    store: Store, run_id: str, *, fingerprint: Mapping[str, Any] | None = None
) -> Checkpoint | None:
    """The newest checkpoint of the run that is whole, None if there is none at all.

    Raises `MismatchError`, naming the keys that differ, if its fingerprint is not `fingerprint`, and
    `IntegrityError` if there are checkpoints but all are damaged.
    """
    raise NotImplementedError
