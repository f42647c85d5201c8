"""Nothing is lost in a bucket behind a bad network: a little of every trial here, more by the program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.s3_faults import TRIALS, run
from tests.storage.bucket import SERVERS, served_bucket


@pytest.fixture(scope="module", params=list(SERVERS))
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    with served_bucket(request.param) as name:
        yield name


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", TRIALS)
def test_what_was_acknowledged_is_there(bucket: str, what: str) -> None:
    trial = run(what, 1, bucket, each=2)
    assert trial.lost == []
    assert trial.proxy.met.total() > 0


@pytest.mark.parametrize("fault", ["lost", "late error"])
@pytest.mark.parametrize("what", ["commits", "leases", "publications", "answers"])
def test_a_write_whose_answer_was_lost_is_ones_own(bucket: str, what: str, fault: str) -> None:
    """The driver writes again and finds the name taken: that is not somebody else's."""
    trial = run(what, 0, bucket, each=1, faults=(fault,), puts_if_absent=True)
    assert trial.lost == []
    assert trial.proxy.met.total() > 0
