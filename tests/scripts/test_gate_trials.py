"""Seeded changes are caught by the quantity that names them; scripts/proof/gate_trials.py
has all."""

import pytest

from scripts.proof import gate_trials

FAST = (9, 10, 11, 12, 15, 18, 19, 21, *range(23, 29))
"""Seeds that need no torch."""


@pytest.mark.parametrize("seed", FAST)
def test_a_seeded_change_is_named(seed):
    found = gate_trials.trial(seed)
    assert found.caught, (found.change, found.first)
