"""Solver errors; each message is one sentence addressed to the caller."""

from __future__ import annotations


class SolverError(Exception):
    """Base of all deliberate solver errors.

    Examples
    --------
    >>> from topline import SolverError, InvalidProblemError, NonFiniteError
    >>> issubclass(InvalidProblemError, SolverError) and issubclass(NonFiniteError, SolverError)
    True
    """


class InvalidProblemError(SolverError, ValueError):
    """The data or a parameter do not define a valid problem.

    Examples
    --------
    >>> from topline import flat
    >>> flat(0)
    Traceback (most recent call last):
        ...
    topline.solvers.errors.InvalidProblemError: k is 0; give a whole number of at least 1
    """


class UnsupportedCombinationError(SolverError, ValueError):
    """Each part is valid, but the combination is not supported.

    Examples
    --------
    >>> from topline import Softmax
    >>> from topline.solvers.core.problem import Problem
    >>> Problem(Softmax(), n=10, d=4, m=3, lam=0.1, smoothing=1.0)
    Traceback (most recent call last):
        ...
    topline.solvers.errors.UnsupportedCombinationError: the loss softmax is smooth as it is; leave ...
    """


class NonFiniteError(SolverError, ArithmeticError):
    """NaN or infinity where a number was expected.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, solve
    >>> solve(np.full((3, 2), np.nan), np.arange(3), MaxHinge(), lam=0.1)
    Traceback (most recent call last):
        ...
    topline.solvers.errors.NonFiniteError: the features of rows 0, 1, 2 hold NaN or infinity; ...
    """


class CertificateError(SolverError, ArithmeticError):
    """A duality gap below zero by more than rounding: the numbers must not be trusted.

    Examples
    --------
    >>> from topline import CertificateError, SolverError
    >>> issubclass(CertificateError, SolverError)
    True
    """


class StateLostError(SolverError, RuntimeError):
    """Dual variables of a block are lost and were not saved."""


class DualsReplacedError(StateLostError):
    """Lost dual variables were replaced by other feasible ones: rebuild W, b and |A|^2."""
