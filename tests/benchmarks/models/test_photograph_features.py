"""The benchmark of the default features runs, and the network's thread does little but the network."""

from __future__ import annotations

from tests.benchmarks.models.photograph_features import main


def test_a_worker_spends_its_time_on_the_network(capsys) -> None:
    spent = main(["--quick"])
    # Both in turns on one machine; 90 % is the bar of the benchmark itself, on 958 images.
    assert spent["network"] / spent["worker"] > 0.7
    assert len(capsys.readouterr().out.splitlines()) == 4
