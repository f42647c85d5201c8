"""Results that follow from other things in a store: kernel matrices and predictions.

Each lies in a folder of its own, found by a key that stands for everything it follows from.  All of it may be
deleted at any time, and is then computed again.
"""

from __future__ import annotations

from topline.storage.cache.entries import cache_key
from topline.storage.cache.kernels import KernelDraft, StoredKernel
from topline.storage.cache.predictions import PredictionsDraft, StoredPredictions

__all__ = ["KernelDraft", "PredictionsDraft", "StoredKernel", "StoredPredictions", "cache_key"]
