"""Causes of simulated networks whose hardware effects are known: the causes told are true, and
the true ones are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.proof.verdicts import run as simulator
from tests.sample import sample

ROOT = Path(__file__).resolve().parents[3]


def test_an_effect_that_acts_alone_is_told_or_left_open_and_no_other_is() -> None:
    """Two networks for each effect; ``make verdicts`` draws thousands."""
    scores = {
        (name, seed): simulator.score(seed, name)
        for name in ("clean", *simulator.ORDER)
        for seed in sample((1, 2), 2)
    }
    assert [
        (case, score.error, score.false)
        for case, score in scores.items()
        if score.error or score.false
    ] == []
    assert [case for case, score in scores.items() if not score.right] == []


def test_of_mixed_effects_no_false_one_is_told_and_nine_tenths_of_the_draws_are_right() -> None:
    scores = [simulator.score(seed) for seed in sample(range(100), 4)]
    assert [score.false for score in scores if score.false] == []
    assert sum(score.right for score in scores) >= 0.9 * len(scores)


def test_drawing_a_case_imports_nothing_that_finds_causes() -> None:
    """A simulator that asked the predictor of counts or a rule would prove itself."""
    show = "import sys; import scripts.proof.verdicts.draw; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", show], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    rooms = {
        module.split(".")[2] for module in modules if module.startswith("perfctl.orchestrator.")
    }
    assert rooms & {"estimate"} and not rooms - {"estimate", "statistics"}
