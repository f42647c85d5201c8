"""Classes that were added, removed, renamed or merged, and what the rule makes of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.pipeline.registry.test_promotion import CERTIFIED, evidence, record
from topline.pipeline.options import PromotionRule
from topline.pipeline.registry.drift import ClassChanges, class_changes, domain_area
from topline.pipeline.registry.promotion import Evidence, decide

OLD = ("ant", "bee", "cat", "dog")


def manifest(classes: dict[str, str]) -> pa.Table:
    """A manifest of ten images a letter, each with the class of its letter."""
    rows = [(f"{letter}{number}", name) for letter, name in classes.items() for number in range(10)]
    return pa.table({"sha256": [row[0] for row in rows], "class_name": [row[1] for row in rows]})


BEFORE = manifest(dict(zip("abcd", OLD, strict=True)))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("ant bee cat dog", ClassChanges((), (), (), (), OLD, 1.0)),
        ("ant bee cat dog eel", ClassChanges(("eel",), (), (), (), OLD, 1.0)),
        ("ant bee cat -", ClassChanges((), ("dog",), (), (), ("ant", "bee", "cat"), 0.75)),
        (
            "emmet bee cat dog",
            ClassChanges((), (), (("ant", "emmet"),), (), ("bee", "cat", "dog", "emmet"), 1.0),
        ),
        ("ant bee cat cat", ClassChanges((), (), (), (("dog", "cat"),), ("ant", "bee", "cat"), 1.0)),
        (
            "bug bug cat dog",
            ClassChanges((), (), (), (("ant", "bug"), ("bee", "bug")), ("bug", "cat", "dog"), 1.0),
        ),
    ],
)
def test_what_became_of_classes(now: str, expected: ClassChanges) -> None:
    words = dict(zip("abcde", now.split(), strict=False))
    kept = {letter: name for letter, name in words.items() if name != "-"}
    names = tuple(sorted(set(kept.values())))
    found = class_changes(OLD, names, BEFORE, manifest(kept))
    assert found == expected
    assert found.any == (names != OLD)
    columns = {old for name in found.common for old in found.sources(name, OLD)}
    assert columns == set(OLD) - set(found.removed)
    even = found.shares(dict.fromkeys(OLD, 0.25), before=True)
    assert set(even) == set(found.common)
    assert sum(even.values()) == pytest.approx(1)


def test_without_contents_names_decide_and_a_class_that_was_split_is_gone() -> None:
    found = class_changes(OLD, ("ant", "bee", "cat", "wolf"), None, None)
    assert (found.removed, found.added) == (("dog",), ("wolf",))
    halves = manifest({"a": "ant", "b": "bee", "c": "cat", "d": "wolf"}).to_pylist()
    for row in halves[35:]:
        row["class_name"] = "fox"
    found = class_changes(OLD, ("ant", "bee", "cat", "fox", "wolf"), BEFORE, pa.Table.from_pylist(halves))
    assert (found.removed, found.added, str(found)) == (("dog",), ("fox", "wolf"), "gone dog; new fox, wolf")


@pytest.mark.parametrize(
    ("rule", "kept", "promote", "said"),
    [
        ({}, 0.75, True, "compared on the 3 classes that both know (gone dog)"),
        ({}, 0.25, False, "25% of the champion's are less than the least"),
        ({"least_common": 0.2}, 0.25, True, "compared on the 3 classes"),
        (
            {"on_class_changes": "refuse"},
            0.75,
            False,
            "not know 1 classes of the champion (gone dog)",
        ),
        ({"on_class_changes": "count-misses"}, 0.75, True, "are its misses (gone dog)"),
    ],
)
def test_what_the_rule_makes_of_them(rule: dict[str, object], kept: float, promote: bool, said: str) -> None:
    changes = ClassChanges((), ("dog",), (), (), OLD[:3], kept)
    measured = replace(evidence(20, 9), classes=changes, on_common=rule.get("on_class_changes") is None)
    options = PromotionRule(**rule)  # type: ignore[arg-type]
    found = decide(record(certificate=CERTIFIED), record(), measured, options)
    assert found.promote is promote
    assert said in found.text
    assert "classes" in found.kinds
    assert measured.to_dict()["classes"]["removed"] == ("dog",)


def test_a_domain_classifier_tells_apart_what_no_feature_does() -> None:
    rng = np.random.default_rng(0)
    before, same = rng.standard_normal((600, 20)), rng.standard_normal((400, 20))
    # The standard deviation of the area of a classifier that knows nothing is about 0.02 here.
    assert domain_area(before, same) == pytest.approx(0.5, abs=0.07)
    moved = same + 0.25
    exact = domain_area(before, moved)
    assert exact is not None
    # A shift by 0.25 in 20 features: the best area is Phi(0.25 sqrt(20) / sqrt(2)) = 0.785.
    assert 0.7 < exact < 0.82
    assert domain_area(before[:19], same) is None


def test_a_limit_on_the_domain_classifier() -> None:
    measured = evidence(20, 9)
    assert measured.drift is not None
    telling = replace(measured, drift=replace(measured.drift, domain=0.9))
    rule = PromotionRule(most_domain_auc=0.8)
    assert not decide(record(certificate=CERTIFIED), record(), telling, rule).promote
    assert decide(record(certificate=CERTIFIED), record(), telling, PromotionRule()).promote
    unknown = decide(record(certificate=CERTIFIED), record(), Evidence(measured.compared), rule)
    assert "is not known" in unknown.text
