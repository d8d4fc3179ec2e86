"""The simulator of verdicts: its records are what perfctl reads, its truth adds up, a seed is
a draw."""

import sys
from importlib import import_module
from math import isclose, isfinite, prod
from pathlib import Path

import pytest

from perfctl.orchestrator.ledger.ledger import build_ledger
from perfctl.orchestrator.ledger.prepared import group_into_studies

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "proof" / "verdicts"
SEEDS = range(40)


@pytest.fixture(scope="module")
def simulator():
    sys.path.insert(0, str(FOLDER))
    try:
        yield import_module("draw")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def draws(simulator):
    return [simulator.draw(seed) for seed in SEEDS]


def test_the_ledger_reads_paper_and_ratio_as_they_were_meant(draws):
    for found in draws:
        (study,) = group_into_studies(found.runs)
        rows = {(row.batch, row.layer, row.direction): row for row in build_ledger(study).rows}
        for place, truth in found.rows.items():
            row = rows.get(place)
            if row is None or row.ratio is None or truth.ratio is None:
                continue  # without kernels or counters there is no ratio
            # a fused attention computes its scores again: a fifth product beside the gradients' four
            again = truth.factors.get("flash_recompute", 1.0) != 1
            paper = truth.estimated * (5 / 4 if again else 1)
            assert row.estimated.value == paper, place
            if not truth.unread and not truth.paths & {"hfma"}:
                ratio = truth.ratio * truth.estimated / paper
                assert isclose(row.ratio, ratio, rel_tol=1e-6), (found.scene.seed, place)


def test_the_factors_multiply_to_the_ratio(draws):
    checked = 0
    for found in draws:
        for place, truth in found.rows.items():
            factors = list(truth.factors.values())
            if truth.ratio is not None and all(isfinite(factor) and factor for factor in factors):
                assert isclose(truth.usual * prod(factors), truth.ratio, rel_tol=1e-9), (
                    found.scene.seed,
                    place,
                )
                checked += 1
    assert checked > 200


def test_without_effects_counted_is_paper(simulator):
    for seed in range(15):
        found = simulator.draw(seed, "clean")
        assert not found.effects
        assert all(0.98 <= truth.ratio <= 1.02 for truth in found.rows.values())


@pytest.mark.parametrize("last", (False, True))
def test_every_effect_can_be_drawn_alone(simulator, last):
    for name in simulator.ORDER:
        assert name in [effect.name for effect in simulator.draw(0, name, last).effects]


def test_a_seed_is_a_draw(simulator, draws):
    again = [simulator.draw(seed) for seed in SEEDS]
    assert again == draws
    assert len({str(found) for found in draws}) == len(draws)


def test_the_last_check_has_parameters_of_its_own(simulator):
    def drawn(last):
        found = (simulator.draw(seed, "cut_off", last) for seed in range(40))
        return {effect.settings["share"] for draw in found for effect in draw.effects}

    assert not drawn(False) & drawn(True)
