"""Learning a step model from measured steps: made-up times whose costs are known."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.predict.fit import (
    build_fit_arrays,
    fit_part_costs,
    fit_step_time_model,
    predict_one_step,
    predict_step_times,
)
from tests.make.steps import CPU, cases, fitted, measured, network, seconds_of, with_batch

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="perfctl[predict]")


def test_costs_add_up_to_the_steps_they_were_learned_from():
    given = build_fit_arrays([measured(case) for case in cases()], CPU)
    found = given.parts @ fit_part_costs(given)
    assert np.median(abs(found / given.seconds - 1)) < 0.03


def test_a_network_that_was_not_measured_is_predicted_from_its_parts():
    case = network(40, 4, 8, image=20)
    assert predict_one_step(fitted(), case).seconds == pytest.approx(seconds_of(case), rel=0.1)


def test_seconds_never_fall_when_batch_grows():
    for width, depth, image in ((8, 2, 16), (20, 3, 40), (64, 6, 8), (500, 2, 4)):
        case = network(width, depth, 1, image=image)
        batches = (*range(1, 40), 64, 100, 1000, 10**6)
        times = [
            time.seconds
            for time in predict_step_times(fitted(), [with_batch(case, batch) for batch in batches])
        ]
        assert times == sorted(times)


def test_low_seconds_high_stand_in_this_order_and_cover_what_was_held_out():
    inside = 0
    for place, case in enumerate(cases()):
        found = predict_one_step(fitted(), case)
        assert 0 < found.low < found.seconds < found.high
        inside += (
            found.low
            <= measured(case, factor=1.0 + 0.04 * ((place * 7) % 5 - 2) / 2).seconds
            <= found.high
        )
    assert inside >= 0.85 * len(cases())


ROWS = [measured(case) for case in cases()]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (ROWS[:19], "x: 19 measured steps are too few"),
        (
            [*ROWS, replace(ROWS[0], machine="Faster CPU")],
            "several machines: Faster CPU, Test CPU",
        ),
        (
            [*ROWS, replace(ROWS[0], case=replace(ROWS[0].case, precision="bf16"))],
            "several precisions: bf16, fp32",
        ),
        (
            [*ROWS[:19], replace(ROWS[0], case=replace(ROWS[0].case, training=False))],
            r"several modes \(training, inference\): False, True",
        ),
        ([measured(network(8, 2, batch)) for batch in range(1, 30)], "two groups"),
    ],
    ids=["too few", "two machines", "two precisions", "both modes", "one model alone"],
)
def test_steps_that_make_no_fit_are_refused(rows, said):
    with pytest.raises(UsageError, match=said):
        fit_step_time_model("x", rows, CPU)
