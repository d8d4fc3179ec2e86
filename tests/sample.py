"""How much of an expensive proof ``make test`` runs; ``make proofs`` runs all of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

IS_WHOLE = os.environ.get("PERFCTL_PROOFS") == "whole"
"""Whether ``scripts/proof/whole.sh`` runs the tests."""


def sample(cases: Sequence[T], one_in: int) -> Sequence[T]:
    """Return every ``one_in``-th case, the first one included; all of them in a whole proof."""
    return cases if IS_WHOLE else cases[::one_in]


def draws(number: int, one_in: int = 5) -> int:
    """Return how many random cases of ``number`` are drawn; all of them in a whole proof."""
    return number if IS_WHOLE else max(1, number // one_in)
