"""Errors of the solvers; each message is one sentence for the person who called."""

from __future__ import annotations


class SolverError(Exception):
    """Base of everything that the solvers raise on purpose."""


class InvalidProblemError(SolverError, ValueError):
    """The data or a parameter cannot make a problem."""


class UnsupportedCombinationError(SolverError, ValueError):
    """Each part is fine, together they are not offered."""


class NonFiniteError(SolverError, ArithmeticError):
    """NaN or infinity where a number was expected."""


class CertificateError(SolverError, ArithmeticError):
    """A duality gap below zero by more than rounding: the numbers must not be trusted."""


class StateLostError(SolverError, RuntimeError):
    """Dual variables that a block held are gone and were not saved."""


class DualsReplacedError(StateLostError):
    """Some dual variables are gone and others, feasible too, took their place: rebuild W, b and |A|^2."""
