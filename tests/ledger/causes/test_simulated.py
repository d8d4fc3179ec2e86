"""Causes of simulated networks whose hardware effects are known: the causes told are true, and
the true ones are told."""

import hashlib
import subprocess
import sys
from pathlib import Path

from scripts.proof.verdicts import run as simulator
from scripts.proof.verdicts.conflicts import CONFLICTS
from scripts.proof.verdicts.draw import ORDER, draw
from scripts.proof.verdicts.scenarios import draw_scenario, make_runs
from tests.sample import sample

ROOT = Path(__file__).resolve().parents[3]
KERNELS, COUNTERS, TRUTH = "a5f2f7f7a87c64a3", "577edf4677766f85", "077ff5226114f492"
"""Digests of the draws below."""
SCENARIO_KERNELS, SCENARIO_COUNTERS = "e88ceacf968e5267", "fe982f2f5b66f42e"
"""Digests of the scenarios below."""


def test_an_effect_that_acts_alone_is_told_or_left_open_and_no_other_is():
    """Two networks for each effect; ``make verdicts`` draws thousands."""
    scores = {
        (name, seed): simulator.score(seed, name)
        for name in ("clean", *ORDER)
        for seed in sample((1, 2), 2)
    }
    assert [
        (case, score.error, score.false)
        for case, score in scores.items()
        if score.error or score.false
    ] == []
    assert [case for case, score in scores.items() if not score.right] == []


def test_of_mixed_effects_no_false_one_is_told_and_nine_tenths_of_the_draws_are_right():
    scores = [simulator.score(seed) for seed in sample(range(100), 4)]
    assert [score.false for score in scores if score.false] == []
    assert sum(score.right for score in scores) >= 0.9 * len(scores)


def test_what_has_the_factor_of_a_cause_is_not_certainly_that_cause():
    scores = [simulator.score(seed, name) for name in CONFLICTS for seed in sample((1, 2), 2)]
    # Winograd beside Fourier transforms; fused attention whose gradients' kernel has another name
    scores += [simulator.score(62_000_313), simulator.score(64_001_349, "conflict")]
    rows = [row for score in scores for row in score.rows.values()]
    assert not any(score.error for score in scores)
    assert [row.false for row in rows if row.is_certain_and_false] == []


def test_drawing_a_case_imports_nothing_that_finds_causes():
    """A simulator that asked the predictor of counts or a rule would prove itself."""
    show = "import sys; import scripts.proof.verdicts.draw; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", show], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    rooms = {
        module.split(".")[2] for module in modules if module.startswith("perfctl.orchestrator.")
    }
    assert rooms & {"estimate"} and not rooms - {"estimate", "statistics"}


def digest(records):
    return hashlib.sha256("\n".join(map(repr, records)).encode()).hexdigest()[:16]


def digest_kernels(runs):
    return digest(
        (
            kernel.name,
            kernel.layer,
            kernel.direction,
            kernel.step,
            kernel.grid_x,
            kernel.duration_ns,
        )
        for run in runs
        for kernel in run.report.kernels
    )


def test_the_draws_of_a_seed_stay():
    """Rates of two versions can be compared only where both have seen the same draws."""
    draws = [draw(seed) for seed in (*range(8), *range(100_000, 100_008))]
    draws += [draw(1, name) for name in ORDER]
    runs = [run for case in draws for run in case.runs]
    assert digest_kernels(runs) == KERNELS
    assert digest(counter for run in runs for counter in run.report.counters) == COUNTERS
    rows = [row for case in draws for row in case.rows.values()]
    assert digest((row.executed, row.shown, *row.factors.values()) for row in rows) == TRUTH


def test_the_scenarios_of_a_seed_stay():
    scenarios = [draw_scenario(seed) for seed in range(10)]
    runs = [run for scenario in scenarios for run in make_runs(scenario)]
    assert digest_kernels(runs) == SCENARIO_KERNELS
    assert digest(counter for run in runs for counter in run.report.counters) == SCENARIO_COUNTERS
