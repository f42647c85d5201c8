"""The smooth losses straight from their definitions: values, gradients and conjugates of one example."""

from __future__ import annotations

import numpy as np
from scipy.special import entr, expit, logsumexp, softmax

from tests.reference import multilabel
from tests.reference.columns import alpha_row
from tests.reference.hinges import signs_of
from topline.solvers.losses import (
    LDRKL,
    MultilabelSoftmax,
    OneVsAll,
    Softmax,
    SumExponential,
    TopKEntropy,
    TruncatedTopKEntropy,
)

SMOOTH = (Softmax, LDRKL, SumExponential, TopKEntropy, TruncatedTopKEntropy, MultilabelSoftmax)


def is_smooth(loss):
    """Say whether the loss is one of these."""
    return isinstance(loss, SMOOTH) or loss == OneVsAll("logistic")


def guesses_of(loss):
    """Give k, which is 1 for the softmax loss."""
    return loss.to_dict().get("k", 1)


def smooth_value(loss, s, y):
    """Give Phi(s; y)."""
    m = len(s)
    if isinstance(loss, OneVsAll):
        return float(np.logaddexp(0.0, -signs_of(y, m) * s).sum())
    if isinstance(loss, MultilabelSoftmax):
        return multilabel.entropy_value(s, y)
    a = np.delete(s - s[y], y)
    if isinstance(loss, SumExponential):
        return float(np.exp(a).sum())
    if isinstance(loss, LDRKL):
        return float(loss.temperature * logsumexp(np.append((1.0 + a) / loss.temperature, 0.0)))
    if isinstance(loss, TopKEntropy):
        return topk_entropy(a, loss.k)[0]
    a = np.sort(a)[: m - guesses_of(loss)]
    return float(np.logaddexp(0.0, logsumexp(a)))


def smooth_gradient(loss, s, y):
    """Give u = -grad Phi(s)."""
    m = len(s)
    if isinstance(loss, OneVsAll):
        z = signs_of(y, m)
        return z * expit(-z * s)
    if isinstance(loss, MultilabelSoftmax):
        return multilabel.entropy_gradient(s, y)
    a = s - s[y]
    if isinstance(loss, TopKEntropy):
        return alpha_row(np.insert(topk_entropy(np.delete(a, y), loss.k)[1], y, 0.0), y)
    if isinstance(loss, SumExponential):
        return alpha_row(np.where(np.arange(m) == y, 0.0, np.exp(a)), y)
    if isinstance(loss, LDRKL):
        p = softmax((a + (np.arange(m) != y)) / loss.temperature)
        return alpha_row(np.where(np.arange(m) == y, 0.0, p), y)
    rest = np.delete(np.arange(m), y)
    # Of equals the lower classes are the higher ones.
    rest = rest[np.argsort(-a[rest], kind="stable")][guesses_of(loss) - 1 :]
    beta = np.zeros(m)
    beta[rest] = softmax(np.append(a[rest], 0.0))[:-1]
    return alpha_row(beta, y)


def topk_entropy(a, k):
    """Give the top-k entropy loss of the others' a_j = s_j - s_y, and x = its gradient in them.

    It is the largest <a, x> - sum x log x - (1 - S) log(1 - S) with x >= 0, S = sum x <= 1, x_j <= S / k.
    With the u highest held at S / k and no cap on the rest, which then is S q softmax(a_rest) with
    q = (k - u) / k, this is S G + H(S), G = (sum of the u highest) / k + q (log sum exp a_rest - log q) +
    (u / k) log k, at most log(1 + e^G).  So of all u whose rest keeps below the cap the best one is the loss.
    """
    order = np.argsort(-a, kind="stable")
    highest, weights = -np.inf, None
    for u in range(k):
        top, rest = a[order[:u]], a[order[u:]]
        q = (k - u) / k
        shares = q * softmax(rest)
        if shares.max() > (1.0 + 1e-12) / k:
            continue
        level = top.sum() / k + q * (logsumexp(rest) - np.log(q)) + u / k * np.log(k)
        if level > highest:
            x = np.empty(len(a))
            x[order] = expit(level) * np.append(np.full(u, 1.0 / k), shares)
            highest, weights = level, x
    return float(np.logaddexp(0.0, highest)), weights


def smooth_conjugate(loss, alpha, y):
    """Give -Phi*(-alpha) of a dual row inside its domain."""
    if isinstance(loss, OneVsAll):
        a = np.clip(signs_of(y, len(alpha)) * alpha, 0.0, 1.0)
        return float(np.sum(entr(a) + entr(1.0 - a)))
    if isinstance(loss, MultilabelSoftmax):
        return multilabel.entropy_conjugate(alpha, y)
    x = np.maximum(-np.delete(alpha, y), 0.0)
    if isinstance(loss, SumExponential):
        return float(np.sum(x + entr(x)))
    # The entropy of a rest near 1 has its digits in what is missing to 1.
    rest = max(0.0, 1.0 - x.sum())
    entropy = float(entr(x).sum() - (rest * np.log1p(-x.sum()) if rest > 0.0 else 0.0))
    return loss.temperature * entropy + float(x.sum()) if isinstance(loss, LDRKL) else entropy


def smooth_infeasibility(loss, alpha, y):
    """Give by how much a dual row leaves the domain of the conjugate, at most 0 inside."""
    if isinstance(loss, OneVsAll):
        a = signs_of(y, len(alpha)) * alpha
        return max(-a.min(), a.max() - 1.0)
    if isinstance(loss, MultilabelSoftmax):
        return multilabel.entropy_infeasibility(alpha, y)
    x = -np.delete(alpha, y)
    total = x.sum()
    if isinstance(loss, SumExponential):
        return max(-x.min(), abs(alpha.sum()) / max(total, 1.0))
    return max(-x.min(), total - 1.0, x.max() - total / guesses_of(loss), abs(alpha.sum()))
