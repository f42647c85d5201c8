"""A served store with accidents, a few runs long: each waits for the run that meets it, not for a clock."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.harness import until
from tests.chaos.soak import Soak
from tests.pipeline.pictures import photographs
from topline.storage.models import read_standing
from topline.storage.stores import open_store

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(900)]

SCRIPT = (("add", "spoil", "mislabel", "rename", "delete"), ("add", "kill"))


class ScriptedSoak(Soak):
    """A soak whose accidents follow a list."""

    def play(self) -> None:
        """Serve while each entry of the script happens and is met by a run."""
        photographs(self.photos, range(20))
        with self.hook() as address, self.served(address) as serving:
            self.meet(0)
            for things in SCRIPT:
                for thing in things:
                    if thing == "kill":
                        self.kill_a_run(serving)
                    else:
                        assert getattr(self, thing)(serving)
                self.done.update(things)
                self.meet(len(self.events("started")))
            until(lambda: self.decisions_told() == self.decisions_made(), "word of every decision")

    def meet(self, begun: int) -> None:
        """Wait until one run more than `begun` of them has ended, well or not."""
        until(lambda: self.ended() > begun, f"the end of run {begun + 1}")

    def ended(self) -> int:
        return len(self.events("finished")) + len(self.events("failed"))

    def kill_a_run(self, serving: subprocess.Popen[bytes]) -> None:
        """Kill the processes of runs until one was killed before it had ended."""
        failed = len(self.events("failed"))

        def killed() -> bool:
            self.kill(serving)
            return len(self.events("failed")) > failed

        until(killed, "a run that was killed")

    def decisions_told(self) -> Counter[str]:
        return Counter(one["title"].split(":")[0].removeprefix("topline ") for one in self.told) & Counter(
            {"promoted": 10**6, "kept": 10**6}
        )

    def decisions_made(self) -> Counter[str]:
        words = {"promote": "promoted", "keep": "kept"}
        return Counter(words[entry.action] for entry in read_standing(open_store(str(self.store))).entries)


def test_no_accident_makes_a_wrong_decision_or_goes_untold(tmp_path: Path) -> None:
    soak = ScriptedSoak(tmp_path.resolve(), seed=0, every="10s")
    soak.play()
    found = soak.judged()
    assert found["wrong"] == []
    assert found["done"] == {"add": 2, "spoil": 1, "mislabel": 1, "kill": 1, "rename": 1, "delete": 1}
    assert found["told"]["failed"] >= 1
    assert found["decisions"] >= 2
