"""What every loss must do; a test class inherits this and provides the fixture `loss`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from solvers import Loss, loss_from_dict
from solvers.losses import Family
from solvers.ranking import B_U, LOSS, N_SUMS, U_SQ, rank_rows
from tests.reference.losses import brute_loss, margins_of, sorted_loss, vertices


class LossContract:
    """Inherit it and define a fixture `loss` for 5 classes."""

    m = 5

    @pytest.fixture
    def loss(self) -> Loss:
        raise NotImplementedError

    def ranked(self, loss, scores, y):
        """Give the dense U and the sums that the kernel finds."""
        form = loss.form(self.m)
        ranked = np.zeros((len(y), len(form.rho)), dtype=np.int32)
        counts = np.zeros(len(y), dtype=np.int32)
        sums = np.zeros(N_SUMS)
        margins = np.empty((0, 0)) if form.margins is None else form.margins
        first = form.family is Family.HINGE_THEN_SUM
        rank_rows(
            scores.copy(),
            y.astype(np.int32),
            np.ones(len(y)),
            form.rho,
            first,
            True,
            1.0,
            margins,
            ranked,
            counts,
            sums,
        )
        U = np.zeros(scores.shape)
        for i, label in enumerate(y):
            for j in range(counts[i]):
                U[i, ranked[i, j]] -= form.rho[j]
            U[i, label] = 0.0
            U[i, label] = -U[i].sum()
        return U, sums

    def draw(self, scale=1.5, n=200):
        random = np.random.default_rng(11)
        return scale * random.standard_normal((n, self.m)), random.integers(0, self.m, n)

    def test_the_definition_is_the_largest_over_all_vertices(self, loss: Loss) -> None:
        scores, y = self.draw(n=40)
        for s, label in zip(scores, y, strict=True):
            assert sorted_loss(loss, s, label) == pytest.approx(brute_loss(loss, s, label), abs=1e-13)

    def test_the_kernel_gives_the_definition(self, loss: Loss) -> None:
        scores, y = self.draw()
        _, sums = self.ranked(loss, scores, y)
        expected = sum(sorted_loss(loss, s, label) for s, label in zip(scores, y, strict=True))
        assert sums[LOSS] == pytest.approx(expected, rel=1e-13)

    def test_the_vertex_is_a_subgradient(self, loss: Loss) -> None:
        """Phi(s) = <u, -delta - s>, u is a vertex of the domain, and the sums are those of u."""
        scores, y = self.draw(n=60)
        U, sums = self.ranked(loss, scores, y)
        linear = 0.0
        for s, label, u in zip(scores, y, U, strict=True):
            delta = margins_of(loss, label, self.m)
            assert u @ (-delta - s) == pytest.approx(sorted_loss(loss, s, label), abs=1e-13)
            assert np.abs(vertices(loss, label, self.m) - u).sum(axis=1).min() < 1e-13
            linear -= delta @ u
        assert sums[B_U] == pytest.approx(linear, rel=1e-13)
        assert sums[U_SQ] == pytest.approx(np.sum(U**2), rel=1e-13)

    def test_the_conjugate_is_linear_on_its_domain(self, loss: Loss) -> None:
        """Phi(s) + Phi*(-alpha) >= -<alpha, s> with Phi*(-alpha) = <delta, alpha>, tight at each vertex."""
        random = np.random.default_rng(5)
        scores, _ = self.draw(n=40)
        for label in range(self.m):
            corners = vertices(loss, label, self.m)
            mixtures = random.dirichlet(np.ones(len(corners)), 20) @ corners
            delta = margins_of(loss, label, self.m)
            values = np.array([sorted_loss(loss, s, label) for s in scores])
            slack = values[:, None] + scores @ mixtures.T + mixtures @ delta
            assert slack.min() > -1e-12

    def test_zero_scores_are_ranked_by_class(self, loss: Loss) -> None:
        """Ties go to the lower class, so that a first round does not depend on rounding."""
        y = np.arange(self.m)
        U, _ = self.ranked(loss, np.zeros((self.m, self.m)), y)
        again, _ = self.ranked(loss, np.zeros((self.m, self.m), dtype=np.float32), y)
        np.testing.assert_array_equal(U, again)
        if loss.form(self.m).margins is None:
            others = -U[self.m - 1, : self.m - 1]
            assert (np.diff(others) <= 0).all()

    def test_it_survives_json(self, loss: Loss) -> None:
        again = loss_from_dict(json.loads(json.dumps(loss.to_dict())))
        assert again == loss
        assert hash(again) == hash(loss)
        assert isinstance(again, Loss)
