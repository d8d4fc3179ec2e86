"""The work of a study under the roofs: which counts, times and launches each point is made of."""

from __future__ import annotations

from typing import Any

from perfctl.orchestrator.ledger.ledger import build_ledger
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.orchestrator.ledger.roofline import build_roofline
from perfctl.records.report import Counter, Device, Kernel, Step
from tests.make import synthetic
from tests.make.synthetic import cpu_run, fp_counters, make_run, study_of
from tests.make.tables import table

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"


def of(*runs):
    study = study_of(*runs)
    return build_roofline(study, build_ledger(study))


def kernel(launch, name, layer, step, nanoseconds, **more):
    direction = "forward" if layer else None
    return Kernel(
        launch, name, layer=layer, direction=direction, step=step, duration_ns=nanoseconds, **more
    )


def ncu(kernels, counted, **changes):
    """``counted``: launch -> (FFMA, bytes read; as many again are written)."""
    counters = []
    for launch, (ffma, moved) in counted.items():
        counters += fp_counters(launch, 0, 0, ffma)
        counters += [Counter(launch, name, moved, "byte") for name in (READ, WRITTEN)]
    return make_run(
        101,
        profiler="ncu",
        device=synthetic.V100,
        kernels=kernels,
        counters=counters,
        layer_calls=synthetic.layer_calls(64),
        **changes,
    )


def test_counts_are_sums_per_step_and_launches_outside_of_steps_are_left_out():
    kernels = [
        kernel(0, "a", "conv1", 0, 5),
        kernel(1, "b", "conv1", 0, 5),
        kernel(2, "a", "conv1", 1, 5),
        kernel(3, "a", "conv1", None, 5),
        kernel(4, "c", None, 1, 5),
    ]
    run = ncu(kernels, {0: (10, 100), 1: (20, 200), 2: (40, 300), 3: (999, 999)})
    found = PreparedRun(run, "fp32").counted_work_by_kernel_name
    assert {
        key: (item.total.value, item.dram.value, item.launches) for key, item in found.items()
    } == {
        "a": (2 * (10 + 40) / 2, 2 * (100 + 300) / 2, 1),
        "b": (2 * 20 / 2, 2 * 200 / 2, 0.5),
        "c": (None, None, 0.5),
    }
    zeros = dict.fromkeys(("fp64", "fp16", "tensor fp16"), 0)
    paths = {path: figure.value for path, figure in found["b"].paths.items()}
    assert paths == {"fp32": 2 * 20 / 2, **zeros}
    assert (dict(found["c"].paths), found["c"].total.state) == ({}, "not_collected")
    assert found["c"].dram.reason == "no DRAM bytes were measured; 'perfctl ncu' collects them"


def timed(profiler="nsys", **more):
    """Two steps of 1,000 and 1,200 ns, in which kernels take 400 and 500."""
    kernels = [
        kernel(7, "a", "conv1", 0, 300, grid_x=1),
        kernel(8, "c", None, 0, 100, grid_x=1),
        kernel(9, "a", "conv1", 1, 360, grid_x=1),
        kernel(10, "c", None, 1, 140, grid_x=1),
    ]
    fields: dict[str, Any] = {
        "profiler": profiler,
        "device": synthetic.V100,
        "kernels": kernels,
        "layer_calls": synthetic.layer_calls(64),
        "steps": (Step(0, "step", None, 1000), Step(1, "step", None, 1200)),
    }
    return make_run(1, **(fields | more))


def test_a_whole_step_has_the_hosts_time_the_sum_of_paper_and_its_kernels_share():
    counted = ncu(
        [kernel(0, "a", "conv1", 0, 999), kernel(1, "c", None, 0, 999)],
        {0: (10, 100), 1: (5, 20)},
    )

    def whole_of(*runs):
        (whole,) = of(*runs).select_points_by_work_level("run")
        return whole.traffic

    whole = whole_of(timed(), counted)
    assert (whole.name, whole.batch, whole.layer, whole.direction) == (
        "complete step, batch 64",
        64,
        None,
        None,
    )
    forward = {layer: 2 * synthetic.macs(layer, 64) for layer in synthetic.LAYERS}
    assert whole.estimated == 3 * sum(forward.values()) - forward["conv1"]
    assert (whole.executed.value, whole.dram.value) == (2 * (10 + 5), 2 * (100 + 20))
    assert (whole.time_ns, whole.busy, whole.trusted) == (1100, 450 / 1100, True)
    assert whole.basis == "CPU timer around each step, while nsys was recording"
    bare = whole_of(timed(steps=()), counted)
    assert (bare.time_ns, bare.basis, bare.busy) == (450, "kernels, nsys", None)
    alone = whole_of(counted)
    assert (alone.time_ns, alone.basis, alone.busy) == (None, None, None), "no time under ncu"
    uncounted = whole_of(timed())
    assert uncounted.executed.state == uncounted.dram.state == "not_collected"


def test_on_a_cpu_there_is_nothing_to_count():
    (whole,) = of(cpu_run(1, 64)).select_points_by_work_level("run")
    assert (whole.traffic.executed.state, whole.traffic.dram.reason) == (
        "not_available",
        "perfctl measures DRAM bytes on NVIDIA GPUs only, with ncu",
    )
    assert (whole.traffic.time_ns, whole.traffic.busy) == (64 * 10_100 + 1000, None)


def test_a_row_has_its_time_its_launches_on_either_side_and_its_bytes():
    counted = ncu(
        [kernel(0, "a", "conv1", 0, 9), kernel(1, "a", "conv1", 0, 9), kernel(2, "c", None, 0, 9)],
        {0: (10, 100), 1: (20, 50)},
    )
    roofs = of(timed(), counted)
    point, other = (roofs.get_ledger_row_point(64, layer, "forward") for layer in ("conv1", "fc1"))
    assert point is not None and other is not None
    work = point.traffic
    assert (work.name, work.basis, work.precision) == ("conv1 forward", "kernels, nsys", "fp32")
    assert (work.time_ns, work.launches, work.counted_launches) == (330, 1, 2)
    assert (work.executed.value, work.dram.value) == (2 * (10 + 20), 2 * (100 + 50))
    assert work.estimated == 2 * synthetic.macs("conv1", 64)
    work = other.traffic
    assert (work.time_ns, work.launches, work.counted_launches, work.dram.value) == (None,) * 4
    assert roofs.get_ledger_row_point(64, "conv1", "grad_input") is None, (
        "no estimate, counted or timed"
    )
    assert roofs.get_ledger_row_point(32, "conv1", "forward") is None


def test_a_kernel_has_the_time_of_the_same_launches_elsewhere_else_that_under_ncu():
    counted = ncu(
        [
            kernel(0, "a", "conv1", 0, 9000, grid_x=1),
            kernel(1, "a", "conv1", 1, 9000, grid_x=1),
            kernel(2, "new", None, 0, 700, grid_x=1),
            kernel(3, "bare", None, 0, None, grid_x=1),
        ],
        {0: (10, 100), 1: (20, 50), 2: (1, 1), 3: (1, 1)},
    )

    def kernels_of(*runs):
        return {
            point.traffic.name: point.traffic
            for point in of(*runs).select_points_by_work_level("kernel")
        }

    found = kernels_of(timed(), counted)
    assert list(found) == ["a", "new", "bare"]
    # Mean of 300 and 360, one launch a step; "new" runs in one of two steps.
    same, new, bare = found.values()
    assert (same.time_ns, same.basis, same.trusted) == ((300 + 360) / 2, "kernels, nsys", True)
    assert (same.launches, same.counted_launches, same.estimated) == (1, 1, None)
    assert (same.executed.value, same.dram.value) == (2 * (10 + 20) / 2, 2 * (100 + 50) / 2)
    assert (new.time_ns, new.trusted) == (700 / 2, False)
    assert new.basis == "kernels under ncu at locked clocks: not a realistic time"
    assert (bare.time_ns, bare.basis) == (None, None)
    zero = [kernel(7, "a", "conv1", 0, 0, grid_x=1), kernel(9, "c", None, 0, 5, grid_x=1)]
    assert kernels_of(timed(kernels=zero), counted)["a"].time_ns is None, (
        "a time of 0 elsewhere is not made good by ncu's"
    )
    assert kernels_of(timed()) == {}, "nothing was counted"


@table(
    "own reported peaks",
    [
        ("Tesla V100-SXM2-16GB", "Tesla T4", "V100 SXM2"),
        (None, "Tesla T4", "T4"),
        (None, None, None),
    ],
)
def test_the_roofs_are_those_of_the_runs_own_device_before_those_of_its_report(
    own, reported, peaks
):
    run = timed(
        device=Device(own, "gpu") if own else None,
        devices=(Device(reported, "gpu"),) if reported else (),
    )
    assert (peaks or "no record names the device") in (of(run).peaks.source or "") + (
        of(run).peaks.reason or ""
    )
