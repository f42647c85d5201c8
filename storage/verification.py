"""Checking a whole store: what `topline fsck URL` prints."""

from __future__ import annotations

from storage.findings import Finding
from storage.stores import Store


def verify_store(store: Store, *, deep: bool = True) -> list[Finding]:
    """Everything that is wrong in `store`, worst first; harmless leftovers are marked as such.

    Looks at every dataset, model, checkpoint, history and commit log: presence and sizes of files, and with
    `deep` their digests, shapes, label ranges and agreement with the manifest; `.partial` files, staging
    that was never committed, models never finished, runs and models whose dataset is gone.
    """
    raise NotImplementedError


def sweep(store: Store) -> list[str]:
    """Delete `.partial` files left by killed writers and return their paths; call it when nothing is writing."""
    raise NotImplementedError
