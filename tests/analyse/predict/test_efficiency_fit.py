"""What learning refuses, and how rows are held out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfctl.orchestrator.analyse.predict.trees_fit import Sample, Settings, fit, folds
from perfctl.orchestrator.errors import UsageError

pytest.importorskip("sklearn")


ROWS = [(float(place), float(place % 7)) for place in range(1, 61)]
SAMPLE = Sample(("batch", "depth"), ROWS, [1e-3] * 60, [2e-3 + row[0] * 1e-5 for row in ROWS],
                [place // 4 for place in range(60)], ("batch",))  # fmt: skip
QUICK = Settings(rounds=10)


def test_every_row_is_held_out_once_and_whole_groups_together() -> None:
    held = []
    for train, test in folds(SAMPLE.groups, 5, 3):
        assert not {SAMPLE.groups[i] for i in train} & {SAMPLE.groups[i] for i in test}
        held += list(test)
    assert sorted(held) == list(range(60))


def test_the_same_seed_gives_the_same_folds_and_another_seed_others() -> None:
    first, again, other = ([tuple(test) for _, test in folds(SAMPLE.groups, 5, seed)] for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_the_same_rows_give_the_same_numbers() -> None:
    assert fit("a", SAMPLE, QUICK) == fit("a", SAMPLE, QUICK)


def test_most_rows_lie_inside_the_interval() -> None:
    from perfctl.orchestrator.analyse.predict.trees import predict

    found = fit("a", SAMPLE, QUICK)
    rows = zip(SAMPLE.rows, SAMPLE.floors, SAMPLE.seconds, strict=True)
    inside = [p.low <= taken <= p.high for row, floor, taken in rows for p in [predict(found, row, floor)]]
    assert sum(inside) >= 0.85 * len(inside)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": ROWS[:5], "floors": [1.0] * 5, "seconds": [1.0] * 5, "groups": [1, 2, 3, 4, 5]}, "5 measured rows"),
        ({"features": ("batch",)}, "for each of 1 features"),
        ({"increasing": ("speed",)}, "no feature is called speed"),
        ({"seconds": [0.0] * 60}, "greater than 0"),
        ({"rows": [(float("nan"), 1.0)] * 60}, "finite"),
        ({"groups": ["one"] * 60}, "two groups"),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_from_is_refused_with_its_reason(change: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        fit("a", replace(SAMPLE, **change), QUICK)
