"""Speed-ups from made-up times whose answer is known, and what is refused."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest

from perfctl.orchestrator.analyse.compare_stats import t_quantile
from perfctl.orchestrator.analyse.speedup import amdahl, gain, speedup
from perfctl.orchestrator.analyse.speedup_arms import epochs, launch_bound, overlap, top
from perfctl.orchestrator.analyse.speedup_records import Arm
from perfctl.parsers.records import Copy, Kernel, Operation, Step, Summary
from perfctl.parsers.stored import Run

WOBBLE = (1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.08, 0.92, 1.0, 1.03, 0.97)


def steps(base: int, *phases: tuple[str, int]) -> tuple[Step, ...]:
    rows = []
    for number, factor in enumerate(WOBBLE):
        rows.append(Step(number, "step", 0, round(base * factor)))
        rows += [Step(number, name, 0, round(took * factor)) for name, took in phases]
    return tuple(rows)


def course(*rows: tuple[int, float, float]) -> tuple[Step, ...]:
    """(ns, test loss, accuracy) of each epoch."""
    found = []
    for number, (spent, loss, accuracy) in enumerate(rows):
        found += [Step(number, "epoch", 0, spent, loss, accuracy), Step(number, "test", 0, 7, loss, accuracy)]
    return tuple(found)


def arms(synthetic: ModuleType, first: dict[str, Any], second: dict[str, Any]) -> tuple[Arm, Arm]:
    said = {"seed": "0", "option:data": "synthetic"}
    makes = [{"environment": said, **changes} for changes in (first, second)]
    return Arm("cpu", (synthetic.make_run(1, **makes[0]),)), Arm("other", (synthetic.make_run(2, **makes[1]),))


def test_a_speedup_is_the_ratio_of_geometric_means_with_its_interval(synthetic: ModuleType) -> None:
    found = speedup(
        arms(synthetic, {"steps": steps(9000, ("forward", 6000))}, {"steps": steps(3000, ("forward", 1000))})
    )
    lines = {(line.level, line.name): line for line in found.against[0].lines}
    for key, expected in ((("step", "step"), 3.0), (("phase", "forward"), 6.0)):
        line = lines[key]
        assert line.gain is not None
        assert line.gain.value == pytest.approx(expected, rel=1e-3)
        assert line.gain.low < expected < line.gain.high


def test_the_interval_of_epochs_is_students_on_logarithms() -> None:
    a, b = (10.0, 11.0, 12.0), (4.0, 5.0)
    found = gain("epoch", [a], [b])
    assert not isinstance(found, str)
    logs = [[math.log(value) for value in side] for side in (a, b)]
    means = [sum(side) / len(side) for side in logs]
    parts = [
        sum((x - mean) ** 2 for x in side) / (len(side) - 1) / len(side) for side, mean in zip(logs, means, strict=True)
    ]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
    reach = t_quantile(0.95, freedom) * math.sqrt(sum(parts))
    assert found.value == pytest.approx(math.exp(means[0] - means[1]))
    assert (found.low, found.high) == pytest.approx(
        (math.exp(means[0] - means[1] - reach), math.exp(means[0] - means[1] + reach))
    )


def test_without_a_spread_there_is_no_speedup_but_the_reason(synthetic: ModuleType) -> None:
    few = tuple(row for row in steps(100) if row.number < 3)
    found = speedup(arms(synthetic, {"steps": few + course((5, 1, 0))}, {"steps": few + course((3, 1, 0))}))
    assert all(line.gain is None for line in found.against[0].lines)
    reasons = {line.name: line.reason or "" for line in found.against[0].lines}
    assert "of 3 steps" in reasons["step"]
    assert "--epochs 2" in reasons["epoch"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("batch", {"batch_size": 32}),
        ("precision", {"precision": "bf16"}),
        ("seed", {"environment": {"seed": "1", "option:data": "synthetic"}}),
        ("data", {"environment": {"seed": "0", "option:data": "mnist"}}),
        ("variant", {"variant": "conv2=32,128,5,1"}),
        ("samples", {"environment": {"seed": "0", "option:data": "synthetic", "option:samples": "9"}}),
        ("compile", {"environment": {"seed": "0", "option:data": "synthetic", "option:compile": "True"}}),
    ],
)
def test_other_work_is_refused_unless_asked_for(synthetic: ModuleType, name: str, change: dict[str, Any]) -> None:
    two = arms(synthetic, {"steps": steps(9000)}, {"steps": steps(3000), **change})
    against = speedup(two).against[0]
    assert against.lines == ()
    assert len(against.refused) == 1
    assert against.refused[0].startswith(f"{name} differs: cpu has")
    allowed = speedup(two, allowed=[name]).against[0]
    assert allowed.refused == ()
    assert allowed.lines
    assert [one.fact for one in allowed.differences] == [name], "what was allowed is still said"


def test_another_device_is_what_it_is_about_and_does_not_refuse(synthetic: ModuleType) -> None:
    two = arms(synthetic, {"steps": steps(9000)}, {"steps": steps(3000), "device": synthetic.V100})
    assert speedup(two).against[0].refused == ()


def test_an_arm_that_failed_is_named_and_the_others_go_on(synthetic: ModuleType) -> None:
    first, second = arms(synthetic, {"steps": steps(9)}, {"steps": steps(3)})
    broken = Arm("cuda", (synthetic.make_run(3, status="failed", reason="no GPU"),))
    found = speedup([first, broken, second])
    assert found.failed == (("cuda", "no GPU"),)
    assert [one.label for one in found.against] == ["other"]
    with pytest.raises(ValueError, match="cuda: no GPU"):
        speedup([first, broken])


def test_amdahl_with_half_of_it_twice_as_fast() -> None:
    assert amdahl(0.5, 2) == pytest.approx(1 / (0.5 + 0.25))
    assert amdahl(1.0, 8) == 8


def test_time_to_the_same_result_is_to_what_the_worst_reaches(synthetic: ModuleType) -> None:
    slow = course((100, 0.9, 0.5), (100, 0.5, 0.7), (100, 0.3, 0.9))
    quick = course((10, 0.95, 0.4), (10, 0.6, 0.6), (10, 0.4, 0.8))
    found = {item.what: item for item in speedup(arms(synthetic, {"steps": slow}, {"steps": quick})).reached}
    assert found["test loss"].target == 0.4
    assert found["test loss"].times == {"cpu": 300, "other": 30}
    assert found["accuracy"].target == 0.8
    assert found["accuracy"].times == {"cpu": 300, "other": 30}
    assert "Dice" not in found


def test_epochs_carry_dice_and_the_time_gone_by(synthetic: ModuleType) -> None:
    dice = (Summary("dice:epoch:1", 0.5, "ratio"),)
    run: Run = synthetic.make_run(steps=course((5, 0.9, 0.1), (6, 0.8, 0.2)), summaries=dice)
    assert [(one.ns, one.reached_ns, one.test_loss, one.dice) for one in epochs(run)] == [
        (5, 5, 0.9, None),
        (6, 11, 0.8, 0.5),
    ]


def test_the_most_expensive_add_up_over_layers(synthetic: ModuleType) -> None:
    rows = [
        Operation("aten::mm", "cpu_op", 2, 50, 40, None, None, None, "fc1", "forward"),
        Operation("aten::mm", "cpu_op", 1, 30, 20, None, None, None, "fc2", "forward"),
        Operation("aten::add", "cpu_op", 5, 40, 40, None, None, None),
    ]
    first, second = top(synthetic.make_run(operations=rows))
    assert (first.name, first.calls, first.self_ns, first.total_ns, first.share) == ("aten::mm", 3, 60, 80, 0.6)
    assert (second.name, second.category) == ("aten::add", "elementwise")


def kernel(launch: int, start: int, duration: int) -> Kernel:
    return Kernel(launch, "k", start_ns=start, duration_ns=duration, device_index=0)


def test_a_kernel_that_waits_longer_than_it_runs_is_launch_bound(synthetic: ModuleType) -> None:
    kernels = [kernel(0, 0, 10), kernel(1, 100, 10), kernel(2, 112, 10)]
    assert launch_bound(synthetic.make_run(kernels=kernels)) == 0.5
    assert launch_bound(synthetic.make_run()) is None


def test_copies_that_kernels_hide_are_counted_once(synthetic: ModuleType) -> None:
    kernels = [kernel(0, 0, 10), kernel(1, 5, 10)]
    copies = [Copy("HtoD", 4, 10, 10, None, 0), Copy("memset", 4, 0, 10, None, 0)]
    assert overlap(synthetic.make_run(kernels=kernels, copies=copies)) == 0.5
    assert overlap(synthetic.make_run(kernels=kernels)) is None


def test_what_neither_recorded_is_said_and_what_one_alone_recorded_refuses(synthetic: ModuleType) -> None:
    silent = {"steps": steps(9000), "environment": {"option:data": "synthetic"}}
    found = speedup(arms(synthetic, silent, {**silent, "steps": steps(3000)})).against[0]
    assert found.refused == ()
    assert [(one.fact, one.a, one.b) for one in found.differences] == [("seed", "not recorded", "not recorded")]
    half = speedup(arms(synthetic, silent, {"steps": steps(3000)})).against[0]
    assert half.refused == ("seed differs: cpu has not recorded, other has 0",)
