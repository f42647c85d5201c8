"""A page that draws how CPU time and memory of exact kernels grow with the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from topline.pipeline.pages import environment, make_page
from topline.pipeline.pages.charts import Series, line_chart

if TYPE_CHECKING:
    from tests.benchmarks.kernels.rbf_machines import Cost

MIB = 1 << 20
#: What is drawn of a training: a title, the unit, and where it is found.
COLUMNS: tuple[tuple[str, str, Callable[[Cost], float]], ...] = (
    ("CPU time of all processes", "seconds", lambda cost: cost.cpu),
    ("memory of all processes", "MiB", lambda cost: cost.all_bytes / MIB),
    ("memory of the coordinator alone", "MiB", lambda cost: cost.coordinator_rss / MIB),
)
PAGE = """{% extends "page.html.j2" %}
{% block title %}Topline: what exact kernels grow with{% endblock %}
{% block head %}
<p class="over">Topline, exact kernels on workers</p>
<h1>CPU time and memory against rows</h1>
<p class="sub">PSS of all processes at its most; the coordinator's own RSS, libraries included.</p>
{% endblock %}
{% block main %}
<section><div class="grid">
{% for title, chart in charts %}<figure><figcaption>{{ title }}</figcaption>{{ chart }}</figure>
{% endfor %}</div></section>
<section><h2>Powers of n that fit best</h2>
<ul>{% for line in growth %}<li>{{ line }}</li>{% endfor %}</ul></section>
<section><h2>Trainings</h2>
<table class="list"><thead><tr><th>Problem</th><th class="n">rows</th><th class="n">certified gap</th>
{% for title, unit, _ in columns %}<th class="n">{{ title }}, {{ unit }}</th>{% endfor %}</tr></thead>
<tbody>{% for cost in costs %}
<tr><td>{{ cost.name }}</td><td class="n">{{ "{:,}".format(cost.n) }}</td>
<td class="n">{{ "%.1e"|format(cost.gap) }}</td>
{% for _, _, value in columns %}<td class="n">{{ "{:,.1f}".format(value(cost)) }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></section>
{% endblock %}
"""


def write_page(path: Path, costs: Sequence[Cost], growth: Sequence[str]) -> None:
    """Write the page of some trainings, with what is said of their growth; one that is there is replaced."""
    page = make_page(
        environment().from_string(PAGE),
        charts=[(title, chart(costs, f"{title}, {unit}", value)) for title, unit, value in COLUMNS],
        columns=COLUMNS,
        costs=costs,
        growth=growth,
    )
    path.write_text(page.html, encoding="utf-8")


def chart(costs: Sequence[Cost], label: str, value: Callable[[Cost], float]) -> Markup:
    """Draw one column of all problems against their rows; memory, which hardly grows, by its ratios."""
    lines = []
    for style, name in enumerate(dict.fromkeys(cost.name for cost in costs), start=1):
        of_name = [cost for cost in costs if cost.name == name]
        points = [value(cost) for cost in of_name]
        lines.append(Series.of(name, [cost.n / 1000 for cost in of_name], points, style, positive=True))
    return line_chart(lines, x_label="thousands of rows", y_label=label, log="memory" in label)
