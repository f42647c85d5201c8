"""Digests do not depend on what does not matter, and do on everything else."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from topline.storage.errors import FormatError, IntegrityError
from topline.storage.fingerprint import digest_array, digest_bytes, digest_json, seal, unseal


def test_known_digest() -> None:
    # SHA-256 of "abc", FIPS 180-2, appendix B.1.
    assert digest_bytes(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_order_of_keys_does_not_matter_and_values_do() -> None:
    assert digest_json({"a": 1, "b": [1, 2]}) == digest_json({"b": [1, 2], "a": 1})
    assert digest_json({"a": 1}) != digest_json({"a": 2})
    assert digest_json([1, 2]) != digest_json([2, 1])


def test_digests_are_the_same_in_another_process() -> None:
    code = (
        "from topline.storage.fingerprint import digest_json; "
        "print(digest_json({'k': 'ü', 'x': [0.1, None]}))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == digest_json({"k": "ü", "x": [0.1, None]})


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object()])
def test_what_is_not_json(value: object) -> None:
    with pytest.raises(FormatError):
        digest_json({"x": value})


def test_arrays_differ_by_type_shape_and_values() -> None:
    a = np.arange(6, dtype=np.float32)
    variants = [a, a.astype(np.float64), a.reshape(2, 3), a.reshape(3, 2), a + 1]
    assert len({digest_array(variant) for variant in variants}) == len(variants)
    assert digest_array(a[::2]) == digest_array(a[::2].copy()) == digest_array(a[::2].astype(">f4"))


def test_every_flipped_bit_of_a_sealed_record_is_noticed() -> None:
    record = {"name": "ü", "n": 12, "values": [1.5, None]}
    data = seal(record)
    assert unseal(data, "here") == record
    noticed = 0
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            # White space between the values carries nothing: such a change gives the same record.
            assert unseal(bytes(changed), "here") == record
        except IntegrityError:
            noticed += 1
    assert noticed > 7 * len(data)


def test_a_damaged_record_is_named() -> None:
    with pytest.raises(IntegrityError, match="runs/r1 is damaged: its seal"):
        unseal(seal({"n": 1}).replace(b"1", b"2", 1), "runs/r1")
    for wrong in (b"", b"[]", b"{}", b"{", b"null"):
        with pytest.raises(IntegrityError, match="not a sealed JSON record"):
            unseal(wrong, "runs/r1")
