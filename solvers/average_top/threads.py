"""How many threads products may have."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

#: Multiplications a round below which threads of BLAS wait for each other longer than one takes alone.
_SMALL_ROUND = 1e8


def blas_threads(multiplications: float) -> AbstractContextManager[Any]:
    """Give a context with one thread of BLAS for small rounds, and as many as there are for others."""
    limited: AbstractContextManager[Any] = _blas().limit(
        limits=1 if multiplications < _SMALL_ROUND else None, user_api="blas"
    )
    return limited


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()
