"""The contract on a second S3 server, whose refusals are worded less fully than those of AWS."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.contracts.store_contract import StoreContract
from tests.storage.bucket import served_bucket
from topline.storage.stores import Store, open_store

_numbers = itertools.count()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with served_bucket("localbucket") as name:
        yield name


class TestAnotherS3Server(StoreContract):
    @pytest.fixture
    def store(self, bucket: str) -> Store:
        return open_store(f"s3://{bucket}/test-{next(_numbers)}")
