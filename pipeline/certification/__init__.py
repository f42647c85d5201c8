"""Certificates: primal, dual and gap of a stored model, recomputed in float64 from what is stored.

The losses, domains, conjugates, envelopes, kernel values and sums are the room's own and reach no solver, so
that a mistake of a solver cannot repeat itself here.  Only `recompute` and `objective` read stored models,
with the code that training shares.
"""

from __future__ import annotations

from topline.pipeline.certification.average_top_k import CUT_POINTS, CUT_SHARES, DUAL_W
from topline.pipeline.certification.recompute import Certificate, certify, objective
