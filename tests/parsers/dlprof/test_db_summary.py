"""What DLProf's database says of the run as a whole, and its operations: from a database with every
table, made here."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.parsers import parse
from perfctl.records.report import Copy, Device, Diagnostic, Gap, Operation, Report, Step, Summary
from tests.parsers.dlprof.test_db import made

FIGURES = [
    "wall_time",
    "tc_utilization",
    "gpu_utilization",
    "tc_duration_pct",
    "non_tc_duration_pct",
    "memory_duration_pct",
    "dataloader_duration_pct",
    "io_duration_pct",
    "cpu_duration_pct",
    "other_duration_pct",
    "iter_total",
    "iter_aggregated",
    "iter_start",
    "iter_stop",
    "avg_iteration_time",
    "iteration_time_std_dev",
]
NODES = ["nodes_total_id", "nodes_using_tc_id", "nodes_tc_eligible_id", "nodes_other_id"]
MORE = f"""
CREATE TABLE read_only_system_config(id INTEGER PRIMARY KEY, framework, cuda_version, cudnn_version, nsys_version,
    dlprof_version, dlprof_build, cpu_model, driver_version, mode_string, num_gpus, user_name);
INSERT INTO read_only_system_config VALUES (1, 'PyTorch 1.10', '10.2', '', '2021', 'v1.8.0', 'b', 'a CPU', '515', 'm', 1,
    'somebody');
CREATE TABLE read_only_model_config(num_workers, pin_memory, cudnn_benchmark_disabled, detect_anomaly, gradcheck,
    gradgradcheck, autograd_profile, emit_nvtx, amp_enabled);
INSERT INTO read_only_model_config VALUES (4, 1, 0, 0, 0, 0, 0, 1, NULL);
CREATE TABLE db_version(current_version);
INSERT INTO db_version VALUES ('1.1');
CREATE TABLE read_only_domains(id, domain_name_id);
INSERT INTO read_only_domains VALUES (5, 1), (6, 77);
CREATE TABLE model_summary(aggr_id, domain_id, {", ".join(FIGURES + NODES)});
INSERT INTO model_summary VALUES (1, 5, {", ".join("0" for _ in FIGURES + NODES)});
INSERT INTO model_summary VALUES (2, 5, {", ".join(str(n) for n in range(100, 116))}, 1, 2, 3, 4);
CREATE TABLE category_summary(id, gpu_time, cpu_time, count);
INSERT INTO category_summary VALUES (1, 11, 12, 13), (2, 21, 22, 23), (3, 31, 32, 33), (4, 41, 42, 43), (5, 51, 52, 53),
    (6, 61, 62, 63), (7, 71, 72, 73), (8, 81, 82, 83);
CREATE TABLE kernel_summary_metrics(aggr_id, domain_id, kernels_total_id, kernels_using_tc_id, kernels_non_tc_id);
INSERT INTO kernel_summary_metrics VALUES (1, 5, 1, 1, 1), (2, 6, 1, 1, 1), (2, 5, 5, 6, 7);
CREATE TABLE memory_summary_metrics(aggr_id, domain_id, memory_time_id);
INSERT INTO memory_summary_metrics VALUES (2, 5, 8);
CREATE TABLE read_only_cuda_calls(name_id, api_start, api_stop);
INSERT INTO read_only_cuda_calls VALUES (1, 10, 13), (1, 20, 25), (88, 5, 6);
CREATE TABLE read_only_cuda_syncs(name_id, api_start, api_stop);
INSERT INTO read_only_cuda_syncs VALUES (3, 1, 8);
CREATE TABLE gpu_memories(used, total);
INSERT INTO gpu_memories VALUES (7, 9);
CREATE TABLE expert_systems_feedback(aggr_id, problem, recommendation);
INSERT INTO expert_systems_feedback VALUES (1, 'old', 'x'), (2, 'slow', 'go');
INSERT INTO read_only_kernels VALUES (3, 1, 1, 2, 0, 6000, 6300, 1, 2, 0);
CREATE TABLE op_nodes(id, aggr_id, read_only_ops_id, node_time_metrics_id, num_calls);
INSERT INTO op_nodes VALUES (1, 1, 1, 1, 9), (2, 2, 1, 1, 3), (3, 2, 1, 1, 'x'), (4, 2, 44, 45, 2);
CREATE TABLE node_time_metrics(id, cpu_time_metric_id, gpu_time_metric_id);
INSERT INTO node_time_metrics VALUES (1, 1, 2);
CREATE TABLE metric(id, sum);
INSERT INTO metric VALUES (1, 900), (2, 400);
"""


def read(tmp_path: Path, change: str = "") -> Report:
    return parse(made(tmp_path / "d.sqlite", MORE + change))


def figures(report: Report) -> dict[str, tuple[float | None, str | None]]:
    return {figure.name: (figure.value, figure.unit) for figure in report.summaries}


def test_the_figures_of_the_last_aggregation_have_the_summary_s_names_and_units(
    tmp_path: Path,
) -> None:
    found = list(read(tmp_path).summaries)
    names = [
        "Wall Clock Time",
        "Tensor Core Kernel Utilization",
        "GPU Utilization",
        "Tensor Core Kernel Duration",
        "Non-Tensor Core Kernel Duration",
        "Memory Duration",
        "Dataloader Duration",
        "IO Duration",
        "CPU Duration",
        "Other Duration",
        "Total Iterations",
        "Aggregated Iterations",
        "Start Iteration",
        "Stop Iteration",
        "Average Iteration Time",
        "Iteration Time Standard Deviation",
    ]
    units = ["ns", *["%"] * 9, *[None] * 4, "ns", "ns"]
    assert found[:16] == [
        Summary(name, float(n), unit)
        for n, (name, unit) in enumerate(zip(names, units, strict=True), 100)
    ]
    ops = ("All ops", "Ops using TC", "Ops eligible for TC but not using", "All other ops")
    expected = []
    for n, label in enumerate(ops, 1):
        expected += [
            Summary(f"All Ops: {label}: GPU Time", 10.0 * n + 1, "ns"),
            Summary(f"All Ops: {label}: CPU Time", 10.0 * n + 2, "ns"),
            Summary(f"All Ops: {label}: # Ops", 10.0 * n + 3, None),
        ]
    # all kernels are the kernels' total (5) and the copies (8) together
    for label, tens in (
        ("All kernels", 50 + 80),
        ("Kernels using TC", 60),
        ("Memory", 80),
        ("All other kernels", 70),
    ):
        both = 2 if label == "All kernels" else 1
        expected += [
            Summary(f"All Kernels: {label}: GPU Time", tens + 1.0 * both, "ns"),
            Summary(f"All Kernels: {label}: CPU Time", tens + 2.0 * both, "ns"),
            Summary(f"All Kernels: {label}: # Kernels", tens + 3.0 * both, None),
        ]
    assert found[16:40] == expected


def test_the_rest_of_the_figures_are_tensor_core_use_calls_and_memory(tmp_path: Path) -> None:
    assert list(read(tmp_path).summaries)[40:] == [
        Summary("TC Utilization: CONV_1", 25.0, "%"),  # 100 of 100 + 300 ns
        Summary("CUDA call: conv: Calls", 2.0, None),
        Summary("CUDA call: conv: CPU Time", 8.0, "ns"),
        Summary("CUDA call: without a name: Calls", 1.0, None),
        Summary("CUDA call: without a name: CPU Time", 1.0, "ns"),
        Summary("CUDA synchronisation: conv2d: Calls", 1.0, None),
        Summary("CUDA synchronisation: conv2d: CPU Time", 7.0, "ns"),
        Summary("GPU Memory Used", 7.0, "byte"),
    ]


def test_versions_settings_advice_and_devices_come_along_and_names_of_people_do_not(
    tmp_path: Path,
) -> None:
    report = read(tmp_path)
    assert report.environment == {
        "framework": "PyTorch 1.10",
        "cuda": "10.2",
        "nsys": "2021",
        "dlprof": "v1.8.0",
        "dlprof_build": "b",
        "cpu_model": "a CPU",
        "driver_version": "515",
        "dlprof_mode": "m",
        "torch": "1.10",
        "num_workers": "4",
        "pin_memory": "1",
        "cudnn_benchmark_disabled": "0",
        "detect_anomaly": "0",
        "gradcheck": "0",
        "gradgradcheck": "0",
        "autograd_profile": "0",
        "emit_nvtx": "1",
    }
    assert (report.form, report.tool_version, report.duration_ns) == (
        "DLProf database, version 1.1",
        "1.8.0",
        100,
    )
    gpu = Device("Synthetic GPU", "gpu", 0, "7.5", 40, memory_bytes=9, driver_version="515")
    assert report.devices == (gpu, Device("a CPU", "cpu"))
    assert Diagnostic("info", "DLProf expert systems", "slow. go") in report.diagnostics
    assert not [said for said in report.diagnostics if "old" in said.text]
    assert "device.memory_bytes" not in {gap.quantity for gap in report.gaps}


def test_operations_are_those_of_the_last_aggregation_with_a_count(tmp_path: Path) -> None:
    one = Operation(
        name="conv1:forward",
        category="conv2d",
        calls=3,
        cpu_ns=900,
        self_cpu_ns=None,
        device_ns=400,
        memory_bytes=None,
        flops=None,
        layer="conv1",
        direction="forward",
    )
    lost = one._replace(
        name="(no name in the database)",
        category=None,
        calls=2,
        cpu_ns=None,
        device_ns=None,
        layer=None,
        direction=None,
    )
    assert list(read(tmp_path).operations) == [one, lost]
    (tmp_path / "d.sqlite").unlink()
    untimed = one._replace(cpu_ns=None, device_ns=None)
    assert list(read(tmp_path, "DROP TABLE metric;").operations) == [untimed, lost]
    (tmp_path / "d.sqlite").unlink()
    assert list(read(tmp_path, "DROP TABLE op_nodes;").operations) == []


def test_several_domains_are_told_apart_by_name_or_number(tmp_path: Path) -> None:
    row = ", ".join(str(n) for n in range(200, 216))
    more = "".join(
        f"INSERT INTO model_summary VALUES (2, {n}, {row}, 1, 99, 99, 99);" for n in (6, 7)
    )
    found = figures(read(tmp_path, more))
    assert [found[f"{name}: Wall Clock Time"][0] for name in ("conv", "domain 6", "domain 7")] == [
        100,
        200,
        200,
    ]
    assert found["domain 7: All Ops: All ops: # Ops"] == (13, None)
    assert "domain 7: All Ops: Ops using TC: # Ops" not in found
    assert "domain 7: All Kernels: All kernels: GPU Time" not in found
    assert "domain 6: All Kernels: All kernels: GPU Time" not in found  # it has no copies to add


@pytest.mark.parametrize(
    ("change", "size", "state", "reason"),
    [
        ("DELETE FROM gpu_memories;", None, "not_available", "the table gpu_memories is empty"),
        (
            "INSERT INTO gpu_memories VALUES (8, 9);",
            None,
            "ambiguous",
            "gpu_memories does not say which size belongs to which device",
        ),
        (
            "UPDATE gpu_memories SET total = 'much';",
            None,
            "ambiguous",
            "gpu_memories does not say which size belongs to which device",
        ),
        (
            "INSERT INTO gpu_memories VALUES (8, 9);"
            " INSERT INTO read_only_gpu_infos VALUES (2, 1, NULL, 8, NULL, 'x');",
            9,
            None,
            None,
        ),
        (
            "INSERT INTO gpu_memories VALUES (8, 10);"
            " INSERT INTO read_only_gpu_infos VALUES (2, 1, NULL, 8, NULL, 'x');",
            None,
            "ambiguous",
            "gpu_memories does not say which size belongs to which device",
        ),
    ],
)
def test_a_gpu_has_the_memory_that_all_of_them_have(
    tmp_path: Path, change: str, size: int | None, state: str | None, reason: str | None
) -> None:
    report = read(tmp_path, change)
    gpus = [device for device in report.devices if device.kind == "gpu"]
    assert {device.memory_bytes for device in gpus} == {size}
    found = [
        (gap.state, gap.reason) for gap in report.gaps if gap.quantity == "device.memory_bytes"
    ]
    assert found == ([(state, reason)] if state else [])
    if len(gpus) == 2:
        assert gpus[1] == Device(None, "gpu", 1, memory_bytes=size, driver_version="515")


def test_gpus_whose_memory_is_several_rows_have_a_figure_each(tmp_path: Path) -> None:
    found = figures(read(tmp_path, "INSERT INTO gpu_memories VALUES (8, 9);"))
    assert (found["GPU 0: Memory Used"], found["GPU 1: Memory Used"]) == ((7, "byte"), (8, "byte"))


def test_a_figure_that_is_no_number_is_text_and_a_database_without_facts_says_so(
    tmp_path: Path,
) -> None:
    report = read(tmp_path, "UPDATE model_summary SET gpu_utilization = 'N/A', wall_time = NULL;")
    by_name = {figure.name: figure for figure in report.summaries}
    assert by_name["GPU Utilization"] == Summary("GPU Utilization", None, "%", "N/A")
    assert by_name["Wall Clock Time"] == Summary("Wall Clock Time", None, "ns")
    assert report.duration_ns is None
    (tmp_path / "d.sqlite").unlink()
    bare = parse(made(tmp_path / "d.sqlite"))
    assert (bare.form, bare.tool_version, bare.environment, bare.duration_ns) == (
        "DLProf database",
        None,
        {},
        None,
    )
    assert [figure.name for figure in bare.summaries] == ["TC Utilization: CONV_1"]
    quantities = [gap.quantity for gap in bare.gaps]
    assert quantities == [
        "device.memory_bytes",
        "operation",
        "kernel.stream",
        "kernel.registers",
        "kernel.static_shared_bytes",
        "kernel.dynamic_shared_bytes",
        "kernel.layer",
        "operation.memory_bytes",
        "operation.flops",
        "operation.self_cpu_ns",
        "kernel.step",
    ]
    reason = "1 of 2 launches are outside the iterations that DLProf aggregated"
    assert bare.gaps[-1] == Gap("kernel.step", "not_collected", reason)


def test_times_that_dlprof_did_not_see_are_unknown_and_a_launch_may_take_none(
    tmp_path: Path,
) -> None:
    path = made(
        tmp_path / "d.sqlite", "DELETE FROM read_only_kernels; DELETE FROM read_only_memcpys;"
    )
    times = [(5, 5), (5, 4), (0, 0), (0, 7), (-3, 2)]
    with closing(sqlite3.connect(path)) as database, database:
        for n, (start, stop) in enumerate(times, 1):
            database.execute(
                "INSERT INTO read_only_kernels VALUES (?, 1, 1, 2, 0, ?, ?, 1, 2, 0)",
                (n, start, stop),
            )
            database.execute(
                "INSERT INTO read_only_memcpys VALUES (?, ?, ?, 9, ?, 3)", (n, start, stop, n)
            )
        database.execute(
            "INSERT INTO iteration_list VALUES (3, 2, 10, 250, 250), (4, 2, 'x', 1, 2)"
        )
    report = parse(path)
    durations = [0, None, None, 7, 5]
    assert [kernel.duration_ns for kernel in report.kernels] == durations
    kinds = ["HtoD", "DtoH"]
    copies = list(report.copies)[:2]
    assert copies == [
        Copy(kind, 9, *time, device_index=3)
        for kind, time in zip(kinds, [(5, 0), (5, None)], strict=True)
    ]
    assert report.steps == (Step(9, "step", 100, 150), Step(10, "step", 250, 0))


def test_a_database_without_a_launch_says_that_none_ran(tmp_path: Path) -> None:
    report = read(tmp_path, "DELETE FROM read_only_kernels;")
    assert ("kernel", "not_collected") in {(gap.quantity, gap.state) for gap in report.gaps}
    assert "kernel.step" not in {gap.quantity for gap in report.gaps}
