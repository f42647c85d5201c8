"""What a monitoring system reads: `/metrics` as Prometheus' text, of the same readings as the pages."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from topline.pipeline.dashboard.overview import Overview


def metrics_text(seen: Overview, now: float, free_bytes: int | None) -> bytes:
    """Return the gauges of a store in Prometheus' text format; `now` is in seconds since 1970.

    What is not known has no sample: without a champion there are none of it.
    """
    registry = CollectorRegistry()

    def gauge(name: str, what: str, *labels: str) -> Gauge:
        return Gauge(f"topline_{name}", what, labels, registry=registry)

    gauge("models", "Published models").set(seen.models_in_all)
    gauge("damaged_models", "Models whose records cannot be read").set(len(seen.damaged))
    runs = gauge("runs", "The newest runs, by what became of them", "state")
    for words, number in Counter(run.words.lower() for run in seen.runs).items():
        runs.labels(words).set(number)
    if free_bytes is not None:
        gauge("free_bytes", "Room left where the store lies").set(free_bytes)
    if seen.runs and seen.runs[0].gap is not None:
        gauge("last_run_relative_gap", "Smallest relative gap of the newest run").set(seen.runs[0].gap)
    if seen.decisions:
        entry = seen.decisions[0][0]
        decided = gauge("last_decision_seconds", "Age of the newest decision on a model", "action")
        decided.labels(entry.action).set(now - _seconds(entry.when))
    reign = seen.reigns[-1] if seen.reigns and seen.reigns[-1].until is None else None
    champion = next((line for line in seen.models if line["stage"] == "champion"), None)
    if reign is not None:
        gauge("champion_age_seconds", "Since when the champion is champion").set(now - _seconds(reign.since))
    if champion is not None:
        certified = gauge("champion_certified", "Whether the champion's gap is certified")
        certified.set(bool(champion["certified"]))
        if champion["relative_gap"] is not None:
            gauge("champion_relative_gap", "Relative gap of its certificate").set(champion["relative_gap"])
        accuracy = gauge("champion_accuracy", "What was measured of the champion on held-out rows", "metric")
        for name, value in champion["metrics"].items():
            accuracy.labels(name).set(value)
    return generate_latest(registry)


def _seconds(when: str) -> float:
    return datetime.fromisoformat(when).timestamp()
