"""Learning a step model from measured steps: made-up times whose costs are known."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.predict.fit import (
    costs_of,
    fit_steps,
    predict_step,
    predict_steps,
    table,
)
from perfctl.orchestrator.predict.operations import Measured
from perfctl.orchestrator.predict.step_parts import PARTS, group_of, parts, parts_of_work
from tests.make.steps import CPU, cases, costs, fitted, measured, network, seconds_of, with_batch

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="perfctl[predict]")


def test_costs_add_up_to_the_steps_they_were_learned_from() -> None:
    given = table([measured(case) for case in cases()], CPU)
    found = given.parts @ costs_of(given)
    assert np.median(abs(found / given.seconds - 1)) < 0.03


def test_a_network_that_was_not_measured_is_predicted_from_its_parts() -> None:
    case = network(40, 4, 8, image=20)
    assert predict_step(fitted(), case).seconds == pytest.approx(seconds_of(case), rel=0.1)


def test_one_step_that_took_ten_times_as_long_does_not_move_the_rest() -> None:
    rows = [measured(case) for case in cases()]
    rows[5] = replace(rows[5], seconds=rows[5].seconds * 10)
    given = table(rows, CPU)
    missed = abs(given.parts @ costs_of(given) / given.seconds - 1)
    assert np.median(np.delete(missed, 5)) < 0.05


def test_no_cost_is_below_zero() -> None:
    assert min(fitted().costs) >= 0
    assert len(fitted().costs) == len(PARTS)


def test_seconds_never_fall_when_batch_grows() -> None:
    for width, depth, image in ((8, 2, 16), (20, 3, 40), (64, 6, 8), (500, 2, 4)):
        case = network(width, depth, 1, image=image)
        batches = (*range(1, 40), 64, 100, 1000, 10**6)
        times = [
            time.seconds
            for time in predict_steps(fitted(), [with_batch(case, batch) for batch in batches])
        ]
        assert times == sorted(times)


def test_low_seconds_high_stand_in_this_order_and_cover_what_was_held_out() -> None:
    inside = 0
    for place, case in enumerate(cases()):
        found = predict_step(fitted(), case)
        assert 0 < found.low < found.seconds < found.high
        inside += (
            found.low
            <= measured(case, factor=1.0 + 0.04 * ((place * 7) % 5 - 2) / 2).seconds
            <= found.high
        )
    assert inside >= 0.85 * len(cases())


def test_a_batch_far_beyond_what_was_measured_is_named_and_has_a_wider_interval() -> None:
    near, far = (predict_step(fitted(), network(32, 4, batch, image=24)) for batch in (64, 6400))
    assert near.outside == ()
    assert "batch" in far.outside
    assert far.high / far.seconds > near.high / near.seconds


def with_layers(record: Measured) -> Measured:
    """Each layer's time as its parts cost, and a microsecond for the clock."""
    times: dict[tuple[str, str], float] = {}
    for work in record.case.works:
        for name, seconds in parts_of_work(work, record.case, CPU):
            phase = name.rpartition(" ")[2]
            if phase != "optimizer":
                times[work.layer, phase] = (
                    times.get((work.layer, phase), 1e-6) + costs()[PARTS.index(name)] * seconds
                )
    return replace(record, layer_seconds=times)


def test_times_of_layers_tell_kinds_apart_that_steps_alone_do_not() -> None:
    rows = [with_layers(measured(case)) for case in cases()]
    given = table(rows, CPU)
    kinds = {group_of(work) for work in rows[0].case.works}
    # and three phases
    assert np.bincount(given.layer_of).tolist() == [2 * len(kinds) + 3] * len(rows)
    case = rows[-1].case
    activations = [name for name in PARTS if name.startswith("activation")]
    mine = dict(zip(PARTS, parts(case, CPU), strict=True))
    wanted = sum(mine[name] * costs()[PARTS.index(name)] for name in activations)
    found = sum(mine[name] * costs_of(given)[PARTS.index(name)] for name in activations)
    assert found == pytest.approx(wanted, rel=0.5)


def test_too_few_steps_are_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match="3 measured steps are too few"):
        fit_steps("x", [measured(case) for case in cases()[:3]], CPU)


def test_steps_of_several_machines_or_precisions_are_not_mixed() -> None:
    rows = [measured(case) for case in cases()]
    with pytest.raises(UsageError, match="several machines: Faster CPU, Test CPU"):
        fit_steps("x", [*rows, replace(rows[0], machine="Faster CPU")], CPU)
    other = replace(rows[0], case=replace(rows[0].case, precision="bf16"))
    with pytest.raises(UsageError, match="several precisions: bf16, fp32"):
        fit_steps("x", [*rows, other], CPU)


def test_steps_of_one_model_alone_give_no_interval_and_are_refused() -> None:
    rows = [measured(network(8, 2, batch)) for batch in range(1, 30)]
    with pytest.raises(UsageError, match="two groups"):
        fit_steps("x", rows, CPU)
