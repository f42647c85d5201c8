"""The report of a model: certificate, training, accuracy and lineage in one HTML file.

`write_report` gathers it from a store and writes it; `render_report` renders given data.  The charts and text
of a run (`run_section`) are shared with the dashboard.
"""

from __future__ import annotations

from topline.pipeline.report.document import render_report, write_report
from topline.pipeline.report.run_section import logged_lines
