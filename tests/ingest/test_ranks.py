"""Traces of several ranks: one sweep, each with its rank, and figures that agree with HTA's
and TraceLens'."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.orchestrator.ingest.find import find_ranks_in_names
from perfctl.orchestrator.ingest.ingest import ingest_paths
from perfctl.orchestrator.ledger.usage.exchange import analyse_job_communication
from perfctl.orchestrator.ledger.usage.ranks import group_runs_into_multi_rank_jobs
from perfctl.orchestrator.report.ledger.ranks import build_ranks_table
from perfctl.orchestrator.report.page.sections import build_report_view
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import load_readable_runs
from tests.make.kineto import event, kernel

RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
HTA_IDLE = (6419, 6428, 7046, 8145, 8887, 9121, 7051, 8308)
"""get_temporal_breakdown of HolisticTraceAnalysis 0.5.0 (PyPI) on param_dlrm_8rank: idle time by
rank, us; likewise the next."""
HTA_COMPUTE = (1034, 1246, 1068, 1240, 1126, 1041, 1051, 1059)
HTA_SPAN = (13009, 18749, 11350, 18853, 16589, 16392, 11410, 10967)
HTA_OVERLAP = (4.50, 2.47, 7.88, 3.31, 0.56, 0.64, 7.56, 9.51)
"""get_comm_comp_overlap, percent."""
HTA_NON_COMPUTE = (5556, 11075, 3236, 9468, 6576, 6230, 3308, 1600)
HTA_COMMUNICATION = (5798, 11336, 3492, 9774, 6587, 6251, 3558, 1746)
"""merge_kernel_intervals of its communication kernels, us."""
HTA_ALONE = {"COMMUNICATION": 46880 + 10, "COMPUTATION": 7213, "overlapping": 1652}
"""get_gpu_kernel_breakdown over all ranks, us: each without the others; 10 us of communication
overlap with memory."""
TRACELENS = {
    "aten::addmm": (735.03662109375, 73),
    "aten::cudnn_convolution": (125.632080078125, 1),
    "aten::_flash_attention_forward": (122.84814453125, 12),
    "aten::native_layer_norm": (111.200927734375, 25),
    "aten::gelu": (60.541259765625, 12),
    "aten::add": (57.31298828125, 25),
    "aten::cat": (7.263916015625, 1),
    "aten::add_": (3.968017578125, 1),
    "aten::tanh": (1.5048828125, 1),
}
"""AMD-AGI/TraceLens @ b718d43,
tests/traces/h100/Falconsai_nsfw_image_detection__1016002_perf_report_csvs/ops_summary.csv:
total_direct_kernel_time_sum (us) and Count of each operator that launches kernels itself."""


def taken(store):
    with database.open_store_for_reading(store) as connection:
        return load_readable_runs(connection, read.list_run_ids(connection))


def trace(path, **metadata):
    events = [
        kernel("gemm", 0, 10, device=0),
        kernel(RING, 5, 20, device=0),
        event("cpu_op", "aten::mm", 0, 1),
    ]
    path.write_text(json.dumps({"schemaVersion": 1, **metadata, "traceEvents": events}))
    return path


def test_ranks_that_traces_state_are_runs_of_one_sweep_kept_apart_by_their_variant(tmp_path):
    for rank in (0, 1):
        trace(
            tmp_path / f"w{rank}.json",
            distributedInfo={"backend": "nccl", "rank": rank, "world_size": 2},
            n=rank,
        )
    assert not ingest_paths(tmp_path, tmp_path / "s.db").failed
    runs = taken(tmp_path / "s.db")
    assert [(run.report.rank, run.report.world_size, run.variant) for run in runs] == [
        (0, 2, "rank 0 of 2"),
        (1, 2, "rank 1 of 2"),
    ]
    assert len({run.sweep_id for run in runs}) == 1
    assert [one.exposed_ns for run in runs for one in run.report.collectives] == [15_000, 15_000]
    (job,) = group_runs_into_multi_rank_jobs(runs)
    assert [row[0].text for row in build_ranks_table(job).rows] == ["0", "1"]
    (part,) = build_report_view(runs, generated_at="2026-11-20").chapters
    assert part.title == "w0.json, first of 2 ranks"


def test_ranks_in_names_count_where_a_trace_says_nothing(tmp_path):
    for rank in range(3):
        trace(tmp_path / f"step_rank{rank}.{170 + rank}.json", n=rank)
    trace(tmp_path / "alone_rank7.json", n=7)
    ingest_paths(tmp_path, tmp_path / "s.db")
    found = {
        Path(run.artifact or "").name: (run.report.rank, run.report.world_size)
        for run in taken(tmp_path / "s.db")
    }
    assert found == {
        "alone_rank7.json": (None, None),
        "step_rank0.170.json": (0, 3),
        "step_rank1.171.json": (1, 3),
        "step_rank2.172.json": (2, 3),
    }


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["rank-0.a.json", "rank-1.b.json"], {"rank-0.a.json": (0, 2), "rank-1.b.json": (1, 2)}),
        (["t_rank1.json", "t_rank3.json"], {"t_rank1.json": (1, None), "t_rank3.json": (3, None)}),
        (["rank0.json", "rank0.pt.json"], {}),
        (["lowrank4.json", "lowrank8.json"], {}),
        (["a0.json", "a1.json"], {}),
        (["x_rank0.json", "y_rank1.json"], {}),
    ],
)
def test_a_rank_in_a_name_needs_another_file_that_differs_by_it(names, ranks):
    assert find_ranks_in_names(map(Path, names)) == {
        Path(name): found for name, found in ranks.items()
    }


def test_overlap_idle_and_kernel_times_of_eight_ranks_are_those_of_hta(reports, tmp_path):
    files = sorted((reports / "kineto/ranks/param_dlrm_8rank").glob("*.json.gz"))
    ingest_paths(files, tmp_path / "s.db")
    (job,) = group_runs_into_multi_rank_jobs(taken(tmp_path / "s.db"))
    ranks = job.ranks
    assert [one.rank for one in ranks] == list(range(8))
    for wanted, got in (
        (HTA_IDLE, [one.idle_ns for one in ranks]),
        (HTA_COMPUTE, [one.compute_ns for one in ranks]),
        (HTA_SPAN, [one.span_ns for one in ranks]),
    ):
        assert [ns / 1000 for ns in got] == pytest.approx(wanted, rel=0.01)
    non_compute = [one.span_ns - one.idle_ns - one.compute_ns for one in ranks]
    assert [ns / 1000 for ns in non_compute] == pytest.approx(HTA_NON_COMPUTE, rel=0.01)
    theirs = [
        us * (1 - overlap / 100) for us, overlap in zip(HTA_COMMUNICATION, HTA_OVERLAP, strict=True)
    ]
    assert [one.exposed_ns / 1000 for one in ranks] == pytest.approx(theirs, rel=0.01)
    (step,) = analyse_job_communication(
        job
    ).steps  # all collectives of these traces are in their one step
    assert [ns / 1000 for ns in step.exposed_ns] == pytest.approx(theirs, rel=0.01)
    # it prints two digits
    assert [100 * (one.overlap or 0) for one in ranks] == pytest.approx(HTA_OVERLAP, abs=0.006)
    exposed, talking = (
        sum(one.exposed_ns for one in ranks),
        sum(one.communication_ns for one in ranks),
    )
    compute = sum(one.compute_ns for one in ranks)
    assert exposed / 1000 == pytest.approx(HTA_ALONE["COMMUNICATION"], rel=0.01)
    assert (talking - exposed) / 1000 == pytest.approx(HTA_ALONE["overlapping"], rel=0.01)
    assert (compute - talking + exposed) / 1000 == pytest.approx(HTA_ALONE["COMPUTATION"], rel=0.01)


def test_ends_of_collectives_align_and_the_rank_that_never_waits_is_the_straggler(
    reports, tmp_path
):
    """FORMATS: all eight are on one clock, and rank 1 waits 7,635 us in the first collective, rank
    2 518 us."""
    files = sorted((reports / "kineto/ranks/param_dlrm_8rank").glob("*.json.gz"))
    ingest_paths(files, tmp_path / "s.db")
    (job,) = group_runs_into_multi_rank_jobs(taken(tmp_path / "s.db"))
    assert {one.matched for one in job.ranks} == {8}
    assert all(
        abs(one.offset_ns or 0) <= 2000 and (one.spread_ns or 0) <= 1000 for one in job.ranks
    )
    assert job.straggler is job.ranks[7]
    assert (job.ranks[1].waiting_ns or 0) > 7_600_000


def test_kernel_time_by_operator_is_that_of_tracelens(reports):
    report = parsers.parse(reports / "kineto/tracelens_h100_Falconsai_vit.json.gz")
    times: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for call in report.op_calls:
        times[call.name] += (call.device_ns or 0) / 1000
        calls[call.name] += bool(call.device_ns)
    # TraceLens counts the two memsets of the convolution as its kernels
    copies = list(report.copies)
    assert [copy.kind for copy in copies] == ["memset", "memset"]
    memsets = sum(copy.duration_ns or 0 for copy in copies) / 1000
    times["aten::cudnn_convolution"] += memsets
    for name, (us, count) in TRACELENS.items():
        assert times[name] == pytest.approx(us, rel=0.01), name
        assert calls[name] == count, name
    total = sum(kernel.duration_ns or 0 for kernel in report.kernels) / 1000
    assert total + memsets == pytest.approx(sum(us for us, _ in TRACELENS.values()), rel=0.01)
