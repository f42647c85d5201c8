"""Certificates: primal, dual and gap of a stored model, recomputed from what is stored.

Losses, domains, conjugates, envelopes, kernel values and sums are implemented here without the solvers, whose
mistakes therefore cannot recur.  Only `recompute` and `objective` share code with training: for reading
models.
"""

from __future__ import annotations

from topline.pipeline.certification.recompute import Certificate, certify, objective
from topline.pipeline.certification.sums import CUT_POINTS, CUT_SHARES, DUAL_W
