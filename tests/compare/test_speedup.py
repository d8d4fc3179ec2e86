"""Speed-ups from made-up times whose answer is known, and what is refused."""

import math
from dataclasses import astuple, replace

import pytest

from perfctl.orchestrator.compare.speedup import (
    Arm,
    Gain,
    GainKey,
    GainLine,
    UncertainGain,
    compare_all_arms_with_first,
    compute_amdahl_gains,
    compute_speedup_with_interval,
    compute_times_to_quality,
)
from perfctl.records.report import CPU_OTHERS, CPU_WAIT, Kernel, Step, Summary
from tests.make import synthetic
from tests.make.synthetic import make_run
from tests.make.tables import table

WOBBLE = (1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.08, 0.92, 1.0, 1.03, 0.97)


def steps(base, *phases):
    rows = []
    for number, factor in enumerate(WOBBLE):
        rows.append(Step(number, "step", 0, round(base * factor)))
        rows += [Step(number, name, 0, round(took * factor)) for name, took in phases]
    return tuple(rows)


def course(*rows):
    """(ns, test loss, accuracy) of each epoch."""
    found = []
    for number, (spent, loss, accuracy) in enumerate(rows):
        found += [
            Step(number, "epoch", 0, spent, loss, accuracy),
            Step(number, "test", 0, 7, loss, accuracy),
        ]
    return tuple(found)


ENVIRONMENT = {"seed": "0", "option:data": "synthetic"}


def arms(first, second):
    base, other = (
        make_run(number, **{"environment": ENVIRONMENT, **changes})
        for number, changes in enumerate((first, second), 1)
    )
    return Arm("cpu", (base,)), Arm("other", (other,))


def compared(first, second, **options):
    return compare_all_arms_with_first(arms(first, second), **options).comparisons[0]


BEFORE, AFTER = {"steps": steps(9000)}, {"steps": steps(3000)}


def test_a_speedup_is_the_ratio_of_geometric_means_with_its_interval():
    found = compared(
        {"steps": steps(9000, ("forward", 6000))}, {"steps": steps(3000, ("forward", 1000))}
    )
    gains = {line.key: line.gain for line in found.lines}
    for key, expected in ((("step", "step"), 3.0), (("phase", "forward"), 6.0)):
        gain = gains[GainKey(*key)]
        assert gain is not None
        assert gain.value == pytest.approx(expected, rel=1e-3)
        assert gain.low < expected < gain.high


def gain(level, a, b):
    """What the line of one quantity says: its gain, that it is not settled, or the reason."""
    line = compute_speedup_with_interval(GainKey(level, level), a, b)
    return line.gain or line.uncertain or line.reason


@table(
    "name change",
    [
        ("batch", {"batch_size": 32}),
        ("precision", {"precision": "bf16"}),
        ("variant", {"variant": "conv2=32,128,5,1"}),
        *(
            (name, {"environment": ENVIRONMENT | facts})
            for name, facts in (
                ("seed", {"seed": "1"}),
                ("data", {"option:data": "mnist"}),
                ("samples", {"option:samples": "9"}),
                ("compile", {"option:compile": "True"}),
            )
        ),
    ],
)
def test_other_work_is_refused_unless_asked_for(name, change):
    against = compared(BEFORE, AFTER | change)
    assert against.lines == ()
    (reason,) = against.reasons
    assert reason.startswith(f"{name} differs: cpu has")
    allowed = compared(BEFORE, AFTER | change, allowed=[name])
    assert allowed.reasons == ()
    assert allowed.lines
    assert [one.fact for one in allowed.differences] == [name], "what was allowed is still said"


def test_another_device_is_what_it_is_about_and_does_not_refuse():
    assert compared(BEFORE, {**AFTER, "device": synthetic.V100}).reasons == ()


def test_an_arm_that_failed_is_named_and_the_others_go_on():
    first, second = arms(BEFORE, AFTER)
    broken = Arm("cuda", (make_run(3, status="failed", reason="no GPU"),))
    found = compare_all_arms_with_first([first, broken, second])
    assert found.failed == (("cuda", "no GPU"),)
    assert [one.label for one in found.comparisons] == ["other"]
    with pytest.raises(ValueError, match="cuda: no GPU"):
        compare_all_arms_with_first([first, broken])


def test_what_neither_recorded_is_said_and_what_one_alone_recorded_refuses():
    silent = {"environment": {"option:data": "synthetic"}}
    found = compared(BEFORE | silent, AFTER | silent)
    assert found.reasons == ()
    (difference,) = found.differences
    assert (difference.fact, difference.a, difference.b) == ("seed", *["not recorded"] * 2)
    half = compared(BEFORE | silent, AFTER)
    assert half.reasons == ("seed differs: cpu has not recorded, other has 0",)


def layer_line(name, base, faster, level="layer"):
    return GainLine(
        GainKey(level, name), base, base, gain=faster, reason="" if faster else "why not"
    )


def test_one_layer_alone_saves_no_more_than_its_part_of_the_step():
    twice, ten = Gain(2.0, 1.0, 4.0, "five runs"), Gain(10.0, 5.0, 20.0, "five runs")
    found = compute_amdahl_gains(
        [
            layer_line("small", 20.0, ten),
            layer_line("step", 100.0, twice, "step"),
            layer_line("half", 50.0, twice),
            layer_line("forward", 60.0, twice, "phase"),
            layer_line("unknown", 30.0, None),
            layer_line("new", None, twice),
            layer_line("nothing", 0.0, twice),
            layer_line("all of it", 100.0, twice),
        ]
    )
    assert [(one.layer, one.share, one.limit) for one in found] == [
        ("half", 0.5, 2.0),
        ("small", 0.2, 1.25),
    ]
    # T / (T - t + t / s): 100 / 75, with s from 1 to 4 from 100 / 100 to 100 / 62.5.
    assert astuple(found[0].gain) == (
        pytest.approx(100 / 75),
        1.0,
        pytest.approx(100 / 62.5),
        "five runs",
    )
    assert astuple(found[1].gain)[:3] == pytest.approx((100 / 82, 100 / 84, 100 / 81))
    assert compute_amdahl_gains([layer_line("half", 50.0, twice)]) == ()
    assert (
        compute_amdahl_gains(
            [layer_line("step", 0.0, None, "step"), layer_line("half", 50.0, twice)]
        )
        == ()
    )


@table(
    "level a b why",
    [
        ("layer", [], [[1.0]], "on one side only"),
        ("layer", [[1.0]], [], "on one side only"),
        (
            "epoch",
            [[5.0, 6.0]],
            [[3.0]],
            "one epoch has no spread; run 2 or more epochs, or 5 repeats",
        ),
        (
            "epoch",
            [[5.0]],
            [[3.0, 4.0]],
            "one epoch has no spread; run 2 or more epochs, or 5 repeats",
        ),
        ("step", [[5.0, 6.0]], [[3.0, 4.0]], "one run each of 2 steps"),
        ("epoch", [[5.0, 5.0]], [[3.0, 3.0]], "every repeat gave the same value"),
    ],
)
def test_what_has_no_spread_has_no_gain_but_the_reason(level, a, b, why):
    found = gain(level, a, b)
    assert isinstance(found, str)
    assert found.startswith(why)


def test_epochs_count_one_by_one_in_one_run_each_and_by_run_in_several():
    def gain_of(a, b):
        found = gain("epoch", a, b)
        assert isinstance(found, Gain)
        return found

    single = gain_of([[10.0, 11.0]], [[4.0, 5.0, 6.0]])
    assert single.basis == "2 and 3 epochs of one run each, without the spread between runs"
    each = gain_of([[10.0], [11.0]], [[4.0], [5.0], [6.0]])
    assert replace(single, basis="") == replace(each, basis="")
    several = gain_of([[10.0, 11.0], [12.0, 13.0]], [[4.0, 5.0, 6.0], [5.0, 6.0, 7.0]])
    assert several.basis == "2 and 2 runs"
    assert several.value == pytest.approx(math.sqrt(10.5 * 12.5) / math.sqrt(5 * 6)), (
        "of the medians of each run"
    )
    against_several = gain_of([[10.0, 11.0]], [[4.0], [4.1]])
    assert against_several.basis.startswith("1 and 2 runs; A is one run")


def test_each_part_of_the_step_has_a_line_with_both_medians():
    epochs = course((100, 1, 0), (300, 1, 0), (900, 1, 0))
    found = compared(
        {"steps": steps(9000, ("forward", 6000), ("test", 5)) + epochs},
        {"steps": steps(3000, ("forward", 1000), ("optimizer", 500))},
    )
    assert [(*line.key, line.before, line.after, line.why) for line in found.lines] == [
        ("epoch", "epoch", 300, None, "on one side only"),
        ("step", "step", 9000, 3000, None),
        ("phase", "forward", 6000, 1000, None),
        ("phase", "optimizer", None, 500, "on one side only"),
    ]


def test_both_gradients_of_a_layer_are_one_backward_and_what_has_no_layer_is_left_out():
    def run(clock):
        each = (
            ("fc", "forward", 100),
            ("fc", "grad_input", 300),
            ("fc", "grad_weight", 500),
            ("stem", "forward", 10),
            (None, None, 7),
        )
        kernels = [
            Kernel(
                0,
                "k",
                layer=layer,
                direction=direction,
                step=number,
                duration_ns=round(clock * took * factor),
            )
            for number, factor in enumerate(WOBBLE)
            for layer, direction, took in each
        ]
        return {"kernels": kernels, "profiler": "nsys", "device": synthetic.V100}

    found = compared(run(4), run(1)).lines
    assert [(*line.key, line.before, line.after) for line in found] == [
        ("layer", "fc forward", 400, 100),
        ("layer", "fc backward", 3200, 800),
        ("layer", "stem forward", 40, 10),
    ]
    assert [line.gain.value for line in found if line.gain] == pytest.approx([4, 4, 4], rel=0.02)


def test_a_target_is_the_worst_best_and_the_first_epoch_that_reaches_it_counts():
    first = course((100, 0.5, 0.9), (100, 0.4, 0.8), (100, 0.4, 0.7))
    second = course((10, 0.9, 0.1), (10, 0.4, 0.9), (10, 0.2, 0.95))
    study = compare_all_arms_with_first(arms({"steps": first}, {"steps": second}))
    assert [astuple(one) for one in study.times_to_quality] == [
        ("test loss", 0.4, {"cpu": 200, "other": 20}),
        ("accuracy", 0.9, {"cpu": 100, "other": 20}),
    ]
    assert (study.workload, study.batch, study.base) == ("mnist_cnn", 64, "cpu")
    assert compute_times_to_quality(()) == ()
    partly = compare_all_arms_with_first(arms({"steps": first}, {"steps": steps(9)}))
    assert partly.times_to_quality == (), "one arm has no course at all"


def test_dice_is_reached_from_below():
    def of(*values):
        rows = tuple(Step(number, "epoch", 0, 10) for number in range(len(values)))
        named = tuple(
            Summary(f"dice:epoch:{number}", value, "ratio") for number, value in enumerate(values)
        )
        return {"steps": rows, "summaries": named}

    found = compare_all_arms_with_first(arms(of(0.2, 0.6, 0.7), of(0.5, 0.55))).times_to_quality
    assert [astuple(one) for one in found] == [("Dice", 0.55, {"cpu": 20, "other": 20})]


def test_arms_without_a_whole_run_say_why_and_two_are_needed():
    first, second = arms(BEFORE, AFTER)
    with pytest.raises(ValueError, match=r"^one arm alone$"):
        compare_all_arms_with_first([first])
    silent = Arm("gpu", (make_run(3, status="failed"),))
    with pytest.raises(ValueError, match=r"^gpu: it has no run; none: it has no run$"):
        compare_all_arms_with_first([first, silent, Arm("none", ())])
    broken = [make_run(4, status=status, reason="no") for status in ("failed", "partial")]
    study = compare_all_arms_with_first([first, Arm("other", (*broken, *second.runs))])
    assert study.failed == ()
    assert [one.runs for one in study.arms] == [1, 1], "a failed run is in no figure"


@table(
    "first second refused",
    [
        (None, "compile=True", 0),
        ("a=1 b=2", "a=1 compile=True b=2", 0),
        ("a=1", "a=1 compiled=True", 1),
        ("a=1", "b=1", 1),
    ],
)
def test_being_compiled_is_no_other_variant(first, second, refused):
    one, other = (
        steps | {"variant": variant} for steps, variant in ((BEFORE, first), (AFTER, second))
    )
    assert len(compared(one, other).reasons) == len(compared(other, one).reasons) == refused


def test_what_ncu_stretches_is_in_no_line():
    kernels = [
        Kernel(0, "k", layer="fc", direction="forward", step=number, duration_ns=9)
        for number in range(12)
    ]
    run = {**BEFORE, "kernels": kernels, "profiler": "ncu", "device": synthetic.V100}
    assert compared(run, run).lines == ()


def test_a_cpu_that_other_programs_kept_busy_shows_no_speedup_but_both_times():
    shares = (Summary(CPU_WAIT, 0.7, "ratio"), Summary(CPU_OTHERS, 0.9, "ratio"))
    (line,) = compared(BEFORE, {**AFTER, "summaries": shares}).lines
    assert (line.before, line.after, line.gain) == (9000, 3000, None)
    assert "threads waited for a core in 70%" in line.reason


def test_an_interval_wider_than_a_factor_of_3_is_uncertain_until_so_many_more_steps():
    def of(count):
        noisy = [100.0, 400.0] * 10
        return gain("step", [noisy[:count]], [[value / 2 for value in noisy[:count]]])

    assert isinstance(of(20), Gain)
    uncertain = of(10)
    assert isinstance(uncertain, UncertainGain)
    assert isinstance(of(10 + uncertain.more), Gain)
    assert isinstance(of(10 + uncertain.more - 2), UncertainGain)
