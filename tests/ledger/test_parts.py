"""Verdicts about the parts of one study: other GPUs, and more work in less time."""

from dataclasses import replace

from perfctl.orchestrator.ledger.analysis import analyse_studies
from perfctl.orchestrator.ledger.causes.study_rules import (
    list_different_gpu_causes,
    list_work_time_contradiction_causes,
)
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.report.ledger.causes import describe_cause
from perfctl.records.paper import LayerCall
from perfctl.records.report import Device, Step, Summary
from tests.make import synthetic
from tests.make.synthetic import make_run
from tests.make.tables import table

MIB = 1 << 20
BIG = Device(None, "gpu", memory_bytes=40_960 * MIB)
V100 = Device("Tesla V100", "gpu", memory_bytes=16_384 * MIB)
STEP = (Step(0, "step", None, 1000),)


def parts_of(*changes):
    return group_into_studies([make_run(number, **each) for number, each in enumerate(changes, 1)])


def test_two_gpus_in_one_study_are_told_with_the_runs_on_each():
    ncu = [
        {"device": V100, "steps": STEP, "profiler": "ncu", "batch_size": batch}
        for batch in (16, 64)
    ]
    (said,) = list_different_gpu_causes(
        parts_of(*ncu, {"device": BIG, "steps": STEP, "profiler": "none"})
    )
    assert describe_cause(said) == (
        "Parts of this study ran on different GPUs (Tesla V100 of 16,384 MiB, a GPU of 40,960 "
        "MiB), so their times cannot be compared. Runs, in the same order: ncu at "
        "batch 16 to 64; runs without a profiler at batch 64."
    )
    assert (said.rule, said.factor, said.confidence) == ("other GPU", None, "observed")


@table(
    "other",
    [
        {"device": V100, "steps": STEP},
        # the driver's share is taken off
        {"device": replace(V100, memory_bytes=16_160 * MIB), "steps": STEP},
        {"device": replace(V100, memory_bytes=None), "steps": STEP},
        {"device": Device(None, "gpu"), "steps": STEP},
        {"device": None, "steps": STEP},
        {"device": BIG},  # nothing of it is timed
        {"steps": STEP},  # a CPU beside a GPU is a comparison
    ],
)
def test_equal_and_unknown_gpus_and_runs_without_times_are_no_verdict(other):
    assert list_different_gpu_causes(parts_of({"device": V100, "steps": STEP}, other)) == []


def test_gpus_of_one_name_with_other_memory_are_told_within_one_study():
    wide = replace(V100, memory_bytes=32_768 * MIB)
    (study,) = parts_of(
        {"device": V100, "steps": STEP},
        {"device": wide, "steps": STEP, "batch_size": 128},
    )
    (found,) = analyse_studies([study])
    assert [item.rule for item in found.judgement.sweep] == ["other GPU"]


def test_the_first_part_of_a_sweep_has_the_verdict_and_other_sweeps_are_apart():
    runs = {"steps": STEP, "layer_calls": synthetic.layer_calls(64)}
    together = parts_of({"device": V100, **runs}, {"device": BIG, **runs})
    assert [[item.rule for item in one.judgement.sweep] for one in analyse_studies(together)] == [
        ["other GPU"],
        [],
    ]
    apart = parts_of({"device": V100, **runs}, {"device": BIG, "sweep_id": 2, **runs})
    assert [one.judgement.sweep for one in analyse_studies(apart)] == [(), ()]
    ranks = parts_of(
        {"device": V100, "world_size": 2, **runs},
        {"device": BIG, "world_size": 2, "variant": "rank 1", **runs},
    )
    assert [one.judgement.sweep for one in analyse_studies(ranks)] == [(), ()]


def timed(number, nanoseconds, macs, variant, **changes):
    call = LayerCall("conv2", "Conv2d", "forward", macs, 2 * macs, 10, 4, 4, 1, None)
    run = make_run(
        number, variant=variant, layer_calls=(call,), profiler="none", **{"device": None, **changes}
    )
    report = replace(run.report, summaries=[Summary("host_time:conv2:forward", nanoseconds, "ns")])
    return replace(run, report=report)


def test_more_work_in_less_time_on_the_hosts_clock_is_told():
    runs = [
        timed(1, 174_600, 600_000, None, device=BIG),
        timed(2, 130_400, 3_000_000, "k=5"),
    ]
    (said,) = list_work_time_contradiction_causes(group_into_studies(runs))
    assert describe_cause(said) == (
        "Implausible timing: conv2 forward took 0.1304 ms for 3 M multiply-adds with k=5, but "
        "0.1746 ms for only 600 k by default. These times cannot be compared: the CPU timer "
        "may have measured launches instead of kernels, or the GPUs differ (no record names the GPU of "
        "the run with k=5). The multiply-adds are those of batch 64."
    )
    both = [replace(runs[0], device=V100), replace(runs[1], device=BIG)]
    (named,) = list_work_time_contradiction_causes(group_into_studies(both))
    assert "(the records name a GPU of 40,960 MiB and Tesla V100 of 16,384 MiB)" in describe_cause(
        named
    )


@table(
    "nanoseconds macs variant precision",
    [
        (200_000, 3_000_000, "k=5", "fp32"),  # more work takes longer
        (130_400, 800_000, "k=5", "fp32"),  # hardly more work
        (130_400, 3_000_000, None, "fp32"),  # the same variant, timed twice
        (130_400, 3_000_000, "k=5", "fp16"),  # another type may be faster
    ],
)
def test_times_that_may_be_right_are_no_verdict(nanoseconds, macs, variant, precision):
    first = timed(1, 174_600, 600_000, None)
    other = timed(2, nanoseconds, macs, variant, precision=precision)
    assert list_work_time_contradiction_causes(group_into_studies([first, other])) == []
