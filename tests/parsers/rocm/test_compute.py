"""rocprof-compute's tables: synthetic ones written here, and real ones read a second time with csv alone."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError
from perfctl.records.report import Counter, Report

IDENTITY = ("Dispatch_ID", "Kernel_Name", "GPU_ID", "Grid_Size", "Workgroup_Size", "LDS_Per_Workgroup",
            "Scratch_Per_Workitem", "Arch_VGPR", "Accum_VGPR", "SGPR", "Wave_Size")  # fmt: skip
TIMES = ("Start_Timestamp", "End_Timestamp")
NAMES = ("SQ_WAVES", "Wave_Size_1", "TCC_HIT[0]", "TCC_HIT[1]", "TCC_MISS[0]", "TCC_MISS[1]", "TCC_MISS_sum")


def written(path: Path, header: Sequence[str], *rows: Sequence[object]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def launch(number: int, *counts: object) -> tuple[object, ...]:
    begin = 1000.25 * number
    return (number, "mul(int, int) [clone .kd]", 4, 1000, 256, 0, 0, 8, 4, 16, 64, *counts, begin, begin + 40.5)


def workload(folder: Path) -> Path:
    path = written(folder / "pmc_perf.csv", (*IDENTITY, *NAMES, *TIMES), launch(0, 16, 64, 3, 4, 5, 6, 11),
                   launch(1, 17, 64, 30, 40, 50, 60, 110))  # fmt: skip
    written(folder / "sysinfo.csv", ("gpu_model", "gpu_arch", "cu_per_gpu", "max_sclk", "hbm_bw", "hostname", "command"),
            ("MI300X_A1", "gfx942", 304, 2100, 5324.8, "node17", "./train --token=secret"))  # fmt: skip
    written(folder / "SQ_LEVEL_WAVES.csv", (*IDENTITY, "SQ_WAVES", *TIMES), launch(0, 99), launch(1, 98))
    return path


def test_a_workload_s_folder_is_one_report_with_its_device(tmp_path: Path) -> None:
    path = workload(tmp_path)
    assert parsers.find(tmp_path) == [path]
    report = parsers.parse(path)
    (gpu,) = report.devices
    assert (gpu.name, gpu.compute_capability, gpu.sm_count) == ("AMD Instinct MI300X", "gfx942", 304)
    assert (gpu.clock_hz, gpu.memory_bandwidth_bps) == (2_100_000_000, 5_324_800_000_000)
    kernel = list(report.kernels)[1]
    assert (kernel.name, kernel.grid_x, kernel.block_x, kernel.registers) == (
        "mul(int, int)",
        -(-1000 // 256),
        256,
        8 + 4,
    )
    assert (kernel.start_ns, kernel.duration_ns) == (1000, 40.5)
    assert not any("node17" in text or "secret" in text for text in (*report.environment.values(), report.form))


def test_channels_are_summed_and_repeated_identities_are_no_counters(tmp_path: Path) -> None:
    report = parsers.parse(workload(tmp_path))
    assert [one for one in report.counters if one.launch == 1] == [
        Counter(1, "SQ_WAVES", 17, None), Counter(1, "TCC_MISS_sum", 110, None), Counter(1, "TCC_HIT_sum", 30 + 40, None),
        Counter(1, "SQ_WAVES", 98, None, "SQ_LEVEL_WAVES"),
    ]  # fmt: skip
    said = {gap.reason for gap in report.gaps}
    assert "2 columns of single channels are summed into 1 counters (..._sum)" in said
    assert "2 columns of single channels are left out: their sums (..._sum) are in the file" in said
    assert "1 identity columns that the join of passes repeats were left out" in said


def test_a_pass_with_other_launches_is_left_out_by_name(tmp_path: Path) -> None:
    path = workload(tmp_path)
    written(tmp_path / "SQ_LEVEL_WAVES.csv", (*IDENTITY, "SQ_WAVES", *TIMES), launch(0, 99))
    report = parsers.parse(path)
    assert {one.section for one in report.counters} == {None}
    assert "SQ_LEVEL_WAVES.csv" in next(
        gap.reason for gap in report.gaps if gap.state == "ambiguous" and "launches" in gap.reason
    )


def test_a_cut_off_table_is_one_clear_error(tmp_path: Path) -> None:
    path = workload(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ReportError, match="line 3"):
        parsers.parse(path)


@pytest.fixture(params=["hgliu_mi300x_pmc_perf.csv", *(f"rocprofiler_compute_kernel/{chip}/pmc_perf.csv"
                                                       for chip in ("MI200", "MI300X_A1"))])  # fmt: skip
def real(request: pytest.FixtureRequest, shared: Path) -> Path:
    return shared / "reports/rocm/omniperf" / str(request.param)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def values(report: Report, name: str) -> list[float | None]:
    return [one.value for one in report.counters if one.name == name and one.section is None]


def test_every_counter_of_the_real_tables_agrees_with_a_reading_of_their_cells(real: Path) -> None:
    rows, report = rows_of(real), parsers.parse(real)
    kernels = list(report.kernels)
    assert len(kernels) == len(rows)
    found: dict[tuple[int, str], float | None] = {}
    for one in report.counters:
        if one.section is None:
            found[one.launch, one.name] = one.value
    checked = 0
    for launch_number, row in enumerate(rows):
        for name, cell in row.items():
            if (launch_number, name) in found:
                assert found[launch_number, name] == float(cell), name
                checked += 1
    sums = {name.partition("[")[0] for name in rows[0] if "[" in name}
    for name in sums:
        if f"{name}_sum" not in rows[0]:
            channels = [column for column in rows[0] if column.startswith(f"{name}[")]
            assert values(report, f"{name}_sum") == [sum(float(row[column]) for column in channels) for row in rows]
            checked += len(rows)
    assert checked == len(found) >= 200 * len(rows)
    counters = ("SQ", "TCC", "TCP", "TA_", "TD_", "CPC", "CPF", "SPI", "GRBM")
    missing = [n for n in rows[0] if n.startswith(counters) and "[" not in n and (0, n) not in found]
    assert missing == []
    waves = [-(-int(row["Grid_Size"]) // int(row["Workgroup_Size"])) for row in rows]
    assert [kernel.grid_x for kernel in kernels] == waves


def test_the_times_of_the_real_tables_are_those_of_the_run_without_counters(shared: Path) -> None:
    for chip in ("MI200", "MI300X_A1"):
        folder = shared / "reports/rocm/omniperf/rocprofiler_compute_kernel" / chip
        plain = rows_of(folder / "timestamps.csv")
        kernels = list(parsers.parse(folder / "pmc_perf.csv").kernels)
        assert [(kernel.start_ns, kernel.duration_ns) for kernel in kernels] == [
            (int(row["Start_Timestamp"]), int(row["End_Timestamp"]) - int(row["Start_Timestamp"])) for row in plain
        ]
        alone = parsers.parse(folder / "SQ_LEVEL_WAVES.csv")
        accumulated = [float(row["SQ_ACCUM_PREV_HIRES"]) for row in rows_of(folder / "SQ_LEVEL_WAVES.csv")]
        assert values(alone, "SQ_ACCUM_PREV_HIRES") == accumulated
        assert parsers.find(folder) == [folder / "pmc_perf.csv"]


def test_the_real_ranking_agrees_with_its_rows_and_with_the_launches(shared: Path) -> None:
    folder = shared / "reports/rocm/omniperf"
    rows = rows_of(folder / "hgliu_mi300x_pmc_kernel_top.csv")
    found = list(parsers.parse(folder / "hgliu_mi300x_pmc_kernel_top.csv").operations)
    assert [(one.name, one.calls, one.device_ns) for one in found] == [
        (row["Kernel_Name"], int(row["Count"]), round(float(row["Sum(ns)"]))) for row in rows
    ]
    kernels = list(parsers.parse(folder / "hgliu_mi300x_pmc_perf.csv").kernels)
    for one in found:
        mine = [kernel.duration_ns or 0 for kernel in kernels if kernel.name == one.name]
        assert len(mine) == one.calls
        assert sum(mine) == pytest.approx(one.device_ns or 0, rel=1e-6)


def test_rocprof_s_own_table_has_the_same_form_with_other_names(tmp_path: Path) -> None:
    header = ("Index", "KernelName", "gpu-id", "queue-id", "pid", "tid", "grd", "wgr", "lds", "scr", "arch_vgpr",
              "accum_vgpr", "sgpr", "wave_size", "sig", "obj", "SQ_WAVES", "FETCH_SIZE", "DispatchNs", "BeginNs", "EndNs",
              "CompleteNs", "DurationNs")  # fmt: skip
    row = (
        0,
        "mul(int) [clone .kd]",
        1,
        0,
        7,
        7,
        1000,
        256,
        512,
        16,
        8,
        4,
        16,
        64,
        "0x0",
        "0x7f",
        16,
        2.5,
        90,
        100,
        140,
        150,
        40,
    )
    report = parsers.parse(written(tmp_path / "results.csv", header, row))
    (kernel,) = report.kernels
    assert (report.tool, kernel.name, kernel.grid_x, kernel.duration_ns) == ("rocprof", "mul(int)", -(-1000 // 256), 40)
    assert (kernel.registers, kernel.static_shared_bytes, kernel.dynamic_shared_bytes) == (8 + 4, 512, None)
    assert list(report.counters) == [
        Counter(0, "Scratch_Size", 16, "byte"), Counter(0, "SQ_WAVES", 16, None), Counter(0, "FETCH_SIZE", 2560, "byte"),
    ]  # fmt: skip
