"""What every loss must do; a test class inherits one of these and provides the fixture `loss`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import linprog

from tests.reference import losses as reference
from topline import Loss
from topline.solvers.losses import loss_from_dict
from topline.solvers.losses.ranking import B_U, LOSS, N_SUMS, U_SQ, RankRule, rank_rows
from topline.solvers.losses.rows import gradient_rows


class LossContract:
    """Inherit it and define a fixture `loss` for 5 classes; override `form` and `truth` for label sets."""

    m = 5

    @pytest.fixture
    def loss(self) -> Loss:
        raise NotImplementedError

    def form(self, loss):
        """Give the form; a loss of label sets needs them."""
        return loss.form(self.m)

    def truth(self, label):
        """Give what the number `label` means to the reference: a class, or an array of labels."""
        return label

    def found(self, loss, scores, y):
        """Give the dense U and the sums that the kernel of gradients finds."""
        form = self.form(loss)
        U, sums = np.empty(scores.shape), np.zeros(N_SUMS)
        gradient_rows(form, scores, y.astype(np.int32), np.ones(len(y)), (0.0, 0.0), U, sums)
        return U, sums

    def draw(self, scale=1.5, n=200):
        random = np.random.default_rng(11)
        return scale * random.standard_normal((n, self.m)), random.integers(0, self.m, n)

    def inside(self, loss, label, count=20):
        """Give rows of the domain: mixtures of gradients at scores near and far."""
        random = np.random.default_rng(5)
        far = 1.5 if self.form(loss).family.bounded else 0.0
        scores = random.standard_normal((30, self.m)) * 10.0 ** random.uniform(-1, far, (30, 1))
        corners = np.array([reference.gradient(loss, s, self.truth(label)) for s in scores])
        return random.dirichlet(np.full(30, 0.2), count) @ corners

    def test_the_kernel_gives_the_definition(self, loss: Loss) -> None:
        scores, y = self.draw()
        _, sums = self.found(loss, scores, y)
        expected = sum(
            reference.sorted_loss(loss, s, self.truth(label)) for s, label in zip(scores, y, strict=True)
        )
        assert sums[LOSS] == pytest.approx(expected, rel=1e-13)

    def test_the_row_is_the_slope_of_the_definition(self, loss: Loss) -> None:
        """Central differences, at scores drawn so that none lies within 1e-6 of a kink."""
        scores, y = self.draw(n=30)
        U, _ = self.found(loss, scores, y)
        eps = 1e-6
        for s, label, u in zip(scores, y, U, strict=True):
            for j, step in enumerate(eps * np.eye(self.m)):
                ends = [reference.sorted_loss(loss, s + sign * step, self.truth(label)) for sign in (1, -1)]
                rounding = 1e-8 * max(1.0, ends[0])
                assert (ends[0] - ends[1]) / (2 * eps) == pytest.approx(-u[j], abs=rounding)

    def test_loss_and_conjugate_bound_the_product(self, loss: Loss) -> None:
        """Phi(s) + Phi*(-alpha) >= -<alpha, s> on the domain, with equality where alpha = -grad Phi(s)."""
        if not self.form(loss).convex:
            return
        scores, y = self.draw(n=40)
        for label in range(self.m):
            rows = self.inside(loss, label)
            conjugates = np.array(
                [reference.minus_conjugate(loss, alpha, self.truth(label)) for alpha in rows]
            )
            values = np.array([reference.sorted_loss(loss, s, self.truth(label)) for s in scores])
            assert (values[:, None] + scores @ rows.T - conjugates).min() > -1e-12 * max(1.0, values.max())
        U, sums = self.found(loss, scores, y)
        total = 0.0
        for s, label, u in zip(scores, y, U, strict=True):
            conjugate = reference.minus_conjugate(loss, u, self.truth(label))
            value = reference.sorted_loss(loss, s, self.truth(label))
            assert conjugate - u @ s == pytest.approx(value, rel=1e-12, abs=1e-12)
            total += conjugate
        assert sums[B_U] == pytest.approx(total, rel=1e-12)
        assert sums[U_SQ] == pytest.approx(np.sum(U**2), rel=1e-13)

    def test_the_conjugate_of_the_kernel_on_the_whole_domain(self, loss: Loss) -> None:
        form = self.form(loss)
        for label in range(self.m) if form.convex else []:
            for alpha in self.inside(loss, label):
                assert reference.infeasibility(loss, alpha, self.truth(label)) <= 1e-12
                got = form.conjugate(alpha, label, form.table)
                expected = reference.minus_conjugate(loss, alpha, self.truth(label))
                assert got == pytest.approx(expected, rel=1e-13, abs=1e-13)

    def test_a_loss_without_a_dual_is_not_convex_and_any_other_is(self, loss: Loss) -> None:
        """Phi at the middle of two scores against the mean of both ends."""
        random = np.random.default_rng(2)
        ends = 3.0 * random.standard_normal((2, 400, self.m))
        excess = [
            reference.sorted_loss(loss, 0.5 * (s + t), self.truth(1))
            - 0.5
            * (reference.sorted_loss(loss, s, self.truth(1)) + reference.sorted_loss(loss, t, self.truth(1)))
            for s, t in zip(*ends, strict=True)
        ]
        assert (max(excess) <= 1e-12) == self.form(loss).convex

    def test_it_survives_json(self, loss: Loss) -> None:
        again = loss_from_dict(json.loads(json.dumps(loss.to_dict())))
        assert again == loss
        assert hash(again) == hash(loss)
        assert isinstance(again, Loss)
        assert self.form(again).family is self.form(loss).family


class HingeContract(LossContract):
    """Of a piecewise linear loss, whose rows are vertices of a polytope."""

    def ranked(self, loss, scores, y):
        """Give the dense U and the sums that the kernel of ranks finds."""
        form = self.form(loss)
        ranked = np.zeros((len(y), len(form.rho)), dtype=np.int32)
        counts, sums = np.zeros(len(y), dtype=np.int32), np.zeros(N_SUMS)
        rule = RankRule(form.rho, *form.ranks, 1.0, form.table)
        rank_rows(scores.copy(), y.astype(np.int32), np.ones(len(y)), rule, ranked, counts, sums)
        U = np.zeros(scores.shape)
        for i, label in enumerate(y):
            for j in range(counts[i]):
                U[i, ranked[i, j]] -= form.rho[j]
            U[i, label] = 0.0
            U[i, label] = -U[i].sum()
        return U, sums

    def test_the_definition_is_the_largest_over_all_vertices(self, loss: Loss) -> None:
        scores, y = self.draw(n=40)
        for s, label in zip(scores, y, strict=True):
            brute = reference.brute_loss(loss, s, self.truth(label))
            assert reference.sorted_loss(loss, s, self.truth(label)) == pytest.approx(brute, abs=1e-13)

    def test_the_domain_is_the_hull_of_the_vertices(self, loss: Loss) -> None:
        """By linear programs: a row inside by the closed form is a mixture of vertices, one outside not."""
        random = np.random.default_rng(3)
        corners = reference.vertices(loss, self.truth(1), self.m)
        seen = set()
        for row in self.inside(loss, 1, 30):
            alpha = row * random.uniform(0.9, 1.3)
            if self.form(loss).sparse_vertices:
                alpha[1] -= alpha.sum()
            outside = reference.infeasibility(loss, alpha, self.truth(1))
            if abs(outside) < 1e-9:
                continue
            system = np.vstack([corners.T, np.ones(len(corners))])
            mixture = linprog(np.zeros(len(corners)), A_eq=system, b_eq=np.append(alpha, 1.0))
            assert (mixture.status == 0) == (outside < 0)
            seen.add(mixture.status == 0)
        assert False in seen

    def test_the_vertices_by_rank_are_those_of_the_gradients(self, loss: Loss) -> None:
        """Both kernels find one vertex of the domain, with its sums."""
        scores, y = self.draw(n=60)
        U, sums = self.found(loss, scores, y)
        for s, label, u in zip(scores, y, U, strict=True):
            assert np.abs(reference.vertices(loss, self.truth(label), self.m) - u).sum(axis=1).min() < 1e-13
            assert u == pytest.approx(reference.vertex(loss, s, self.truth(label)), abs=1e-13)
        if self.form(loss).sparse_vertices:
            ranked, ranked_sums = self.ranked(loss, scores, y)
            np.testing.assert_allclose(ranked, U, atol=1e-15)
            np.testing.assert_allclose(ranked_sums, sums, rtol=1e-13)

    def test_zero_scores_are_ranked_by_class(self, loss: Loss) -> None:
        """Ties go to the lower class, so that a first round does not depend on rounding."""
        form = self.form(loss)
        if not form.sparse_vertices:
            return
        y = np.arange(self.m)
        U, _ = self.ranked(loss, np.zeros((self.m, self.m)), y)
        again, _ = self.ranked(loss, np.zeros((self.m, self.m), dtype=np.float32), y)
        np.testing.assert_array_equal(U, again)
        if form.margins is None:
            others = -U[self.m - 1, : self.m - 1]
            assert (np.diff(others) <= 0).all()
